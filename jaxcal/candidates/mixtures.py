"""Gaussian mixtures fitted to predictions from log densities, for jumps between modes.

Weighted points are resampled with Gaussian noise in several rounds (population Monte Carlo). The
fit depends on predictions and nodes only, never on a target, so candidates remain exchangeable
under moves that the mixture proposes, even if it fits badly.
Source: Cappe et al. (2004) for the rounds; Silverman (1986), Section 4.3, for the bandwidth.
"""

import math
from functools import partial
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.numerics import at_least
from jaxcal.typing import Key, Scalar

ROUNDS = 3
SHARE = 0.25  # effective share of the points after weights are tempered
HALVINGS = 12  # bisection steps for the tempering exponent
RIDGE = 1e-3  # share of each variance added, for fewer points than dimensions


class Mixtures(eqx.Module):
    """n mixtures of k Gaussians with one covariance each: ``roots`` [n, d, d], lower triangular."""

    centers: Float[Array, "n k d"]
    log_weights: Float[Array, "n k"]
    roots: Float[Array, "n d d"]

    def log_density(self, points: Float[Array, "n m d"]) -> Float[Array, "n m"]:
        """Return log densities of m points of each mixture."""
        ts, centers = (_solve(self.roots, at) for at in (points, self.centers))
        squares = jnp.sum((ts[:, :, None] - centers[:, None]) ** 2, axis=-1)
        heights = jnp.sum(jnp.log(jnp.diagonal(self.roots, axis1=1, axis2=2)), axis=1)
        logs = self.log_weights[:, None] - squares / 2
        constant = points.shape[-1] * math.log(2 * math.pi) / 2
        return jax.scipy.special.logsumexp(logs, axis=-1) - heights[:, None] - constant

    def sample(self, key: Key, m: int) -> Float[Array, "n m d"]:
        """Return m independent draws of each mixture."""
        n, _, d = self.centers.shape
        place_key, noise_key = jax.random.split(key)
        ends = jnp.cumsum(jnp.exp(self.log_weights), axis=1)
        heights = ends[:, -1:] * jax.random.uniform(place_key, (n, m), ends.dtype)
        places = jnp.sum(ends[:, None, :-1] < heights[:, :, None], axis=2)
        noise = jax.random.normal(noise_key, (n, m, d), self.centers.dtype)
        means = jnp.take_along_axis(self.centers, places[:, :, None], axis=1)
        return means + jnp.einsum("nij,nmj->nmi", self.roots, noise)


def fitted(key: Key, log_densities: Any, nodes: Float[Array, "k d"], n: int) -> Mixtures:
    """Return mixtures fitted to n predictions by ``log_densities(points [n, k, d])``, [n, k].

    The first points are the nodes, weighted as normal draws. Weights are tempered to an effective
    quarter of the points. Cost: 3 k log densities per prediction.
    """
    k, d = nodes.shape
    center = jnp.mean(nodes, axis=0, keepdims=True)
    width = jnp.cov(nodes.T).reshape(1, d, d)
    root = jnp.linalg.cholesky(_ridged(width))
    one = Mixtures(center[None], jnp.zeros((1, 1), nodes.dtype), root)
    points = jnp.broadcast_to(nodes, (n, k, d))
    first = Mixtures(points, jnp.full((n, k), -math.log(k), nodes.dtype), jnp.tile(root, (n, 1, 1)))

    def step(carry: Any, key: Key) -> tuple[Any, None]:
        points, proposed, _ = carry
        logs = log_densities(points)
        ratios = jnp.where(jnp.isfinite(logs), logs - proposed, -jnp.inf)
        mixtures = _around(points, jax.vmap(partial(_tempered, least=SHARE * k))(ratios))
        points = mixtures.sample(key, k)
        return (points, mixtures.log_density(points), mixtures), None

    proposed = jnp.broadcast_to(one.log_density(nodes[None]), (n, k))
    (_, _, mixtures), _ = jax.lax.scan(
        step, (points, proposed, first), jax.random.split(key, ROUNDS)
    )
    return jax.lax.stop_gradient(mixtures)


def _around(points: Float[Array, "n k d"], log_weights: Float[Array, "n k"]) -> Mixtures:
    """Return Gaussians centred at weighted points, with the bandwidth of Silverman's rule."""
    _, k, d = points.shape
    weights = jnp.exp(log_weights)
    gaps = points - jnp.einsum("nk,nkd->nd", weights, points)[:, None]
    covariances = jnp.einsum("nk,nki,nkj->nij", weights, gaps, gaps)
    bandwidth = (4 / ((d + 2) * k)) ** (1 / (d + 4))
    return Mixtures(points, log_weights, bandwidth * jnp.linalg.cholesky(_ridged(covariances)))


def _tempered(ratios: Float[Array, " k"], *, least: float) -> Float[Array, " k"]:
    """Return normalized log weights, raised to the largest power up to 1 with an effective number
    of at least ``least``; equal weights if all ratios are 0."""
    top = jnp.max(ratios)
    gaps = jnp.where(top > -jnp.inf, ratios - top, 0)

    def weights(power: Scalar) -> Array:
        powers = jnp.where(gaps > -jnp.inf, power * gaps, -jnp.inf)
        return jax.nn.log_softmax(powers)

    def enough(power: Scalar) -> Array:
        return jnp.sum(jnp.exp(2 * weights(power))) * least <= 1

    def halve(_: Any, interval: tuple[Scalar, Scalar]) -> tuple[Scalar, Scalar]:
        low, high = interval
        middle = (low + high) / 2
        fine = enough(middle)
        return jnp.where(fine, middle, low), jnp.where(fine, high, middle)

    ends = jnp.zeros((), ratios.dtype), jnp.ones((), ratios.dtype)
    low, _ = jax.lax.fori_loop(0, HALVINGS, halve, ends)
    return weights(jnp.where(enough(ends[1]), ends[1], low))


def _ridged(covariances: Float[Array, "n d d"]) -> Float[Array, "n d d"]:
    variances = jnp.diagonal(covariances, axis1=1, axis2=2)
    least = jnp.finfo(covariances.dtype).tiny
    extra = at_least(RIDGE * variances, least**0.5)
    return covariances + jax.vmap(jnp.diag)(extra)


def _solve(roots: Float[Array, "n d d"], points: Float[Array, "n m d"]) -> Float[Array, "n m d"]:
    inverse = jnp.linalg.inv(roots)
    return jnp.einsum("nij,nmj->nmi", inverse, points)
