"""Maximum mean discrepancy between predictions: closed form for Gaussians, or from draws."""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.batching import by_rows
from jaxcal.divergences.embeddings import Cov
from jaxcal.divergences.fisher import ground_kernel, with_ground_bandwidth
from jaxcal.divergences.gaussians import as_lengths, moments
from jaxcal.divergences.vectors import NodeScores
from jaxcal.kernels import points
from jaxcal.kernels.bandwidths import spread_of_draws, spread_of_gaussians
from jaxcal.kernels.points import Gaussian
from jaxcal.models import Draws, Standardized
from jaxcal.models.sampling import check_n_draws, drawn
from jaxcal.numerics import at_least
from jaxcal.typing import Features, KernelLike, Key, Points, PredictionsLike, Scalar


class Gaussians(NamedTuple):
    """Gaussians with their (co)variances; ``squared_norms`` [n]: the mean kernel of each with
    itself; ``lengths`` [n, d]: those of the ground kernel, the same in every row."""

    mean: Points
    cov: Cov
    lengths: Float[Array, "n d"]
    squared_norms: Float[Array, " n"]


class Samples(NamedTuple):
    """m draws of each prediction, the ground bandwidth ``length`` [n], the same in every row, and
    ``squared_norms`` as in `Gaussians`."""

    points: Float[Array, "n m d"]
    length: Float[Array, " n"]
    squared_norms: Float[Array, " n"]


class MMD(eqx.Module):
    r"""Maximum mean discrepancy (MMD) of two predictions, with a ground kernel on the targets.

    :math:`E\kappa(Z_p, Z_p') + E\kappa(Z_q, Z_q') - 2 E\kappa(Z_p, Z_q)`: exact for Gaussian
    predictions, where the ground kernel must be `jaxcal.kernels.Gaussian`; otherwise from draws,
    each of which is also paired with itself. That makes the result the distance of two samples
    (never negative, with positive definite kernels), with a bias of O(1 / draws). Rounding leaves
    an error of the order of eps in the squared distance, so distances below eps^1/2 are noise.

    Args:
        ground: Scalar kernel on targets, Gaussian by default. An unset bandwidth follows the
            second-order heuristic, in the units of the test.
        n_draws: Take so many draws of each prediction. None takes the closed form of Gaussians,
            or all draws of `jaxcal.Draws`.

    Raises:
        TypeError: When used, there is neither a closed form nor ``n_draws``.

    Cost: per pair O(d), for full covariances O(d^3), from m draws O(m^2 d); memory for r rows and
    c columns O(r c + c m^2).

    Source: Glaser et al. (2023), Section 4; the closed form as in Widmann et al. (2021), App. D.1.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 100))
        >>> predictions, divergence = dist.Normal(centers, 1.0), jaxcal.divergences.MMD()
        >>> jaxcal.kccsd_test(1, predictions, centers + 0.8 + noise, divergence=divergence).verdict
        'rejected'
    """

    ground: KernelLike = eqx.field(default=None, converter=ground_kernel)
    n_draws: int | None = eqx.field(default=None, static=True)
    needs_nodes: bool = eqx.field(default=False, static=True, init=False)

    def __check_init__(self):
        check_n_draws(self.n_draws)

    def _closed(self, predictions: PredictionsLike) -> bool:
        original = predictions.predictions if isinstance(predictions, Standardized) else predictions
        return self.n_draws is None and not isinstance(original, Draws)

    def fitted(self, key: Key, predictions: PredictionsLike, at_nodes: NodeScores | None) -> "MMD":
        """The same divergence with the bandwidth of its ground kernel."""
        if not points.needs_bandwidth(self.ground):
            return self
        if not self._closed(predictions):
            length = spread_of_draws(drawn(key, predictions, self.n_draws))
        elif isinstance(self.ground, Gaussian):
            length = spread_of_gaussians(key, *self._moments(predictions))
        else:
            return self  # whose features say what is wrong
        return MMD(with_ground_bandwidth(self.ground, length), self.n_draws)

    def features(
        self, key: Key, predictions: PredictionsLike, at_nodes: NodeScores | None
    ) -> Features:
        if self._closed(predictions):
            return self._gaussians(key, predictions)
        samples = drawn(key, predictions, self.n_draws)
        length = jnp.ones((), samples.dtype)
        if points.needs_bandwidth(self.ground):
            length = spread_of_draws(samples)
        kernel = with_ground_bandwidth(self.ground, length)
        squared_norms = jax.lax.map(lambda p: _mean_kernel(kernel, p, p[None])[0], samples)
        return Samples(samples, jnp.broadcast_to(length, squared_norms.shape), squared_norms)

    def _moments(self, predictions: PredictionsLike) -> tuple[Points, Cov]:
        try:
            return moments(predictions)
        except TypeError as error:
            raise TypeError(f"{error}: MMD(n_draws=...)") from None

    def _gaussians(self, key: Key, predictions: PredictionsLike) -> Gaussians:
        if not isinstance(self.ground, Gaussian):
            raise TypeError(
                f"ground: the closed form of MMD needs the Gaussian kernel, got "
                f"{type(self.ground).__name__}: give n_draws to use draws of the predictions"
            )
        mean, cov = self._moments(predictions)
        length = self.ground.bandwidth
        if length is None:
            length = spread_of_gaussians(key, mean, cov)
        lengths = jnp.broadcast_to(as_lengths(length, mean, "ground"), mean.shape)
        distributions = Gaussians(mean, cov, lengths, jnp.zeros(len(mean), mean.dtype))
        return distributions._replace(
            squared_norms=jax.vmap(_mean_gaussian)(distributions, distributions)
        )

    def squared_distances(self, rows: Features, cols: Features) -> Float[Array, "r c"]:
        if not isinstance(rows, Samples):
            return by_rows(_between_gaussians, rows, cols)
        kernel = with_ground_bandwidth(self.ground, rows.length[0])
        cross = jax.lax.map(lambda p: _mean_kernel(kernel, p, cols.points), rows.points)
        return at_least(rows.squared_norms[:, None] + cols.squared_norms[None] - 2 * cross, 0)

    def paired(self, rows: Features, cols: Features) -> Float[Array, " r"]:
        if not isinstance(rows, Samples):
            return jax.vmap(_between_gaussians)(rows, cols)
        kernel = with_ground_bandwidth(self.ground, rows.length[0])
        cross = jax.lax.map(
            lambda pair: _mean_kernel(kernel, pair[0], pair[1][None])[0], (rows.points, cols.points)
        )
        return at_least(rows.squared_norms + cols.squared_norms - 2 * cross, 0)


def _mean_kernel(
    kernel: KernelLike, p: Float[Array, "m d"], qs: Float[Array, "c k d"]
) -> Float[Array, " c"]:
    """Mean of the kernel between the draws of p and those of each of c predictions."""
    c, k, d = qs.shape
    radial = points.profile(kernel)
    ys = qs.reshape(c * k, d)
    if radial is None:
        between = points.gram(kernel, p, ys)
    else:  # about the mean of p: a common offset costs no digits
        middle = jnp.mean(p, axis=0, keepdims=True)
        between = radial(points.squared_distances(p - middle, ys - middle))
    # over p's draws first: they lie side by side
    return jnp.mean(jnp.mean(between, axis=0).reshape(c, k), axis=1)


def _mean_gaussian(p: Gaussians, q: Gaussians) -> Scalar:
    r"""E exp(-sum_i (x_i - y_i)^2 / (2 g_i^2)) for independent x ~ p, y ~ q, of ONE pair:
    :math:`|I + G^{-1} T|^{-1/2} \exp(-\frac12 \Delta^\top (G + T)^{-1} \Delta)`, with
    G = diag(g^2), T the sum of the covariances and Delta the difference of the means."""
    g, shift = p.lengths**2, p.mean - q.mean
    total = p.cov + q.cov
    if total.ndim == 1:
        return jnp.exp(-jnp.sum(jnp.log1p(total / g) + shift**2 / (g + total)) / 2)
    low = jnp.linalg.cholesky(jnp.diag(g) + total)
    white = jax.scipy.linalg.solve_triangular(low, shift, lower=True)
    log_ratio = jnp.log(jnp.diagonal(low)) - jnp.log(g) / 2
    return jnp.exp(-jnp.sum(log_ratio + white**2 / 2))


def _between_gaussians(p: Gaussians, q: Gaussians) -> Scalar:
    return at_least(p.squared_norms + q.squared_norms - 2 * _mean_gaussian(p, q), 0)
