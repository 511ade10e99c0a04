"""The median of ALL pairwise distances, for kernels that must be the published ones."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, UInt

from jaxcal.kernels.bandwidths import pairs
from jaxcal.numerics import at_least
from jaxcal.typing import Distance, Features, Scalar

TILE = 512
LANE = 10  # bits of a counting word for one end: a column of a tile is shorter than 2^10
SAMPLE = 1 << 14  # pairs that suggest where to begin
# where to count, by how many ends a word has room for: first in standard errors of the sample's
# median, then in those of a linear guess between the ends, and as shares of the way between them
FIRST = {6: (-3.0, -1.0, 0.0, 1.0, 3.0), 3: (-2.0, 2.0)}
NEXT = {6: (-2.0, 0.0, 2.0), 3: (-1.5, 1.5)}
SHARES = {6: (0.25, 0.75), 3: ()}


class _Search(NamedTuple):
    """Squared distances ``low`` < ``high`` on the two sides of the median, and how many distances
    are up to each of them."""

    low: Scalar
    high: Scalar
    up_to_low: UInt[Array, ""]
    up_to_high: UInt[Array, ""]


@partial(jax.jit, static_argnames="tile")
def exact_median(distance: Distance, features: Features, *, tile: int = TILE) -> Scalar:
    """The median distance over all n (n - 1) / 2 pairs, without ever holding them. No gradient.

    The mean of the two middle distances where their number is even; where the median is 0, that
    of the positive distances; 1 where all are 0; NaN where a feature is not finite. Passes over
    tiles count the distances up to several ends at once, and the ends close in on the median:
    about eight passes of n^2 / 2 distances, at most one a bit. Memory O(tile^2).
    Raises ValueError if n < 2, and where there are more pairs than integers to count them with.
    `jaxcal.kernels.bandwidths.median_heuristic` looks at some of the pairs instead.
    """
    in_order = getattr(distance, "in_order", lambda features: features)
    features = jax.lax.stop_gradient(in_order(features))
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
    dtype, ends_at_once = sample.dtype, jnp.iinfo(word).bits // LANE
    first, later, shares = (
        jnp.asarray(table[ends_at_once], dtype) for table in (FIRST, NEXT, SHARES)
    )

    middle = (sample.size + first * sample.size**0.5) / 2
    guesses = sample[jnp.clip(middle.astype(int), 0, sample.size - 1)]
    ends = jnp.concatenate([jnp.zeros(1, dtype), guesses])
    counts = _up_to(walk, ends, word)
    zeros = counts[0]
    least = jnp.where(zeros > total // 2, zeros, 0)
    below = least + (total - least) // 2  # the number of distances before the upper middle one

    def step(state: _Search) -> _Search:
        inside = (state.up_to_high - state.up_to_low).astype(dtype)
        rank = (below - state.up_to_low).astype(dtype) + later * jnp.sqrt(inside) / 2
        share = jnp.concatenate([jnp.clip(rank / inside, 0, 1), shares])
        low, high = _bits(state.low), _bits(state.high)
        guesses = _bits(state.low + share * (state.high - state.low))
        ends = jnp.append(guesses, low + (high - low) // 2)  # halving the bits always gets there
        ends = jax.lax.bitcast_convert_type(jnp.clip(ends, low + 1, high - 1), dtype)
        return _narrowed(state, below, ends, _up_to(walk, ends, word))

    def unfinished(state: _Search) -> Array:
        return (state.up_to_low != below) & (_bits(state.high) - _bits(state.low) > 1)

    largest = jnp.asarray(jnp.finfo(dtype).max)
    start = _Search(jnp.zeros((), dtype), largest, zeros, jnp.asarray(total, word))
    found = jax.lax.while_loop(unfinished, step, _narrowed(start, below, ends, counts))

    before, after = _neighbours(walk, found.low)
    # where no end stood between the two middle distances, they are equal
    upper = jnp.sqrt(after)
    lower = jnp.where(found.up_to_low == below, jnp.sqrt(before), upper)
    median = jnp.where((total - least) % 2 == 0, (lower + upper) / 2, upper)
    median = jnp.where(zeros == total, 1.0, median)
    finite = jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(features)])
    return jnp.where(jnp.all(finite), median, jnp.nan)


def _narrowed(
    state: _Search, below: UInt[Array, ""], ends: Float[Array, " e"], counts: UInt[Array, " e"]
) -> _Search:
    """The nearest ends on the two sides of the median, among the old ones and these."""
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


def _sampled(distance: Distance, features: Features) -> Float[Array, " s"]:
    """Squared distances of some pairs, sorted."""
    n = jax.tree.leaves(features)[0].shape[0]
    i, j = pairs(n, most=min(n * (n - 1) // 2, SAMPLE))

    def between(pair: tuple[Array, Array]) -> Scalar:
        rows, cols = (jax.tree.map(lambda a, k=k: a[k][None], features) for k in pair)
        return distance.paired(rows, cols)[0]

    return jnp.sort(at_least(jax.lax.map(between, (i, j), batch_size=512), 0))


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
        squared = at_least(distance.squared_distances(rows, cols), 0)
        real = (i[:, None] < j[None]) & (j < n)[None]
        return add(carry, jnp.where(real, squared, jnp.inf)), None

    i, j = np.triu_indices(tiles)
    return jax.lax.scan(step, start, (jnp.asarray(i), jnp.asarray(j)))[0]


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
