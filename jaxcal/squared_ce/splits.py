"""Choose training, validation and test rows from shares, numbers of folds, or splitters.

A random split depends on the key and on the values of the rows, not on their order, so a
permutation of the data changes no estimate.
"""

from collections.abc import Iterable
from typing import Any

import jax
import numpy as np

from jaxcal.read import convert
from jaxcal.typing import Folds, Key

Split = tuple[np.ndarray, np.ndarray]
VALIDATION_SHARE = 0.2  # share of the tuning rows that validate, if there is one fold


def shuffled(key: Key, *values: Any) -> np.ndarray:
    """Return the n row indices in a random order. Rows are first sorted lexicographically by all
    ``values`` [n, ..], so that permuted data give the same rows in the same random order."""
    columns = np.concatenate([np.reshape(value, (len(value), -1)) for value in values], axis=1)
    return np.lexsort(columns.T[::-1])[np.asarray(jax.random.permutation(key, len(columns)))]


def hold_out(key: Key, test: Any, *values: Any) -> Split:
    """Return the indices of rows for tuning, in random order, and of rows for the final estimate.

    ``test``: share of the rows for the final estimate, or these rows (indices, or a mask [n]).
    ``values``: arrays with n rows, by which rows are sorted in `shuffled`.
    """
    n = len(values[0])
    if isinstance(test, float):
        if not 0 < test < 1:
            raise ValueError(f"test: wanted a share between 0 and 1, or rows, got {test}")
        order, kept = shuffled(key, *values), int((1 - test) * n + 1e-9)
        return _at_least_two(order[:kept], order[kept:], "test")
    tested = _rows(test, n, "test")
    others = np.setdiff1d(np.arange(n), tested)
    order = shuffled(key, *(np.asarray(value)[others] for value in values))
    return _at_least_two(others[order], tested, "test")


def is_number(splitter: Folds) -> bool:
    """Return whether folds are given by their number, not by a splitter or pairs of rows."""
    return isinstance(splitter, int) or getattr(splitter, "ndim", None) == 0


def folds(splitter: Folds, inputs: np.ndarray, labels: np.ndarray) -> list[Split]:
    """Return (training rows, validation rows) of each fold.

    ``splitter``: a number of folds, contiguous in the order of the rows (1 for a single training
    and validation set); an object with ``split(X, y)`` as in scikit-learn; or the pairs themselves.
    """
    n = len(inputs)
    if isinstance(splitter, bool):
        raise TypeError("folds: wanted a number or a splitter, got a bool")
    if is_number(splitter):
        return _contiguous(convert.integer(splitter, "folds"), n)
    if isinstance(splitter, str) or not (
        hasattr(splitter, "split") or isinstance(splitter, Iterable)
    ):
        raise TypeError(
            f"folds: wanted a number, an object with split(X, y), or pairs of rows, got "
            f"{type(splitter).__name__}"
        )
    splits: Any = splitter
    pairs = splits.split(inputs, labels) if hasattr(splits, "split") else splits
    checked_pairs = []
    if isinstance(splitter, type) or not isinstance(pairs, Iterable):
        raise TypeError(f"folds: wanted pairs of rows, got {convert.say(splitter)}")
    for number, pair in enumerate(pairs):
        name = f"folds: number {number}"
        if not isinstance(pair, (tuple, list)) or len(pair) != 2:
            raise ValueError(f"{name}: wanted (training rows, validation rows)")
        train, valid = (_rows(part, n, name) for part in pair)
        if np.intersect1d(train, valid).size:
            raise ValueError(
                f"{name}: {np.intersect1d(train, valid).size} rows are both for training and for "
                f"validation, so its risk would be too low"
            )
        checked_pairs.append(_at_least_two(train, valid, name))
    if not checked_pairs:
        raise ValueError("folds: the splitter gave none")
    return checked_pairs


def _contiguous(k: int, n: int) -> list[Split]:
    everything = np.arange(n)
    if k == 1:
        kept = int((1 - VALIDATION_SHARE) * n + 1e-9)
        return [_at_least_two(everything[:kept], everything[kept:], "folds: number 0")]
    if n < 2 * k:
        raise ValueError(
            f"folds: {k} folds of at least 2 validation rows need {2 * k} rows for tuning, got {n}"
        )
    parts = np.array_split(everything, k)
    return [(np.setdiff1d(everything, part), part) for part in parts]


def _rows(value: object, n: int, name: str) -> np.ndarray:
    rows = np.asarray(convert.array(value, name))
    if rows.dtype == bool and rows.shape == (n,):
        return np.flatnonzero(rows)
    if rows.ndim != 1 or not np.issubdtype(rows.dtype, np.integer):
        raise ValueError(
            f"{name}: wanted row numbers, or a mask of length {n}, got {rows.dtype} of shape "
            f"{rows.shape}"
        )
    if rows.size and (rows.min() < 0 or rows.max() >= n):
        raise ValueError(f"{name}: rows go from 0 to {n - 1}, got {rows.min()} to {rows.max()}")
    if np.unique(rows).size != rows.size:
        raise ValueError(f"{name}: a row is listed more than once")
    return rows


def _at_least_two(first: np.ndarray, second: np.ndarray, name: str) -> Split:
    if len(first) < 2 or len(second) < 2:
        raise ValueError(
            f"{name}: both parts need at least 2 rows, got {len(first)} and {len(second)}"
        )
    return first, second
