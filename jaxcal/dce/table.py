r"""Summarize any number of binary forecasts in a table: count, sum of p and sum of y per cell of p.

A table replaces predictions by the means of their cells, :math:`\bar p_k`. Sums of residuals in
each cell stay the same, since :math:`\sum (y - p) = \sum (y - \bar p)`; only positions change. In a
cell from a to b with mean m the mean of :math:`|p - m|` is at most :math:`\delta = 2 (m - a)(b - m)
/ (b - a)`, which is attained if all p are a or b. If r is the rate of label 1, the mean of
:math:`|y - p|` is at most :math:`r (1 - a) + (1 - r) b`, so that

.. math:: E|p - \bar p|\,|y - p| \le \min(\delta \max(b, 1 - a),\ (b - a)(r (1 - a) + (1 - r) b)).

The mean of :math:`\delta` over observations is ``moved``, and the mean B of the right side is
``moved_residuals``. The true and the lower distance change by at most :math:`E|p - \bar p|`. The
smooth error changes by at most B, because its functions have slope at most 1, and the squared
Laplace kernel error by at most 2 B. A residual moves to another bin of width w and random shift
with probability :math:`|p - \bar p| / w`.
"""

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Float, Int

from jaxcal.measures.classes import Reliability, of_bins
from jaxcal.read import checks, convert
from jaxcal.results import Result, rows_in_one_order
from jaxcal.typing import ArrayLike

CELLS = 8192
ROUNDING = 1e-6  # relative rounding error allowed in sums that users pass


class Table(Result):
    """Binary forecasts summed by cells of equal width, for every measure and test of `dce`.

    Tables with equal cells can be merged. Their size (197 kB by default) does not depend on the
    number of observations. Means of cells replace the predictions. The mean residual, and a binned
    ECE whose edges are edges of cells, stay the same. With R = ``moved_residuals``, other measures
    change by at most: ``moved`` for the true distance, the lower distance and their intervals; R
    for the smooth calibration error; 2 R for the squared Laplace kernel calibration error; .8 R / s
    for the smECE (ECE smoothed by a Gaussian kernel of width s); 2 R / w for the surrogate interval
    error, with w its least width (2^-8 by default). Changes are usually far smaller. All
    observations of a cell are in the same bin. The unbinned ECE is computed over cells. P-values
    are exact if all predictions in each cell are equal, and otherwise within .001.

    Attributes:
        counts: Number of observations in each cell, [k].
        predictions: Sum of the predictions in each cell, [k].
        targets: Sum of the labels in each cell, [k].

    Example:
        >>> import numpy as np, jaxcal
        >>> p = np.random.default_rng(0).random(10_000)
        >>> y = np.random.default_rng(1).random(10_000) < p
        >>> first, second = (jaxcal.dce.Table.of(p[i::2], y[i::2]) for i in (0, 1))
        >>> table = first.merge(second)
        >>> table.n
        10000
        >>> round(float(jaxcal.dce.smooth_ce(**table.means).value), 3)
        0.009
        >>> result = jaxcal.distance_from_calibration(0, **table.groups, n_draws=99)
    """

    counts: Int[np.ndarray, " k"]
    predictions: Float[np.ndarray, " k"]
    targets: Float[np.ndarray, " k"]

    _long: ClassVar[tuple[str, ...]] = ("counts", "predictions", "targets")
    _rows: ClassVar[tuple[str, ...]] = _long
    _scalar: ClassVar[str] = "n"

    @classmethod
    @rows_in_one_order
    def of(cls, predictions: ArrayLike, targets: ArrayLike, *, cells: int = CELLS) -> "Table":
        """Return the table of the given observations.

        Args:
            predictions: Probabilities of label 1, [n]; n may be 0.
            targets: Labels 0 or 1, [n]; means of labels allow measures, but not tests.
            cells: Number of cells of [0, 1].

        Returns:
            `Table`. Works outside of jit only.

        Cost: O(n).
        """
        cells = convert.integer(cells, "cells")
        v, y = (_unit(*named) for named in ((predictions, "predictions"), (targets, "targets")))
        if v.shape != y.shape:
            raise ValueError(f"targets: wanted one label per observation, {v.shape}, got {y.shape}")
        return _summed(np.ones(v.size), v, y, cells)

    @classmethod
    @rows_in_one_order
    def grouped(
        cls, counts: ArrayLike, predictions: ArrayLike, targets: ArrayLike, *, cells: int = CELLS
    ) -> "Table":
        """Return the table from sums by groups, such as those of the database query ``SELECT
        COUNT(*), SUM(p), SUM(y) .. GROUP BY FLOOR(p * 8192)``.

        Args:
            counts: Number of observations in each group, [k].
            predictions: Sum of the predictions in each group, [k].
            targets: Sum of the labels in each group, [k].
            cells: Number of cells. Prefer a power of two, for which ``p * cells`` is exact. All
                predictions of a group must be in one cell, which is not checked.

        Returns:
            `Table`.
        """
        cells = convert.integer(cells, "cells")
        count = _numbers(counts, "counts")
        if np.any((count < 0) | (count % 1 != 0)):
            raise ValueError("counts: wanted whole numbers >= 0 of observations")
        means = []
        for value, name in ((predictions, "predictions"), (targets, "targets")):
            sums = _numbers(value, name)
            if sums.shape != count.shape:
                raise ValueError(
                    f"{name}: wanted one sum per group, {count.shape}, got {sums.shape}"
                )
            wrong = (sums < 0) | (sums > count * (1 + ROUNDING))
            if np.any(wrong):
                k = int(np.argmax(wrong))
                raise ValueError(
                    f"{name}: the sum of group {k} is {sums[k]:.6g}, of {count[k]:.0f} numbers: "
                    f"wanted sums of numbers from 0 to 1"
                )
            means.append(np.minimum(sums / np.maximum(count, 1), 1))
        return _summed(count, means[0], means[1], cells)

    def merge(self, other: "Table") -> "Table":
        """Return the table of the observations of both tables. ValueError if the cells differ."""
        checks.instance(other, Table, "other")
        if self.counts.size != other.counts.size:
            raise ValueError(
                f"other: a table of {other.counts.size} cells does not add to one of "
                f"{self.counts.size}: make both with the same cells="
            )
        return Table(
            self.counts + other.counts,
            self.predictions + other.predictions,
            self.targets + other.targets,
        )

    @property
    def n(self) -> int:
        """Number of observations."""
        return int(self.counts.sum())

    @property
    def means(self) -> dict[str, np.ndarray]:
        """Return arguments for measures: mean ``predictions`` and ``targets`` of cells, and counts
        as ``weights``, [k] each. Cells without observations have the weight 0."""
        some, k = np.maximum(self.counts, 1), self.counts.size
        v = np.where(self.counts > 0, self.predictions / some, (np.arange(k) + 0.5) / k)
        return {"predictions": v, "targets": self.targets / some, "weights": 1.0 * self.counts}

    @property
    def groups(self) -> dict[str, np.ndarray]:
        """Return arguments for `jaxcal.distance_from_calibration` and other tests: mean
        ``predictions`` of cells, numbers of labels 1 as ``targets``, and ``counts``, [k] each."""
        means = self.means
        return {
            "predictions": means["predictions"],
            "targets": self.targets,
            "counts": means["weights"],
        }

    @property
    def moved(self) -> float:
        """Upper bound of the mean distance of a prediction from the mean of its cell."""
        return float(np.sum(self.counts * self._shift()) / max(self.n, 1))

    @property
    def moved_residuals(self) -> float:
        """Upper bound of the mean of \\|p - mean of its cell\\| \\|y - p\\|; at most `moved`."""
        k, some = self.counts.size, np.maximum(self.counts, 1)
        low, high = np.arange(k) / k, np.arange(1, k + 1) / k
        rate = self.targets / some
        of_residuals = (rate * (1 - low) + (1 - rate) * high) / k
        bound = np.minimum(self._shift() * np.maximum(high, 1 - low), of_residuals)
        return float(np.sum(self.counts * bound) / max(self.n, 1))

    def reliability(self, bins: int = 16) -> Reliability:
        """Return frequencies in bins of equal width, as `jaxcal.measures.reliability` does.

        Args:
            bins: Number of bins, a divisor of the number of cells, so that no edge cuts a cell.

        Returns:
            `jaxcal.measures.Reliability`.

        Raises:
            ValueError: An edge of a bin would cut a cell.
        """
        bins, k = convert.integer(bins, "bins"), self.counts.size
        if k % bins:
            raise ValueError(
                f"bins: wanted a number that divides that of the cells, {k}, got {bins}"
            )
        parts = (self.counts, self.predictions, self.targets)
        with jax.enable_x64(True):  # int32 ends at 2^31 observations
            sums = (jnp.asarray(each.reshape(bins, -1).sum(1)) for each in parts)
            return of_bins(jnp.asarray(np.arange(bins + 1) / bins), *sums)

    def _shift(self) -> Float[np.ndarray, " k"]:
        k = self.counts.size
        place = np.clip(self.means["predictions"] * k - np.arange(k), 0, 1)
        return 2 * place * (1 - place) / k

    def _lines(self) -> list[str]:
        used = int(np.sum(self.counts > 0))
        some = max(self.n, 1)
        return [
            f"table of binary forecasts, n = {self.n}, {used} of {self.counts.size} cells used",
            f"  mean prediction {self.predictions.sum() / some:.6g}, "
            f"rate of label 1 {self.targets.sum() / some:.6g}",
            f"  predictions are moved by at most {self.moved:.2g} on average",
        ]


def _numbers(value: Any, name: str) -> Float[np.ndarray, " n"]:
    """Return ``value`` as finite float64 numbers [n]; a ValueError or TypeError names it."""
    if isinstance(value, Tracer):
        raise ValueError(f"{name}: a table is made outside of jit, vmap and grad only")
    values = np.asarray(convert.array(value, name))
    if np.iscomplexobj(values):
        raise TypeError(f"{name}: wanted real numbers, got {values.dtype}")
    values = values.astype(float)
    if values.ndim != 1:
        raise ValueError(f"{name}: wanted one number each, shape [n], got shape {values.shape}")
    if not np.all(np.isfinite(values)):
        raise ValueError(
            f"{name}: wanted finite numbers; {int(np.sum(~np.isfinite(values)))} are not"
        )
    return values


def _unit(value: Any, name: str) -> Float[np.ndarray, " n"]:
    values = _numbers(value, name)
    if np.any((values < 0) | (values > 1)):
        row = int(np.argmax((values < 0) | (values > 1)))
        raise ValueError(f"{name}: wanted numbers from 0 to 1, row {row} is {values[row]:.6g}")
    return values


def _summed(counts: Any, v: np.ndarray, y: np.ndarray, cells: int) -> Table:
    """Return the table of groups with ``counts`` observations, mean predictions v, mean labels y.
    If rounding of a sum puts v just below an edge of a cell, v is counted above that edge."""
    edge = np.rint(v * cells)
    near = np.abs(v * cells - edge) <= np.minimum(np.finfo(float).eps * counts * edge, 1e-6)
    cell = np.minimum(np.where(near, edge, v * cells).astype(int), cells - 1)
    sums = (np.bincount(cell, counts * x, cells).astype(float) for x in (v, y))
    return Table(np.bincount(cell, counts, cells).astype(int), *sums)
