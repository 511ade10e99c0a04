r"""Estimate shift and spread errors of posteriors, by simple functions in Stein's identity.

Let each posterior p, with score s_p, be right given the conditioning variables (the scores of p at
nodes, or x). Then :math:`E[f(\theta) s_p(\theta) + f'(\theta)] = 0` for any f if f p vanishes
at infinity and :math:`E_p|f s_p| < \infty`. f = 1 tests the mean. :math:`f = \theta_k - c`, with c
independent of theta, tests the spread of parameter k. Products of f with a function of x test
whether errors change with x.
"""

from dataclasses import replace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import rankdata
from jaxtyping import Array, Bool, Float

from jaxcal.engine import LightJit
from jaxcal.entries.saturation import corrected, inverted, spread_alone
from jaxcal.kernels.bandwidths import by_values
from jaxcal.moments import attribution
from jaxcal.moments.attribution import student_p_value
from jaxcal.nulls.contract import holm
from jaxcal.numerics import at_least
from jaxcal.read import convert
from jaxcal.read.observations import drawn_order
from jaxcal.results import Means, Table
from jaxcal.typing import Key, KeyLike, Scalar

FOLDS, LANDMARKS = 5, 200
NEARLY = 1e-6  # least ratio of variances


class Diagnosis(eqx.Module):
    r"""Estimated errors of d parameters: `Means` [d], with limits of confidence 1 - level.

    If one parameter is wrong, parameters that depend on it also show errors **given the other
    parameters**, but no errors **by themselves** (marginal errors). From scores, sizes and limits
    are exact for Gaussian posteriors; p-values are valid for all posteriors, but identify the wrong
    parameter only for Gaussian ones. From ranks, p-values identify the wrong parameter for all
    posteriors; sizes are in units of normal scores, corrected for the number of draws.

    Attributes:
        shift: Shift of a parameter by itself, positive if the posterior is too high, in standard
            deviations of the posterior. Limits are NaN for nonlinear scores
            (`jaxcal.results.Coordinates`). None if covariances are unknown: they need scores at
            more nodes than parameters.
        bias: Shift given the other parameters: the mean of :math:`s_k / r_k`, with score
            :math:`s_k` and its root mean square :math:`r_k`. Holm's correction is over the
            d biases. If shift is None, it includes spread.
        spread: Spread given the other parameters: mean of :math:`1 + s_k (\theta_k - c_k)`, with
            c_k a regression of theta_k on the conditioning variables, fitted to other pairs. For
            Gaussian posteriors with independent parameters it is 1 - actual / posterior variance,
            negative for overconfidence. Holm's correction includes shift (bias, if shift is None).
        shift_trend: Trend of the shift (of the bias if shift is None) along q features: the mean of
            :math:`w_k g_j`, where the mean of :math:`w_k` is the shift, and :math:`g_j` is the
            rank of feature j, scaled to -1..1 (ties: average rank). Fields are [d, q]. Holm's
            correction is over all trends. None without features or for the test of calibration.
        spread_trend: Trend of the spread along each feature, [d, q]; None if ``shift_trend`` is.
        strongest: Indices of the parameter and feature of the strongest trend, [2]; or None.
        thirds: Shift (first row) and spread (second row) of the ``strongest`` parameter in the
            lowest, middle and highest third of that feature, [2, 3]; NaN for an empty third (equal
            values are in one third). None without trends.
        marginal_spread: log(posterior / actual standard deviation) of each parameter by itself,
            with separate Holm correction, as in `jaxcal.results.Coordinates`. None if shift is
            None; NaN for nonlinear scores.
        correlation: Posterior minus actual correlation of each pair (0, 1), (0, 2), .., (1, 2), ..;
            NaN for nonlinear scores; None if not computed, as for a single parameter.
        tails: Error of each parameter's tails, as in `jaxcal.results.Table`; None without a table.
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
    tails: Means | None = None


@LightJit
def diagnose(
    key: KeyLike,
    thetas: Float[Array, "n d"],
    scores: Float[Array, "n d"],
    predictors: Float[Array, "n p"],
    features: Float[Array, "n q"] | None,
    *,
    level: Scalar | float = 0.05,
    covariances: Float[Array, "n d d"] | None = None,
    claimed_centers: Float[Array, "n d"] | None = None,
    exact: Bool[Array, ""] | bool = True,
) -> Diagnosis:
    """Return the `Diagnosis` of n posteriors from their scores, each at free parameters thetas[i].

    ``predictors`` are the conditioning variables. Trends are along ``features``, if any.
    ``covariances`` and ``claimed_centers`` (means) of posteriors must not depend on ``thetas``.
    Without claimed_centers, marginal spreads and correlations use `cross_fitted_means`, and limits
    ignore the error of these means. ``exact``: whether scores are linear in theta. p-values are by
    Student's t, valid for about n >= 100. Cost O(n k^2), k <= 401 regressors.
    """
    centers = cross_fitted_means(convert.key(key), predictors, thetas)
    scale = jnp.sqrt(jnp.mean(scores**2, axis=0, keepdims=True))
    given_others = scores / jnp.where(scale > 0, scale, 1)
    first = given_others if covariances is None else attribution.shifts(scores, covariances)
    second = 1 + scores * (thetas - centers)
    n, d = thetas.shape
    moments = [jnp.concatenate([first, second], axis=1), given_others]
    twice = None
    if features is not None:
        twice = (2 * (rankdata(features, axis=0) - 1)).astype(int)  # ranks from 0, mean if equal
        g = (twice.astype(thetas.dtype) + 1 - n) / n
        moments.append((moments[0][:, :, None] * g[:, None]).reshape(n, -1))
    both, bias, *trends = attribution.means_of(moments, level=level)
    mean, spread = _halves(both)
    shift = alone = pairs = None
    if covariances is None:
        bias = mean
    else:
        shift = attribution.limited(mean, exact)
        about = centers if claimed_centers is None else claimed_centers
        apart = attribution.faults(thetas, scores, about, covariances, level=level, gaussian=exact)
        alone, pairs = apart.spread, apart.correlation
    if twice is None:
        return Diagnosis(shift, bias, spread, None, None, None, None, alone, pairs)
    (trend,), q = trends, twice.shape[1]
    z = trend.estimate / jnp.where(trend.standard_error > 0, trend.standard_error, jnp.inf)
    which = jnp.argmax(jnp.abs(z)) % (d * q)
    k, j = which // q, which % q
    third = (3 * twice[:, j]) // (2 * n)
    inside = (third[None] == jnp.arange(3, dtype=third.dtype)[:, None]).astype(thetas.dtype)
    thirds = jnp.stack([inside @ w[:, k] / jnp.sum(inside, axis=1) for w in (first, second)])
    of_shift, of_spread = _halves(Means(*(part.reshape(2 * d, q) for part in trend)))
    strongest = jnp.stack([k, j])
    return Diagnosis(shift, bias, spread, of_shift, of_spread, strongest, thirds, alone, pairs)


def with_shapes(table: Table, of: Diagnosis, level: float) -> Diagnosis:
    """Return ``of`` with correlations and tails replaced by those in column 0 of ``table``."""
    d = len(of.spread.estimate)

    def means(rows: slice) -> Means:
        parts = (table.effect, table.p_value, table.low, table.high)
        return _means(*(part[rows, 0] for part in parts), level)

    correlation = means(slice(2 * d, -d)) if d > 1 else None
    return replace(of, correlation=correlation, tails=means(slice(-d, None)))


@jax.jit
def _means(effect: Array, p: Array, low: Array, high: Array, level: float | Scalar) -> Means:
    reach = jax.scipy.stats.norm.ppf(1 - level / 2)
    error = (high - low) / (2 * jnp.asarray(reach, effect.dtype))
    return Means(effect, error, p, holm(p), low, high)


def among_draws(diagnosis: Diagnosis, n: int, m: int) -> Diagnosis:
    """Return the diagnosis by ranks of n parameters, corrected for the number m of draws
    as in `jaxcal.entries.saturation`. P-values of marginal spreads are those beside any shift."""
    shift, spread = diagnosis.shift, diagnosis.marginal_spread
    if shift is None or spread is None:
        return diagnosis
    estimates = -shift.estimate, -spread.estimate
    widths = (shift.high - shift.low) / 2, (spread.high - spread.low) / 2
    sizes = corrected(*estimates, *widths, m)
    gap, error = spread_alone(*estimates, shift.standard_error, spread.standard_error, m)
    p = student_p_value(gap, error, n - 1)
    spread = spread._replace(p_value=p, p_adjusted=holm(p))

    def resized(means: Means, sizes: tuple[Array, Array, Array]) -> Means:
        estimate, high, low = (-size for size in sizes)
        error = means.standard_error * (high - low) / (means.high - means.low)
        return means._replace(estimate=estimate, standard_error=error, low=low, high=high)

    thirds = diagnosis.thirds
    if thirds is not None:
        logs = jnp.log(at_least(1 - thirds[1], NEARLY)) / 2  # 1 - actual / claimed variance
        shifts, spreads = inverted(-thirds[0], logs, m)
        thirds = jnp.stack([-shifts, 1 - jnp.exp(2 * spreads)])
    shift, spread = resized(shift, sizes.shift), resized(spread, sizes.spread)
    return replace(diagnosis, shift=shift, marginal_spread=spread, thirds=thirds)


def also_by(table: Table, of: Diagnosis, level: float) -> Diagnosis:
    """Return ``of`` with correlations and tails of the table (`with_shapes`). Each p-value of shift
    and marginal spread is replaced by the one in ``table`` if that is larger."""
    d = len(of.spread.estimate)
    everywhere = table.p_value[: 2 * d, 0].reshape(2, d)

    def raised(means: Means | None, p: Array) -> Means | None:
        if means is None:
            return None
        p = p.astype(means.p_adjusted.dtype)
        adjusted = jnp.maximum(means.p_adjusted, holm(p))
        return means._replace(p_value=jnp.maximum(means.p_value, p), p_adjusted=adjusted)

    shift, spread = map(raised, (of.shift, of.marginal_spread), everywhere)
    return replace(with_shapes(table, of, level), shift=shift, marginal_spread=spread)


def _halves(means: Means) -> tuple[Means, Means]:
    """Return the first and the second half of the rows of `Means`."""
    k = len(means.estimate) // 2
    return Means(*(part[:k] for part in means)), Means(*(part[k:] for part in means))


def cross_fitted_means(
    key: Key, predictors: Float[Array, "n p"], thetas: Float[Array, "n d"]
) -> Float[Array, "n d"]:
    """Return the prediction of each theta from ``predictors``, by a regression on the other folds.

    Predictors are transformed by arcsinh to limit outliers. Features of the ridge regression are
    the predictors (if p <= 200), and Gaussian kernels centred at up to 200 rows of predictors.
    Generalized cross-validation in the training folds chooses the penalty. Folds depend on the key
    and the values of pairs, not on their order. Prediction i does not depend on theta_i, so Stein's
    identity holds exactly.
    """
    n = len(thetas)
    z = jnp.arcsinh(_standard(predictors))
    count = min(LANDMARKS, n)
    landmarks = z[by_values(z)[np.arange(count) * n // count]]
    norms = jnp.sum(z**2, axis=1)[:, None] + jnp.sum(landmarks**2, axis=1)[None]
    gaps = at_least(norms - 2 * z @ landmarks.T, 0)
    width = jnp.median(gaps)
    kernels = jnp.exp(-gaps / jnp.where(width > 0, width, 1))
    linear = [z] if z.shape[1] <= LANDMARKS else []
    phi = jnp.concatenate([jnp.ones((n, 1), z.dtype), *linear, kernels], axis=1)
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
            """Return the generalized cross-validation error for one penalty, per parameter [d]."""
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
    """Subtract each column's median; divide by its median absolute deviation (if 0, by its sd)."""
    gaps = values - jnp.median(values, axis=0, keepdims=True)
    scale = jnp.median(jnp.abs(gaps), axis=0, keepdims=True)
    scale = jnp.where(scale > 0, scale, jnp.std(values, axis=0, keepdims=True))
    return gaps / jnp.where(scale > 0, scale, 1)
