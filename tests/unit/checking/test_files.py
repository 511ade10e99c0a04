"""The command: probabilities, draws and scores from .npz, .csv and .parquet."""

import json
import warnings

import jax
import numpy as np
import pytest

import jaxcal
from jaxcal.__main__ import main
from jaxcal.checking import files
from jaxcal.streaming.arrays_file import BadFile

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

RANDOM = np.random.default_rng(0)
N = 60
P = RANDOM.dirichlet(np.ones(3), N)
LABELS = (RANDOM.random(N)[:, None] > np.cumsum(P, 1)).sum(1)
YS, SCORES = RANDOM.normal(size=(2, N, 2))
DRAWS = RANDOM.normal(size=(N, 5, 2))


def text(header, *columns):
    rows = [",".join(map(str, row)) for row in zip(*columns, strict=True)]
    return "\n".join([header, *rows]) + "\n"


def of_classes(values):
    return text("a,label,b,c", values[:, 0], LABELS, values[:, 1], values[:, 2])


TABLE = of_classes(P)


@pytest.fixture
def write(tmp_path):
    def written(name, content):
        path = tmp_path / name
        if isinstance(content, str):
            path.write_text(content)
        elif isinstance(content, dict):
            np.savez(path, **content)
        else:
            pq.write_table(content, path)
        return path

    return written


def test_a_table_is_classes(write):
    columns = pa.table({"label": LABELS, **{f"p{k}": P[:, k] for k in range(3)}})
    lists = pa.table({"targets": LABELS, "probabilities": P.tolist()})
    for path in (
        write("a.csv", TABLE),
        write("a.parquet", columns),
        write("b.parquet", lists),
        write("a.npz", {"targets": LABELS, "probabilities": P}),
    ):
        predictions, targets, *_ = files.read(path)
        np.testing.assert_array_equal(predictions, P)
        np.testing.assert_array_equal(targets, LABELS)
    binary, labels, *_ = files.read(write("b.csv", text("label,p", LABELS % 2, P[:, 0])))
    assert binary.shape == (N,)
    assert set(labels.tolist()) == {0, 1}


def test_rows_that_are_rounded_are_divided_by_their_sums(write, capsys):
    rounded = np.round(P, 3)
    predictions, *_ = files.read(write("a.csv", of_classes(rounded)))
    np.testing.assert_allclose(predictions.sum(1), 1, rtol=1e-12)
    np.testing.assert_allclose(predictions, rounded, atol=2e-3)
    assert "of 3 digits do not quite sum to 1" in capsys.readouterr().err


def test_a_row_that_is_wrong_is_named(write, capsys):
    path = write("a.csv", of_classes(np.where(np.arange(N)[:, None] == 7, 0.9 * P, P)))
    assert main(["check", str(path)]) == 2
    assert "row 7 does not sum to 1" in capsys.readouterr().err


@pytest.mark.slow
def test_a_report_of_64_bits_is_read_where_32_are_the_default(write):
    report = files.checked(write("a.csv", TABLE), seed=0, level=0.05, dependent=False)
    with jax.enable_x64(False):
        assert report.p_value.dtype == "float64"
        assert str(report).startswith("check of class probabilities")


def test_draws_and_scores_are_read(write):
    draws, targets, *_ = files.read(write("d.npz", {"targets": YS, "draws": DRAWS}))
    np.testing.assert_array_equal(draws.samples, DRAWS)
    np.testing.assert_array_equal(targets, YS)
    scored = {"targets": YS, "scores": SCORES, "node_scores": DRAWS}
    scores, *_ = files.read(write("s.npz", scored))
    np.testing.assert_array_equal(scores.at_nodes, DRAWS)


BAD = {
    "ragged.csv": ("label,p\n0,0.5\n1\n", "row 3 has 1 entries"),
    "words.csv": ("label,p\n0,0.5\n1,high\n", "'p' holds entries that are no numbers"),
    "empty.csv": ("", "a line of names"),
    "none.csv": ("p,q\n0,0.5\n", "one column 'label'"),
    "half.csv": ("label,p\n0.5,0.5\n1,0.1\n", "whole numbers"),
    "nan.csv": ("label,p\n0,nan\n1,0.1\n", "1 values that are not finite"),
    "range.csv": ("label,p\n0,1.5\n1,0.1\n", "predictions"),
    "class.csv": ("label,p,q,r\n7,1,0,0\n0,1,0,0\n1,1,0,0\n", "targets"),
    "a.npz": ({"targets": YS}, "wanted 'targets' and one of"),
    "c.npz": ({"targets": LABELS, "probabilities": P.astype(str)}, "wanted numbers"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_one_sentence(write, name, capsys):
    content, words = BAD[name]
    path = write(name, content)
    assert main(["check", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"jaxcal: {path}: ")
    assert words in said
    assert said.count("\n") == 1


def test_missing_and_damaged_files_are_named(tmp_path):
    for name in ("none.csv", "none.parquet", "none.npz"):
        with pytest.raises(BadFile, match=name):
            files.read(tmp_path / name)
        (tmp_path / name).write_bytes(b"PK\x00\xff" * 10)
        with pytest.raises(BadFile, match=name):
            files.read(tmp_path / name)


def test_the_command_prints_and_writes_the_report(write, tmp_path, capsys):
    path = write("a.csv", TABLE)
    page, numbers = tmp_path / "out.html", tmp_path / "out.json"
    assert main(["check", str(path), "--html", str(page), "--json", str(numbers)]) == 0
    said = capsys.readouterr().out
    assert said == f"{jaxcal.check(0, P, LABELS)}\n"
    text = page.read_text()
    assert "data:image/png" in text
    assert 'name="viewport"' in text  # laid out for the width of a phone
    assert f'alt="Figure of SKCE test, n = {N}, estimate' in text
    for row in (("file", str(path)), ("columns", "labels from &#x27;label&#x27;"), ("key", "0")):
        assert "<td>{}</td><td>{}".format(*row) in text
    content = json.loads(numbers.read_text())
    assert content["names"] == ["skce_test"]
    assert content["verdict"] in ("rejected", "not rejected")
    action = "on one half" if content["verdict"] == "rejected" else "more observations"
    assert action in text.partition("What to do next</h2>")[2]
    assert main(["check", str(path), "--html", str(path)]) == 2
    assert "one name for two files" in capsys.readouterr().err


@pytest.mark.slow
def test_float64_draws_leave_standard_error_alone(write, tmp_path):
    path, page = write("d.npz", {"targets": YS, "draws": DRAWS}), tmp_path / "out.html"
    with jax.enable_x64(False), warnings.catch_warnings():
        warnings.simplefilter("error")  # JAX warns of types that it truncates
        assert main(["check", str(path), "--html", str(page)]) == 0


def test_json_goes_to_stdout_and_the_report_to_stderr(write, capsys):
    path = write("a.csv", TABLE)
    assert main(["check", str(path), "--json", "-"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["names"] == ["skce_test"]
    assert "check of class probabilities" in said.err
    for name in ("--html", "--state", "--output"):
        command = {"--html": "check", "--state": "check", "--output": "demo"}[name]
        argv = [command, *([str(path)] * (command != "demo")), name, "-"]
        with pytest.raises(SystemExit):
            main(argv)
        assert "--json alone takes '-'" in capsys.readouterr().err
