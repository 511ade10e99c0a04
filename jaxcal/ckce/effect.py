r"""How large is a value of CKCE? The temperature or shift of equal miscalibration.

A value of CKCE depends on the ridge, and so on n, and on the kernel. The temperature T at which
predictions q would be as wrong, :math:`P(Y | q) \propto q^{1/T}`, goes through the same ridge and
kernel, and has a meaning of its own: 1 is calibrated, 2 is logits twice too large, 1/2 is logits
half as large as is right.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.ckce.expansion import Fitted
from jaxcal.numerics import at_least
from jaxcal.typing import DTypeLike, Scalar

HOTTEST = 16.0
TEMPERATURES = 13  # on each side, with 1
SHIFTS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)  # in standard deviations of the targets


class EffectSize(NamedTuple):
    """The fault of known size that scores as much as each model.

    Attributes:
        value: [M] That of the corrected values. Temperatures are above 1 where the residuals say
            that a model is overconfident, and below 1 where underconfident.
        low, high: [M] The sizes with values inside the interval of the model; where that holds 0,
            temperatures on both sides of 1. Infinite, or a temperature of 0, beyond the largest
            fault that was tried.
        calibrated: [M] The size, on the side of ``value``, nearer to calibration than which a
            calibrated model with the same predictions appears, by label noise alone, with
            probability 1 - level.
    """

    value: Float[Array, "*M"]
    low: Float[Array, "*M"]
    high: Float[Array, "*M"]
    calibrated: Float[Array, "*M"]


class Curve(NamedTuple):
    """CKCE without label noise of faults of known size.

    Attributes:
        sizes: [g] Sizes, rising from none.
        values: [g] CKCE of each.
        inverse: [g] CKCE of each size's inverse; None where faults have no opposite.
        opposite: [] Whether the residuals have the direction of the inverses.
    """

    sizes: Float[Array, " g"]
    values: Float[Array, " g"]
    inverse: Float[Array, " g"] | None = None
    opposite: Scalar | None = None

    def effect(self, value: Scalar, low: Scalar, high: Scalar, noise: Scalar) -> EffectSize:
        """The faults of a value, of the ends of its interval, and of label noise."""

        def sizes(values: Array) -> tuple[Scalar, ...]:
            return tuple(_size(self.sizes, values, end) for end in (value, low, high, noise))

        above = sizes(self.values)
        if self.inverse is None or self.opposite is None:
            return EffectSize(*above)
        value, top, bottom, noise = (1 / size for size in sizes(self.inverse))
        below = EffectSize(value, bottom, top, noise)
        pairs = zip(above, below, strict=True)
        both = EffectSize(*(jnp.where(self.opposite, under, over) for over, under in pairs))
        crosses = low <= 0
        return both._replace(
            low=jnp.where(crosses, below.low, both.low),
            high=jnp.where(crosses, above[2], both.high),
        )


def _size(sizes: Array, values: Array, value: Scalar) -> Scalar:
    """The size of the fault with this value; the smallest for one that is not positive."""
    roots = jnp.sqrt(jax.lax.cummax(values))
    root = jnp.sqrt(at_least(value, 0))
    size = jnp.where(root > roots[-1], jnp.inf, jnp.interp(root, roots, sizes))
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
    """`softened` at all `temperatures` but 1, and at their inverses, side by side."""
    above = temperatures(q.dtype)[1:]
    sizes = jnp.concatenate([above, 1 / above])
    each = jax.vmap(lambda size: softened(q, size, root), out_axes=1)(sizes)
    return each.reshape(q.shape[0], -1)


def curve_of(fitted: Fitted) -> Curve:
    """CKCE of over- and underconfidence, from the coefficients of `all_softened`; the side is that
    of the least fault whose coefficients have the direction of the residuals'."""
    r, p = fitted.theta.shape
    faults = fitted.others.reshape(r, 2, TEMPERATURES - 1, p)
    none = jnp.zeros((2, 1), faults.dtype)
    over, under = jnp.concatenate([none, jnp.sum(faults**2, axis=(0, 3))], axis=1)
    along = jnp.einsum("rp,rsp->s", fitted.theta, faults[:, :, 0])
    return Curve(temperatures(faults.dtype), over, under, along[1] > along[0])
