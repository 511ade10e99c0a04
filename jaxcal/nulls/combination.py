r"""One p-value from several statistics that share the draws of one null.

Every statistic and its draws are brought to one scale, and their soft maximum is compared with that
of each draw, so that their dependence is taken as it is.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool

from jaxcal.nulls.contract import Outcome
from jaxcal.results import Parts


def strongest(
    outcome: Outcome, names: tuple[str, ...], left_out: Bool[Array, " c"]
) -> tuple[Outcome, Parts]:
    r"""The soft maximum :math:`\log \sum_c e^{z_c}` of the standardized parts, and each by itself.

    ``outcome``: row 0 is ignored, the others are the parts; one row is one part. Each statistic is
    divided by the standard deviation of its draws, itself counted as one; draws have mean 0. What
    several parts see a little of counts more than in their maximum, by at most log c. A part
    whose draws have no spread, or that is ``left_out``, takes no part; p is NaN where none is left,
    or where one is not finite. A null without draws gives the smallest p-value times their number
    (Bonferroni), and an error that holds whichever part is the smallest.
    Source: Westfall and Young (1993), for several statistics with their draws in common; Biggs,
    Schrab and Gretton (2023), MMD-FUSE, for a soft maximum.
    """
    rows = slice(1, None) if outcome.p_value.size > 1 else slice(None)
    parts = jax.tree.map(lambda leaf: leaf[rows], outcome._replace(stretches=None))
    sizes = jnp.std(jnp.concatenate([parts.statistic[:, None], parts.samples], axis=1), axis=1)
    drawn = parts.samples.shape[1] > 0
    if not drawn:
        sizes = jnp.where(parts.standard_error == 0, 0.0, 1.0).astype(parts.statistic.dtype)
    used = (sizes != 0) & ~left_out
    scale = jnp.where(used, sizes, 1)
    standardized = jnp.where(used, parts.statistic / scale, -jnp.inf)
    finite = jnp.all(jnp.isfinite(parts.p_value) | ~used) & jnp.any(used)
    p_values = jnp.where(used, parts.p_value, jnp.nan)
    winner = jnp.argmax(standardized) if drawn else jnp.nanargmin(jnp.where(used, p_values, 2))
    if drawn:
        each = jnp.where(used[:, None], parts.samples / scale[:, None], -jnp.inf)
        draws, statistic = jax.nn.logsumexp(each, axis=0), jax.nn.logsumexp(standardized)
        exceeding = jnp.sum(draws >= statistic)
        p = (1 + exceeding).astype(scale.dtype) / (1 + draws.size)
    else:
        draws, statistic = jnp.zeros((0,), scale.dtype), standardized[winner]
        p = jnp.minimum(jnp.sum(used).astype(scale.dtype) * p_values[winner], 1)
    p, size, error = jnp.where(finite, p, jnp.nan), scale[winner], None
    if parts.p_error is not None:
        ends = jnp.stack([p_values - parts.p_error, p_values + parts.p_error])
        off = jnp.max(jnp.abs(jnp.nanmin(ends, axis=1) - p_values[winner]))
        error = (jnp.sum(used).astype(scale.dtype) * off)[None]

    def of_winner(leaf: Array) -> Array:
        return (leaf[winner] / size)[None]

    combined = Outcome(
        of_winner(parts.estimate),
        of_winner(parts.biased),
        statistic[None],
        p[None],
        jnp.where(finite, draws, jnp.nan)[None],
        of_winner(parts.contributions),
        of_winner(parts.standard_error),
        outcome.stretches,
        error,
    )
    return combined, Parts(names, jnp.where(used, standardized, jnp.nan), p_values, winner, ~used)
