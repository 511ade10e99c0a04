"""CKCE of many observations by random Fourier features of its kernel."""

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float

from jaxcal import checks
from jaxcal.ckce import solve
from jaxcal.ckce.features import TILE, primal_fit
from jaxcal.ckce.solvers import Approximation, Predictions, Residuals, Solution
from jaxcal.kernels import grams
from jaxcal.kernels.points import Gaussian, Linear, Sum
from jaxcal.typing import KernelLike, Key, Scalar


class Fourier(eqx.Module):
    """Solver that replaces the Gaussian part of `simplex_kernel` by random Fourier features.

    The paper's estimator, with its default of 100. ``approximation.error`` is the standard
    deviation of an entry of the Gram matrix, n_features^(-1/2) times at most 2^(-1/2).

    Args:
        key: Random key. The same key gives all models the same normal draws, divided by each
            bandwidth, so that comparing them adds no noise.
        n_features: Number of random frequencies.
        tile: Rows at a time.
        mesh: Devices that share the rows.

    Raises:
        ValueError: A number is wrong, or, when used, the kernel is another one.
        TypeError: An argument is of the wrong type; the message names it.

    Cost: O(n p^2) with p = m + 2 features entries a row where p < n, O(n^3) otherwise.

    Source: Moskvichev and Sejdinovic, App. B.

    Example:
        >>> import jax, jaxcal
        >>> logits = jax.random.normal(jax.random.key(0), (100, 3))
        >>> targets = jax.random.categorical(jax.random.key(1), logits)
        >>> solver = jaxcal.ckce.Fourier(2, n_features=20)
        >>> result = jaxcal.ckce.ckce(jax.nn.softmax(logits), targets, solver=solver)
        >>> bool(result.estimate > 0)
        True
    """

    key: Key = eqx.field(converter=checks.key)
    n_features: int = eqx.field(default=100, static=True)
    tile: int = eqx.field(default=TILE, static=True)
    mesh: Mesh | None = eqx.field(default=None, static=True)

    def __check_init__(self):
        checks.integer(self.n_features, "n_features")
        checks.integer(self.tile, "tile")
        checks.devices(self.mesh)

    def __call__(
        self, kernel: KernelLike, q: Predictions, residuals: Residuals, ridge: Scalar
    ) -> Solution:
        match kernel:
            case Sum(left=Linear(), right=Gaussian(bandwidth=bandwidth)):
                pass
            case _:
                raise TypeError(
                    f"prediction_kernel: random features are those of simplex_kernel(), Linear() "
                    f"+ Gaussian(), got {kernel}; the solver LowRank takes any kernel"
                )
        n, m = q.shape
        normals = jax.random.normal(self.key, (m, self.n_features), q.dtype)
        features = FourierFeatures(normals, jnp.asarray(bandwidth, q.dtype))
        if m + 2 * self.n_features < n:
            height = jnp.max(grams.gram_diagonal(kernel, q))
            fit, _ = primal_fit(
                features, q, residuals, ridge, height=height, tile=self.tile, mesh=self.mesh
            )
        else:
            fit = solve.fit(grams.square_gram(Linear(), features(q)), residuals, ridge)
        error = jnp.asarray((2 * self.n_features) ** -0.5, q.dtype)
        size = jnp.asarray(self.n_features)
        return Solution(fit, Approximation("random Fourier features", size, error))


class FourierFeatures(eqx.Module):
    r"""``[q, D^-1/2 cos(w_r . q), D^-1/2 sin(w_r . q)]``, length m + 2 D, of the simplex kernel.

    The linear part is exact; the Gaussian part has the right mean and variance O(1 / D) over
    ``normals`` [m, D], standard normal draws, w = normals / bandwidth. Models that are compared
    share the normals. Source: Moskvichev and Sejdinovic, App. B.
    """

    normals: Float[Array, "m D"]
    bandwidth: Scalar

    def __call__(self, q: Float[Array, "n m"]) -> Float[Array, "n p"]:
        with jax.default_matmul_precision("highest"):
            phase = q @ (self.normals / self.bandwidth)
        scale = self.normals.shape[1] ** -0.5
        return jnp.concatenate([q, scale * jnp.cos(phase), scale * jnp.sin(phase)], axis=1)
