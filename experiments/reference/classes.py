"""Calibration errors of whole probability vectors, by a conditional that is known or binned."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.measures.classes import Cells, cells
from jaxcal.numerics import largest, safe_sqrt
from jaxcal.read import checks
from jaxcal.typing import Scalar

Distance = Callable[[Float[Array, " m"], Float[Array, " m"]], Scalar]


def absolute(p: Float[Array, " m"], q: Float[Array, " m"]) -> Scalar:
    """Sum of absolute differences of two probability vectors, twice `total_variation`."""
    return jnp.sum(jnp.abs(p - q))


def total_variation(p: Float[Array, " m"], q: Float[Array, " m"]) -> Scalar:
    """Half the sum of absolute differences of two probability vectors."""
    return absolute(p, q) / 2


def squared_euclidean(p: Float[Array, " m"], q: Float[Array, " m"]) -> Scalar:
    """Sum of squared differences: the squared MMD for classes that agree or do not."""
    return jnp.sum((p - q) ** 2)


def euclidean(p: Float[Array, " m"], q: Float[Array, " m"]) -> Scalar:
    """Euclidean distance of two probability vectors; its gradient is 0 where the two agree."""
    return safe_sqrt(squared_euclidean(p, q))


class CanonicalError(NamedTuple):
    """Distances, over the predictions P, from P to P(Y | P): the mean and the largest, each []."""

    mean: Scalar
    largest: Scalar


def canonical_error(
    predictions: Any,
    targets: Any = None,
    *,
    conditional: Any = None,
    distance: Distance = total_variation,
    bins: int = 15,
) -> CanonicalError:
    """Mean and maximum of d(P(Y | P), P) over the predictions P [n, m], whole vectors compared.

    P(Y | P) is the ``conditional`` [n, m] where it is known, or the frequencies of the targets [n]
    in the cells of a grid of ``bins`` intervals for each class probability, whose bias does not
    vanish with n. Cost O(n m + n log n). Source: Widmann et al. (2021), Definition B.1.
    """
    p = checks.probabilities(predictions, "predictions", binary=True)
    if (conditional is None) == (targets is None):
        raise ValueError("give either conditional= (known) or targets (then it is binned)")
    if conditional is not None:
        q = checks.probabilities(conditional, "conditional")
        if q.shape != p.shape:
            raise ValueError(f"conditional: wanted the shape {p.shape}, got {q.shape}")
        by_cell = Cells(jnp.full(len(p), 1 / len(p), p.dtype), p, q)
    else:
        by_cell = cells(p, targets, bins=bins)
    gaps = jax.vmap(distance)(by_cell.observed, by_cell.predicted)
    used = by_cell.weights > 0
    # a distance may be NaN between the zeros of an unused cell
    return CanonicalError(
        jnp.sum(jnp.where(used, by_cell.weights * gaps, 0)),
        largest(jnp.where(used, gaps, -jnp.inf)),
    )
