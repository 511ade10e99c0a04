"""The median of ALL pairwise distances, for kernels that must be the published ones."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt

from jaxcal.kernels.bandwidths import pairs
from jaxcal.typing import Distance, Features, Scalar

TILE = 512
LANE = 10  # bits of a counting word for one end: a column of a tile is shorter than 2^10
SAMPLE = 1 << 14  # pairs that suggest where to begin
OFFSETS = {6: np.asarray([-3.0, -1.0, 0.0, 1.0, 3.0]), 3: np.asarray([-1.5, 1.5])}


class _Search(NamedTuple):
    """Squared distances ``low`` < ``high`` on the two sides of the median, and how many distances
    are up to each of them."""

    low: Scalar
    high: Scalar
    up_to_low: UInt[Array, ""]
    up_to_high: UInt[Array, ""]


def exact_median(distance: Distance, features: Features, *, tile: int = TILE) -> Scalar:
    """The median distance over all n (n - 1) / 2 pairs, without ever holding them. No gradient.

    The mean of the two middle distances where their number is even; where the median is 0, that
    of the positive distances; 1 where all are 0; NaN where a feature is not finite. Passes over
    tiles count the distances up to several ends at once, and the ends close in on the median:
    about six passes of n^2 / 2 distances, at most one a bit. Memory O(tile^2).
    Raises ValueError if n < 2, and where there are more pairs than integers to count them with.
    `jaxcal.kernels.bandwidths.median_heuristic` looks at some of the pairs instead.
    """
    features = jax.lax.stop_gradient(features)
    n = jax.tree.leaves(features)[0].shape[0]
    if n < 2:
        raise ValueError(f"a median distance needs at least 2 predictions, got n={n}")
    if not 2 <= tile < 1 << LANE:
        raise ValueError(f"tile: wanted between 2 and {(1 << LANE) - 1} rows, got {tile}")
    total, word = n * (n - 1) // 2, jax.dtypes.canonicalize_dtype(np.uint64)
    if total > jnp.iinfo(word).max:
        raise ValueError(
            f"{total} pairs of n={n} predictions are too many to count in 32 bits: enable 64-bit "
            f"types, or use median_heuristic"
        )
    walk = partial(_over_pairs, distance, features, min(tile, n))
    sample = _sampled(distance, features)
    offsets = jnp.asarray(OFFSETS[jnp.iinfo(word).bits // LANE], sample.dtype)

    zero, most = jnp.zeros((), sample.dtype), jnp.asarray(jnp.finfo(sample.dtype).max)
    zeros = _up_to(walk, zero[None], word)[0]
    first = jnp.where(zeros > total // 2, zeros, 0)
    below = first + (total - first) // 2  # the number of distances before the upper middle one

    def narrow(state: _Search, ends: Float[Array, " e"]) -> _Search:
        counts = _up_to(walk, ends, word)
        low = jnp.argmax(jnp.where(counts <= below, ends, -1))
        high = jnp.argmin(jnp.where(counts > below, ends, jnp.inf))
        up = (counts[low] <= below) & (ends[low] > state.low)
        down = (counts[high] > below) & (ends[high] < state.high)
        return _Search(
            jnp.where(up, ends[low], state.low),
            jnp.where(down, ends[high], state.high),
            jnp.where(up, counts[low], state.up_to_low),
            jnp.where(down, counts[high], state.up_to_high),
        )

    def unfinished(state: _Search) -> Array:
        return (state.up_to_low != below) & (_bits(state.high) - _bits(state.low) > 1)

    def step(state: _Search) -> _Search:
        inside = (state.up_to_high - state.up_to_low).astype(sample.dtype)
        rank = (below - state.up_to_low).astype(sample.dtype) + offsets * jnp.sqrt(inside) / 2
        share = jnp.clip(rank / inside, 0, 1)
        low, high = _bits(state.low), _bits(state.high)
        guesses = _bits(state.low + share * (state.high - state.low))
        ends = jnp.append(guesses, low + (high - low) // 2)  # halving the bits always gets there
        ends = jnp.clip(ends, low + 1, high - 1)
        return narrow(state, jax.lax.bitcast_convert_type(ends, sample.dtype))

    begin = sample.size * (below.astype(sample.dtype) / total) + offsets * sample.size**0.5 / 2
    guesses = sample[jnp.clip(begin.astype(int), 0, sample.size - 1)]
    start = _Search(zero, most, zeros, jnp.asarray(total, word))
    found = jax.lax.while_loop(unfinished, step, narrow(start, guesses))

    before, after = _neighbours(walk, found.low)
    # where no end stood between the two middle distances, they are equal
    upper = jnp.sqrt(after)
    lower = jnp.where(found.up_to_low == below, jnp.sqrt(before), upper)
    median = jnp.where((total - first) % 2 == 0, (lower + upper) / 2, upper)
    median = jnp.where(zeros == total, 1.0, median)
    finite = jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(features)])
    return jnp.where(jnp.all(finite), median, jnp.nan)


def _sampled(distance: Distance, features: Features) -> Float[Array, " s"]:
    """Squared distances of some pairs, sorted."""
    n = jax.tree.leaves(features)[0].shape[0]
    i, j = pairs(n, most=min(n * (n - 1) // 2, SAMPLE))

    def between(pair: tuple[Array, Array]) -> Scalar:
        rows, cols = (jax.tree.map(lambda a, k=k: a[k][None], features) for k in pair)
        return distance.paired(rows, cols)[0]

    return jnp.sort(jnp.maximum(jax.lax.map(between, (i, j), batch_size=512), 0))


def _over_pairs(
    distance: Distance,
    features: Features,
    side: int,
    add: Callable[[Any, Array], Any],
    start: Any,
) -> Any:
    """``add`` over tiles of squared distances, infinite outside of the pairs i < j."""
    n = jax.tree.leaves(features)[0].shape[0]
    tiles = -(-n // side)
    order = jnp.minimum(jnp.arange(tiles * side), n - 1)
    padded = jax.tree.map(lambda leaf: leaf[order], features)

    def cut(k: Array) -> tuple[Features, Array]:
        rows = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, k * side, side), padded)
        return rows, k * side + jnp.arange(side)

    def step(carry: Any, tile: tuple[Array, Array]) -> tuple[Any, None]:
        (rows, i), (cols, j) = (cut(k) for k in tile)
        squared = jnp.maximum(distance.squared_distances(rows, cols), 0)
        real = (i[:, None] < j) & (j < n)
        return add(carry, jnp.where(real, squared, jnp.inf)), None

    above = tuple(jnp.asarray(k) for k in np.triu_indices(tiles))
    return jax.lax.scan(step, start, above)[0]


def _up_to(walk: Callable[..., Any], ends: Float[Array, " e"], word: Any) -> UInt[Array, " e"]:
    """How many squared distances are up to each end."""

    def add(counts: Array, squared: Array) -> Array:
        # one sum for all ends: each has its own bits of a word, enough for a column of the tile
        words = sum((squared <= end).astype(word) << LANE * k for k, end in enumerate(ends))
        columns = jnp.sum(words, axis=0)
        parts = [(columns >> LANE * k) & ((1 << LANE) - 1) for k in range(ends.size)]
        return counts + jnp.sum(jnp.stack(parts), axis=1)

    return walk(add, jnp.zeros(ends.shape, word))


def _neighbours(walk: Callable[..., Any], end: Scalar) -> tuple[Scalar, Scalar]:
    """The largest squared distance up to ``end``, and the smallest beyond it."""

    def add(carry: tuple[Scalar, Scalar], squared: Array) -> tuple[Scalar, Scalar]:
        before, after = carry
        within = squared <= end
        return (
            jnp.maximum(before, jnp.max(jnp.where(within, squared, 0))),
            jnp.minimum(after, jnp.min(jnp.where(within, jnp.inf, squared))),
        )

    return walk(add, (jnp.zeros((), end.dtype), jnp.asarray(jnp.inf, end.dtype)))


def _bits(values: Array) -> Int[Array, "..."]:
    """Values >= 0 as integers in the same order."""
    signed = jnp.int32 if values.dtype == jnp.float32 else jnp.int64
    return jax.lax.bitcast_convert_type(values, signed)
