r"""How large is a value of CKCE? The temperature or shift of equal miscalibration.

A value of CKCE depends on the ridge, and so on n, and on the kernel. The temperature T at which
predictions q would be as wrong, :math:`P(Y | q) \propto q^{1/T}`, goes through the same ridge and
kernel, and has a meaning of its own: 1 is calibrated, 2 is logits twice too large.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.ckce import solve
from jaxcal.ckce.expansion import Expansion
from jaxcal.ckce.features import TILE, FeatureMap
from jaxcal.ckce.multipliers import order_statistic
from jaxcal.numerics import at_least
from jaxcal.typing import Key, Scalar

HOTTEST = 16.0
TEMPERATURES = 17


class EffectSize(NamedTuple):
    """The fault of known size that scores as much as each model.

    Attributes:
        value: [M] That of the corrected values.
        low, high: [M] Those of the ends of their intervals; infinite beyond the largest fault
            that was tried.
        calibrated: [M] The size below which a calibrated model with the same predictions appears,
            by label noise alone, with probability 1 - level.
    """

    value: Float[Array, "*M"]
    low: Float[Array, "*M"]
    high: Float[Array, "*M"]
    calibrated: Float[Array, "*M"]


class Curve(NamedTuple):
    """CKCE without label noise, ``values`` [g], of faults of the ``sizes`` [g], rising."""

    sizes: Float[Array, " g"]
    values: Float[Array, " g"]

    def size(self, value: Array) -> Array:
        """The size of the fault with this value; the smallest for one that is not positive."""
        roots = jnp.sqrt(jax.lax.cummax(self.values))
        root = jnp.sqrt(at_least(value, 0))
        inside = jnp.interp(root, roots, self.sizes)
        size = jnp.where(root > roots[-1], jnp.inf, inside)
        # no fault of a constant, even forecast makes a difference, so none is as large
        return jnp.where(roots[-1] > 0, jnp.where(jnp.isnan(value), jnp.nan, size), jnp.nan)


def softened(
    q: Float[Array, "n m"], temperature: Scalar, root: Float[Array, "m m"] | None
) -> Float[Array, "n m"]:
    """Mean residuals of predictions that are right after division of their logits."""
    positive = q > 0
    logs = jnp.where(positive, jnp.log(jnp.where(positive, q, 1)) / temperature, -jnp.inf)
    plain = jax.nn.softmax(logs, axis=-1) - q
    return plain if root is None else plain @ root


def temperatures(
    features: FeatureMap,
    q: Float[Array, "n m"],
    low: Float[Array, "r r"],
    root: Float[Array, "m m"] | None,
    weights: Float[Array, " n"],
) -> Curve:
    r"""CKCE of overconfidence by temperatures from 1 to 16, at the factor ``low`` of F^T F + n
    ridge I. Cost 17 n r m multiplications, memory 17 r m."""
    sizes = jnp.exp(jnp.linspace(0, jnp.log(HOTTEST), TEMPERATURES)).astype(q.dtype)
    n = q.shape[0]
    side = min(n, TILE)
    missing = -n % side
    rows = jnp.concatenate([q, q[:1].repeat(missing, 0)]).reshape(-1, side, q.shape[1])
    counted = jnp.concatenate([weights, jnp.zeros(missing, q.dtype)]).reshape(-1, side)

    def step(sums: Array, block: tuple[Array, Array]) -> tuple[Array, None]:
        x, weight = block
        f = (features(x) * weight[:, None]).T
        new = jax.lax.map(lambda size: f @ softened(x, size, root), sizes)
        return sums + new, None

    with jax.default_matmul_precision("highest"):
        start = jnp.zeros((TEMPERATURES, low.shape[0], q.shape[1]), q.dtype)
        moments = jax.lax.scan(step, start, (rows, counted))[0]
        values = jax.lax.map(lambda g: jnp.sum(solve.solve(low, g) ** 2), moments)
    return Curve(sizes, values)


def noise_quantile(
    key: Key, expansion: Expansion, *, level: float | Scalar, n_draws: int
) -> Scalar:
    """The upper quantile of the second term."""
    second = expansion.second
    v = jax.random.normal(key, (n_draws, second.shape[0]), second.dtype)
    return order_statistic(jnp.sum((v @ second) * v, axis=1), 1 - level)
