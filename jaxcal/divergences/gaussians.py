"""Compute distances of Gaussian predictions in closed form: Fisher, KGFD, Wasserstein.

These accept numpyro's ``Normal``, ``Normal(...).to_event(1)`` and ``MultivariateNormal`` with batch
shape [n]; `Wasserstein` also accepts Laplace predictions. TypeError for others.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.divergences.vectors import NodeScores, _Euclidean
from jaxcal.kernels.bandwidths import spread_of_gaussians
from jaxcal.numerics import psd_root, safe_sqrt
from jaxcal.read import Standardized, convert, gaussian_moments
from jaxcal.read.families import Laplaces, distribution_of
from jaxcal.read.sampling import check_batch
from jaxcal.typing import ArrayLike, Features, Key, Point, Points, PredictionsLike

Cov = Float[Array, "n d"] | Float[Array, "n d d"]  # variances, or covariance matrices
BaseCov = Float[Array, " d"] | Float[Array, "d d"]


def moments(predictions: PredictionsLike) -> tuple[Points, Cov]:
    """Return means [n, d] and a `Cov` of n Gaussian predictions; TypeError for others."""
    check_batch(predictions)
    mean, cov = gaussian_moments(predictions)
    if mean.ndim != 2:
        raise ValueError(
            f"predictions: wanted Gaussians with batch shape [n] on numbers or vectors, got means "
            f"of shape {mean.shape}; .to_event(1) makes the last batch axis an event"
        )
    return mean, cov


def optional_floats(value: ArrayLike | None) -> Array | None:
    """Return the value as a floating-point array, or None for None."""
    return None if value is None else convert.floats(value, "mean or cov")


def _base(
    predictions: PredictionsLike, mean: Array | None, cov: Array | None, like: Points
) -> tuple[Point, BaseCov]:
    """Return mean and (co)variance (default 0, 1) of the base measure in units of predictions."""
    d, dtype = like.shape[1], like.dtype
    if mean is not None and mean.shape not in ((), (d,)):
        raise ValueError(f"mean: wanted a number or a vector of length {d}, got {mean.shape}")
    if cov is not None and cov.shape not in ((), (d,), (d, d)):
        raise ValueError(
            f"cov: wanted a variance, {d} variances or a covariance [{d}, {d}], got {cov.shape}"
        )
    m = jnp.zeros(d, dtype) if mean is None else jnp.broadcast_to(mean, (d,))
    s = jnp.ones(d, dtype) if cov is None else jnp.broadcast_to(cov, (d, d)[: max(cov.ndim, 1)])
    if isinstance(predictions, Standardized):
        scale = predictions.units.scale
        m = m if mean is None else predictions.units.points(m)
        if cov is not None:
            s = s / (scale[:, None] * scale[None] if s.ndim == 2 else scale**2)
    return m.astype(dtype), s.astype(dtype)


def gaussian_fisher(
    mean: Float[Array, "n d"], cov: Cov, base_mean: Point, base_cov: BaseCov
) -> Float[Array, "n q"]:
    """Return the features of `GaussianFisher`: ``[S^1/2 Lambda; Lambda (mu - m)]``.

    Predictions are N(mu, Lambda^-1), the base measure is N(m, S). q = 2 d for variances [n, d],
    d^2 + d for covariances. Values are not finite where a covariance is singular.
    """
    n, d = mean.shape
    shift = mean - base_mean[None]
    if cov.ndim == 2:
        spread = base_cov if base_cov.ndim == 1 else jnp.diagonal(base_cov)
        return jnp.concatenate([jnp.sqrt(spread)[None] / cov, shift / cov], axis=-1)
    low = jnp.linalg.cholesky(cov)
    eye = jnp.broadcast_to(jnp.eye(d, dtype=cov.dtype), cov.shape)
    precision = jax.scipy.linalg.cho_solve((low, True), eye)
    wide = base_cov.ndim == 2
    rooted = (
        psd_root(base_cov) @ precision if wide else precision * jnp.sqrt(base_cov)[None, :, None]
    )
    shift = jnp.einsum("nij,nj->ni", precision, shift)
    return jnp.concatenate([rooted.reshape(n, d * d), shift], axis=-1)


class GaussianFisher(_Euclidean, eqx.Module):
    r"""Generalized Fisher divergence (GFD) of Gaussian predictions in closed form, without nodes.

    GFD is :math:`tr(\Delta\Lambda\, S\, \Delta\Lambda) + \|\Delta(\Lambda\mu) - \Delta\Lambda\,
    m\|^2`, with :math:`\Delta` for the difference between two predictions of mean :math:`\mu` and
    precision :math:`\Lambda`, and base measure N(m, S), standard normal in test units by default.

    Args:
        mean: Mean m of the base measure in the units of the targets, [] or [d].
        cov: Covariance S of the base measure, likewise: [], variances [d] or a matrix [d, d].

    Cost: O(n d), for full covariances O(n d^3).

    Source: Glaser et al. (2023), Section 4.1, integrated over a Gaussian.

    Example:
        >>> import jaxcal
        >>> divergence = jaxcal.divergences.GaussianFisher()  # an option of `jaxcal.skce_test`
    """

    mean: Array | None = eqx.field(default=None, converter=optional_floats)
    cov: Array | None = eqx.field(default=None, converter=optional_floats)
    needs_nodes: bool = eqx.field(default=False, static=True, init=False)

    def features(
        self, key: Key, predictions: PredictionsLike, at_nodes: NodeScores | None
    ) -> Features:
        mu, sigma = moments(predictions)
        base = _base(predictions, self.mean, self.cov, mu)
        return gaussian_fisher(mu, sigma, *base)


def gaussian_kernel_fisher(
    mean: Float[Array, "n d"],
    cov: Cov,
    base_mean: Point,
    base_cov: BaseCov,
    lengths: Point,
) -> Float[Array, "n q"]:
    r"""Return the features of `GaussianKernelFisher`, for Gaussians and base measure N(m, S).

    The ground kernel is ``exp(-sum_i (x_i - y_i)^2 / (2 g_i^2))`` with ``lengths`` g. With
    G = diag(g^2), and :math:`\Delta` for differences between predictions N(mu, Lambda^-1),

    .. math:: c = |I + 2 G^{-1} S|^{-1/2},\quad V = S (G + 2 S)^{-1} S,\quad
              D^2 = c\, [tr(\Delta\Lambda\, V\, \Delta\Lambda)
                    + \|\Delta(\Lambda\mu) - \Delta\Lambda\, m\|^2].

    V is the cross-covariance of two nodes, weighted by the kernel. The features are ``c^1/2`` times
    those of `gaussian_fisher` with V in place of S, and D is the distance of two of them. For S =
    b^2 I and a single g, :math:`V = b^4 / (g^2 + 2 b^2)\, I`.
    Source: the double integral of Glaser et al. (2023), Section 4.2, over Gaussians.
    """
    g = lengths**2
    if base_cov.ndim == 1:
        shared = base_cov**2 / (g + 2 * base_cov)
        log_weight = -jnp.sum(jnp.log1p(2 * base_cov / g)) / 2
    else:
        total = jnp.diag(g) + 2 * base_cov
        shared = base_cov @ jnp.linalg.solve(total, base_cov)
        shared = (shared + shared.T) / 2
        log_weight = (jnp.sum(jnp.log(g)) - jnp.linalg.slogdet(total)[1]) / 2
    return jnp.exp(log_weight / 2) * gaussian_fisher(mean, cov, base_mean, shared)


class GaussianKernelFisher(_Euclidean, eqx.Module):
    r"""Kernelized Fisher divergence (KGFD) of Gaussian predictions with a Gaussian ground kernel.

    For base measure N(0, b^2 I), ground length g and Gaussians N(mu, sigma^2 I) the squared
    distance is :math:`(\frac{g^2}{g^2 + 2 b^2})^{d/2} [\frac{d b^4}{g^2 + 2 b^2} (\sigma_p^{-2} -
    \sigma_q^{-2})^2 + \|\mu_p\sigma_p^{-2} - \mu_q\sigma_q^{-2}\|^2]`. If all covariances are
    equal, KGFD is a constant times GFD, so with the median heuristic both give the same kernel.

    Args:
        mean: Mean of the base measure, as in `GaussianFisher`.
        cov: Covariance of the base measure, as in `GaussianFisher`.
        bandwidth: Length g of the ground kernel ``exp(-|x - y|^2 / (2 g^2))``, [] or one per
            coordinate [d], in the units of the test (standardized targets by default). None uses
            `jaxcal.kernels.bandwidths.second_order_heuristic`.

    Cost: O(n d), for full covariances O(n d^3).

    Source: Glaser et al. (2023), Section 4.2, integrated over Gaussians.

    Example:
        >>> import jaxcal
        >>> divergence = jaxcal.divergences.GaussianKernelFisher(bandwidth=1.0)
    """

    mean: Array | None = eqx.field(default=None, converter=optional_floats)
    cov: Array | None = eqx.field(default=None, converter=optional_floats)
    bandwidth: Array | None = eqx.field(default=None, converter=optional_floats)
    needs_nodes: bool = eqx.field(default=False, static=True, init=False)

    def fitted(
        self, key: Key, predictions: PredictionsLike, at_nodes: NodeScores | None
    ) -> "GaussianKernelFisher":
        if self.bandwidth is not None:
            return self
        bandwidth = spread_of_gaussians(key, *moments(predictions))
        return GaussianKernelFisher(self.mean, self.cov, bandwidth)

    def features(
        self, key: Key, predictions: PredictionsLike, at_nodes: NodeScores | None
    ) -> Features:
        mu, sigma = moments(predictions)
        base = _base(predictions, self.mean, self.cov, mu)
        length = self.fitted(key, predictions, at_nodes).bandwidth
        assert length is not None
        if length.shape not in ((), (d := mu.shape[1],)):
            raise ValueError(f"bandwidth: wanted one length or {d}, got shape {length.shape}")
        lengths = jnp.broadcast_to(length, (d,)).astype(mu.dtype)
        return gaussian_kernel_fisher(mu, sigma, *base, lengths)


def wasserstein(mean: Float[Array, "n d"], cov: Cov) -> Float[Array, "n q"]:
    """Return the features of `Wasserstein` for Gaussians N(mu, Sigma), ``[mu; Sigma^1/2]``.

    q = 2 d for variances, d + d^2 for covariances. For Sigma = sigma^2 I the squared distance is
    |mu - mu'|^2 + d (sigma - sigma')^2; Glaser et al. (2023) print variances in place of sigma.
    """
    n, d = mean.shape
    if cov.ndim == 2:
        return jnp.concatenate([mean, safe_sqrt(cov)], axis=-1)
    return jnp.concatenate([mean, psd_root(cov).reshape(n, d * d)], axis=-1)


class Wasserstein(_Euclidean, eqx.Module):
    r"""2-Wasserstein distance of Gaussian or Laplace predictions, as a distance of vectors.

    Its square is :math:`\|\mu - \mu'\|^2 + \|\Sigma^{1/2} - \Sigma'^{1/2}\|_F^2` for means mu and
    covariances Sigma: exact if covariances commute (scalar, diagonal, isotropic), an upper bound of
    W2^2 otherwise. For Laplace predictions with independent coordinates, locations mu and scales
    beta, the square is :math:`\|\mu - \mu'\|^2 + 2 \|\beta - \beta'\|^2`. The distance is always
    Euclidean, so kernels on it are positive definite. Units are those of the test.

    Cost: O(n d), for full covariances O(n d^3).

    Source: Widmann, Lindsten and Zachariah (2021), App. D.1 and D.2.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 100))
        >>> predictions, divergence = dist.Normal(centers, 1.0), jaxcal.divergences.Wasserstein()
        >>> jaxcal.skce_test(1, predictions, centers + 0.8 + noise, divergence=divergence).verdict
        'rejected'
    """

    needs_nodes: bool = eqx.field(default=False, static=True, init=False)

    def features(
        self, key: Key, predictions: PredictionsLike, at_nodes: NodeScores | None
    ) -> Features:
        distribution = distribution_of(predictions)
        if isinstance(distribution, Laplaces):
            check_batch(predictions)
            return jnp.concatenate([distribution.loc, 2**0.5 * distribution.scale], axis=-1)
        return wasserstein(*moments(predictions))
