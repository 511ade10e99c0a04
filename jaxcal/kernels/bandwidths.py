"""Data to bandwidth: the median heuristic, and its form for kernels inside a distance.

``median_heuristic`` scales a kernel by the distances between observations. A kernel that compares
predictions point by point (the ground kernel of MMD and of the kernelized Fisher divergence) is
scaled by ``second_order_heuristic``: the distances between draws of the predictions.
"""

import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr, logsumexp
from jaxtyping import Array, Float, Int

from jaxcal.embeddings import psd_root
from jaxcal.models import Draws, Standardized, draws, gaussian_moments
from jaxcal.numerics import at_least, at_most, largest
from jaxcal.typing import Distance, Key, Scalar

MAX_PAIRS = 2048
MAX_PREDICTION_PAIRS = 200
MAX_DRAWS = 32  # of each prediction of a pair: 32^2 distances


def pairs(n: int, *, most: int = MAX_PAIRS) -> tuple[Int[Array, " p"], Int[Array, " p"]]:
    """Pairs of different observations: all, or ``most`` of them where n is large.

    Which ones depends on n alone, drawn once with a fixed seed: a bandwidth is a function of the
    data, and no random numbers are compiled into a test for its sake.
    """
    if n * (n - 1) // 2 <= most:
        i, j = np.triu_indices(n, 1)
    else:
        i = np.arange(most) % n if n <= most else np.arange(most) * n // most
        j = (i + np.random.default_rng(n).integers(1, n, most)) % n
    return jnp.asarray(i), jnp.asarray(j)


def positive_median(values: Float[Array, " p"]) -> Scalar:
    """Median of values >= 0; where that is 0, of the positive ones; where all are 0, 1.

    NaN gives NaN. Cost O(p) times the number of bits, a fifth of sorting's: the values' bits are
    in the order of the values, so order statistics are found by halving an interval of integers.
    """
    p = values.size
    zeros = jnp.sum(values <= 0)
    # the ranks of the two middle values, among all or, where both are 0, among the positive ones
    first = jnp.where(zeros > p // 2, zeros, 0)
    ranks = first + jnp.stack([p - first - 1, p - first]) // 2
    median = jnp.mean(_ranked(values, jnp.clip(ranks, 0, p - 1)))
    median = jnp.where(zeros == p, 1.0, median)
    return jnp.where(jnp.any(jnp.isnan(values)), jnp.nan, median)


def _ranked(values: Float[Array, " p"], ranks: Int[Array, " r"]) -> Float[Array, " r"]:
    """The values of these ranks, counted from 0, of values >= 0."""
    unsigned = jnp.uint32 if values.dtype == jnp.float32 else jnp.uint64
    bits = jax.lax.bitcast_convert_type(jnp.abs(values), unsigned)

    def halve(_: Any, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = low + (high - low) // 2
        enough = jnp.sum(bits[None] <= middle[:, None], axis=1) > ranks
        return jnp.where(enough, low, middle + 1), jnp.where(enough, middle, high)

    ends = (jnp.zeros(ranks.shape, unsigned), jnp.full(ranks.shape, jnp.max(bits)))
    found, _ = jax.lax.fori_loop(0, 8 * values.dtype.itemsize, halve, ends)
    return jax.lax.bitcast_convert_type(found, values.dtype)


def median_heuristic(
    distance: Distance, features: Any, *, most: int = MAX_PAIRS
) -> tuple[Scalar, Scalar]:
    """Bandwidth for a kernel on a distance, and the largest distance among the pairs looked at.

    The bandwidth is the median distance (not its square) over pairs of different observations,
    in the units of the distance. Cost O(min(n^2, most)) distances. Not finite where a feature is
    not; a largest distance of 0 says that all observations looked at coincide.
    """
    n = jax.tree.leaves(features)[0].shape[0]
    i, j = pairs(n, most=most)

    def between(pair: tuple[Array, Array]) -> Scalar:
        rows, cols = (jax.tree.map(lambda a, k=k: a[k][None], features) for k in pair)
        return distance.paired(rows, cols)[0]

    # the loop makes the compiler store the features: fused, it makes them anew for every pair
    squared = jax.lax.map(between, (i, j), batch_size=512)
    squared = at_least(squared, 0)
    return positive_median(jnp.sqrt(squared)), jnp.sqrt(largest(squared))


def second_order_heuristic(
    key: Key, predictions: Any, *, most: int = MAX_PREDICTION_PAIRS
) -> Scalar:
    """Bandwidth for a kernel on the points of predictions: half the draws are nearer than this.

    For each pair of predictions the median distance of two independent draws from their equal
    mixture, then the median of these over pairs (the positive ones where it is 0, 1 where all
    predictions are one and the same point), in the units of the points. Computed for one
    dimension and isotropic Gaussians, from draws otherwise. ``most`` pairs are looked at, so the
    cost does not grow with n. NaN where a prediction looked at is.
    Raises TypeError for predictions with neither Gaussian moments nor draws.
    Source: Glaser et al. (2023), Section 6.
    """
    try:
        moments = gaussian_moments(predictions)
    except TypeError:
        held = predictions.predictions if isinstance(predictions, Standardized) else predictions
        given = held.samples.shape[1] if isinstance(held, Draws) else MAX_DRAWS
        samples = draws(key, predictions, min(given, MAX_DRAWS))
        return spread_of_draws(samples.reshape(*samples.shape[:2], -1), most=most)
    return spread_of_gaussians(key, *moments, most=most)


def spread_of_draws(samples: Float[Array, "n m d"], *, most: int = MAX_PREDICTION_PAIRS) -> Scalar:
    """The second-order heuristic from m >= 2 draws of each prediction, of which 32 are used."""
    n, m, _ = samples.shape
    if n < 2 or m < 2:
        raise ValueError(
            f"the ground bandwidth by heuristic needs at least 2 predictions and 2 draws of each, "
            f"got n={n}, m={m}: give the ground kernel a bandwidth"
        )
    i, j = pairs(n, most=most)
    samples = jax.lax.stop_gradient(samples[:, :MAX_DRAWS])
    return positive_median(jax.vmap(_median_distance)(samples[i], samples[j]))


def _median_distance(p: Float[Array, "m d"], q: Float[Array, "m d"]) -> Scalar:
    """Median distance of two draws from the equal mixture of two samples.

    First halves against second halves: all pairs are of independent draws, and the proportions of
    p with p, q with q and p with q are 1/4, 1/4 and 1/2 without weights.
    """
    half = p.shape[0] // 2
    first = jnp.concatenate([p[:half], q[:half]])
    second = jnp.concatenate([p[half : 2 * half], q[half : 2 * half]])
    squared = jnp.sum((first[:, None] - second[None]) ** 2, axis=-1).ravel()
    middle = jnp.asarray([(squared.size - 1) // 2, squared.size // 2])
    median = jnp.mean(jnp.sqrt(_ranked(squared, middle)))
    return jnp.where(jnp.any(jnp.isnan(squared)), jnp.nan, median)


def spread_of_gaussians(
    key: Key,
    mean: Float[Array, "n d"],
    cov: Float[Array, "n d"] | Float[Array, "n d d"],
    *,
    most: int = MAX_PREDICTION_PAIRS,
) -> Scalar:
    """The second-order heuristic of Gaussians: computed where every one is isotropic, or d = 1.

    Variances within 1 % of each other count as isotropic; other Gaussians are drawn from.
    """
    n, d = mean.shape
    if n < 2:
        raise ValueError(
            f"the ground bandwidth by heuristic needs at least 2 predictions, got n={n}: give the "
            f"ground kernel a bandwidth"
        )
    i, j = pairs(n, most=most)
    mean, cov = jax.lax.stop_gradient((mean, cov))
    variance = jnp.mean(cov if cov.ndim == 2 else jnp.diagonal(cov, axis1=1, axis2=2), axis=-1)

    def computed() -> Array:
        shift = jnp.sqrt(jnp.sum((mean[i] - mean[j]) ** 2, axis=-1))
        return _isotropic_median(shift, variance[i], variance[j], d)

    if d == 1:
        return positive_median(computed())

    def drawn() -> Array:
        noise = jax.random.normal(key, (2, i.size, MAX_DRAWS, d), mean.dtype)
        root = jnp.sqrt(cov)[:, None] if cov.ndim == 2 else psd_root(cov)

        def sample(k: Array, noise: Array) -> Array:
            spread = noise * root[k] if cov.ndim == 2 else noise @ root[k]
            return mean[k][:, None] + spread

        return jax.vmap(_median_distance)(sample(i, noise[0]), sample(j, noise[1]))

    wanted = variance[:, None] if cov.ndim == 2 else variance[:, None, None] * jnp.eye(d)
    scale = jnp.expand_dims(variance, range(1, cov.ndim))
    isotropic = jnp.all(jnp.abs(cov - wanted) <= 0.01 * scale)
    return positive_median(jax.lax.cond(isotropic, computed, drawn))


def _log_chi2_tail(x: Array, k: int) -> Array:
    r"""log P(chi^2_k > x) for a static k: exact far into the tail, and cheap to compile.

    :math:`\log \sum_j h^j e^{-h} / j!` over 0 <= j < k/2, h = x / 2; over halves, with
    :math:`erfc(\sqrt h)` as the first term, where k is odd.
    """
    h = at_least(x / 2, jnp.finfo(x.dtype).tiny)[..., None]
    powers = np.arange(k // 2) + (k % 2) / 2
    constants = np.asarray([math.lgamma(power + 1) for power in powers])
    terms = powers.astype(x.dtype) * jnp.log(h) - h - constants.astype(x.dtype)
    if k % 2:
        terms = jnp.concatenate([math.log(2) + log_ndtr(-jnp.sqrt(2 * h)), terms], axis=-1)
    return logsumexp(terms, axis=-1)


def _log_distance_cdf(r: Array, shift: Array, s: Array, d: int) -> Array:
    r"""log P(|X| <= r) for X ~ N(mu, s^2 I_d), |mu| = ``shift``: the noncentral chi distribution.

    In units of s, with a = |mu| / s, along mu and across it:
    :math:`\int_{-r}^{r} \phi(x - a) P(\chi^2_{d-1} \le r^2 - x^2) dx`, by Gauss-Legendre in the
    angle x = middle + half sin(angle), over the part of [-r, r] that is within 9 of a, or of r
    where that is nearer. Works for every a, where a Poisson series needs about a^2 terms.
    """
    a, r = shift / s, r / s
    if d == 1:
        upper, lower = log_ndtr(r - a), log_ndtr(-r - a)
        return upper + jnp.log(-jnp.expm1(at_most(lower - upper, 0)))
    low, high = at_least(at_most(a, r) - 9, -r), at_most(r, a + 9)
    nodes, weights = np.polynomial.legendre.leggauss(48)
    angle = np.pi / 2 * nodes
    middle, half = (low + high) / 2, (high - low) / 2
    x = middle[:, None] + half[:, None] * np.sin(angle).astype(r.dtype)
    across = at_least((r[:, None] - x) * (r[:, None] + x), 0)
    inside = jnp.log(-jnp.expm1(at_most(_log_chi2_tail(across, d - 1), 0)))
    steps = np.log(weights * np.cos(angle) * np.pi / 2 / np.sqrt(2 * np.pi)).astype(r.dtype)
    return jnp.log(half) + logsumexp(inside - (x - a[:, None]) ** 2 / 2 + steps, axis=-1)


def _isotropic_median(
    shift: Float[Array, " p"], v: Float[Array, " p"], w: Float[Array, " p"], d: int
) -> Float[Array, " p"]:
    """Median distance of two draws from the equal mixture of N(mu, v I) and N(mu', w I).

    With |X| ~ (mean shift, variance) the distance is |X| ~ (0, 2v), (0, 2w), (|mu - mu'|, v + w)
    in the proportions 1/4, 1/4 and 1/2: it exceeds r as often as not where P(|X| > r) of the
    first two sum to twice P(|X| <= r) of the third. Solved by bisection, in logarithms: for narrow
    predictions far apart both sides are tiny wherever they are equal.
    """
    # draws blurred by 1e-5 of the shift: no change, but for point masses, where it is the limit
    blur = 2 * (1e-5 * shift) ** 2 + float(jnp.finfo(shift.dtype).tiny) ** 0.5
    s_v, s_w, s = (jnp.sqrt(total + blur) for total in (2 * v, 2 * w, v + w))

    def halve(_: Any, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        r = (low + high) / 2
        beyond = jnp.logaddexp(_log_chi2_tail((r / s_v) ** 2, d), _log_chi2_tail((r / s_w) ** 2, d))
        below = beyond > math.log(2) + _log_distance_cdf(r, shift, s, d)
        return jnp.where(below, r, low), jnp.where(below, high, r)

    # the median of chi^2_d is below d, and |X| <= |mu| + |X - mu|
    top = shift + jnp.sqrt(2 * d * at_least(v, w))
    steps = min(jnp.finfo(shift.dtype).nmant + 3, 40)
    low, high = jax.lax.fori_loop(0, steps, halve, (jnp.zeros_like(top), top))
    return (low + high) / 2
