r"""Regress the outcome on the prediction p, with Dirichlet or beta kernels as weights.

.. math:: \hat g(p) = \frac{\sum_i o_i k(p; z_i)}{\sum_i k(p; z_i)}, \qquad
          k(p; z) = \mathrm{Dir}(p \mid z / b + 1)

with training inputs z_i, outcomes o_i and bandwidth b. A confidence c is the point (c, 1 - c), for
which the kernel is a beta density. Source: Gruber and Bach (2025), eq. 11, 25, 26. The paper does
not state the kernel; this one, a density in p with parameters from z, is from the authors' code.

Many confidences of a float32 network are exactly 0 or 1, where :math:`z \log p` may be 0 times
infinity. If p has zero coordinates, only the training points with the smallest sum of z over these
coordinates have weight. This is the limit of the ratio if these coordinates go to 0 together.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import gammaln
from jaxtyping import Array, Float

from jaxcal.squared_ce.functions import Factors, Setting, one_problem, positive
from jaxcal.squared_ce.reductions import Reduced
from jaxcal.typing import Scalar

GRID = (*(10 ** (-1 - 4 * i / 14) for i in range(15)), 0.2, 0.4, 0.6, 0.8, 1.0)
BLOCK = 2**20  # entries of a block of kernel values


class KernelDensity(eqx.Module):
    """Estimate the residual p - g(p), where g is a kernel regression of the outcome on p (kde).

    Args:
        bandwidths: Bandwidths to try; by default the 20 of the paper, from 1e-5 to 1.

    Cost: O(n_train n d) per candidate at n observations, which are processed in blocks.

    Source: Gruber and Bach (2025), eq. 11, 25, 26; the kernel is that of the authors' code.

    Example:
        >>> import jaxcal
        >>> kde = jaxcal.squared_ce.KernelDensity((0.05, 0.2))  # used as `KernelRidge`
    """

    bandwidths: tuple[float, ...] = eqx.field(
        default=GRID, static=True, converter=lambda v: positive(v, "bandwidths")
    )

    @property
    def name(self) -> str:
        return "kde"

    def grid(self, problem: Reduced) -> list[Setting]:
        return [{"bandwidth": value} for value in self.bandwidths]

    def fit(self, train: Reduced, shared: list[object]) -> "FittedDensity":
        one_problem(train)
        settings = jnp.asarray(self.bandwidths, train.inputs.dtype)
        return FittedDensity(on_simplex(train.inputs), train.outcomes, settings)


class FittedDensity(eqx.Module):
    """`KernelDensity` fitted to n points on the simplex; ``settings``: the c bandwidths."""

    points: Float[Array, "n m"]
    outcomes: Float[Array, "n d"]
    settings: Float[Array, " c"]

    @property
    def is_product(self) -> bool:
        return True

    def features(self, inputs: Array) -> Array:
        return inputs

    def factors(self, features: Float[Array, "n d"], setting: Scalar) -> Factors:
        def one(query: Array) -> Array:
            logits = logits_of(on_simplex(query), self.points, setting)
            return query - jax.nn.softmax(logits) @ self.outcomes

        batch = max(1, BLOCK // self.points.shape[0])
        residual = jax.lax.map(one, features, batch_size=batch)
        return Factors(residual, residual)


def on_simplex(inputs: Float[Array, "*n d"]) -> Float[Array, "*n m"]:
    """Return confidences [.., 1] as points (c, 1 - c), and probability vectors unchanged."""
    if inputs.shape[-1] == 1:
        return jnp.concatenate([inputs, 1 - inputs], axis=-1)
    return inputs


def log_kernel(p: Array, points: Array, b: Array | float) -> Float[Array, " t"]:
    """Return log Dir(p | z / b + 1) at one p [m], for each row z of ``points`` [t, m], without the
    factors p_k^(z_k / b) of p_k = 0."""
    total, m = jnp.sum(points, axis=1), p.shape[0]
    constant = gammaln(total / b + m) - jnp.sum(gammaln(points / b + 1), axis=1)
    inside = p > 0
    logs = jnp.where(inside, jnp.log(jnp.where(inside, p, 1.0)), 0.0)
    return jnp.where(jnp.any(jnp.isnan(p)), jnp.nan, constant + points @ logs / b)


def logits_of(p: Array, points: Array, b: Array | float) -> Float[Array, " t"]:
    """Return the log weights of t training points z at p, by `log_kernel`. A weight is 0 where
    another z has a smaller sum of z_k over all k with p_k = 0."""
    powers = points @ (p <= 0).astype(points.dtype)
    return jnp.where(powers <= jnp.min(powers), log_kernel(p, points, b), -jnp.inf)
