"""Find the class probabilities and labels in a table by the names of its columns.

A column holds the labels, the probability of a class, row numbers or identifiers, or the predicted
class. A table with any other column, or with names that do not determine the class of a column, is
refused; the caller can name the columns instead.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


def _words(text: str) -> frozenset[str]:
    return frozenset(text.replace("_", " ").split("|"))


LABELS = _words(
    "label|labels|target|targets|y|y_true|ytrue|true_label|label_true|true_class|class|truth|"
    "ground_truth|actual|observed|outcome"
)
PREDICTED = _words(
    "y_pred|ypred|pred|prediction|predicted|predicted_label|predicted_class|pred_label|pred_class"
)
IDENTIFIES = _words("id|ids|index|idx|key|row|rowid|rownames|uid|uuid|guid|unnamed")
POSITIVE, NEGATIVE = _words("1|true|t|yes|y|positive|pos"), _words("0|-1|false|f|no|n|negative|neg")
TRUTH = dict.fromkeys(POSITIVE, "1") | dict.fromkeys(NEGATIVE, "0")
NEGATIONS = _words("not|non|without") | (NEGATIVE - {"f", "n"})
# a single column with one of these words in its name may not hold the probability of label 1
OTHERS = NEGATIONS | _words(
    "conf|confidence|max|maximum|top|weight|weights|fold|split|group|logit|logits|"
    "log|odds|loss|error|std|sigma|variance|percent|threshold"
)
REMEDY = (
    "name the columns to read: --columns label=NAME CLASS=NAME .., one for each class (or for one "
    "of two)"
)
MOST_DIGITS = 7

Column = tuple[str, Any]  # name, and entries: floats or texts


class Unreadable(ValueError):
    """Error raised for a table that cannot be used; the message is one sentence."""


class Table(NamedTuple):
    """``probabilities`` of classes [n, m], or of label 1 [n] if there is a single column; integer
    ``labels`` [n]; ``notes``, sentences on how the columns were read."""

    probabilities: np.ndarray
    labels: np.ndarray
    notes: tuple[str, ...]


def classes_of(columns: Sequence[Column], chosen: Sequence[str] = ()) -> Table:
    """Return the class probabilities and labels of a table.

    Args:
        columns: Name and n entries of each column: texts, numbers, booleans, lists of m numbers
            (classes 0..m-1), or dicts from classes to numbers. Names may repeat.
        chosen: Texts "label=NAME" and "CLASS=NAME" that name the columns to read. If empty, names
            and entries of the columns determine which hold labels and which probabilities.

    Returns:
        `Table`.

    Raises:
        Unreadable: The role or the class of a column is unclear; the message says what to do.
    """
    columns = _flat(columns)
    if not all(len(entries) for _, entries in columns):
        raise Unreadable("a column has no rows")
    label, rest, guesses, keys = _chosen(columns, chosen) if chosen else _roles(columns)
    observed = _labels(*label)
    names, seen = [name for name, _ in rest], sorted(set(observed))
    order, places = (_one_column if len(rest) == 1 else _classes)(names, seen, keys)
    rest = [rest[k] for k in order]
    names = [name for name, _ in rest]
    values, notes = _probabilities(rest)
    if values.shape[1] == 1:
        if not chosen and np.all((values == 0) | (values == 1)):
            raise Unreadable(
                f"'{names[0]}' holds only 0 and 1, which are classes, not probabilities; {REMEDY}"
            )
        values = np.concatenate([1 - values, values], axis=1)
    for name, entries in guesses:
        guess = np.asarray([places.get(key, -1) for key in _labels(name, entries)])
        picked = values[np.arange(len(values)), guess]
        if np.any(guess < 0) or np.any(picked < np.max(values, axis=1)):
            raise Unreadable(f"'{name}' is not always the most probable class; {REMEDY}")
    of = {place: key for key, place in reversed(places.items())}  # a class's label in the table
    shift = int(len(rest) == 1)
    said = [f"P({of.get(k + shift, '1')}) from '{name}'" for k, name in enumerate(names)]
    if len(said) > 12:
        said = [*said[:4], "..", said[-1]]
    left_out = [f"'{name}'" for name, _ in columns if name not in (label[0], *names)]
    note = f"labels from '{label[0]}', {', '.join(said)}"
    note += f"; not used: {', '.join(left_out)}" if left_out else ""
    labels = np.asarray([places[key] for key in observed])
    return Table(values[:, 1] if shift else values, labels, (note, *notes))


def is_label(name: str) -> bool:
    """Return whether a column with this name holds labels."""
    return " ".join(_tokens(name)) in LABELS


def _flat(columns: Sequence[Column]) -> list[Column]:
    """Return columns of texts or floats. A column of lists or dicts becomes several columns. A
    column that repeats another exactly, or has no name and only empty texts, is left out."""
    flat: list[Column] = []
    for name, values in columns:
        name = str(name).strip()
        first = values[0] if len(values) else None
        if isinstance(first, dict):
            parts = [(key, [row.get(key) for row in values]) for key in first]
        elif isinstance(first, list | tuple | np.ndarray):
            try:
                parts = [(f"{name} {k}", part) for k, part in enumerate(np.asarray([*values]).T)]
            except ValueError:
                raise Unreadable(f"'{name}' holds lists of different lengths") from None
        else:
            parts = [(name, values)]
        for part, entries in parts:
            entries = _entries(entries)
            again = any(part == other and np.array_equal(entries, e) for other, e in flat)
            if not again and (part or np.any(entries != "")):
                flat.append((part, entries))
    return flat


def _entries(values: Any) -> np.ndarray:
    """Return floats if all entries can be read as numbers, else texts. None becomes NaN or ""."""
    array = np.asarray(values)
    if array.dtype.kind == "f":
        return array
    if array.dtype.kind in "mM":
        return array.astype(str)
    try:
        return array.astype(float)
    except (TypeError, ValueError):
        return np.asarray(["" if entry is None else str(entry).strip() for entry in array])


def _tokens(text: str) -> list[str]:
    """Return the words, numbers and signs of a name, in lower case."""
    tokens = re.findall(r"\d+|[A-Z]?[a-z]+|[^\W\d_]+|[^\w\s.,:;=|/'\"()\[\]-]", text)
    return [str(int(token)) if token.isdecimal() else token.casefold() for token in tokens]


def _labels(name: str, entries: np.ndarray) -> list[str]:
    """Return labels as texts to match with class names; Unreadable if missing or fractional."""
    if entries.dtype.kind == "f":
        if bad := int(np.sum(~np.isfinite(entries))):
            raise Unreadable(f"the column '{name}' holds {bad} values that are not finite")
        if np.any(entries != np.round(entries)):
            raise Unreadable(
                f"'{name}' holds fractions; labels are whole numbers or names (draws: see --help)"
            )
        return [str(int(entry)) for entry in entries]
    if missing := int(np.sum(entries == "")):
        raise Unreadable(f"the column '{name}' lacks {missing} entries")
    words = {entry: " ".join(_tokens(entry)) or entry for entry in sorted(set(entries.tolist()))}
    if len(set(words.values())) < len({entry.casefold() for entry in words}):
        raise Unreadable(
            f"'{name}' has labels that differ in signs or spaces alone ({_listed([*words])}): "
            f"rename them"
        )
    return [words[entry] for entry in entries.tolist()]


def _chosen(
    columns: list[Column], chosen: Sequence[str]
) -> tuple[Column, list[Column], list[Column], list[str]]:
    """Return (label column, probability columns, [], their classes), as the caller chose them. The
    third entry, for columns of predicted classes, is always empty."""
    by_class = {}
    for text in chosen:
        key, equals, name = text.partition("=")
        named = [column for column in columns if column[0] == name.strip()]
        if not equals or len(named) != 1:
            raise Unreadable(
                f"--columns {text}: wanted CLASS=NAME for one of the columns {_listed(columns)}"
            )
        key = key if key in TRUTH else " ".join(_tokens(key))
        if key in by_class:
            raise Unreadable(f"--columns {text}: '{key}' has the column '{by_class[key][0]}' too")
        by_class[key] = named[0]
    if "label" not in by_class or len(by_class) < 2:
        raise Unreadable("--columns: wanted label=NAME and at least one CLASS=NAME")
    label = by_class.pop("label")
    _must_be_numbers(list(by_class.values()))
    return label, list(by_class.values()), [], list(by_class)


def _roles(
    columns: list[Column],
) -> tuple[Column, list[Column], list[Column], list[str]]:
    """Return (label column, probability columns, columns of predicted classes, []), as determined
    by names and entries. The last entry is empty, because the caller chose no classes."""
    labels = [column for column in columns if is_label(column[0])]
    rest = [column for column in columns if all(column is not label for label in labels)]
    rest = [column for column in rest if not _identifies(*column)]
    if len(labels) != 1 or not rest:
        raise Unreadable(
            "wanted one column 'label' and a column of probabilities for each class; the columns "
            f"are {_listed(columns)}; {REMEDY}"
        )
    guesses = [
        column
        for column in rest
        if " ".join(_tokens(column[0])) in PREDICTED
        and (column[1].dtype.kind != "f" or np.all(column[1] == np.round(column[1])))
    ]
    if len(guesses) < len(rest):
        rest = [column for column in rest if all(column is not guess for guess in guesses)]
    _must_be_numbers(rest)
    return labels[0], rest, guesses, []


def _identifies(name: str, entries: np.ndarray) -> bool:
    """Return whether a column holds row numbers or identifiers; Unreadable if these repeat."""
    words = _tokens(name)
    named = not words or not IDENTIFIES.isdisjoint(words)
    distinct = len(np.unique(entries)) == len(entries)
    if entries.dtype.kind != "f":
        numbers = any(re.fullmatch(r"[-+]?[\d.]+(e[-+]?\d+)?", entry, re.I) for entry in entries)
        no_fractions = named or not numbers
    else:
        no_fractions = bool(np.all(entries == np.round(entries)))
        steps = np.arange(len(entries)) + entries[0]
        named = named or bool(entries[0] in (0, 1) and np.array_equal(entries, steps))
    if named and no_fractions and not distinct:
        raise Unreadable(
            f"'{name}' repeats its entries, so rows may be dependent, which the test does not "
            f"allow; if they are independent, {REMEDY}"
        )
    return no_fractions and distinct and (named or entries.dtype.kind != "f")


def _must_be_numbers(columns: list[Column]) -> None:
    for name, entries in columns:
        if entries.dtype.kind != "f":
            raise Unreadable(f"the column '{name}' holds entries that are no numbers; {REMEDY}")
        if bad := int(np.sum(~np.isfinite(entries))):
            raise Unreadable(f"the column '{name}' holds {bad} values that are not finite")


def _one_column(
    names: list[str], seen: list[str], chosen: list[str]
) -> tuple[list[int], dict[str, int]]:
    """Return ([0], {label: 1 or 0}) for a single column. The label whose probability the column
    holds gets 1; Unreadable if this label is unclear. The arguments are as in `_classes`."""
    words, truths = _tokens(names[0]), {TRUTH.get(label) for label in seen}
    if chosen:
        stated = [label for label in seen if label == chosen[0]]
    else:
        stated = [label for label in seen if not label.isdecimal() and _is_of(words, label.split())]
    if not stated and None not in truths and len(truths) == len(seen):
        one = TRUTH.get(chosen[0]) if chosen else "1"
        unclear = not OTHERS.isdisjoint(words) or (words[-1:] or ["1"])[0].isdecimal()
        if one and (chosen or not unclear or words[-1:] == ["1"]):
            stated = [label for label in seen if TRUTH[label] == one]
            return [0], {label: int(label in stated) for label in seen}
    if len(stated) != 1 or len(seen) > 2:
        raise Unreadable(
            f"it is not clear which of the labels {_listed(seen)} has its probability in "
            f"'{names[0]}'; {REMEDY}"
        )
    return [0], {label: int(label in stated) for label in seen}


def _is_of(words: list[str], label: list[str]) -> bool:
    """Return whether a name begins or ends in the words of a label, and does not negate it."""
    k = len(label)
    return (words[-k:] == label and NEGATIONS.isdisjoint(words[:-k])) or (
        words[:k] == label and NEGATIONS.isdisjoint([*words[k:], *label])  # "no show"
    )


def _classes(
    names: list[str], seen: list[str], chosen: list[str]
) -> tuple[list[int], dict[str, int]]:
    """Return column indices in the order of classes, and a dict from labels to class numbers.
    ``names``: names of the columns; ``seen``: labels that occur; ``chosen``: class of each column
    if the caller named them, or []: the names then determine classes."""
    readings = [chosen] if chosen else _readings(names)
    all_numbers = all(re.fullmatch(r"\d+", label) for label in seen)
    for keys in readings:
        if len(set(keys)) == len(keys) and set(seen) <= set(keys):
            return _ordered(keys, {label: label for label in seen})
    for keys in readings:
        truths = [TRUTH.get(key, key) for key in keys]
        if sorted(truths) == ["0", "1"] and set(seen) <= set(TRUTH):
            return _ordered(truths, {label: TRUTH[label] for label in seen})
    for keys in readings:
        if chosen or not all_numbers or not all(key.isdecimal() for key in keys):
            continue
        places, labels = sorted(int(key) for key in keys), [int(label) for label in seen]
        first = int(min(labels) >= 1 and max(labels) == len(keys))  # classes 0.. or 1..
        if places[0] > 1 or np.any(np.diff(places) != 1):
            continue
        if max(labels) - first >= len(keys):
            raise Unreadable(
                f"targets: the label {max(labels)} has no column; there are {_listed(names)}; "
                f"{REMEDY}"
            )
        return _ordered(keys, {label: str(int(label) - first + places[0]) for label in seen})
    raise Unreadable(
        f"it is not clear which column, of {_listed(names)}, belongs to each of the labels "
        f"{_listed(seen)}; {REMEDY}"
    )


def _readings(names: list[str]) -> list[list[str]]:
    """Return possible lists of classes: the column names, in full or without their common words at
    the start, at the end, or both. If no name has a digit, 0, 1, .. is possible in two cases: all
    names are equal; or there are three or more names, in alphabetical order."""
    words = [_tokens(name) for name in names]
    head, tail = _alike(words), _alike([each[::-1] for each in words])
    cut = [
        [" ".join(each[start : len(each) - end]) for each in words]
        for start, end in ((0, 0), (head, 0), (0, tail), (head, tail))
    ]
    first, texts = names[0], [" ".join(each) for each in words]
    repeats = all(name in (first, f"{first}.{k}") for k, name in enumerate(names))
    # (pandas adds .1, .2, .. to a repeated name)
    # encoders number classes alphabetically; of two classes, the second may also be label 0
    alphabet = len(names) > 2 and texts == sorted(set(texts))
    if not re.search(r"\d", first if repeats else "".join(names)) and (repeats or alphabet):
        cut.append([str(k) for k in range(len(names))])
    return [keys for keys in cut if all(keys)]


def _alike(lists: list[list[str]]) -> int:
    """Return the length of the longest common beginning of all lists."""
    entries = zip(*lists, strict=False)
    return next((k for k, each in enumerate(entries) if len(set(each)) > 1), min(map(len, lists)))


def _ordered(keys: list[str], key_of: dict[str, str]) -> tuple[list[int], dict[str, int]]:
    order = list(range(len(keys)))
    if all(key.isdecimal() for key in keys):
        order.sort(key=lambda k: int(keys[k]))
    places = [keys[k] for k in order]
    return order, {label: places.index(key) for label, key in key_of.items()}


def _probabilities(columns: list[Column]) -> tuple[np.ndarray, list[str]]:
    """Return values [n, m], with rows that sum to 1 if m > 1, and [] or [note on rescaled rows]."""
    values = np.stack([entries for _, entries in columns], axis=1)
    m = values.shape[1]
    if np.any((values < 0) | (values > 1 + 1e-6)):
        row, k = np.argwhere((values < 0) | (values > 1 + 1e-6))[0]
        raise Unreadable(
            f"predictions: row {row} of '{columns[k][0]}' is {values[row, k]:g}, which is not a "
            f"probability; {REMEDY}"
        )
    if m == 1:
        return values, []
    sums = np.sum(values, axis=1)
    off = np.abs(sums - 1)
    digits = [d for d in range(1, MOST_DIGITS) if np.array_equal(np.round(values, d), values)]
    rounding = m * 0.5000001 * 10.0 ** -digits[0] if digits else 0.0
    exact = max(1e-6, 100 * m * float(np.finfo(values.dtype).eps))
    far = off > max(rounding, exact)
    if np.any(far):
        row = int(np.argmax(far))
        raise Unreadable(
            f"row {row} does not sum to 1 but to {sums[row]:.7g} ({int(np.sum(far))} of {len(far)} "
            f"rows have wrong sums): the columns {_listed(columns)} are not the probabilities of "
            f"all classes by one model; {REMEDY}"
        )
    if np.max(off) <= 1e-6:
        return values, []
    said = (
        f"probabilities of {digits[0] if digits else MOST_DIGITS} digits do not quite sum to 1; "
        "each row is divided by its sum"
    )
    return values / sums[:, None], [said]


def _listed(items: Sequence[Any]) -> str:
    texts = [f"'{item if isinstance(item, str) else item[0]}'" for item in items]
    return ", ".join(texts if len(texts) <= 12 else [*texts[:6], "..", texts[-1]])
