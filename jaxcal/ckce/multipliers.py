r"""Intervals and tests for differences of U-statistics, right also where these degenerate.

Every difference is divided by an estimate of its own standard deviation, and the ratio is compared
with the same ratio in draws of a multiplier bootstrap. With l and G the sums of the two influence
functions (`jaxcal.ckce.expansion`) and v standard normal,

.. math:: D^* = \kappa\, v^\top l + v^\top G v, \qquad
          s^{*2} = 2 \|G\|^2 + (\|\kappa l + 2 G v\|^2 - 4 \|G\|^2)_+.

:math:`\|l\|^2` exceeds the variance of the first term by :math:`4 \|G\|^2` on average, since theta
is estimated: that is why an ordinary bootstrap is too wide where models are calibrated. It is taken
away from the variance, and from l by :math:`\kappa^2 = (1 - 4 \|G\|^2 / \|l\|^2)_+`.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.ckce.expansion import Expansion
from jaxcal.numerics import at_least
from jaxcal.typing import Key, Scalar

CHUNK = 32  # draws at a time


class Studentized(NamedTuple):
    """Of every pair of M statistics and a last one that is 0, [M + 1, M + 1]: row minus column.

    Attributes:
        estimate: The differences.
        error: Their standard deviations.
        ratios: [b, M + 1, M + 1] Draws of difference over standard deviation.
        terms: [b, 2, M + 1] Draws of the first and of the second term of each statistic.
    """

    estimate: Float[Array, "N N"]
    error: Float[Array, "N N"]
    ratios: Float[Array, "b N N"]
    terms: Float[Array, "b 2 N"]


def studentized(key: Key, expansions: Expansion, *, n_draws: int) -> Studentized:
    """Every difference, its standard deviation, and draws of their ratio.

    Args:
        key: Random key.
        expansions: Of M statistics of the same observations, stacked, with the same blocks.
        n_draws: How many draws, b.

    Returns:
        `Studentized`; ratios are 0 where a standard deviation is.

    Cost: one product of b and M k^2 numbers, and b M^2 k multiplications for k blocks.
    """
    values, first, second = (
        jnp.concatenate([a, jnp.zeros_like(a[:1])])
        for a in (expansions.value, expansions.first, expansions.second)
    )
    count, k = first.shape
    with jax.default_matmul_precision("highest"):
        lead = _between(first @ first.T)
        flat = second.reshape(count, -1)
        square = _between(flat @ flat.T)
        scale = jnp.maximum(jnp.diagonal(lead), jnp.diagonal(square))[:-1]
    # of equal models rounding alone is left
    size = jnp.max(jnp.where(jnp.isfinite(scale), scale, 0))
    some = (lead + square) > 100 * jnp.finfo(values.dtype).eps * size
    lead, square = (jnp.where(some | jnp.isnan(a), a, 0) for a in (lead, square))
    excess = at_least(lead - 4 * square, 0)
    kappa = jnp.sqrt(excess / jnp.where(lead > 0, lead, 1))
    error = jnp.sqrt(2 * square + excess)

    def ratio(along: Array, draws: Array, cross: Array, products: Array) -> Array:
        """Of one draw: v'l [N], v'Gv [N], l'Gv and (Gv)'Gv [N, N], to difference over spread."""
        parts = jnp.diagonal(cross)
        cross = parts[:, None] + parts[None] - cross - cross.T
        drawn = kappa * (along[:, None] - along[None]) + draws[:, None] - draws[None]
        moved = kappa**2 * lead + 4 * kappa * cross + 4 * _between(products)
        spread = jnp.sqrt(2 * square + at_least(moved - 4 * square, 0))
        drawn = drawn / jnp.where(spread > 0, spread, 1)
        return jnp.where((spread > 0) | jnp.isnan(spread), drawn, 0)

    def chunk(key: Key) -> tuple[Array, Array]:
        with jax.default_matmul_precision("highest"):
            v = jax.random.normal(key, (CHUNK, k), values.dtype)
            pulled = jnp.einsum("bk,ikl->bil", v, second)
            draws = jnp.einsum("bil,bl->bi", pulled, v)
            cross = jnp.einsum("il,bjl->bij", first, pulled)
            products = jnp.einsum("bil,bjl->bij", pulled, pulled)
            along = v @ first.T
        return jax.vmap(ratio)(along, draws, cross, products), jnp.stack([along, draws], axis=1)

    keys = jax.random.split(key, -(-n_draws // CHUNK))
    ratios, terms = (a.reshape(-1, *a.shape[2:])[:n_draws] for a in jax.lax.map(chunk, keys))
    return Studentized(values[:, None] - values[None], error, ratios, terms)


def value_interval(
    expansion: Expansion, terms: Float[Array, "b 2"], level: float | Scalar
) -> tuple[Scalar, Scalar]:
    r"""The values T of one statistic that its draws do not contradict, of confidence 1 - level.

    Its variance depends on T itself: the first term vanishes at T = 0 and grows as
    :math:`\sqrt T`. So an end is where the statistic is a quantile of
    :math:`T + c \sqrt{T_+}\, v^\top l + v^\top G v` with :math:`c^2 = 1 / estimate`: label
    noise adds to l and to the estimate alike.
    """
    scale = jnp.where(expansion.estimate > 0, expansion.estimate, 1)

    def quantile(value: Scalar, sign: float) -> Scalar:
        """The end of the draws' distribution on one side, where the mean is ``value``."""
        root = jnp.sqrt(at_least(value, 0) / scale)
        return sign * order_statistic(sign * (root * terms[:, 0] + terms[:, 1]), 1 - level / 2)

    observed = expansion.value - expansion.bias
    spread = jnp.sqrt(jnp.mean(terms[:, 0] ** 2) / scale)
    far = jnp.abs(observed) + 8 * spread**2 + 8 * jnp.max(jnp.abs(terms[:, 1]))
    # the largest fixed point of an increasing, concave map, from above
    high = jax.lax.fori_loop(0, 40, lambda _, t: observed - quantile(t, -1.0), 4 * far)

    def halve(_: Array, ends: tuple[Scalar, Scalar]) -> tuple[Scalar, Scalar]:
        middle = (ends[0] + ends[1]) / 2
        above = middle + quantile(middle, 1.0) > observed
        return jnp.where(above, ends[0], middle), jnp.where(above, middle, ends[1])

    at_zero = observed - quantile(jnp.zeros_like(observed), 1.0)
    inside = jax.lax.fori_loop(0, 40, halve, (jnp.zeros_like(observed), at_least(at_zero, 0)))[0]
    ends = jnp.where(at_zero < 0, at_zero, inside), high
    low, high = (jnp.where(jnp.isfinite(observed), end, jnp.nan) for end in ends)
    return low, high


def order_statistic(
    draws: Float[Array, "b *shape"], share: float | Scalar
) -> Float[Array, "*shape"]:
    """The draw below which a new one of the same distribution is with probability ``share``, at
    least; the largest where there are too few."""
    b = draws.shape[0]
    rank = jnp.ceil(jnp.asarray(share, draws.dtype) * (b + 1)).astype(jnp.int32)
    return jnp.sort(draws, axis=0)[jnp.clip(rank, 1, b) - 1]


def _between(products: Float[Array, "N N"]) -> Float[Array, "N N"]:
    """Squared distances from inner products."""
    squares = jnp.diagonal(products)
    return at_least(squares[:, None] + squares[None] - 2 * products, 0)
