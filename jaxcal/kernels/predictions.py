"""Distances between predictions. A kernel on predictions is a radial kernel of such a distance."""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal import embeddings
from jaxcal.kernels import points
from jaxcal.typing import Features, Key, Points


class NodeScores(NamedTuple):
    """Scores of n predictions at m base points: ``nodes`` [m, d], ``values`` [n, m, d]."""

    nodes: Points | None
    values: Float[Array, "n m d"]


class _Euclidean:
    """Distances whose features are vectors."""

    def squared_distances(self, rows: Array, cols: Array) -> Array:
        return points.squared_distances(rows, cols)

    def paired(self, rows: Array, cols: Array) -> Array:
        return jnp.sum((rows - cols) ** 2, axis=-1)


class Fisher(_Euclidean, eqx.Module):
    """Generalized Fisher divergence (GFD), from scores at base points. Needs no constant.

    Blind to the mixing proportions of well-separated modes, as every distance of scores is.
    """

    needs_nodes: bool = eqx.field(default=True, static=True, init=False)

    def features(self, key: Key, predictions: Any, at_nodes: NodeScores | None) -> Features:
        assert at_nodes is not None
        return embeddings.fisher(at_nodes.values)


class Vectors(_Euclidean, eqx.Module):
    """Euclidean distance of vectors that the user gives, one a prediction, shape [n, q].

    Inputs x make a conditional goodness-of-fit test; an embedding of the predictions computed
    elsewhere makes a calibration test.
    """

    values: Float[Array, "n q"]
    needs_nodes: bool = eqx.field(default=False, static=True, init=False)

    def features(self, key: Key, predictions: Any, at_nodes: NodeScores | None) -> Features:
        return self.values


def gram_block(kernel: Any, distance: Any, rows: Features, cols: Features) -> Array:
    """Kernel matrix of r rows and c columns of predictions, from their features; [r, c].

    One matrix product where the kernel has a radial profile. A kernel without one (a length per
    dimension, a user's own function) is evaluated pair by pair on the feature vectors.
    """
    radial = points.profile(kernel)
    if radial is not None:
        return radial(distance.squared_distances(rows, cols))
    if isinstance(distance, _Euclidean):
        return points.gram(kernel, rows, cols)
    raise TypeError(
        f"{type(distance).__name__} is a distance without feature vectors: the kernel on it must "
        f"be radial with one bandwidth, got {kernel}"
    )
