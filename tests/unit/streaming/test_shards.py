"""The command on Parquet files and folders of shards: the test of all rows, resumable, by name."""

import itertools
import json
import os

import jax
import numpy as np
import pytest

from jaxcal import RandomFeatures
from jaxcal.__main__ import main
from jaxcal.streaming import Shards, StreamedTest, StreamState, array_batches
from jaxcal.streaming.arrays_file import BadFile

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
csv = pytest.importorskip("pyarrow.csv")

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


@pytest.mark.slow
def test_every_kind_of_shard_is_one_test(shards, tmp_path, capsys):
    classes = {"targets": LABELS, "probabilities": P}
    wanted = None
    for kind in ("npz", "npy", "parquet"):
        folder = shards(kind, **classes)
        numbers = tmp_path / f"{kind}.json"
        assert main(["check", str(folder), "--json", str(numbers), *SMALL]) == 0
        content = json.loads(numbers.read_text())
        sample = Shards(folder).sample(40)
        if wanted is None:
            first = sample["probabilities"], sample["targets"]
            test = StreamedTest.skce(0, *first, features=RandomFeatures(0, 6))
            wanted = test.result(test.run(array_batches(30, P, LABELS)))
        np.testing.assert_allclose(content["p_value"], wanted.p_value, rtol=1e-6)
        assert content["n"] == N
        assert content["tests"][0]["n_first"] == 40
    single = tmp_path / "one.parquet"
    columns = {name: array.tolist() for name, array in classes.items()}
    pq.write_table(pa.table(columns), single)
    assert main(["check", str(single), *SMALL]) == 0
    assert f"SKCE test, n = {N}" in capsys.readouterr().out


@pytest.mark.slow
def test_a_first_shard_may_be_shorter_than_a_batch(shards):
    test = StreamedTest.skce(0, P[:40], LABELS[:40], features=RandomFeatures(0, 6))
    state = test.run(Shards(shards("npz", targets=LABELS, probabilities=P), 64))
    wanted = test.result(test.run(array_batches(30, P, LABELS)))
    assert state.n == N
    np.testing.assert_allclose(test.result(state).p_value, wanted.p_value, rtol=1e-6)


@pytest.mark.slow
def test_scores_are_tested_too(shards, capsys):
    folder = shards("npz", targets=YS, scores=-YS, features=INPUTS)
    assert main(["check", str(folder), *SMALL]) == 0
    assert "KCSD test" in capsys.readouterr().out


@pytest.mark.slow
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


@pytest.mark.slow
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
    assert parts["tests"][0]["n_first"] == whole["tests"][0]["n_first"]
    np.testing.assert_allclose(parts["p_value"], whole["p_value"], rtol=1e-6)


CHANGES = {
    "put between": (
        lambda folder: np.savez(folder / "0b.npz", targets=LABELS[:9], probabilities=P[:9]),
        ("0b.npz, ", "1.npz, "),
    ),
    "changed": (
        lambda folder: np.savez(folder / "1.npz", targets=LABELS[:70], probabilities=P[:70]),
        ("1.npz, ", "checksum"),
    ),
    "replaced by the next": (
        lambda folder: (folder / "1.npz").rename(folder / "2.npz"),
        ("2.npz, ", "1.npz, "),
    ),
    "deleted": (lambda folder: (folder / "1.npz").unlink(), ("end after 50 rows", "1.npz, ")),
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
        "has a label that is none of the classes",
    ),
    "sums": (
        lambda folder: np.savez(folder / "1.npz", targets=LABELS, probabilities=2 * P),
        "holds no probabilities: wanted numbers from 0 that sum to 1",
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
        ([str(tmp_path / "empty")], "wanted shards of one kind"),
        ([str(tmp_path / "none.parquet")], "none.parquet: cannot be read as PARQUET"),
        ([str(single), "--shard", "2/3"], "at most the number of shards, 1"),
        ([str(folder), "--columns", "label=a"], "columns are those of tables"),
        (["s3:nothing"], "no such file"),
    ):
        assert main(["check", *arguments]) == 2
        assert words in capsys.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main(["check", str(folder), "--features", "7"])
    (folder / "extra.npy").write_bytes(b"")
    assert main(["check", str(folder)]) == 2
    assert ".npz and .npy" in capsys.readouterr().err


def test_the_bar_knows_its_length_and_skips_short_passes(shards, monkeypatch, capsys):
    folder = shards("parquet", targets=LABELS, probabilities=P)
    assert main(["check", str(folder), *SMALL]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("jaxcal.streaming.streamed.PATIENCE", 0)
    assert main(["check", str(folder), *SMALL]) == 0
    assert "5/5" in capsys.readouterr().err  # 30 and 20, and 30, 30 and 10
    assert jax.config.jax_enable_x64


WIDE = {f"p{k}": P[:, k] for k in range(3)}
MEANS, ERRORS = RANDOM.normal(size=(2, N))


def tables(folder, kind="parquet", **columns):
    """Two files of a table in folders day=1/ and day=2/."""
    for day, rows in enumerate(PARTS, 1):
        (folder / f"day={day}").mkdir(parents=True)
        table = pa.table({name: list(column[rows]) for name, column in columns.items()})
        if kind == "parquet":
            pq.write_table(table, folder / f"day={day}" / "part.parquet")
        else:
            csv.write_csv(table, folder / f"day={day}" / "part.csv")
    return folder


def numbers_of(tmp_path, *arguments):
    file = tmp_path / "numbers.json"
    assert main(["check", *arguments, *SMALL, "--json", str(file)]) == 0
    return json.loads(file.read_text())


def test_files_as_they_are_are_one_test(tmp_path):
    """Lists, a column per class, other names, texts, a URI: the same numbers."""
    names = np.array(["ant", "bee", "cat"])[LABELS]
    lists = tables(tmp_path / "lists", probabilities=P, targets=LABELS)
    wanted = numbers_of(tmp_path, str(lists))
    others = dict(zip("xyz", P.T, strict=True))
    chosen = ["--columns", "label=seen", "ant=x", "bee=y", "cat=z"]
    for path, options in (
        (tables(tmp_path / "wide", label=LABELS, more=names, **WIDE), []),
        (tables(tmp_path / "csv", "csv", label=LABELS, more=names, **WIDE), []),
        (tables(tmp_path / "named", "csv", seen=names, **others), chosen),
        (f"file://{lists}", []),
    ):
        numbers = numbers_of(tmp_path, str(path), *options)
        assert (numbers["n"], numbers["left_out"]) == (N, 0)
        np.testing.assert_allclose(numbers["p_value"], wanted["p_value"], rtol=1e-9)


@pytest.mark.slow
def test_yes_and_no_have_one_column(tmp_path):
    p = P[:, 0]
    y = RANDOM.random(N) < p
    wanted = numbers_of(tmp_path, str(tables(tmp_path / "a", p0=1 - p, p1=p, label=1 * y)))
    words = np.where(y, "Yes", "no")
    for name, label, options in (
        ("b", y, []),
        ("c", words, []),
        ("d", np.where(y, "dead", "alive"), ["--columns", "label=label", "dead=p"]),
        ("e", words, ["--columns", "label=label", "yes=p"]),
    ):
        numbers = numbers_of(tmp_path, str(tables(tmp_path / name, p=p, label=label)), *options)
        np.testing.assert_allclose(numbers["p_value"], wanted["p_value"], rtol=1e-9)


@pytest.mark.parametrize("key", ["1", "1.0"])
def test_a_class_named_as_a_float_is_that_label(tmp_path, key):
    folder = tables(tmp_path / "a", p=P[:, 0], y=(LABELS == 0).astype(float))
    rows = Shards(folder, columns=["y=y", f"{key}=p"]).sample(2 * N)
    assert rows["targets"].sum() == np.sum(LABELS == 0)
    folder = tables(tmp_path / "b", y=LABELS.astype(float), **WIDE)
    rows = Shards(folder, columns=["y=y", "0.0=p0", "1.0=p1", "2.0=p2"]).sample(2 * N)
    assert set(rows["targets"]) == {0, 1, 2}


def test_a_class_that_is_no_label_is_an_error(tmp_path):
    label = np.where(LABELS == 0, "Alive", "dead")
    folder = tables(tmp_path / "a", p=P[:, 0], label=label)
    with pytest.raises(BadFile, match=r"'alive' is none of the labels \('Alive', 'dead', \.\.\)"):
        list(Shards(folder, columns=["label=label", "alive=p"]))
    order = np.argsort(LABELS != 1)  # one class against two others, the last rows hold these alone
    folder = tables(tmp_path / "b", p=P[order, 1], label=np.array(["a", "b", "c"])[LABELS[order]])
    batches = list(Shards(folder, 10, columns=["label=label", "b=p"]))
    assert sum(batch[1].sum() for batch in batches) == np.sum(LABELS == 1)
    folder = tables(
        tmp_path / "c", p=P[order[::-1], 1], label=np.array([*"abc"])[LABELS[order[::-1]]]
    )
    share = Shards(folder, 10, columns=["label=label", "b=p"], share=(1, 2))  # without any b
    assert sum(len(batch[1]) for batch in share) == 50


def test_an_empty_label_of_one_class_is_a_fault(tmp_path):
    label = np.where(LABELS == 0, "dead", "alive")
    label[7] = ""
    folder = tables(tmp_path / "a", "csv", p=P[:, 0], label=label)
    with pytest.raises(BadFile, match="row 7 has a label that is none of the classes"):
        list(Shards(folder, columns=["label=label", "dead=p"]))


def test_a_null_in_the_first_row_of_lists_is_a_fault(tmp_path):
    rows = [None, *P[1:].tolist()]
    folder = tables(tmp_path / "a", probabilities=np.array([*rows, 0], object)[:-1], label=LABELS)
    with pytest.raises(BadFile, match="row 0 holds no numbers, or lists of another length"):
        list(Shards(folder))
    shards = Shards(folder, skip_bad=True)
    assert sum(len(batch[1]) for batch in shards) == N - 1
    assert shards.left_out == 1
    nulls = pa.table({"probabilities": pa.nulls(9, pa.list_(pa.float64())), "label": [0] * 9})
    pq.write_table(nulls, tmp_path / "nulls.parquet")
    with pytest.raises(BadFile, match="'probabilities' is null in the first 9 rows"):
        list(Shards(tmp_path / "nulls.parquet", skip_bad=True))


@pytest.mark.slow
def test_means_and_deviations_are_tested_as_normals(tmp_path, capsys):
    """Rows are numbered over all shards, so that shares and merges change nothing."""
    columns = {"y": MEANS + ERRORS, "mu": MEANS, "sigma": np.ones(N)}
    folder = str(tables(tmp_path / "a", "csv", **columns))
    chosen = ["--columns", "target=y", "mean=mu", "deviation=sigma"]
    whole = numbers_of(tmp_path, folder, *chosen)
    states = [str(tmp_path / f"{k}.npz") for k in (1, 2)]
    for k, state in enumerate(states, 1):
        numbers_of(tmp_path, folder, *chosen, "--shard", f"{k}/2", "--state", state)
    file = tmp_path / "merged.json"
    assert main(["merge", *reversed(states), "--json", str(file)]) == 0
    merged = json.loads(file.read_text())
    assert merged["n"] == N
    assert merged["p_value"] == whole["p_value"]
    of_each = [report["tests"][0]["statistic"] for report in (merged, whole)]
    np.testing.assert_allclose(of_each[0], of_each[1], rtol=1e-9)
    capsys.readouterr()
    assert main(["merge", states[0]]) == 2
    assert "1 shards are in none of these states: day=2/part.csv" in capsys.readouterr().err
    copy = tmp_path / "copy.npz"
    copy.write_bytes((tmp_path / "1.npz").read_bytes())
    assert main(["merge", states[0], str(copy)]) == 2
    assert "is in both states and would count twice" in capsys.readouterr().err
    StreamState(1, 0, (), (), {}, {}).save(copy)
    assert main(["merge", states[0], str(copy)]) == 2
    assert "not fitted by this command" in capsys.readouterr().err


def test_the_first_sample_is_of_all_shards(tmp_path):
    """Files that are sorted by class fix units by all classes."""
    order = np.argsort(LABELS)
    folder = tables(tmp_path / "a", targets=LABELS[order], **{k: p[order] for k, p in WIDE.items()})
    sample = Shards(folder).sample(40)
    assert set(sample["targets"]) == {0, 1, 2}
    assert len(sample["targets"]) == 40
    np.testing.assert_array_equal(
        sample["targets"], Shards(folder, share=(2, 2)).sample(40)["targets"]
    )


@pytest.mark.slow
def test_unusable_rows_are_named_or_omitted_and_counted(tmp_path, capsys):
    lines = [
        f"{label},{','.join(map(repr, row))}" for label, row in zip(LABELS, P.tolist(), strict=True)
    ]
    good = tmp_path / "good"
    for folder in (tmp_path / "bad", good):
        folder.mkdir()
    text = ["label,p0,p1,p2", *lines[:60]]
    (good / "0.csv").write_text("\n".join(text[:4] + text[8:]))
    text[4:8] = ["7,.2,.3,.5", "0,.2,.3,", "1,.5,.6,.7", "1,.2,x,.8"]
    (tmp_path / "bad" / "0.csv").write_text("\n".join(text))
    (tmp_path / "bad" / "1.csv").write_text("\n".join([text[0], *lines[60:]]))
    (good / "1.csv").write_text("\n".join([text[0], *lines[60:]]))
    assert main(["check", str(tmp_path / "bad"), *SMALL]) == 2
    assert "0.csv: row 4 holds no numbers" in capsys.readouterr().err  # of those drawn the first
    with pytest.raises(BadFile, match=r"0\.csv: row 3 has a label that is none of the classes"):
        list(Shards(tmp_path / "bad"))
    numbers = numbers_of(tmp_path, str(tmp_path / "bad"), "--skip-bad")
    assert "left out 4 rows that cannot be used; the first: " in capsys.readouterr().err
    assert (numbers["n"], numbers["left_out"]) == (N - 4, 4)
    assert numbers_of(tmp_path, str(good))["n"] == N - 4
    bad = Shards(tmp_path / "bad", 30, skip_bad=True)
    for parts in zip(zip(*bad, strict=True), zip(*Shards(good, 30), strict=True), strict=True):
        np.testing.assert_array_equal(*(np.concatenate(rows) for rows in parts))
    text[4] = "0,.2,.8"
    (tmp_path / "bad" / "0.csv").write_text("\n".join(text))
    numbers = numbers_of(tmp_path, str(tmp_path / "bad"), "--skip-bad")
    assert (numbers["n"], numbers["left_out"]) == (N - 4, 4)
    said = capsys.readouterr().err
    assert "left out 4 rows" in said
    assert "0.csv: line '0,.2,.8' has 3 entries" in said


def test_copies_and_changes_of_a_shard_are_refused(tmp_path):
    folder = tables(tmp_path / "a", label=LABELS, **WIDE)
    copy = folder / "copy.parquet"
    copy.write_bytes((folder / "day=1" / "part.parquet").read_bytes())
    with pytest.raises(BadFile, match=r"the same rows as in .*, which would count twice"):
        list(Shards(folder))
    copy.unlink()
    batches = iter(Shards(folder, 30))
    next(batches)
    os.utime(folder / "day=1" / "part.parquet", (1, 1))
    with pytest.raises(BadFile, match=r"part\.parquet: changed while it was read"):
        list(batches)


def test_columns_that_are_missing_or_no_numbers_are_named(tmp_path):
    folder = tables(tmp_path / "a", label=LABELS, probability=P[:, 0])
    with pytest.raises(BadFile, match=r"wanted a column of targets .* the columns are label, "):
        Shards(folder)
    for twice in ({"p0": P[:, 0], "p_0": P[:, 0], "p1": P[:, 1]}, {"target": LABELS, "p": P[:, 0]}):
        two = tables(tmp_path / f"two{len(twice)}", label=LABELS, **twice)
        with pytest.raises(BadFile, match=r"columns .* and .* both hold '(0|targets)': choose"):
            Shards(two)
        assert Shards(two, columns=["label=label", f"1={'p1' if 'p1' in twice else 'p'}"])
    with pytest.raises(BadFile, match="--columns 1=q: wanted KEY=NAME for one of"):
        Shards(folder, columns=["label=label", "1=q"])
    flags = tables(tmp_path / "b", label=MEANS, flag=MEANS > 0)
    files = Shards(flags, columns=["label=label", "mean=flag", "deviation=label"])
    with pytest.raises(BadFile, match="'mean' is bool; wanted numbers"):
        list(files)
    with pytest.raises(BadFile, match="nothing://a: cannot be opened"):
        Shards("nothing://a")


def test_a_place_of_shards_is_a_path(as_users_run_it):
    with pytest.raises(TypeError, match="path: wanted a folder, a file or a URI, got None"):
        Shards(None)


@pytest.mark.slow
def test_lengths_of_batches_are_few(tmp_path):
    """Each length is compiled: rests of shards are filled up with rows that do not count."""
    random = np.random.default_rng(1)
    for k, n in enumerate(random.integers(20, 100, 12)):
        rows = random.integers(0, N, n)
        pq.write_table(
            pa.table({k: c[rows] for k, c in {"label": LABELS, **WIDE}.items()}),
            tmp_path / f"{k}.parquet",
        )
    batches = list(Shards(tmp_path, 32))
    assert {len(batch.padded()[0][1]) for batch in batches} <= {32, 16, 8, 4, 2, 1}
    test = StreamedTest.skce(0, P, LABELS, features=RandomFeatures(0, 6))
    one, other = test.run(batches), test.empty()
    for p, labels in batches:  # without filling: a batch holds the rows of its file alone
        other = test.update(other, p, labels)
    assert one.n == other.n == sum(pq.read_metadata(file).num_rows for file in tmp_path.iterdir())
    for name, total in one.sums.items():
        np.testing.assert_allclose(total, other.sums[name], rtol=1e-11, atol=1e-11)


def test_bad_lines_of_other_shares_are_not_counted(tmp_path):
    for name, line in (("0.csv", "1,.2"), ("1.csv", "0,.5,.5")):
        (tmp_path / name).write_text(f"label,p0,p1\n0,.5,.5\n{line}\n")
    share = Shards(tmp_path, share=(2, 2), skip_bad=True)
    assert sum(len(batch[1]) for batch in share) == 2
    assert share.first_row() == 2
    assert (share.left_out, share.fault) == (0, "")


@pytest.mark.slow
def test_a_state_of_other_columns_is_refused(shards, tmp_path, capsys):
    """It went on with the sums of the first model, or reported them as those of the second."""
    folder, state = shards("parquet", label=LABELS % 2, good=P[:, 0], bad=P[:, 1]), tmp_path / "s"
    common = ["check", str(folder), *SMALL, "--state"]
    assert main([*common, f"{state}.npz", "--columns", "label=label", "1=good"]) == 0
    assert main([*common, f"{state}.npz", "--columns", "label=label", "1=bad"]) == 2
    assert "targets=label, 1=good, and these are targets=label, 1=bad" in capsys.readouterr().err
    parts = [f"{tmp_path / name}.npz" for name in ("good", "bad")]
    for share, (file, name) in enumerate(zip(parts, ("good", "bad"), strict=True)):
        columns = ["--shard", f"{share + 1}/2", "--columns", "label=label", f"1={name}"]
        assert main([*common, file, *columns]) == 0
    assert main(["merge", *parts]) == 2
    assert "of other columns than those of" in capsys.readouterr().err


def test_true_and_false_are_labels_of_columns_p0_and_p1(tmp_path):
    label, p = LABELS == 0, P[:, 0]
    csv.write_csv(pa.table({"label": label, "p0": 1 - p, "p1": p}), tmp_path / "0.csv")
    labels = np.concatenate([np.asarray(targets) for _, targets in Shards(tmp_path)])
    np.testing.assert_array_equal(labels, label.astype(int))


@pytest.mark.parametrize("absent", [np.nan, "NA", "nan", "None", ""])
def test_missing_labels_are_not_the_other_class(shards, absent):
    numbers = isinstance(absent, float)
    label = np.where(LABELS == 0, 2.0, 3.0) if numbers else np.where(LABELS == 0, "cat", "dog")
    label = label.astype(float if numbers else object)
    label[::4] = absent
    folder = shards("parquet", label=label, p=P[:, 0])
    read = Shards(folder, columns=["label=label", "2=p" if numbers else "cat=p"], skip_bad=True)
    labels = np.concatenate([np.asarray(targets) for _, targets in read])
    np.testing.assert_array_equal(labels, LABELS[np.arange(N) % 4 > 0] == 0)
    assert read.left_out == N / 4


def test_a_pass_that_was_stopped_is_not_merged(shards, tmp_path, monkeypatch, capsys):
    """Its shard was counted as read: rows after the stop were left out without a word."""
    folder = shards("npz", targets=LABELS, probabilities=P)
    states = [str(tmp_path / f"{k}.npz") for k in (1, 2)]
    parts = [["--shard", f"{k}/2", "--state", state] for k, state in enumerate(states, 1)]
    usual, usual_run, calls = StreamedTest._update, StreamedTest.run, []

    def stops(self, *batch):
        if len(calls) == 1:
            raise KeyboardInterrupt
        calls.append(1)
        return usual(self, *batch)

    def often(self, batches, **options):
        return usual_run(self, batches, **options | {"every": 1})

    with monkeypatch.context() as patched:
        patched.setattr(StreamedTest, "_update", stops)
        patched.setattr(StreamedTest, "run", often)
        assert main(["check", str(folder), *SMALL, *parts[0]]) == 130
    assert main(["check", str(folder), *SMALL, *parts[1]]) == 0
    capsys.readouterr()
    assert main(["merge", *states]) == 2
    assert "1.npz: its pass has not ended, after 30 rows" in capsys.readouterr().err
    assert main(["check", str(folder), *SMALL, *parts[0]]) == 0
    assert main(["merge", *states]) == 0
    assert f"n = {N}" in capsys.readouterr().out


@pytest.mark.parametrize(("mean", "deviation"), [((2,), (2,)), ((), (2, 2))])
def test_means_and_deviations_have_the_shape_of_targets(tmp_path, mean, deviation):
    """Components of a mixture, or covariances, were multiplied and added up: "rejected"."""
    event = () if len(mean) else (2,)
    arrays = {"mean": np.zeros((9, *mean)), "deviation": np.ones((9, *deviation))}
    np.savez(tmp_path / "a.npz", targets=np.zeros((9, *event)), **arrays)
    with pytest.raises(BadFile, match=r"a\.npz: '(mean|deviation)' has shape"):
        next(iter(Shards(tmp_path, 9)))
