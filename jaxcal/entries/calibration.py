"""Test calibration from log densities in linear time, and attribute errors to coordinates."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal import nulls
from jaxcal.engine import LightJit, one_at_a_time
from jaxcal.engine.quadratic import ordered_pairs
from jaxcal.engine.signs import HadamardSigns
from jaxcal.entries.evidence import Entries, log_evidence, varying
from jaxcal.entries.landed import N_POINTS
from jaxcal.entries.moments import MOST, Frame, groups
from jaxcal.entries.ranks import Fit, Statistics, normal
from jaxcal.entries.table import row_names, sharpened, table
from jaxcal.fit.specification import range_over_iqr
from jaxcal.nulls import DependentWild, HadamardWild, Null
from jaxcal.nulls.contract import p_value
from jaxcal.nulls.resampling import season
from jaxcal.numerics import not_finite
from jaxcal.read import Draws, checks, convert
from jaxcal.read.convert import input_names
from jaxcal.read.observations import densities, finite_rows, n_repeated, observations
from jaxcal.read.scores import is_distribution
from jaxcal.results import Parts, Table, TestResult, recorded
from jaxcal.typing import ArrayLike, Key, KeyLike, Points, Predictions, Scalar

LEAST_DRAWS = 4  # least number of independent draws
LEAST_ROWS = 10  # least number of observations for a table
TAKES = "a target (and its inputs)"  # arguments of statistics
Names: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]  # of coordinates, and of table columns


@recorded
def calibration_test(
    key: KeyLike,
    predictions: Predictions,
    targets: ArrayLike,
    *,
    inputs: ArrayLike | None = None,
    names: Sequence[str] | None = None,
    statistics: Statistics | None = None,
    null: Null = HadamardWild(),
    level: float = 0.05,
) -> TestResult:
    r"""Test that predictions are calibrated, and attribute errors to coordinates and features.

    Log densities may lack their constants. Points are drawn near each prediction and weighted so
    that under calibration ranks of the target among them are uniform (`jaxcal.entries.landed`).
    Moments are functions of these ranks and of scores (gradients of log densities). Under
    calibration a moment has mean 0, and so has its product with any feature: 1, centre and log
    scale of the prediction, inputs. Sums of such products are compared with sums under random
    signs. The statistic is the log of evidence averaged over alternatives: shift, spread,
    correlation, tails, skewness, trends of shift and spread, and "varying": errors along an unknown
    function of all features (`jaxcal.entries.evidence`).

    Args:
        key: Random key: typed, legacy or an integer seed.
        predictions: n log densities: an `Unnormalized`, or a numpyro distribution with batch shape
            [n], which is sampled if possible. Or `Draws` (or `McmcDraws`), at least 4 of each
            prediction: targets are ranked among one half of the draws; log densities are normal,
            with centre and scale of the other half.
        targets: Observed targets, shape [n], [n, d] or [n, ...].
        inputs: Inputs of the predictions, or other numbers on which errors may depend, [n] or
            [n, q], or a data frame, whose column names are used. Encode categories as 0 and 1.
            If there are more than 10 columns, the 10 leading principal components are tested
            together and, if there are at most 200 columns, each column by itself.
        names: Names of the d coordinates of a target; by default 0, 1, ...
        statistics: A JAX function of one target (and its inputs, if passed) that returns one or
            several numbers, whose ranks are tested too: SBC of quantities that you choose (Modrak
            et al., 2023), such as the log likelihood of the data, or the score of a classifier
            trained on other observations. NaN counts as the smallest value. Functions are compared
            by identity, so every new lambda causes a new compilation.
        null: `jaxcal.nulls.HadamardWild` or `Wild`, or `DependentWild` for observations in
            temporal order, whose dependence the table allows for, too.
        level: Probability of rejecting calibrated predictions; it determines ``result.verdict``.

    Returns:
        `TestResult`. ``result.parts`` holds the alternatives, each with its p-value.
        ``result.table`` holds shift and spread of each coordinate, on average and along each
        feature, correlations of pairs, and tails. ``result.ranks`` holds ranks of the targets by
        log density, each coordinate and ``statistics`` (`jaxcal.plots.where`). One target suffices
        to reject if its density is 0, or if it is so far in the tail that n calibrated predictions
        have such a target with probability 1e-6. If a density has a boundary, scores are not used.

    Cost per observation, for predictions that are not sampled: about 190 log densities, 6 gradients
    and 5 d Hessian-vector products, and k b multiplications for k products of a moment and a
    feature (d = 2: 41) and b draws of the null. Linear in n.

    Source: Tjelmeland (2004) for weighted points; Talts et al. (2018) for ranks; Stein (1972) for
    scores; White (1982) and Hansen (1982) for moments times features; Dawid (1984) for "varying".

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> def log_density(center, y):
        ...     return -jnp.sum((y - center) ** 2) / 2
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 200, 2))
        >>> predictions = jaxcal.Unnormalized(log_density, centers)
        >>> result = jaxcal.calibration_test(1, predictions, centers + 0.6 * noise)
        >>> result.verdict
        'rejected'
        >>> result.table.sentences()[0]
        'spread of ... too wide (limits ...'
    """
    key, level = convert.key(key), checks.level(level)
    ys = checks.targets(targets)
    notes = {}
    if isinstance(draws := getattr(predictions, "draws", predictions), Draws):
        independent, lag = observations(draws, ys)[0].thinned()
        if independent.samples.shape[1] < LEAST_DRAWS:
            raise ValueError(
                f"Draws.samples: successive draws have correlation {float(lag):.2g}, so fewer than "
                f"{LEAST_DRAWS} of each prediction are independent: pass longer chains, thinned"
            )
        predictions, notes = independent, {"correlated-draws": lag}
    else:
        predictions = densities(predictions, ys)
    (result,) = of_one_fit(key, predictions, ys, (inputs,), names, null, level, statistics)
    return replace(result, notes=result.notes | notes)


def of_one_fit(
    key: Key,
    predictions: Predictions,
    ys: Array,
    asked: tuple[ArrayLike | None, ...],
    names: Sequence[str] | None,
    null: Null,
    level: float,
    statistics: Statistics | None = None,
) -> list[TestResult]:
    """Return the result of `calibration_test` for each of the inputs ``asked``, all from one fit
    and with the same signs. Only one may be asked if there are ``statistics``."""
    checks.null(null)
    columns = tuple(_checked(inputs, ys) for inputs in asked)
    called = [table_names(names, ys, *pair) for pair in zip(asked, columns, strict=True)]
    if statistics is not None:
        _returns_numbers(convert.function(statistics, "statistics", TAKES), ys, columns[0])
    results = _unjudged(statistics, key, predictions, ys, columns, null, jnp.asarray(level))
    for k, (rows, along) in enumerate(called):
        if (of := results[k].table) is not None:  # whose names are no part of the program
            of = replace(of, rows=row_names(rows), columns=along)
        results[k] = replace(results[k], table=of).at_level(level, null.least_p_value)
    return results


def table_names(
    names: Sequence[str] | None, ys: Array, inputs: ArrayLike | None, columns: Points | None
) -> Names:
    """Return two tuples: validated names of the d coordinates of a target, by default 0, 1, ..; and
    names of the columns of the table: "everywhere", "centre", "scale", then those of inputs."""
    called = checks.names(names, ys[0].size, "coordinate") or tuple(map(str, range(ys[0].size)))
    along = () if columns is None else input_names(inputs, columns.shape[1])[:MOST]
    return called, ("everywhere", "centre", "scale", *along)


def _returns_numbers(statistics: Statistics, ys: Array, inputs: Points | None) -> None:
    of_one = (ys[0],) if inputs is None else (ys[0], inputs[0])
    shapes = " and ".join(str(jnp.shape(part)) for part in of_one)
    try:
        values = jax.eval_shape(statistics, *of_one)
    except (TypeError, ValueError) as error:
        raise TypeError(f"statistics: fails for {TAKES} of shape {shapes}: {error}") from error
    if not isinstance(values, jax.ShapeDtypeStruct):
        raise TypeError(
            f"statistics: wanted an array of numbers for {TAKES}, got a {type(values).__name__}"
        )


def observed(
    predictions: Predictions, ys: Array, inputs: ArrayLike | None
) -> tuple[Predictions, Points | None]:
    """Return validated log densities, and inputs [n, q] or None; errors name the wrong argument."""
    return densities(predictions, ys), _checked(inputs, ys)


def _checked(inputs: ArrayLike | None, ys: Array) -> Points | None:
    return None if inputs is None else finite_rows(inputs, len(ys), "inputs").astype(ys.dtype)


@partial(LightJit, static_argnums=0)
@one_at_a_time
def _unjudged(
    statistics: Statistics | None,
    key: Key,
    predictions: Predictions,
    targets: Array,
    asked: tuple[Points | None, ...],
    null: Null,
    level: Scalar,
) -> list[TestResult]:
    """Return results without a verdict; only limits in their tables depend on the level."""
    first = jax.random.split(key, 3)[0]  # `_result` uses the others
    fit = Fit.of(first, predictions, targets, None, statistics, asked[0])
    return [_result(key, fit, predictions, targets, inputs, null, level) for inputs in asked]


def _result(
    key: Key,
    fit: Fit,
    predictions: Predictions,
    targets: Array,
    inputs: Points | None,
    null: Null,
    level: Scalar,
) -> TestResult:
    keys = jax.random.split(key, 3)
    n, frame = len(targets), Frame.of(fit.seen, inputs)
    alternatives = groups(frame, fit.seen, fit.scores, fit.ends, inputs)
    if not isinstance(null, DependentWild):  # dependent errors of neighbours would be learned
        alternatives.append(varying(keys[1], frame, fit.seen, inputs, fit.kept))
    entries = Entries.of(alternatives, fit.kept)
    everywhere = sum(block.shape[1] for group in alternatives[:2] for block in group.blocks)
    series = entries.values[:, :everywhere]
    weights = null.needs(keys[2], series).weights
    if weights is None:
        raise TypeError(
            f"null: {type(null).__name__} draws no signs, which sums of moments are compared with: "
            f"take jaxcal.nulls.HadamardWild(), Wild() or, for time series, DependentWild()"
        )
    sums, correlations = entries.sums(weights), entries.correlations
    signs = weights.dense() if isinstance(weights, HadamardSigns) else weights

    def total(columns: Float[Array, "k b"]) -> tuple[Array, Array]:
        each = log_evidence(columns, correlations, alternatives)
        return jax.nn.logsumexp(each, axis=0), each

    (statistic, each), slopes = jax.vjp(total, sums)
    slope = slopes((jnp.zeros_like(statistic).at[0].set(1), jnp.zeros_like(each)))[0][:, 0]
    outcome = null.outcome(_as_sums(statistic, entries.values @ slope, signs))
    parts = Parts(
        tuple(group.name for group in alternatives),
        each[:, 0],
        p_value(each[:, 0], each[:, 1:]),
        jnp.argmax(each[:, 0]),
    )
    certain = jnp.any(fit.impossible)
    silent = (fit.flat | jnp.all(correlations == 0)) & ~certain
    p = jnp.where(silent, jnp.nan, outcome.p_value[0])
    p = jnp.where(certain & ~jnp.isnan(p), null.least_p_value(n), p)
    notes = fit.notes | about_data(predictions, targets, inputs)
    notes |= {"silent": silent, "constant-inputs": frame.n_constant}
    if outcome.stretches is not None:
        notes["dependent-observations"] = outcome.stretches < 10
        notes["season"] = season(series)
    return TestResult.of(
        notes,
        estimate=statistic[0],
        biased=statistic[0],
        standard_error=jnp.zeros_like(p),
        statistic=statistic[0],
        p_value=p,
        null_samples=statistic[1:],
        bandwidths={},
        contributions=outcome.contributions[0],
        coordinates=None,
        parts=parts,
        table=_table(fit, frame, inputs, level, predictions, null),
        ranks=jnp.where(fit.kept[:, None], fit.seen.ranks.shown, jnp.nan),
        steps=_steps(fit, frame, parts.names),
        test="calibration test",
        null=type(null).__name__,
    )


def _steps(fit: Fit, frame: Frame, alternatives: tuple[str, ...]) -> tuple[str, ...]:
    """Return one line for each of the steps that `jaxcal.explain` prints."""
    shape = list(fit.seen.centers.shape)
    inputs = "" if frame.inputs is None else f", {len(frame.inputs.columns.center)} inputs"
    scores = "s_i = grad log p_i at the target"
    return (
        f"t = (y - mean) / sd of the targets, {shape}",
        "points near each prediction, with weights p_i / q_i, or draws of it",
        f"{scores}, {shape}" if fit.scores is not None else "none: draws, or a density ends",
        f"f_i: 1, claimed centre, log of the claimed scale{inputs}",
        "none",
        "log evidence of sums of m_i f_i, m_i moments of ranks of the target and of s_i, averaged "
        f"over {', '.join(alternatives)}",
    )


def about_data(predictions: Predictions, targets: Array, inputs: Points | None) -> dict[str, Array]:
    """Return a dict from warning codes to sizes of problems in targets, inputs and draws."""
    raw = targets.reshape(len(targets), -1)
    drawn = isinstance(predictions, Draws)
    described = predictions.samples if drawn else ()
    unsettled = predictions.unsettled() if drawn else None
    return ({} if unsettled is None else {"unsettled-chains": unsettled}) | {
        "nonfinite-targets": not_finite(targets),
        "nonfinite-predictions": not_finite((inputs, described)),
        "identical-targets": jnp.all(raw == raw[:1]),
        "constant-coordinates": jnp.sum(jnp.max(raw, axis=0) == jnp.min(raw, axis=0)),
        "far-targets": range_over_iqr(raw),
        "repeated-rows": n_repeated(targets, predictions),
    }


def _table(
    fit: Fit, frame: Frame, inputs: Points | None, level: Scalar, predictions: Any, null: Null
) -> Table | None:
    """Return the table, with empty names; None below `LEAST_ROWS` observations."""
    ranks = fit.seen.ranks
    if len(ranks.coordinates) < LEAST_ROWS:
        return None
    m = N_POINTS if is_distribution(predictions) else None  # draws among which targets are ranked
    m = predictions.samples.shape[1] // 2 if isinstance(predictions, Draws) else m
    scores = ranks.normal, normal(ranks.resolved)
    along = frame.along(fit.seen, inputs)
    rest = ("",) * scores[0].shape[1], ("",) * (1 + len(along)), ranks.expected
    among = None if m is None else (m, ranks.even(m))
    plain = table(*scores, along, fit.kept, level, *rest, isinstance(null, DependentWild), among)
    return plain if among is None else sharpened(plain, among[1], among[0])


def _as_sums(statistic: Array, contributions: Array, signs: Array) -> nulls.Sums:
    """Return `Sums` for the method ``outcome`` of a null, from the statistic [1 + b] (observed
    value, then b draws) and linearized contributions [n] of observations to the observed value."""
    n = len(contributions)
    row = (contributions * ordered_pairs(n))[None]
    forms = statistic[None, 1:] * ordered_pairs(n)
    return nulls.Sums(n, statistic[None, :1], jnp.zeros_like(row), row, signs, forms)
