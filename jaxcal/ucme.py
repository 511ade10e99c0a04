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
from jaxtyping import Array, Bool, Float

from jaxcal import checks
from jaxcal.assembly import not_finite
from jaxcal.kernels.predictions import Vectors, gram_block
from jaxcal.location_nulls import ChiSquared, F, LocationNull, Signs
from jaxcal.models import Draws
from jaxcal.models.laws import Classes, Laplaces, Mixtures, Normals, law_of
from jaxcal.pairwise.skce import SKCE
from jaxcal.quadratic import ordered_pairs
from jaxcal.repeats import drawn_order, fingerprints, repeated_rows
from jaxcal.results import Diagnostics, Estimate, TestResult, largest_share
from jaxcal.skce.setup import Options, Setup, set_up
from jaxcal.typing import Key, KeyLike, Scalar

__all__ = ["ChiSquared", "F", "LocationNull", "Signs", "ucme", "ucme_test"]

LOCATIONS = 5


class _Made(NamedTuple):
    """Features [n, J] of the observations used, which they are, and what was noticed."""

    z: Float[Array, "n j"]
    rows: Array
    bandwidths: dict[str, Scalar]
    identical_predictions: Bool[Array, ""]
    identical_targets: Bool[Array, ""]
    constant_coordinates: Array
    nonfinite_targets: Array
    nonfinite_features: Array
    repeated_rows: Array


def ucme_test(
    key: KeyLike,
    predictions: Any,
    targets: Any,
    *,
    locations: Any = None,
    n_locations: int = LOCATIONS,
    null: LocationNull = Signs(),
    level: float = 0.05,
    **options: Unpack[Options],
) -> TestResult:
    r"""Test calibration at J test locations (the CME test), at a cost linear in n.

    ``predictions``, ``targets`` and the options of the kernel as in `jaxcal.skce_test`.
    ``locations``: test predictions and test targets, J of each, in the form of predictions and
    targets; they must not be chosen by looking at the data. By default ``n_locations`` of the
    observations, drawn by the key and what they hold, serve as locations and are left out of the
    test. Units and open bandwidths follow observations and locations together.

    ``level`` decides ``result.verdict``. ``biased`` is the plug-in :math:`\|\bar Z\|^2 / J`,
    ``estimate`` the same without pairs of an observation with itself.

    ``null``: `Signs`, for which ``statistic`` is ``biased``; or `F` or `ChiSquared`, for which it
    is Hotelling's :math:`Q = n \bar Z^\top S^{-1} \bar Z` (S with n - 1). Q does not change when
    the kernel is rescaled or locations are mixed, and gives directions of little spread the same
    weight: with it up to .08 more shifted forecasts were rejected (`experiments/ucme_level`). But
    both reject calibrated models too often where observations are few, locations many or close
    together; ``result.warnings()`` says so. p is NaN where S is singular to rounding, as with
    locations far from all observations.

    Cost O(J n) kernel evaluations, and O(J n b) for b draws or O(J^2 n). Raises ValueError unless
    2 observations are left (`F`, `ChiSquared`: more than locations), and for shapes; TypeError for
    locations of another kind than predictions.
    Source: Widmann, Lindsten and Zachariah (2021), Section 3.3 and App. C.
    """
    checks.location_null(null)
    made, n, j = _prepared(key, predictions, targets, locations, n_locations, options)
    used = n - j if locations is None else n
    if used < null.least(j):
        left = f" after {j} of n={n} serve as locations" if locations is None else ""
        raise ValueError(
            f"the null {type(null).__name__} at {j} locations needs {null.least(j)} observations, "
            f"got {used}{left}: use fewer locations"
        )
    level = checks.level(level)
    key = jax.random.fold_in(checks.key(key), 2)  # split makes 0 and 1
    result = _test(key, made, null, n)
    return result.at_level(level, lambda given: null.least_p_value(given - n + used))


def ucme(
    key: KeyLike,
    predictions: Any,
    targets: Any,
    *,
    locations: Any = None,
    n_locations: int = LOCATIONS,
    **options: Unpack[Options],
) -> Estimate:
    r"""Estimate the squared UCME, :math:`\frac1J \sum_j (E Z_j)^2`; arguments as in `ucme_test`.

    ``biased`` is the plug-in estimate of the paper, never negative; ``unbiased`` leaves out pairs
    of an observation with itself. Differentiable in the predictions' parameters. Cost O(J n).
    """
    made, n, j = _prepared(key, predictions, targets, locations, n_locations, options)
    if (used := n - j if locations is None else n) < 2:
        raise ValueError(f"the estimate needs at least 2 observations, got {used}")
    return _estimate(made.z)


def _prepared(
    key: KeyLike, predictions: Any, targets: Any, locations: Any, n_locations: Any, options: Options
) -> tuple[_Made, int, int]:
    """The features, and the numbers of observations given and of locations."""
    key = checks.key(key)
    pick, kernel_key = jax.random.split(key)
    if locations is None:
        n_locations = checks.integer(n_locations, "n_locations")
        held, ys, setup = set_up(predictions, targets, **options)
        n, j = ys.shape[0], n_locations
        if n - j < 1:
            raise ValueError(f"n_locations: {j} locations leave none of n={n} observations")
        order = drawn_order(pick, n, ys, held)
        return _features(kernel_key, held, ys, setup, order[j:], order[:j]), n, j
    held, ys, _ = set_up(predictions, targets, **options)
    if isinstance(options.get("distance"), Vectors):
        raise ValueError(
            "distance: Vectors hold no vectors of the locations given: leave these out, so that "
            "some of the observations serve as locations"
        )
    both, all_ys = _joined(held, ys, locations)
    n, j = ys.shape[0], all_ys.shape[0] - ys.shape[0]
    held, all_ys, setup = set_up(both, all_ys, **options)
    rows = jnp.arange(n + j)
    return _features(kernel_key, held, all_ys, setup, rows[:n], rows[n:]), n, j


def _joined(predictions: Any, ys: Array, locations: Any) -> tuple[Any, Array]:
    """Observations, then locations."""
    if not isinstance(locations, (tuple, list)) or len(locations) != 2:
        raise TypeError(
            f"locations: wanted (test predictions, test targets), got {type(locations).__name__}"
        )
    where, at = locations
    at = jnp.asarray(checks.array(at, "locations"))
    if at.ndim == 0 or at.shape[0] < 1 or at.shape[1:] != ys.shape[1:]:
        wanted = ", ".join(map(str, ("J", *ys.shape[1:])))
        raise ValueError(f"locations: wanted test targets of shape [{wanted}], got {at.shape}")
    j = at.shape[0]
    law = _law(predictions)
    other = _law(where) if law_of(where) is not None or isinstance(where, Draws) else None
    if isinstance(law, Classes) and other is None:
        other = Classes(checks.probabilities(where, "locations"))
    shapes = [[leaf.shape[1:] for leaf in jax.tree.leaves(one)] for one in (law, other)]
    if law is None or type(law) is not type(other) or shapes[0] != shapes[1]:
        raise TypeError(
            f"locations: wanted test predictions of the kind and size of the predictions (normals, "
            f"Laplace, mixtures of as many of these, classes, or Draws), got "
            f"{type(where).__name__} beside {type(predictions).__name__}"
        )
    if (counted := jax.tree.leaves(other)[0].shape[0]) != j:
        raise ValueError(f"locations: {counted} test predictions, but {j} test targets")
    both = jax.tree.map(lambda a, b: jnp.concatenate([a, b.astype(a.dtype)]), law, other)
    flat = jnp.concatenate([ys, at.astype(ys.dtype)])
    return (
        both if isinstance(both, (Classes, Draws)) else _distribution(both, ys.shape[1:]),
        flat,
    )


def _law(predictions: Any) -> Any:
    return predictions if isinstance(predictions, Draws) else law_of(predictions)


def _distribution(law: Any, event: tuple[int, ...]) -> Any:
    """A numpyro distribution over targets of this shape, with batch shape [n]."""
    import numpyro.distributions as dist

    match law:
        case Normals(mean, cov) if cov.ndim > mean.ndim:
            return dist.MultivariateNormal(mean, covariance_matrix=cov)
        case Normals(mean, cov):
            return _independent(dist.Normal, mean, jnp.sqrt(cov), event)
        case Laplaces(loc, scale):
            return _independent(dist.Laplace, loc, scale, event)
        case Mixtures(weights, parts):
            return dist.MixtureSameFamily(dist.Categorical(weights), _distribution(parts, event))
    raise TypeError(
        f"locations: predictions of kind {type(law).__name__} cannot be joined with others"
    )


def _independent(family: Any, loc: Array, scale: Array, event: tuple[int, ...]) -> Any:
    shape = (*loc.shape[:-1], *event)
    return family(loc.reshape(shape), scale.reshape(shape)).to_event(len(event))


@jax.jit
def _features(key: Key, predictions: Any, ys: Array, setup: Setup, rows: Array, at: Array) -> _Made:
    """Features of some observations at others."""
    made = setup.assemble(jax.random.split(key), predictions, ys)
    pairwise, all_features = made.pairwise, made.features
    assert isinstance(pairwise, SKCE)
    seen, where = (jax.tree.map(lambda leaf, k=k: leaf[k], all_features) for k in (rows, at))
    means = pairwise.means
    near = gram_block(
        pairwise.prediction_kernel, pairwise.distance, seen.predictions, where.predictions
    )
    z = near * (means.gram(seen.ys, where.ys) - means.first(seen.law, where.ys))
    return _Made(
        z,
        rows,
        made.bandwidths,
        made.identical_predictions,
        made.identical_targets,
        made.constant_coordinates,
        not_finite(ys),
        made.nonfinite_features,
        repeated_rows(ys, *(fingerprints(tree, ys.shape[0])[rows] for tree in (ys, predictions))),
    )


@jax.jit
def _estimate(z: Float[Array, "n j"]) -> Estimate:
    n, j = z.shape
    total = jnp.sum(jnp.sum(z, axis=0) ** 2)
    own = jnp.sum(z**2)
    return Estimate((total - own) / (j * ordered_pairs(n)), total / (j * float(n**2)))


@partial(jax.jit, static_argnames="given")
def _test(key: Key, made: _Made, null: LocationNull, given: int) -> TestResult:
    z = made.z
    n, j = z.shape
    estimate = _estimate(z)
    total = jnp.sum(z, axis=0)
    shares = (z @ total - jnp.sum(z**2, axis=1)) / (j * ordered_pairs(n))
    contributions = jnp.zeros(given, z.dtype).at[made.rows].set(shares)
    judgement = null.judge(key, z)
    diagnostics = Diagnostics(
        nonfinite_targets=made.nonfinite_targets,
        nonfinite_scores=jnp.zeros((), jnp.int32),
        nonfinite_features=made.nonfinite_features,
        identical_predictions=made.identical_predictions,
        identical_targets=made.identical_targets,
        constant_coordinates=made.constant_coordinates,
        clamped=jnp.zeros((), jnp.int32),
        largest_share=largest_share(contributions),
        collinear_features=judgement.collinear,
        few_observations=jnp.asarray(n < null.enough(j)),
        repeated_rows=made.repeated_rows,
    )
    return TestResult.of(
        diagnostics,
        estimate=estimate.unbiased,
        biased=estimate.biased,
        standard_error=2 * jnp.std(shares, ddof=1) * n**0.5,
        statistic=judgement.statistic,
        p_value=judgement.p_value,
        null_samples=judgement.samples,
        bandwidths=made.bandwidths,
        contributions=contributions,
        coordinates=None,
        test=f"CME test at {j} locations",
        null=type(null).__name__,
    )
