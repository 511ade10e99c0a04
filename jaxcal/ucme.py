r"""Is the model calibrated? UCME: the calibration error at a few test locations, in linear time.

.. math:: Z_{ij} = k_P(p_{T_j}, P_i)\,[k_Y(y_{T_j}, Y_i) - E k_Y(y_{T_j}, Z)], \qquad Z \sim P_i

has mean 0 at every location T_j = (p_T, y_T) where the model is calibrated. The estimate is
:math:`\|\bar Z\|^2 / J`, and the test asks whether the J means differ from 0: by random signs, or
as Hotelling's does.
"""

from functools import partial
from typing import Any, NamedTuple, Unpack

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal import checks
from jaxcal.divergences.vectors import Vectors, gram_block
from jaxcal.location_nulls import ChiSquared, F, LocationNull, Signs
from jaxcal.models import Draws
from jaxcal.models.families import Classes, distribution_of
from jaxcal.pairwise.skce import KernelResidual
from jaxcal.pairwise.weighted import Weighted, WeightedFeatures
from jaxcal.preparation import Prepared, Specification, not_finite
from jaxcal.quadratic import ordered_pairs
from jaxcal.repeats import drawn_order, fingerprints, repeated_rows
from jaxcal.results import Diagnostics, Estimate, TestResult, recorded
from jaxcal.skce.specification import MeanOptions, mean_specification
from jaxcal.typing import ArrayLike, Key, KeyLike, PredictionsLike

__all__ = ["ChiSquared", "F", "LocationNull", "Signs", "ucme", "ucme_test"]


def __dir__() -> list[str]:
    return sorted(__all__)


LOCATIONS = 5


class _Located(NamedTuple):
    """Features [n, J] of the observations used, which they are, and what was noticed."""

    z: Float[Array, "n j"]
    rows: Array
    prepared: Prepared
    nonfinite_targets: Array
    nonfinite_features: Array
    repeated_rows: Array


@recorded
def ucme_test(
    key: KeyLike,
    predictions: PredictionsLike,
    targets: ArrayLike,
    *,
    locations: ArrayLike | None = None,
    n_locations: int = LOCATIONS,
    null: LocationNull = Signs(),
    level: float = 0.05,
    **options: Unpack[MeanOptions],
) -> TestResult:
    r"""Test calibration at J test locations, at a cost linear in n: the CME test.

    Args:
        key: Random key: typed, legacy or an integer seed.
        predictions: n predictions, as in `jaxcal.skce_test`.
        targets: Observed targets, as in `jaxcal.skce_test`.
        locations: (test predictions, test targets), J of each, in the form of ``predictions``
            and ``targets``; they must not be chosen by looking at the data. By default
            ``n_locations`` of the observations, drawn by the key and by what they hold, serve as
            locations and are left out of the test.
        n_locations: Number J of observations that serve as locations.
        null: `Signs`, for which ``statistic`` is ``biased``; or `F` or `ChiSquared`, for which it
            is Hotelling's :math:`Q = n \bar Z^\top S^{-1} \bar Z` (S with n - 1). Q does not
            change when the kernel is rescaled or locations are mixed, and gives directions of
            little spread the same weight: with it up to .08 more shifted forecasts were rejected
            (`experiments/ucme_level`). But `F` and `ChiSquared` reject calibrated models too
            often where observations are few, or locations many or close together;
            ``result.warnings()`` says so.
        level: Probability of rejecting a calibrated model; it decides ``result.verdict``.
        **options: Options of `jaxcal.skce`, as explained in `jaxcal.skce_test`, but ``whiten``.
            Units and unset bandwidths follow all observations, also those that serve as
            locations.

    Returns:
        `TestResult`. ``biased`` is the plug-in :math:`\|\bar Z\|^2 / J`, ``estimate`` the same
        without pairs of an observation with itself. p is NaN where S is singular to rounding, as
        with locations far from all observations.

    Raises:
        ValueError: Shapes are wrong, or fewer than 2 observations are left (`F`, `ChiSquared`:
            fewer than J + 1).
        TypeError: Locations are of another kind than the predictions.

    Cost: O(J n) kernel evaluations, and O(J n b) for b draws or O(J^2 n).

    Source: Widmann, Lindsten and Zachariah (2021), Section 3.3 and App. C.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 200))
        >>> jaxcal.ucme_test(1, dist.Normal(centers, 1.0), centers + 0.8 + noise).verdict
        'rejected'
    """
    checks.location_null(null)
    located, n, j = _prepared(key, predictions, targets, locations, n_locations, options)
    used = n - j if locations is None else n
    if used < null.least(j):
        left = f" after {j} of n={n} serve as locations" if locations is None else ""
        raise ValueError(
            f"the null {type(null).__name__} at {j} locations needs {null.least(j)} observations, "
            f"got {used}{left}: use fewer locations"
        )
    level = checks.level(level)
    key = jax.random.fold_in(checks.key(key), 2)  # split makes 0 and 1
    result = _test(key, located, null, n)
    return result.at_level(level, lambda count: null.least_p_value(count - n + used))


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

    Differentiable in the predictions' parameters.

    Args:
        key: Random key: typed, legacy or an integer seed.
        predictions: n predictions, as in `jaxcal.skce_test`.
        targets: Observed targets, as in `jaxcal.skce_test`.
        locations: As in `ucme_test`.
        n_locations: As in `ucme_test`.
        **options: As in `ucme_test`.

    Returns:
        `jaxcal.Estimate`: ``biased`` is the plug-in estimate of the paper, never negative;
        ``unbiased`` leaves out pairs of an observation with itself.

    Raises:
        ValueError: Shapes are wrong, or fewer than 2 observations are left.
        TypeError: Locations are of another kind than the predictions.

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
    located, n, j = _prepared(key, predictions, targets, locations, n_locations, options)
    if (used := n - j if locations is None else n) < 2:
        raise ValueError(f"the estimate needs at least 2 observations, got {used}")
    return _estimate(located.z)


def _prepared(
    key: KeyLike,
    predictions: PredictionsLike,
    targets: ArrayLike,
    locations: ArrayLike | None,
    n_locations: int,
    options: MeanOptions,
) -> tuple[_Located, int, int]:
    """The features, and the numbers of observations given and of locations."""
    pick, kernel_key = jax.random.split(checks.key(key))
    if options.get("whiten") is not None:
        raise ValueError(
            "whiten: locations lie in the units that all targets share; use skce_test or kccsd_test"
        )
    predictions, ys, spec = mean_specification(predictions, targets, **options)
    n = ys.shape[0]
    if locations is not None:
        if isinstance(spec.divergence, Vectors):
            raise ValueError(
                "divergence: Vectors hold no vectors of the locations given: leave these out, so "
                "that some of the observations serve as locations"
            )
        where, at = _checked(locations, predictions, ys)
        located = _at_others(kernel_key, predictions, ys, spec, where, at)
        return located, n, at.shape[0]
    j = checks.integer(n_locations, "n_locations")
    if n - j < 1:
        raise ValueError(f"n_locations: {j} locations leave none of n={n} observations")
    order = drawn_order(pick, n, ys, predictions)
    return _among(kernel_key, predictions, ys, spec, order[j:], order[:j]), n, j


def _checked(
    locations: ArrayLike, predictions: PredictionsLike, ys: Array
) -> tuple[PredictionsLike, Array]:
    """Test predictions of the kind of the predictions, and as many test targets."""
    if not isinstance(locations, (tuple, list)) or len(locations) != 2:
        raise TypeError(
            f"locations: wanted (test predictions, test targets), got {type(locations).__name__}"
        )
    where, at = locations
    at = jnp.asarray(checks.array(at, "locations"))
    if at.ndim == 0 or at.shape[0] < 1 or at.shape[1:] != ys.shape[1:]:
        wanted = ", ".join(map(str, ("J", *ys.shape[1:])))
        raise ValueError(f"locations: wanted test targets of shape [{wanted}], got {at.shape}")
    distribution, other = _distribution(predictions), None
    if distribution_of(where) is not None or isinstance(where, Draws):
        other = _distribution(where)
    elif isinstance(distribution, Classes):
        where = other = Classes(checks.probabilities(where, "locations"))
    if isinstance(other, Classes):
        where = other
    shapes = [[leaf.shape[1:] for leaf in jax.tree.leaves(one)] for one in (distribution, other)]
    if distribution is None or type(distribution) is not type(other) or shapes[0] != shapes[1]:
        raise TypeError(
            f"locations: wanted test predictions of the kind and size of the predictions (normals, "
            f"Laplace, mixtures of as many of these, classes, or Draws), got "
            f"{type(where).__name__} beside {type(predictions).__name__}"
        )
    if (counted := jax.tree.leaves(other)[0].shape[0]) != at.shape[0]:
        raise ValueError(f"locations: {counted} test predictions, but {at.shape[0]} test targets")
    return where, at.astype(ys.dtype)


def _distribution(predictions: PredictionsLike) -> Any:
    return predictions if isinstance(predictions, Draws) else distribution_of(predictions)


@jax.jit
def _among(
    key: Key, predictions: PredictionsLike, ys: Array, spec: Specification, rows: Array, at: Array
) -> _Located:
    """Features of some observations at others."""
    prepared, featured = spec.fit(jax.random.split(key), predictions, ys)
    seen, there = (jax.tree.map(lambda leaf, k=k: leaf[k], featured.features) for k in (rows, at))
    return _located(prepared, seen, there, predictions, ys, rows, featured.nonfinite_features)


@jax.jit
def _at_others(
    key: Key,
    predictions: PredictionsLike,
    ys: Array,
    spec: Specification,
    where: PredictionsLike,
    at: Array,
) -> _Located:
    """Features of all observations at locations given."""
    prepared, featured = spec.fit(jax.random.split(key), predictions, ys)
    others = prepared.features(jax.random.split(jax.random.fold_in(key, 1)), where, at)
    bad = featured.nonfinite_features + others.nonfinite_features + not_finite(at)
    rows = jnp.arange(ys.shape[0])
    return _located(prepared, featured.features, others.features, predictions, ys, rows, bad)


def _located(
    prepared: Prepared,
    seen: WeightedFeatures,
    there: WeightedFeatures,
    predictions: PredictionsLike,
    ys: Array,
    rows: Array,
    nonfinite: Array,
) -> _Located:
    pairwise = prepared.pairwise
    assert isinstance(pairwise, Weighted)
    (statistic,), (observed,), (at,) = pairwise.statistics, seen.residuals, there.residuals
    assert isinstance(statistic, KernelResidual)
    means = statistic.means
    near = gram_block(
        pairwise.prediction_kernel, pairwise.divergence, seen.predictions, there.predictions
    )
    return _Located(
        near * (means.gram(observed.ys, at.ys) - means.first(observed.distribution, at.ys)),
        rows,
        prepared,
        not_finite(ys),
        nonfinite,
        repeated_rows(ys, *(fingerprints(tree, ys.shape[0])[rows] for tree in (ys, predictions))),
    )


@jax.jit
def _estimate(z: Float[Array, "n j"]) -> Estimate:
    n, j = z.shape
    total = jnp.sum(jnp.sum(z, axis=0) ** 2)
    squares = jnp.sum(z**2)
    return Estimate((total - squares) / (j * ordered_pairs(n)), total / (j * float(n**2)))


@partial(jax.jit, static_argnames="n_targets")
def _test(key: Key, located: _Located, null: LocationNull, n_targets: int) -> TestResult:
    z = located.z
    n, j = z.shape
    estimate = _estimate(z)
    total = jnp.sum(z, axis=0)
    shares = (z @ total - jnp.sum(z**2, axis=1)) / (j * ordered_pairs(n))
    contributions = jnp.zeros(n_targets, z.dtype).at[located.rows].set(shares)
    judgement = null.judge(key, z)
    diagnostics = Diagnostics.of(
        contributions,
        located.prepared,
        nonfinite_targets=located.nonfinite_targets,
        nonfinite_features=located.nonfinite_features,
        collinear_features=judgement.collinear,
        few_observations=jnp.asarray(n < null.enough(j)),
        repeated_rows=located.repeated_rows,
    )
    return TestResult.of(
        diagnostics,
        estimate=estimate.unbiased,
        biased=estimate.biased,
        standard_error=2 * jnp.std(shares, ddof=1) * n**0.5,
        statistic=judgement.statistic,
        p_value=judgement.p_value,
        null_samples=judgement.samples,
        bandwidths=located.prepared.bandwidths,
        contributions=contributions,
        coordinates=None,
        test=f"CME test at {j} locations",
        null=type(null).__name__,
    )
