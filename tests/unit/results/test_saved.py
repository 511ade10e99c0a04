"""Every class of results: saved and read exactly, as a table, as HTML, with its provenance."""

import copy
import functools
import html
import importlib
import json
import math
import pickle
import pkgutil
import re
import sys
import zipfile
from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from quick import quick_first

import jaxcal
from jaxcal import dce, measures, numerics, sbi, squared_ce
from jaxcal.candidates import exchangeability_test
from jaxcal.coverage import coverage
from jaxcal.results import JudgedResult, Result, TestResult, saved
from jaxcal.results.parts import Parts
from jaxcal.sbi.discrete import of_probabilities
from jaxcal.streaming import StreamedTest, array_batches

RANDOM = np.random.default_rng(0)
N = 30
P = RANDOM.dirichlet(np.ones(3), N)
LABELS = (RANDOM.random(N)[:, None] > np.cumsum(P, 1)).sum(1)
BINARY, HAPPENED = P[:, 0], (LABELS == 0).astype(int)
YS = RANDOM.normal(size=(N, 2))
NORMALS = dist.Normal(jnp.asarray(YS[:, 0]), 1.0)
SCORES = jaxcal.Scores(-YS, RANDOM.normal(size=(N, 4, 2)), RANDOM.normal(size=(4, 2)))
NULL = jaxcal.nulls.Wild(19)


def log_prob(theta, x):
    return -0.5 * jnp.sum((theta - x) ** 2)


def stream():
    features = jaxcal.RandomFeatures(1, 6)
    test = StreamedTest.skce(0, P, LABELS, features=features)
    return test.result(test.run(array_batches(15, P, LABELS)))


def entries_stream():
    test = StreamedTest.calibration(0, NORMALS, YS[:, 1], n_draws=19)
    return test.result(test.update(test.empty(), NORMALS, YS[:, 1]))


PRIOR = dist.Normal(jnp.zeros(2), 1.0).to_event(1)


def monitored():
    return sbi.monitor(0, log_prob, YS, YS, prior=PRIOR)


def posterior():
    chains = {"draws": RANDOM.normal(size=(N, 5, 2)), "null": NULL}
    return sbi.check_posterior(0, log_prob, YS, YS, prior=PRIOR, coordinates=False, **chains)


MAKE = {
    "TestResult": lambda: jaxcal.skce_test(0, P, LABELS, null=NULL),
    "Coverage": lambda: coverage(NORMALS, YS[:, 1], RANDOM.normal(size=(N, 9))),
    "PosteriorReport": posterior,
    "Report": lambda: jaxcal.calibration_error(
        0, P, LABELS, estimators=[squared_ce.Bins((2, 4)), squared_ce.Bins(3)]
    ),
    "Repair": lambda: jaxcal.repair(0, NORMALS, YS[:, 1], folds=2),
    "ProbabilityRepair": lambda: jaxcal.repair(0, P, LABELS, folds=2),
    "TemperatureFit": lambda: measures.fit_temperature(NORMALS, YS[:, 1]),
    "Reliability": lambda: measures.reliability(BINARY, HAPPENED, bins=4),
    "QuantileCalibration": lambda: measures.quantile_calibration(NORMALS, YS[:, 1]),
    "McmcDraws": lambda: jaxcal.mcmc_draws(0, NORMALS, n_samples=8, n_warmup=10, thin=10),
    "ExchangeabilityResult": lambda: exchangeability_test(0, NORMALS, YS[:, 1]),
    "CKCE": lambda: jaxcal.ckce.ckce(P, LABELS),
    "Comparison": lambda: jaxcal.compare(0, {"a/1": P, "b": P[:, ::-1]}, LABELS),
    "KernelCE": lambda: dce.kernel_ce(BINARY, HAPPENED),
    "DistanceResult": lambda: jaxcal.distance_from_calibration(0, BINARY, HAPPENED),
    "SurrogateCE": lambda: dce.surrogate_interval_ce(BINARY, HAPPENED, accuracy=0.1),
    "IntervalCE": lambda: dce.interval_ce(BINARY, HAPPENED),
    "SmoothCE": lambda: dce.smooth_ce(BINARY, HAPPENED),
    "BlockEstimates": lambda: jaxcal.skce.block_estimates(0, NORMALS, YS[:, 1]),
    "StreamResult": stream,
    "StreamedCalibration": entries_stream,
    "Table": lambda: dce.Table.of(BINARY, HAPPENED),
    "CheckReport": lambda: jaxcal.check(0, SCORES, YS),
    "Monitored": monitored,
    "DiscreteParameter": lambda: of_probabilities(
        jax.random.key(0),
        jnp.asarray(P),
        jnp.asarray(LABELS),
        jnp.asarray(YS),
        0.05,
        values=(0.0, 1.0, 2.0),
        features=("a", "b"),
        name="k",
    ),
    "Recalibration": lambda: dce.recalibrate(0, BINARY, HAPPENED),
}
INSIDE = {"PosteriorResult": "calibration", "PosteriorRanks": "ranks"}  # of PosteriorReport
DRAWN = "TestResult Coverage PosteriorReport Report Reliability QuantileCalibration Comparison"
DRAWN = {*DRAWN.split(), "DistanceResult", "CheckReport", "Monitored", "PosteriorRanks"}
ROWS = {"Coverage": 9, "Reliability": 4, "QuantileCalibration": 19, "Comparison": 2}
ROWS |= {"ExchangeabilityResult": 3, "PosteriorRanks": 3, "McmcDraws": N, "Table": 8192}
ROWS |= {"DiscreteParameter": 3}


@functools.cache
def result(name):
    if name in INSIDE:
        return getattr(result("PosteriorReport"), INSIDE[name])
    return MAKE[name]()


def classes():
    """Names of all classes of results in the package."""
    for module in pkgutil.walk_packages(jaxcal.__path__, "jaxcal."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    todo, names = [Result], set()
    while todo:
        kinds = [kind for kind in todo.pop().__subclasses__() if kind.__module__[:6] == "jaxcal"]
        todo += kinds
        names |= {kind.__name__ for kind in kinds}
    return names - {JudgedResult.__name__}


def same(one, other):
    """Whether two values are equal in structure, types and every bit."""
    first, second = jax.tree.flatten(one), jax.tree.flatten(other)
    assert first[1] == second[1]
    for a, b in zip(first[0], second[0], strict=True):
        assert type(a) is type(b)
        if hasattr(a, "dtype"):
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(np.asarray(a), np.asarray(b))
        else:
            assert a == b or (a != a and b != b)


def test_every_class_of_results_is_walked():
    assert classes() == {*MAKE, *INSIDE}


QUICK = "TestResult Coverage Reliability SmoothCE"
EVERY = pytest.mark.parametrize("name", quick_first([*MAKE, *INSIDE], QUICK.split()))


@EVERY
def test_a_result_comes_back_as_it_was(name, tmp_path):
    before, file = result(name), tmp_path / "result.npz"
    before.save(file)
    back = type(before).load(file)
    same(before, back)
    assert back.provenance == before.provenance
    assert repr(back) == repr(before)
    with zipfile.ZipFile(file) as archive:
        header = json.loads(archive.read("header.json"), parse_constant=pytest.fail)
    source = header["provenance"]
    assert source["jaxcal"] == jaxcal.__version__
    assert source["dtype"] in ("float64", "int64")
    parts = {*INSIDE, "DiscreteParameter", "StreamResult", "StreamedCalibration", "Table"}
    if name not in parts:
        assert source["function"].startswith("jaxcal.")
        assert source["n"] == N


@EVERY
def test_a_result_shows_itself_and_is_a_table(name, tmp_path):
    shown = result(name)
    shown.to_html(tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.startswith("<!DOCTYPE html>")
    assert html.escape(repr(shown).split("\n")[0]) in page or name == "CheckReport"
    assert ("data:image/png" in page) == (name in DRAWN)
    assert ("data:image/png" in shown._repr_html_()) == (name in DRAWN)
    assert len(shown.to_frame()) == ROWS.get(name, 1)
    public = [word for word in dir(shown) if not word.startswith("_")]
    assert not [word for word in public if word in dir(eqx.Module)]


def test_provenance_names_key_and_options():
    source = result("TestResult").provenance
    assert source["key"] == 0
    assert source["options"] == {"null": "Wild(n_draws=19)"}
    typed = jaxcal.skce_test(jax.random.key(7), P, LABELS, null=NULL, level=0.1)
    assert typed.provenance["key"] == [0, 7]
    assert typed.provenance["options"]["level"] == 0.1
    assert pickle.loads(pickle.dumps(typed)).provenance == typed.provenance
    assert copy.copy(typed).provenance == typed.provenance
    changed = typed.at_level(0.01, NULL.least_p_value)
    assert changed.provenance["key"] is None
    jax.tree.map(
        lambda one, other: jnp.stack([one, other]),
        result("TestResult"),
        changed.at_level(0.05, NULL.least_p_value),
    )


def test_a_batch_and_a_traced_result_are_text(tmp_path):
    keys = jax.random.split(jax.random.key(0), 3)
    texts = []

    def test(key):
        one = jaxcal.skce_test(key, P, LABELS, null=NULL)
        texts.append(one._repr_html_())
        with pytest.raises(TypeError, match="no numbers yet"):
            one.save(tmp_path / "traced.npz")
        with pytest.raises(TypeError, match="no numbers yet"):
            one.to_html(tmp_path / "traced.html")
        return one

    batch = jax.jit(jax.vmap(test))(keys)
    assert set(texts) == {"<pre>TestResult(traced)</pre>"}
    assert "png" not in batch._repr_html_()
    assert batch.provenance["key"] is None
    with pytest.raises(ValueError, match=r"wanted one report, got a batch of \(3,\)"):
        batch.to_html(tmp_path / "batch.html")
    frame = batch.to_frame()
    np.testing.assert_array_equal(frame["p_value"], batch.p_value)
    assert list(frame["verdict"]) == list(batch.verdict)
    batch.save(tmp_path / "batch.npz")
    same(batch, Result.load(tmp_path / "batch.npz"))


def test_texts_of_all_results_are_no_column_of_a_batch():
    one = result("TestResult")
    parts = Parts(("shift", "spread"), jnp.zeros(2), jnp.ones(2), jnp.array(0))
    one = eqx.tree_at(lambda shown: shown.parts, one, parts, is_leaf=lambda leaf: leaf is None)
    frame = jax.tree.map(lambda *leaves: jnp.stack(leaves), one, one).to_frame()
    assert {"p_value", "verdict", "reason", "null"} <= set(frame)
    assert not {"parts.names", "warnings"} & set(frame)


def test_what_cannot_be_drawn_is_still_shown(monkeypatch):
    monkeypatch.setattr("jaxcal.plots.results.null_histogram", None)
    assert result("TestResult")._repr_html_().startswith("<pre>")


def test_without_pandas_a_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match="pip install pandas"):
        result("CKCE").to_frame()


def test_nan_and_infinity_are_no_json_words(tmp_path):
    odd = eqx.tree_at(
        lambda result: (result.estimate, result.biased, result.standard_error, result.statistic),
        result("TestResult"),
        (math.nan, -math.inf, np.float64("nan"), -0.0),
    )
    odd.save(tmp_path / "odd.npz")
    back = Result.load(tmp_path / "odd.npz")
    same(odd, back)
    assert math.copysign(1, back.statistic) == -1
    for word in ("float32", "bfloat16"):
        narrow = replace(result("SmoothCE"), value=jnp.asarray(0.1, word))
        narrow.save(tmp_path / "narrow.npz")
        same(narrow, Result.load(tmp_path / "narrow.npz"))
    with jax.enable_x64(False):  # a saved number of 64 bits stays one
        assert Result.load(tmp_path / "narrow.npz").upper.dtype == "float64"


def test_what_cannot_be_saved_is_named_and_leaves_no_file(tmp_path):
    strange = jax.tree.map(lambda leaf: print, result("SmoothCE"))
    with pytest.raises(TypeError, match="value: a builtin_function_or_method cannot be saved"):
        strange.save(tmp_path / "strange.npz")
    assert not list(tmp_path.iterdir())


def rewritten(file, change):
    """The same file with another header."""
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["header.json"] = change(members["header.json"].decode()).encode()
    with zipfile.ZipFile(file, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


HEADERS = {
    "an unknown class": (
        lambda text: text.replace("dce.smooth.SmoothCE", "dce.smooth.Other"),
        "Other",
    ),
    "another package": (
        lambda text: text.replace("jaxcal.dce.smooth.SmoothCE", "os.system"),
        "os.sys",
    ),
    "a function": (lambda text: text.replace("SmoothCE", "smooth_ce"), "smooth_ce"),
    "another field": (lambda text: text.replace('"flow"', '"stream"'), "differs in flow, stream"),
    "a word that is no JSON": (lambda text: text.replace('"format": 1', '"format": NaN'), "NaN"),
    "another format": (lambda text: text.replace('"format": 1', '"format": 99'), "format is 99"),
    "a missing array": (lambda text: text.replace('"array": "flow"', '"array": "f"'), "f.npy"),
    "half of it": (lambda text: text[: len(text) // 2], "not a result"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_a_header_that_is_not_ours_is_refused(name, tmp_path):
    file, (change, words) = tmp_path / "result.npz", HEADERS[name]
    result("SmoothCE").save(file)
    rewritten(file, change)
    with pytest.raises(ValueError, match=re.escape(words)) as refusal:
        Result.load(file)
    assert "result.npz" in str(refusal.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "new", "old"),
    [
        ("Report", "squared_ce.tuning.Tuned", "squared_ce.tuned.Tuned"),
        ("Repair", "read.predictions.Units", "read.standardized.Units"),
    ],
)
def test_a_class_is_found_where_it_was_when_saved(name, new, old, tmp_path):
    file = tmp_path / "result.npz"
    result(name).save(file)
    same(Result.load(file), result(name))
    rewritten(file, lambda text: text.replace(f"jaxcal.{new}", f"jaxcal.{old}"))
    with zipfile.ZipFile(file) as archive:
        assert old in archive.read("header.json").decode()
    same(Result.load(file), result(name))


def test_a_field_is_found_under_its_old_name(monkeypatch, tmp_path):
    file = tmp_path / "result.npz"
    result("SmoothCE").save(file)
    rewritten(file, lambda text: text.replace('"flow": {', '"stream": {'))
    monkeypatch.setitem(saved.RENAMED, ("Other", "stream"), "upper")
    with pytest.raises(ValueError, match="differs in flow, stream"):
        Result.load(file)
    monkeypatch.setitem(saved.RENAMED, ("SmoothCE", "stream"), "flow")
    same(Result.load(file), result("SmoothCE"))


@pytest.mark.slow
def test_a_repair_saved_before_its_field_was_renamed(tmp_path):
    file = tmp_path / "result.npz"
    result("Repair").save(file)
    rewritten(file, lambda text: text.replace('"n_samples": ', '"n_draws": '))
    with zipfile.ZipFile(file) as archive:
        assert '"n_draws": ' in archive.read("header.json").decode()
    same(Result.load(file), result("Repair"))


def test_a_damaged_file_is_named(tmp_path):
    file = tmp_path / "result.npz"
    result("SmoothCE").save(file)
    whole = file.read_bytes()
    places = np.linspace(0, len(whole) - 1, 60).astype(int)
    for place in places:
        file.write_bytes(whole[:place])
        with pytest.raises(ValueError, match="npz: not a saved result"):
            Result.load(file)
        flipped = bytearray(whole)
        flipped[place] ^= 0xFF
        file.write_bytes(bytes(flipped))
        refusal = back = None
        try:
            back = Result.load(file)
        except ValueError as error:
            refusal = str(error)
        if refusal is None:  # a date or a flag may be damaged without harm to the numbers
            same(back, result("SmoothCE"))
        else:
            assert "result.npz" in refusal
    np.savez(file, a=1)
    with pytest.raises(ValueError, match="not a saved result"):
        Result.load(file)
    with pytest.raises(FileNotFoundError):
        Result.load(tmp_path / "none.npz")
    result("CKCE").save(file)
    with pytest.raises(ValueError, match="holds a CKCE, wanted a TestResult"):
        TestResult.load(file)


def test_completion_shows_public_names_only():
    for name in ("jaxcal", *(f"jaxcal.{part}" for part in jaxcal.__all__)):
        module = sys.modules.get(name)
        if module is not None:
            assert dir(module) == sorted(module.__all__), name


def test_any_result_is_read_by_name_and_errors_name_the_argument(tmp_path):
    before = result("TestResult")
    before.save(tmp_path / "result.npz")
    same(before, jaxcal.load(tmp_path / "result.npz"))
    with pytest.raises(TypeError, match="path"):
        jaxcal.load(3)
    with pytest.raises(FileNotFoundError, match="missing"):
        jaxcal.load(tmp_path / "missing.npz")


@pytest.mark.slow
def test_programs_are_dropped_before_their_memory_maps_run_out(monkeypatch):
    dropped = []
    monkeypatch.setattr(jax, "clear_caches", lambda: dropped.append(1))
    predictions = dist.Normal(jnp.zeros(20), 1.0)
    targets = jax.random.normal(jax.random.key(0), (20,))

    def drops(seconds, granted):
        """Calls of one test and one under jit that drop programs."""
        monkeypatch.setattr(saved, "COMPILED", seconds)
        monkeypatch.setattr(numerics, "most_maps", lambda: granted)
        dropped.clear()
        jaxcal.kccsd_test(0, predictions, targets)
        jax.jit(lambda ys: jaxcal.kccsd_test(0, predictions, ys).p_value)(targets)
        return len(dropped)

    assert drops(0.0, 0.0) == 1  # not while a program is traced
    assert drops(0.0, 1e6) == drops(0.0, math.inf) == 0  # inf: the system has no such limit
    assert drops(1e6, 0.0) == 0  # a call that compiled nothing does not look


def test_the_system_says_how_many_memory_maps_there_are():
    most = numerics.most_maps()
    assert most == math.inf or (most > 1000 and most == round(most))


def test_a_file_without_a_newer_field_has_its_default(tmp_path):
    """Of `QuantileCalibration`: files of earlier versions have no correlation of draws."""
    file = tmp_path / "result.npz"
    predictions, ys = dist.Normal(jnp.zeros(20), 1.0), jnp.linspace(-1, 1, 20)
    jaxcal.measures.quantile_calibration(predictions, ys).save(file)
    rewritten(file, lambda text: re.sub(r',\s*"correlation": \{[^}]*\}', "", text))
    assert "correlation" not in zipfile.ZipFile(file).read("header.json").decode()
    assert jaxcal.load(file).correlation == 0


@pytest.mark.slow
def test_notes_of_pairs_are_read_also_as_sentences(tmp_path):
    """Of files of earlier versions, whose notes were a tuple of sentences, not a dict by code."""
    file = tmp_path / "result.npz"
    before = replace(result("Monitored"), notes={"no-prior": 3, "unknown-bounds": ("a",)})
    before.save(file)
    same(jaxcal.load(file), before)

    def as_sentences(text):
        header = json.loads(text)
        header["content"]["fields"]["notes"] = {"tuple": before.warnings()}
        return json.dumps(header)

    rewritten(file, as_sentences)
    assert list(jaxcal.load(file).notes) == ["unknown-bounds", "no-prior"]
    assert jaxcal.load(file).warnings() == before.warnings()
