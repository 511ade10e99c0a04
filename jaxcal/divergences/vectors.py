"""Compute distances of vectors and of class probabilities, and kernel matrices of divergences.

A prediction over classes is a row of probabilities, numpyro's ``Categorical`` (by probabilities or
logits) or ``Bernoulli`` with classes (0, 1). For other embeddings use `jaxcal.divergences.Vectors`.
"""

from functools import reduce
from typing import Any, ClassVar, NamedTuple, Protocol, TypeGuard, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxcal.kernels import points
from jaxcal.numerics import middle
from jaxcal.read import checks, convert
from jaxcal.read.families import Classes, distribution_of
from jaxcal.read.sampling import check_batch
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

SOME = 32  # 32 to 63 vectors determine what is subtracted from all


class NodeScores(NamedTuple):
    """Scores ``values`` [n, m, d] of n predictions at ``nodes`` [m, d] (None if not provided)."""

    nodes: Nodes | None
    values: Float[Array, "n m d"]


@runtime_checkable
class VectorDivergence(Divergence, Protocol):
    """A divergence whose method ``vectors`` returns one vector per prediction, [n, q]. Attribute
    ``euclidean = True`` states that the divergence is the Euclidean distance of these vectors."""

    def vectors(self, features: Features, /) -> Array: ...


class _Euclidean:
    """Base class of Euclidean distances; the features are the vectors [n, q]."""

    euclidean: ClassVar[bool] = True

    def vectors(self, features: PyTree) -> Array:
        return features

    def center(self, features: PyTree) -> Array | None:
        """Return what tests subtract from the vectors: their median, [1, q]."""
        return _median(features)

    def squared_distances(self, rows: Array, cols: Array) -> Array:
        return points.squared_distances(rows, cols)

    def separations(self, vectors: Array) -> Array:
        """Return squared distances of all pairs, [n, n], exactly 0 for equal vectors."""
        if vectors.shape[1] > points.FEW:  # a common offset makes matrix products inaccurate
            vectors = vectors - _median(vectors)
        return points.separations(vectors, vectors)

    def paired(self, rows: Array, cols: Array) -> Array:
        return jnp.sum((rows - cols) ** 2, axis=-1)


def _median(vectors: Array) -> Array:
    """Return the median of at most 63 of the vectors, [1, q]; 0 in columns where it is not finite.
    Unlike the mean, it hardly changes if a few vectors (scores of narrow predictions) are large."""
    some = jax.lax.stop_gradient(vectors[:: max(vectors.shape[0] // SOME, 1)])
    at = middle(some)
    return jnp.where(jnp.isfinite(at), at, 0)[None]


def is_euclidean(divergence: DivergenceLike) -> TypeGuard[VectorDivergence]:
    """Return whether the attribute ``euclidean`` is True, see `VectorDivergence`."""
    return getattr(divergence, "euclidean", False)


def _vectors(value: ArrayLike) -> Array:
    values = convert.floats(value, "values")
    values = values[:, None] if values.ndim == 1 else values
    if values.ndim != 2 or values.shape[1] < 1:
        raise ValueError(f"values: wanted vectors [n, q], got shape {values.shape}")
    return values


class Vectors(_Euclidean, eqx.Module):
    """Euclidean distance of vectors from the user, one per prediction.

    With the inputs x of the model as vectors, a test tests conditional goodness of fit; with an
    embedding of the predictions, it tests calibration.

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

    values: Float[Array, "n q"]
    needs_nodes: bool = eqx.field(default=False, static=True, init=False)

    def __init__(self, values: ArrayLike):
        self.values, self.needs_nodes = _vectors(values), False
        convert.remember(self, values=values)

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

    Radial kernels use ``divergence.squared_distances``; others use the vectors of a Euclidean
    distance (`jaxcal.kernels.points.matrix`). TypeError for other divergences.
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
    """Return the kernel of each prediction with itself, computed at distance exactly 0."""
    radial = points.profile(kernel)
    if radial is not None:
        like = jax.eval_shape(divergence.paired, features, features)
        return jnp.broadcast_to(radial(jnp.zeros((), like.dtype)), like.shape)

    def one(single: Features) -> Array:
        alone = jax.tree.map(lambda leaf: leaf[None], single)
        return gram_block(kernel, divergence, alone, alone)[0, 0]

    return jax.vmap(one)(features)


AT_ONCE = 16  # classes per step: enough to use a core fully, few enough to compile quickly


def class_probabilities(predictions: Any) -> Float[Array, "n m"]:
    """Return class probabilities [n, m] of n predictions over m classes 0, .., m - 1.

    TypeError if predictions are not over classes; ValueError for wrong shapes and, outside of jit,
    for rows that are no probabilities.
    """
    if hasattr(predictions, "batch_shape"):
        check_batch(predictions)
        if isinstance(classes := distribution_of(predictions), Classes):
            return checks.probabilities(classes.probabilities)
    if hasattr(predictions, "log_prob") or hasattr(predictions, "scores"):
        raise TypeError(
            f"predictions: this distance compares predictions over classes: probabilities [n, m], "
            f"numpyro Categorical or Bernoulli; got {type(predictions).__name__}"
        )
    return checks.probabilities(predictions)


def absolute_gaps(rows: Float[Array, "r m"], cols: Float[Array, "c m"]) -> Float[Array, "r c"]:
    """Return sums over m classes of |row - col|, [r, c], without an array of size r c m."""

    def some(left: Float[Array, "k r"], right: Float[Array, "k c"]) -> Array:
        gaps = [jnp.abs(p[:, None] - q[None]) for p, q in zip(left, right, strict=True)]
        return reduce(jnp.add, gaps)

    m, left, right = rows.shape[1], rows.T, cols.T
    if m <= AT_ONCE:
        # the exact product stores a transposed copy: reading columns of rows is four times slower
        eye = jnp.eye(m, dtype=rows.dtype)
        return some(*(jnp.matmul(eye, side, precision="highest") for side in (left, right)))

    @jax.checkpoint  # the backward pass recomputes the terms instead of storing m blocks
    def step(total: Array, part: tuple[Array, Array]) -> tuple[Array, None]:
        return total + some(*part), None

    full = m - m % AT_ONCE
    parts = tuple(side[:full].reshape(-1, AT_ONCE, side.shape[1]) for side in (left, right))
    total, _ = jax.lax.scan(step, jnp.zeros((len(rows), len(cols)), rows.dtype), parts)
    return total + some(left[full:], right[full:]) if full < m else total


class TotalVariation(eqx.Module):
    r"""Total variation distance :math:`\frac12 \sum_k |p_k - q_k|` of class probabilities.

    On this distance `jaxcal.kernels.Laplace` is :math:`\exp(-TV / l)`, a positive definite kernel;
    ``Gaussian`` need not be positive definite.

    Cost: O(m) per pair for m classes, without a matrix product; memory for r rows and c columns
    O(r c + m (r + c)).

    Source: Widmann et al. (2019), their kernel on predictions; Widmann et al. (2021), App. E.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> predictions = jax.nn.softmax(jax.random.normal(jax.random.key(0), (100, 3)))
        >>> divergence, kernel = jaxcal.divergences.TotalVariation(), jaxcal.kernels.Laplace()
        >>> jaxcal.skce_test(
        ...     1, predictions, jnp.full(100, 2), divergence=divergence, prediction_kernel=kernel
        ... ).verdict
        'rejected'
    """

    needs_nodes: bool = eqx.field(default=False, static=True, init=False)

    def features(
        self, key: Key, predictions: PredictionsLike, at_nodes: NodeScores | None
    ) -> Features:
        return class_probabilities(predictions)

    def vectors(self, features: Array) -> Float[Array, "n m"]:
        return features

    def squared_distances(self, rows: Array, cols: Array) -> Float[Array, "r c"]:
        return (absolute_gaps(rows, cols) / 2) ** 2

    def separations(self, features: Array) -> Float[Array, "n n"]:
        """Return `squared_distances` of all pairs, which are exactly 0 for equal predictions."""
        return self.squared_distances(features, features)

    def paired(self, rows: Array, cols: Array) -> Float[Array, " r"]:
        return (jnp.sum(jnp.abs(rows - cols), axis=-1) / 2) ** 2


class Euclidean(_Euclidean, eqx.Module):
    r"""Euclidean distance :math:`\|p - q\|_2` of class probabilities.

    Kernels of `jaxcal.kernels` on this distance are positive definite. Up to 16 classes are
    subtracted one by one, so equal predictions have distance exactly 0; for more classes one matrix
    product is used, with errors of about eps^1/2 in small distances.

    Cost: O(m) per pair for m classes.

    Source: Widmann et al. (2021), App. E.

    Example:
        >>> import jaxcal
        >>> divergence = jaxcal.divergences.Euclidean()  # an option of `jaxcal.skce_test`
    """

    needs_nodes: bool = eqx.field(default=False, static=True, init=False)

    def features(
        self, key: Key, predictions: PredictionsLike, at_nodes: NodeScores | None
    ) -> Features:
        return class_probabilities(predictions)

    def center(self, features: Features) -> None:
        """Return None: tests do not subtract a mean from probabilities."""

    def squared_distances(self, rows: Array, cols: Array) -> Float[Array, "r c"]:
        few = rows.shape[1] <= points.FEW
        return points.separations(rows, cols) if few else super().squared_distances(rows, cols)
