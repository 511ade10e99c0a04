"""Means over groups of observations, and bins of an input that hold equally many."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int


class Parts(NamedTuple):
    """Values over k groups of observations: mean, its standard error, number; each [k]."""

    mean: Float[np.ndarray, " k"]
    error: Float[np.ndarray, " k"]
    number: Int[np.ndarray, " k"]


def mean_parts(parts: Float[np.ndarray, " n"], group: Int[np.ndarray, " n"], k: int) -> Parts:
    """Mean and its standard error in each of k groups; NaN where a group has none, or just one."""
    number = np.bincount(group, minlength=k)
    with np.errstate(invalid="ignore", divide="ignore"):
        mean = np.bincount(group, parts, minlength=k) / number
        squares = np.bincount(group, (parts - mean[group]) ** 2, minlength=k)
        error = np.sqrt(squares / (number - 1.0) / number)
    return Parts(mean, np.where(number > 1, error, np.nan), number)


def quantile_bins(where: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The bin of every value, the median of each bin, and how far it reaches below and above."""
    starts = np.unique(np.sort(where)[np.arange(bins) * where.size // bins])
    group = np.searchsorted(starts, where, side="right") - 1
    members = [where[group == k] for k in range(len(starts))]
    at = np.asarray([np.median(values) for values in members])
    ends = np.asarray([[values.min(), values.max()] for values in members]).T
    return group, at, np.abs(ends - at)
