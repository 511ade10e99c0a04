r"""Compute data in the units of a test, and residuals, which multiply a kernel on predictions.

The statistic is :math:`h_{ij} = k(p_i, p_j) \langle \xi_i, \xi_j \rangle`. Residuals :math:`\xi`
have mean 0 under calibration: the Stein feature of a score (`SteinResidual`), or
:math:`l(y, \cdot) - E\,l(Z, \cdot)`, Z a draw of the prediction (`MeanResidual`).
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, PyTree

from jaxcal.divergences.vectors import NodeScores, Vectors
from jaxcal.kernels.means.dispatch import KernelMeans, kernel_means
from jaxcal.kernels.points import Constant
from jaxcal.moments import attribution
from jaxcal.moments.attribution import Claims
from jaxcal.moments.stein import edges
from jaxcal.nulls.resampling import series_of
from jaxcal.numerics import not_finite
from jaxcal.read import Draws, OwnUnits, Standardized, Units
from jaxcal.read import precisions as preconditioners
from jaxcal.read.families import Classes, offered_moments
from jaxcal.read.scores import climbable, scores_at, signs_reversed
from jaxcal.statistics.skce import KernelResidual, Observed
from jaxcal.statistics.stein import Stein, SteinFeatures
from jaxcal.statistics.weighted import WeightedFeatures
from jaxcal.typing import (
    DivergenceLike,
    Features,
    KernelLike,
    Key,
    Nodes,
    Pairwise,
    Point,
    Points,
    Precondition,
    PredictionsLike,
)
from jaxcal.whitening.contract import Whitener, Whitening


class View(NamedTuple):
    """n predictions and their targets in the units of the test.

    ``ys``: targets [n, d] minus the origin of the `Frame`, or classes [n]. ``scores`` [n, d]: at
    ``ys``. ``at_nodes``: scores at nodes. ``about_origin``: predictions relative to the same
    origin, which avoids rounding errors from a common offset. ``whitening``, if any, maps ``ys``
    and ``scores`` to units of each prediction; ``about_origin`` is then in these units.
    ``targets``: in the units of the data.
    """

    ys: Array
    predictions: Any
    about_origin: Any
    scores: Points | None = None
    at_nodes: NodeScores | None = None
    targets: Array | None = None
    whitening: Whitening | None = None

    @property
    def offset(self) -> Point:
        """Return the origin of the frame in the units of ``predictions`` and nodes, [d]."""
        common, about = self.predictions.units, self.about_origin.units
        about = about.units if isinstance(about, OwnUnits) else about
        return (about.center - common.center) / common.scale

    @property
    def points(self) -> Array:
        """Return the targets as inputs of the target kernel."""
        return self.ys if self.whitening is None else self.whitening.points(self.ys)

    @property
    def point_scores(self) -> Points:
        """Return the scores at `points`."""
        assert self.scores is not None
        return self.scores if self.whitening is None else self.whitening.scores(self.scores)


class Frame(eqx.Module):
    """Coordinates of a test: ``units``; ``origin`` [d], the mean of the targets in units of the
    data; ``nodes`` [m, d] in ``units``, None if unused; ``whitener``, None if not whitened."""

    units: Units
    origin: Point
    nodes: Nodes | None
    whitener: Whitener | None = None

    def view(self, predictions: Any, targets: Array, *, scores: bool) -> View:
        """Return the `View` of n predictions and targets. ``scores``: whether to compute scores at
        targets. With m nodes, scores at all points are computed anyway: n (m + 1) gradients."""
        n, event = targets.shape[0], targets.shape[1:]
        ys = targets.reshape(n, -1)
        about = Units(self.origin, self.units.scale)
        view = View(
            about.points(ys),
            Standardized(predictions, self.units, event),
            Standardized(predictions, about, event),
            targets=targets,
        )
        if not scores and self.nodes is None:
            return self._whitened(view)
        # at the raw targets: rescaling could move a target across the edge of a support
        raw = Standardized(predictions, Units.unchanged(ys), event)
        nodes = None if self.nodes is None else self.units.original(self.nodes)
        values, at_nodes = scores_at(raw, ys, nodes, self.units)
        if at_nodes is not None:
            at_nodes = NodeScores(self.nodes, at_nodes)
        return self._whitened(view._replace(scores=values, at_nodes=at_nodes))

    def _whitened(self, view: View) -> View:
        """Return the view with the `Whitening` fitted by ``whitener``; unchanged without one."""
        if self.whitener is None:
            return view
        at_nodes = view.at_nodes
        if at_nodes is not None and at_nodes.nodes is not None:
            at_nodes = NodeScores(at_nodes.nodes - view.offset[None], at_nodes.values)
        about = view.about_origin
        whitening = self.whitener.fit(about, at_nodes)
        n, d = view.ys.shape  # a KSD has one density for all targets
        whitening = whitening._replace(
            center=jnp.broadcast_to(whitening.center, (n, d)),
            scale=jnp.broadcast_to(whitening.scale, (n, d, d)),
        )
        units = OwnUnits(about.units, whitening.center, whitening.scale)
        return view._replace(
            whitening=whitening, about_origin=Standardized(about.predictions, units, about.event)
        )


class ClassFrame(eqx.Module):
    """Replaces a `Frame` for predictions of classes, which have no units, origin or nodes.
    ``classes``: number of classes."""

    classes: int = eqx.field(static=True)

    def view(self, predictions: Classes, targets: Array, *, scores: bool) -> View:
        """Return a `View` of labels [n] whose ``predictions`` are class probabilities [n, m]."""
        assert not scores
        return View(jnp.asarray(targets), predictions.probabilities, predictions)


LANDMARKS = 8  # number of targets at which `errors` evaluates kernel residuals


def noted(view: View, scores: PyTree, described: PyTree) -> dict[str, Array]:
    """Return notes on scores, on features of predictions (``described``), and on whitening."""
    notes = {"nonfinite-scores": not_finite(scores), "nonfinite-predictions": not_finite(described)}
    whitening = view.whitening
    if whitening is not None:
        notes["nonfinite-predictions"] += not_finite((whitening.center, whitening.scale))
        notes["clamped-scales"] = whitening.clamped
        if whitening.n_not_converged is not None:
            notes["centres-astray"] = whitening.n_not_converged
    return notes


class Featured(NamedTuple):
    """Features of n observations for the pairwise statistic, and notes (`jaxcal.results.notes`).
    ``means``: `KernelMeans` of a `MeanResidual`, with ``features`` removed; otherwise None."""

    features: PyTree
    notes: dict[str, Array]
    claimed: tuple[Points, Claims] | None = None  # targets [n, d] and moments, in units of the test
    means: KernelMeans | None = None
    excluded: Bool[Array, ""] | None = None  # whether densities lack what a moment needs
    scores: Points | None = None  # of Stein tests, in units of the target kernel


@runtime_checkable
class Residual(Protocol):
    """Protocol of residuals, which compare targets with predictions. ``needs_scores``: whether
    scores at targets are used. ``needs_nodes``: whether scores at nodes are used; ``node_key`` is
    the random key of the nodes. ``components``: whether there is one statistic per coordinate."""

    @property
    def needs_scores(self) -> bool: ...

    @property
    def components(self) -> bool: ...

    def needs_nodes(self, predictions: Standardized, /) -> bool: ...

    def node_key(self, key: Key, /) -> Key: ...

    def features(
        self,
        key: Key,
        view: View,
        predictions: PredictionsLike,
        target_kernel: KernelLike,
        described: Features,
        /,
    ) -> Featured: ...

    def statistic(self, featured: Featured, target_kernel: KernelLike, /) -> Pairwise:
        """Return the pairwise statistic: the inner product of the residuals of a pair."""
        ...


def errors(featured: Featured, predictions: Any, targets: Array) -> Float[Array, "n q"]:
    """Return errors with mean 0 under calibration: scores, values of moments, one-hot classes minus
    p, or targets minus means. Without finite means: kernel residuals at `LANDMARKS` targets."""
    if featured.means is None:
        return series_of(featured.features)
    observed = featured.features.residual
    means, ys, n = featured.means, observed.ys, len(targets)
    if isinstance(predictions, Classes):
        p = predictions.probabilities
        return jax.nn.one_hot(targets, p.shape[1], dtype=p.dtype) - p
    at = ys[jnp.argsort(ys[:, 0])[n // (2 * LANDMARKS) :: -(-n // LANDMARKS)]]
    local = means.gram(ys, at) - means.first(observed.distribution, at)
    if isinstance(predictions, Draws):
        center = jnp.mean(predictions.samples, axis=1)
    else:
        offered = offered_moments(predictions)
        if offered is None:
            return local
        center = offered.mean
    gaps = targets.reshape(n, -1) - center.reshape(n, -1)
    finite = jnp.all(jnp.isfinite(center))
    both = (jnp.where(finite, gaps, 0), jnp.where(finite, 0, local))
    return jnp.concatenate(both, axis=1)


def divided(view: View, divergence: DivergenceLike, kernel: KernelLike) -> tuple[PyTree, PyTree]:
    """Return predictions for the distance, and for the residuals. If both would use the same
    `Draws`, each gets half of them, which avoids a bias; otherwise both get all predictions."""
    standardized, about = view.predictions, view.about_origin
    draws = standardized.predictions if isinstance(standardized, Standardized) else None
    alone = isinstance(divergence, Vectors) or isinstance(kernel, Constant)
    # a whitening takes centre and scale of each prediction from the first half
    if not isinstance(draws, Draws) or (alone and view.whitening is None):
        return standardized, about
    half = draws.samples.shape[1] // 2
    first, second = Draws(draws.samples[:, :half]), Draws(draws.samples[:, half:])
    return (
        Standardized(first, standardized.units, standardized.event),
        Standardized(second, about.units, about.event),
    )


class SteinResidual(eqx.Module):
    """Stein features of scores, without integrals: the residuals of KCCSD, KCSD and KSD."""

    precondition: Precondition = eqx.field(default=None, static=True)
    components: bool = eqx.field(default=False, static=True)
    needs_scores: bool = eqx.field(default=True, init=False, static=True)

    def needs_nodes(self, predictions: Standardized) -> bool:
        fitted = self.components and offered_moments(predictions) is None
        return self.precondition is not None or fitted

    def node_key(self, key: Key) -> Key:
        return key

    def features(
        self,
        key: Key,
        view: View,
        predictions: Any,
        target_kernel: KernelLike,
        described: Features,
    ) -> Featured:
        scores, at_nodes = view.scores, view.at_nodes
        assert scores is not None
        nodes, values = (None, None) if at_nodes is None else at_nodes
        preconditioner, clamped = None, {}
        if view.whitening is not None and self.components:
            preconditioner = view.whitening.along_coordinates()
        if self.precondition is not None:
            if nodes is None or values is None:
                raise ValueError(
                    "precondition needs scores at base points and those points: give "
                    "Scores.at_nodes and Scores.nodes"
                )
            preconditioner, count = preconditioners.precision_root(nodes, values, self.precondition)
            clamped = {"clamped-scales": count}
        claims = None
        if self.components:
            at = view.ys + view.offset[None]
            claims = attribution.claims(view.predictions, nodes, values, at, scores)
            if claims is not None:  # relative to the frame's origin, like the targets
                claims = claims._replace(centers=claims.centers - view.offset[None])
        assert view.point_scores is not None
        abrupt = jnp.zeros((), bool)  # whether a density jumps from a positive value to 0
        if view.targets is not None and climbable(view.predictions):
            abrupt = edges(key, view.predictions.predictions, view.targets).abrupt
        stein = SteinFeatures(view.points, view.point_scores, preconditioner)
        # a target that is not finite is noted once, not again through its score
        finite = jnp.all(jnp.isfinite(view.ys), axis=1, keepdims=True)
        notes = noted(view, jnp.where(finite, scores, 0), (described, preconditioner)) | clamped
        notes |= {
            "abrupt-edge": abrupt,
            "reversed-sign": signs_reversed(view.ys, scores) & ~abrupt,
        }
        return Featured(
            WeightedFeatures(described, stein),
            notes,
            claimed=None if claims is None else (view.ys, claims),
            scores=view.point_scores,
        )

    def statistic(self, featured: Featured, target_kernel: KernelLike) -> Stein:
        dimension = featured.features.residual.ys.shape[1]
        return Stein(target_kernel, dimension=dimension, components=self.components)


class MeanResidual(eqx.Module):
    """Kernels at targets minus kernel means: the residuals of SKCE and UCME.

    ``n_samples``, ``n_counts``: as in `kernel_means`; ``n_counts`` is set outside of jit."""

    n_samples: int | None = eqx.field(default=None, static=True)
    n_counts: int | None = eqx.field(default=None, static=True)
    components: bool = eqx.field(default=False, init=False, static=True)
    needs_scores: bool = eqx.field(default=False, init=False, static=True)

    def needs_nodes(self, predictions: Standardized) -> bool:
        return False

    def node_key(self, key: Key) -> Key:
        return jax.random.split(key, 2)[1]

    def features(
        self,
        key: Key,
        view: View,
        predictions: PredictionsLike,
        target_kernel: KernelLike,
        described: Features,
    ) -> Featured:
        draw_key = jax.random.split(key, 2)[0]
        if isinstance(view.about_origin, Standardized):
            means = kernel_means(
                target_kernel,
                predictions,
                key=draw_key,
                n_samples=self.n_samples,
                n_counts=self.n_counts,
            )
            draws = view.about_origin.predictions
            unsettled = draws.unsettled() if isinstance(draws, Draws) else None
        else:
            means, unsettled = kernel_means(target_kernel, predictions), None
        notes = noted(view, (), (means.features, described))
        if unsettled is not None:
            notes["unsettled-chains"] = unsettled
        if means.error is not None:
            notes["averages-error"] = jnp.asarray(means.error)
        residual = Observed(view.points, means.features)
        return Featured(WeightedFeatures(described, residual), notes, means=means.empty())

    def statistic(self, featured: Featured, target_kernel: KernelLike) -> KernelResidual:
        assert featured.means is not None
        return KernelResidual(featured.means)
