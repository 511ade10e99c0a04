"""Convert columns of a table to the arrays of a test, and find the rows that cannot be used."""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxcal.read import Scores, Unnormalized
from jaxcal.streaming.arrays_file import BadFile

TARGETS, PROBABILITIES = "targets", "probabilities"
FORMS = (  # the arrays of each test, besides targets
    {PROBABILITIES},
    {"scores", "node_scores"},
    {"scores", "features"},
    {"mean", "deviation"},
)
ARRAYS = (TARGETS, *dict.fromkeys(name for form in FORMS for name in sorted(form)))
TARGET_NAMES = (TARGETS, "target", "label", "labels", "y")
YES, NO = ("1", "true", "yes"), ("0", "false", "no")
MISSING = ("", "na", "nan", "none", "null")  # labels that programs write where there is none
Arrays = dict[str, np.ndarray]


class Columns(NamedTuple):
    """Names of the columns of a table that are read.

    Attributes:
        arrays: Dict from the name of an array of the test to the name of its column.
        classes: Dict from the label of a class to the name of the column of its probability. If it
            has one entry, the column holds the probability of one of two labels.
    """

    arrays: dict[str, str]
    classes: dict[str, str]

    @property
    def names(self) -> list[str]:
        """Names of all columns that are read."""
        return list(dict.fromkeys([*self.arrays.values(), *self.classes.values()]))

    @property
    def chosen(self) -> list[str]:
        """Texts "KEY=NAME" of all columns that are read, as for `columns_of`."""
        return [f"{key}={name}" for part in self for key, name in part.items()]


def columns_of(names: Sequence[str], chosen: Sequence[str] = ()) -> Columns:
    """Find the columns that hold targets and predictions.

    Args:
        names: Names of all columns.
        chosen: Texts "KEY=NAME" for the columns to read. A key is "label" or "target", the name of
            an array ("probabilities", "mean", "deviation", "scores", ..), or the label of a class.
            By default columns named like keys are read; for classes p0, p1, .., or p for label 1.

    Returns:
        `Columns`.

    Raises:
        BadFile: Targets or predictions are missing or ambiguous.
    """
    arrays, classes = {}, {}
    for text in chosen or _by_name(names):
        key, equals, name = text.partition("=")
        if not equals or name not in names:
            raise BadFile(
                f"--columns {text}: wanted KEY=NAME for one of the columns {', '.join(names)}"
            )
        key = TARGETS if key in TARGET_NAMES else key.removesuffix(".0")  # as `_labels`
        kind = arrays if key in ARRAYS else classes
        if kind.setdefault(key, name) != name:
            raise BadFile(
                f"columns {kind[key]} and {name} both hold '{key}': choose by --columns KEY=NAME"
            )
    form = set(arrays) - {TARGETS} | ({PROBABILITIES} if classes else set())
    if TARGETS not in arrays or form not in FORMS or classes.keys() & arrays.keys():
        raise BadFile(
            f"wanted a column of targets ('{TARGETS}' or 'label') and one of: '{PROBABILITIES}' "
            f"(lists), a column for each class (p0, p1, ..) or one for yes and no (p), 'mean' and "
            f"'deviation', 'scores' and 'features'; the columns are {', '.join(names)}: name them "
            f"by --columns label=NAME 0=NAME 1=NAME, or target=NAME mean=NAME deviation=NAME"
        )
    return Columns(arrays, classes)


def _by_name(names: Sequence[str]) -> list[str]:
    chosen = [f"{TARGETS}={name}" for name in TARGET_NAMES if name in names]
    predictions = [f"{name}={name}" for name in ARRAYS[1:] if name in names]
    if not predictions:
        numbered = [re.fullmatch(r"p_?(\d+)", name) for name in names]
        wide = sorted((int(match[1]), match[0]) for match in numbered if match)
        predictions = [f"{k}={name}" for k, name in wide] or [
            f"1={name}" for name in names if name == "p"
        ]
    return chosen + predictions


def arrays_of(
    table: Any, columns: Columns, widths: dict[str, int], seen: set[str]
) -> tuple[Arrays, np.ndarray]:
    """Return the arrays of an Arrow table of n rows, and a mask of the rows that could be read.

    Args:
        table: The Arrow table.
        columns: Columns to read.
        widths: Dict from the name of an array to the length of its lists. Missing names are added.
        seen: Set of labels that occurred. For a single class, its label and some others are added.

    Returns:
        Arrays of n rows by name, and a mask [n]. Unreadable numbers are NaN, labels -1."""
    arrays, good = {}, np.ones(len(table), bool)
    for name, column in columns.arrays.items():
        if name == TARGETS and (columns.classes or PROBABILITIES in columns.arrays):
            continue
        arrays[name], read = _numbers(name, table.column(column), widths)
        good &= read
    if columns.classes:
        parts = [_numbers(name, table.column(name), widths) for name in columns.classes.values()]
        values = np.stack([part for part, _ in parts], axis=1)
        good &= np.all([read for _, read in parts], axis=0)
        one = len(parts) == 1
        arrays[PROBABILITIES] = np.concatenate([1 - values, values], axis=1) if one else values
    if PROBABILITIES in arrays:
        labels = tuple(columns.classes) or tuple(map(str, range(arrays[PROBABILITIES].shape[1])))
        arrays[TARGETS] = _labels(table.column(columns.arrays[TARGETS]), labels, seen)
    return arrays, good


def _arrow() -> tuple[Any, Any]:
    import pyarrow as pa  # pyright: ignore[reportMissingImports]
    import pyarrow.compute as pc  # pyright: ignore[reportMissingImports]

    return pa, pc


def _labels(column: Any, classes: Sequence[str], seen: set[str]) -> np.ndarray:
    """Return the index of each label in ``classes``, or -1. For a single class: 1 for this class, 0
    for other labels, -1 for null and texts of `MISSING`. If the class is in `YES` or `NO`: 1 for
    labels in the same list, 0 for labels in the other list, -1 for labels in neither; so, too, for
    the last of the classes "0" and "1"."""
    pa, pc = _arrow()
    texts = pc.replace_substring_regex(pc.cast(column, pa.string()), r"\.0$", "")

    def places(values: Sequence[str], column: Any = texts) -> np.ndarray:
        return pc.fill_null(pc.index_in(column, value_set=pa.array(values)), -1).to_numpy()

    if len(classes) > 1 and set(classes) != {"0", "1"}:
        return places(classes)
    one = classes[-1]
    if one.lower() not in YES + NO:
        none = [text for text in MISSING if text != one.lower()]
        absent = pc.is_null(texts).to_numpy(zero_copy_only=False)
        absent = absent | (places(none, pc.utf8_lower(texts)) >= 0)
        label = np.where(absent, -1, places(classes) + 1)
        others = pc.unique(texts.filter(pa.array(label == 0))).to_pylist()
        seen.update([one] * bool(np.any(label == 1)), others[:3] if len(seen) < 4 else [])
        return label
    small = pc.utf8_lower(texts)
    yes, no = places(YES, small) >= 0, places(NO, small) >= 0
    label = yes if one.lower() in YES else no
    return np.where(yes | no, label, -1).astype(int)


def _numbers(name: str, column: Any, widths: dict[str, int]) -> tuple[np.ndarray, np.ndarray]:
    """Return numbers [n], or [n, k] for lists of k = ``widths[name]``, and a mask of valid rows."""
    pa, pc = _arrow()
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    kind = column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        lengths = pc.fill_null(pc.list_value_length(column), -1).to_numpy(zero_copy_only=False)
        if name not in widths:
            if not np.any(lengths >= 0):
                raise BadFile(f"'{name}' is null in the first {len(lengths)} rows; wanted lists")
            widths[name] = int(lengths[np.argmax(lengths >= 0)])
        width = widths[name]
        good = lengths == width
        flat, read = _numbers(f"{name} ..", column.filter(pa.array(good)).flatten(), widths)
        values = np.full((len(good), width, *flat.shape[1:]), np.nan, flat.dtype)
        values[good] = flat.reshape(-1, width, *flat.shape[1:])
        good[good] = read.reshape(-1, width).all(1)
        return values, good
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_string(kind)):
        raise BadFile(f"'{name}' is {kind}; wanted numbers, or lists of numbers")
    try:
        values = column if pa.types.is_floating(kind) else pc.cast(column, pa.float64(), safe=False)
    except pa.ArrowInvalid:  # a text that is no number
        values = pa.array([_number(text) for text in column.to_pylist()], pa.float64())
    return values.to_numpy(zero_copy_only=False), pc.is_valid(values).to_numpy(zero_copy_only=False)


def _number(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def faults(arrays: Arrays, read: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """Return a description of each possible fault, and a mask [n] of the rows that have it."""
    if PROBABILITIES in arrays:
        p, label = arrays[PROBABILITIES], arrays[TARGETS]
        return [
            ("holds no numbers, or lists of another length", ~read),
            ("has a label that is none of the classes", (label < 0) | (label >= p.shape[1])),
            (
                "holds no probabilities: wanted numbers from 0 that sum to 1",
                ~(np.all(p >= 0, axis=1) & (np.abs(np.sum(p, axis=1) - 1) < 1e-3)),
            ),
        ]
    finite = [np.isfinite(array.reshape(len(array), -1)).all(1) for array in arrays.values()]
    return [
        ("holds no numbers, or lists of another length", ~read),
        ("holds a value that is missing, NaN or infinite", ~np.all(finite, axis=0)),
        (
            "has a deviation that is not positive",
            ~np.all(arrays.get("deviation", finite[0]).reshape(len(read), -1) > 0, axis=1),
        ),
    ]


def checked(arrays: Arrays) -> Arrays:
    """Return ``arrays`` unchanged; BadFile if names, lengths, dtypes or shapes fit no test."""
    if TARGETS not in arrays or set(arrays) - {TARGETS} not in FORMS:
        forms = "; ".join(", ".join(f"'{name}'" for name in sorted(form)) for form in FORMS)
        raise BadFile(
            f"wanted '{TARGETS}' with one of: {forms}; got {', '.join(sorted(arrays)) or 'none'}"
        )
    if len({len(array) if array.ndim else -1 for array in arrays.values()}) != 1:
        shapes = ", ".join(f"'{name}' {array.shape}" for name, array in arrays.items())
        raise BadFile(f"arrays of different lengths: {shapes}")
    for name, array in arrays.items():
        wanted = "iu" if name == TARGETS and PROBABILITIES in arrays else "f"
        if array.dtype.kind not in wanted:
            words = "whole numbers" if wanted == "iu" else "float32 or float64"
            raise BadFile(f"'{name}' is {array.dtype}; wanted {words}")
    if PROBABILITIES in arrays and arrays[PROBABILITIES].ndim != 2:
        raise BadFile(f"'{PROBABILITIES}' has shape {arrays[PROBABILITIES].shape}; wanted [n, m]")
    return arrays


def log_normal(parameters: tuple[Array, Array], y: Array) -> Array:
    """Return the log density at y, up to a constant, of normals with these means and deviations."""
    mean, deviation = parameters
    return -jnp.sum(((y - mean) / deviation) ** 2 / 2 + jnp.log(deviation))


def batch_of(arrays: Arrays) -> tuple[Any, ...]:
    """Return predictions, targets and, if present, "features", for `StreamedTest.update`."""
    targets = arrays[TARGETS]
    if PROBABILITIES in arrays:
        return arrays[PROBABILITIES], targets
    if "mean" in arrays:
        return Unnormalized(log_normal, (arrays["mean"], arrays["deviation"])), targets
    scores = Scores(arrays["scores"], arrays.get("node_scores"))
    return (scores, targets, *([arrays["features"]] if "features" in arrays else []))
