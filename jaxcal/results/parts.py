"""What results are made of: estimates, means, the split over coordinates, what was noticed."""

from typing import Any, NamedTuple, TypeGuard

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxcal.typing import Scalar

FEW = 0.05  # the share of predictions whose chains may seem unsettled by chance


class Estimate(NamedTuple):
    """Estimates of a squared discrepancy; the discrepancy is the root of ``biased``.

    Attributes:
        unbiased: U-statistic, []; may be negative.
        biased: V-statistic, []; never negative, for positive definite kernels.

    Example:
        >>> import jaxcal
        >>> estimate = jaxcal.Estimate(unbiased=-0.01, biased=0.02)
        >>> estimate.biased
        0.02
    """

    unbiased: Scalar
    biased: Scalar

    def __repr__(self) -> str:
        return f"Estimate(squared: unbiased {self.unbiased}, biased {self.biased})"


class Means(NamedTuple):
    """Means of q moments over the observations, each 0 where the predictions are right.

    Attributes:
        estimate: Means, [q].
        standard_error: Standard errors, [q].
        p_value: Two-sided p-values of "the mean is 0", [q].
        p_adjusted: The same after Holm's correction, [q].
        low: Lower limits of confidence 1 - level, each for itself, [q].
        high: Upper limits of confidence 1 - level, each for itself, [q].
    """

    estimate: Float[Array, " q"]
    standard_error: Float[Array, " q"]
    p_value: Float[Array, " q"]
    p_adjusted: Float[Array, " q"]
    low: Float[Array, " q"]
    high: Float[Array, " q"]


def tells(means: Means | None) -> TypeGuard[Means]:
    """Whether means have limits: these are given where a mean is that of one coordinate alone."""
    return means is not None and bool(np.all(np.isfinite([means.low, means.high])))


class Coordinates(NamedTuple):
    r"""Which of d target coordinates, or which pair, is off: by itself, and given the others.

    The five `Means` are about errors that predictions have in common: a shift that changes its
    sign from one prediction to another is a spread here. Each has Holm's correction of its own.
    Shifts are taken out of spreads and correlations, and spreads out of correlations
    (`jaxcal.moments.attribution`), so that none is accused of another's fault.

    **Exact for Gaussian predictions**: those of a normal distribution, or with scores that are
    linear in the target, found from the scores at base points and targets. Shifts are exact for
    any predictions that know their means too: Laplace distributions, mixtures, independent
    coordinates with numpyro's ``mean`` and ``variance``. Elsewhere limits are NaN, and so are
    spreads and correlations; estimates and p-values of means stay. Such a p-value is valid as that
    of "the moment has mean 0", which every right prediction passes and **any** error may fail: it
    accuses no coordinate.

    ``estimate``, ``p_value``, ``p_adjusted`` and ``contributions`` split the statistic, of which h
    is a sum over coordinates: each part asks whether the distribution of its coordinate **given
    the others** is right, for predictions of any shape, and may be large because another, dependent
    one is off.

    Attributes:
        estimate: Parts of the estimate, [d]; they sum to the result's estimate.
        p_value: P-value of each part, [d].
        p_adjusted: The same after Holm's correction for d tests, [d].
        contributions: Shares of the observations in each part, [d, n].
        marginal_mean: How far the predictions lie too high in each coordinate by itself (negative:
            too low), in the standard deviation that each prediction claims for it: (claimed -
            actual mean) / claimed deviation, which for Gaussian predictions is the mean of
            :math:`(\Sigma_p s_p)_q / \sqrt{(\Sigma_p)_{qq}}`. Where neither means nor linear
            scores are known it is that mean, with NaN limits: another coordinate leaks in where
            the two depend on each other in more than correlation. None where :math:`\Sigma_p`
            cannot be computed. Each with a sentence.
        marginal_spread: The logarithm of claimed over actual standard deviation of each coordinate
            by itself, so negative where predictions are too narrow. NaN unless they are Gaussian.
        correlation: Claimed minus actual correlation of each pair (0, 1), (0, 2), .., (1, 2), ..;
            None in one dimension. NaN unless predictions are Gaussian.
        conditional_mean: As ``marginal_mean``, of each coordinate **given the others**, in claimed
            deviations given the others; an error of one shows in those correlated with it.
        conditional_spread: As ``marginal_spread``, of each coordinate **given the others**.
    """

    estimate: Float[Array, " d"]
    p_value: Float[Array, " d"]
    p_adjusted: Float[Array, " d"]
    contributions: Float[Array, "d n"]
    marginal_mean: Means | None = None
    marginal_spread: Means | None = None
    correlation: Means | None = None
    conditional_mean: Means | None = None
    conditional_spread: Means | None = None

    def pairs(self) -> list[tuple[int, int]]:
        """The two coordinates of each entry of ``correlation``."""
        i, j = np.triu_indices(self.estimate.shape[-1], 1)
        return list(zip(i.tolist(), j.tolist(), strict=True))


class Parts(eqx.Module):
    """Named alternatives that share the signs of one null, and which of them is the strongest.

    Attributes:
        names: Names of the c alternatives.
        statistics: Log evidence for each, with its prior weight, [c].
        p_values: P-values of each by itself, [c].
        winner: Place of the largest, [].
    """

    names: tuple[str, ...] = eqx.field(static=True)
    statistics: Float[Array, " c"]
    p_values: Float[Array, " c"]
    winner: Int[Array, ""]


class Table(eqx.Module):
    """What is off, and where: the shift and the spread of each coordinate, along each feature.

    Shifts are claimed minus actual, in claimed deviations, so above 0 where predictions are too
    high; spreads are logarithms of claimed over actual deviations, so below 0 where they are too
    narrow. In the first column an effect is that on the average over all predictions; in the others
    what it grows by for each standard deviation of the feature: of the claimed centre of the
    coordinate, of the logarithm of its claimed scale, of an input. Effects of other than Gaussian
    predictions are in normal scores of ranks. Each feature is asked by itself: one that goes along
    with another shows what the other does.

    Attributes:
        rows: Names of the 2 d rows.
        columns: Names of the c columns.
        effect: Effects, [2 d, c]; NaN where a feature is the same for all.
        low: Lower limits of confidence 1 - level, each for itself, [2 d, c].
        high: Upper limits, likewise.
        p_value: Two-sided p-values of "no effect", [2 d, c].
        p_adjusted: The same after Holm's correction for all cells.
    """

    rows: tuple[str, ...] = eqx.field(static=True)
    columns: tuple[str, ...] = eqx.field(static=True)
    effect: Float[Array, "r c"]
    low: Float[Array, "r c"]
    high: Float[Array, "r c"]
    p_value: Float[Array, "r c"]
    p_adjusted: Float[Array, "r c"]

    def to_frame(self) -> Any:
        """A pandas DataFrame with a row a cell."""
        from pandas import DataFrame, MultiIndex

        index = MultiIndex.from_product([self.rows, self.columns], names=["what", "where"])
        names = ("effect", "low", "high", "p_value", "p_adjusted")
        return DataFrame({name: np.asarray(getattr(self, name)).ravel() for name in names}, index)

    def sentences(self, level: float = 0.05) -> list[str]:
        """A sentence a cell whose adjusted p-value is at most ``level``, the clearest first."""
        adjusted = np.asarray(self.p_adjusted)
        order = np.argsort(np.asarray(self.p_value), axis=None, kind="stable")
        cells = [np.unravel_index(k, adjusted.shape) for k in order]
        return [self._sentence(r, c) for r, c in cells if adjusted[r, c] <= level]

    def _sentence(self, r: Any, c: Any) -> str:
        effect, low, high, p = (
            float(np.asarray(part)[r, c])
            for part in (self.effect, self.low, self.high, self.p_adjusted)
        )
        what, where = self.rows[r], self.columns[c]
        more = "" if c == 0 else f" for each deviation of {_places(where)}"
        if what.startswith("shift"):
            way, sign = ("high", 1) if effect > 0 else ("low", -1)
            sizes = (abs(effect), *sorted((sign * low, sign * high)))
            said = "claimed too {} by {:.2g} sd (limits {:.2g} to {:.2g})".format(way, *sizes)
        else:
            way, sign = ("wide", 1) if effect > 0 else ("narrow", -1)
            sizes = sorted(np.exp([sign * low, sign * high]))
            said = f"{np.exp(abs(effect)):.2g} times too {way} (limits {sizes[0]:.2g} to "
            said += f"{sizes[1]:.2g})"
        return f"{what}: {said}{more}, p = {p:.2g}"


def _places(column: str) -> str:
    return {"centre": "its claimed centre", "scale": "its claimed log scale"}.get(column, column)


class Interval(NamedTuple):
    """An interval that holds the true value with probability 1 - level.

    It contains what a test of that level does not reject.

    Attributes:
        low: Lower end, [].
        high: Upper end, [].
        level: Level; the interval has confidence 1 - level.
    """

    low: Scalar
    high: Scalar
    level: float


def plain(value: Any) -> Any:
    """Arrays and tuples as the numbers and lists of JSON; nested, names kept."""
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
    """The largest part of one observation in the sum of absolute contributions; 0 if all are 0."""
    sizes = jnp.abs(contributions)
    total = jnp.sum(sizes)
    return jnp.where(total > 0, jnp.max(sizes) / jnp.where(total > 0, total, 1), 0.0)
