"""Predictions and targets as a test sees them: in its units, with scores at its base points."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array

from jaxcal.divergences.vectors import NodeScores
from jaxcal.models import Standardized, Units
from jaxcal.models.families import Classes
from jaxcal.scores import scores_at
from jaxcal.typing import Nodes, Point, Points


class View(NamedTuple):
    """n predictions and their targets.

    ``ys`` [n, d] are the targets in the units of the test, about the frame's origin, or classes
    [n]. ``predictions`` are in these units too, ``about_origin`` also about that origin: a common
    offset then costs no digits. ``scores`` [n, d] are those at the targets. ``targets`` [n, ...]
    as they came.
    """

    ys: Array
    predictions: Any
    about_origin: Any
    scores: Points | None = None
    at_nodes: NodeScores | None = None
    targets: Array | None = None


class Frame(eqx.Module):
    """Units [d], the mean of the targets [d] in the units they came in, and base points [m, d]."""

    units: Units
    origin: Point
    nodes: Nodes | None

    def standardized(self, predictions: Any, event: tuple[int, ...]) -> Standardized:
        """Predictions over targets of this shape, in the units of the test."""
        return Standardized(predictions, self.units, event)

    def view(self, predictions: Any, targets: Array, *, scores: bool) -> View:
        """What a test sees of n predictions and targets; scores cost n (m + 1) gradients."""
        n, event = targets.shape[0], targets.shape[1:]
        ys = targets.reshape(n, -1)
        about = Units(self.origin, self.units.scale)
        seen = View(
            about.points(ys),
            self.standardized(predictions, event),
            Standardized(predictions, about, event),
            targets=targets,
        )
        if not scores and self.nodes is None:
            return seen
        # at the targets as they came: a score next to the edge of a density is not the one on it
        raw = Standardized(predictions, Units.unchanged(ys), event)
        nodes = None if self.nodes is None else self.units.original(self.nodes)
        values, at_nodes = scores_at(raw, ys, nodes)
        if at_nodes is not None:
            at_nodes = NodeScores(self.nodes, self.units.scores(at_nodes))
        return seen._replace(scores=self.units.scores(values), at_nodes=at_nodes)


class ClassFrame(eqx.Module):
    """Classes have no units, no origin and no base points."""

    def view(self, predictions: Classes, targets: Array, *, scores: bool) -> View:
        """Probabilities for distances between predictions, and the distributions of the classes."""
        assert not scores
        return View(jnp.asarray(targets), predictions.probabilities, predictions)
