r"""Check and sort the input of every measure: predictions v of P(y = 1), labels y, weights w.

Weights have sum 1. Most measures need only the weighted residuals :math:`\rho_i = w_i (y_i - v_i)`,
summed over equal predictions. Other measures need the mass of label 0 and that of label 1 at each
different prediction (`Atoms`). Sorts and cumulative sums compile and run fast on a CPU.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int, PyTree

from jaxcal.read import checks, convert
from jaxcal.typing import ArrayLike, Vector

LEAST = 2**14  # least length of an array that a compiled program sorts by a call of NumPy


def order(x: Float[Array, " n"]) -> Int[Array, " n"]:
    """Return the indices that sort ``x`` [n] >= 0, stably, with NaN last.

    Works under jit, vmap and differentiation (with derivative 0). On a CPU a compiled program
    calls NumPy for 16,384 numbers or more.
    """
    x = jax.lax.stop_gradient(x)
    if jax.default_backend() == "cpu":
        if not isinstance(x, Tracer):
            return jnp.asarray(host_order(np.asarray(x)))
        if x.shape[-1] >= LEAST:
            shape = jax.ShapeDtypeStruct(x.shape, np.int32)
            return jax.pure_callback(_orders, shape, x, vmap_method="broadcast_all")
    return jnp.argsort(x).astype(jnp.int32)


def ascending(x: Float[Array, " n"]) -> Float[Array, " n"]:
    """Return ``x`` [n] sorted, NaN last; derivatives are 0. Three times as fast as `order`."""
    x = jax.lax.stop_gradient(x)
    if jax.default_backend() == "cpu":
        if not isinstance(x, Tracer):
            return jnp.asarray(np.sort(np.asarray(x)))
        if x.shape[-1] >= LEAST:
            shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
            return jax.pure_callback(np.sort, shape, x, vmap_method="broadcast_all")
    return jnp.sort(x)


def _orders(x: ArrayLike) -> Int[np.ndarray, "..."]:
    """Return the indices that sort each row of x. Uses NumPy, as callbacks must not call JAX."""
    x = np.asarray(x)
    rows = x.reshape(-1, x.shape[-1])
    return np.stack([host_order(row) for row in rows]).reshape(x.shape)


def host_order(x: Float[np.ndarray, " n"]) -> Int[np.ndarray, " n"]:
    """Return the indices that sort ``x`` [n] >= 0, NaN last, by NumPy's fast sort of integers.

    Non-negative floats are in the same order as their bits, read as integers. For each number, an
    integer of 64 bits is made of its leading bits, followed by its index. Sorting these integers
    sorts the numbers. For float32 all bits fit. For float64 only the first 64 - log2(n) bits that
    differ within the range of the numbers fit; if numbers are then in the wrong order, a second,
    stable sort corrects it.
    """
    word = np.uint32 if x.dtype == np.float32 else np.uint64
    nonnegative = np.iinfo(word).max >> 1
    keys = (x.view(word) & word(nonnegative)).astype(np.uint64, copy=False)  # -0.0 is 0.0
    least = keys.min()
    place_bits = (x.size - 1).bit_length()
    over = int(keys.max() - least).bit_length() + place_bits - 64
    keys -= least
    if over > 0:
        keys >>= np.uint64(over)
    keys <<= np.uint64(place_bits)
    keys |= np.arange(x.size, dtype=np.uint64)
    keys.sort()
    keys &= np.uint64((1 << place_bits) - 1)
    places = keys.astype(np.int32)
    if over > 0:
        ascending = x[places]
        if not np.all(ascending[1:] >= ascending[:-1]):
            places = places[np.argsort(ascending, kind="stable")]
    return places


def prefixes(
    combine: Callable[[PyTree, PyTree], PyTree], elements: PyTree[Array], *, reverse: bool = False
) -> PyTree[Array]:
    """Return inclusive prefixes ``x_0 * .. * x_i`` of ``elements``, a pytree of arrays [n].

    ``combine(earlier, later)`` computes ``earlier * later``; it must be associative and act on
    leaves elementwise. With ``reverse`` the sequence is read from its end. Takes about 2 sqrt(n)
    steps of vectors in a program whose size does not depend on n.
    """
    if reverse:
        flipped = jax.tree.map(lambda leaf: leaf[::-1], elements)
        backward = prefixes(combine, flipped)
        return jax.tree.map(lambda leaf: leaf[::-1], backward)
    n = jax.tree.leaves(elements)[0].shape[0]
    columns = max(1, math.isqrt(n))
    rows = -(-n // columns)

    def fold(leaf: Array) -> Array:
        # padding after the last element does not affect earlier prefixes
        padded = jnp.concatenate([leaf, jnp.broadcast_to(leaf[-1:], (rows * columns - n,))])
        return padded.reshape(rows, columns).T

    folded = jax.tree.map(fold, elements)
    within = _scan(combine, folded)
    totals = _scan(combine, jax.tree.map(lambda leaf: leaf[-1], within))
    before = jax.tree.map(lambda leaf: leaf[None, :-1], totals)
    rest = combine(before, jax.tree.map(lambda leaf: leaf[:, 1:], within))

    def unfold(first: Array, others: Array) -> Array:
        return jnp.concatenate([first[:, :1], others], axis=1).T.reshape(-1)[:n]

    return jax.tree.map(unfold, within, rest)


def sums(x: Array) -> Array:
    """Return cumulative sums, as ``jnp.cumsum``, by a shorter program that compiles faster."""
    return prefixes(jnp.add, x)


def least(x: Array, *, reverse: bool = False) -> Array:
    """Return cumulative minima, from the end if ``reverse``."""
    return prefixes(jnp.minimum, x, reverse=reverse)


def _scan(combine: Callable[[PyTree, PyTree], PyTree], elements: PyTree[Array]) -> PyTree[Array]:
    def step(carry: PyTree, item: PyTree) -> tuple[PyTree, PyTree]:
        total = combine(carry, item)
        return total, total

    first = jax.tree.map(lambda leaf: leaf[0], elements)
    _, later = jax.lax.scan(step, first, jax.tree.map(lambda leaf: leaf[1:], elements))
    return jax.tree.map(lambda a, b: jnp.concatenate([a[None], b]), first, later)


class Binary(NamedTuple):
    """Predictions ``v`` [n] and labels ``y`` [n] (or means of labels) in [0, 1], and weights ``w``
    [n] of sum 1.

    ``labels`` [n]: for grouped data, the number of labels whose mean is y; otherwise None.
    """

    v: Vector
    y: Vector
    w: Vector
    labels: Vector | None = None


class Ordered(NamedTuple):
    """`Binary` data in ascending order of ``v``; ``order`` [n]: original index of each entry."""

    v: Vector
    y: Vector
    w: Vector
    order: Int[Array, " n"]
    labels: Vector | None = None

    @property
    def rho(self) -> Vector:
        """Return weighted residuals w (y - v)."""
        return self.w * (self.y - self.v)

    @property
    def squares(self) -> Vector:
        """Return, for each entry, the sum of the squared weights of its labels."""
        return squares(self.w, self.labels)

    def back(self, values: Array) -> Array:
        """Return ``values`` of the sorted observations in the original order."""
        return jnp.zeros_like(values).at[self.order].set(values, unique_indices=True)


class Atoms(NamedTuple):
    """Distribution of (v, y): distinct ``v`` [m], ascending, with masses ``p0`` of (v, 0) and
    ``p1`` of (v, 1). ``atom`` [n]: index in ``v`` of each observation, in original order. Always m
    = n: if predictions tie, entries of mass 0 at the largest v fill the arrays."""

    v: Float[Any, " m"]
    p0: Float[Any, " m"]
    p1: Float[Any, " m"]
    atom: Int[Any, " n"]

    @property
    def mass(self) -> Float[Any, " m"]:
        """Return P(v = v_i)."""
        return self.p0 + self.p1

    @property
    def rho(self) -> Float[Any, " m"]:
        """Return E[(y - v) 1(v = v_i)]."""
        return self.p1 * (1 - self.v) - self.p0 * self.v


def squares(w: Array, labels: Array | None) -> Array:
    """Return w^2 / labels, the sum of squared weights if labels share w equally; w^2 for None."""
    return w**2 if labels is None else w**2 / jnp.where(labels > 0, labels, 1)


def binary(predictions: Any, targets: Any, weights: Any = None, counts: Any = None) -> Binary:
    """Return checked data with weights of sum 1; ValueError or TypeError names a wrong argument.

    With ``counts`` of labels, ``targets`` are numbers of labels 1, and ``weights`` are per label.
    Values are checked outside of jit only. Under jit, a prediction or label that is NaN or outside
    [0, 1], or a negative weight, makes every prediction and residual NaN.
    """
    v = convert.floats(predictions, "predictions")
    if v.ndim == 2:
        raise ValueError(
            f"predictions: wanted one probability of label 1 an observation, shape [n], got shape "
            f"{v.shape}; classes need notion= of distance_from_calibration, or their "
            f"jaxcal.measures.confidences"
        )
    v = checks.unit(v, "predictions", "probabilities (are these logits or percentages?)")
    if counts is not None:
        return _grouped(v, targets, weights, counts)
    y = convert.array(targets, "targets")
    if y.shape != v.shape:
        raise ValueError(f"targets: wanted one label per observation, {v.shape}, got {y.shape}")
    y = y.astype(np.int32) if y.dtype == bool else y
    y = checks.unit(jnp.asarray(y), "targets", "labels 0 or 1 (or means of such)").astype(v.dtype)
    w = jnp.ones_like(v) if weights is None else _weights(weights, v)
    return _normalized(v, y, w, None)


@jax.jit
def _normalized(v: Array, y: Array, w: Array, labels: Array | None) -> Binary:
    good = jnp.all((v >= 0) & (v <= 1) & (y >= 0) & (y <= 1) & (w >= 0))
    return Binary(jnp.where(good, v, jnp.nan), y, w / jnp.sum(w), labels)


def _weights(value: Any, v: Array) -> Array:
    w = convert.floats(value, "weights").astype(v.dtype)
    if w.shape != v.shape:
        raise ValueError(f"weights: wanted one per observation, {v.shape}, got {w.shape}")
    if not isinstance(w, Tracer):
        values = np.asarray(w)
        if not np.all(np.isfinite(values) & (values >= 0)) or not values.sum() > 0:
            raise ValueError("weights: wanted finite numbers >= 0, not all of them 0")
    return w


def _grouped(v: Array, targets: Any, weights: Any, counts: Any) -> Binary:
    """Return checked grouped data. ``targets``: number of labels 1 per group. ValueError in jit."""
    if any(isinstance(value, Tracer) for value in (v, targets, weights, counts)):
        raise ValueError("counts: numbers of labels are looked at, which works outside of jit only")
    ones, labels = (
        np.asarray(convert.array(value, name))
        for value, name in ((targets, "targets"), (counts, "counts"))
    )
    for values, name in ((ones, "targets"), (labels, "counts")):
        whole = values.dtype.kind in "iuf" and not np.any(values % 1 != 0)
        if values.shape != v.shape or not whole:
            raise ValueError(f"{name}: with counts wanted whole numbers, shape {v.shape}")
    if np.any((ones < 0) | (ones > labels)) or not labels.sum() > 0:
        raise ValueError("targets: with counts wanted numbers of labels 1, from 0 to their count")
    w = 1 if weights is None else np.asarray(_weights(weights, v))
    if not np.sum(labels * w) > 0:
        raise ValueError("weights: wanted one above 0 for a group that has labels")
    parts = ones / np.maximum(labels, 1), labels * w, labels
    return _normalized(v, *(jnp.asarray(part, v.dtype) for part in parts))


def one_by_one(data: Ordered) -> Ordered:
    """Return ungrouped data, one entry per label, with a new ``order``. Outside of jit only."""
    if data.labels is None:
        return data
    v, y, w, labels = (np.asarray(x) for x in (data.v, data.y, data.w, data.labels))
    count = np.round(labels).astype(int)
    place = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
    label = place < np.repeat(np.round(y * labels), count)
    w = np.repeat(w / np.maximum(labels, 1), count)
    v, label, w = (jnp.asarray(part, v.dtype) for part in (np.repeat(v, count), label, w))
    return Ordered(v, label, w, jnp.arange(v.size))


def by_label(data: Ordered) -> Ordered:
    """Split each group into two, its labels 0 and its labels 1; return other data unchanged."""
    if data.labels is None:
        return data
    v, order = jnp.repeat(data.v, 2), jnp.repeat(data.order, 2)
    y = jnp.tile(jnp.arange(2, dtype=v.dtype), data.v.size)
    share = jnp.stack([1 - data.y, data.y], axis=1)
    w, labels = ((x[:, None] * share).reshape(-1) for x in (data.w, data.labels))
    return Ordered(v, y, w, order, jnp.round(labels))  # 1.9999999 would be drawn as 1


def ordered(data: Binary) -> Ordered:
    """Return the data in ascending order of predictions (see `order`)."""
    return _taken(data, order(data.v))


@jax.jit
def _taken(data: Binary, places: Array) -> Ordered:
    labels = None if data.labels is None else data.labels[places]
    return Ordered(data.v[places], data.y[places], data.w[places], places, labels)


@jax.jit
def atoms(data: Binary | Ordered) -> Atoms:
    """Return the distribution of (v, y) with equal predictions merged, padded to n atoms."""
    data = data if isinstance(data, Ordered) else ordered(data)
    n = data.v.size
    v, y, w, order, _ = data
    group = _ties(v)
    first = jnp.full(n, n - 1).at[group].min(jnp.arange(n))
    index = jnp.zeros_like(group).at[order].set(group)
    p0, p1 = (jax.ops.segment_sum(x, group, n) for x in (w * (1 - y), w * y))
    return Atoms(v[first], p0, p1, index)


@jax.jit
def residuals_of_atoms(data: Binary | Ordered) -> Vector:
    """Return ``atoms(data).rho`` [n], with smaller rounding errors if many predictions tie."""
    data = data if isinstance(data, Ordered) else ordered(data)
    return jax.ops.segment_sum(data.rho, _ties(data.v), data.v.size)


def _ties(v: Vector) -> Int[Array, " n"]:
    """Return for each of the ascending ``v`` the number of different values before it, [n]."""
    new = jnp.concatenate([jnp.zeros(1, bool), v[1:] != v[:-1]])
    return sums(new.astype(jnp.int32))


def merged(data: Binary | Ordered) -> tuple[Binary, Int[np.ndarray, " n"] | None]:
    """Merge equal predictions: return grouped data, one group per distinct prediction, and the
    index of the group of each observation, [n].

    Measures of (v, y) do not change. Groups without weight pad the result to a power of two, so
    that compiled programs are shared. Outside of jit only. If more than half of the predictions are
    distinct and the data are not grouped, return the same data and None.
    """
    values = np.asarray(data.v)
    v, atom = np.unique(values, return_inverse=True)
    if data.labels is None and 2 * v.size > values.size:
        return Binary(data.v, data.y, data.w), None
    w = np.bincount(atom, data.w, v.size)
    y = np.bincount(atom, np.asarray(data.w) * np.asarray(data.y), v.size)
    y = np.where(w > 0, y / np.where(w > 0, w, 1), v)
    labels = np.bincount(atom, None if data.labels is None else np.asarray(data.labels), v.size)
    extra = (1 << max(v.size - 1, 7).bit_length()) - v.size
    padded = np.pad(v, (0, extra), mode="edge"), *(np.pad(x, (0, extra)) for x in (y, w, labels))
    return Binary(*(jnp.asarray(x, data.v.dtype) for x in padded)), atom
