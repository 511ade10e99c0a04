"""Predictions and targets in the units of a test, with scores at its nodes."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from jaxcal.divergences.vectors import NodeScores
from jaxcal.read import OwnUnits, Standardized, Units
from jaxcal.read.families import Classes
from jaxcal.read.scores import scores_at
from jaxcal.typing import Nodes, Point, Points, PredictionsLike
from jaxcal.whitening.contract import Whitener, Whitening


class View(NamedTuple):
    """n predictions and their targets in the units of the test.

    ``ys``: targets [n, d] relative to the frame's origin, or classes [n]. ``predictions`` are in
    the same units; ``about_origin`` are also relative to the origin, so that a common offset costs
    no digits. ``scores`` [n, d] are those at the targets. ``whitening``, if not None, maps both to
    the units of each prediction, which are then those of ``about_origin``.
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
        """Return the frame's origin in the units of ``predictions``, which nodes share."""
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
    """Units [d], centre [d] of the raw targets, nodes [m, d], and the whitening of predictions."""

    units: Units
    origin: Point
    nodes: Nodes | None
    whitener: Whitener | None = None

    def standardized(self, predictions: PredictionsLike, event: tuple[int, ...]) -> Standardized:
        """Return predictions over targets of this shape, in the units of the test."""
        return Standardized(predictions, self.units, event)

    def view(self, predictions: Any, targets: Array, *, scores: bool) -> View:
        """Return the `View` of n predictions and targets; scores cost n (m + 1) gradients."""
        n, event = targets.shape[0], targets.shape[1:]
        ys = targets.reshape(n, -1)
        about = Units(self.origin, self.units.scale)
        view = View(
            about.points(ys),
            self.standardized(predictions, event),
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
        """Return the view with centres relative to the origin, like the targets, and scales."""
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
    """Classes have no units, no origin and no nodes."""

    def view(self, predictions: Classes, targets: Array, *, scores: bool) -> View:
        """Return probabilities, for distances between predictions, and class distributions."""
        assert not scores
        return View(jnp.asarray(targets), predictions.probabilities, predictions)
