"""A test fitted to data; it computes features of the same or of other observations."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array

from jaxcal.divergences.vectors import NodeScores, Vectors
from jaxcal.fit.residuals import ClassFrame, Featured, Frame, Residual, View, divided
from jaxcal.kernels.points import Constant
from jaxcal.numerics import at_least, binary_size
from jaxcal.read import Scores, Units, checks
from jaxcal.read.families import Classes
from jaxcal.statistics.finite_rank import FiniteRank
from jaxcal.statistics.weighted import Weighted
from jaxcal.typing import (
    ArrayLike,
    DivergenceLike,
    Features,
    KernelLike,
    Key,
    PredictionsLike,
    Scalar,
)


class Embedding(eqx.Module):
    """A distance between predictions, fitted to data, with the normalization of its vectors.

    Vectors v of predictions are replaced by (v - ``offset``) / ``size``, with ``size`` a power of
    two; this prevents rounding errors and overflow of squares. If one of the two is None, its step
    is omitted. ``units`` rescale vectors from the user (`Vectors`); None for other distances.
    """

    divergence: DivergenceLike
    offset: Array | None
    size: Array | None
    units: Units | None

    @classmethod
    def fit(
        cls,
        key: Key,
        divergence: Any,
        predictions: Any,
        at_nodes: NodeScores | None,
        *,
        standardize: bool,
        unitless: bool,
        moved: bool = True,
    ) -> tuple["Embedding", Features]:
        """Return the distance fitted to these predictions, and their features.

        ``standardize``: whether to rescale the vectors of a `Vectors`. ``unitless``: whether all
        bandwidths of the kernel are unset. If False, features are not divided by ``size``.
        ``moved``: whether features may be moved to a centre.
        """
        units = None
        if isinstance(divergence, Vectors):
            vectors = divergence.values
            units = Units.of(vectors) if standardize else Units.unchanged(vectors)
            raw, divergence = units.points(vectors), Vectors(vectors[:0])
        else:
            if hasattr(divergence, "fitted"):
                divergence = divergence.fitted(key, predictions, at_nodes)
            raw = divergence.features(key, predictions, at_nodes)
        offset = divergence.center(raw) if moved and hasattr(divergence, "center") else None
        size = None
        if offset is not None:
            size = _size(raw, offset) if unitless else None
            raw = raw - offset if size is None else (raw - offset) / size
        return cls(divergence, offset, size, units), raw

    def features(
        self,
        key: Key,
        predictions: PredictionsLike,
        at_nodes: NodeScores | None,
        vectors: ArrayLike | None,
    ) -> Features:
        """Return features of other predictions, comparable with those of the fit. A fit to
        `Vectors` needs the ``vectors`` of these predictions: ValueError for None."""
        if self.units is None:
            raw = self.divergence.features(key, predictions, at_nodes)
        elif vectors is None:
            raise ValueError(
                "vectors: this test compares vectors given by the user; give those of the "
                "observations, shape [n, q]"
            )
        else:
            raw = self.units.points(Vectors(vectors).values)
        raw = raw if self.offset is None else raw - self.offset
        return raw if self.size is None else raw / self.size


def _size(vectors: Array, offset: Array) -> Array:
    """Return 1, or the power of two that keeps the squares of vectors / size in range."""
    vectors, offset = jax.lax.stop_gradient((vectors, offset))
    # computed from the extremes of each column, so that no centered copy is stored
    above = jnp.max(vectors, axis=0, keepdims=True) - offset
    below = offset - jnp.min(vectors, axis=0, keepdims=True)
    largest = jnp.max(at_least(above, below))
    bound = 2.0 ** (jnp.finfo(vectors.dtype).maxexp // 4)
    ordinary = (largest < bound) & (largest > 1 / bound)
    return jnp.where(ordinary, 1, binary_size(largest))


class Fitted(eqx.Module):
    """A test statistic whose units, nodes and bandwidths have been set from data.

    ``pairwise`` is the statistic. The method `features` computes its inputs, from the data of the
    fit or from other data. ``bandwidths`` holds those that the median heuristic chose, by name
    ("target", "prediction"). ``notes`` describe the data of the fit (`jaxcal.results.notes`).
    """

    frame: Frame | ClassFrame
    embedding: Embedding
    residual: Residual
    target_kernel: KernelLike
    prediction_kernel: KernelLike
    pairwise: Weighted | FiniteRank
    bandwidths: dict[str, Scalar]
    notes: dict[str, Array]

    def features(
        self,
        keys: Array,
        predictions: Any,
        targets: Array,
        *,
        vectors: ArrayLike | None = None,
    ) -> Featured:
        """Return features of n predictions and targets, in the units and at the nodes of the fit.

        ``keys`` [2]: the first for random draws of residuals, the second for draws of the distance.
        ``vectors`` [n, q]: vectors of the predictions, if the test was fitted with `Vectors`.
        """
        self.check(predictions, targets, vectors)
        return self.of_view(keys, self.view(predictions, targets), vectors)

    def view(self, predictions: Any, targets: Array) -> View:
        """Return predictions and targets in the units of the fit, with scores if they are used."""
        return self.frame.view(predictions, targets, scores=self.residual.needs_scores)

    def of_view(self, keys: Array, view: View, vectors: ArrayLike | None) -> Featured:
        """Return the features of the observations in a ``view``, as `features` does."""
        embedding, kernel = self.embedding, self.prediction_kernel
        for_divergence, for_residual = divided(view, embedding.divergence, kernel)
        if vectors is None and embedding.units is not None and isinstance(kernel, Constant):
            vectors = jnp.zeros((view.ys.shape[0], embedding.units.scale.size), view.ys.dtype)
        described = embedding.features(keys[1], for_divergence, view.at_nodes, vectors)
        return self.residual.features(keys[0], view, for_residual, self.target_kernel, described)

    def check(self, predictions: PredictionsLike, targets: Array, vectors: Any) -> None:
        """Raise ValueError if targets, vectors or classes have another dimension than in the fit,
        or if `Scores` have other nodes. Under jit, only the numbers of nodes are compared."""
        frame, units = self.frame, self.embedding.units
        if units is not None and vectors is not None:
            checks.width(jnp.asarray(vectors), units.scale, "inputs")
        if not isinstance(frame, Frame):
            m = predictions.probabilities.shape[1] if isinstance(predictions, Classes) else 0
            if m != frame.classes:
                raise ValueError(f"predictions: wanted {frame.classes} classes, got {m}")
            return
        checks.width(targets, frame.origin, "targets")
        if frame.nodes is None or not isinstance(predictions, Scores):
            return
        fitted, nodes = frame.nodes, predictions.nodes
        same = nodes is not None and nodes.shape[0] == fitted.shape[0]
        if same and not isinstance(fitted, Tracer) and not isinstance(nodes, Tracer):
            there = frame.units.points(jnp.asarray(nodes).reshape(fitted.shape))
            same = bool(jnp.allclose(there, fitted, rtol=1e-4, atol=1e-4))
        if not same:
            raise ValueError(
                "Scores.nodes: features are comparable at the base points of the fit only; take "
                "the scores there, and pass these points as nodes="
            )
