"""The command on Parquet files and folders of shards: the test of all rows, resumable, by name."""

import itertools
import json

import jax
import numpy as np
import pytest

from jaxcal import RandomFeatures
from jaxcal.__main__ import main
from jaxcal.streaming import StreamedTest, StreamState, array_batches

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

RANDOM = np.random.default_rng(0)
N = 120
P = RANDOM.dirichlet(np.ones(3), N)
LABELS = (RANDOM.random(N)[:, None] > np.cumsum(P, 1)).sum(1)
YS, SCORES, INPUTS = RANDOM.normal(size=(3, N, 2))
PARTS = [slice(0, 50), slice(50, 120)]
SMALL = ["--batch", "30", "--first", "40", "--features", "6"]


@pytest.fixture
def shards(tmp_path):
    """A folder of two shards of these arrays, of one kind."""

    def written(kind, **arrays):
        folder = tmp_path / kind
        folder.mkdir()
        for place, rows in enumerate(PARTS):
            part = {name: array[rows] for name, array in arrays.items()}
            if kind == "parquet":
                columns = {name: array.tolist() for name, array in part.items()}
                pq.write_table(pa.table(columns), folder / f"{place}.parquet")
            elif kind == "npz":
                np.savez(folder / f"{place}.npz", **part)
            else:
                for name, array in part.items():
                    np.save(folder / f"{place}-{name}.npy", array)
        return folder

    return written


def test_every_kind_of_shard_is_one_test(shards, tmp_path, capsys):
    classes = {"targets": LABELS, "probabilities": P}
    features = RandomFeatures(0, 6)
    test = StreamedTest.skce(0, P[:40], LABELS[:40], features=features)
    wanted = test.result(test.run(array_batches(30, P, LABELS)))
    for kind in ("npz", "npy", "parquet"):
        folder = shards(kind, **classes)
        numbers = tmp_path / f"{kind}.json"
        assert main(["check", str(folder), "--json", str(numbers), *SMALL]) == 0
        content = json.loads(numbers.read_text())
        np.testing.assert_allclose(content["p_value"], wanted.p_value, rtol=1e-6)
        assert content["n"] == N
        assert content["n_first"] == 40
    single = tmp_path / "one.parquet"
    columns = {name: array.tolist() for name, array in classes.items()}
    pq.write_table(pa.table(columns), single)
    assert main(["check", str(single), *SMALL]) == 0
    assert f"SKCE test, n = {N}" in capsys.readouterr().out


@pytest.mark.slow
def test_scores_are_tested_too(shards, capsys):
    folder = shards("npz", targets=YS, scores=-YS, features=INPUTS)
    assert main(["check", str(folder), *SMALL]) == 0
    assert "KCSD test" in capsys.readouterr().out


def test_an_interrupted_pass_goes_on(shards, tmp_path, monkeypatch, capsys):
    folder, state = shards("npz", targets=LABELS, probabilities=P), tmp_path / "state.npz"
    assert main(["check", str(folder), *SMALL]) == 0
    whole = capsys.readouterr().out
    usual, calls = StreamedTest._update, []

    def stops(self, *batch):
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append(1)
        return usual(self, *batch)

    monkeypatch.setattr(StreamedTest, "_update", stops)
    usual_run = StreamedTest.run

    def often(self, batches, **options):
        return usual_run(self, batches, **options | {"every": 1})

    monkeypatch.setattr(StreamedTest, "run", often)
    assert main(["check", str(folder), *SMALL, "--state", str(state)]) == 130
    assert StreamState.load(state).n == 80
    monkeypatch.setattr(StreamedTest, "_update", usual)
    capsys.readouterr()
    assert main(["check", str(folder), *SMALL, "--state", str(state)]) == 0
    assert capsys.readouterr().out == whole
    assert main(["check", str(folder), *SMALL, "--state", str(state), "--seed", "1"]) == 2
    said = capsys.readouterr().err
    assert str(state) in said
    assert "another test" in said
    state.write_bytes(b"half")
    assert main(["check", str(folder), *SMALL, "--state", str(state)]) == 2
    assert "not a saved state" in capsys.readouterr().err


def begun(folder, state, monkeypatch):
    """The rows of the first shard and 30 of the second are done."""
    with monkeypatch.context() as patched:
        usual = StreamedTest.run

        def some(self, batches, **options):
            return usual(self, itertools.islice(batches, 3), **options)

        patched.setattr(StreamedTest, "run", some)
        assert main(["check", str(folder), *SMALL, "--state", str(state)]) == 0
    assert StreamState.load(state).n == 80


@pytest.mark.parametrize("kind", ["npz", "npy", "parquet"])
def test_a_pass_goes_on_with_another_batch_size(shards, tmp_path, monkeypatch, kind):
    """Each row counts once, also where the batch that holds the next one was done in part."""
    folder, state = shards(kind, targets=LABELS, probabilities=P), tmp_path / "state.npz"
    begun(folder, state, monkeypatch)
    numbers = [tmp_path / "whole.json", tmp_path / "parts.json"]
    assert main(["check", str(folder), *SMALL, "--json", str(numbers[0])]) == 0
    other = ["--batch", "70", *SMALL[2:], "--state", str(state)]
    assert main(["check", str(folder), *other, "--json", str(numbers[1])]) == 0
    whole, parts = (json.loads(file.read_text()) for file in numbers)
    assert parts["n"] == N
    assert parts["n_first"] == whole["n_first"]
    np.testing.assert_allclose(parts["p_value"], whole["p_value"], rtol=1e-6)


CHANGES = {
    "put between": (
        lambda folder: np.savez(folder / "0b.npz", targets=LABELS[:9], probabilities=P[:9]),
        ("0b.npz, 9 rows", "1.npz, 70 rows"),
    ),
    "changed": (
        lambda folder: np.savez(folder / "1.npz", targets=LABELS[:70], probabilities=P[:70]),
        ("1.npz, 70 rows", "1.npz, 70 rows"),
    ),
    "replaced by the next": (
        lambda folder: (folder / "1.npz").rename(folder / "2.npz"),
        ("2.npz, 70 rows", "1.npz, 70 rows"),
    ),
    "deleted": (lambda folder: (folder / "1.npz").unlink(), ("end after 50 rows", "1.npz, 70")),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_pass_does_not_go_on_over_other_shards(shards, tmp_path, monkeypatch, name, capsys):
    folder, state = shards("npz", targets=LABELS, probabilities=P), tmp_path / "state.npz"
    begun(folder, state, monkeypatch)
    change, words = CHANGES[name]
    change(folder)
    before = state.read_bytes()
    assert main(["check", str(folder), *SMALL, "--state", str(state)]) == 2
    said = capsys.readouterr().err
    for text in (*words, str(state)):
        assert text in said
    assert said.count("\n") == 1
    assert state.read_bytes() == before


def test_shards_that_come_later_are_added(shards, tmp_path, capsys):
    folder, state = shards("npz", targets=LABELS, probabilities=P), tmp_path / "state.npz"
    assert main(["check", str(folder), *SMALL, "--state", str(state)]) == 0
    np.savez(folder / "2.npz", targets=LABELS[:9], probabilities=P[:9])
    assert main(["check", str(folder), *SMALL, "--state", str(state)]) == 0
    assert f"n = {N + 9}" in capsys.readouterr().out


BAD = {
    "classes": (
        lambda folder: np.savez(folder / "1.npz", targets=LABELS, probabilities=P[:, :2]),
        "where the first shard has",
    ),
    "labels": (
        lambda folder: np.savez(folder / "1.npz", targets=LABELS + 9, probabilities=P),
        "classes outside",
    ),
    "sums": (
        lambda folder: np.savez(folder / "1.npz", targets=LABELS, probabilities=2 * P),
        "no probabilities",
    ),
    "lengths": (
        lambda folder: np.savez(folder / "1.npz", targets=LABELS[1:], probabilities=P),
        "different lengths",
    ),
    "names": (lambda folder: np.savez(folder / "1.npz", targets=LABELS), "wanted 'targets' with"),
    "words": (
        lambda folder: np.savez(folder / "1.npz", targets=LABELS, probabilities=P.astype(str)),
        "wanted float32",
    ),
    "half": (
        lambda folder: (folder / "1.npz").write_bytes((folder / "1.npz").read_bytes()[:500]),
        "not a whole",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_shard_is_named(shards, name, capsys):
    folder, (spoil, words) = shards("npz", targets=LABELS, probabilities=P), BAD[name]
    spoil(folder)
    assert main(["check", str(folder), *SMALL]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert "1.npz" in said
    assert said.count("\n") == 1


def test_folders_and_options_that_do_not_fit_are_one_sentence(shards, tmp_path, capsys):
    folder = shards("npz", targets=LABELS, probabilities=P)
    (tmp_path / "empty").mkdir()
    single = tmp_path / "npz" / "0.npz"
    for arguments, words in (
        ([str(folder), "--dependent"], "--dependent: not for shards"),
        ([str(folder), "--html", str(tmp_path / "a.html")], "--html: not for shards"),
        ([str(tmp_path / "empty")], "a folder; wanted shards of one kind in it"),
        ([str(tmp_path / "none.parquet")], "none.parquet: cannot be read as PARQUET"),
        ([str(single), "--state", str(tmp_path / "s")], "only shards have a state"),
    ):
        assert main(["check", *arguments]) == 2
        assert words in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["check", str(folder), "--features", "7"])
    (folder / "extra.npy").write_bytes(b"")
    assert main(["check", str(folder)]) == 2
    assert ".npz and .npy" in capsys.readouterr().err


def test_the_bar_knows_its_length_and_keeps_quiet_in_short_passes(shards, monkeypatch, capsys):
    folder = shards("npy", targets=LABELS, probabilities=P)
    assert main(["check", str(folder), *SMALL]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("jaxcal.streaming.streamed.PATIENCE", 0)
    assert main(["check", str(folder), *SMALL]) == 0
    assert "5/5" in capsys.readouterr().err  # 30 and 20, and 30, 30 and 10
    assert jax.config.jax_enable_x64
