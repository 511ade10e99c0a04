r"""UCME: the calibration error at a few test locations, in linear time.

.. math:: Z_{ij} = k_P(p_j, P_i)\,[k_Y(y_j, Y_i) - E k_Y(y_j, Y')], \qquad Y' \sim P_i

Here k_P is a kernel on predictions P_i, k_Y a kernel on targets Y_i, and (p_j, y_j) is one of J
locations (test prediction, test target). Z has mean 0 under calibration. The statistic of a pair of
observations is :math:`\langle Z_i, Z_{i'} \rangle / J`. With the mean :math:`\bar Z` [J] of Z over
i, the mean over all pairs is :math:`\|\bar Z\|^2 / J`.
"""

from functools import partial
from typing import NamedTuple, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.scipy.special import betainc, gammaincc
from jaxtyping import Array, Bool, Float

from jaxcal.divergences.vectors import Vectors, gram_block
from jaxcal.fit import explanation, testing
from jaxcal.fit.fitted import Fitted
from jaxcal.fit.redraws import rare_targets, refitted
from jaxcal.fit.residuals import Featured, errors
from jaxcal.fit.specification import Specification
from jaxcal.nulls import DependentWild, Needs, Null, Sums, Wild
from jaxcal.numerics import full_precision, not_finite
from jaxcal.read import Draws, checks, convert
from jaxcal.read.families import distribution_of
from jaxcal.read.observations import drawn_order, n_repeated, observations
from jaxcal.results import Estimate, TestResult, recorded, rows_in_one_order
from jaxcal.results.notes import Notes
from jaxcal.skce.calibration import MeanOptions, default_null, mean_specification, of_targets_alone
from jaxcal.statistics.skce import KernelResidual
from jaxcal.statistics.weighted import Inner, Weighted
from jaxcal.typing import ArrayLike, Key, KeyLike, PredictionsLike, Scalar

__all__ = ["F", "ucme", "ucme_test"]
__dir__ = __all__.copy  # completion shows the public names


LOCATIONS = 5
EQUATION = "Z_ij = k(D(p_i, p_Tj)) [l(y_i, y_Tj) - E l(Z_i, y_Tj)] at J locations Tj"
COLLINEAR = 1e4  # largest condition number of the features' correlations without a warning


class F(eqx.Module):
    r"""Null for Hotelling's statistic Q: :math:`\frac{n - J}{J (n - 1)} Q \sim F_{J, n - J}`.

    Exact for n normal features at J locations. With skewed features it rejects too often: at level
    .05, with 5 locations in one dimension, .10 of calibrated models at n = 16, .09 at 32, .08 at 64
    and 128 (`experiments/ucme_level`; .13 at 16 with the default bandwidths). The result warns
    below 25 observations per location.

    Cost: O(n J^2 + J^3).

    Source: Hotelling (1931), for the mean of a normal distribution.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 200))
        >>> null = jaxcal.ucme.F()
        >>> jaxcal.ucme_test(1, dist.Normal(centers, 1.0), centers + 0.8 + noise, null=null).verdict
        'rejected'
    """

    def __call__(self, q: Scalar, n: int, j: int) -> Scalar:
        a, b = (jnp.asarray(x / 2, q.dtype) for x in (n - j, j))
        if q.dtype != jnp.float32 or n < max(1000, 200 * j):
            return betainc(a, b, 1 / (1 + q / (n - 1)))
        # betainc loses digits in float32; Bartlett (1938), to second order (Box, 1949)
        m = n - j / 2 - 1
        x = m * jnp.log1p(q / (n - 1)) / 2
        first, third = gammaincc(b, x), gammaincc(b + 2, x)
        return first + j * (j**2 - 4) / (48 * m**2) * (third - first)

    def judge(self, z: Float[Array, "n j"]) -> tuple[Scalar, Scalar, Bool[Array, ""]]:
        """Return Q, p, and whether the features are nearly collinear, so that p is too small."""
        q, condition = hotelling(z)
        return q, self(q, *z.shape), ~(condition < COLLINEAR)

    def least(self, j: int) -> int:
        return j + 1

    def enough(self, j: int) -> int:
        return 25 * j

    def least_p_value(self, n: int) -> float:
        return 0.0


@recorded
def ucme_test(
    key: KeyLike,
    predictions: PredictionsLike,
    targets: ArrayLike,
    *,
    locations: ArrayLike | None = None,
    n_locations: int = LOCATIONS,
    null: Null | F | None = None,
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
        null: One of `jaxcal.nulls`, or `F`. By default `jaxcal.nulls.Redrawn` if its cost is small,
            as in `jaxcal.skce_test`, else `jaxcal.nulls.Wild`. `Redrawn` keeps the observed targets
            of locations, and compares ``biased``. The level of `Wild` holds for 16 normal forecasts
            or more, also with close locations, or more of them than observations. `F` uses
            Hotelling's statistic :math:`Q = n \bar Z^\top S^{-1} \bar Z`, with S the sample
            covariance of the features Z [n, J] of `jaxcal.ucme`. In experiments the power of `F`
            for shifted forecasts was up to .08 higher. With few observations, or many or close
            locations, `F` rejected too many calibrated models (`experiments/ucme_level`);
            ``result.warnings()`` reports this.
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
    if null is not None and not isinstance(null, F):
        checks.null(null)
    key = convert.key(key)
    problem = _Problem.of(key, predictions, targets, locations, n_locations, options)
    n, j = problem.ys.shape[0], problem.at.shape[0]
    used = n - j if locations is None else n
    if null is None:
        null = default_null(problem.predictions, problem.ys, Wild(), problem.spec.target_kernel)
    if isinstance(null, DependentWild):  # observations that are left are in order of time
        problem = problem._replace(rows=jnp.sort(problem.rows))
    least = null.least(j) if isinstance(null, F) else 2
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


def _over_pairs(z: Float[Array, "n j"]) -> Sums:
    """Return the sums of < z_i, z_i' > / J over pairs of observations."""
    none = jnp.zeros((len(z), 0), z.dtype)
    return Sums.of(testing.over_pairs(Inner(), z / z.shape[1] ** 0.5, none, Needs()), none)


def _redrawn(
    keys: Array, unbiased: Array, problem: _Problem, fit: tuple[Fitted, Featured], biased: Array
) -> Float[Array, "1 b"]:
    """Return ``unbiased`` [1] plus biased estimates of data sets whose targets, except locations,
    are redrawn, minus the observed ``biased`` [1]: p compares biased estimates. A difference below
    the rounding of ``biased``, which may be far larger than ``unbiased``, is a tie."""
    _, predictions, ys, spec, rows, *_ = problem
    is_location = jnp.ones(len(ys), bool).at[rows].set(False)

    def one(key: Key) -> Array:
        keys = jax.random.split(problem.key)
        again = refitted(key, keys, spec, fit, predictions, ys, is_location)
        return _over_pairs(_at_locations(problem, *again)[0]).biased

    beyond = jax.lax.map(one, keys).T - biased[:, None]
    tied = jnp.abs(beyond) <= jnp.finfo(beyond.dtype).eps ** 0.5 * biased[:, None]
    return unbiased[:, None] + jnp.where(tied, 0, beyond)


@jax.jit
def _estimate_of(problem: _Problem) -> Estimate:
    fitted = problem.spec.fit(jax.random.split(problem.key), problem.predictions, problem.ys)
    sums = _over_pairs(_at_locations(problem, *fitted)[0])
    return Estimate(sums.unbiased[0], sums.biased[0])


@jax.jit
def _test(key: Key, problem: _Problem, null: Null | F) -> TestResult:
    _, predictions, ys, spec, rows, *_ = problem
    fit = fitted, featured = spec.fit(jax.random.split(problem.key), predictions, ys)
    z, noted = _at_locations(problem, fitted, featured)
    n, j = z.shape
    sums, series = _over_pairs(z), errors(featured, predictions, ys)[rows]
    exact, enough, collinear = getattr(null, "exact", False), 10, jnp.zeros((), bool)
    if isinstance(null, F):
        q, p, collinear = null.judge(z)
        outcome, enough = sums.outcome(q[None], p[None]), null.enough(j)
    else:
        redrawn = partial(_redrawn, problem=problem, fit=fit, biased=sums.biased)
        outcome, _ = testing.apply(null, key, Inner(), z / j**0.5, series=series, redrawn=redrawn)
    rare = None if exact else rare_targets(key, fit, predictions, ys)
    notes = fitted.notes | noted | testing.of_series(outcome, series)
    notes |= {
        "nonfinite-targets": not_finite(ys),
        "collinear-features": collinear,
        "many-locations": jnp.asarray(n < enough and not exact),
        "repeated-rows": n_repeated(ys, predictions),
    }
    notes |= {} if rare is None else {"rare-targets": rare}
    shares = jnp.zeros((1, len(ys)), z.dtype).at[:, rows].set(outcome.contributions)
    p = jnp.where(jnp.any(z != 0), outcome.p_value, jnp.nan)
    return testing.result(
        notes,
        outcome._replace(p_value=p, contributions=shares),
        bandwidths=fitted.bandwidths,
        test=f"CME test at {j} locations",
        steps=(*explanation.steps(spec, fitted, featured, predictions, ys)[:-1], EQUATION),
        null=type(null).__name__,
    )


def hotelling(z: Float[Array, "n j"]) -> tuple[Scalar, Scalar]:
    r"""Return :math:`Q = n \bar z^\top S^{-1} \bar z` and the condition number of z's correlations.

    S is the sample covariance of the columns of z [n, J]. Q is computed from eigenvectors of their
    correlation matrix, and is NaN if that is numerically singular. Cost O(n J^2 + J^3).
    """
    n, j = z.shape
    mean, deviation = jnp.mean(z, axis=0), jnp.std(z, axis=0, ddof=1)
    deviation = jnp.where(deviation > 0, deviation, 1)
    scaled = (z - mean[None]) / deviation[None]
    values, vectors = jnp.linalg.eigh(scaled.T @ scaled / (n - 1))
    condition = jnp.where(values[0] > 0, values[-1] / values[0], jnp.inf)
    singular = ~(values[0] > j * jnp.finfo(z.dtype).eps * values[-1])
    whitened = (mean / deviation) @ vectors / jnp.sqrt(jnp.where(singular, 1, values))
    return jnp.where(singular, jnp.nan, n * jnp.sum(whitened**2)), condition
