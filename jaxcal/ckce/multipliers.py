r"""Intervals and tests for U-statistics and their differences, right also where these degenerate.

Every difference is divided by an estimate of its own standard deviation, and the ratio is compared
with the same ratio in draws of a multiplier bootstrap. With l and G the sums of the two influence
functions (`jaxcal.ckce.expansion`) and v standard normal,

.. math:: D^* = \kappa\, v^\top l + v^\top G v, \qquad
          s^{*2} = 2 \|G\|^2 + (\|\kappa l + 2 G v\|^2 - 4 \|G\|^2)_+.

:math:`\|l\|^2` exceeds the variance of the first term by :math:`4 \|G\|^2` on average, since theta
is estimated: that is why an ordinary bootstrap is too wide where models are calibrated. It is taken
away from the variance, and from l by :math:`\kappa^2 = (1 - 4 \|G\|^2 / \|l\|^2)_+`.

Where labels are rare, the residuals do not say how large they could have been. So every test is
made twice, with the noise of the residuals and with the noise C that the predictions claim, whose
deviation :math:`\sqrt 2 \|C\|` is known and not estimated; what either does not contradict stays.
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
    """Every pair of M statistics, row minus column, by two kinds of noise, and each statistic.

    Attributes:
        error: [2, M, M] Standard deviations of the differences: by the residuals, and as claimed
            where all are calibrated.
        ratios: [b, 2, M, M] Draws of difference over standard deviation.
        terms: [b, 2, M] Draws of the second term of each statistic, by both kinds of noise.
        normal: [b] Standard normal draws.
    """

    error: Float[Array, "2 M M"]
    ratios: Float[Array, "b 2 M M"]
    terms: Float[Array, "b 2 M"]
    normal: Float[Array, " b"]


def studentized(key: Key, expansions: Expansion, *, n_draws: int) -> Studentized:
    """The standard deviation of every difference, and draws of their ratio.

    Args:
        key: Random key.
        expansions: Of M statistics of the same observations, stacked, with the same blocks.
        n_draws: How many draws, b.

    Returns:
        `Studentized`; ratios are 0 where a standard deviation is.

    Cost: two products of b and M k^2 numbers, and b M^2 k multiplications for k blocks.
    """
    values, first, second, claimed = (
        getattr(expansions, name) for name in ("value", "first", "second", "claimed")
    )
    count, k = first.shape
    with jax.default_matmul_precision("highest"):
        lead = _between(first @ first.T)
        square, expected = (
            _between(flat @ flat.T) for flat in (a.reshape(count, -1) for a in (second, claimed))
        )
        own = jnp.maximum(jnp.sum(first**2, axis=1), jnp.sum(second**2, axis=(1, 2)))
    # of equal models rounding alone is left
    size = jnp.max(jnp.where(jnp.isfinite(own), own, 0))
    some = (lead + square) > 100 * jnp.finfo(values.dtype).eps * size
    lead, square, expected = (
        jnp.where(some | jnp.isnan(a), a, 0) for a in (lead, square, expected)
    )
    excess = at_least(lead - 4 * square, 0)
    kappa = jnp.sqrt(excess / jnp.where(lead > 0, lead, 1))
    error = jnp.sqrt(jnp.stack([2 * square + excess, 2 * expected]))

    def ratio(along: Array, draws: Array, cross: Array, products: Array) -> Array:
        """Of one draw: v'l [M], v'Gv and v'Cv [2, M], l'Gv and (Gv)'Gv [M, M], to difference over
        spread."""
        parts = jnp.diagonal(cross)
        cross = parts[:, None] + parts[None] - cross - cross.T
        drawn = draws[:, :, None] - draws[:, None]
        drawn = drawn.at[0].add(kappa * (along[:, None] - along[None]))
        moved = kappa**2 * lead + 4 * kappa * cross + 4 * _between(products)
        spread = jnp.sqrt(2 * square + at_least(moved - 4 * square, 0))
        spread = jnp.stack([spread, error[1]])
        drawn = drawn / jnp.where(spread > 0, spread, 1)
        return jnp.where((spread > 0) | jnp.isnan(spread), drawn, 0)

    def chunk(key: Key) -> tuple[Array, Array]:
        with jax.default_matmul_precision("highest"):
            v = jax.random.normal(key, (CHUNK, k), values.dtype)
            pulled, expected = (jnp.einsum("bk,ikl->bil", v, a) for a in (second, claimed))
            draws = jnp.stack([jnp.einsum("bil,bl->bi", a, v) for a in (pulled, expected)], axis=1)
            cross = jnp.einsum("il,bjl->bij", first, pulled)
            products = jnp.einsum("bil,bjl->bij", pulled, pulled)
            along = v @ first.T
        return jax.vmap(ratio)(along, draws, cross, products), draws

    normal_key = jax.random.fold_in(key, 1)
    keys = jax.random.split(key, -(-n_draws // CHUNK))
    ratios, terms = (a.reshape(-1, *a.shape[2:])[:n_draws] for a in jax.lax.map(chunk, keys))
    return Studentized(error, ratios, terms, jax.random.normal(normal_key, (n_draws,), error.dtype))


def value_interval(
    expansion: Expansion,
    terms: Float[Array, "b 2"],
    normal: Float[Array, " b"],
    level: float | Scalar,
) -> tuple[Scalar, Scalar]:
    r"""The values T >= 0 of one statistic that its draws do not contradict, confidence 1 - level.

    Where the true value is T the statistic U is drawn as :math:`T + \sqrt{s T} Z + v^\top G v`, s
    its slope: the first term vanishes with T. Each draw is at least U exactly where T is at least
    the root of that equation (0, where there is none), so that the tests of all T are inverted by
    quantiles of the roots. ``terms`` holds draws of the last term by both kinds of noise.
    """
    gaps = expansion.value - terms
    first = jnp.sqrt(expansion.slope) * normal[:, None]
    roots = at_least((jnp.sqrt(at_least(first**2 + 4 * gaps, 0)) - first) / 2, 0) ** 2
    low = -order_statistic(-jnp.where(gaps > 0, roots, 0), 1 - level / 2)
    ends = jnp.min(low), jnp.max(order_statistic(roots, 1 - level / 2))
    low, high = (jnp.where(jnp.isfinite(expansion.value), end, jnp.nan) for end in ends)
    return low, high


def order_statistic(
    draws: Float[Array, "b *shape"], share: float | Scalar
) -> Float[Array, "*shape"]:
    """The draw below which a new one of the same distribution is with probability ``share``, at
    least; the largest where there are too few."""
    b = draws.shape[0]
    rank = jnp.ceil(jnp.asarray(share, draws.dtype) * (b + 1)).astype(jnp.int32)
    return jnp.sort(draws, axis=0)[jnp.clip(rank, 1, b) - 1]


def _between(products: Float[Array, "M M"]) -> Float[Array, "M M"]:
    """Squared distances from inner products."""
    squares = jnp.diagonal(products)
    return at_least(squares[:, None] + squares[None] - 2 * products, 0)
