"""Define parts of results: estimates, means, attribution to coordinates, intervals."""

from itertools import combinations
from typing import Any, NamedTuple, TypeGuard

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxcal.typing import Scalar

CLAIMS = {1: "its claimed centre", 2: "its claimed log scale"}  # columns of a `Table`
FEW = 0.05  # share of predictions whose chains may appear not converged by chance


class Estimate(NamedTuple):
    """Estimates of a squared discrepancy; the discrepancy is the root of ``biased``.

    Attributes:
        unbiased: U-statistic, []; may be negative.
        biased: V-statistic, []; never negative, for positive definite kernels.
    """

    unbiased: Scalar
    biased: Scalar

    def __repr__(self) -> str:
        return f"Estimate(squared: unbiased {self.unbiased}, biased {self.biased})"


class Means(NamedTuple):
    """Means of q moments over the observations, each of expectation 0 under calibration.

    Attributes:
        estimate: Means, [q].
        standard_error: Standard errors, [q].
        p_value: Two-sided p-values of "the mean is 0", [q].
        p_adjusted: P-values after Holm's correction, [q].
        low: Lower limits of confidence 1 - level, without correction, [q].
        high: Upper limits of confidence 1 - level, without correction, [q].
    """

    estimate: Float[Array, " q"]
    standard_error: Float[Array, " q"]
    p_value: Float[Array, " q"]
    p_adjusted: Float[Array, " q"]
    low: Float[Array, " q"]
    high: Float[Array, " q"]


def tells(means: Means | None) -> TypeGuard[Means]:
    """Return whether all limits are finite; False for None. Only finite limits identify errors."""
    return means is not None and bool(np.all(np.isfinite([means.low, means.high])))


class Coordinates(NamedTuple):
    r"""Attribution of miscalibration to d target coordinates and their pairs.

    ``marginal_mean``, ``marginal_spread`` and ``correlation`` measure errors that predictions have
    in common: a shift that changes its sign between predictions counts as spread. Each has its own
    Holm correction. Spreads and correlations are corrected for shifts, and correlations for spreads
    (`jaxcal.moments.attribution`). They are **exact for Gaussian predictions**: normal
    distributions, or predictions whose scores are linear in the target at all nodes and targets.

    Shifts are also exact for Laplace distributions, mixtures, and products of scalar numpyro
    distributions with ``mean`` and ``variance``; spreads and correlations are NaN. For all other
    predictions limits of shifts are NaN, too, and their p-values test whether the expectation of
    ``marginal_mean`` is 0, as under calibration; **any** error may change it, in any coordinate.

    ``estimate``, ``p_value``, ``p_adjusted`` and ``contributions`` split the result's estimate into
    d parts, one per coordinate, for any predictions. A part tests its coordinate **given the
    others**. It may be large because of an error in a dependent coordinate.

    Attributes:
        estimate: Parts of the estimate, [d]; they sum to the result's estimate.
        p_value: P-value of each part, [d].
        p_adjusted: P-values after Holm's correction for d tests, [d].
        contributions: Contributions of the observations to each part, [d, n].
        marginal_mean: Shift of each coordinate q: (claimed - actual mean) / claimed deviation,
            positive if predictions are too high. If means are not known, it is the mean of
            :math:`(\Sigma s)_q / \sqrt{\Sigma_{qq}}`, with s the score of a prediction at its
            target and :math:`\Sigma` the claimed covariance. For predictions that are not Gaussian
            other coordinates affect it. None if :math:`\Sigma` cannot be computed.
        marginal_spread: Logarithm of claimed over actual standard deviation of each coordinate,
            negative if predictions are too narrow. NaN unless they are Gaussian.
        correlation: Claimed minus actual correlation of each pair (0, 1), (0, 2), .., (1, 2), ..;
            None in one dimension. NaN unless predictions are Gaussian.
    """

    estimate: Float[Array, " d"]
    p_value: Float[Array, " d"]
    p_adjusted: Float[Array, " d"]
    contributions: Float[Array, "d n"]
    marginal_mean: Means | None = None
    marginal_spread: Means | None = None
    correlation: Means | None = None

    def pairs(self) -> list[tuple[int, int]]:
        """Return the two coordinates of each entry of ``correlation``."""
        i, j = np.triu_indices(self.estimate.shape[-1], 1)
        return list(zip(i.tolist(), j.tolist(), strict=True))


class Parts(eqx.Module):
    """Evidence for each named alternative of a test; p-values use the random signs of the test.

    Attributes:
        names: Names of the c alternatives.
        statistics: Log of (prior weight times evidence) of each alternative, [c].
        p_values: P-value of each alternative alone, [c].
        winner: Index of the largest statistic, [].
    """

    names: tuple[str, ...] = eqx.field(static=True)
    statistics: Float[Array, " c"]
    p_values: Float[Array, " c"]
    winner: Int[Array, ""]


class Table(eqx.Module):
    """Shift and spread of each coordinate, along each feature; correlations and tails.

    Shifts are predicted (claimed) minus actual means, in claimed deviations, positive if too high.
    Spreads are logarithms of claimed over actual deviations, negative if too narrow. The first
    column holds average effects over all predictions. The others hold slopes per standard deviation
    of a feature: of the claimed centre of the coordinate, of the logarithm of its claimed scale, or
    of an input. For predictions that are not Gaussian, effects are in normal scores of ranks. Ranks
    among 97 weighted points make large spread errors look smaller: the exponential of the effect is
    .52 if the true ratio is 1/2, and 2.7 if it is 3. For draws and distributions this is corrected,
    and so is the saturation of ranks under a shift, which looks like a wide spread: shifts of more
    than 4 are given as 4, and of spreads beside shifts above 3.5 nothing is known (p = 1 and limits
    of .08 to 12 times). Features are used one by one, so correlated features show the effects of
    each other. A shift of a skewed prediction may show as a spread of the same coordinate, and a
    trend of the spread as an average spread of that coordinate; other coordinates are not affected.

    Correlations are those of normal scores, claimed minus actual. Tails are the logarithm of the
    mean absolute normal score over its standard deviation, minus the value for a normal variable:
    positive if tails are claimed too heavy. Streaming tests have no correlations and no tails.

    Attributes:
        rows: Names of the r rows: d shifts, d spreads, d (d - 1) / 2 correlations, and d tails.
        columns: Names of the c columns.
        effect: Effects, [r, c]; NaN for constant features. Correlations and tails: column 0 only.
        low: Lower limits of confidence 1 - level, without correction, [r, c].
        high: Upper limits of confidence 1 - level, without correction, [r, c].
        p_value: Two-sided p-values of "no effect", [r, c].
        p_adjusted: P-values after Holm's correction for all cells, [r, c].
    """

    rows: tuple[str, ...] = eqx.field(static=True)
    columns: tuple[str, ...] = eqx.field(static=True)
    effect: Float[Array, "r c"]
    low: Float[Array, "r c"]
    high: Float[Array, "r c"]
    p_value: Float[Array, "r c"]
    p_adjusted: Float[Array, "r c"]

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with one row per cell."""
        from pandas import DataFrame, MultiIndex

        index = MultiIndex.from_product([self.rows, self.columns], names=["what", "where"])
        names = ("effect", "low", "high", "p_value", "p_adjusted")
        return DataFrame({name: np.asarray(getattr(self, name)).ravel() for name in names}, index)

    def sentences(self, level: float = 0.05) -> list[str]:
        """Return a sentence for each cell with adjusted p-value <= ``level``, smallest p first.

        Tails get no sentence if the coordinate has a significant shift or spread. Correlations get
        none if either coordinate has a large significant shift or spread (`changes_correlations`).
        """
        adjusted = np.asarray(self.p_adjusted).copy()
        d = sum(row.startswith("shift of ") for row in self.rows)
        named = adjusted[: 2 * d] <= level
        large = named & changes_correlations(np.asarray(self.effect)[: 2 * d])
        off, far = ([np.any(cells[k::d]) for k in range(d)] for cells in (named, large))
        concerned = [*((far, pair) for pair in combinations(range(d), 2))]
        concerned += [(off, (k,)) for k in range(d)]
        for row, (of, coordinates) in zip(range(2 * d, len(self.rows)), concerned, strict=False):
            if any(of[k] for k in coordinates):
                adjusted[row] = np.nan
        order = np.argsort(np.asarray(self.p_value), axis=None, kind="stable")
        cells = [np.unravel_index(k, adjusted.shape) for k in order]
        return [self._sentence(r, c) for r, c in cells if adjusted[r, c] <= level]

    def _sentence(self, r: Any, c: Any) -> str:
        effect, low, high, p = (
            float(np.asarray(part)[r, c])
            for part in (self.effect, self.low, self.high, self.p_adjusted)
        )
        what, where = self.rows[r], self.columns[c]
        more = "" if c == 0 else f" for each deviation of {CLAIMS.get(c, where)}"
        if what.startswith("tails"):
            sizes = tuple(np.exp([effect, low, high]))
            said = f"claimed too {'heavy' if effect > 0 else 'light'}: mean |error| / deviation is "
            said += "{:.2f} times that claimed (limits {:.2f} to {:.2f})".format(*sizes)
        elif what.startswith(("shift", "correlation")):
            unit = " sd" if what.startswith("shift") else ""
            way, sign = ("high", 1) if effect > 0 else ("low", -1)
            sizes = (abs(effect), *sorted((sign * low, sign * high)))
            said = "claimed too {} by {:.2g}{} (limits {:.2g} to {:.2g})"
            said = said.format(way, sizes[0], unit, *sizes[1:])
        else:
            way, sign = ("wide", 1) if effect > 0 else ("narrow", -1)
            sizes = sorted(np.exp([sign * low, sign * high]))
            said = f"{np.exp(abs(effect)):.2g} times too {way} (limits {sizes[0]:.2g} to "
            said += f"{sizes[1]:.2g})"
        return f"{what}: {said}{more}, p = {p:.2g}"


def changes_correlations(effects: np.ndarray) -> np.ndarray:
    """Return a mask [2 d, c] of effects so large that they bias correlations estimated from ranks.
    ``effects``: rows of d shifts and d spreads of a `Table`. See `experiments/names/shapes.py`."""
    limits = np.full(effects.shape, 0.35)
    d = len(effects) // 2
    limits[:d, 0], limits[d:, 0] = 0.5, 0.3
    return np.abs(effects) > limits


class Interval(NamedTuple):
    """Confidence interval of a number.

    Attributes:
        low: Lower end, [].
        high: Upper end, [].
        level: Level; the interval has confidence 1 - level.
    """

    low: Scalar
    high: Scalar
    level: float


def plain(value: Any) -> Any:
    """Return a value for JSON: arrays, tuples and modules become numbers, lists and dicts."""
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, eqx.Module):
        return {name: plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return np.asarray(value).tolist() if hasattr(value, "shape") else value


def largest_share(contributions: Float[Array, " n"]) -> Scalar:
    """Return max |c_i| / sum |c_i| of the contributions c_i, []; 0 if all are 0."""
    sizes = jnp.abs(contributions)
    total = jnp.sum(sizes)
    return jnp.where(total > 0, jnp.max(sizes) / jnp.where(total > 0, total, 1), 0.0)
