"""Predictions and targets to a pairwise statistic with its features: the front of every Stein test.

Everything is brought to the units of the targets' own spread first, so that no result depends on
metres or nanometres; bandwidths follow by the median heuristic in those units.
"""

from typing import Any, NamedTuple, Protocol, TypedDict, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Int
from jaxtyping import Key as _Key

from jaxcal import checks, moments, preconditioners
from jaxcal.kernels import points
from jaxcal.kernels.bandwidths import median_heuristic, pairs, positive_median
from jaxcal.kernels.classes import of_vectors
from jaxcal.kernels.points import Constant, Gaussian
from jaxcal.kernels.predictions import Fisher, NodeScores, Vectors, _Euclidean
from jaxcal.models import Scores, Standardized, Units
from jaxcal.models.sampling import sample
from jaxcal.numerics import binary_size
from jaxcal.pairwise.stein import Stein, SteinFeatures, check_smooth
from jaxcal.scores import is_distribution, scores_at
from jaxcal.typing import Key, Nodes, Pairwise, Points, Precondition, Scalar

Keys = _Key[Array, "2"]  # for base points, and for features of the predictions


class Setup(eqx.Module):
    """The choices of a Stein test. Everything static changes the program; nothing else does."""

    distance: Any
    prediction_kernel: Any
    target_kernel: Any
    base: Any  # None, points [m, d], or a distribution, in the units of the targets
    n_nodes: int = eqx.field(static=True)
    precondition: Precondition = eqx.field(static=True)
    standardize: bool = eqx.field(static=True)
    components: bool = eqx.field(static=True)

    def assemble(self, keys: Keys, predictions: Any, targets: Array) -> "Assembled":
        """Features, bandwidths and the pairwise statistic of one data set."""
        return assemble(keys, predictions, targets, self)


class Options(TypedDict, total=False):
    """Options of every Stein test and estimate, by name; `kccsd_test` explains them."""

    distance: Any
    prediction_kernel: Any
    target_kernel: Any
    base: Any
    n_nodes: int
    precondition: Precondition
    standardize: bool


def set_up(
    ys: Array,
    *,
    distance: Any = Fisher(),
    prediction_kernel: Any = Gaussian(),
    target_kernel: Any = Gaussian(),
    base: Any = None,
    n_nodes: int = 10,
    precondition: Precondition = None,
    standardize: bool = True,
    coordinates: bool = False,
) -> Setup:
    """The choices of a test, checked. Raises ValueError or TypeError with the argument's name."""
    standardize = checks.flag(standardize, "standardize")
    coordinates = checks.flag(coordinates, "coordinates")
    target_kernel = points.as_kernel(target_kernel, "target_kernel")
    prediction_kernel = points.as_kernel(prediction_kernel, "prediction_kernel")
    of_vectors(target_kernel, "target_kernel")
    if not points.is_smooth(target_kernel):
        raise ValueError(
            "target_kernel: a Stein test differentiates it twice, and Laplace has no derivative "
            "at 0; use Matern52 or a smoother kernel"
        )
    for lengths in points.lengths(target_kernel):
        if lengths.size != (d := ys[0].size):
            raise ValueError(
                f"target_kernel: a bandwidth of {lengths.size} lengths for targets of {d} "
                f"coordinates"
            )
    if not (points.is_known(target_kernel) or isinstance(ys, Tracer)):
        rows = np.asarray(ys).reshape(ys.shape[0], -1)
        rows = rows[np.all(np.isfinite(rows), axis=1)]
        units = Units.of(jnp.asarray(rows)) if standardize and len(rows) else None
        if len(rows):
            some = jnp.asarray(rows[:3]) if units is None else units.points(jnp.asarray(rows[:3]))
            size = 1.0 if units else float(np.std(rows)) or 1.0
            ready = points.with_bandwidth(target_kernel, jnp.asarray(size, some.dtype))
            check_smooth(ready, some, size)
    checks.choice(precondition, "precondition", (None, "isotropic", "diagonal", "full"))
    if precondition == "full" and coordinates:
        raise ValueError(
            "coordinates=True with precondition='full' would mix the coordinates it keeps apart: "
            "use 'diagonal'"
        )
    n_nodes, distance = checks.integer(n_nodes, "n_nodes"), checks.distance(distance)
    if base is not None and not is_distribution(base):
        base = checks.floats(base, "base")
        if base.ndim == 0 or base.shape[0] < 1 or base.shape[1:] != ys.shape[1:]:
            raise ValueError(
                f"base: wanted points of shape [m{''.join(f', {e}' for e in ys.shape[1:])}] in the "
                f"units of the targets, or a distribution, got shape {base.shape}"
            )
    return Setup(
        distance,
        prediction_kernel,
        target_kernel,
        base,
        n_nodes=n_nodes,
        precondition=precondition,
        standardize=standardize,
        components=coordinates,
    )


class Assembled(NamedTuple):
    """A statistic, what the engine sees of the data, and what was noticed on the way."""

    pairwise: Pairwise
    features: Any
    bandwidths: dict[str, Scalar]
    identical_predictions: Array
    identical_targets: Array
    constant_coordinates: Int[Array, ""]
    clamped: Int[Array, ""]
    nonfinite_scores: Int[Array, ""]
    nonfinite_features: Int[Array, ""]
    shifts: Array | None = None  # the moment of the marginal mean, [n, d]
    reach: Scalar | float = 0.0
    unsettled: Scalar | None = None  # the share of predictions whose chains have not settled
    common_covariances: Int[Array, ""] | None = None


@runtime_checkable
class Assembles(Protocol):
    """The choices of a test, which make its statistic from the data."""

    @property
    def components(self) -> bool: ...

    def assemble(self, keys: Keys, predictions: Any, targets: Array, /) -> Assembled: ...


def not_finite(tree: Any) -> Int[Array, ""]:
    """How many entries of a pytree are NaN or infinite."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.sum(jnp.asarray([jnp.sum(~jnp.isfinite(leaf)) for leaf in leaves], int))


def assemble(keys: Keys, predictions: Any, targets: Array, setup: Setup) -> Assembled:
    """Scores, features, bandwidths and kernels of one data set; traced once per shape.

    Gradients flow through all of it: scores and features, units, preconditioner and bandwidths.
    """
    base_key, feature_key = keys
    n, event = targets.shape[0], targets.shape[1:]
    ys = targets.reshape(n, -1)
    units = Units.of(ys) if setup.standardize else Units.unchanged(ys)
    own = Standardized(predictions, units, event)
    ts = units.points(ys)

    distance = setup.distance
    needed = distance.needs_nodes or setup.precondition is not None
    wanted = needed or (setup.components and moments.offered_covariances(own) is None)
    nodes = _nodes(base_key, predictions, setup, units, ts) if wanted else None
    # at the targets as they came: a score next to the edge of a density is not the one on it
    raw = Standardized(predictions, Units.unchanged(ys), event)
    scores, values = scores_at(raw, ys, None if nodes is None else units.original(nodes))
    scores, values = units.scores(scores), None if values is None else units.scores(values)
    if needed and values is None:
        raise ValueError(
            "Scores.at_nodes is missing: the Fisher distance between predictions and precondition "
            "need the scores at base points, shape [n, m, d]; give them, or another distance"
        )
    at_nodes = None if values is None else NodeScores(nodes, values)
    if isinstance(distance, Vectors) and setup.standardize:
        distance = Vectors(Units.of(distance.values).points(distance.values))
    described = distance.features(feature_key, own, at_nodes)
    size = _size(distance, described, setup.prediction_kernel)
    described = described if size is None else described / size

    preconditioner, clamped = None, jnp.zeros((), jnp.int32)
    if setup.precondition is not None:
        if nodes is None or values is None:
            raise ValueError(
                "precondition needs scores at base points and those points: give Scores.at_nodes "
                "and Scores.nodes"
            )
        preconditioner, clamped = preconditioners.precision_root(nodes, values, setup.precondition)

    covariances = None
    if setup.components:
        covariances = moments.covariances_of(own, nodes, values, scores)

    prediction_bandwidth, one_prediction = median_heuristic(distance, described)
    target_bandwidth, one_target = median_heuristic(Vectors(ts), ts)
    pairwise = Stein(
        points.with_bandwidth(setup.target_kernel, target_bandwidth),
        points.with_bandwidth(setup.prediction_kernel, prediction_bandwidth),
        _without_data(distance),
        dimension=ts.shape[1],
        components=setup.components,
    )
    chosen = {
        "target": (setup.target_kernel, target_bandwidth),
        "prediction": (
            setup.prediction_kernel,
            prediction_bandwidth if size is None else prediction_bandwidth * size,
        ),
    }
    return Assembled(
        pairwise,
        # differences alone matter: centred targets keep their digits
        SteinFeatures(ts - jnp.mean(ts, axis=0, keepdims=True), scores, described, preconditioner),
        {name: value for name, (kernel, value) in chosen.items() if points.needs_bandwidth(kernel)},
        one_prediction & (not isinstance(setup.prediction_kernel, Constant)),
        one_target & (setup.standardize or points.needs_bandwidth(setup.target_kernel)),
        jnp.sum(jnp.max(ys, axis=0) == jnp.min(ys, axis=0)),
        clamped,
        # a score at a target that is not finite is not counted beside it
        not_finite(jnp.where(jnp.all(jnp.isfinite(ys), axis=1, keepdims=True), scores, 0)),
        not_finite((described, preconditioner)),
        None if covariances is None else moments.shifts(scores, covariances.values),
        reach=reach(ys),
        common_covariances=None if covariances is None else covariances.common,
    )


def _size(distance: Any, described: Any, kernel: Any) -> Array | None:
    """What to divide feature vectors by so that their squares stay within the range of their type:
    1 where they do. None where the distance has no vectors, or its units are given by a bandwidth.
    """
    if not (isinstance(distance, _Euclidean) and points.all_open(kernel)):
        return None
    largest = jax.lax.stop_gradient(jnp.max(jnp.abs(described)))
    bound = 2.0 ** (jnp.finfo(described.dtype).maxexp // 4)
    ordinary = (largest < bound) & (largest > 1 / bound)
    return jnp.where(ordinary, 1, binary_size(largest))


def reach(ys: Points) -> Scalar:
    """The range of a coordinate over the median difference of two observations in it, which a few
    outliers do not change; the largest over coordinates. Of 2,048 pairs, which ranks choose."""
    ordered = jnp.sort(jax.lax.stop_gradient(ys), axis=0)
    i, j = pairs(ys.shape[0])
    typical = jax.vmap(positive_median, in_axes=1)(jnp.abs(ordered[i] - ordered[j]))
    return jnp.max((ordered[-1] - ordered[0]) / typical)


def _nodes(key: Key, predictions: Any, setup: Setup, units: Units, ts: Points) -> Nodes | None:
    """Base points [m, d] in the units of the test."""
    d = ts.shape[1]
    if isinstance(predictions, Scores):
        given = predictions.nodes
        if given is None:
            return None
        return units.points(given.reshape(-1, d))
    if setup.base is None:
        return jax.random.normal(key, (setup.n_nodes, d), ts.dtype)
    if is_distribution(setup.base):
        drawn = sample(key, setup.base, (setup.n_nodes,), "base")
        return units.points(drawn.reshape(setup.n_nodes, d).astype(ts.dtype))
    return units.points(setup.base.reshape(-1, d).astype(ts.dtype))


def _without_data(distance: Any) -> Any:
    return Vectors(distance.values[:0]) if isinstance(distance, Vectors) else distance
