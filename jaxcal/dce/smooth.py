r"""Compute smooth and kernel calibration errors: the largest mean residual under a smooth weight.

.. math:: smCE = \max_w \sum_i \rho_i w(v_i),\quad |w| \le 1,\ w\ \text{1-Lipschitz}
          = \min_a TV(a) + \int_0^1 |F - a|\,dt

with weighted residuals :math:`\rho` = weight (y - v), F their sum up to v, and a any step function
from 0 to F(1). smCE / 2 <= distance from calibration, and the lower distance is <= 2 smCE.
Source: Blasiok, Gopalan, Hu and Nakkiran (2023), Def. 7.2, Theorems 7.3 and 7.14.

The kernel calibration error has the Laplace kernel:

.. math:: kCE^2 = \sum_{ij} \rho_i \rho_j e^{-|v_i - v_j| / \ell}

On sorted predictions the sum over j < i satisfies the linear recursion
:math:`q_i = e^{-(v_i - v_{i-1})/\ell} (q_{i-1} + \rho_{i-1})`; the sum over j > i satisfies it from
the other end. No pairs are formed, and all exponentials are at most 1.
Source: Blasiok et al. (2023), Def. 8.1, Lemma 8.2 and eq. 28; the paper has :math:`\ell = 1`.
"""

import math

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int, PyTree

from jaxcal.dce.predictions import Ordered, binary, least, order, ordered, prefixes, sums
from jaxcal.numerics import safe_sqrt
from jaxcal.read import convert
from jaxcal.results import Result, recorded
from jaxcal.typing import ArrayLike, Scalar, Vector


def denoise(f: Vector, g: Vector) -> Vector:
    r"""Return the exact L1 total variation denoising a [n] of a step function on [0, 1].

    ``f`` [n]: values F of the function. ``g`` [n] >= 0: widths of its steps, whose sum must be at
    most 2 (not checked); the last width counts as 0. Every a_i is exactly 0 or one of the F_i.
    Cost: one sort and O(n log n), memory O(n). The result a minimizes

    .. math:: \sum_i |a_i - a_{i-1}| + \sum_i g_i |F_i - a_i|, \quad a_{-1} = 0,\ a_{n-1} = F_{n-1}.

    The minimizer a is monotone from 0 to :math:`F_{n-1}`: two opposite jumps of an indicator
    :math:`1(a_i > \lambda)` would cost 2, and save at most the sum of the widths, 2. So a is the L1
    isotonic regression of F, clipped to the range from 0 to :math:`F_{n-1}`. Each of log2(n) rounds
    of cost O(n) determines one bit of the rank of every :math:`a_i`, by a cumulative sum and its
    running minimum within runs of equal bits.
    """
    n = f.size
    sign = jnp.where(f[-1] < 0, -1, 1).astype(f.dtype)
    clipped = jnp.clip(sign * f, 0, sign * f[-1])
    slots = jnp.arange(n, dtype=jnp.int32)
    places = order(clipped)
    levels = clipped[places]
    rank = jnp.zeros_like(slots).at[places].set(slots, unique_indices=True)
    ranks = _isotonic(rank, g.at[-1].set(0))
    return (sign * levels.at[ranks].get(mode="clip")).at[-1].set(f[-1])


def _isotonic(rank: Int[Array, " n"], g: Vector) -> Int[Array, " n"]:
    """Return the nondecreasing ranks a that minimize sum g |1(rank >= q) - 1(a >= q)| for every q.

    Arrays are reshaped to about sqrt(n) columns, so that a loop over rows handles all columns."""
    n = rank.size
    columns = max(1, math.isqrt(n))
    rows = -(-n // columns)
    none = jnp.iinfo(rank.dtype).max

    def fold(x: Array) -> Array:
        # padding has width 0
        return jnp.pad(x, (0, rows * columns - n)).reshape(columns, rows).T

    rank, g = fold(rank), fold(g)
    rounds = (n - 1).bit_length()

    def halve(k: Array, low: Array) -> Array:
        step = jnp.left_shift(jnp.ones((), low.dtype), rounds - 1 - k)
        # contribution of an element to the cost of a jump after it, for the bit low + step
        cost = jnp.where(rank >= low + step, g, -g)
        begin = jnp.cumsum(jnp.sum(cost, axis=0))
        begin = jnp.concatenate([jnp.zeros(1, g.dtype), begin[:-1]])

        def walk(carry: PyTree, item: PyTree) -> PyTree:
            total, run, least = carry
            least = jnp.where(item[1] == run, least, total)  # restart in a new run
            total = total + item[0]
            return (total, item[1], jnp.minimum(least, total)), (total, least)

        ends, (total, least) = jax.lax.scan(walk, (begin, low[0], begin), (cost, low))

        def join(carry: PyTree, column: PyTree) -> PyTree:
            run, least = column
            least = jnp.where(run == carry[0], jnp.minimum(least, carry[1]), least)
            return (run, least), carry

        start = (jnp.full((), -1, low.dtype), jnp.full((), jnp.inf, g.dtype))
        _, (run, before) = jax.lax.scan(join, start, ends[1:])
        least = jnp.where(low == run[None], jnp.minimum(least, before[None]), least)
        # elements before the last new minimum of their run stay; others jump
        key = jnp.where(total < least, low, none)

        def back(carry: Array, item: Array) -> tuple[Array, Array]:
            return jnp.minimum(carry, item), carry

        _, after = jax.lax.scan(back, jnp.full((), none), jnp.min(key, axis=0), reverse=True)
        _, later = jax.lax.scan(back, after, key, reverse=True)
        return jnp.where(jnp.minimum(later, key) == low, low, low + step)

    ranks = jax.lax.fori_loop(0, rounds, halve, jnp.zeros_like(rank))
    return ranks.T.reshape(-1)[:n]


class SmoothCE(Result):
    """Smooth calibration error with its certificates.

    Attributes:
        value: Mean residual with the weight ``witness``, []: a certified lower bound of the error.
        upper: Value of the dual certificate, []: an upper bound, equal up to rounding.
        witness: Weight at each observation, [n], |w| <= 1 and 1-Lipschitz in the prediction.
        flow: F - a between each prediction and the next, in ascending order of the predictions,
            [n]; 0 after the last. F is the cumulative residual, a the optimal step function.
    """

    value: Scalar
    upper: Scalar
    witness: Vector
    flow: Vector

    def _lines(self) -> list[str]:
        gap = float(self.upper - self.value)
        return [f"smooth calibration error {float(self.value):.6g} (certified to {gap:.1e})"]


@recorded
def smooth_ce(
    predictions: ArrayLike, targets: ArrayLike, *, weights: ArrayLike | None = None
) -> SmoothCE:
    """Return the exact smooth calibration error of predicted probabilities, with its witness.

    The error is the maximum mean of w(v) (y - v) over 1-Lipschitz weights |w| <= 1. Works under jit
    and vmap; ``value`` is differentiable in all three arguments (by the envelope theorem).

    Args:
        predictions: Probabilities v of label 1, [n].
        targets: Labels y, 0 or 1, or means of labels, [n].
        weights: Weights of the observations, [n], >= 0.

    Returns:
        `SmoothCE`. Under jit, NaN in the data gives NaN.

    Cost: O(n log n) time and memory.

    Source: Blasiok, Gopalan, Hu and Nakkiran (2023), Def. 7.2, Theorems 7.3 and 7.14.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> predictions, targets = jnp.array([0.3, 0.7]), jnp.array([0, 1])
        >>> round(float(jaxcal.dce.smooth_ce(predictions, targets).value), 2)
        0.06
    """
    return _smooth(ordered(binary(predictions, targets, weights)))


@jax.jit
def _smooth(data: Ordered) -> SmoothCE:
    value, (upper, witness, flow) = smooth_of_residuals(data.v, data.rho)
    return SmoothCE(value, upper, data.back(witness), flow)


@jax.custom_jvp
def smooth_of_residuals(v: Vector, rho: Vector) -> tuple[Scalar, tuple[Scalar, Vector, Vector]]:
    """Return the value of `SmoothCE` for residuals ``rho`` at ascending ``v``, and its other
    fields, in that order."""
    g = jnp.diff(v, append=v[-1:])
    f = sums(rho)
    good = jnp.all(jnp.isfinite(f) & jnp.isfinite(v))
    a = denoise(f, g)
    jumps = jnp.diff(a, prepend=jnp.zeros(1, a.dtype))
    flow = f - a
    witness = _witness(v, g, flow, jumps)
    upper = jnp.sum(jnp.abs(jumps)) + jnp.sum(g * jnp.abs(flow))
    upper, witness, flow = jax.tree.map(
        lambda x: jnp.where(good, x, jnp.nan), (upper, witness, flow)
    )
    return jnp.sum(rho * witness), (upper, witness, flow)


@smooth_of_residuals.defjvp
def _slope(primals: tuple[Vector, Vector], tangents: tuple[Vector, Vector]) -> PyTree:
    """Differentiate by the envelope theorem: d/d rho_i is the witness, d/d v_i is |flow| before v_i
    minus |flow| after it. The other outputs have derivative 0."""
    solution = smooth_of_residuals(*primals)
    _, (_, witness, flow) = solution
    size = jnp.abs(flow)
    before = jnp.concatenate([jnp.zeros(1, size.dtype), size[:-1]])
    slope = jnp.sum((before - size) * tangents[0]) + jnp.sum(witness * tangents[1])
    return solution, (slope, jax.tree.map(jnp.zeros_like, solution[1]))


def _witness(v: Vector, g: Vector, flow: Vector, jumps: Vector) -> Vector:
    """Return an optimal weight w at each v, [n]. See `denoise` for F and a.

    w is 1 where a rises (``jumps`` > 0) and -1 where a falls. The slope of w is -1 where ``flow`` =
    F - a is positive, 1 where it is negative, and between -1 and 1 where it is 0. The result is the
    mean of the largest and the smallest w that satisfy this."""
    sign = jnp.where(jnp.any(jumps < 0), -1, 1).astype(v.dtype)
    floor = jnp.where(jumps != 0, 1, -1).astype(v.dtype)
    fixed = -g * jnp.sign(sign * flow)

    def position(steps: Array) -> Array:
        return sums(jnp.concatenate([jnp.zeros(1, v.dtype), steps[:-1]]))

    up = position(jnp.where(flow == 0, g, fixed))
    down = position(jnp.where(flow == 0, -g, fixed))
    largest = jnp.minimum(up + least(1 - up), down + least(1 - down, reverse=True))
    smallest = -jnp.minimum(least(down - floor) - down, least(up - floor, reverse=True) - up)
    raw = sign * (largest + smallest) / 2
    # rounding may leave a slope above 1: take the largest Lipschitz function below
    from_left = least(raw - v) + v
    from_right = least(raw + v, reverse=True) - v
    return jnp.clip(jnp.minimum(from_left, from_right), -1, 1)


class KernelCE(Result):
    """Kernel calibration error with its witness.

    Differentiate ``squared``: the root has no derivative at 0.

    Attributes:
        value: Square root of ``squared``, [].
        squared: V-statistic of the square, []; non-negative up to rounding, biased upwards.
        unbiased: U-statistic of the square, []; may be negative, and is NaN for one observation.
        witness: Function f of norm 1 in the kernel's space that maximizes the mean of f(v) (y - v),
            evaluated at each observation, [n]; 0 if the error is 0.
    """

    value: Scalar
    squared: Scalar
    unbiased: Scalar
    witness: Vector

    def _lines(self) -> list[str]:
        return [
            f"kernel calibration error {float(self.value):.6g} "
            f"(square: {float(self.squared):.4g} biased, {float(self.unbiased):.4g} unbiased)"
        ]


@jax.jit
def _laplace(data: Ordered, bandwidth: Scalar) -> KernelCE:
    v, rho = data.v, data.rho
    left, right = decaying_sums(v, rho, bandwidth)
    h = left + right - rho
    squared = jnp.sum(rho * h)
    value = safe_sqrt(squared)
    pairs = 1 - jnp.sum(data.w**2)
    unbiased = (squared - jnp.sum(rho**2)) / jnp.where(pairs > 1e-12, pairs, jnp.nan)
    return KernelCE(value, squared, unbiased, data.back(of_unit_norm(h, value)))


def of_unit_norm(h: Vector, norm: Scalar) -> Vector:
    """Return ``h / norm``: 0 if the norm is 0, and NaN if the norm is NaN."""
    return jnp.where(norm > 0, h / jnp.where(norm > 0, norm, 1), 0 * norm)


def decaying_sums(v: Vector, rho: Vector, bandwidth: Scalar) -> tuple[Vector, Vector]:
    """Return the sums over j <= i, and over j >= i, of rho_j exp(-|v_i - v_j| / bandwidth)."""
    decay = jnp.exp(-jnp.diff(v) / bandwidth)
    none = jnp.zeros(1, v.dtype)

    def recursion(x: tuple[Array, Array], y: tuple[Array, Array]) -> tuple[Array, Array]:
        return x[0] * y[0], x[1] * y[0] + y[1]

    _, left = prefixes(recursion, (jnp.concatenate([none, decay]), rho))
    _, right = prefixes(recursion, (jnp.concatenate([decay, none]), rho), reverse=True)
    return left, right


@recorded
def kernel_ce(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    bandwidth: ArrayLike = 1.0,
    weights: ArrayLike | None = None,
) -> KernelCE:
    r"""Return the kernel calibration error (MMCE) with the kernel :math:`e^{-|v - v'| / \ell}`.

    With bandwidth 1, as in the paper, the value is at most the square root of the true distance.
    With other kernels it may not be a consistent measure: a Gaussian kernel misses rapid changes
    (Theorem 8.6). The result is differentiable in all arguments (one-sided where predictions tie)
    and works under jit and vmap.

    Args:
        predictions: Probabilities of label 1, [n].
        targets: Labels 0 or 1, or means of labels, [n].
        bandwidth: Length :math:`\ell` of the kernel, in units of probability, [].
        weights: Weights of the observations, [n], >= 0.

    Returns:
        `KernelCE`.

    Cost: one sort and O(n).

    Source: Blasiok et al. (2023), Def. 8.1, Lemma 8.2 and eq. 28.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> predictions, targets = jnp.full(4, 0.7), jnp.array([0, 0, 1, 1])
        >>> round(float(jaxcal.dce.kernel_ce(predictions, targets).value), 3)
        0.2
    """
    bandwidth = convert.number(bandwidth, "bandwidth", above=0)
    data = ordered(binary(predictions, targets, weights))
    return _laplace(data, bandwidth.astype(data.v.dtype))
