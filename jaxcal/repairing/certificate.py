r"""What maps gain on pairs that they were not fitted to, with limits.

Pair i of fold k(i) is judged by the map :math:`\theta_{k(i)}` that the K - 1 other folds fit. Let
:math:`g_i(\theta)` be its gain and G the expectation on new pairs. To second order about the best
map, with slopes :math:`S_k` summed over fold k and A the inverse information, the error of the
mean gain is

.. math::
    \frac{1}{n} \sum_i [g_i(\theta_{k(i)}) - G(\theta_{k(i)})]
    = \frac{1}{n} \sum_i [g_i(\theta^*) - G(\theta^*)] + \frac{1}{n} \sum_{k \ne l} S_k^\top A S_l.

Every pair of folds comes twice in the second sum: k judges what l has done to the map, and l what k
has done, and the two products are the same. So with L and Q the sums of squares that the two sums
contribute to that of the gains, V = L + Q, the variance is (L + 2 Q) / n^2 = (V + Q) / n^2, not
V / n^2. Of right predictions L is 0, and limits that count V alone hold in .84 for .95. Q is seen
in what each fold does to the map: the gain of pair i by the map of all pairs less that by the map
without fold l.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxcal.moments.marginal_means import student_p_value, student_quantile
from jaxcal.typing import Key, Scalar, Vector

NATS, ENERGY = "nats", "energy score"
UNITS = {NATS: "nats an observation", ENERGY: "of the energy score"}


def folds_of(key: Key, n: int, folds: int) -> Int[Array, " n"]:
    """The fold of each of n pairs, at random, of sizes that differ by 1 at most."""
    return jax.random.permutation(key, jnp.arange(n) % folds)


@jax.jit
def certificate(
    gains: Float[Array, "k n"], fold: Int[Array, " n"], level: Scalar | float
) -> tuple[Scalar, Scalar, Scalar, Scalar, Vector]:
    """Mean gain of pairs by the maps fitted without them, limits, one-sided p-value, and the gain
    of each pair.

    Args:
        gains: Gains of all pairs by the map without fold 0, 1, .. and, last, by that of all pairs;
            NaN in pairs that were not used.
        fold: Fold of each pair.
        level: Limits have confidence 1 - level.
    """
    held_out = gains[fold, jnp.arange(len(fold))]
    used = ~jnp.isnan(held_out)
    count = jnp.sum(used, dtype=gains.dtype)
    mean = jnp.nanmean(held_out)
    squares = jnp.nansum((held_out - mean) ** 2) * count / (count - 1)
    error = jnp.sqrt(squares + _shared(gains, fold, used)) / count
    reach = student_quantile(1 - level / 2, count - 1) * error
    two_sided = student_p_value(mean, error, count - 1)
    p = jnp.where(mean > 0, two_sided / 2, 1 - two_sided / 2)
    lost = mean == -jnp.inf  # a target where the repaired density is 0
    low, high = (jnp.where(lost, mean, mean + side * reach) for side in (-1, 1))
    return mean, low, high, jnp.where(lost, 1, p), held_out


def _shared(gains: Float[Array, "k n"], fold: Int[Array, " n"], used: Array) -> Scalar:
    """Return Q, the sum of squares of the changes by each fold to the gains of other folds' pairs.

    The best map is unknown, so that the effect of a fold is measured about the mean of all K folds,
    and the sum is multiplied by K / (K - 1).
    """
    folds = len(gains) - 1
    moved = gains[-1:] - gains[:-1]
    others = used[None] & (fold[None] != jnp.arange(folds)[:, None]) & jnp.isfinite(moved)
    moved = jnp.where(others, moved, 0)
    counts = jnp.maximum(jnp.sum(others, axis=1, keepdims=True, dtype=gains.dtype), 1)
    middle = jnp.sum(moved, axis=1, keepdims=True) / counts
    squares = jnp.where(others, (moved - middle) ** 2, 0)
    return jnp.sum(squares) * folds / (folds - 1)


def say_gain(repair: Any) -> list[str]:
    """Lines on n, folds, gain and limits of a repair."""
    n = repair.gains.shape[-1]
    return [f"repair, n = {n}, {repair.n_folds} folds", f"  gain    {gain_in_words(repair)}"]


def gain_in_words(repair: Any) -> str:
    """Gain, its unit, limits and p-value."""
    low, high = float(repair.low), float(repair.high)
    return (
        f"{float(repair.gain):.3g} {UNITS[repair.unit]}   ({1 - repair.level:.0%} limits "
        f"{low:.3g} to {high:.3g}, p = {float(repair.p_value):.2g})"
    )
