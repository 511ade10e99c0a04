"""Divergences that are Euclidean distances of feature vectors, and the kernel on a divergence."""

from typing import ClassVar, NamedTuple, Protocol, TypeGuard, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxcal.kernels import points
from jaxcal.read import convert
from jaxcal.typing import (
    ArrayLike,
    Divergence,
    DivergenceLike,
    Features,
    KernelLike,
    Key,
    Nodes,
    PredictionsLike,
)


class NodeScores(NamedTuple):
    """Scores of n predictions at m nodes: ``nodes`` [m, d], ``values`` [n, m, d]."""

    nodes: Nodes | None
    values: Float[Array, "n m d"]


@runtime_checkable
class VectorDivergence(Divergence, Protocol):
    """A divergence with feature ``vectors`` [n, q]; with ``euclidean = True`` it is their Euclidean
    distance."""

    def vectors(self, features: Features, /) -> Array: ...


class _Euclidean:
    """Base of distances whose features are vectors."""

    euclidean: ClassVar[bool] = True

    def vectors(self, features: PyTree) -> Array:
        return features

    def in_order(self, features: PyTree) -> Array:
        """Return features as inputs of `separations`, centred if it uses matrix products."""
        vectors = self.vectors(features)
        return centred(vectors) if vectors.shape[1] > points.FEW else vectors

    def center(self, features: PyTree) -> Array | None:
        """Return the mean of the vectors, [1, q], which tests subtract."""
        return _mean(features)

    def squared_distances(self, rows: Array, cols: Array) -> Array:
        return points.squared_distances(rows, cols)

    def separations(self, rows: Array, cols: Array) -> Array:
        """Return squared distances, exactly 0 for predictions equal up to rounding."""
        return points.separations(rows, cols)

    def paired(self, rows: Array, cols: Array) -> Array:
        return jnp.sum((rows - cols) ** 2, axis=-1)


def centred(vectors: Array) -> Array:
    """Return the vectors minus their mean, so that distances lose no digits by a common offset.

    Columns with entries that are not finite keep their offset, and other rows stay finite.
    """
    return vectors - _mean(vectors)


def _mean(vectors: Array) -> Array:
    """Return the mean [1, q], 0 for columns where it is not finite."""
    mean = jnp.mean(vectors, axis=0, keepdims=True)
    return jnp.where(jnp.isfinite(mean), mean, 0)


def is_euclidean(divergence: DivergenceLike) -> TypeGuard[VectorDivergence]:
    """Return whether the divergence declares that it is the Euclidean distance of its vectors."""
    return getattr(divergence, "euclidean", False)


def _vectors(value: ArrayLike) -> Array:
    values = convert.floats(value, "values")
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or values.shape[1] < 1:
        raise ValueError(f"values: wanted vectors [n, q], got shape {values.shape}")
    return values


class Vectors(_Euclidean, eqx.Module):
    """Euclidean distance of vectors from the user, one per prediction.

    Inputs x make a conditional goodness-of-fit test; an embedding of the predictions makes a
    calibration test.

    Args:
        values: Vectors, [n, q].

    Cost: O(q) per pair.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 100))
        >>> predictions, divergence = dist.Normal(centers, 1.0), jaxcal.divergences.Vectors(centers)
        >>> jaxcal.skce_test(1, predictions, centers + 0.8 + noise, divergence=divergence).verdict
        'rejected'
    """

    values: Float[Array, "n q"] = eqx.field(converter=_vectors)
    needs_nodes: bool = eqx.field(default=False, static=True, init=False)

    def features(
        self, key: Key, predictions: PredictionsLike, at_nodes: NodeScores | None
    ) -> Features:
        return self.values


def check_rows(divergence: DivergenceLike, n: int) -> None:
    """Raise ValueError if `Vectors` do not have one row per prediction."""
    if isinstance(divergence, Vectors) and (rows := divergence.values.shape[0]) != n:
        raise ValueError(
            f"divergence: wanted Vectors with values of n={n} rows, one per prediction, got {rows}"
        )


def gram_block(
    kernel: KernelLike, divergence: DivergenceLike, rows: Features, cols: Features
) -> Array:
    """Return the kernel matrix [r, c] of predictions from their features.

    One matrix product for radial kernels; other kernels take the feature vectors, as in
    `jaxcal.kernels.points.matrix`.
    """
    radial = points.profile(kernel)
    if radial is not None:
        return radial(divergence.squared_distances(rows, cols))
    if is_euclidean(divergence):
        return points.matrix(kernel, divergence.vectors(rows), divergence.vectors(cols))
    raise TypeError(
        f"{type(divergence).__name__} is a divergence without feature vectors: the kernel on it "
        f"must be radial with one bandwidth, got {kernel}"
    )


def gram_diagonal(
    kernel: KernelLike, divergence: DivergenceLike, features: Features
) -> Float[Array, " n"]:
    """Return the kernel of each prediction with itself, at distance exactly 0."""
    radial = points.profile(kernel)
    if radial is not None:
        none = jax.eval_shape(divergence.paired, features, features)
        return jnp.broadcast_to(radial(jnp.zeros((), none.dtype)), none.shape)

    def one(single: Features) -> Array:
        alone = jax.tree.map(lambda leaf: leaf[None], single)
        return gram_block(kernel, divergence, alone, alone)[0, 0]

    return jax.vmap(one)(features)
