"""Class probabilities as predictions, and distances between them.

A prediction is a row of probabilities, numpyro's ``Categorical`` (by probabilities or logits) or
``Bernoulli`` with classes (0, 1). For other embeddings use `jaxcal.divergences.Vectors`.
"""

from functools import reduce
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.divergences.vectors import NodeScores, _Euclidean
from jaxcal.kernels import points
from jaxcal.read import checks
from jaxcal.read.sampling import check_batch
from jaxcal.typing import Features, Key, PredictionsLike

AT_ONCE = 16  # classes per step: enough to use a core fully, few enough to compile quickly


def class_probabilities(predictions: Any) -> Float[Array, "n m"]:
    """Return class probabilities [n, m] of n predictions over m classes 0, .., m - 1.

    TypeError if predictions are not over classes; ValueError for wrong shapes and, outside of jit,
    for rows that are no probabilities.
    """
    base = predictions
    while type(base).__name__ in ("ExpandedDistribution", "MaskedDistribution"):
        base = base.base_dist
    kind = type(base).__name__
    if kind.startswith(("Categorical", "Bernoulli")) and hasattr(predictions, "batch_shape"):
        check_batch(predictions)
        shape = tuple(predictions.batch_shape)
        if len(shape) != 1:
            raise ValueError(
                f"predictions: wanted a {kind} with batch shape [n], got batch shape {shape}"
            )
        probabilities = jnp.asarray(base.probs)
        if kind.startswith("Bernoulli"):
            probabilities = jnp.broadcast_to(probabilities, shape)
            probabilities = jnp.stack([1 - probabilities, probabilities], axis=-1)
        return checks.probabilities(
            jnp.broadcast_to(probabilities, (*shape, probabilities.shape[-1]))
        )
    if hasattr(predictions, "log_prob") or hasattr(predictions, "scores"):
        raise TypeError(
            f"predictions: this distance compares predictions over classes: probabilities [n, m], "
            f"numpyro Categorical or Bernoulli; got {type(predictions).__name__}"
        )
    return checks.probabilities(predictions)


def absolute_gaps(rows: Float[Array, "r m"], cols: Float[Array, "c m"]) -> Float[Array, "r c"]:
    """Return the sum over classes of |row - col|, [r, c], without an array [r, c, m]."""

    def some(left: Float[Array, "k r"], right: Float[Array, "k c"]) -> Array:
        gaps = [jnp.abs(p[:, None] - q[None]) for p, q in zip(left, right, strict=True)]
        return reduce(jnp.add, gaps)

    m, left, right = rows.shape[1], rows.T, cols.T
    if m <= AT_ONCE:
        # an exact product has a transposed layout: reading across its rows is four times slower
        eye = jnp.eye(m, dtype=rows.dtype)
        return some(*(jnp.matmul(eye, side, precision="highest") for side in (left, right)))

    @jax.checkpoint  # the backward pass recomputes the terms instead of storing m blocks
    def step(total: Array, part: tuple[Array, Array]) -> tuple[Array, None]:
        return total + some(*part), None

    whole = m - m % AT_ONCE
    parts = tuple(side[:whole].reshape(-1, AT_ONCE, side.shape[1]) for side in (left, right))
    total, _ = jax.lax.scan(step, jnp.zeros((len(rows), len(cols)), rows.dtype), parts)
    return total + some(left[whole:], right[whole:]) if whole < m else total


class TotalVariation(eqx.Module):
    r"""Total variation distance :math:`\frac12 \sum_k |p_k - q_k|` of class probabilities.

    `jaxcal.kernels.Laplace` on it is :math:`\exp(-TV / l)`, which is positive definite;
    ``Gaussian`` on it need not be.

    Cost: O(m) per pair for m classes, without a matrix product; memory for r rows and c columns
    O(r c + m (r + c)).

    Source: the class kernel of Widmann et al. (2019), as in Widmann et al. (2021), App. E.

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

    def center(self, features: Features) -> None:
        """Return None: probabilities have no common offset."""

    def vectors(self, features: Array) -> Float[Array, "n m"]:
        return features

    def squared_distances(self, rows: Array, cols: Array) -> Float[Array, "r c"]:
        return (absolute_gaps(rows, cols) / 2) ** 2

    def separations(self, rows: Array, cols: Array) -> Float[Array, "r c"]:
        """Return squared distances, exactly 0 for predictions equal up to rounding."""
        return self.squared_distances(rows, cols)

    def paired(self, rows: Array, cols: Array) -> Float[Array, " r"]:
        return (jnp.sum(jnp.abs(rows - cols), axis=-1) / 2) ** 2


class Euclidean(_Euclidean, eqx.Module):
    r"""Euclidean distance :math:`\|p - q\|_2` of class probabilities.

    Every radial kernel on it is positive definite. Up to 16 classes are subtracted one by one, so
    equal predictions have distance exactly 0; more use one matrix product, with errors of about
    eps^1/2 in small distances.

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
        """Return None: probabilities have no common offset."""

    def squared_distances(self, rows: Array, cols: Array) -> Float[Array, "r c"]:
        few = rows.shape[1] <= points.FEW
        return points.separations(rows, cols) if few else super().squared_distances(rows, cols)
