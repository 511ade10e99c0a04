r"""Compute interval calibration errors: binned ECE plus bin width, for the best or random bins.

Both errors are upper bounds of the distance from calibration, and at most :math:`4 \sqrt{d}` for
the lower distance d (plus ``accuracy`` for random bins). The binned ECE of randomly shifted bins of
width s has the mean

.. math:: RintCE(s) = \frac1s \int |F(t + s) - F(t)|\,dt

with F(t) the weighted sum of label - v over predictions v <= t. The integral is exact.
Source: Blasiok et al. (2023), Def. 6.1, 6.5 and 6.10, Claim 6.6.
"""

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float, Int

from jaxcal.dce.predictions import (
    Atoms,
    Ordered,
    atoms,
    binary,
    merged,
    ordered,
    residuals_of_atoms,
    sums,
)
from jaxcal.numerics import at_least, at_most, smallest
from jaxcal.read import convert
from jaxcal.results import Result, recorded
from jaxcal.typing import ArrayLike, DTypeLike, Scalar, Vector


@jax.custom_jvp
def boxcars(v: Vector, rho: Vector, widths: Float[Array, " k"]) -> Float[Array, " k"]:
    r"""Return the mean binned ECE of random bins (RintCE) for each of ``widths`` [k] > 0.

    ``rho`` [n] are the weighted residuals at ascending predictions ``v`` [n]. Widths are compared
    with differences of predictions, so tiny widths cause no rounding errors. For widths below the
    smallest difference the result is the unbinned ECE. Widths below the square root of the smallest
    normal number (1e-19 in float32) are replaced by it. The result is differentiable in all
    arguments; derivatives cost O(n log n) per width.

    Let F(t) be the sum of rho up to t. The integrand in the result for width w,

    .. math:: \frac1w \int |F(t + w) - F(t)|\,dt,

    changes only where t or t + w is a prediction. So the code merges two sorted lists: predictions,
    and predictions minus w. A bisection cuts the merged list into about sqrt(2 n) pieces of equal
    length. One loop processes all pieces of all widths: sqrt(2 n) steps, O(n) work per width.
    """
    n = v.size
    length = max(1, math.isqrt(2 * n))
    places, f = _padded(v, rho)
    widths = _resolved(widths)
    w = widths[:, None]
    done = jnp.arange(-(-2 * n // length), dtype=jnp.int32) * length
    i = _split(places, w, done)
    j = done[None] - i

    def before(index: Array) -> Array:
        return jnp.where(index > 0, places[jnp.maximum(index - 1, 0)], -jnp.inf)

    # -inf for the first piece, which has no earlier entry
    shifted = ~(before(i) - before(j) <= w)
    last = jnp.where(shifted, before(i), before(j))

    def step(carry: tuple[Array, ...], _: None) -> tuple[tuple[Array, ...], None]:
        i, j, a, b, fa, fb, last, shifted, total = carry
        first = a - b <= w
        now = jnp.where(first, a, b)
        inside = (last > -jnp.inf) & (now < jnp.inf)
        total = total + jnp.abs(fa - fb) * jnp.where(inside, _gap(last, shifted, now, first, w), 0)
        k = jnp.where(first, i, j) + 1
        place, sum_ = places.at[k].get(mode="clip"), f.at[k].get(mode="clip")
        return (
            jnp.where(first, k, i),
            jnp.where(first, j, k),
            jnp.where(first, place, a),
            jnp.where(first, b, place),
            jnp.where(first, sum_, fa),
            jnp.where(first, fb, sum_),
            now,
            first,
            total,
        ), None

    carry = (i, j, places[i], places[j], f[i], f[j], last, shifted, jnp.zeros_like(last))
    carry, _ = jax.lax.scan(step, carry, None, length=length)
    return jnp.sum(carry[-1], axis=1) / widths


def _resolved(widths: Array) -> Array:
    """Return ``widths``, at least the root of the smallest normal number, to avoid underflow."""
    return at_least(widths, float(jnp.finfo(widths.dtype).tiny) ** 0.5)


def _padded(v: Vector, rho: Vector) -> tuple[Array, Array]:
    """Return v with infinity appended, and the sum of rho before each of its entries; [n + 1]."""
    places = jnp.concatenate([v, jnp.full(1, jnp.inf, v.dtype)])
    return places, jnp.concatenate([jnp.zeros(1, rho.dtype), sums(rho)])


def _gap(last: Array, was_shifted: Array, now: Array, shifted: Array, w: Array) -> Array:
    """Return now - last, with w first subtracted from every position whose flag is True."""
    gap = now - last
    return jnp.where(shifted == was_shifted, gap, jnp.where(shifted, gap - w, gap + w))


def _split(places: Vector, w: Float[Array, "k 1"], done: Array) -> Array:
    """Return how many of the first ``done`` entries of the merged lists are predictions minus w."""
    n = places.size - 1
    done = jnp.broadcast_to(done, (w.shape[0], done.size))
    low, high = jnp.maximum(done - n, 0), jnp.minimum(done, n)

    def halve(_: Array, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) // 2
        other = places.at[done - middle - 1].get(mode="clip")
        more = (low < high) & (places[middle] - other <= w)
        return jnp.where(more, middle + 1, low), jnp.where(more, high, jnp.minimum(middle, high))

    return jax.lax.fori_loop(0, n.bit_length(), halve, (low, high))[0]


@boxcars.defjvp
def _slopes(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    (v, rho, widths), (dv, drho, dwidths) = primals, tangents
    values = boxcars(v, rho, widths)
    widths = _resolved(widths)
    places, f = _padded(v, rho)
    df = jnp.concatenate([jnp.zeros(1, drho.dtype), sums(drho)])
    done = jnp.arange(2 * v.size + 1, dtype=jnp.int32)

    def one(item: tuple[Array, ...]) -> Scalar:
        width, dwidth = item
        i = _split(places, width[None, None], done)[0]
        j = done - i
        shifted = jnp.diff(i) > 0
        entry = jnp.where(shifted, i[:-1], j[:-1])
        at, moves = v[entry], dv[entry] - jnp.where(shifted, dwidth, 0)
        gaps = _gap(at[:-1], shifted[:-1], at[1:], shifted[1:], width)
        inside, moved = ((x[i] - x[j])[1:-1] for x in (f, df))
        return jnp.sum(jnp.sign(inside) * moved * gaps + jnp.abs(inside) * jnp.diff(moves))

    slopes = jax.lax.map(one, (widths, dwidths))
    return values, (slopes - values * dwidths) / widths


FINEST = 1e-12  # least ``accuracy`` of the surrogate error; its smallest width is then 2^-41


class SurrogateCE(Result):
    """Surrogate interval calibration error and the width that attains it.

    Attributes:
        value: min over k of ``random`` + 2^-k, [].
        k: The minimizing k, []; -1 if the minimum is unbinned ECE, the limit for width 0.
        random: Mean binned ECE of random bins of width 2^-k, for k = 0, .., k_max, [k_max + 1].
    """

    value: Scalar
    k: Int[Array, ""]
    random: Float[Array, " k"]

    def _lines(self) -> list[str]:
        k = int(self.k)
        where = "as the width tends to 0" if k < 0 else f"at width 2^-{k}"
        return [f"surrogate interval calibration error {float(self.value):.6g}, {where}"]


@recorded
def surrogate_interval_ce(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    accuracy: float | int | None = 0.01,
    weights: ArrayLike | None = None,
) -> SurrogateCE:
    r"""Return the surrogate interval calibration error, min over k >= 0 of RintCE(2^-k) + 2^-k.

    RintCE(s) is the mean binned ECE of bins of width s with a random shift. The error is
    continuous in the predictions (1/2-Hoelder).

    Args:
        predictions: Probabilities of label 1, [n].
        targets: Labels 0 or 1, or means of labels, [n].
        accuracy: Accuracy :math:`\epsilon`. The largest k is
            :math:`k^* = \lceil \log_2(2/\epsilon) \rceil`, so the value is never below
            :math:`2^{-k^*} > \epsilon / 4`. None uses k up to 40 and the unbinned ECE (width 0):
            use it only if the data are a whole population with few different predictions.
        weights: Weights of the observations, [n], >= 0.

    Returns:
        `SurrogateCE`.

    Cost: one sort, and O(n) for each k.

    Source: Blasiok et al. (2023), Def. 6.10, Theorems 6.11 and 6.12.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> result = jaxcal.dce.surrogate_interval_ce(jnp.full(4, 0.7), jnp.array([0, 0, 1, 1]))
        >>> bool(result.value >= 0.2)  # no less than the distance
        True
    """
    data = binary(predictions, targets, weights)
    k_max = 40 if accuracy is None else smallest_width(accuracy)
    return _surrogate(ordered(data), k_max, accuracy is None)


def smallest_width(accuracy: float | int) -> int:
    """Return the integer k* with accuracy / 4 < 2^-k* <= accuracy / 2 (Section 6.2 of the paper).
    ValueError if the accuracy is not in [1e-12, 2]."""
    if not FINEST <= (accuracy := convert.real(accuracy, "accuracy")) <= 2:
        raise ValueError(f"accuracy: wanted a number from {FINEST} to 2, got {accuracy!r}")
    return math.ceil(math.log2(2 / accuracy) - 1e-9)


@partial(jax.jit, static_argnames=("k_max", "limit"))
def _surrogate(data: Ordered, k_max: int, limit: bool) -> SurrogateCE:
    widths = 2.0 ** -jnp.arange(k_max + 1, dtype=data.v.dtype)
    random = boxcars(data.v, data.rho, widths)
    k = jnp.argmin(random + widths)
    value = smallest(random + widths)  # NaN if a residual is NaN
    if limit:
        error = jnp.sum(jnp.abs(residuals_of_atoms(data)))
        k, value = jnp.where(error < value, -1, k), at_most(value, error)
    return SurrogateCE(value, k, random)


class IntervalCE(Result):
    """Interval calibration error with the bins that attain it.

    Attributes:
        value: Binned ECE + bin width of the best bins, [].
        bins: Bin of each observation, counted from 0, [n].
        recalibrated: Mean label of the bin of each observation, [n]; calibrated on these data, at
            an average distance of at most ``value`` from the predictions.
    """

    value: Scalar
    bins: Int[Array, " n"]
    recalibrated: Vector

    def _lines(self) -> list[str]:
        bins = int(self.bins.max()) + 1
        return [f"interval calibration error {float(self.value):.6g} by {bins} bins"]


@recorded
def interval_ce(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    weights: ArrayLike | None = None,
) -> IntervalCE:
    """Return the minimum of binned ECE + bin width over all partitions of [0, 1] into intervals.

    The bin width is averaged over observations. The result is not continuous in the predictions.

    Args:
        predictions: Probabilities of label 1, [n].
        targets: Labels 0 or 1, or means of labels, [n].
        weights: Weights of the observations, [n], >= 0.

    Returns:
        `IntervalCE`.

    Cost: O(m^2) time and O(m) memory for m different predictions; under jit m = n.

    Source: Blasiok et al. (2023), Def. 6.1.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> predictions, targets = jnp.array([0.1, 0.2, 0.8, 0.9]), jnp.array([0, 0, 1, 1])
        >>> bool(jaxcal.dce.interval_ce(predictions, targets).value <= 1)
        True
    """
    data = binary(predictions, targets, weights)
    if isinstance(data.v, Tracer):
        return _best(ordered(data))
    distribution, atom = merged(data)
    best = _best(ordered(distribution))
    if atom is None:
        return best
    return IntervalCE(best.value, best.bins[atom], best.recalibrated[atom])


@jax.jit
def _best(data: Ordered) -> IntervalCE:
    distribution = atoms(data)
    m, v = distribution.v.size, distribution.v

    def prefix(x: Array) -> Array:
        return jnp.concatenate([jnp.zeros(1, x.dtype), sums(x)])

    r, mass = prefix(distribution.rho), prefix(distribution.mass)

    def cost(j: Array) -> Array:
        return jnp.abs(r[j + 1] - r[:-1]) + (mass[j + 1] - mass[:-1]) * (v[j] - v)

    return _partition(*least_partition(cost, m, v.dtype), distribution)


def least_partition(
    cost: Callable[[Array], Array], m: int, dtype: DTypeLike
) -> tuple[Scalar, Int[Array, " m"]]:
    """Split 0, .., m - 1 into contiguous groups of least total cost, in O(m^2) time. Return this
    cost, [], and the group number of each element, [m]. Entry i of ``cost(j)`` [m], for i <= j, is
    the cost of the group i, .., j."""
    starts = jnp.arange(m)

    def extend(least: Array, j: Array) -> tuple[Array, Array]:
        costs = jnp.where(starts <= j, least[:-1] + cost(j), jnp.inf)
        i = jnp.argmin(costs)
        return least.at[j + 1].set(costs[i]), i

    least, begin = jax.lax.scan(extend, jnp.zeros(m + 1, dtype), starts)

    def back(start: Array, j: Array) -> tuple[Array, Array]:
        # ``start``: first member of the current group; it changes at the last member of a group
        inside = jnp.where(j < start, begin[j], start)
        return inside, j == inside

    _, first = jax.lax.scan(back, jnp.asarray(m), starts, reverse=True)
    return least[m], sums(first.astype(jnp.int32)) - 1


def _partition(value: Array, bin_of: Array, distribution: Atoms) -> IntervalCE:
    m = distribution.v.size
    mass = jax.ops.segment_sum(distribution.mass, bin_of, m)
    ones = jax.ops.segment_sum(distribution.p1, bin_of, m)
    means = ones / jnp.where(mass > 0, mass, 1)
    kappa = jnp.where(mass > 0, means, 0.0)[bin_of][distribution.atom]
    # padding atoms may form bins without observations
    used = sums(jnp.zeros(m, jnp.int32).at[bin_of[distribution.atom]].set(1)) - 1
    return IntervalCE(value, used[bin_of[distribution.atom]], kappa)
