r"""Convert means and spreads of normal scores of ranks among m draws to those of the targets.

Targets N(a, s^2) are ranked among m draws of N(0, 1). Ranks of large targets are equal, so the mean
M(a, log s) of the normal scores grows more slowly than a, and the logarithm L(a, log s) of their
standard deviation falls with \|a\|: a shift alone would look like predictions that are too wide.
M and L are tabulated and inverted together. Errors are by the delta method, with the covariance of
mean and log deviation that the skewness of such scores implies.
"""

from functools import lru_cache
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxcal.numerics import at_least, bisected

SHIFTS, FACTORS = np.linspace(-4, 4, 65), np.linspace(-2.5, 2.5, 41)
MOST = 3.5  # largest shift at which the spread is tested
LEAST_RISE = 1e-3  # least derivative by which an effect is divided


@lru_cache
def tables(m: int) -> dict[str, np.ndarray]:
    """Return arrays over `SHIFTS` and `FACTORS` (log s): ``mean`` and ``log`` standard deviation of
    normal scores, their derivatives by shift and factor, and ``tie``, the covariance of sample mean
    and log deviation over the variance of the mean. ``agreement``, over `FACTORS`, is the
    correlation of scores and targets without a shift.

    Cost: the powers of a score given its target, at 1,001 targets, take 1,001 m exponentials.
    """
    from scipy.special import gammaln, log_ndtr, ndtri

    edges, k = np.arange(m + 2) / (m + 1), np.arange(m + 1)
    x = np.concatenate([[0], ndtri(edges[1:-1]), [0]])
    heights = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi)
    heights[[0, -1]] = 0
    # mean of the score of each rank, of its square and of its cube
    ends = np.stack([-heights, edges - heights * x, -(x**2 + 2) * heights])
    of_ranks = (m + 1) * np.diff(ends)
    counts = gammaln(m + 1) - gammaln(k + 1) - gammaln(m - k + 1)

    def given_targets(y: np.ndarray) -> np.ndarray:
        y = y[:, None]
        return of_ranks @ np.exp(counts + k * log_ndtr(y) + (m - k) * log_ndtr(-y)).T

    grid = np.linspace(-10, 10, 1001)  # targets beyond have the scores of its ends
    powers = np.concatenate([given_targets(part) for part in np.array_split(grid, 50)], axis=1)
    z = np.linspace(-7, 7, 281)
    weights = np.exp(-(z**2) / 2) / np.sum(np.exp(-(z**2) / 2))
    ys = SHIFTS[:, None, None] + np.exp(FACTORS)[:, None] * z  # [shifts, factors, z]
    scores = [np.interp(ys, grid, power) for power in powers]
    mean, square, cube = (score @ weights for score in scores)
    variance = square - mean**2
    third = cube - 3 * mean * square + 2 * mean**3
    log = np.log(variance) / 2
    of_mean, of_log = (np.gradient(of, SHIFTS, FACTORS) for of in (mean, log))
    middle = len(SHIFTS) // 2
    return {
        "mean": mean,
        "mean_by_shift": of_mean[0],
        "mean_by_factor": of_mean[1],
        "log": log,
        "log_by_shift": of_log[0],
        "log_by_factor": of_log[1],
        "tie": third / variance**2 / 2,
        "agreement": scores[0][middle] @ (weights * z) / np.sqrt(variance[middle]),
    }


def agreement(spreads: Float[Array, "*shape"], m: int) -> Float[Array, "*shape"]:
    """Return the correlation of Gaussian targets with normal scores of their ranks among m draws.
    ``spreads`` are log(predicted / actual standard deviation), computed from these scores."""
    of, middle = tables(m), len(SHIFTS) // 2
    logs, values = (jnp.asarray(a, spreads.dtype) for a in (of["log"][middle], of["agreement"]))
    return jnp.interp(-spreads, logs, values)


def look_up(name: str, m: int, shifts: Array, factors: Array) -> Array:
    """Return an entry of `tables`, interpolated at shifts and factors of one shape."""
    of = jnp.asarray(tables(m)[name], shifts.dtype)
    at = [
        jnp.clip((value - float(grid[0])) / float(grid[1] - grid[0]), 0, len(grid) - 1)
        for value, grid in ((shifts, SHIFTS), (factors, FACTORS))
    ]
    return jax.scipy.ndimage.map_coordinates(of, at, order=1, mode="nearest")


def inverted(
    means: Float[Array, "*shape"], logs: Float[Array, "*shape"], m: int
) -> tuple[Float[Array, "*shape"], Float[Array, "*shape"]]:
    """Return shift and log s of targets from mean and log standard deviation of their scores. Both
    are clipped to the ends of the tables."""

    def factor_at(shift: Array, log: Array) -> Array:
        row = look_up("log", m, jnp.full(len(FACTORS), shift), jnp.asarray(FACTORS, shift.dtype))
        return jnp.interp(log, row, jnp.asarray(FACTORS, shift.dtype))

    def one(mean: Array, log: Array) -> tuple[Array, Array]:
        def below(shift: Array) -> Array:
            return look_up("mean", m, shift, factor_at(shift, log)) <= mean

        low, high = (jnp.full_like(mean, end) for end in SHIFTS[[0, -1]])
        low, high = bisected(below, low, high, 40)
        shift, missing = (low + high) / 2, jnp.isnan(mean + log)
        factor = factor_at(shift, log)
        return jnp.where(missing, jnp.nan, shift), jnp.where(missing, jnp.nan, factor)

    shifts, factors = jax.vmap(one)(jnp.ravel(means), jnp.ravel(logs))
    return shifts.reshape(means.shape), factors.reshape(means.shape)


class Directions(NamedTuple):
    """How errors of mean and log deviation combine: log - ``turn`` mean changes with the factor
    alone, by ``factor_rise``, and mean - ``lean`` log with the shift alone, by ``shift_rise``."""

    turn: Array
    lean: Array
    tie: Array
    shift_rise: Array
    factor_rise: Array

    @classmethod
    def at(cls, shifts: Array, factors: Array, m: int) -> "Directions":
        """Return the directions at shifts and factors of one shape."""
        names = "mean_by_shift", "mean_by_factor", "log_by_shift", "log_by_factor", "tie"
        aa, at, la, lt, tie = (look_up(name, m, shifts, factors) for name in names)
        turn, lean = la / at_least(aa, LEAST_RISE), at / at_least(lt, LEAST_RISE)
        rises = (at_least(rise, LEAST_RISE) for rise in (aa - lean * la, lt - turn * at))
        return cls(turn, lean, tie, *rises)

    def of_factor(self, of_mean: Array, of_log: Array) -> Array:
        """Return the standard error of log - turn mean, from those of mean and log."""
        square = of_log**2 + (self.turn**2 - 2 * self.turn * self.tie) * of_mean**2
        return jnp.sqrt(at_least(square, of_log**2 / 4))

    def of_shift(self, of_mean: Array, of_log: Array) -> Array:
        """Return the standard error of mean - lean log, from those of mean and log."""
        square = (1 - 2 * self.lean * self.tie) * of_mean**2 + self.lean**2 * of_log**2
        return jnp.sqrt(at_least(square, of_mean**2 / 4))

    def apart(
        self, means: Array, logs: Array, of_mean: Array, of_log: Array
    ) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
        """Return (mean - lean log, its standard error) and (log - turn mean, its standard error),
        for slopes along features in a last axis that the directions lack."""
        at = Directions(*(part[..., None] for part in self))
        shifts = means - at.lean * logs, at.of_shift(of_mean, of_log)
        return shifts, (logs - at.turn * means, at.of_factor(of_mean, of_log))


def spread_alone(
    means: Array, logs: Array, of_mean: Array, of_log: Array, m: int
) -> tuple[Array, Array]:
    """Return the log deviation less the one that a shift without an error of spread would have, and
    its standard error. The first is 0 for shifts beyond `MOST`, where nothing is known."""
    none = jnp.zeros_like(means)
    by_shift = jnp.asarray(tables(m)["mean"][:, len(FACTORS) // 2], means.dtype)
    shifts = jnp.interp(means, by_shift, jnp.asarray(SHIFTS, means.dtype))
    directions = Directions.at(shifts, none, m)
    gap = logs - look_up("log", m, shifts, none)
    gap = jnp.where(jnp.abs(shifts) > MOST, 0, gap)
    return gap, directions.of_factor(of_mean, of_log)


class Sizes(NamedTuple):
    """Shift and spread (log actual / predicted deviation), each with the ends of its limits."""

    shift: tuple[Array, Array, Array]
    spread: tuple[Array, Array, Array]


def corrected(means: Array, logs: Array, of_mean: Array, of_log: Array, m: int) -> Sizes:
    """Return sizes and limits of the targets from mean and log deviation of the scores, with half
    widths ``of_mean`` and ``of_log``. Beyond `MOST`, limits of spreads are the ends of the tables.
    """
    shift, spread = inverted(means, logs, m)
    directions = Directions.at(shift, spread, m)
    by_mean, by_log = directions.of_shift(of_mean, of_log), directions.of_factor(of_mean, of_log)
    ends = jnp.stack([means - by_mean, means + by_mean, means, means])
    others = jnp.stack([logs, logs, logs - by_log, logs + by_log])
    shifts, spreads = inverted(ends, others, m)
    beyond: Bool[Array, "*shape"] = jnp.abs(shift) > MOST
    low, high = (
        jnp.where(beyond, jnp.asarray(last, end.dtype), end)
        for end, last in zip(spreads[2:], FACTORS[[0, -1]], strict=True)
    )
    return Sizes((shift, shifts[0], shifts[1]), (spread, low, high))


def tested_alone(
    effects: Float[Array, "2 r c"], errors: Float[Array, "2 r c"], m: int
) -> tuple[Float[Array, "2 r c"], Float[Array, "2 r c"]]:
    """Return effects and errors whose ratios test each row of shifts and spreads of a table (as in
    `jaxcal.entries.table.with_limits`) such that an error of the other row does not count."""
    (means, logs), (of_mean, of_log) = (
        jnp.split(sign * part, 2, axis=1) for sign, part in ((-1, effects), (1, errors))
    )
    mean, log = means[:, :, 0], logs[:, :, 0]
    gap, error = spread_alone(mean, log, of_mean[:, :, 0], of_log[:, :, 0], m)
    shift, spread = inverted(mean, log, m)
    directions = Directions.at(shift, spread, m)
    (shifts, its), (spreads, other) = directions.apart(means, logs, of_mean, of_log)
    spreads = jnp.where(jnp.abs(shift[:, :, None]) > MOST, 0, spreads)
    shifts, its = shifts.at[:, :, 0].set(means[:, :, 0]), its.at[:, :, 0].set(of_mean[:, :, 0])
    spreads, other = spreads.at[:, :, 0].set(gap), other.at[:, :, 0].set(error)
    return -jnp.concatenate([shifts, spreads], axis=1), jnp.concatenate([its, other], axis=1)
