"""Bandwidth heuristics: the median heuristic, and a second-order one for ground kernels.

``median_heuristic`` sets a bandwidth from the distances between observations. A ground kernel is a
kernel on points that defines a distance between predictions; MMD is an example of such a distance.
``second_order_heuristic`` sets the bandwidth of a ground kernel from distances between draws.

Bandwidths do not depend on the order of the rows: if not all pairs are compared, the values of the
observations select the pairs (`by_values`). The derivative of a median is the derivative of the
middle distance, or of the mean of the two middle ones.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import log_ndtr, logsumexp
from jaxtyping import Array, Bool, Float, Int

from jaxcal.numerics import at_least, at_most, in_order, normals, not_finite, psd_root, safe_sqrt
from jaxcal.read import Draws, draws, gaussian_moments
from jaxcal.read.predictions import in_units_of_data
from jaxcal.typing import Divergence, Features, Key, Predictions, Scalar

MAX_OBSERVATIONS = 512  # observations of which all distances are computed
MAX_PAIRS = 2048  # pairs for a distance that is computed pair by pair
MAX_PREDICTION_PAIRS = 200
MAX_DRAWS = 32  # draws per prediction of a pair: 32^2 distances


def pairs(n: int, *, most: int = MAX_PAIRS) -> tuple[Int[Array, " p"], Int[Array, " p"]]:
    """Return indices i != j of all n (n - 1) / 2 pairs or, if there are more, of ``most`` pairs.

    The selection is pseudorandom with a fixed seed. Indices refer to the order of `by_values`.
    """
    if n * (n - 1) // 2 <= most:
        i, j = np.triu_indices(n, 1)
    else:
        rng = np.random.default_rng(n)
        i = np.arange(most) % n if n <= most else np.arange(most) * n // most
        i = rng.permutation(n)[i]
        j = (i + rng.integers(1, n, most)) % n
    return jnp.asarray(i), jnp.asarray(j)


def by_values(features: Features) -> Int[Array, " n"]:
    """Return the row indices that sort observations by a fixed random projection of their values.

    Only floating-point leaves count. Rounding can change the order of two rows only if their
    projections are nearly equal; as a rule, such rows are nearly equal themselves.
    """
    return jnp.argsort(_projected(features))


def at_ranks(features: Features, ranks: Int[np.ndarray, " m"]) -> Int[Array, " m"]:
    """Return ``by_values(features)[ranks]``, for few of n ranks in a fifth of the time: the sort
    moves values alone. Of rows with equal projections it returns the first."""
    values = _projected(features)
    chosen = in_order(values)[ranks]
    at = jnp.searchsorted(chosen, values)
    rows = jnp.where(values == chosen[at], jnp.arange(values.size), values.size)
    first = jnp.full(chosen.size, values.size).at[at].min(rows)
    return first[jnp.searchsorted(chosen, chosen)]


def _projected(features: Features) -> Float[Array, " n"]:
    rng = np.random.default_rng(0)

    def along(leaf: Array) -> Array:
        flat = leaf.reshape(leaf.shape[0], -1)
        # column by column: the sum must not depend on the number of rows
        return flat @ jnp.asarray(rng.normal(size=flat.shape[1]), flat.dtype)

    numbers = [
        leaf for leaf in jax.tree.leaves(features) if jnp.issubdtype(leaf.dtype, jnp.floating)
    ]
    return jax.lax.stop_gradient(jax.tree.reduce(jnp.add, [along(leaf) for leaf in numbers]))


def _median_of(values: Callable[[Array], Array], p: int) -> Scalar:
    """Return the median of the positive ``values(k)``, k < p; 1 if all are 0, NaN if one is NaN.

    Zeros, from pairs of equal observations, are left out: otherwise the median could be 0. Only the
    one or two middle values are differentiated.
    """
    fixed = jax.lax.stop_gradient(values(jnp.arange(p)))
    at, all_equal = _middle_of(fixed)
    median = jnp.where(all_equal, 1.0, jnp.mean(values(at)))
    return jnp.where(jnp.any(jnp.isnan(fixed)), jnp.nan, median)


def _middle_of(values: Float[Array, " p"]) -> tuple[Int[Array, "2"], Bool[Array, ""]]:
    """Return indices of the two middle positive values (or one twice), and whether all are 0."""
    zeros = jnp.sum(values <= 0)
    ranks = zeros + jnp.stack([values.size - zeros - 1, values.size - zeros]) // 2
    return _of_rank(values, jnp.clip(ranks, 0, values.size - 1)), zeros == values.size


def _of_rank(values: Float[Array, " p"], ranks: Int[Array, "2"]) -> Int[Array, "2"]:
    """Return the indices of the values of two ranks, k and k or k + 1; values are >= 0, and the
    smallest has rank 0.

    Bit patterns of nonnegative floats are ordered like their values, so the value of rank k is
    found by bisection of an integer interval. Cost O(p) times the number of bits.
    """
    unsigned = jnp.uint32 if values.dtype == jnp.float32 else jnp.uint64
    bits = jax.lax.bitcast_convert_type(jnp.abs(values), unsigned)

    def enough(end: Array, rank: Array) -> Bool[Array, ""]:
        # float32 sums are fastest, and exact up to 2^24
        return jnp.sum(bits <= end, dtype=jnp.float32).astype(ranks.dtype) > rank

    def halve(_: object, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = low + (high - low) // 2
        within = enough(middle, ranks[0])
        return jnp.where(within, low, middle + 1), jnp.where(within, middle, high)

    ends = (jnp.zeros((), unsigned), jnp.max(bits))
    first, _ = jax.lax.fori_loop(0, 8 * values.dtype.itemsize, halve, ends)
    beyond = jnp.min(jnp.where(bits > first, bits, ~ends[0]))
    second = jnp.where(enough(first, ranks[1]), first, beyond)
    return jnp.stack([jnp.argmax(bits == first), jnp.argmax(bits == second)])


def median_heuristic(divergence: Divergence, features: Features) -> tuple[Scalar, Bool[Array, ""]]:
    """Return the bandwidth of a kernel on a distance, and whether all compared distances are 0.

    The bandwidth is the median of the positive distances, not of their squares, or 1 if all are 0.
    It is NaN if a feature is not finite. If n <= 512, all pairs are compared. Otherwise 512
    observations are selected, evenly spaced in the order of `by_values`, and all their pairs are
    compared. A distance without ``separations`` (MMD) compares at most 2,048 pairs. ValueError if n
    < 2. Cost: at most 130,816 distances, and a sort of n numbers for n > 512.
    """
    n = jax.tree.leaves(features)[0].shape[0]
    if n < 2:
        raise ValueError(f"a median distance needs at least 2 predictions, got n={n}")
    fixed = jax.lax.stop_gradient(features)
    compared = _block if hasattr(divergence, "separations") else _pair_by_pair
    i, j, squared = compared(divergence, fixed, n)
    at, all_equal = _middle_of(at_least(squared, 0))
    rows, cols = (jax.tree.map(lambda leaf, k=k: leaf[k[at]], features) for k in (i, j))
    median = jnp.mean(safe_sqrt(divergence.paired(rows, cols)))
    median = jnp.where(all_equal, 1.0, median)
    return jnp.where(not_finite(features) == 0, median, jnp.nan), all_equal


_Compared = tuple[Int[Array, " p"], Int[Array, " p"], Float[Array, " p"]]


def _block(divergence: Divergence, features: Features, n: int) -> _Compared:
    """Return rows i, j of all pairs of up to 512 observations, and squared distances, [p] each."""
    m = min(n, MAX_OBSERVATIONS)
    rows = jnp.arange(n) if m == n else at_ranks(features, np.arange(m) * (n - 1) // (m - 1))
    some = jax.tree.map(lambda leaf: leaf[rows], features) if m < n else features
    squared = divergence.separations(some)  # pyright: ignore
    i, j = np.triu_indices(m, 1)
    return rows[i], rows[j], squared[i, j]


def _pair_by_pair(divergence: Divergence, features: Features, n: int) -> _Compared:
    """Return rows i and j of at most 2,048 pairs, and their squared distances, [p] each."""
    i, j = (by_values(features)[place] for place in pairs(n))

    def between(pair: tuple[Array, Array]) -> Scalar:
        rows, cols = (jax.tree.map(lambda a, k=k: a[k][None], features) for k in pair)
        return divergence.paired(rows, cols)[0]

    # a loop stores the features; fused, they would be recomputed for every pair
    return i, j, jax.lax.map(between, (i, j), batch_size=512)


def second_order_heuristic(key: Key, predictions: Predictions) -> Scalar:
    """Return a bandwidth for a kernel on points, from distances between draws of the predictions.

    For each pair of predictions p and q, take the median distance of two independent draws from the
    mixture (p + q) / 2. The bandwidth is the median of these values without zeros, in the units of
    the points; 1 if all are 0. Exact for Gaussians if d = 1 or all are isotropic; otherwise from
    draws. At most 200 pairs are used, so the cost does not grow with n. NaN if a prediction in
    a pair is NaN. TypeError for predictions with neither Gaussian moments nor draws, ValueError if
    n < 2. Source: Glaser et al. (2023), Section 6.
    """
    try:
        moments = gaussian_moments(predictions)
    except TypeError:
        original = in_units_of_data(predictions)
        available = original.samples.shape[1] if isinstance(original, Draws) else MAX_DRAWS
        samples = draws(key, predictions, min(available, MAX_DRAWS))
        return spread_of_draws(samples.reshape(*samples.shape[:2], -1))
    return spread_of_gaussians(key, *moments)


def spread_of_draws(samples: Float[Array, "n m d"]) -> Scalar:
    """Return `second_order_heuristic` from m >= 2 draws per prediction, at most the first 32."""
    n, m, _ = samples.shape
    if n < 2 or m < 2:
        raise ValueError(
            f"the ground bandwidth by heuristic needs at least 2 predictions and 2 draws of each, "
            f"got n={n}, m={m}: give the ground kernel a bandwidth"
        )
    samples = samples[:, :MAX_DRAWS]
    i, j = (by_values(samples)[place] for place in pairs(n, most=MAX_PREDICTION_PAIRS))
    return _median_of(lambda k: jax.vmap(_median_distance)(samples[i[k]], samples[j[k]]), i.size)


def _median_distance(p: Float[Array, "m d"], q: Float[Array, "m d"]) -> Scalar:
    """Return the median distance of two draws from the equal mixture of two samples.

    The first halves of p and q are compared with their second halves, so the points of a pair are
    independent. As in the mixture, 1/4 of the pairs are within p, 1/4 in q, 1/2 between p and q.
    """
    half = p.shape[0] // 2
    first = jnp.concatenate([p[:half], q[:half]])
    second = jnp.concatenate([p[half : 2 * half], q[half : 2 * half]])
    squared = jnp.sum((first[:, None] - second[None]) ** 2, axis=-1).ravel()
    middle = jnp.asarray([(squared.size - 1) // 2, squared.size // 2])
    at = _of_rank(jax.lax.stop_gradient(squared), middle)
    median = jnp.mean(safe_sqrt(squared[at]))
    return jnp.where(jnp.any(jnp.isnan(squared)), jnp.nan, median)


def spread_of_gaussians(
    key: Key,
    mean: Float[Array, "n d"],
    cov: Float[Array, "n d"] | Float[Array, "n d d"],
    *,
    most: int = MAX_PREDICTION_PAIRS,
) -> Scalar:
    """Return `second_order_heuristic` of Gaussians: exact if all are isotropic or d = 1.

    A covariance with mean variance v counts as isotropic if its entries differ from those of v I by
    at most 0.01 v. If any is not, draws are used for all pairs. Exact values have derivative 0.
    """
    n, d = mean.shape
    if n < 2:
        raise ValueError(
            f"the ground bandwidth by heuristic needs at least 2 predictions, got n={n}: give the "
            f"ground kernel a bandwidth"
        )
    i, j = (by_values((mean, cov))[place] for place in pairs(n, most=most))
    variance = jnp.mean(cov if cov.ndim == 2 else jnp.diagonal(cov, axis1=1, axis2=2), axis=-1)

    def computed(k: Array) -> Array:
        shift = safe_sqrt(jnp.sum((mean[i[k]] - mean[j[k]]) ** 2, axis=-1))
        return _isotropic_median(shift, variance[i[k]], variance[j[k]], d)

    if d == 1:
        return _median_of(computed, i.size)

    def drawn(k: Array) -> Array:
        noise = normals(key, (2, i.size, MAX_DRAWS, d), mean.dtype)
        root = jnp.sqrt(cov)[:, None] if cov.ndim == 2 else psd_root(cov)

        def sample(which: Array, noise: Array) -> Array:
            spread = noise * root[which] if cov.ndim == 2 else noise @ root[which]
            return mean[which][:, None] + spread

        return jax.vmap(_median_distance)(sample(i[k], noise[0, k]), sample(j[k], noise[1, k]))

    wanted = variance[:, None]
    if cov.ndim == 3:
        wanted = wanted[..., None] * jnp.eye(d, dtype=cov.dtype)[None]
    scale = jnp.expand_dims(variance, range(1, cov.ndim))
    isotropic = jnp.all(jnp.abs(cov - wanted) <= 0.01 * scale)
    return _median_of(lambda k: jax.lax.cond(isotropic, computed, drawn, k), i.size)


def _log_chi2_tail(x: Array, k: int) -> Array:
    r"""Return log P(chi^2_k > x) for a static k, accurate far into the tail.

    With h = x / 2 the tail is :math:`\sum_j h^j e^{-h} / j!` over j = 0, 1, .., k/2 - 1 for even k.
    For odd k it is this sum over j = 1/2, 3/2, .., k/2 - 1, plus :math:`erfc(\sqrt h)`.
    """
    h = at_least(x / 2, jnp.finfo(x.dtype).tiny)[..., None]
    powers = np.expand_dims(np.arange(k // 2) + (k % 2) / 2, tuple(range(x.ndim)))
    constants = np.vectorize(math.lgamma, otypes=[float])(powers + 1)
    terms = powers.astype(x.dtype) * jnp.log(h) - h - constants.astype(x.dtype)
    if k % 2:
        terms = jnp.concatenate([math.log(2) + log_ndtr(-jnp.sqrt(2 * h)), terms], axis=-1)
    return logsumexp(terms, axis=-1)


def _log_distance_cdf(r: Array, shift: Array, s: Array, d: int) -> Array:
    r"""Return log P(|X| <= r) for X ~ N(mu, s^2 I_d), |mu| = ``shift`` (noncentral chi).

    In units of s, with a = |mu| / s and x the coordinate along mu, the probability is
    :math:`\int_{-r}^{r} \phi(x - a) P(\chi^2_{d-1} \le r^2 - x^2) dx`. Only x within 9 of min(a, r)
    contribute. With x = middle + half sin(t) in this interval, Gauss-Legendre quadrature is over t.
    """
    a, r = shift / s, r / s
    if d == 1:
        upper, lower = log_ndtr(r - a), log_ndtr(-r - a)
        return upper + jnp.log(-jnp.expm1(at_most(lower - upper, 0)))
    low, high = at_least(at_most(a, r) - 9, -r), at_most(r, a + 9)
    nodes, weights = np.polynomial.legendre.leggauss(48)
    angle = np.pi / 2 * nodes[None]
    middle, half = (low + high) / 2, (high - low) / 2
    x = middle[:, None] + half[:, None] * np.sin(angle).astype(r.dtype)
    across = at_least((r[:, None] - x) * (r[:, None] + x), 0)
    inside = jnp.log(-jnp.expm1(at_most(_log_chi2_tail(across, d - 1), 0)))
    steps = np.log(weights[None] * np.cos(angle) * np.pi / 2 / np.sqrt(2 * np.pi)).astype(r.dtype)
    return jnp.log(half) + logsumexp(inside - (x - a[:, None]) ** 2 / 2 + steps, axis=-1)


def _isotropic_median(
    shift: Float[Array, " p"], v: Float[Array, " p"], w: Float[Array, " p"], d: int
) -> Float[Array, " p"]:
    """Return the median distance of two draws from the equal mixture of N(mu, v I), N(mu', w I).

    The distance is |X| for normal X with (shift, variance) = (0, 2v), (0, 2w) or (|mu - mu'|, v +
    w) with probabilities 1/4, 1/4 and 1/2. At the median r, the sum of P(|X| > r) for the first two
    equals twice P(|X| <= r) for the third. Solved by bisection in logarithms, as both sides are
    tiny for narrow, distant predictions. The result is treated as a constant: its derivative is 0.
    """
    # draws blurred by 1e-5 of the shift: negligible, except for point masses, where it is the limit
    blur = 2 * (1e-5 * shift) ** 2 + float(jnp.finfo(shift.dtype).tiny) ** 0.5
    scales = tuple(jnp.sqrt(total + blur) for total in (2 * v, 2 * w, v + w))

    def excess(r: Array, shift: Array, s_v: Array, s_w: Array, s: Array) -> Array:
        beyond = jnp.logaddexp(_log_chi2_tail((r / s_v) ** 2, d), _log_chi2_tail((r / s_w) ** 2, d))
        return beyond - math.log(2) - _log_distance_cdf(r, shift, s, d)

    shift, *scales = jax.lax.stop_gradient((shift, *scales))

    def halve(_: object, bracket: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bracket
        r = (low + high) / 2
        below = excess(r, shift, *scales) > 0
        return jnp.where(below, r, low), jnp.where(below, high, r)

    # the median of chi^2_d is below d, and |X| <= |mu| + |X - mu|
    top = jax.lax.stop_gradient(shift + jnp.sqrt(2 * d * at_least(v, w)))
    steps = min(jnp.finfo(shift.dtype).nmant + 3, 40)
    low, high = jax.lax.fori_loop(0, steps, halve, (jnp.zeros_like(top), top))
    return (low + high) / 2
