"""Classes: calibration errors from a conditional distribution that is known or binned."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int

from jaxcal import checks
from jaxcal.measures.reliability import reliability
from jaxcal.numerics import largest, safe_sqrt
from jaxcal.typing import ArrayLike, Scalar


def total_variation(p: Float[Array, " m"], q: Float[Array, " m"]) -> Scalar:
    """Total variation distance of two probability vectors: half the sum of absolute differences.

    Args:
        p: Probabilities, [m].
        q: Probabilities, [m].

    Returns:
        The distance, [].

    Raises:
        ValueError: The vectors differ in length.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> p, q = jnp.array([0.5, 0.5]), jnp.array([0.75, 0.25])
        >>> float(jaxcal.measures.total_variation(p, q))
        0.25
    """
    return absolute(p, q) / 2


def squared_euclidean(p: Float[Array, " m"], q: Float[Array, " m"]) -> Scalar:
    """Squared Euclidean distance of two probability vectors: the sum of squared differences.

    Args:
        p: Probabilities, [m].
        q: Probabilities, [m].

    Returns:
        The squared distance, [].

    Raises:
        ValueError: The vectors differ in length.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> p, q = jnp.array([0.5, 0.5]), jnp.array([0.75, 0.25])
        >>> float(jaxcal.measures.squared_euclidean(p, q))
        0.125
    """
    p, q = _two(p, q)
    return jnp.sum((p - q) ** 2)


def absolute(p: Float[Array, " m"], q: Float[Array, " m"]) -> Scalar:
    """Sum of absolute differences of two probability vectors, twice `total_variation`.

    Args:
        p: Probabilities, [m].
        q: Probabilities, [m].

    Returns:
        The distance, [].

    Raises:
        ValueError: The vectors differ in length.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> p, q = jnp.array([0.5, 0.5]), jnp.array([0.75, 0.25])
        >>> float(jaxcal.measures.absolute(p, q))
        0.5
    """
    p, q = _two(p, q)
    return jnp.sum(jnp.abs(p - q))


def euclidean(p: Float[Array, " m"], q: Float[Array, " m"]) -> Scalar:
    """Euclidean distance of two probability vectors, the root of `squared_euclidean`.

    Its gradient is 0 where the two agree.

    Args:
        p: Probabilities, [m].
        q: Probabilities, [m].

    Returns:
        The distance, [].

    Raises:
        ValueError: The vectors differ in length.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> p, q = jnp.array([0.5, 0.5]), jnp.array([0.75, 0.25])
        >>> round(float(jaxcal.measures.euclidean(p, q)), 3)
        0.354
    """
    return safe_sqrt(squared_euclidean(p, q))


def _two(p: ArrayLike, q: ArrayLike) -> tuple[Array, Array]:
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


def confidences(
    predictions: ArrayLike, targets: ArrayLike
) -> tuple[Float[Array, " n"], Bool[Array, " n"]]:
    """The confidence in the most likely class, and whether that class is the target.

    Confidence calibration asks that P(correct | confidence) = confidence, a binary problem.

    Args:
        predictions: Class probabilities, [n, m], or probabilities of class 1, [n].
        targets: Classes 0, .., m - 1, [n].

    Returns:
        The confidences max p, [n], and whether the most likely class is the target, [n]. Of equal
        probabilities the first counts.

    Raises:
        ValueError: Shapes, probabilities or classes are wrong; the message names the argument.
        TypeError: Targets are not integers.

    Source: Widmann et al. (2021), Section 2.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> predictions = jnp.array([[0.75, 0.25], [0.5, 0.5]])
        >>> confidence, correct = jaxcal.measures.confidences(predictions, jnp.array([0, 1]))
        >>> confidence.tolist(), correct.tolist()
        ([0.75, 0.5], [True, False])
    """
    p = checks.probabilities(predictions, "predictions", binary=True)
    ys = checks.labels(targets, p.shape[0], p.shape[1], "targets")
    return largest(p, axis=1), jnp.argmax(p, axis=1).astype(ys.dtype) == ys


def cells(predictions: ArrayLike, targets: ArrayLike, *, bins: int = 15) -> Cells:
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
    """Distances, over the predictions P, from P to P(Y | P).

    Attributes:
        mean: Mean distance, [].
        largest: Largest distance, [].

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> predictions = jnp.array([[0.75, 0.25]] * 4)
        >>> error = jaxcal.measures.canonical_error(predictions, jnp.array([0, 0, 1, 1]), bins=1)
        >>> float(error.mean), float(error.largest)
        (0.25, 0.25)
    """

    mean: Scalar
    largest: Scalar


def canonical_error(
    predictions: ArrayLike,
    targets: ArrayLike | None = None,
    *,
    conditional: ArrayLike | None = None,
    distance: Distance = total_variation,
    bins: int = 15,
) -> CanonicalError:
    """Mean and maximum of :math:`d(P(Y | P), P)` over the predictions P, whole vectors compared.

    The ECE of practice, of the most likely class alone, is `ece`.

    Args:
        predictions: Class probabilities, [n, m].
        targets: Classes [n], of which frequencies are taken in the cells of a grid. This binned
            estimate has a bias that does not vanish with n for fixed bins.
        conditional: Instead of ``targets``, the class probabilities [n, m] that hold given each
            prediction.
        distance: Distance d of two probability vectors: `total_variation`, `absolute`,
            `euclidean`, `squared_euclidean` (the squared MMD for classes that agree or do not),
            or a function of your own.
        bins: Number of intervals of equal width for each class probability.

    Returns:
        `CanonicalError`.

    Raises:
        ValueError: Not exactly one of ``targets`` and ``conditional`` is given; or shapes,
            probabilities or classes are wrong, and the message names the argument.

    Cost: O(n m + n log n), for any number of classes.

    Source: Widmann et al. (2021), Definition B.1.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> predictions = jnp.array([[0.75, 0.25], [0.25, 0.75]])
        >>> truth = jnp.array([[0.5, 0.5], [0.25, 0.75]])
        >>> error = jaxcal.measures.canonical_error(predictions, conditional=truth)
        >>> float(error.mean), float(error.largest)
        (0.125, 0.25)
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
        assert targets is not None
        by_cell = cells(p, targets, bins=bins)
    gaps = jax.vmap(_measured(distance))(by_cell.observed, by_cell.predicted)
    used = by_cell.weights > 0
    # a distance may be NaN between the zeros of an unused cell
    return CanonicalError(
        jnp.sum(jnp.where(used, by_cell.weights * gaps, 0)),
        largest(jnp.where(used, gaps, -jnp.inf)),
    )


def _measured(distance: Distance) -> Distance:
    """The distance, with an error that says so where it returns no number."""
    checks.function(distance, "distance", "two probability vectors")

    def call(p: Array, q: Array) -> Array:
        return checks.returned(distance(p, q), "distance", "two probability vectors")

    return call


def ece(predictions: ArrayLike, targets: ArrayLike, *, bins: int = 15) -> Scalar:
    r"""Expected calibration error (ECE) of the most likely class.

    :math:`\sum_b \frac{n_b}{n} |accuracy_b - confidence_b|` over bins of equal width of the
    largest probability. Biased upwards where bins hold few observations.

    Args:
        predictions: Class probabilities, [n, m], or probabilities of class 1, [n].
        targets: Classes 0, .., m - 1, [n].
        bins: Number of bins. `reliability` gives them one by one, with intervals.

    Returns:
        The error, [].

    Raises:
        ValueError: Shapes, probabilities or classes are wrong; the message names the argument.
        TypeError: Targets are not integers.

    Cost: O(n (m + log bins)).

    Source: Guo et al. (2017), Section 2.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> predictions = jnp.array([[0.8, 0.2]] * 4)  # right in 2 of 4 cases
        >>> round(float(jaxcal.measures.ece(predictions, jnp.array([0, 0, 1, 1]))), 3)
        0.3
    """
    return reliability(*confidences(predictions, targets), bins=bins).ece


def mce(predictions: ArrayLike, targets: ArrayLike, *, bins: int = 15) -> Scalar:
    """Maximum calibration error (MCE): the largest gap of the bins of `ece`.

    Args:
        predictions: Class probabilities, [n, m], or probabilities of class 1, [n].
        targets: Classes 0, .., m - 1, [n].
        bins: Number of bins.

    Returns:
        The error, [].

    Raises:
        ValueError: Shapes, probabilities or classes are wrong; the message names the argument.
        TypeError: Targets are not integers.

    Cost: O(n (m + log bins)).

    Source: Guo et al. (2017), Section 2.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> predictions = jnp.array([[0.8, 0.2], [0.8, 0.2], [0.5, 0.5]])
        >>> round(float(jaxcal.measures.mce(predictions, jnp.array([0, 1, 0]))), 3)
        0.5
    """
    return reliability(*confidences(predictions, targets), bins=bins).mce
