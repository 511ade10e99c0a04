"""One honest table in many forms, each read rightly; tables that say too little, each refused."""

import csv
import gzip
import io
import json

import numpy as np
import pytest

from jaxcal.__main__ import main
from jaxcal.checking import files, tables
from jaxcal.streaming.arrays_file import BadFile

N = 40
RANDOM = np.random.default_rng(0)
P = RANDOM.dirichlet(np.ones(3), N)
Y = (RANDOM.random(N)[:, None] > np.cumsum(P, 1)).sum(1)
Q = RANDOM.random(N)  # of label 1
B = (RANDOM.random(N) < Q).astype(int)
BOTH = np.stack([1 - Q, Q], axis=1)
ORDER = RANDOM.permutation(N)
ANIMALS = np.array(["cat", "dog", "owl"])
YES = np.array(["no", "yes"])
NOT_DUE = np.array(["due", "not due"])
WORDS = np.array(["paid", "default"])


def table(names, *columns, sign=",", comma=False):
    file = io.StringIO()
    writer = csv.writer(file, delimiter=sign)
    writer.writerow(names.split("|"))
    flat = [part for column in columns for part in np.atleast_2d(np.asarray(column).T)]
    for row in zip(*flat, strict=True):
        row = [x.item() for x in row]
        writer.writerow([str(x).replace(".", ",") if comma else x for x in row])
    return file.getvalue()


def records(names, *columns):
    rows = list(csv.DictReader(io.StringIO(table(names, *columns))))
    return [{name: json.loads(entry) for name, entry in row.items()} for row in rows]


def columns_of(rows):
    return {name: [row[name] for row in rows] for name in rows[0]}


THREE, TWO = records("label|p0|p1|p2", Y, P), records("label|p", B, Q)
LISTS = [{"targets": int(y), "probabilities": p.tolist()} for y, p in zip(Y, P, strict=True)]
PANDAS = {name: dict(enumerate(column)) for name, column in columns_of(THREE).items()}
SPLIT = {"columns": list(THREE[0]), "index": list(range(N)), "data": [[*r.values()] for r in THREE]}
# the form, the name of the file, its content; of Y and P, or of B and Q
CLASSES = {
    "numbers": ("a.csv", table("label|p0|p1|p2", Y, P)),
    "numbers at any place": ("a.csv", table("p_0|p_1|label|p_2", P[:, :2], Y, P[:, 2])),
    "numbers alone": ("a.csv", table("label|0|1|2", Y, P)),
    "numbers backwards": ("a.csv", table("label|2|1|0", Y, P[:, ::-1])),
    "numbers from 1": ("a.csv", table("label|p1|p2|p3", Y, P)),
    "labels from 1 too": ("a.csv", table("label|V1|V2|V3", Y + 1, P)),
    "many words": ("a.csv", table("target|prob of class 0|prob of class 1|prob of class 2", Y, P)),
    "doubled names": ("a.csv", table("label|p|p|p", Y, P)),
    "doubled names of pandas": ("a.csv", table("label|p|p.1|p.2", Y, P)),
    "letters": ("a.csv", table("a|label|b|c", P[:, 0], Y, P[:, 1:])),
    "names": ("a.csv", table("label|cat|dog|owl", ANIMALS[Y], P)),
    "names in another order": (
        "a.csv",
        table("label|p_owl|p_cat|p_dog", ANIMALS[Y], P[:, [2, 0, 1]]),
    ),
    "names of more words": (
        "a.csv",
        table("Label|P(Big Cat)|P(dog)|P(owl)", np.array(["big cat", "dog", "owl"])[Y], P),
    ),
    "index of pandas": ("a.csv", table("|label|p0|p1|p2", range(N), Y, P)),
    "index read again": ("a.csv", table("Unnamed: 0|label|0|1|2", ORDER, Y, P)),
    "identifiers": ("a.csv", table("id|label|p0|p1|p2", ORDER + 1000, Y, P)),
    "names of pictures": (
        "a.csv",
        table("picture|label|p0|p1|p2", [f"{k}.png" for k in ORDER], Y, P),
    ),
    "predicted class": ("a.csv", table("y_true|y_pred|p0|p1|p2", Y, P.argmax(1), P)),
    "compressed": ("a.csv.gz", gzip.compress(table("label|p0|p1|p2", Y, P).encode())),
    "tabs": ("a.tsv", table("label|p0|p1|p2", Y, P, sign="\t")),
    "semicolons": ("a.csv", table("label|p0|p1|p2", Y, P, sign=";", comma=True)),
    "json of rows": ("a.json", json.dumps(THREE)),
    "json of columns": ("a.json", json.dumps(columns_of(THREE))),
    "json of pandas": ("a.json", json.dumps(PANDAS)),
    "json of pandas, split": ("a.json", json.dumps(SPLIT)),
    "json of lines": ("a.jsonl", "\n".join(map(json.dumps, THREE))),
    "json of lists": ("a.json", json.dumps(LISTS)),
}
BINARY = {
    "one": ("a.csv", table("label|p", B, Q)),
    "one, of 1": ("a.csv", table("label|p_1", B, Q)),
    "one, True and False": ("a.csv", table("label|p", B.astype(bool), Q)),
    "one, yes and no": ("a.csv", table("label|p_yes", YES[B], Q)),
    "one, of a word": ("a.csv", table("label|P(default)", WORDS[B], Q)),
    "one, of a word and another": ("a.csv", table("label|default_percent", WORDS[B], Q)),
    "one, of a negated word": ("a.csv", table("label|p not due", NOT_DUE[B], Q)),
    "one, of no": ("a.csv", table("label|p_no", YES[B], 1 - Q)),
    "two": ("a.csv", table("label|0|1", B, BOTH)),
    "two, backwards": ("a.csv", table("label|1|0", B, BOTH[:, ::-1])),
    "two, yes and no": ("a.csv", table("label|p_yes|p_no", YES[B], BOTH[:, ::-1])),
    "two, yes and no of numbers": ("a.csv", table("label|p_yes|p_no", B, BOTH[:, ::-1])),
    "two, True and False": ("a.csv", table("label|True|False", B.astype(bool), BOTH[:, ::-1])),
    "two, -1 and 1": ("a.csv", table("y|negative|positive", 2 * B - 1, BOTH)),
    "json": ("a.json", json.dumps(TWO)),
}
DANGEROUS = {
    "two models": table("label|model_a|model_b", B, Q, 1 - Q**2),
    "three models": table("label|model_a|model_b|model_c", Y, P[:, :1], Q, Q**2),
    "a fold": table("label|p|fold", B, Q, np.arange(N) % 5),
    "a weight": table("label|p|weight", B, Q, Q[::-1]),
    "a fold of classes": table("label|p0|p1|p2|fold", Y, P, np.arange(N) % 5),
    "two targets": table("label|target|p", B, 1 - B, Q),
    "two targets with two columns": table("y_a|y_b|p_a|p_b", B, 1 - B, Q, Q[::-1]),
    "no label": table("truth_of_a|p", B, Q),
    "two words for numbers": table("label|p_spam|p_ham", B, BOTH[:, ::-1]),
    "p and q": table("label|p|q", B, Q, 1 - Q),
    "words in no order for numbers": table("label|dog|cat|owl", Y, P),
    "numbers for words": table("label|p0|p1|p2", ANIMALS[Y], P),
    "one number": table("label|0", B, Q),
    "the probability of 0": table("label|p0", B, Q),
    "the probability of no": table("label|p_no", B, 1 - Q),
    "the probability of not yes": table("label|P(not yes)", YES[B], 1 - Q),
    "the probability of no default": table("label|no_default", WORDS[B], 1 - Q),
    "the probability without default": table("label|default not", WORDS[B], 1 - Q),
    "a confidence": table("label|y_pred|confidence", B, Q > 0.5, np.maximum(Q, 1 - Q)),
    "a confidence alone": table("label|confidence", B, np.maximum(Q, 1 - Q)),
    "predicted classes": table("label|predicted", B, Q > 0.5),
    "classes that leave one out": table("label|p1|p2", Y, P[:, 1:]),
    "a group": table("label|p|patient_id", B, Q, [f"P{k}" for k in np.arange(N) // 2]),
    "logits": table("label|p0|p1|p2", Y, np.log(P)),
    "one column for three classes": table("label|p", Y, Q),
}


@pytest.fixture
def write(tmp_path):
    def written(name, content):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return written


@pytest.mark.parametrize("form", CLASSES)
def test_a_table_of_classes_is_read_in_this_form(write, form, capsys):
    p, labels, *_ = files.read(write(*CLASSES[form]))
    np.testing.assert_array_equal(p[np.arange(N), labels], P[np.arange(N), Y])
    np.testing.assert_array_equal(np.sort(p), np.sort(P))
    assert ": labels from '" in capsys.readouterr().err


@pytest.mark.parametrize("form", BINARY)
def test_a_table_of_two_classes_is_read_in_this_form(write, form):
    p, labels, *_ = files.read(write(*BINARY[form]))
    p = np.stack([1 - p, p], axis=1) if p.ndim == 1 else p
    np.testing.assert_allclose(p[np.arange(N), labels], BOTH[np.arange(N), B], rtol=1e-12)


@pytest.mark.parametrize("form", DANGEROUS)
def test_a_table_that_says_too_little_is_refused_with_the_remedy(write, form):
    with pytest.raises(BadFile, match=r"a\.csv: .*--columns label=NAME CLASS=NAME"):
        files.read(write("a.csv", DANGEROUS[form]))


def test_a_table_without_rows_is_refused():
    with pytest.raises(tables.Unreadable, match="no rows"):
        tables.classes_of([("label", []), ("p", [])])


def test_labels_that_differ_in_signs_are_not_merged():
    marks = np.array(["A", "A-"])[B]
    with pytest.raises(tables.Unreadable, match=r"'label' has labels that differ in signs .*'A-'"):
        tables.classes_of([("label", marks), ("A-", Q)])
    with pytest.raises(tables.Unreadable, match="--columns A-=b: 'a' has the column 'a' too"):
        tables.classes_of([("label", B), ("a", 1 - Q), ("b", Q)], ["label=label", "A=a", "A-=b"])
    yes = np.array(["no", "yes", "Yes"])[B + B * (np.arange(N) % 2)]
    np.testing.assert_array_equal(tables.classes_of([("label", yes), ("p_yes", Q)]).labels, B)


NAMED = {
    "words for numbers": (table("hit|p_spam|p_ham", B, BOTH), ["label=hit", "0=p_spam", "1=p_ham"]),
    "one of several": (table("label|p|fold", B, Q, np.arange(N) % 5), ["label=label", "1=p"]),
    "the other one": (table("label|p0", B, 1 - Q), ["label=label", "0=p0"]),
    "words": (table("x|a|b", YES[B], BOTH), ["label=x", "yes=b", "no=a"]),
}


@pytest.mark.parametrize("form", NAMED)
def test_columns_can_be_named(write, form):
    content, columns = NAMED[form]
    p, labels, *_ = files.read(write("a.csv", content), columns)
    p = np.stack([1 - p, p], axis=1) if p.ndim == 1 else p
    np.testing.assert_allclose(p[np.arange(N), labels], BOTH[np.arange(N), B], rtol=1e-12)


@pytest.mark.slow
def test_the_mapping_is_said_and_the_option_reaches_the_reader(write, capsys):
    path = write("a.csv", table("id|label|p|fold", ORDER, B, Q, np.arange(N) % 5))
    assert main(["check", str(path)]) == 2
    assert main(["check", str(path), "--columns", "label=label", "1=p"]) == 0
    said = capsys.readouterr().err.splitlines()[-1]
    assert said == f"{path}: labels from 'label', P(1) from 'p'; not used: 'id', 'fold'"
    for columns in (["label=label", "1=q"], ["1=p"], ["label=label", "2=p"], ["p"]):
        assert main(["check", str(path), "--columns", *columns]) == 2
    np.savez(path.with_suffix(".npz"), targets=B, probabilities=Q)
    assert main(["check", str(path.with_suffix(".npz")), "--columns", "1=p"]) == 2
    assert "--columns is for tables" in capsys.readouterr().err


def test_a_name_that_begins_with_no_is_not_of_the_label_no():
    """Probabilities of "no show" were taken for those of the label "no"."""
    for name in ("no_show_prob", "non_payment_p"):
        label = name.split("_")[0]
        columns = [("label", ["yes", label]), (name, np.array([0.9, 0.2]))]
        with pytest.raises(tables.Unreadable, match="not clear"):
            tables.classes_of(columns)
    assert tables.classes_of([("label", ["yes", "no"]), ("p_no", np.array([0.9, 0.2]))])
