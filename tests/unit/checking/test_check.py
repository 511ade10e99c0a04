"""One call: the test that fits the predictions, one verdict, a page that stands alone."""

import re
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from quick import quick_first

import jaxcal
from jaxcal.checking import plan as planning
from jaxcal.checking.plan import plan
from jaxcal.results import Result

RANDOM = np.random.default_rng(0)
N = 60
CENTERS = RANDOM.normal(size=(N, 2))
YS = CENTERS + RANDOM.normal(size=(N, 2))
P = RANDOM.dirichlet(np.ones(3), N)
LABELS = (RANDOM.random(N)[:, None] > np.cumsum(P, 1)).sum(1)
HAPPENED = (RANDOM.random(N) < P[:, 0]).astype(int)
DRAWS = CENTERS[:, None] + RANDOM.normal(size=(N, 9, 2))
FRAME = jaxcal.Draws(pd.DataFrame(DRAWS[:, :, 0]))
NODES = RANDOM.normal(size=(4, 2))


def log_density(center, y):
    return -jnp.sum((y - center) ** 2) / 2


NORMALS = dist.MultivariateNormal(jnp.asarray(CENTERS), jnp.eye(2))
SCORES = jaxcal.Scores(CENTERS - YS, CENTERS[:, None] - NODES, NODES)
LOGS = jaxcal.LogDensities(-((YS[:, 0]) ** 2), -(DRAWS[:, :, 0] ** 2))
CASES = {
    "densities": (jaxcal.Unnormalized(log_density, CENTERS), YS, ["calibration_test"]),
    "scores": (SCORES, YS, ["kccsd_test"]),
    "distributions": (NORMALS, YS, ["calibration_test", "skce_test"]),
    "counts": (dist.Poisson(jnp.exp(CENTERS[:, 0])), LABELS, ["calibration_test", "skce_test"]),
    "classes": (P, LABELS, ["skce_test", "calibration_error", "reliability"]),
    "categorical": (
        dist.Categorical(probs=jnp.asarray(P)),
        LABELS,
        ["skce_test", "calibration_error", "reliability"],
    ),
    "binary": (P[:, 0], HAPPENED, ["distance_from_calibration"]),
    "two columns": (
        np.stack([1 - P[:, 0], P[:, 0]], 1),
        HAPPENED,
        ["distance_from_calibration"],
    ),
    "bernoulli": (dist.Bernoulli(jnp.asarray(P[:, 0])), HAPPENED, ["distance_from_calibration"]),
    "draws": (jaxcal.Draws(DRAWS), YS, ["calibration_test", "skce_test"]),
    "list of draws": (jaxcal.Draws(DRAWS.tolist()), YS, ["calibration_test", "skce_test"]),
    "frame of draws": (FRAME, YS[:, 0], ["calibration_test", "skce_test"]),
    "array of draws": (DRAWS, YS, ["calibration_test", "skce_test"]),
    "log densities": (LOGS, None, ["coverage"]),
}


@pytest.mark.parametrize("name", CASES)
def test_what_the_predictions_are_decides(name):
    predictions, targets, wanted = CASES[name]
    chosen = plan(predictions, targets, dependent=False)
    assert [question.name for question in (*chosen.tests, *chosen.estimates)] == wanted
    assert chosen.why


@pytest.mark.slow
def test_a_check_ends_with_the_gain_or_the_call_of_a_repair():
    sure = P**2 / np.sum(P**2, 1, keepdims=True)
    report: Any = jaxcal.check(0, sure, LABELS)
    said = " ".join(repr(report).split())
    gain = report.gain
    assert said.endswith(
        f"a repair would gain {float(gain.gain):.3g} nats an observation (95 % limits "
        f"{float(gain.low):.3g} to {float(gain.high):.3g}, p = {float(gain.p_value):.2g}): "
        f"jaxcal.repair(key, predictions, targets)"
    )
    alone: Any = jaxcal.repair(3, sure, LABELS)
    np.testing.assert_allclose(alone.fitted.temperature, gain.fitted.temperature, rtol=1e-5)
    for name in ("counts", "scores", "log densities"):  # which no map repairs
        assert not plan(*CASES[name][:2], dependent=False).repair
    series: Any = jaxcal.check(0, P, LABELS, dependent=True)
    assert series.gain is None
    assert not series.repair_in_words()


@pytest.mark.slow
def test_inputs_are_for_the_test_that_takes_them():
    predictions, targets, _ = CASES["densities"]
    report: Any = jaxcal.check(0, predictions, targets, inputs=CENTERS[:, 0])
    assert "input 0" in report.tests[0].table.columns
    with pytest.raises(ValueError, match="inputs: kccsd_test of scores alone takes no inputs"):
        jaxcal.check(0, SCORES, YS, inputs=CENTERS)


def test_two_columns_are_the_probability_of_the_second():
    chosen = plan(*CASES["two columns"][:2], dependent=False)
    np.testing.assert_array_equal(chosen.predictions, P[:, 0])


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 1])
def test_two_columns_that_do_not_sum_to_1_are_no_probabilities(place):
    two = np.stack([P[:, 0], P[:, 1] ** 2], axis=1)[:, :: 1 - 2 * place]
    with pytest.raises(ValueError, match="predictions: row 0 does not sum to 1"):
        jaxcal.check(0, two, HAPPENED)
    inside = jax.jit(lambda p: jaxcal.check(0, p, HAPPENED).p_value)
    assert np.isnan(inside(two))


@pytest.mark.parametrize("m", [2, 4])
def test_classes_as_floats_are_no_targets_of_draws(m):
    p = np.random.default_rng(0).dirichlet(np.ones(m), 20)
    labels = np.arange(20) % m
    assert plan(p, labels, dependent=False).kind != "draws"
    with pytest.raises(TypeError, match=r"targets: wanted integer classes .* \.astype\(int\)"):
        plan(p, labels.astype(float), dependent=False)
    assert plan(2 * p, labels.astype(float), dependent=False).kind == "draws"


def test_series_keep_the_tests_that_allow_for_dependence():
    kept = {}
    for name, (predictions, targets, _) in CASES.items():
        if name != "log densities":
            chosen = plan(predictions, targets, dependent=True)
            kept[name] = [question.name for question in (*chosen.tests, *chosen.estimates)]
    assert kept["classes"] == kept["binary"] == ["skce_test"]
    assert kept["draws"] == ["calibration_test", "skce_test"]
    assert kept["densities"] == ["calibration_test"]
    with pytest.raises(ValueError, match="dependent: no test of log densities"):
        plan(LOGS, None, dependent=True)
    with pytest.raises(TypeError, match="targets: wanted None"):
        plan(LOGS, YS, dependent=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["binary", "two columns", "bernoulli", "categorical"])
def test_the_repair_of_classes_is_a_call_with_the_unit_it_names(name):
    predictions, targets, _ = CASES[name]
    chosen = plan(predictions, targets, dependent=False)
    names = {"jaxcal": jaxcal, "key": 0, "predictions": predictions, "targets": targets}
    assert eval(chosen.repair, names).unit == chosen.unit


def test_what_no_test_takes_is_named():
    with pytest.raises(TypeError, match="predictions: wanted log densities"):
        jaxcal.check(0, CENTERS[:, 0], YS[:, 0])


LAST = {  # words of the report where a gain is not computed
    "binary": "in energy score: jaxcal.repair(key, predictions, targets)",
    "draws": "in energy score: jaxcal.repair(key, predictions, targets)",
    "densities": "what a repair would gain, in nats: jaxcal.repair(key, predictions, targets)",
}
QUICK = ["classes", "log densities"]
RUN = ["densities", "scores", "distributions", "counts", "binary", "draws", *QUICK]


@pytest.mark.slow
@pytest.mark.parametrize("name", quick_first(RUN, QUICK))
def test_a_check_reports_and_comes_back(name, tmp_path):
    predictions, targets, wanted = CASES[name]
    report = jaxcal.check(0, predictions, targets)
    text = str(report)
    assert text.startswith(f"check of {report.kind}, n = {N}")
    assert all(f"  {question}: sees" in text for question in wanted)
    if name in LAST:
        assert report.gain is None
        assert " ".join(repr(report).split()).endswith(LAST[name])
    report.save(tmp_path / "report.npz")
    assert str(Result.load(tmp_path / "report.npz")) == text
    assert report.provenance["key"] == 0
    p = np.asarray(report.p_values)
    assert len(report.to_frame()) == len(p)
    np.testing.assert_allclose(report.p_value, min(1.0, len(p) * p.min()))
    report.to_html(tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert page.count("data:image/png") == len(p) + (name == "classes")
    assert not re.findall(r'(?:src|href)="(?!data:)', page)  # stands alone
    assert len(page) < 300_000
    first = re.sub("<[^>]*>", "", page.partition('class="verdict">')[2].partition("</p>")[0])
    assert first[1:-1] == report.verdict_in_words()[1:]


@pytest.fixture(scope="module")
def checked():
    return jaxcal.check(0, P, LABELS)


def variant(report, *tests):
    """The report of other tests."""
    names = tuple(f"test {place}" for place in range(len(tests)))
    return type(report).of(
        kind="k", why="w", names=names, tests=tests, estimates=(), sight=(), n=N, level=0.05
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ps", "verdict", "overall"),
    [
        ([0.03, 0.5], "not rejected", 0.06),  # 0.03 alone would reject
        ([0.02, 0.5], "rejected", 0.04),
        ([0.04, 0.03, 0.9], "not rejected", 0.09),
        ([float("nan"), 0.02], "rejected", 0.04),  # the test without a p-value still counts
        ([float("nan"), 0.03], "cannot tell", 0.06),
        ([float("nan"), float("nan")], "cannot tell", float("nan")),
    ],
)
def test_the_verdict_is_over_all_tests(checked, ps, verdict, overall):
    single = checked.tests[0]
    tests = [replace(single, p_value=jnp.asarray(p), estimate=jnp.asarray(p)) for p in ps]
    report = variant(checked, *tests)
    assert report.verdict == verdict
    np.testing.assert_allclose(report.p_value, overall, rtol=1e-6)
    assert (verdict == "cannot tell") == bool(report.reason)
    assert "verdict" in str(report)


@pytest.mark.slow
def test_tests_that_cannot_reject_together_give_no_verdict(checked):
    """Each of two rejects by itself with 500 draws, at levels from 1/501 to 2/501."""
    single = replace(checked.tests[0], p_value=jnp.asarray(1 / 501), level=0.003)
    report = replace(variant(checked, single, single), level=0.003)
    assert (single.verdict, report.verdict) == ("rejected", "cannot tell")
    assert "with them, 666 would do [too-few-draws]" in report.reason
    clear = replace(single, p_value=jnp.asarray(1e-4), null_samples=jnp.zeros(0))
    assert replace(variant(checked, single, clear), level=0.003).verdict == "rejected"
    assert replace(variant(checked, single), level=0.003).verdict == "rejected"


def test_a_batch_of_checks_has_a_verdict_each():
    def one(key):
        return jaxcal.check(key, jnp.asarray(P), jnp.asarray(LABELS))

    batch = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), 3))
    assert batch.verdict.shape == (3,)
    assert "batch shape (3,)" in str(batch)
    with pytest.raises(ValueError, match="to_html: wanted one report"):
        batch.to_html("never.html")


def test_a_page_escapes_what_it_is_told_and_warns(checked, tmp_path):
    odd = replace(checked, kind="<script>", estimates=())
    odd.to_html(tmp_path / "odd.html")
    page = (tmp_path / "odd.html").read_text()
    assert "<script>" not in page
    assert ("Before you rely on it" in page) == bool(checked.tests[0].warnings())
    named = replace(checked.tests[0], too_few="too few of them")
    replace(odd, tests=(named,)).to_html(tmp_path / "few.html")
    assert "<li>too few of them</li>" in (tmp_path / "few.html").read_text()


@pytest.mark.slow
def test_every_question_says_what_it_does_not_see():
    asked = [one for one in vars(planning).values() if isinstance(one, planning.Question)]
    assert len(asked) == 9
    plans = [plan(*case[:2], dependent=False) for case in CASES.values()]
    used = {question for chosen in plans for question in (*chosen.tests, *chosen.estimates)}
    assert set(asked) - used == {planning.POSTERIOR}
    blind = [
        question
        for question in asked
        if "no" not in question.sight and "hardly" not in question.sight
    ]
    assert {question.name for question in blind} <= {"sbi.check_posterior"}


def test_coverage_that_can_never_reject_gives_no_verdict():
    draws = -jax.random.exponential(jax.random.key(0), (4, 19))
    report = jaxcal.check(0, jaxcal.LogDensities(jnp.full(4, -50.0), draws), level=0.001)
    assert report.verdict == "cannot tell"
    assert "too few observations" in report.reason


def test_the_printed_repair_of_draws_can_be_called():
    samples, ys = np.random.default_rng(0).normal(size=(30, 12)), np.zeros(30)
    of_array = plan(samples, ys, dependent=False)
    assert of_array.repair == "jaxcal.repair(key, jaxcal.Draws(predictions), targets)"
    of_draws = plan(jaxcal.Draws(samples), ys, dependent=False)
    assert of_draws.repair == "jaxcal.repair(key, predictions, targets)"
    of_mcmc = plan(SimpleNamespace(draws=jaxcal.Draws(samples)), ys, dependent=False)  # pyright: ignore
    assert of_mcmc.repair == "jaxcal.repair(key, predictions.draws, targets)"
