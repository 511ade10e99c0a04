"""Classes: calibration errors from a conditional distribution that is known or binned."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxcal import checks
from jaxcal.measures.reliability import reliability
from jaxcal.numerics import largest, safe_sqrt
from jaxcal.typing import Scalar


def total_variation(p: Float[Array, " m"], q: Float[Array, " m"]) -> Scalar:
    """Half the sum of absolute differences."""
    return absolute(p, q) / 2


def squared_euclidean(p: Float[Array, " m"], q: Float[Array, " m"]) -> Scalar:
    """Sum of squared differences."""
    p, q = _two(p, q)
    return jnp.sum((p - q) ** 2)


def absolute(p: Float[Array, " m"], q: Float[Array, " m"]) -> Scalar:
    """Sum of absolute differences, twice `total_variation`."""
    p, q = _two(p, q)
    return jnp.sum(jnp.abs(p - q))


def euclidean(p: Float[Array, " m"], q: Float[Array, " m"]) -> Scalar:
    """Root of `squared_euclidean`; its gradient is 0 where the two agree."""
    return safe_sqrt(squared_euclidean(p, q))


def _two(p: Any, q: Any) -> tuple[Array, Array]:
    p, q = checks.floats(p, "p"), checks.floats(q, "q")
    if p.shape != q.shape:
        raise ValueError(f"p, q: wanted vectors of one length, got {p.shape} and {q.shape}")
    return p, q


Distance = Callable[[Array, Array], Array]


class Cells(NamedTuple):
    """Predictions that fell into the same cell of a grid: at most n cells, unused ones weigh 0.

    ``weights`` [c]: share of observations; ``predicted`` and ``observed`` [c, m]: mean prediction
    and class frequencies inside.
    """

    weights: Float[Array, " c"]
    predicted: Float[Array, "c m"]
    observed: Float[Array, "c m"]


def confidences(predictions: Any, targets: Any) -> tuple[Float[Array, " n"], Bool[Array, " n"]]:
    """Confidence max p and whether the most likely class is the true one, [n] each.

    Confidence calibration asks that P(correct | confidence) = confidence: the binary problem
    of Widmann et al. (2021), Section 2. Of equal probabilities the first counts.
    """
    p = checks.probabilities(predictions, "predictions", binary=True)
    ys = checks.labels(targets, p.shape[0], p.shape[1], "targets")
    return largest(p, axis=1), jnp.argmax(p, axis=1).astype(ys.dtype) == ys


def cells(predictions: Any, targets: Any, *, bins: int = 15) -> Cells:
    """Group predictions by a grid of ``bins`` equal intervals for each class probability.

    Intervals are half open, the last one closed. Cost O(n m + n log n), for any number of classes:
    there is no table of bins^m. With many classes most cells hold one observation, and a cell of
    one is as wrong as can be: group the reduced problem of `confidences` then.
    """
    bins = checks.integer(bins, "bins")
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


class CanonicalError(NamedTuple):
    """``mean`` and ``largest`` distance, over the predictions P, from P to P(Y | P)."""

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
    r"""Mean and maximum of :math:`d(P(Y | P), P)` over the predictions P, whole vectors compared.

    The ECE of practice, of the most likely class alone, is `ece`.

    ``predictions`` [n, m]. Either ``conditional`` [n, m], the class probabilities that hold given
    each prediction, or ``targets`` [n], of which class frequencies are taken in `cells`. The binned
    estimate has a bias that does not vanish with n for fixed bins. ``distance`` of two
    probability vectors: `total_variation`, `absolute`, `euclidean`, `squared_euclidean` (the
    squared MMD for classes that agree or do not) or your own.
    Source: Widmann et al. (2021), Definition B.1.
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
    gaps = jax.vmap(_measured(distance))(by_cell.observed, by_cell.predicted)
    used = by_cell.weights > 0
    # a distance may be NaN between the zeros of an unused cell
    return CanonicalError(
        jnp.sum(jnp.where(used, by_cell.weights * gaps, 0)),
        largest(jnp.where(used, gaps, -jnp.inf)),
    )


def _measured(distance: Any) -> Distance:
    """The distance, with an error that says so where it returns no number."""
    checks.function(distance, "distance", "two probability vectors")

    def call(p: Array, q: Array) -> Array:
        return checks.returned(distance(p, q), "distance", "two probability vectors")

    return call


def ece(predictions: Any, targets: Any, *, bins: int = 15) -> Scalar:
    r"""Expected calibration error of the most likely class, [].

    :math:`\sum_b \frac{n_b}{n} |accuracy_b - confidence_b|` over ``bins`` of equal width of the
    largest probability. ``predictions`` [n, m], ``targets`` [n] classes from 0. Biased upwards
    where bins hold few. The bins, with intervals, are in `reliability`. Cost O(n (m + log bins)).
    Source: Guo et al. (2017), Section 2.
    """
    return reliability(*confidences(predictions, targets), bins=bins).ece


def mce(predictions: Any, targets: Any, *, bins: int = 15) -> Scalar:
    """Maximum calibration error, []: the largest gap of the bins of `ece`."""
    return reliability(*confidences(predictions, targets), bins=bins).mce
