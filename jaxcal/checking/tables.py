"""Class probabilities and labels of a table, told by the names of its columns.

A column holds the labels, the probability of a class that its name states, or identifiers of the
rows. A table with any other column is refused; the caller can then name the columns to read.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np


def _words(text: str) -> frozenset[str]:
    return frozenset(text.replace("_", " ").split("|"))


LABELS = _words("label|labels|target|targets|y|y_true|true_label|true_class|class|truth|outcome")
PROBABILITY = _words("p|prob|probs|proba|probability|probabilities|of|class|label")  # and the class
IDENTIFIES = _words("id|ids|index|row|unnamed")
TRUTH = {"true": "1", "false": "0", "yes": "1", "no": "0"}
REMEDY = (
    "name the columns to read: --columns label=NAME CLASS=NAME .., one for each class (or for one "
    "of two)"
)
MOST_DIGITS = 7

Column = tuple[str, Any]  # name, and entries: floats or texts


class Unreadable(ValueError):
    """One sentence about a table that cannot be used."""


class Table(NamedTuple):
    """Class probabilities ``probabilities`` [n, m], or those of label 1 [n] where one column holds
    them; integer ``labels`` [n]; ``notes``, sentences on which column was read as what."""

    probabilities: np.ndarray
    labels: np.ndarray
    notes: tuple[str, ...]


def classes_of(columns: Sequence[Column], chosen: Sequence[str] = ()) -> Table:
    """Class probabilities and labels of a table.

    Args:
        columns: Name and n entries of each column: texts, numbers, booleans, lists of m numbers
            (classes 0..m-1), or dicts from classes to numbers. Names may repeat.
        chosen: Texts "label=NAME" and "CLASS=NAME" for the columns to read; all others are left
            out. Empty: names tell.

    Returns:
        `Table`.

    Raises:
        Unreadable: A column is none that is known, or its class is not clear; with the remedy.
    """
    columns = _flat(columns)
    label, rest, keys = _chosen(columns, chosen) if chosen else _roles(columns)
    observed = _labels(*label)
    seen = sorted(set(observed))
    if keys == ["0"] and not chosen:
        raise Unreadable(f"'{rest[0][0]}' is of class 0 and there is no other column; {REMEDY}")
    place = _place_of_one(keys[0], seen) if len(rest) == 1 else _places(keys, seen)
    if len(rest) > 1 and all(key.isdecimal() for key in keys):
        order = sorted(range(len(keys)), key=lambda k: int(keys[k]))
        rest, place = [rest[k] for k in order], {key: order.index(place[key]) for key in place}
    values, notes = _probabilities(rest)
    names = [name for name, _ in rest]
    if values.shape[1] == 1 and not chosen and np.all((values == 0) | (values == 1)):
        raise Unreadable(
            f"'{names[0]}' holds only 0 and 1, which are classes, not probabilities; {REMEDY}"
        )
    of = {k: key for key, k in place.items()}  # a class's label in the table
    shift = int(len(rest) == 1)
    said = [f"P({of.get(k + shift, '1')}) from '{name}'" for k, name in enumerate(names)]
    if len(said) > 12:
        said = [*said[:4], "..", said[-1]]
    left_out = [f"'{name}'" for name, _ in columns if name not in (label[0], *names)]
    note = f"labels from '{label[0]}', {', '.join(said)}"
    note += f"; not used: {', '.join(left_out)}" if left_out else ""
    labels = np.asarray([place[key] for key in observed])
    return Table(values[:, 0] if shift else values, labels, (note, *notes))


def is_label(name: str) -> bool:
    """Whether a column of this name holds labels."""
    return " ".join(_tokens(name)) in LABELS


def _flat(columns: Sequence[Column]) -> list[Column]:
    """Columns of texts or floats: lists are spread over columns, and a column that is there twice,
    or without name and entries, is left out."""
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
    """Floats where all are numbers or booleans, else texts; what is missing is NaN or ""."""
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
    """Words, numbers and signs of a name, in small letters."""
    tokens = re.findall(r"\d+|[A-Z]?[a-z]+|[^\W\d_]+|[^\w\s.,:;=|/'\"()\[\]-]", text)
    return [str(int(token)) if token.isdecimal() else token.casefold() for token in tokens]


def _labels(name: str, entries: np.ndarray) -> list[str]:
    """Labels as texts by which names of classes are found."""
    if entries.dtype.kind == "f":
        if bad := int(np.sum(~np.isfinite(entries))):
            raise Unreadable(f"the column '{name}' holds {bad} values that are not finite")
        if np.any(entries != np.round(entries)):
            raise Unreadable(f"'{name}' holds fractions; labels are whole numbers or names")
        return [str(int(entry)) for entry in entries]
    if missing := int(np.sum(entries == "")):
        raise Unreadable(f"the column '{name}' lacks {missing} entries")
    return [" ".join(_tokens(entry)) or entry for entry in entries.tolist()]


def _chosen(columns: list[Column], chosen: Sequence[str]) -> tuple[Column, list[Column], list[str]]:
    """The label, the columns of probabilities, and their classes, as the caller names them."""
    by_class = {}
    for text in chosen:
        key, equals, name = text.partition("=")
        named = [column for column in columns if column[0] == name.strip()]
        if not equals or len(named) != 1:
            raise Unreadable(
                f"--columns {text}: wanted CLASS=NAME for one of the columns {_listed(columns)}"
            )
        by_class[" ".join(_tokens(key))] = named[0]
    if "label" not in by_class or len(by_class) < 2:
        raise Unreadable("--columns: wanted label=NAME and at least one CLASS=NAME")
    label = by_class.pop("label")
    _must_be_numbers(list(by_class.values()))
    return label, list(by_class.values()), list(by_class)


def _roles(columns: list[Column]) -> tuple[Column, list[Column], list[str]]:
    """The label, the columns of probabilities, and the classes that their names state."""
    labels = [column for column in columns if is_label(column[0])]
    rest = [column for column in columns if not is_label(column[0]) and not _identifies(*column)]
    if len(labels) != 1 or not rest:
        raise Unreadable(
            "wanted one column 'label' and a column of probabilities for each class; the columns "
            f"are {_listed(columns)}; {REMEDY}"
        )
    _must_be_numbers(rest)
    tokens = [[word for word in _tokens(name) if word not in PROBABILITY] for name, _ in rest]
    return labels[0], rest, [" ".join(words) for words in tokens]


def _identifies(name: str, entries: np.ndarray) -> bool:
    """Whether a column numbers or names the rows: by its name, without repeated entries, since
    observations that belong together are not independent."""
    words = _tokens(name)
    return (not words or not IDENTIFIES.isdisjoint(words)) and len(set(entries)) == len(entries)


def _must_be_numbers(columns: list[Column]) -> None:
    for name, entries in columns:
        if entries.dtype.kind != "f":
            raise Unreadable(f"the column '{name}' holds entries that are no numbers; {REMEDY}")
        if bad := int(np.sum(~np.isfinite(entries))):
            raise Unreadable(f"the column '{name}' holds {bad} values that are not finite")


def _place_of_one(key: str, seen: list[str]) -> dict[str, int]:
    """The label whose probability the only column holds has place 1; a name without a class is of
    label 1, or of True or yes."""
    truths = {label: TRUTH.get(label, label) for label in seen}
    named = [label for label in seen if label == key]
    if not named and key in ("", "1") and set(truths.values()) <= {"0", "1"}:
        return {label: int(truth) for label, truth in truths.items()}
    if len(named) != 1 or len(seen) > 2:
        raise Unreadable(
            f"it is not clear of which label, {_listed(seen)}, the only column is the probability; "
            f"{REMEDY}"
        )
    return {label: int(label == key) for label in seen}


def _places(keys: list[str], seen: list[str]) -> dict[str, int]:
    """The column of each label."""
    for names in (keys, [TRUTH.get(key, key) for key in keys]):
        of = {label: label if names is keys else TRUTH.get(label, label) for label in seen}
        if len(set(names)) == len(names) and set(of.values()) <= set(names):
            return {label: names.index(key) for label, key in of.items()}
    raise Unreadable(
        f"it is not clear which of the columns, of classes {_listed(keys)}, are of which of the "
        f"labels {_listed(seen)}; {REMEDY}"
    )


def _probabilities(columns: list[Column]) -> tuple[np.ndarray, list[str]]:
    """Values [n, m] whose rows sum to 1; rounded ones are divided by their sums."""
    values = np.stack([entries for _, entries in columns], axis=1)
    m = values.shape[1]
    if np.any((values < 0) | (values > 1 + 1e-6)):
        row, k = np.argwhere((values < 0) | (values > 1 + 1e-6))[0]
        raise Unreadable(
            f"predictions: row {row} of '{columns[k][0]}' is {values[row, k]:g}, no probability; "
            f"{REMEDY}"
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
            f"row {row} does not sum to 1 but to {sums[row]:.7g} over the columns "
            f"{_listed(columns)}, nor do {int(np.sum(far)) - 1} more: they are not the "
            f"probabilities of all classes by one model; {REMEDY}"
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
