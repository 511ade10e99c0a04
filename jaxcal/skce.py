"""Is the model calibrated? SKCE: kernel means of the predictions in the place of their scores."""

from typing import Any, TypedDict, Unpack

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.sharding import Mesh
from jaxtyping import Array

from jaxcal import assembly, checks
from jaxcal.assembly import Assembled, Keys, not_finite
from jaxcal.kernel_means import KernelMeans, kernel_means, law_of
from jaxcal.kernel_means.embedding import MeanEmbedding
from jaxcal.kernels import points
from jaxcal.kernels.bandwidths import median_heuristic
from jaxcal.kernels.classes import ClassGram, Delta
from jaxcal.kernels.gaussians import Wasserstein
from jaxcal.kernels.laplaces import LaplaceWasserstein
from jaxcal.kernels.points import Constant, Gaussian
from jaxcal.kernels.predictions import NodeScores, Vectors
from jaxcal.kernels.simplex import Euclidean
from jaxcal.models import Draws, Scores, Standardized, Units, Unnormalized
from jaxcal.models.laws import Classes, Laplaces, Mixtures, Normals
from jaxcal.nulls import Null, Wild
from jaxcal.pairwise.skce import SKCE, SKCEFeatures
from jaxcal.quadratic import TILE
from jaxcal.results import Estimate, TestResult
from jaxcal.scores import is_distribution, scores_at
from jaxcal.typing import Key

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

        Gradients flow through the predictions; units and bandwidths count as constants.
        """
        if isinstance(predictions, Classes):
            return self._classes(keys, predictions, targets)
        return self._vectors(keys, predictions, targets)

    def _classes(self, keys: Keys, predictions: Classes, ys: Array) -> Assembled:
        p = predictions.probabilities
        distance = Euclidean() if self.distance is None else self.distance
        described = distance.features(keys[1], p, None)
        means = kernel_means(self.target_kernel, predictions)
        return self._together(distance, described, means, ys, {}, jnp.all(ys == ys[0]), 0)

    def _vectors(self, keys: Keys, predictions: Any, targets: Array) -> Assembled:
        n, event = targets.shape[0], targets.shape[1:]
        ys = targets.reshape(n, -1)
        units = jax.lax.stop_gradient(Units.of(ys) if self.standardize else Units.unchanged(ys))
        ts = units.points(ys)
        # a common offset costs no digits: everything is about the mean of the targets
        centre = jax.lax.stop_gradient(jnp.mean(ys, axis=0))
        about = Units(centre, units.scale)
        own = Standardized(predictions, about, event)
        bandwidth, spread = median_heuristic(Vectors(ts), jax.lax.stop_gradient(ts))
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
            values = scores_at(own, about.points(ys), nodes)[1]
            assert values is not None
            at_nodes = NodeScores(nodes, values)
        described = distance.features(keys[1], for_distance, at_nodes)
        means = kernel_means(kernel, for_means, key=mean_key, n_draws=self.n_draws)
        used = {"target": bandwidth} if points.needs_bandwidth(self.target_kernel) else {}
        constant = jnp.sum(jnp.max(ys, axis=0) == jnp.min(ys, axis=0))
        return self._together(
            distance, described, means, about.points(ys), used, spread == 0, constant
        )

    def _together(
        self,
        distance: Any,
        described: Any,
        means: KernelMeans,
        ys: Array,
        bandwidths: dict[str, Array],
        identical_targets: Array,
        constant: Any,
    ) -> Assembled:
        bandwidth, farthest = median_heuristic(distance, jax.lax.stop_gradient(described))
        if points.needs_bandwidth(self.prediction_kernel):
            bandwidths = bandwidths | {"prediction": bandwidth}
        if isinstance(distance, Vectors):
            distance = Vectors(distance.values[:0])
        kernel = points.with_bandwidth(self.prediction_kernel, bandwidth)
        return Assembled(
            SKCE(kernel, distance, means.empty()),
            SKCEFeatures(ys, means.features, described),
            bandwidths,
            (farthest == 0) & (not isinstance(self.prediction_kernel, Constant)),
            identical_targets,
            jnp.asarray(constant),
            jnp.zeros((), jnp.int32),
            jnp.zeros((), jnp.int32),
            not_finite((means.features, described)),
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
    predictions, ys = _observations(predictions, targets)
    if n_draws is not None and (
        isinstance(n_draws, bool) or not isinstance(n_draws, int) or n_draws < 2
    ):
        raise ValueError(f"n_draws: wanted None or at least 2 draws, got {n_draws!r}")
    known = predictions if isinstance(predictions, Classes) else law_of(predictions)
    _check_law(known)
    if isinstance(predictions, Classes):
        target_kernel = _class_kernel(target_kernel, predictions.probabilities.shape[1])
    else:
        if distance is None:
            distance = DISTANCES.get(type(known), MeanEmbedding)()
        default = points.L1Laplace() if isinstance(known, Laplaces) else Gaussian()
        target_kernel = points.as_kernel(default if target_kernel is None else target_kernel)
        for lengths in points.lengths(target_kernel):
            if lengths.size != (d := ys[0].size):
                raise ValueError(
                    f"target_kernel: a bandwidth of {lengths.size} lengths for targets of {d} "
                    f"coordinates"
                )
    kernel = points.as_kernel(prediction_kernel)
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


def _observations(predictions: Any, targets: Any) -> tuple[Any, Array]:
    """Class probabilities with classes, or predictions over vectors with floats."""
    if isinstance(predictions, Classes):
        return _classes(predictions.probabilities, targets, "predictions")
    if isinstance(predictions, (np.ndarray, jax.Array, list, tuple)) or hasattr(
        predictions, "detach"
    ):
        return _classes(predictions, targets, "predictions")
    if is_distribution(predictions):
        known = law_of(predictions)
        if isinstance(known, Classes):
            return _classes(known.probabilities, targets, "predictions")
        if known is None and _integers(targets):
            targets = jnp.asarray(targets).astype(float)
    ys = checks.targets(targets)
    n, event = ys.shape[0], ys.shape[1:]
    if isinstance(predictions, Draws):
        samples = checks.floats(predictions.samples, "Draws.samples")
        if samples.ndim != ys.ndim + 1 or (samples.shape[0], *samples.shape[2:]) != (n, *event):
            raise ValueError(
                f"Draws.samples: wanted shape ({n}, m{''.join(f', {e}' for e in event)}), m draws "
                f"of each prediction, got {samples.shape}"
            )
        if samples.shape[1] < 4:
            raise ValueError(
                f"Draws.samples: wanted at least 4 draws of each prediction, half for the distance "
                f"between predictions and half for their means, got {samples.shape[1]}"
            )
        return Draws(samples), ys
    if isinstance(predictions, (Unnormalized, Scores)):
        raise TypeError(
            f"predictions: SKCE needs kernel means or draws, which {type(predictions).__name__} "
            f"does not give: use kccsd_test, or draw from the densities by MCMC and pass "
            f"jaxcal.Draws"
        )
    if getattr(predictions, "batch_shape", None) == ():
        predictions = getattr(predictions, "expand")((n,))  # noqa: B009
    return checks.predictions(predictions, ys), ys


def _integers(targets: Any) -> bool:
    return not hasattr(targets, "detach") and np.asarray(targets).dtype.kind in "iub"


def _classes(predictions: Any, targets: Any, name: str) -> tuple[Classes, Array]:
    p = checks.floats(predictions, name)
    if p.ndim == 1:
        held = None if isinstance(p, Tracer) else np.asarray(p)
        if held is not None and not np.all((held >= 0) & (held <= 1)):
            raise ValueError(f"{name}: wanted the probability of class 1, in [0, 1], for each")
        p = jnp.stack([1 - p, p], axis=-1)
    if p.ndim == 2 and not _integers(targets):
        raise TypeError(
            f"targets: an array of predictions is taken as class probabilities, whose targets are "
            f"integer classes; got {checks._say(targets)}. Wrap draws as jaxcal.Draws(array)"
        )
    p = checks.probabilities(p, name)
    ys = checks.labels(targets, p.shape[0], p.shape[1])
    if len(ys) < 2:
        raise ValueError(f"targets: wanted at least 2 observations, got shape {ys.shape}")
    return Classes(p), ys


def _check_law(known: Any) -> None:
    if isinstance(known, Mixtures):
        checks.probabilities(known.weights, "predictions: the weights of the mixture")


def skce_test(
    key: Key,
    predictions: Any,
    targets: Any,
    *,
    distance: Any = None,
    prediction_kernel: Any = Gaussian(),
    target_kernel: Any = None,
    null: Null = Wild(),
    n_draws: int | None = None,
    standardize: bool = True,
    tile: int = TILE,
    mesh: Mesh | None = None,
) -> TestResult:
    r"""Test that predictions are calibrated: that targets are draws from them.

    The null hypothesis is P(Y | prediction) = prediction. ``predictions``: a numpyro distribution
    with batch shape [n] (Normal, MultivariateNormal, Laplace and mixtures of these in closed form,
    Categorical and Bernoulli; any other through draws), class probabilities [n, m], probabilities
    [n] of class 1, or `jaxcal.Draws`. ``targets``: [n], [n, d] or [n, ...]; integer classes
    0, .., m - 1 for class probabilities.

    The kernel is ``prediction_kernel`` on a ``distance`` of the predictions times
    ``target_kernel``; open bandwidths follow the median heuristic. By default the distance is
    2-Wasserstein for normals, Euclidean for class probabilities, and the distance of the kernel
    means (MMD with the target kernel) for all others; the target kernel is Gaussian, for
    one-dimensional Laplace predictions the Laplace kernel, for classes `Delta`; a Gram matrix
    [m, m] of the classes will do too. With ``standardize`` targets are first brought to standard
    deviation 1 in each coordinate, and bandwidths given by hand are in standard deviations.

    ``n_draws`` takes kernel means from that many draws of each prediction instead of a closed
    form. Draws that were given (`jaxcal.Draws`) are divided: half of them serve the distance, half
    the kernel means, as the weight of a pair must not depend on the errors of its means.

    The kernel of the paper's experiments is ``standardize=False, target_kernel=Gaussian(1.0),
    prediction_kernel=Laplace(1.0)``. ``null``: see `jaxcal.nulls`.

    Cost: n^2 (b + d) multiplications for b draws of the null and closed forms, memory
    O(tile^2 + n b). NaN or infinite parameters or targets give p = NaN and a sentence in
    ``result.warnings()``. Raises ValueError or TypeError for shapes, types, probabilities and
    classes, naming the argument.
    Source: Widmann, Lindsten and Zachariah (2021), Sections 3 and 4.
    """
    checks.key(key)
    checks.null(null)
    predictions, ys, setup = set_up(
        predictions,
        targets,
        distance=distance,
        prediction_kernel=prediction_kernel,
        target_kernel=target_kernel,
        n_draws=n_draws,
        standardize=standardize,
    )
    return assembly.run(key, predictions, ys, setup, null, test="SKCE test", tile=tile, mesh=mesh)


def skce(key: Key, predictions: Any, targets: Any, **options: Unpack[Options]) -> Estimate:
    """Estimate the squared kernel calibration error; arguments and units as in `skce_test`.

    The key is used where draws are needed only. Differentiable in the predictions' parameters;
    units and bandwidths count as constants. Cost O(n^2).
    """
    checks.key(key)
    predictions, ys, setup = set_up(predictions, targets, **options)
    return assembly.estimate(key, predictions, ys, setup)


def kce(key: Key, predictions: Any, targets: Any, **options: Unpack[Options]) -> Array:
    """Estimate the kernel calibration error: the square root of the biased SKCE, shape [].

    Its derivative at 0 is 0. NaN where the biased SKCE is negative, which closed forms and
    positive definite kernels exclude.
    """
    biased = skce(key, predictions, targets, **options).biased
    none = biased == 0
    return jnp.where(none, 0.0, jnp.sqrt(jnp.where(none, 1.0, biased)))
