"""What a test compares, and how: its choices, and fitting them to data.

Everything is brought to the units of the targets' own spread first, so that no result depends on
metres or nanometres; bandwidths follow by the median heuristic in those units.
"""

import dataclasses
import math
from typing import Any, TypedDict

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, PyTree
from jaxtyping import Key as _Key

from jaxcal.divergences.fisher import Fisher
from jaxcal.divergences.vectors import Vectors, check_rows
from jaxcal.fit.prepared import Embedding, Prepared
from jaxcal.fit.random_features import RandomFeatures
from jaxcal.fit.residuals import Featured, Residual, SteinResidual
from jaxcal.fit.views import ClassFrame, Frame
from jaxcal.kernel_means.waves import Wave
from jaxcal.kernels import points
from jaxcal.kernels.bandwidths import median_heuristic
from jaxcal.kernels.classes import of_vectors
from jaxcal.kernels.points import Constant, Gaussian
from jaxcal.numerics import in_order
from jaxcal.read import Scores, Units, checks
from jaxcal.read.families import Classes
from jaxcal.read.sampling import sample
from jaxcal.read.scores import is_distribution
from jaxcal.statistics.stein import check_smooth
from jaxcal.typing import (
    BaseMeasure,
    DivergenceLike,
    DTypeLike,
    KernelLike,
    Key,
    Nodes,
    Points,
    Precondition,
    PredictionsLike,
    Scalar,
)
from jaxcal.whitening.contract import Whitener, checked

Keys = _Key[Array, "2"]  # for base points and residuals, and for features of the predictions


class Specification(eqx.Module):
    """The choices of a test of a mean over pairs; ``None`` and unset bandwidths are left to `fit`.

    Everything static changes the program; nothing else does.
    """

    divergence: DivergenceLike
    prediction_kernel: KernelLike
    target_kernel: KernelLike
    residual: Residual
    base_measure: BaseMeasure | None = (
        None  # None, points [m, d], or a distribution, in the units of the targets
    )
    n_nodes: int = eqx.field(default=10, static=True)
    standardize: bool = eqx.field(default=True, static=True)
    whiten: Whitener | None = None
    random_features: RandomFeatures | None = None  # in the place of all pairs

    @property
    def components(self) -> bool:
        """Whether the statistic is kept apart by coordinate."""
        return self.residual.components

    def fit(self, keys: Keys, predictions: Any, targets: Array) -> tuple[Prepared, Featured]:
        """Units, nodes, bandwidths and statistic from data, and the features of these data.

        Traced once per shape. Gradients flow through all of it: scores and features, units,
        preconditioner and bandwidths.
        """
        classes = isinstance(predictions, Classes)
        check_rows(self.divergence, targets.shape[0])
        frame = ClassFrame() if classes else self._frame(keys[0], predictions, targets)
        view = frame.view(predictions, targets, scores=self.residual.needs_scores)
        if self.divergence.needs_nodes and view.at_nodes is None:
            raise ValueError(
                "Scores.at_nodes is missing: the Fisher distance between predictions and "
                "precondition need the scores at base points, shape [n, m, d]; give them, or "
                "another distance"
            )
        target_kernel, bandwidths = self.target_kernel, {}
        identical, constant, spread = jnp.zeros((), bool), 0, 0.0
        divergence: Any = self.divergence
        if not classes:  # which have no spread that sets a scale
            # a target that is not finite is counted alone: it spoils no bandwidth
            finite = jnp.where(jnp.isfinite(view.points), view.points, 0)
            bandwidth, one_target = median_heuristic(Vectors(finite), finite)
            target_kernel = points.with_bandwidth(self.target_kernel, bandwidth)
            if points.needs_bandwidth(self.target_kernel):
                bandwidths["target"] = bandwidth
            identical = one_target & (self.standardize or bool(bandwidths))
            ys = targets.reshape(targets.shape[0], -1)
            constant = jnp.sum(jnp.max(ys, axis=0) == jnp.min(ys, axis=0))
            spread = reach(ys)
        if hasattr(divergence, "with_target_kernel"):
            divergence = divergence.with_target_kernel(target_kernel)
        for_divergence, for_residual = self.residual.divided(
            view, divergence, self.prediction_kernel
        )
        embedding, described = Embedding.fit(
            keys[1],
            divergence,
            for_divergence,
            view.at_nodes,
            standardize=self.standardize,
            unitless=points.all_unset(self.prediction_kernel),
        )
        bandwidth, one_prediction = median_heuristic(embedding.divergence, described)
        prediction_kernel = points.with_bandwidth(self.prediction_kernel, bandwidth)
        if points.needs_bandwidth(self.prediction_kernel):
            size = embedding.size
            bandwidths["prediction"] = bandwidth if size is None else bandwidth * size
        random = self.random_features
        # averages over predictions are then their characteristic functions
        averaged = target_kernel if random is None or classes else Wave()
        featured = self.residual.features(keys[0], view, for_residual, averaged, described)
        pairwise = self.residual.pairwise(
            featured, target_kernel, prediction_kernel, embedding.divergence
        )
        if random is not None:
            pairwise = random.of(pairwise, featured.features, target_kernel)
        prepared = Prepared(
            frame,
            embedding,
            self.residual,
            averaged,
            prediction_kernel,
            pairwise,
            bandwidths,
            {
                "identical-predictions": one_prediction
                & (not isinstance(self.prediction_kernel, Constant)),
                "identical-targets": identical,
                "constant-coordinates": jnp.asarray(constant),
                "far-targets": jnp.asarray(spread),
            },
        )
        return prepared, featured

    def _frame(self, key: Key, predictions: PredictionsLike, targets: Array) -> Frame:
        ys = targets.reshape(targets.shape[0], -1)
        by_targets = Units.of(ys)
        units = by_targets if self.standardize else Units.unchanged(ys)
        frame = Frame(units, by_targets.center, None, self.whiten)
        seen = frame.standardized(predictions, targets.shape[1:])
        whitened = self.whiten is not None and self.whiten.needs_nodes
        if whitened or self.divergence.needs_nodes or self.residual.needs_nodes(seen):
            nodes = self._nodes(self.residual.node_key(key), predictions, units, ys.dtype)
            return Frame(units, frame.origin, nodes, self.whiten)
        return frame

    def _nodes(
        self, key: Key, predictions: PredictionsLike, units: Units, dtype: DTypeLike
    ) -> Nodes | None:
        """Nodes [m, d] in the units of the test."""
        d = units.scale.size
        if isinstance(predictions, Scores):
            return (
                None
                if predictions.nodes is None
                else units.points(predictions.nodes.reshape(-1, d))
            )
        if self.base_measure is None:
            return jax.random.normal(key, (self.n_nodes, d), dtype)
        nodes: Any = self.base_measure
        if is_distribution(nodes):
            nodes = sample(key, nodes, (self.n_nodes,), "base_measure")
        return units.points(nodes.reshape(-1, d).astype(dtype))


def with_random_features(spec: Specification, features: PyTree) -> Specification:
    """The test with random features in the place of its kernels.

    Raises TypeError for what is no `RandomFeatures`.
    """
    if not isinstance(features, RandomFeatures):
        raise TypeError(
            f"features: wanted jaxcal.RandomFeatures(key, 100) or None, got {checks.say(features)}"
        )
    return dataclasses.replace(spec, random_features=features)


def reach(ys: Points) -> Scalar:
    """The range of a coordinate over that of its middle half, which a few outliers do not change;
    the largest over coordinates. Where the middle half agrees, the middle 3/4, 7/8, .. that does
    not."""
    n = ys.shape[0]
    ordered = in_order(jax.lax.stop_gradient(ys).T)
    outside = np.unique(n // 2 ** np.arange(2, n.bit_length() + 1))
    ranges = ordered[:, n - 1 - outside] - ordered[:, outside]
    whole = ranges[:, 0]
    typical = jnp.min(jnp.where(ranges > 0, ranges, whole[:, None]), axis=1)
    return jnp.max(jnp.where(typical > 0, whole / jnp.where(typical > 0, typical, 1), 0))


class Options(TypedDict, total=False):
    """Options of every test and estimate over pairs, by name; `kccsd_test` explains them."""

    divergence: DivergenceLike
    prediction_kernel: KernelLike
    target_kernel: KernelLike
    base_measure: BaseMeasure | None
    n_nodes: int
    standardize: bool


class SteinOptions(Options, total=False):
    """Options of every Stein test and estimate."""

    precondition: Precondition
    whiten: Whitener | None


def stein_specification(
    ys: Array,
    *,
    divergence: DivergenceLike = Fisher(),
    prediction_kernel: KernelLike = Gaussian(),
    target_kernel: KernelLike = Gaussian(),
    base_measure: BaseMeasure | None = None,
    n_nodes: int = 10,
    precondition: Precondition = None,
    standardize: bool = True,
    coordinates: bool = False,
    whiten: Whitener | None = None,
) -> Specification:
    """The choices of a test, checked. Raises ValueError or TypeError with the argument's name."""
    standardize = checks.flag(standardize, "standardize")
    coordinates = checks.flag(coordinates, "coordinates")
    target_kernel = vector_kernel(target_kernel, ys)
    prediction_kernel = points.as_kernel(prediction_kernel, "prediction_kernel")
    smooth = points.smoothness(target_kernel)
    if smooth is False:
        raise ValueError(
            "target_kernel: a Stein test differentiates it twice, and Laplace has no derivative "
            "at 0; use Matern52 or a smoother kernel"
        )
    if smooth is None and not isinstance(ys, Tracer):
        rows = np.asarray(ys).reshape(ys.shape[0], -1)
        rows = rows[np.all(np.isfinite(rows), axis=1)]
        units = Units.of(jnp.asarray(rows)) if standardize and len(rows) else None
        if len(rows):
            some = jnp.asarray(rows[:3]) if units is None else units.points(jnp.asarray(rows[:3]))
            size = 1.0 if units else float(np.std(rows)) or 1.0
            ready = points.with_bandwidth(target_kernel, jnp.asarray(size, some.dtype))
            check_smooth(ready, some, size)
    checks.choice(precondition, "precondition", (None, "isotropic", "diagonal", "full"))
    whiten = None if whiten is None else checked(whiten, "whiten")
    if whiten is not None and precondition is not None:
        raise ValueError(
            "precondition: whiten= brings each prediction into its own units already; leave one out"
        )
    if precondition == "full" and coordinates:
        raise ValueError(
            "coordinates=True with precondition='full' would mix the coordinates it keeps apart: "
            "use 'diagonal'"
        )
    return Specification(
        checks.divergence(divergence),
        prediction_kernel,
        target_kernel,
        SteinResidual(precondition, coordinates),
        checked_base_measure(base_measure, ys),
        checks.integer(n_nodes, "n_nodes"),
        standardize,
        whiten,
    )


def vector_kernel(kernel: KernelLike, ys: Array) -> KernelLike:
    """A kernel on targets that are vectors, or an error that names it."""
    kernel = points.as_kernel(kernel, "target_kernel")
    of_vectors(kernel, "target_kernel")
    for lengths in points.lengths(kernel):
        if lengths.size != (d := ys[0].size):
            raise ValueError(
                f"target_kernel: a bandwidth of {lengths.size} lengths for targets of {d} "
                f"coordinates"
            )
    return kernel


def checked_base_measure(value: Any, ys: Array) -> BaseMeasure | None:
    """Where scores are compared: None, points [m, *event], or a distribution; checked."""
    checks.of_jax(value, "base_measure")
    if isinstance(value, type):
        raise TypeError(f"base_measure: got the class {value.__name__}; pass an instance of it")
    if value is None:
        return value
    if is_distribution(value):
        shape = (*value.batch_shape, *value.event_shape)
        if math.prod(shape) != math.prod(ys.shape[1:]):
            raise ValueError(
                f"base_measure: wanted a distribution of points of shape {ys.shape[1:]}, got "
                f"{shape}"
            )
        return value
    nodes = checks.floats(value, "base_measure")
    if nodes.ndim == 0 or nodes.shape[0] < 1 or nodes.shape[1:] != ys.shape[1:]:
        raise ValueError(
            f"base_measure: wanted points of shape [m{''.join(f', {e}' for e in ys.shape[1:])}] in "
            f"the units of the targets, or a distribution, got shape {nodes.shape}"
        )
    return nodes
