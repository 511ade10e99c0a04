r"""How large is a value of CKCE? The temperature or shift of equal miscalibration.

A value of CKCE depends on the ridge, and so on n, and on the kernel. The temperature T at which
predictions q would be as wrong, :math:`P(Y | q) \propto q^{1/T}`, goes through the same ridge and
kernel, and has a meaning of its own: 1 is calibrated, 2 is logits twice too large.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.ckce.expansion import Expansion
from jaxcal.ckce.multipliers import order_statistic
from jaxcal.numerics import at_least
from jaxcal.typing import DTypeLike, Key, Scalar

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


def temperatures(dtype: DTypeLike) -> Float[Array, " g"]:
    """Sizes of overconfidence, from 1 to 16."""
    return jnp.exp(jnp.linspace(0, jnp.log(HOTTEST), TEMPERATURES)).astype(dtype)


def all_softened(
    q: Float[Array, "n m"], root: Float[Array, "m m"] | None
) -> Float[Array, "n columns"]:
    """`softened` at all `temperatures`, side by side."""
    each = jax.vmap(lambda size: softened(q, size, root), out_axes=1)(temperatures(q.dtype))
    return each.reshape(q.shape[0], -1)


def curve_of(spectrum: Float[Array, " r"], moments: Float[Array, "r columns"]) -> Curve:
    """CKCE of overconfidence, from the products of features with `all_softened` in the eigenbasis
    of A = F^T F + n ridge I and its eigenvalues."""
    each = jnp.sum((moments / spectrum[:, None]) ** 2, axis=0).reshape(TEMPERATURES, -1)
    return Curve(temperatures(spectrum.dtype), jnp.sum(each, axis=1))


def noise_quantile(
    key: Key, expansion: Expansion, *, level: float | Scalar, n_draws: int
) -> Scalar:
    """The upper quantile of the second term."""
    second = expansion.second
    v = jax.random.normal(key, (n_draws, second.shape[0]), second.dtype)
    return order_statistic(jnp.sum((v @ second) * v, axis=1), 1 - level)
