"""Specify a test by its options, and fit them to data.

Targets are first divided by their standard deviation, so results do not depend on their unit; the
median heuristic then chooses bandwidths in these units. With random features the statistic is
computed in linear time, without all pairs.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, PyTree
from jaxtyping import Key as _Key

from jaxcal.divergences.vectors import TotalVariation, Vectors, check_rows, is_euclidean
from jaxcal.fit.fitted import Embedding, Fitted
from jaxcal.fit.residuals import ClassFrame, Featured, Frame, Residual, View, divided
from jaxcal.kernels import points
from jaxcal.kernels.bandwidths import median_heuristic
from jaxcal.kernels.means.waves import Wave
from jaxcal.kernels.points import Constant, L1Laplace, Laplace
from jaxcal.numerics import in_order, normals
from jaxcal.read import Scores, Standardized, Units, convert
from jaxcal.read.families import Classes
from jaxcal.read.sampling import sample
from jaxcal.read.scores import coarse, coarse_sums, is_distribution
from jaxcal.statistics.finite_rank import Draw, FiniteRank, in_waves
from jaxcal.statistics.weighted import Weighted, WeightedFeatures
from jaxcal.typing import (
    BaseMeasure,
    DivergenceLike,
    Features,
    KernelLike,
    Key,
    Pairwise,
    Points,
    Scalar,
)
from jaxcal.whitening.contract import Whitener


class RandomFeatures(eqx.Module):
    """Option ``features`` of the tests: approximate the kernels in a time linear in n.

    Kernels are approximated by ``n_features`` cosines and sines of random frequencies. The matrix
    h(i, j) of all pairs becomes Z Z^T with Z of shape [n, p], where p = n_features d for a Stein
    test with targets [d], and p = n_features for `skce_test`. The level holds for every number of
    features. The power approaches that of all pairs as the number grows (measured in
    `experiments/linear`).

    Kernels of other packages need a method ``frequencies(key, count, d)`` that draws from their
    spectral density, or ``precisions(key, count)`` (`jaxcal.statistics.finite_rank`). Distances
    between predictions need a method ``vectors(features)`` and ``euclidean = True``. Statistics of
    targets need a method ``vectors`` or ``waves`` (see `of`). Otherwise TypeError.

    Args:
        key: Random key of the frequencies: one key gives the same features for every model.
        n_features: Number of features, half of them cosines and half sines; even.
        orthogonal: Whether to draw frequencies orthogonal in blocks, which lowers their error.

    Cost: n p (b + p) multiplications per test with b draws of the null.

    Source: Rahimi and Recht (2007); Yu et al. (2016) for orthogonal frequencies.

    Example:
        >>> import jax, numpyro.distributions as dist
        >>> from jaxcal import RandomFeatures, kccsd_test
        >>> from jaxcal.nulls import Eigenvalues
        >>> x, noise = jax.random.normal(jax.random.key(0), (2, 10_000))
        >>> result = kccsd_test(1, dist.Normal(x, 1.0), x + 1.2 * noise,
        ...                     features=RandomFeatures(2, 50), null=Eigenvalues())
        >>> result.verdict
        'rejected'
    """

    key: Key = eqx.field(converter=convert.key)
    n_features: int = eqx.field(default=100, static=True)
    orthogonal: bool = eqx.field(default=True, static=True)

    def __check_init__(self):
        if convert.integer(self.n_features, "n_features", least=2) % 2:
            raise ValueError(
                f"n_features: a cosine and a sine share a frequency, so their number is even; got "
                f"{self.n_features}"
            )
        convert.flag(self.orthogonal, "orthogonal")

    def of(
        self,
        weighted: Pairwise,
        features: WeightedFeatures,
        target_kernel: KernelLike = Constant(),
    ) -> FiniteRank:
        """Approximate a kernel on predictions times a statistic of targets by random features.

        Args:
            weighted: A `jaxcal.statistics.weighted.Weighted`. Its statistic has a method
                ``waves(draw, features)`` that returns a `jaxcal.statistics.finite_rank.Waves`, or a
                method ``vectors(features)``, [channels, q, n], whose columns have it as inner
                product.
            features: Features of the observations.
            target_kernel: Kernel on targets, with its bandwidth, for a statistic with waves.

        Returns:
            The `FiniteRank` statistic, which takes the same ``features``; its mean over keys is
            the statistic of all pairs.
        """
        if not isinstance(weighted, Weighted):
            raise TypeError(
                f"features: random features are those of a kernel on predictions times a statistic "
                f"of targets, jaxcal.statistics.weighted.Weighted, not of {type(weighted).__name__}"
            )
        vectors, kernel = _vectors(weighted.divergence, weighted.prediction_kernel)
        along = vectors(features.predictions)
        draw = Draw(
            self.key,
            kernel,
            target_kernel,
            self.n_features // 2,
            along.shape[1],
            self.orthogonal,
            along.dtype,
        )
        route = f"{self.n_features} random features"
        if weighted.route not in ("", "closed form"):
            route = f"{route}; {weighted.route}"
        return FiniteRank(in_waves(weighted, features, draw), weighted.channels, route)


def _vectors(
    divergence: DivergenceLike, kernel: KernelLike
) -> tuple[Callable[[Features], Array], KernelLike]:
    """Return a function that maps features of predictions to vectors [n, q], and their kernel."""
    if is_euclidean(divergence):
        return divergence.vectors, kernel
    if isinstance(divergence, TotalVariation) and isinstance(kernel, Laplace):
        assert kernel.bandwidth is not None
        # the distance is half a sum of absolute differences
        return divergence.vectors, L1Laplace(2 * kernel.bandwidth)
    raise TypeError(
        f"features: random features want a distance between vectors, such as Fisher(), Wasserstein "
        f"of normals or Vectors(values), got {type(divergence).__name__}"
    )


Keys = _Key[Array, "2"]  # a key for nodes and residuals, a key for features of predictions


class Specification(eqx.Module):
    """Options of a test whose statistic is a mean over pairs; `fit` sets nodes and bandwidths.
    A new value of a static field compiles the program again."""

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
    random_features: RandomFeatures | None = None  # None: sums over all pairs

    def fit(self, keys: Keys, predictions: Any, targets: Array) -> tuple[Fitted, Featured]:
        """Return the test fitted to data, and the features of these data.

        The steps are `units`, `nodes`, `scores`, `features`, `bandwidth` and `statistic`. JAX
        differentiates results through all of them.
        """
        check_rows(self.divergence, targets.shape[0])
        frame = nodes(self, keys[0], units(self, predictions, targets), predictions, targets)
        view = scores(self, frame, predictions, targets)
        of_targets, notes = target_bandwidth(self, view, predictions, targets)
        embedding, described, for_residual = features(self, keys[1], view, of_targets.kernel)
        of_predictions = bandwidth(
            "prediction", self.prediction_kernel, embedding.divergence, described, embedding.size
        )
        # averages over predictions are then their characteristic functions
        waves = self.random_features is not None and not isinstance(predictions, Classes)
        averaged = Wave() if waves else of_targets.kernel
        featured = self.residual.features(keys[0], view, for_residual, averaged, described)
        pairwise = statistic(
            self, featured, of_targets.kernel, of_predictions.kernel, embedding.divergence
        )
        constant = isinstance(self.prediction_kernel, Constant)
        notes |= {"identical-predictions": of_predictions.identical & (not constant)}
        fitted = Fitted(
            frame,
            embedding,
            self.residual,
            averaged,
            of_predictions.kernel,
            pairwise,
            of_targets.bandwidths | of_predictions.bandwidths,
            notes,
        )
        return fitted, featured


def units(spec: Specification, predictions: Any, targets: Array) -> Frame | ClassFrame:
    """Return a `Frame` with units from the targets, without nodes; a `ClassFrame` for classes. The
    origin is 0 for targets as they are if the kernel depends on more than their differences."""
    if isinstance(predictions, Classes):
        return ClassFrame(predictions.probabilities.shape[1])
    ys = targets.reshape(targets.shape[0], -1)
    of_targets = Units.of(ys)
    used = of_targets if spec.standardize else Units.unchanged(ys)
    moved = spec.standardize or points.shift_invariant(spec.target_kernel)
    return Frame(used, of_targets.center if moved else used.center, None, spec.whiten)


def nodes(
    spec: Specification, key: Key, frame: Frame | ClassFrame, predictions: Any, targets: Array
) -> Frame | ClassFrame:
    """Return the frame, with nodes [m, d] in its units if the test needs scores at nodes."""
    if isinstance(frame, ClassFrame):
        return frame
    standardized = Standardized(predictions, frame.units, targets.shape[1:])
    whitened = spec.whiten is not None and spec.whiten.needs_nodes
    if not (whitened or spec.divergence.needs_nodes or spec.residual.needs_nodes(standardized)):
        return frame
    d, key = frame.units.scale.size, spec.residual.node_key(key)
    if isinstance(predictions, Scores):
        raw = predictions.nodes
        placed = None if raw is None else frame.units.points(raw.reshape(-1, d))
    elif spec.base_measure is None:
        placed = normals(key, (spec.n_nodes, d), targets.dtype)
    else:
        points: Any = spec.base_measure
        if is_distribution(points):
            points = sample(key, points, (spec.n_nodes,), "base_measure")
        placed = frame.units.points(points.reshape(-1, d).astype(targets.dtype))
    return Frame(frame.units, frame.origin, placed, spec.whiten)


def scores(
    spec: Specification, frame: Frame | ClassFrame, predictions: Any, targets: Array
) -> View:
    """Return predictions and targets in the units of the test, with scores if the test uses any."""
    view = frame.view(predictions, targets, scores=spec.residual.needs_scores)
    if spec.divergence.needs_nodes and view.at_nodes is None:
        raise ValueError(
            "Scores.at_nodes is missing: the Fisher distance between predictions and "
            "precondition need the scores at base points, shape [n, m, d]; give them, or "
            "another distance"
        )
    return view


class Chosen(NamedTuple):
    """A kernel with its bandwidth. ``bandwidths``: by name, what the median heuristic chose, or {}
    if it chose none. ``identical`` []: whether all compared points are identical."""

    kernel: KernelLike
    bandwidths: dict[str, Scalar]
    identical: Bool[Array, ""]


def bandwidth(
    name: str,
    kernel: KernelLike,
    divergence: DivergenceLike,
    features: Features,
    size: Array | None = None,
) -> Chosen:
    """Return the kernel as `Chosen`, with unset bandwidths set by the median heuristic. Reports
    show the bandwidth under ``name``, multiplied by ``size``, the unit of the features."""
    value, identical = median_heuristic(divergence, features)
    used = {name: value if size is None else value * size} if points.needs_bandwidth(kernel) else {}
    return Chosen(points.with_bandwidth(kernel, value), used, identical)


def target_bandwidth(
    spec: Specification, view: View, predictions: Any, targets: Array
) -> tuple[Chosen, dict[str, Array]]:
    """Return the target kernel with its bandwidth, unchanged for classes, and notes on targets."""
    if isinstance(predictions, Classes):
        nothing = jnp.zeros((), bool)
        notes = {"constant-coordinates": jnp.asarray(0), "far-targets": jnp.asarray(0.0)}
        return Chosen(spec.target_kernel, {}, nothing), {"identical-targets": nothing} | notes
    # targets that are not finite are counted separately and do not affect the bandwidth
    finite = jnp.where(jnp.isfinite(view.points), view.points, 0)
    chosen = bandwidth("target", spec.target_kernel, Vectors(finite), finite)
    identical = chosen.identical & (spec.standardize or bool(chosen.bandwidths))
    ys = targets.reshape(targets.shape[0], -1)
    notes = {
        "identical-targets": identical,
        "constant-coordinates": jnp.sum(jnp.max(ys, axis=0) == jnp.min(ys, axis=0)),
        "far-targets": range_over_iqr(ys),
    }
    if view.scores is not None:
        sums = coarse_sums(ys, view.predictions.units.scale, jnp.abs(view.scores))
        notes |= coarse(sums, len(ys))
    return chosen, notes


def features(
    spec: Specification, key: Key, view: View, target_kernel: KernelLike
) -> tuple[Embedding, Features, PyTree]:
    """Return the fitted distance between predictions, the features that it compares, and the
    predictions as inputs of the residuals (`divided`)."""
    divergence: Any = spec.divergence
    if hasattr(divergence, "with_target_kernel"):
        divergence = divergence.with_target_kernel(target_kernel)
    for_divergence, for_residual = divided(view, divergence, spec.prediction_kernel)
    embedding, described = Embedding.fit(
        key,
        divergence,
        for_divergence,
        view.at_nodes,
        standardize=spec.standardize,
        unitless=points.all_unset(spec.prediction_kernel),
        moved=spec.standardize or points.shift_invariant(spec.prediction_kernel),
    )
    return embedding, described, for_residual


def statistic(
    spec: Specification,
    featured: Featured,
    target_kernel: KernelLike,
    prediction_kernel: KernelLike,
    divergence: DivergenceLike,
) -> Weighted | FiniteRank:
    """Return the pairwise statistic h, exact or, if ``spec`` asks, by random features."""
    of_targets = spec.residual.statistic(featured, target_kernel)
    pairwise = Weighted(prediction_kernel, divergence, of_targets)
    if spec.random_features is None:
        return pairwise
    return spec.random_features.of(pairwise, featured.features, target_kernel)


def range_over_iqr(ys: Points) -> Scalar:
    """Return the ratio of range to interquartile range, [], the largest over coordinates.

    If the middle half of a coordinate is constant, its middle 3/4, 7/8, .. is used instead."""
    n = ys.shape[0]
    ordered = in_order(jax.lax.stop_gradient(ys).T)
    outside = np.unique(n // 2 ** np.arange(2, n.bit_length() + 1))
    ranges = ordered[:, n - 1 - outside] - ordered[:, outside]
    full = ranges[:, 0]
    typical = jnp.min(jnp.where(ranges > 0, ranges, full[:, None]), axis=1)
    return jnp.max(jnp.where(typical > 0, full / jnp.where(typical > 0, typical, 1), 0))
