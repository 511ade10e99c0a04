r"""Too high or too low, too wide or too narrow: simple functions put into Stein's identity.

If every posterior p is right given what is conditioned on (its own scores, or x), then for any
function f with :math:`E_p|f s_p| < \infty` that fades out at infinity,
:math:`E[f(\theta) s_p(\theta) + f'(\theta)] = 0`. With f = 1 this is about the mean, with
:math:`f = \theta_k - c` about the spread, and with either times a function of x about a region.

A score asks about a parameter **given the others**: where parameters are correlated it accuses
innocent ones. The scores of all parameters together, put right by the covariance of a Gaussian
posterior, ask about each by itself (`jaxcal.moments.marginal_means`); of other posteriors no
parameter is named from scores.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxcal.kernels.bandwidths import by_values
from jaxcal.moments import attribution, marginal_means
from jaxcal.numerics import at_least
from jaxcal.read import convert
from jaxcal.read.repeats import drawn_order
from jaxcal.results import Means
from jaxcal.typing import Key, KeyLike, Scalar

FOLDS, LANDMARKS = 5, 200


class Diagnosis(eqx.Module):
    r"""Which parameter is off, which way, and for which observations; `Means` of d moments each.

    Limits have confidence 1 - level. Errors **given the other parameters** show in all parameters
    dependent on the one that is off; errors of a parameter **by itself** do not. Sizes and limits
    from scores are exact for Gaussian posteriors; p-values are valid for all, but a small one of
    another posterior says that something is off, not which parameter. Of ranks among draws
    everything here is exact.

    Attributes:
        shift: How far the posterior lies too high in a parameter by itself, in the standard
            deviations that the posteriors claim. Limits are NaN where scores are not linear (as in
            `jaxcal.results.Coordinates`). None without scores at more nodes than parameters, which
            the covariances of the posteriors need.
        bias: Given the other parameters: the score :math:`s_k` over its root mean square, how far
            too high, in units of the parameter's actual spread about it given the others.
        spread: Given the other parameters: of :math:`1 + s_k (\theta_k - c_k)`, with c_k a
            regression of theta_k on what is conditioned on, fitted to other pairs. For Gaussian
            posteriors with independent parameters 1 - (actual variance / claimed), so negative
            where they are overconfident. p-values of shift and spread together after Holm, those
            of bias by themselves (where shift is None: bias and spread).
        shift_trend: Shift (bias where it is None) times the rank of feature j, from -1 to 1, d q
            moments, parameter by parameter. Valid where the question is conditional, and None
            otherwise; corrected together with ``spread_trend``.
        spread_trend: The same of the spread.
        strongest: Parameter and feature of the strongest trend, [2].
        thirds: Shift, and spread, of that parameter in the lowest, middle and highest third of
            that feature, [2, 3].
        marginal_spread: The logarithm of claimed over actual deviation of each parameter by
            itself, with Holm's correction of its own, as in `jaxcal.results.Coordinates`. None
            where shift is; NaN where the scores of posteriors are not linear.
        correlation: Claimed minus actual correlation of each pair (0, 1), (0, 2), .., (1, 2), ..,
            as ``marginal_spread``; None also without pairs.
    """

    shift: Means | None
    bias: Means
    spread: Means
    shift_trend: Means | None
    spread_trend: Means | None
    strongest: Array | None
    thirds: Float[Array, "2 3"] | None
    marginal_spread: Means | None = None
    correlation: Means | None = None


@partial(jax.jit, static_argnames="conditional")
def diagnose(
    key: KeyLike,
    thetas: Float[Array, "n d"],
    scores: Float[Array, "n d"],
    predictors: Float[Array, "n p"],
    features: Float[Array, "n q"] | None,
    *,
    conditional: bool,
    level: Scalar | float = 0.05,
    covariances: Float[Array, "n d d"] | None = None,
    claimed_centers: Float[Array, "n d"] | None = None,
    exact: Bool[Array, ""] | bool = True,
) -> Diagnosis:
    """Moments of free parameters and their scores; ``predictors``: what is conditioned on.

    ``features``: those to look for trends along; used only where ``conditional``. ``covariances``
    and ``claimed_centers`` of the posteriors, functions of nothing but them, ``exact`` where scores
    are linear. Without claimed centres spreads of parameters by
    themselves and correlations are about regressed ones, whose errors the limits do not know.
    Limits are those of tests of this ``level``, of confidence 1 - level. p-values by Student's t:
    from about a hundred pairs on. Cost O(n 300^2).
    """
    centers = cross_fitted_means(convert.key(key), predictors, thetas)
    scale = jnp.sqrt(jnp.mean(scores**2, axis=0, keepdims=True))
    given_others = scores / jnp.where(scale > 0, scale, 1)
    first = given_others if covariances is None else marginal_means.shifts(scores, covariances)
    second = 1 + scores * (thetas - centers)
    d = thetas.shape[1]
    mean, spread = _together(first, second, level)
    bias = mean if covariances is None else marginal_means.means(given_others, level=level)
    shift = None if covariances is None else marginal_means.limited(mean, exact)
    alone = pairs = None
    if covariances is not None:
        about = centers if claimed_centers is None else claimed_centers
        apart = attribution.faults(thetas, scores, about, covariances, level=level, gaussian=exact)
        alone, pairs = apart.spread, apart.correlation
    if not conditional or features is None:
        return Diagnosis(shift, bias, spread, None, None, None, None, alone, pairs)
    n, q = features.shape
    ranks = jnp.argsort(jnp.argsort(features, axis=0), axis=0)
    g = (2 * ranks.astype(thetas.dtype) + 1 - n) / n
    of_first, of_second = (
        (w[:, :, None] * g[:, None, :]).reshape(n, d * q) for w in (first, second)
    )
    trends = _together(of_first, of_second, level)
    z = jnp.stack(
        [
            jnp.abs(t.estimate / jnp.where(t.standard_error > 0, t.standard_error, jnp.inf))
            for t in trends
        ]
    )
    which = jnp.argmax(z) % (d * q)
    k, j = which // q, which % q
    third = jnp.clip((3 * ranks[:, j]) // n, 0, 2)
    inside = (third[None] == jnp.arange(3)[:, None]).astype(thetas.dtype)
    thirds = jnp.stack([inside @ w[:, k] / jnp.sum(inside, axis=1) for w in (first, second)])
    of_shift, of_spread = (Means(*(part.reshape(d, q) for part in trend)) for trend in trends)
    strongest = jnp.stack([k, j])
    return Diagnosis(shift, bias, spread, of_shift, of_spread, strongest, thirds, alone, pairs)


def _together(
    first: Float[Array, "n k"], second: Float[Array, "n k"], level: Scalar | float
) -> tuple[Means, Means]:
    """Means of two sets of moments, with p-values corrected for both together."""
    both = marginal_means.means(jnp.concatenate([first, second], axis=1), level=level)
    k = first.shape[1]
    return Means(*(part[:k] for part in both)), Means(*(part[k:] for part in both))


def cross_fitted_means(
    key: Key, predictors: Float[Array, "n p"], thetas: Float[Array, "n d"]
) -> Float[Array, "n d"]:
    """A regression of theta on ``predictors``, each pair predicted from the other folds.

    Ridge regression on the features, bent by arcsinh so that outliers keep their places, and on
    Gaussian kernels about 200 of them, spread over their order by values; the penalty is chosen by
    generalized cross-validation inside the folds it is fitted to. Folds are drawn by the key and
    ``predictors`` (and thetas where these are equal for several pairs), so permuted pairs stay in
    their folds. A prediction never saw its own theta, which keeps Stein's identity exact however
    well it fits.
    """
    n = len(thetas)
    z = jnp.arcsinh(_standard(predictors))
    count = min(LANDMARKS, n)
    landmarks = z[by_values(z)[jnp.arange(count) * n // count]]
    gaps = _squares(z, landmarks)
    width = jnp.median(gaps)
    kernels = jnp.exp(-gaps / jnp.where(width > 0, width, 1))
    parts = [jnp.ones((n, 1), z.dtype), z] if z.shape[1] <= LANDMARKS else [jnp.ones((n, 1))]
    phi = jnp.concatenate([*parts, kernels], axis=1)
    places = drawn_order(key, n, predictors, thetas)
    fold = jnp.zeros(n, places.dtype).at[places].set(jnp.arange(n, dtype=places.dtype) % FOLDS)

    def fit(k: Array) -> Array:
        rows = (fold != k).astype(phi.dtype)
        count = jnp.sum(rows)
        center = rows @ thetas / count
        gaps = thetas - center[None]
        scale = jnp.sqrt(rows @ gaps**2 / count)
        ts = gaps / jnp.where(scale > 0, scale, 1)[None]
        values, vectors = jnp.linalg.eigh((phi * rows[:, None]).T @ phi / count)
        values = at_least(values, 0)
        along = (ts * rows[:, None]).T @ (phi @ vectors) / count  # [d, p]
        penalties = 10.0 ** jnp.linspace(-6, 1, 15, dtype=phi.dtype)

        def error(penalty: Array) -> Array:
            """Squared error per degree of freedom left, one a target."""
            used = jnp.sum(values / (values + penalty))
            shrunk = 1 / (values + penalty)
            power = jnp.sum(ts**2 * rows[:, None], axis=0) / count
            fitted = jnp.sum(along**2 * (2 * shrunk - values * shrunk**2)[None], axis=1)
            return (power - fitted) / at_least(1 - used / count, 1e-3) ** 2

        best = penalties[jnp.argmin(jax.vmap(error)(penalties), axis=0)]  # [d]
        weights = vectors @ (along / (values[None] + best[:, None])).T
        return center[None] + scale[None] * (phi @ weights)

    fitted = jax.lax.map(fit, jnp.arange(FOLDS))  # [folds, n, d]
    out_of_fold = jnp.take_along_axis(fitted, fold[None, :, None], axis=0)[0]
    return jax.lax.stop_gradient(out_of_fold)


def _standard(values: Array) -> Array:
    """About the median, in units of the median distance from it."""
    gaps = values - jnp.median(values, axis=0, keepdims=True)
    scale = jnp.median(jnp.abs(gaps), axis=0, keepdims=True)
    scale = jnp.where(scale > 0, scale, jnp.std(values, axis=0, keepdims=True))
    return gaps / jnp.where(scale > 0, scale, 1)


def _squares(a: Array, b: Array) -> Array:
    cross = jnp.sum(a**2, axis=1)[:, None] + jnp.sum(b**2, axis=1)[None] - 2 * a @ b.T
    return at_least(cross, 0)
