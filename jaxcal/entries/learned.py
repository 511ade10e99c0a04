r"""An entry along a feature that is learned: for errors that no listed feature follows.

Observations are divided at random into parts. From the first k parts a ridge regression on random
waves of the listed features learns the mean :math:`\hat t_k` of each moment; the entry of an
observation in the next part is :math:`\sum_q \hat t_{kq}(p) t_q`. Its mean is 0 given all earlier
parts, so the sum is a martingale under calibration, and positive if the learned errors recur.

Source: Dawid (1984), Statistical theory: the prequential approach, for judging each part by earlier
ones; Rahimi and Recht (2007) for random waves.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxcal.entries.moments import Frame, Group, whole
from jaxcal.entries.ranks import Seen
from jaxcal.numerics import eliminated, normal_of, uniforms
from jaxcal.typing import Key, Points

PARTS = 5
PENALTY = 10.0  # ridge of the regression, in observations
WAVES = 32  # number of waves: half along single features, half along all
WEIGHT = 0.08  # prior weight of the alternative
LENGTHS = 0.75  # length of a wave, in deviations of a feature


def varying(
    key: Key, frame: Frame, seen: Seen, inputs: Points | None, kept: Bool[Array, " n"]
) -> Group:
    """Return the alternative of shifts or spreads that depend on predictions and inputs in any way.

    Cost per observation: 4 (PARTS - 1) WAVES^2 multiplications.
    """
    features = jnp.concatenate(frame.features(seen, inputs), axis=1)
    (n, q), keys = features.shape, jax.random.split(key)
    chance, place = uniforms([*keys], [(q, WAVES), (n,)], features.dtype)
    waves = _waves(normal_of(chance) / LENGTHS, features)
    moments = jnp.concatenate([seen.ranks.normal, whole(seen.ranks)], axis=1)
    moments = jnp.where(kept[:, None], moments, 0)  # NaN must not enter the entries of others
    part = jnp.where(kept, jnp.floor(PARTS * place).astype(int), PARTS)
    return Group("varying", WEIGHT, [learned(waves, moments, part)], positive=True)


def learned(
    features: Float[Array, "n r"], moments: Float[Array, "n q"], part: Int[Array, " n"]
) -> Float[Array, "n 1"]:
    """Return the entries of n observations. They are 0 in part 0 and in parts from `PARTS` on; the
    latter are not used for learning. Constant errors are learned but left out of the entries."""
    centered = features - jnp.mean(features, axis=0, keepdims=True)
    regressors = jnp.concatenate([jnp.ones_like(centered[:, :1]), centered], axis=1)
    ridge = jnp.diag(jnp.full(regressors.shape[1], PENALTY, features.dtype).at[0].set(1))

    def of_part(k: Array) -> Float[Array, " n"]:
        earlier = jnp.where((part < k)[:, None], regressors, 0)
        slopes = eliminated(earlier.T @ regressors + ridge, earlier.T @ moments).solutions
        return jnp.where(part == k, jnp.sum((centered @ slopes[1:]) * moments, axis=1), 0)

    return jnp.sum(jax.lax.map(of_part, jnp.arange(1, PARTS)), axis=0)[:, None]


def _waves(drawn: Float[Array, "q w"], features: Float[Array, "n q"]) -> Float[Array, "n r"]:
    q, half = len(drawn), WAVES // 2
    along_one = jnp.where(jnp.arange(q)[:, None] == jnp.arange(half)[None] % q, drawn[:, :half], 0)
    angles = features @ jnp.concatenate([along_one, drawn[:, half:] / q**0.5], axis=1)
    return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=1)
