"""Calibration errors of whole probability vectors, by a conditional that is known or binned."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxcal.numerics import largest, safe_sqrt
from jaxcal.read import checks, convert
from jaxcal.typing import ArrayLike, Scalar

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


class Cells(NamedTuple):
    """Predictions that fell into the same cell of a grid: at most n cells, unused ones weigh 0.

    ``weights`` [c]: share of observations; ``predicted`` and ``observed`` [c, m]: mean prediction
    and class frequencies inside.
    """

    weights: Float[Array, " c"]
    predicted: Float[Array, "c m"]
    observed: Float[Array, "c m"]


def cells(predictions: ArrayLike, targets: ArrayLike, *, bins: int = 15) -> Cells:
    """Group predictions by a grid of ``bins`` equal intervals for each class probability.

    Intervals are half open, the last one closed. Cost O(n m + n log n), for any number of classes:
    there is no table of bins^m. With many classes most cells hold one observation, and a cell of
    one is as wrong as can be: group the reduced problem of `confidences` then.
    """
    bins = convert.integer(bins, "bins")
    p = checks.probabilities(predictions, "predictions", binary=True)
    return _cells(p, checks.labels(targets, p.shape[0], p.shape[1], "targets"), bins)


@partial(jax.jit, static_argnums=2)
def _cells(p: Float[Array, "n m"], ys: Int[Array, " n"], bins: int) -> Cells:
    n, m = p.shape
    place = cell_numbers(p, bins)
    counts = jnp.zeros(n, p.dtype).at[place].add(1)
    safe = jnp.maximum(counts, 1)[:, None]
    predicted = jnp.zeros((n, m), p.dtype).at[place].add(p) / safe
    observed = jnp.zeros((n, m), p.dtype).at[place, ys].add(1) / safe
    return Cells(counts / n, predicted, observed)


def cell_numbers(p: Float[Array, "n m"], bins: int) -> Int[Array, " n"]:
    """The occupied cell of each prediction, counted from 0.

    At most ``bins`` entries of a probability vector are outside the first interval, so these
    (class, interval) pairs, sorted, name the cell exactly.
    """
    n, m = p.shape
    values, classes = jax.lax.top_k(jax.lax.stop_gradient(p), min(bins, m))
    places = jnp.minimum(jnp.floor(values * bins), bins - 1).astype(jnp.int32)
    codes = jnp.sort(jnp.where(places > 0, classes.astype(jnp.int32) * bins + places, -1), axis=1)
    order = jnp.lexsort(codes.T)
    ranked = codes[order]
    new = jnp.any(ranked[1:] != ranked[:-1], axis=1).astype(jnp.int32)
    numbers = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(new, dtype=jnp.int32)])
    return jnp.zeros(n, jnp.int32).at[order].set(numbers)
