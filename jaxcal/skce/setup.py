"""Predictions and targets to the pairwise statistic of SKCE, with its features and bandwidths."""

from typing import Any, TypedDict

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxcal import checks
from jaxcal.assembly import Assembled, Keys, not_finite, reach
from jaxcal.kernel_means import KernelMeans, MeanEmbedding, kernel_means, law_of
from jaxcal.kernels import points
from jaxcal.kernels.bandwidths import median_heuristic
from jaxcal.kernels.classes import ClassGram, Delta, of_vectors
from jaxcal.kernels.gaussians import Wasserstein
from jaxcal.kernels.laplaces import LaplaceWasserstein
from jaxcal.kernels.points import Constant, Gaussian
from jaxcal.kernels.predictions import NodeScores, Vectors
from jaxcal.kernels.simplex import Euclidean
from jaxcal.models import Draws, Standardized, Units
from jaxcal.models.laws import Classes, Laplaces, Normals
from jaxcal.pairwise.skce import SKCE, SKCEFeatures
from jaxcal.scores import scores_at
from jaxcal.skce.observations import check_law, observations

NODES = 10  # base points for a distance that compares scores
DISTANCES = {Normals: Wasserstein, Laplaces: LaplaceWasserstein}


class Setup(eqx.Module):
    """The choices of an SKCE test; None leaves a choice to the kind of predictions."""

    distance: Any
    prediction_kernel: Any
    target_kernel: Any
    n_draws: int | None = eqx.field(static=True)
    standardize: bool = eqx.field(static=True)
    components: bool = eqx.field(static=True, init=False, default=False)

    def assemble(self, keys: Keys, predictions: Any, targets: Array) -> Assembled:
        """Kernel means, features and bandwidths of one data set; traced once per shape.

        Gradients flow through all of it: predictions, units and bandwidths.
        """
        if isinstance(predictions, Classes):
            return self._classes(keys, predictions, targets)
        return self._vectors(keys, predictions, targets)

    def _classes(self, keys: Keys, predictions: Classes, ys: Array) -> Assembled:
        p = predictions.probabilities
        distance = Euclidean() if self.distance is None else self.distance
        described = distance.features(keys[1], p, None)
        means = kernel_means(self.target_kernel, predictions)
        none = jnp.zeros((), bool)  # classes have no spread that sets a scale
        return self._together(distance, described, means, ys, {}, none, 0)

    def _vectors(self, keys: Keys, predictions: Any, targets: Array) -> Assembled:
        n, event = targets.shape[0], targets.shape[1:]
        ys = targets.reshape(n, -1)
        by_targets = Units.of(ys)
        units = by_targets if self.standardize else Units.unchanged(ys)
        ts = units.points(ys)
        # a common offset costs no digits: kernel means are about the mean of the targets, while
        # distances see the units of the test, in which their base measures are
        about = Units(by_targets.center, units.scale)
        own = Standardized(predictions, units, event)
        # a target that is not finite is counted alone: it spoils no mean of the kernel
        finite = jnp.where(jnp.isfinite(ts), ts, 0)
        bandwidth, one_target = median_heuristic(Vectors(finite), finite)
        kernel = points.with_bandwidth(self.target_kernel, bandwidth)
        mean_key, node_key = jax.random.split(keys[0])

        distance = self.distance
        if isinstance(distance, MeanEmbedding) and distance.kernel is None:
            distance = MeanEmbedding(kernel, distance.n_draws)
        if isinstance(distance, Vectors) and self.standardize:
            distance = Vectors(Units.of(distance.values).points(distance.values))
        for_distance, for_means = _shared_out(own, distance, self.prediction_kernel)
        at_nodes = None
        if distance.needs_nodes:
            nodes = jax.random.normal(node_key, (NODES, ts.shape[1]), ts.dtype)
            values = scores_at(own, ts, nodes)[1]
            assert values is not None
            at_nodes = NodeScores(nodes, values)
        described = distance.features(keys[1], for_distance, at_nodes)
        moved = Standardized(for_means.predictions, about, event)
        means = kernel_means(kernel, moved, key=mean_key, n_draws=self.n_draws)
        used = {"target": bandwidth} if points.needs_bandwidth(self.target_kernel) else {}
        constant = jnp.sum(jnp.max(ys, axis=0) == jnp.min(ys, axis=0))
        identical = one_target & (self.standardize or bool(used))
        made = self._together(
            distance, described, means, about.points(ys), used, identical, constant, reach(ys)
        )
        drawn = isinstance(predictions, Draws)
        return made._replace(unsettled=predictions.unsettled() if drawn else None)

    def _together(
        self,
        distance: Any,
        described: Any,
        means: KernelMeans,
        ys: Array,
        bandwidths: dict[str, Array],
        identical_targets: Array,
        constant: Any,
        reach: Any = 0.0,
    ) -> Assembled:
        bandwidth, one_prediction = median_heuristic(distance, described)
        if points.needs_bandwidth(self.prediction_kernel):
            bandwidths = bandwidths | {"prediction": bandwidth}
        if isinstance(distance, Vectors):
            distance = Vectors(distance.values[:0])
        kernel = points.with_bandwidth(self.prediction_kernel, bandwidth)
        return Assembled(
            SKCE(kernel, distance, means.empty()),
            SKCEFeatures(ys, means.features, described),
            bandwidths,
            one_prediction & (not isinstance(self.prediction_kernel, Constant)),
            identical_targets,
            jnp.asarray(constant),
            jnp.zeros((), jnp.int32),
            jnp.zeros((), jnp.int32),
            not_finite((means.features, described)),
            reach,
        )


def _shared_out(own: Standardized, distance: Any, prediction_kernel: Any) -> tuple[Any, Any]:
    """The predictions for the distance and those for the kernel means.

    Draws are divided: if the weight of a pair depended on the very draws that stand for the two
    predictions, its error would be of one sign under calibration.
    """
    held = own.predictions
    if not isinstance(held, Draws):
        return own, own
    if isinstance(distance, Vectors) or isinstance(prediction_kernel, Constant):
        return own, own
    half = held.samples.shape[1] // 2
    parts = (Draws(held.samples[:, :half]), Draws(held.samples[:, half:]))
    first, second = (Standardized(part, own.units, own.event) for part in parts)
    return first, second


class Options(TypedDict, total=False):
    """Options of every SKCE test and estimate, by name; `skce_test` explains them."""

    distance: Any
    prediction_kernel: Any
    target_kernel: Any
    n_draws: int | None
    standardize: bool


def set_up(
    predictions: Any,
    targets: Any,
    *,
    distance: Any = None,
    prediction_kernel: Any = Gaussian(),
    target_kernel: Any = None,
    n_draws: int | None = None,
    standardize: bool = True,
) -> tuple[Any, Array, Setup]:
    """Predictions, targets and choices, checked; errors name the argument."""
    predictions, ys = observations(predictions, targets)
    standardize = checks.flag(standardize, "standardize")
    n_draws = None if n_draws is None else checks.integer(n_draws, "n_draws", least=2)
    if distance is not None:
        distance = checks.distance(distance)
    known = predictions if isinstance(predictions, Classes) else law_of(predictions)
    check_law(known)
    if isinstance(predictions, Classes):
        target_kernel = _class_kernel(target_kernel, predictions.probabilities.shape[1])
    else:
        if distance is None:
            distance = DISTANCES.get(type(known), MeanEmbedding)()
        default = points.L1Laplace() if isinstance(known, Laplaces) else Gaussian()
        target_kernel = points.as_kernel(
            default if target_kernel is None else target_kernel, "target_kernel"
        )
        of_vectors(target_kernel, "target_kernel")
        for lengths in points.lengths(target_kernel):
            if lengths.size != (d := ys[0].size):
                raise ValueError(
                    f"target_kernel: a bandwidth of {lengths.size} lengths for targets of {d} "
                    f"coordinates"
                )
    kernel = points.as_kernel(prediction_kernel, "prediction_kernel")
    return predictions, ys, Setup(distance, kernel, target_kernel, n_draws, standardize)


def _class_kernel(kernel: Any, m: int) -> Any:
    if kernel is None:
        return Delta()
    if isinstance(kernel, (list, tuple, np.ndarray, jax.Array)):
        kernel = ClassGram(kernel)
    if not isinstance(kernel, (Delta, ClassGram)):
        raise TypeError(
            f"target_kernel: classes need jaxcal.kernels.Delta() or a Gram matrix [{m}, {m}], got "
            f"{type(kernel).__name__}"
        )
    return kernel
