"""``python -m jaxcal check`` of arrays: reports of good files, one sentence of bad ones."""

import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import jax
import numpy as np
import pytest

import jaxcal
from jaxcal.__main__ import main
from jaxcal.commands import command_line

N, D, M = 60, 2, 5


def arrays(d=D, kind=np.float64):
    """Predictions N(x, I), of which the first coordinate is off by one."""
    random = np.random.default_rng(0)
    xs = random.normal(size=(N, d))
    ys = xs + random.normal(size=(N, d)) + np.eye(d)[0]
    nodes = random.normal(size=(M, d))
    by_name = {"targets": ys, "scores": xs - ys, "node_scores": xs[:, None] - nodes, "nodes": nodes}
    return {name: array.astype(kind) for name, array in by_name.items()}


def with_features():
    result = arrays()
    del result["node_scores"], result["nodes"]
    return result | {"features": result["scores"] + result["targets"]}


@pytest.fixture
def save(tmp_path):
    def saved(content, name="mine.npz"):
        path = tmp_path / name
        np.savez(path, **content)
        return str(path)

    return saved


def refused(capsys, *argv):
    """The sentence of a run that must fail."""
    try:
        status = main(["check", *argv])
    except SystemExit as stop:  # argparse
        status = stop.code
    captured = capsys.readouterr()
    assert status == 2
    assert captured.out == ""
    lines = captured.err.strip().splitlines()
    assert "Traceback" not in captured.err
    assert lines[-1].startswith("jaxcal")
    return lines[-1]


@pytest.mark.slow
def test_the_report_is_that_of_the_function(save, capsys):
    content = arrays()
    assert main(["check", save(content), "--seed", "3"]) == 0
    scores = jaxcal.Scores(content["scores"], content["node_scores"], content["nodes"])
    captured = capsys.readouterr()
    assert captured.out.strip() == str(jaxcal.check(3, scores, content["targets"]))
    assert captured.err == ""


@pytest.mark.slow
@pytest.mark.parametrize("dependent", [[], ["--dependent"]])
def test_features_describe_predictions(save, tmp_path, capsys, dependent):
    content, out = with_features(), tmp_path / "r.json"
    assert main(["check", save(content), "--json", str(out), *dependent]) == 0
    wanted = jaxcal.kccsd_test(
        jax.random.split(jax.random.key(0), 1)[0],
        jaxcal.Scores(content["scores"]),
        content["targets"],
        divergence=jaxcal.divergences.Vectors(jax.numpy.asarray(content["features"])),
        null=jaxcal.nulls.DependentWild() if dependent else jaxcal.nulls.HadamardWild(),
    )
    assert json.loads(out.read_text())["p_values"] == [float(wanted.p_value)]
    assert "kccsd_test" in capsys.readouterr().out


def test_json_and_a_page_are_written(save, tmp_path, capsys):
    out, page = tmp_path / "result.json", tmp_path / "result.html"
    argv = ["check", save(arrays()), "--json", str(out), "--html", str(page)]
    assert main(argv) == 0
    result = json.loads(out.read_text())
    assert result["seed"] == 0
    assert result["names"] == ["kccsd_test"]
    assert 0 < result["p_value"] < 0.05
    assert (result["verdict"], result["reason"], result["level"]) == ("rejected", "", 0.05)
    (test,) = result["tests"]
    assert sum(test["contributions"]) == pytest.approx(test["estimate"])
    assert "data:image/png" in page.read_text()


def test_missing_scores_give_a_flagged_report_and_no_verdict(save, tmp_path, capsys):
    content, out, page = arrays(), tmp_path / "r.json", tmp_path / "r.html"
    content["scores"][3, 1] = np.nan
    content["node_scores"][0, 0, 0] = np.inf
    assert main(["check", save(content), "--json", str(out), "--html", str(page)]) == 3
    report = capsys.readouterr().out
    assert "cannot tell" in report
    assert "score values at the targets are NaN or infinite" in report

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    result = json.loads(out.read_text(), parse_constant=refuse)
    assert result["p_value"] is None
    assert result["verdict"] == "cannot tell"
    assert "score values at the targets are NaN or infinite" in result["reason"]
    assert result["tests"][0]["warnings"]
    assert page.stat().st_size > 0


def test_too_few_draws_for_a_level_cannot_tell(save, capsys):
    assert main(["check", save(arrays()), "--level", "0.001"]) == 3
    assert "too few draws for the level 0.001" in capsys.readouterr().out


@pytest.mark.parametrize("level", ["0", "1", "five"])
def test_a_level_is_a_probability(level, capsys):
    assert "wanted a probability" in refused(capsys, "f.npz", "--level", level)


def test_the_type_in_the_file_is_the_type_of_the_computation(save, monkeypatch):
    from jaxcal.checking import plan

    seen = []

    def note(key, predictions, targets, **options):
        arrays = (targets, predictions.at_targets, predictions.at_nodes, predictions.nodes)
        seen.append({str(jax.numpy.asarray(array).dtype) for array in arrays})
        raise ValueError("seen enough")

    monkeypatch.setattr(plan, "kccsd_test", note)
    narrow, wide = save(arrays(kind=np.float32), "a.npz"), save(arrays(), "b.npz")
    mixed = save(arrays() | {"scores": arrays(kind=np.float32)["scores"]}, "c.npz")
    for path in (narrow, wide, mixed):
        assert main(["check", path]) == 2
    assert seen == [{"float32"}, {"float64"}, {"float64"}]


@pytest.mark.slow
def test_the_program_computes_in_float64_where_the_file_does(save, tmp_path):
    out = tmp_path / "r.json"
    path = save(arrays())
    argv = [sys.executable, "-m", "jaxcal", "check", path, "--json", str(out)]
    process = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120)
    assert process.stdout.startswith("check of scores alone, n = 60")
    content = arrays()
    scores = jaxcal.Scores(content["scores"], content["node_scores"], content["nodes"])
    (wanted,) = jaxcal.check(0, scores, content["targets"]).tests
    (test,) = json.loads(out.read_text())["tests"]
    assert test["estimate"] == pytest.approx(float(wanted.estimate), rel=1e-10)


@pytest.mark.slow
def test_other_languages_shapes_and_byte_orders_are_read(save, capsys):
    full = arrays(d=1)
    short = {name: array.squeeze(-1) for name, array in full.items()}
    foreign = {name: np.asfortranarray(array.astype(">f8")) for name, array in full.items()}
    reports = []
    for name, content in [("full", full), ("short", short), ("foreign", foreign)]:
        assert main(["check", save(content, f"{name}.npz")]) == 0
        reports.append(capsys.readouterr().out)
    assert reports[0] == reports[1] == reports[2]


def test_arrays_that_are_not_used_are_named(save, capsys):
    content = arrays() | {"dates": np.array(["monday"] * N)}
    assert main(["check", save(content)]) == 0
    assert "'dates' is not used" in capsys.readouterr().err


def changed(**changes):
    content = arrays() | changes
    return {name: array for name, array in content.items() if array is not None}


BAD = {
    "no targets": (
        changed(targets=None),
        "'draws' and 'scores'; the file holds",
    ),
    "no scores": (changed(scores=None), "and one of 'probabilities', 'draws' and 'scores'"),
    "nothing about predictions": (changed(node_scores=None), "'node_scores' and 'features'"),
    "two descriptions": (changed(features=np.ones((N, 1))), "got both"),
    "no arrays": ({}, "the file holds no arrays"),
    "objects": (changed(targets=np.array([None] * N)), "'targets' holds pickled objects"),
    "float16": (changed(scores=np.ones((N, D), np.float16)), "'scores' is float16; wanted float32"),
    "integers": (changed(targets=np.ones((N, D), int)), "'targets' is int64"),
    "complex": (changed(nodes=np.ones((M, D), complex)), "'nodes' is complex128"),
    "words": (changed(targets=np.array(["a"] * N)), "'targets' is <U1"),
    "nan targets": (
        changed(targets=np.full((N, D), np.nan)),
        "'targets' holds 120 values that are",
    ),
    "nan nodes": (changed(nodes=np.full((M, D), np.nan)), "'nodes' holds 10 values that are NaN"),
    "one observation": ({k: a[:1] for k, a in arrays().items()}, "targets: wanted at least 2"),
    "no observation": (changed(targets=np.ones((0, D))), "or [n, d], got shape (0, 2)"),
    "a number": (changed(targets=np.float64(1)), "targets: wanted at least 2"),
    "pictures": (
        changed(targets=np.ones((N, 3, 3))),
        "shape of the targets (60, 3, 3), got (60, 2)",
    ),
    "short scores": (
        changed(scores=np.ones((N - 1, D))),
        "scores: wanted the shape of the targets (60, 2), got (59, 2)",
    ),
    "flat scores": (changed(scores=np.ones(N)), "scores: wanted the shape of the targets (60, 2)"),
    "flat nodes": (changed(node_scores=np.ones((N, M))), "node_scores: wanted shape (60, m, 2)"),
    "axes swapped": (
        changed(node_scores=np.ones((M, N, D))),
        "node_scores: wanted shape (60, m, 2), one row per observation",
    ),
    "other nodes": (
        changed(nodes=np.ones((M + 1, D))),
        "nodes: wanted the m=5 base points of node_scores",
    ),
    "no nodes": (changed(node_scores=np.ones((N, 0, D)), nodes=None), "node_scores: wanted"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_array_is_named_in_one_sentence(save, capsys, name):
    content, wanted = BAD[name]
    sentence = refused(capsys, save(content))
    assert wanted in sentence
    assert "mine.npz" in sentence


@pytest.mark.parametrize(
    ("features", "wanted"),
    [
        (np.ones((N - 1, 3)), "features: wanted n=60 rows, one per target, got shape (59, 3)"),
        (np.full((N, 3), np.inf), "'features' holds 180 values that are NaN or infinite"),
        (np.ones(()), "features: wanted n=60 rows"),
    ],
)
def test_bad_features_are_named(save, capsys, features, wanted):
    assert wanted in refused(capsys, save(with_features() | {"features": features}))


def cut_off(data):
    return data[: len(data) // 2]


def flip(data):
    """One byte inside the numbers of ``targets``, which only the checksum can notice."""
    at = data.index(b"NUMPY") + 300
    return data[:at] + bytes([data[at] ^ 255]) + data[at + 1 :]


def damage_header(data):
    return data.replace(b"'descr': '<f8'", b"'descr': '<q!'", 1)


def claim_too_much(data):
    return data.replace(b"(60, 2), }" + b" " * 10, b"(600000000000, 2), }", 1)


@pytest.mark.parametrize(
    ("damage", "wanted"),
    [
        (cut_off, "not a whole .npz archive"),
        (lambda data: b"", "not a whole .npz archive"),
        (lambda data: b"targets,scores\n1,2\n", "not a whole .npz archive"),
        (lambda data: b"PK\x03\x04 and then nothing", "not a whole .npz archive"),
        (flip, "'targets' is damaged"),
        (damage_header, "'targets' is damaged"),
        (claim_too_much, "'targets' is damaged"),
    ],
    ids=["cut off", "empty", "text", "zip head", "flipped byte", "header", "huge header"],
)
def test_a_damaged_file_is_named(save, tmp_path, capsys, damage, wanted):
    original = save(arrays())
    path = tmp_path / "damaged.npz"
    with open(original, "rb") as file:
        path.write_bytes(damage(file.read()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sentence = refused(capsys, str(path))
    assert wanted in sentence
    assert "damaged.npz" in sentence


def test_pickles_arrays_folders_and_missing_files_are_refused(tmp_path, capsys):
    pickle = tmp_path / "pickle.npz"
    np.save(tmp_path / "one.npy", np.ones(3))
    with open(pickle, "wb") as file:
        np.save(file, np.array([{}]), allow_pickle=True)
    for path, wanted in [
        (pickle, "not a whole .npz archive"),
        (tmp_path / "one.npy", "one array without a name"),
        (tmp_path, "wanted shards of one kind"),
        (tmp_path / "absent.npz", "no such file"),
    ]:
        sentence = refused(capsys, str(path))
        assert wanted in sentence
        assert str(path) in sentence


def test_options_that_cannot_work_are_refused_before_the_work(save, tmp_path, capsys):
    path = save(arrays())
    for argv, wanted in [
        ([path, "--seed", "x"], "wanted a whole number from 0 to 18446744073709551615, got 'x'"),
        ([path, "--seed", str(2**64)], "wanted a whole number from 0 to"),
        ([path, "--seed", "9" * 5000], "wanted a whole number from 0 to"),
        ([path, "--json", str(tmp_path / "no" / "r.json")], "does not exist"),
        ([path, "--html", str(tmp_path)], "is a folder"),
        ([path, "--json", str(tmp_path / ("a" * 300))], "name too long"),
        ([path, "--json", path], "mine.npz: one name for two files"),
        ([path, "--json", str(tmp_path / "a"), "--html", str(tmp_path / "a")], "a: one name"),
    ]:
        assert wanted in refused(capsys, *argv)


def test_a_large_seed_is_taken(save, capsys):
    assert main(["check", save(arrays()), "--seed", str(2**64 - 1)]) == 0


@pytest.mark.slow
def test_a_transposed_file_is_not_read_without_a_word(save, capsys):
    content = {name: array.swapaxes(0, 1) for name, array in with_features().items()}
    content |= {"features": content["features"].T[:2]}
    assert main(["check", save(content)]) == 3
    note = "'targets' of shape (2, 60) is read as 2 observations of 60 numbers each"
    captured = capsys.readouterr()
    assert note in captured.err
    assert "too few observations for the level 0.05" in captured.out


def test_what_ends_a_run_early_is_no_traceback(save, tmp_path, monkeypatch, capsys):
    from jaxcal.checking import files

    def stopped(error):
        def run(*_, **__):
            raise error

        monkeypatch.setattr(files, "checked", run)
        status = main(["check", save(arrays())])
        return status, capsys.readouterr().err.strip()

    assert stopped(KeyboardInterrupt()) == (130, "jaxcal: interrupted")
    assert stopped(BrokenPipeError(32, "Broken pipe")) == (141, "")
    status, sentence = stopped(MemoryError("of 9 TB"))
    assert (status, sentence) == (2, "jaxcal: out of memory (of 9 TB)")


def test_a_full_disk_is_named(save, tmp_path, monkeypatch, capsys):
    from jaxcal.commands import command_line as report

    def full(*_, **__):
        raise OSError(28, "No space left on device")  # as Python raises it: without a name

    monkeypatch.setattr(report, "write_json", full)
    out = tmp_path / "r.json"
    assert main(["check", save(arrays()), "--json", str(out)]) == 2
    captured = capsys.readouterr()
    assert captured.err == f"jaxcal: {out}: No space left on device\n"
    assert captured.out.startswith("check of scores alone"), "the report is not lost"


def test_every_terminal_can_show_the_report(save, monkeypatch):
    written = io.TextIOWrapper(io.BytesIO(), "ascii")
    monkeypatch.setattr(sys, "stdout", written)
    monkeypatch.setattr(sys, "stderr", written)
    content = arrays() | {"naïve": np.ones(3)}
    assert main(["check", save(content, "größe.npz")]) == 0
    assert rb"gr\xf6\xdfe.npz: the array 'na\xefve' is not used" in written.buffer.getvalue()


def without_cache():
    """XLA writes an error of its own to stderr for each program that some machines cached."""
    cache = "JAX_COMPILATION_CACHE_DIR"
    return {name: value for name, value in os.environ.items() if name != cache}


@pytest.fixture
def before_jax(monkeypatch):
    """As at the start of a process: without JAX, and an environment that is put back."""
    monkeypatch.delitem(sys.modules, "jax")
    for name in (command_line.CACHE, "XDG_CACHE_HOME", *OF_CACHE):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return monkeypatch


OF_CACHE = ("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "TF_CPP_MIN_LOG_LEVEL")


@pytest.mark.parametrize(
    ("system", "variable", "below_home"),
    [
        ("linux", "XDG_CACHE_HOME", ".cache"),
        ("darwin", "", "Library/Caches"),
        ("win32", "LOCALAPPDATA", "AppData/Local"),
    ],
)
def test_programs_are_kept_where_the_platform_keeps_such_files(
    system, variable, below_home, before_jax, tmp_path
):
    before_jax.setattr(sys, "platform", system)
    before_jax.setattr(Path, "home", lambda: tmp_path / "home")
    for place, stated in ((tmp_path / "home" / below_home, "relative"), (tmp_path, str(tmp_path))):
        if variable:
            before_jax.setenv(variable, stated)
        command_line.keep_programs()
        folder = Path(os.environ.pop(command_line.CACHE))
        assert folder.is_dir()
        if variable or stated == "relative":
            assert folder.parent == place / "jaxcal"


def test_compiled_programs_respect_other_and_unwritable_folders(before_jax, tmp_path):
    before_jax.setenv("XDG_CACHE_HOME", str(tmp_path))
    before_jax.setenv(command_line.CACHE, "mine")
    command_line.keep_programs()
    assert os.environ[command_line.CACHE] == "mine"
    before_jax.delenv(command_line.CACHE)
    (tmp_path / "file").touch()
    for unusable in (tmp_path / "file", tmp_path):
        before_jax.setenv("XDG_CACHE_HOME", str(unusable))
        before_jax.setattr(os, "access", lambda *_: False)  # of a folder that is read alone
        command_line.keep_programs()
        assert command_line.CACHE not in os.environ
    before_jax.setitem(sys.modules, "jax", jax)
    command_line.keep_programs()
    assert command_line.CACHE not in os.environ


@pytest.mark.slow
def test_a_second_start_compiles_nothing_anew(save, tmp_path):
    file, home = save(arrays()), tmp_path / "home"
    kept = without_cache() | {"XDG_CACHE_HOME": str(home), "HOME": str(home)}
    for name in OF_CACHE:
        kept.pop(name, None)

    def start(*options):
        argv = [sys.executable, "-m", "jaxcal", "check", file, *options]
        done = subprocess.run(argv, capture_output=True, text=True, timeout=300, env=kept)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout, set(home.rglob("*-cache"))

    plain, none = start("--no-cache")
    assert none == set()
    first, programs = start()
    assert programs
    assert start() == (first, programs)
    assert first == plain
    read = start(*["--seed", "1"])[1]
    assert read == programs  # one program for every key


# python -m jaxcal, which hears interrupts also where the tests run in the background
HEARING = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("jaxcal", run_name="__main__", alter_sys=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals and pipes of Unix")
def test_interrupts_and_closed_pipes_end_the_program_quietly(tmp_path):
    argv = [sys.executable, "-c", HEARING, "demo", "--output", str(tmp_path / "a.png")]
    ascii_only = without_cache() | {"PYTHONIOENCODING": "ascii", "LC_ALL": "C"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "env": ascii_only}
    with subprocess.Popen(argv, **pipes) as unread, subprocess.Popen(argv, **pipes) as stopped:
        for program in (unread, stopped):
            assert program.stdout.readline().startswith(b"Can the uncertainty")
        unread.stdout.close()
        stopped.send_signal(signal.SIGINT)
        assert (stopped.wait(120), unread.wait(120)) == (130, 141)
        assert stopped.stderr.read().strip() == b"jaxcal: interrupted"
        assert unread.stderr.read() == b""


@pytest.mark.slow
def test_the_program_fails_with_one_sentence_and_status_2(tmp_path):
    argv = [sys.executable, "-m", "jaxcal", "check", str(tmp_path / "absent.npz")]
    process = subprocess.run(argv, capture_output=True, text=True, timeout=120, env=without_cache())
    assert process.returncode == 2
    assert process.stdout == ""
    assert process.stderr.strip() == f"jaxcal: {tmp_path / 'absent.npz'}: no such file"


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
@pytest.mark.parametrize("command", [["demo"], ["check", "f.npz"]])
def test_an_interruption_while_jax_is_imported_is_one_line(command, tmp_path):
    """As JAX's own start does, this one swallows exceptions."""
    (tmp_path / "jax").mkdir()
    (tmp_path / "jax" / "__init__.py").write_text(
        textwrap.dedent("""
        import time
        try:
            print("importing", flush=True)
            time.sleep(60)
        except KeyboardInterrupt:
            print("lost", flush=True)
        """)
    )
    argv = [sys.executable, "-c", HEARING, *command]
    paths = os.pathsep.join([str(tmp_path), str(Path(jaxcal.__file__).parents[1])])
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": tmp_path}
    with subprocess.Popen(argv, env=os.environ | {"PYTHONPATH": paths}, **pipes) as stopped:
        assert stopped.stdout.readline() == "importing\n"
        stopped.send_signal(signal.SIGINT)
        assert stopped.communicate(timeout=60) == ("", "jaxcal: interrupted\n")
        assert stopped.returncode == 130
