r"""UCME: the calibration error at a few test locations, in linear time.

.. math:: Z_{ij} = k_P(p_j, P_i)\,[k_Y(y_j, Y_i) - E k_Y(y_j, Y')], \qquad Y' \sim P_i

Here k_P is a kernel on predictions P_i, k_Y a kernel on targets Y_i, and (p_j, y_j) is one of J
locations (test prediction, test target). Z has mean 0 under calibration. With the mean
:math:`\bar Z` [J] of Z over i, the estimate is :math:`\|\bar Z\|^2 / J`.
"""

from typing import NamedTuple, Unpack

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.divergences.vectors import Vectors, gram_block
from jaxcal.engine.quadratic import ordered_pairs
from jaxcal.fit import explanation
from jaxcal.fit.fitted import Fitted
from jaxcal.fit.redraws import rare_targets, refitted
from jaxcal.fit.residuals import Featured
from jaxcal.fit.specification import Specification
from jaxcal.nulls import Redrawn, contract
from jaxcal.nulls.locations import F, Judgement, LocationNull, Signs
from jaxcal.numerics import full_precision, not_finite
from jaxcal.read import Draws, checks, convert
from jaxcal.read.families import distribution_of
from jaxcal.read.observations import drawn_order, n_repeated, observations
from jaxcal.results import Estimate, TestResult, recorded, rows_in_one_order
from jaxcal.results.notes import Notes
from jaxcal.skce.calibration import (
    MeanOptions,
    default_null,
    mean_specification,
    of_targets_alone,
)
from jaxcal.statistics.skce import KernelResidual
from jaxcal.statistics.weighted import Weighted
from jaxcal.typing import ArrayLike, Key, KeyLike, PredictionsLike

__all__ = ["F", "Signs", "ucme", "ucme_test"]
__dir__ = __all__.copy  # completion shows the public names


LOCATIONS = 5
EQUATION = "Z_ij = k(D(p_i, p_Tj)) [l(y_i, y_Tj) - E l(Z_i, y_Tj)] at J locations Tj"


@recorded
def ucme_test(
    key: KeyLike,
    predictions: PredictionsLike,
    targets: ArrayLike,
    *,
    locations: ArrayLike | None = None,
    n_locations: int = LOCATIONS,
    null: LocationNull | Redrawn | None = None,
    level: float = 0.05,
    **options: Unpack[MeanOptions],
) -> TestResult:
    r"""Test calibration at J test locations, at a cost linear in n: the CME test.

    Args:
        key: Random key: typed, legacy or an integer seed.
        predictions: n predictions, as in `jaxcal.skce_test`.
        targets: Observed targets, as in `jaxcal.skce_test`.
        locations: (test predictions, test targets), J of each, in the form of ``predictions``
            and ``targets``; they must not depend on the data. By default ``n_locations`` of the
            observations, selected by the key and by their values, are used as locations and
            excluded from the test.
        n_locations: Number J of observations used as locations if ``locations`` is None.
        null: `Signs`, `jaxcal.nulls.Redrawn` or `F`; by default `Redrawn` if its cost is small, as
            in `jaxcal.skce_test`, else `Signs`. `Redrawn` keeps the observed targets of locations.
            `Signs` and `Redrawn` use the statistic ``biased``. `F` uses Hotelling's statistic
            :math:`Q = n \bar Z^\top S^{-1} \bar Z`, with S the sample covariance of the features Z
            [n, J] of `jaxcal.ucme`. In experiments the power of `F` for shifted forecasts was up to
            .08 higher. With few observations, or many or close locations, `F` rejected too many
            calibrated models (`experiments/ucme_level`); ``result.warnings()`` reports this.
        level: Probability of rejecting a calibrated model; it determines ``result.verdict``.
        **options: Options of `jaxcal.skce`, as explained in `jaxcal.skce_test`, except ``whiten``.
            Units and unset bandwidths depend on all observations, including locations.

    Returns:
        `TestResult`. ``biased`` is :math:`\|\bar Z\|^2 / J`, a mean over pairs of observations;
        ``estimate`` omits pairs of an observation with itself. p is NaN if Z = 0, which happens
        if locations are far from all observations; for `F` also if S is numerically singular.

    Cost: O(J n) kernel evaluations; O(J n b) for b draws, or O(J^2 n) for `F`.

    Source: Widmann, Lindsten and Zachariah (2021), Section 3.3 and App. C.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 200))
        >>> jaxcal.ucme_test(1, dist.Normal(centers, 1.0), centers + 0.8 + noise).verdict
        'rejected'
    """
    if null is not None and not isinstance(null, Redrawn):
        checks.location_null(null)
    key = convert.key(key)
    problem = _Problem.of(key, predictions, targets, locations, n_locations, options)
    n, j = problem.ys.shape[0], problem.at.shape[0]
    used = n - j if locations is None else n
    if null is None:
        null = default_null(problem.predictions, problem.ys, Signs(), problem.spec.target_kernel)
    least = 2 if isinstance(null, Redrawn) else null.least(j)
    if used < least:
        why = f" after {j} of n={n} serve as locations" if locations is None else ""
        raise ValueError(
            f"the null {type(null).__name__} at {j} locations needs {least} observations, "
            f"got {used}{why}: use fewer locations"
        )
    level = checks.level(level)
    result = _test(jax.random.fold_in(key, 2), problem, null)  # split uses 0 and 1
    return result.at_level(level, lambda count: null.least_p_value(count - n + used))


@full_precision
@rows_in_one_order
def ucme(
    key: KeyLike,
    predictions: PredictionsLike,
    targets: ArrayLike,
    *,
    locations: ArrayLike | None = None,
    n_locations: int = LOCATIONS,
    **options: Unpack[MeanOptions],
) -> Estimate:
    r"""Estimate the squared UCME, :math:`\frac1J \sum_j (E Z_j)^2`, at J test locations.

    The features Z are defined in `jaxcal.ucme`. Differentiable in the predictions' parameters.

    Args:
        key: Random key: typed, legacy or an integer seed.
        predictions: n predictions, as in `jaxcal.skce_test`.
        targets: Observed targets, as in `jaxcal.skce_test`.
        locations: As in `ucme_test`.
        n_locations: As in `ucme_test`.
        **options: As in `ucme_test`.

    Returns:
        `Estimate`: ``biased`` is the plug-in estimate of the paper, never negative;
        ``unbiased`` excludes pairs of an observation with itself.

    Cost: O(J n) kernel evaluations.

    Source: Widmann, Lindsten and Zachariah (2021), Section 3.3.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 200))
        >>> estimate = jaxcal.ucme.ucme(1, dist.Normal(centers, 1.0), centers + 0.8 + noise)
        >>> bool(estimate.biased > 0)
        True
    """
    key = convert.key(key)
    problem = _Problem.of(key, predictions, targets, locations, n_locations, options)
    n, j = problem.ys.shape[0], problem.at.shape[0]
    if (used := n - j if locations is None else n) < 2:
        raise ValueError(f"the estimate needs at least 2 observations, got {used}")
    return _estimate_of(problem)


class _Problem(NamedTuple):
    """Validated arguments. ``rows``: tested row numbers. ``where``, ``at``: test predictions and
    test targets; if some observations are the locations, None and their row numbers."""

    key: Key
    predictions: PredictionsLike
    ys: Array
    spec: Specification
    rows: Array
    at: Array
    where: PredictionsLike | None

    @classmethod
    def of(
        cls,
        key: Key,
        predictions: PredictionsLike,
        targets: ArrayLike,
        locations: ArrayLike | None,
        n_locations: int,
        options: MeanOptions,
    ) -> "_Problem":
        """Validate the arguments and select the locations; errors name the argument."""
        pick, kernel_key = jax.random.split(key)
        if options.get("whiten") is not None:
            raise ValueError(
                "whiten: locations lie in the units that all targets share; use skce_test or "
                "kccsd_test"
            )
        predictions, ys, spec = mean_specification(predictions, targets, **options)
        of_targets_alone(spec)
        n = ys.shape[0]
        if locations is not None:
            if isinstance(spec.divergence, Vectors):
                raise ValueError(
                    "divergence: Vectors hold no vectors of the locations given: leave these out, "
                    "so that some of the observations serve as locations"
                )
            where, at = _checked(locations, predictions, ys)
            return cls(kernel_key, predictions, ys, spec, jnp.arange(n), at, where)
        j = convert.integer(n_locations, "n_locations")
        if n - j < 1:
            raise ValueError(f"n_locations: {j} locations leave none of n={n} observations")
        order = drawn_order(pick, n, ys, predictions)
        return cls(kernel_key, predictions, ys, spec, order[j:], order[:j], None)


def _checked(
    locations: ArrayLike, predictions: PredictionsLike, ys: Array
) -> tuple[PredictionsLike, Array]:
    """Return the test predictions and test targets after checks of kinds and shapes."""
    if not isinstance(locations, (tuple, list)) or len(locations) != 2:
        raise TypeError(
            f"locations: wanted (test predictions, test targets), got {type(locations).__name__}"
        )
    try:
        where, at = observations(*locations, least=1)
    except (TypeError, ValueError) as error:
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(f"locations: test {error}") from error
    kinds = [
        one if isinstance(one, Draws) else distribution_of(one) for one in (predictions, where)
    ]
    sizes = [[leaf.shape[1:] for leaf in jax.tree.leaves(one)] for one in kinds]
    if kinds[0] is None or type(kinds[0]) is not type(kinds[1]) or sizes[0] != sizes[1]:
        raise TypeError(
            f"locations: wanted test predictions of the kind and size of the predictions (normals, "
            f"Laplace, mixtures of as many of these, classes, or Draws), got "
            f"{type(where).__name__} beside {type(predictions).__name__}"
        )
    return where, at.astype(ys.dtype)


def _at_locations(
    problem: _Problem, prepared: Fitted, featured: Featured
) -> tuple[Float[Array, "n j"], Notes]:
    """Return Z_ij, [n, j], and notes: the number of non-finite values in predictions and locations,
    and the rounding error of means of Z relative to their standard error (``small-residuals``)."""
    nonfinite = featured.notes["nonfinite-predictions"]
    observations = jax.tree.map(lambda leaf: leaf[problem.rows], featured.features)
    if problem.where is None:
        there = jax.tree.map(lambda leaf: leaf[problem.at], featured.features)
    else:
        keys = jax.random.split(jax.random.fold_in(problem.key, 1))
        others = prepared.features(keys, problem.where, problem.at)
        nonfinite += others.notes["nonfinite-predictions"] + not_finite(problem.at)
        there = others.features
    pairwise = prepared.pairwise
    assert isinstance(pairwise, Weighted)
    statistic, observed, at = pairwise.statistic, observations.residual, there.residual
    assert isinstance(statistic, KernelResidual)
    means = statistic.means
    k = gram_block(
        pairwise.prediction_kernel, pairwise.divergence, observations.predictions, there.predictions
    )
    first = means.first(observed.distribution, at.ys)
    z = k * (means.gram(observed.ys, at.ys) - first)
    size, rounding = jnp.linalg.norm(z), jnp.finfo(z.dtype).eps * jnp.linalg.norm(k * first)
    exact = (size == 0) | hasattr(means.formulas, "residual")
    lost = jnp.where(exact, 0, rounding * len(z) ** 0.5 / size)
    return z, {"nonfinite-predictions": nonfinite, "small-residuals": lost}


def _redrawn(
    key: Key, problem: _Problem, null: Redrawn, fitted: tuple[Fitted, Featured]
) -> Float[Array, " b"]:
    """Return plug-in estimates [b] of data sets whose targets, except locations, are redrawn."""
    _, _, ys, _, _, at, where = problem
    is_location = jnp.zeros(ys.shape[0], bool)
    is_location = is_location.at[at].set(True) if where is None else is_location

    def one(key: Key) -> Array:
        keys = jax.random.split(problem.key)
        again = refitted(key, keys, problem.spec, fitted, problem.predictions, ys, is_location)
        return _estimate(_at_locations(problem, *again)[0]).biased

    return jax.lax.map(one, jax.random.split(key, null.n_draws))


@jax.jit
def _estimate_of(problem: _Problem) -> Estimate:
    fitted = problem.spec.fit(jax.random.split(problem.key), problem.predictions, problem.ys)
    return _estimate(_at_locations(problem, *fitted)[0])


def _estimate(z: Float[Array, "n j"]) -> Estimate:
    n, j = z.shape
    total = jnp.sum(jnp.sum(z, axis=0) ** 2)
    squares = jnp.sum(z**2)
    return Estimate((total - squares) / (j * ordered_pairs(n)), total / (j * float(n**2)))


@jax.jit
def _test(key: Key, problem: _Problem, null: LocationNull | Redrawn) -> TestResult:
    _, predictions, ys, spec, rows, _, _ = problem
    prepared, featured = spec.fit(jax.random.split(problem.key), predictions, ys)
    z, noted = _at_locations(problem, prepared, featured)
    n, j = z.shape
    estimate = _estimate(z)
    total = jnp.sum(z, axis=0)
    shares = (z @ total - jnp.sum(z**2, axis=1)) / (j * ordered_pairs(n))
    contributions = jnp.zeros(ys.shape[0], z.dtype).at[rows].set(shares)
    fitted, rare, few = (prepared, featured), None, False
    if isinstance(null, Redrawn):
        samples = _redrawn(key, problem, null, fitted)
        p = contract.p_value(estimate.biased[None], samples[None], ties=True)[0]
        p = jnp.where(jnp.any(z != 0), p, jnp.nan)
        judgement = Judgement(estimate.biased, p, samples, jnp.zeros((), bool))
    else:
        judgement, few = null.judge(key, z), n < null.enough(j)
        rare = rare_targets(key, fitted, predictions, ys)
    notes = (
        prepared.notes
        | noted
        | {
            "nonfinite-targets": not_finite(ys),
            "collinear-features": judgement.collinear,
            "many-locations": jnp.asarray(few),
            "repeated-rows": n_repeated(ys, predictions),
        }
    )
    notes |= {} if rare is None else {"rare-targets": rare}
    return TestResult.of(
        notes,
        estimate=estimate.unbiased,
        biased=estimate.biased,
        standard_error=2 * jnp.std(shares, ddof=1) * n**0.5,
        statistic=judgement.statistic,
        p_value=judgement.p_value,
        null_samples=judgement.samples,
        bandwidths=prepared.bandwidths,
        contributions=contributions,
        coordinates=None,
        test=f"CME test at {j} locations",
        steps=(*explanation.steps(spec, prepared, featured, predictions, ys)[:-1], EQUATION),
        null=type(null).__name__,
    )
