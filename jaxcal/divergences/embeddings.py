"""Embeddings of predictions as vectors, for distances between predictions that are Euclidean."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.numerics import psd_root, safe_sqrt
from jaxcal.typing import Point

Cov = Float[Array, "n d"] | Float[Array, "n d d"]  # variances, or covariance matrices
BaseCov = Float[Array, " d"] | Float[Array, "d d"]


def fisher(node_scores: Float[Array, "n m d"]) -> Float[Array, "n md"]:
    r"""``phi(p) = m^-1/2 [s_p(z_1); ..; s_p(z_m)]``, shape ``[n, m d]``, in units of the score.

    :math:`\|\phi(p) - \phi(q)\|^2 = \frac1m \sum_k \|s_p(z_k) - s_q(z_k)\|^2` estimates the
    generalized Fisher divergence :math:`\int \|s_p - s_q\|^2 d\nu` from draws z of the base
    measure nu.
    Source: Glaser et al. (2023), Section 4.1.
    """
    n, m, d = node_scores.shape
    return node_scores.reshape(n, m * d) / jnp.sqrt(jnp.asarray(m, node_scores.dtype))


def kernel_fisher(
    node_scores: Float[Array, "n m d"], ground: Float[Array, "m m"] | Float[Array, "m m d d"]
) -> Float[Array, "n md"]:
    r"""``phi(p) = K^1/2 [s_p(z_1); ..; s_p(z_m)] / m``, shape ``[n, m d]``.

    K is the Gram matrix of the ground kernel at the nodes: a number per pair of nodes, the same for
    all coordinates, or a matrix [d, d]. With :math:`\delta = s_p - s_q`,
    :math:`\|\phi(p) - \phi(q)\|^2 = \frac1{m^2} \sum_{kl} \delta(z_k)^\top K(z_k, z_l)
    \delta(z_l)` estimates the kernelized divergence :math:`\|T_{K,\nu} \delta\|^2_{H_K}`. It
    includes the terms k = l, so it has a bias of O(1/m) and is never negative (the paper calls it
    unbiased). Units of the score times those of K^1/2. Cost O(m^3 + n m^2 d), for matrix-valued K
    O(m^3 d^3 + n m^2 d^2).
    Source: Glaser et al. (2023), Section 4.2.
    """
    n, m, d = node_scores.shape
    if ground.ndim == 2:
        root = psd_root(ground)
        return jnp.einsum("kl,nld->nkd", root, node_scores).reshape(n, m * d) / m
    wide = jnp.swapaxes(ground, 1, 2).reshape(m * d, m * d)
    return node_scores.reshape(n, m * d) @ psd_root(wide) / m


def gaussian_fisher(
    mean: Float[Array, "n d"], cov: Cov, base_mean: Point, base_cov: BaseCov
) -> Float[Array, "n q"]:
    r"""``phi(p) = [S^1/2 Lambda; Lambda (mu - m)]`` of p = N(mu, Lambda^-1), base measure N(m, S).

    The generalized Fisher divergence of Gaussians, whose scores are ``Lambda (mu - y)``:
    :math:`\int \|s_p - s_q\|^2 d\nu = tr(\Delta\Lambda\, S\, \Delta\Lambda)
    + \|\Delta(\Lambda\mu) - \Delta\Lambda\, m\|^2`.
    q = 2 d for variances [n, d], d^2 + d for covariances. Units of the score. Cost O(n d), for
    covariances O(n d^3). Not finite where a covariance is singular.
    Source: the integral of Glaser et al. (2023), Section 4.1, over a Gaussian.
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


def gaussian_kernel_fisher(
    mean: Float[Array, "n d"],
    cov: Cov,
    base_mean: Point,
    base_cov: BaseCov,
    lengths: Point,
) -> Float[Array, "n q"]:
    r"""Embedding of the kernelized Fisher divergence of Gaussians, base measure N(m, S).

    For the ground kernel ``exp(-sum_i (x_i - y_i)^2 / (2 g_i^2))`` with G = diag(g^2),

    .. math:: c = |I + 2 G^{-1} S|^{-1/2},\quad V = S (G + 2 S)^{-1} S,\quad
              D^2 = c\, [tr(\Delta\Lambda\, V\, \Delta\Lambda)
                    + \|\Delta(\Lambda\mu) - \Delta\Lambda\, m\|^2]:

    Under the kernel's weight two nodes have covariance V. This is ``c^1/2`` times `gaussian_fisher`
    with V for S. For S = b^2 I and one g, :math:`V = b^4 / (g^2 + 2 b^2)`. Units of the score; cost
    as `gaussian_fisher`.
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


def wasserstein(mean: Float[Array, "n d"], cov: Cov) -> Float[Array, "n q"]:
    r"""``phi(p) = [mu; Sigma^1/2]``, shape ``[n, 2 d]`` for variances, ``[n, d + d^2]`` otherwise.

    :math:`\|\phi(p) - \phi(q)\|^2 = \|\mu - \mu'\|^2 + \|\Sigma^{1/2} - \Sigma'^{1/2}\|_F^2` is
    the squared 2-Wasserstein distance of Gaussians with commuting (e.g. diagonal) covariances, and
    an upper bound otherwise. In units of the targets. Cost O(n d), for covariances O(n d^3).
    Source: Widmann et al. (2021), App. D.1. (For isotropic Gaussians it is
    |mu - mu'|^2 + d (sigma - sigma')^2; Glaser et al. (2023) print variances there.)
    """
    n, d = mean.shape
    if cov.ndim == 2:
        return jnp.concatenate([mean, safe_sqrt(cov)], axis=-1)
    return jnp.concatenate([mean, psd_root(cov).reshape(n, d * d)], axis=-1)
