"""Maximum mean discrepancy between predictions: by kernel means, for Gaussians, or from draws."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxcal.divergences.embeddings import Cov
from jaxcal.divergences.fisher import ground_kernel, with_ground_bandwidth
from jaxcal.divergences.gaussians import as_lengths, moments
from jaxcal.divergences.vectors import NodeScores
from jaxcal.kernel_means.dispatch import kernel_means, own_by_second
from jaxcal.kernels import points
from jaxcal.kernels.bandwidths import second_order_heuristic, spread_of_draws, spread_of_gaussians
from jaxcal.kernels.points import Gaussian, by_rows
from jaxcal.numerics import at_least
from jaxcal.read import Draws, Standardized
from jaxcal.read.families import Normals, distribution_of
from jaxcal.read.sampling import check_n_draws, drawn
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


class Embedded(eqx.Module):
    """``features`` of the kernel means, ``squared_norms`` [n]: each kernel mean times itself, and
    the arrays of the formulas, the same in every row."""

    features: PyTree
    squared_norms: Float[Array, " n"]
    formulas: PyTree


class MeanEmbedding(eqx.Module):
    r"""MMD of two predictions, for every pair of kernel and predictions that has kernel means.

    :math:`\kappa_2(p,p) + \kappa_2(q,q) - 2 \kappa_2(p,q)`. From draws each draw is also paired
    with itself, which makes it the distance of two samples. Valid for mixtures, where
    `MixtureWasserstein` promises no positive definite kernels.

    Args:
        kernel: Kernel on targets. None takes the target kernel in an SKCE test, and a Gaussian
            elsewhere. An unset bandwidth follows the second-order heuristic.
        n_draws: Take the kernel means from so many draws of each prediction, not in closed form.

    Cost: that of kappa_2 a pair. Source: Gretton et al. (2012).
    """

    kernel: KernelLike | None = None
    n_draws: int | None = eqx.field(default=None, static=True)
    needs_nodes: bool = eqx.field(default=False, static=True, init=False)

    def __check_init__(self):
        check_n_draws(self.n_draws)

    def with_target_kernel(self, kernel: KernelLike) -> "MeanEmbedding":
        """The same divergence with this kernel where it was given none."""
        return MeanEmbedding(kernel, self.n_draws) if self.kernel is None else self

    def fitted(self, key: Key, predictions: Any, at_nodes: NodeScores | None) -> "MeanEmbedding":
        """The same divergence with a kernel and its bandwidth."""
        kernel = points.Gaussian() if self.kernel is None else self.kernel
        if points.needs_bandwidth(kernel):
            _, bandwidth_key = jax.random.split(key)
            bandwidth = second_order_heuristic(bandwidth_key, predictions)
            kernel = points.with_bandwidth(kernel, bandwidth)
        return MeanEmbedding(kernel, self.n_draws)

    def features(
        self, key: Key, predictions: PredictionsLike, at_nodes: NodeScores | None
    ) -> Features:
        draw_key, _ = jax.random.split(key)
        kernel = self.fitted(key, predictions, at_nodes).kernel
        assert kernel is not None
        means = kernel_means(kernel, predictions, key=draw_key, n_draws=self.n_draws)
        squared_norms = own_by_second(means.formulas, means.features)
        arrays, rest = eqx.partition(means.formulas, eqx.is_array)
        spread = jax.tree.map(lambda a: jnp.broadcast_to(a, (squared_norms.size, *a.shape)), arrays)
        return Embedded(means.features, squared_norms, eqx.combine(spread, rest))

    def squared_distances(self, rows: Embedded, cols: Embedded) -> Float[Array, "r c"]:
        cross = _formulas(rows).second(rows.features, cols.features)
        return at_least(rows.squared_norms[:, None] + cols.squared_norms[None] - 2 * cross, 0)

    def paired(self, rows: Embedded, cols: Embedded) -> Float[Array, " r"]:
        def one(p: Embedded, q: Embedded) -> Array:
            alone = (jax.tree.map(lambda leaf: leaf[None], side) for side in (p, q))
            return self.squared_distances(*alone)[0, 0]

        return jax.vmap(one)(rows, cols)


def _formulas(rows: Embedded) -> PyTree:
    return jax.tree.map(lambda leaf: leaf[0] if eqx.is_array(leaf) else leaf, rows.formulas)


class MMD(eqx.Module):
    r"""Maximum mean discrepancy (MMD) of two predictions, with a ground kernel on the targets.

    :math:`E\kappa(Z_p, Z_p') + E\kappa(Z_q, Z_q') - 2 E\kappa(Z_p, Z_q)`: from averages of the
    ground kernel (`jaxcal.kernel_means`), exact for Gaussian predictions and a Gaussian kernel; or
    from draws, each of which is also paired with itself. That makes the result the distance of two
    samples (never negative, with positive definite kernels), with a bias of O(1 / draws). Valid for
    mixtures, where `MixtureWasserstein` promises no positive definite kernels. Rounding leaves
    an error of the order of eps in the squared distance, so distances below eps^1/2 are noise.

    Args:
        ground: Scalar kernel on targets, Gaussian by default. An unset bandwidth follows the
            second-order heuristic, in the units of the test.
        n_draws: Take so many draws of each prediction. None takes averages of the ground kernel,
            or all draws of `jaxcal.Draws`.

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

    def _by_kernel_means(self, predictions: PredictionsLike) -> MeanEmbedding | None:
        """The distance of kernel means, where there are no draws and no Gaussians."""
        gaussian = isinstance(distribution_of(predictions), Normals)
        if not self._closed(predictions) or (gaussian and isinstance(self.ground, Gaussian)):
            return None
        return MeanEmbedding(self.ground)

    def fitted(
        self, key: Key, predictions: PredictionsLike, at_nodes: NodeScores | None
    ) -> "MMD | MeanEmbedding":
        """The same divergence with the bandwidth of its ground kernel."""
        if general := self._by_kernel_means(predictions):
            return general.fitted(key, predictions, at_nodes)
        if not points.needs_bandwidth(self.ground):
            return self
        if not self._closed(predictions):
            length = spread_of_draws(drawn(key, predictions, self.n_draws))
        else:
            length = spread_of_gaussians(key, *moments(predictions))
        return MMD(with_ground_bandwidth(self.ground, length), self.n_draws)

    def features(
        self, key: Key, predictions: PredictionsLike, at_nodes: NodeScores | None
    ) -> Features:
        if general := self._by_kernel_means(predictions):
            return general.features(key, predictions, at_nodes)
        if self._closed(predictions):
            return self._gaussians(key, predictions)
        samples = drawn(key, predictions, self.n_draws)
        length = jnp.ones((), samples.dtype)
        if points.needs_bandwidth(self.ground):
            length = spread_of_draws(samples)
        kernel = with_ground_bandwidth(self.ground, length)
        squared_norms = jax.lax.map(lambda p: _mean_kernel(kernel, p, p[None])[0], samples)
        return Samples(samples, jnp.broadcast_to(length, squared_norms.shape), squared_norms)

    def _gaussians(self, key: Key, predictions: PredictionsLike) -> Gaussians:
        assert isinstance(self.ground, Gaussian)
        mean, cov = moments(predictions)
        length = self.ground.bandwidth
        if length is None:
            length = spread_of_gaussians(key, mean, cov)
        lengths = jnp.broadcast_to(as_lengths(length, mean, "ground"), mean.shape)
        distributions = Gaussians(mean, cov, lengths, jnp.zeros(len(mean), mean.dtype))
        return distributions._replace(
            squared_norms=jax.vmap(_mean_gaussian)(distributions, distributions)
        )

    def squared_distances(self, rows: Features, cols: Features) -> Float[Array, "r c"]:
        if isinstance(rows, Embedded):
            return MeanEmbedding(self.ground).squared_distances(rows, cols)
        if not isinstance(rows, Samples):
            return by_rows(_between_gaussians, rows, cols)
        kernel = with_ground_bandwidth(self.ground, rows.length[0])
        cross = jax.lax.map(lambda p: _mean_kernel(kernel, p, cols.points), rows.points)
        return at_least(rows.squared_norms[:, None] + cols.squared_norms[None] - 2 * cross, 0)

    def paired(self, rows: Features, cols: Features) -> Float[Array, " r"]:
        if isinstance(rows, Embedded):
            return MeanEmbedding(self.ground).paired(rows, cols)
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
