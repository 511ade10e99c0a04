"""Run a test or an estimate: fit it, sum over pairs of observations, and apply the null."""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float

from jaxcal import nulls
from jaxcal.engine import LightJit, few_targets, one_at_a_time
from jaxcal.engine.linear import OfVectors, linear_sums
from jaxcal.engine.quadratic import (
    TILE,
    QuadraticSums,
    block_sums,
    count,
    means,
    ordered_pairs,
    quadratic_sums,
)
from jaxcal.engine.signs import HadamardSigns
from jaxcal.fit import explanation
from jaxcal.fit.fitted import Fitted
from jaxcal.fit.options import with_random_features
from jaxcal.fit.redraws import as_forms, kernel_residual, rare_targets, refitted, rounding_of_waves
from jaxcal.fit.residuals import Featured, errors
from jaxcal.fit.specification import RandomFeatures, Specification
from jaxcal.moments import attribution
from jaxcal.nulls import Needs, Null, Outcome, contract
from jaxcal.nulls.resampling import season
from jaxcal.numerics import full_precision, not_finite
from jaxcal.read import checks, convert
from jaxcal.read.observations import n_repeated
from jaxcal.results import Coordinates, Estimate, TestResult
from jaxcal.results.notes import Notes, all_finite
from jaxcal.typing import Features, Key, Pairwise, Points, PredictionsLike, Scalar

Redrawing: TypeAlias = Callable[[Array, Float[Array, " r"]], Float[Array, "r b"]]


@full_precision
@jax.jit
def estimate(
    key: Key, predictions: PredictionsLike, targets: Array, spec: Specification
) -> Estimate:
    """Return the estimate from one pass over pairs, without a null; NaN if data are not finite."""
    prepared, featured = spec.fit(jax.random.split(key, 3)[:2], predictions, targets)
    none = jnp.zeros((targets.shape[0], 0))
    estimate = means(over_pairs(prepared.pairwise, featured.features, none, Needs()))
    finite = all_finite(featured.notes | {"nonfinite-targets": not_finite(targets)})
    return jax.tree.map(lambda mean: jnp.where(finite, mean, jnp.nan), estimate)


def over_pairs(
    pairwise: Pairwise,
    features: Features,
    columns: Float[Array, "n d"],
    needs: Needs,
    *,
    tile: int = TILE,
    mesh: Mesh | None = None,
) -> QuadraticSums:
    """Return the sums over all pairs. Their ``forms`` hold first the quadratic forms of the weights
    in ``needs``, then those of ``columns``. Linear in n for statistics of finite rank."""
    sketched, weights = needs.sketch is not None, needs.weights
    shared = None
    if isinstance(weights, HadamardSigns) and isinstance(pairwise, OfVectors):
        weights = weights.dense()
    if isinstance(weights, HadamardSigns):
        weights, shared = None, weights
    if weights is not None:
        columns = jnp.concatenate([weights, columns.astype(weights.dtype)], axis=1)
    if isinstance(pairwise, OfVectors):
        return linear_sums(
            pairwise, features, columns, squares=needs.squares, eigenvalues=sketched, mesh=mesh
        )
    return quadratic_sums(
        pairwise,
        features,
        columns,
        signs=shared,
        squares=needs.squares,
        sketch=needs.sketch,
        tile=tile,
        mesh=mesh,
    )


def apply(
    null: Null,
    key: Key,
    pairwise: Pairwise,
    features: Features,
    *,
    columns: Points | None = None,
    series: Points | None = None,
    guarded: bool = False,
    redrawn: Redrawing | None = None,
    tile: int = TILE,
    mesh: Mesh | None = None,
) -> tuple[Outcome, Float[Array, " d"] | None]:
    """Apply a null: request its sums, run the engine, return the outcome and forms [d].

    The form of a column w of ``columns`` [n, d] is the sum of w_i w_j h_ij over i != j. Forms are
    None without columns, and for nulls that use blocks or no draws. If ``series`` [n, q] is given,
    the null uses it instead of the features. ``guarded``: whether to correct for skewness.
    ``redrawn(keys [b], estimates [r])`` returns the estimates [r, b] of data sets with redrawn
    targets; ValueError if ``redrawn`` is None and the null needs it.
    """
    needs = null.needs(key, features if series is None else series)
    none = jnp.zeros((count(features), 0))
    if (size := needs.block_size) is not None:
        blocks = block_sums(pairwise, features, size, squares=needs.squares)
        return null.outcome(nulls.Sums.of(blocks, none, size)), None
    weights = none if needs.weights is None else needs.weights
    b = weights.count if isinstance(weights, HadamardSigns) else weights.shape[1]
    more = none if columns is None or b == 0 else columns
    sums = over_pairs(pairwise, features, more, needs, tile=tile, mesh=mesh)
    if isinstance(weights, HadamardSigns):
        weights = weights.dense()
    over = nulls.Sums.of(sums._replace(forms=sums.forms[:, :b]), weights)
    judged = over.guarded() if guarded else over
    if needs.redraws is not None:
        if redrawn is None:
            raise ValueError("null: there are no predictions here to draw targets from")
        judged = judged._replace(redrawn=redrawn(needs.redraws, judged.unbiased))
    outcome = null.outcome(judged)
    outcome = outcome._replace(estimate=over.unbiased, biased=over.biased)
    return outcome, None if more is none else jnp.sum(sums.forms[:, b:], axis=0)


def _redrawn(
    keys: Array,
    unbiased: Float[Array, " r"],
    refit: Callable[[Key], tuple[Fitted, Featured]],
    fitted: tuple[Fitted, Featured],
    *,
    tile: int,
    mesh: Mesh | None,
) -> Float[Array, "r b"]:
    """Return the estimates [r, b] of b data sets with redrawn targets. ``unbiased`` and
    ``fitted``: estimates and fit for the observed targets. For classes, one pass over pairs gives
    all estimates. Else ``refit(key)`` draws and fits new targets, one data set at a time."""
    prepared, featured = fitted
    forms = as_forms(prepared.pairwise, featured.features, keys)
    if forms is not None:
        kernel, features, columns = forms
        sums = over_pairs(kernel, features, columns, Needs(), tile=tile, mesh=mesh)
        each = jnp.sum(sums.forms.reshape(1 + keys.shape[0], -1), axis=1)
        each = each / ordered_pairs(columns.shape[0])
        return unbiased[:, None] + (each[1:] - each[0])[None]

    def one(key: Key) -> Array:
        prepared, featured = refit(key)
        none = jnp.zeros((count(featured.features), 0))
        sums = over_pairs(prepared.pairwise, featured.features, none, Needs(), tile=tile, mesh=mesh)
        over = nulls.Sums.of(sums, none)
        return (over if featured.excluded is None else over.guarded()).unbiased

    return jax.lax.map(one, keys).T


def _sensitivity(
    forms: Float[Array, " d"], scores: Points, outcome: Outcome
) -> Float[Array, " d"] | None:
    r"""Return c_e, [d], with :math:`E\,U = c_e \delta^2` for targets shifted by delta along axis e.

    The Stein feature :math:`\xi` of a shifted target has mean
    :math:`\delta\, E_p[\partial_e \xi] = -\delta\, E_p[(s_p)_e\, \xi]` by partial integration, so
    that :math:`c_e = E[(s_i)_e (s_j)_e h_{ij}]` to first order, with rows s_i of ``scores``.
    ``forms`` [d]: sums of (s_i)_e (s_j)_e h_ij over pairs. c_e is NaN unless clearly above 0.
    """
    slope = forms / ordered_pairs(scores.shape[0])
    noise = jnp.std(outcome.samples[:1], axis=1) * jnp.mean(scores**2, axis=0)
    return jax.lax.stop_gradient(jnp.where(slope > 3 * noise, slope, jnp.nan))


def run(
    key: Key,
    predictions: PredictionsLike,
    targets: Array,
    spec: Specification,
    null: Null,
    test: str,
    level: float,
    tile: int,
    mesh: Mesh | None,
    features: RandomFeatures | None,
) -> TestResult:
    """Check options, run the test, and return its result with the verdict at ``level``."""
    level, tile = checks.level(level), convert.integer(tile, "tile")
    checks.devices(mesh)
    if features is not None:
        spec = with_random_features(spec, features)
    judged = unjudged(key, predictions, targets, spec, null, level, test=test, tile=tile, mesh=mesh)
    return judged.at_level(level, null.least_p_value)


@partial(LightJit, light=few_targets, static_argnames=("test", "tile", "mesh"))
@one_at_a_time
def unjudged(
    key: Key,
    predictions: PredictionsLike,
    targets: Array,
    spec: Specification,
    null: Null,
    level: Scalar,
    *,
    test: str,
    tile: int,
    mesh: Mesh | None,
) -> TestResult:
    """Return the result without its verdict, which `TestResult.at_level` adds. Only the limits of
    coordinates depend on the level; a new level needs no new compilation."""
    keys = jax.random.split(key, 3)
    fit = fitted, featured = spec.fit(keys[:2], predictions, targets)
    series = errors(featured, predictions, targets)

    def refit(key: Key) -> tuple[Fitted, Featured]:
        return refitted(key, keys[:2], spec, fit, predictions, targets)

    outcome, forms = apply(
        null,
        keys[2],
        fitted.pairwise,
        featured.features,
        columns=featured.scores,
        series=series,
        guarded=featured.excluded is not None,
        redrawn=partial(_redrawn, refit=refit, fitted=fit, tile=tile, mesh=mesh),
        tile=tile,
        mesh=mesh,
    )
    notes = fitted.notes | featured.notes
    if getattr(null, "exact", False):
        notes.pop("rare-targets", None)
    elif featured.means is not None:
        rare = rare_targets(keys[2], fit, predictions, targets)
        notes |= {} if rare is None else {"rare-targets": rare}
    notes |= of_series(outcome, series)
    sensitivity = None
    if forms is not None and featured.scores is not None:
        sensitivity = _sensitivity(forms, featured.scores, outcome)
    # the spec contains vectors from the user, such as inputs, that are compared as predictions
    notes["repeated-rows"] = n_repeated(targets, predictions, spec)
    notes["nonfinite-targets"] = not_finite(targets)
    if featured.means is not None:
        notes |= _rounding(fitted.pairwise, featured.features, outcome)
    if featured.excluded is not None:
        impossible, n = notes["impossible-targets"] > 0, targets.shape[0]
        outcome, notes["silent"] = _of_a_moment(outcome, featured.excluded, impossible, null, n)
    return result(
        notes,
        outcome,
        bandwidths=fitted.bandwidths,
        coordinates=_coordinates(featured, outcome, level) if spec.residual.components else None,
        sensitivity=sensitivity,
        test=test,
        null=type(null).__name__,
        route=fitted.pairwise.route,
        steps=explanation.steps(spec, fitted, featured, predictions, targets),
    )


def result(notes: Notes, outcome: Outcome, *, coordinates: Any = None, **more: Any) -> TestResult:
    """Return the result of the statistic itself, row 0 of ``outcome``, without a verdict."""
    return TestResult.of(
        notes,
        estimate=outcome.estimate[0],
        biased=outcome.biased[0],
        standard_error=outcome.standard_error[0],
        statistic=outcome.statistic[0],
        p_value=outcome.p_value[0],
        p_value_error=None if outcome.p_error is None else outcome.p_error[0],
        null_samples=outcome.samples[0],
        contributions=outcome.contributions[0],
        coordinates=coordinates,
        **more,
    )


def of_series(outcome: Outcome, series: Points) -> Notes:
    """Return the notes on serial dependence and seasons; none for nulls of independent rows."""
    if outcome.stretches is None:
        return {}
    return {"dependent-observations": outcome.stretches < 10, "season": season(series)}


def _rounding(pairwise: Any, features: Any, outcome: Outcome) -> Notes:
    """Return the note ``small-residuals``: (n s)^1/2 eps k(y, y) / (mean of h_ii), for the target
    kernel k and n observations in blocks of s, or s = n without blocks.

    This is the rounding error of k (eps: precision of the dtype) relative to the scale of the null.
    For precise predictions, residuals k(y, .) - E k(Z, .) are small differences of large numbers.
    Random features: see `rounding_of_waves`. Empty for statistics without kernel means or with a
    formula for residuals.
    """
    statistic, n = kernel_residual(pairwise), outcome.contributions.shape[1]
    size = outcome.size or n
    # the mean of h(i, i)
    diagonal = jnp.abs(size * outcome.biased[0] - (size - 1) * outcome.estimate[0])
    if statistic is None or hasattr(statistic.means.formulas, "residual"):
        return rounding_of_waves(pairwise, diagonal, n)
    y = features.residual.ys[:1]
    error = statistic.means.gram(y, y)[0, 0] * jnp.finfo(diagonal.dtype).eps
    # predictions that are points at y have a diagonal of 0
    rounded = (outcome.estimate[0] != 0).astype(error.dtype)
    relative = jnp.where(diagonal == 0, rounded, error / diagonal)
    return {"small-residuals": (n * size) ** 0.5 * relative}


def _of_a_moment(
    outcome: Outcome,
    excluded: Bool[Array, ""],
    impossible: Bool[Array, ""],
    null: Null,
    n: int,
) -> tuple[Outcome, Array]:
    """Return the outcome of a moment, and whether p becomes NaN: if ``excluded``, or if statistic
    and draws are all 0. If ``impossible`` (a target has density 0), p is the least possible."""
    values = jnp.concatenate([outcome.statistic[:1], outcome.samples[0]])
    silent = (excluded | jnp.all(values == 0)) & ~impossible
    p = jnp.where(silent, jnp.nan, outcome.p_value)
    certain = impossible & jnp.all(~jnp.isnan(outcome.samples))
    error = None if outcome.p_error is None else jnp.where(certain, 0, outcome.p_error)
    p = jnp.where(certain, null.least_p_value(n), p)
    return outcome._replace(p_value=p, p_error=error), silent


def _coordinates(featured: Featured, outcome: Outcome, level: Scalar) -> Coordinates:
    """Return the results of target coordinates, from outcome rows 1 to d, or row 0 if d = 1."""
    rows = slice(1, None) if outcome.p_value.size > 1 else slice(None)
    p = outcome.p_value[rows]
    faults: Any = ()
    if featured.claimed is not None:
        ys, claims = featured.claimed
        faults = attribution.faults(
            ys,
            claims.scores,
            claims.centers,
            claims.covariances,
            level=level,
            series=outcome.stretches is not None,
            exact=claims.exact,
            gaussian=claims.gaussian,
        )
    return Coordinates(
        outcome.estimate[rows], p, contract.holm(p), outcome.contributions[rows], *faults
    )
