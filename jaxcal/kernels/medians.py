"""The median of all pairwise distances: counted, never sorted.

A search finds the pairs that attain the median; the bandwidth is their distance, computed from
their features like any other. So it has derivatives of every order: those of these pairs.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree, UInt

from jaxcal.numerics import at_least, at_most, safe_sqrt
from jaxcal.typing import Divergence, DivergenceLike, Features, Scalar

TILE = 512  # the side of a tile where distances are computed anew for every count
SIDE = 64  # that of a tile which is kept, and the rows of a tile that are counted at a time
HELD = 1 << 21  # so many squared distances are kept
LANE = 8  # bits of a counting word for one end: SIDE < 2^8
SAMPLE = 256  # pairs that suggest where to begin
FIRST = np.asarray([-2.2, 0.0, 2.2])  # where to count, in standard errors of its median
NEXT = np.asarray([-0.7, 0.0, 0.7])  # and then, in those of a linear guess between the ends


class Tiles(NamedTuple):
    """Pairs of observations, as pairs (i, j) of blocks of ``side`` of them; ``rows``: which n
    observations, in the order of the blocks, or None for all as they are."""

    i: np.ndarray
    j: np.ndarray
    side: int
    n: int
    rows: Int[Array, " n"] | None = None

    @property
    def pairs(self) -> int:
        """How many pairs of different observations these are."""
        sizes = np.clip(self.n - self.side * np.arange(-(-self.n // self.side)), 0, self.side)
        apart, alone = self.i != self.j, sizes[self.i[self.i == self.j]]
        across = sizes[self.i[apart]] @ sizes[self.j[apart]]
        return int(across + np.sum(alone * (alone - 1) // 2))


def all_tiles(n: int, side: int) -> Tiles:
    """Every pair of n observations, once, in blocks of about equal size."""
    i, j = np.triu_indices(-(-n // side))
    return Tiles(i, j, -(-n // -(-n // side)), n)


class Middle(NamedTuple):
    """The one or two pairs that attain the median, their observations ``i`` and ``j`` [2], and
    whether ``all_equal``: no pair is apart."""

    i: Int[Array, "2"]
    j: Int[Array, "2"]
    all_equal: Bool[Array, ""]


@partial(jax.jit, static_argnames="tile")
def exact_median(divergence: Divergence, features: Features, *, tile: int = TILE) -> Scalar:
    """The median distance over all n (n - 1) / 2 pairs, those of equal predictions among them.

    The mean of the two middle distances where their number is even; where that many are 0, the
    median of the positive distances; 1 where all are 0; NaN where a feature is not finite. Passes
    over tiles count the distances up to several ends at once, and the ends close in on the median:
    about seven passes of n^2 / 2 distances, at most one a bit. Memory O(tile^2).
    The derivative is that of the one or two pairs that attain it.
    Raises ValueError if n < 2, and where there are more pairs than integers to count them with.
    """
    n = count(features)
    if not 2 <= tile <= TILE:
        raise ValueError(f"tile: wanted between 2 and {TILE} rows, got {tile}")
    if n * (n - 1) // 2 > jnp.iinfo(_counter()).max:
        raise ValueError(
            f"{n * (n - 1) // 2} pairs of n={n} predictions are too many to count in 32 bits: "
            f"enable 64-bit types, or use median_heuristic"
        )
    return at_middle(
        divergence, features, middle(divergence, features, all_tiles(n, tile), ties=True)
    )


def count(features: Features) -> int:
    """The number of predictions; ValueError where there is no pair."""
    n = jax.tree.leaves(features)[0].shape[0]
    if n < 2:
        raise ValueError(f"a median distance needs at least 2 predictions, got n={n}")
    return n


def at_middle(divergence: Divergence, features: Features, pairs: Middle) -> Scalar:
    """The mean distance of the pairs that attain the median; 1 where all are equal."""
    rows, cols = (jax.tree.map(lambda leaf, k=k: leaf[k], features) for k in (pairs.i, pairs.j))
    lengths = safe_sqrt(divergence.paired(rows, cols))
    finite = jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(features)])
    median = jnp.where(pairs.all_equal, 1.0, jnp.mean(lengths))
    return jnp.where(jnp.all(finite), median, jnp.nan)


class _Search(NamedTuple):
    """Squared distances ``low`` < ``high`` on the two sides of the median, how many distances are
    up to each of them and how many are 0, and the ``ends`` up to which to count next."""

    low: Scalar
    high: Scalar
    up_to_low: UInt[Array, ""]
    up_to_high: UInt[Array, ""]
    zeros: UInt[Array, ""]
    ends: Float[Array, " e"]


def middle(divergence: Divergence, features: Features, tiles: Tiles, *, ties: bool) -> Middle:
    """The pairs that attain the median over these pairs: of all, or of the positive distances.

    With ``ties`` pairs at distance 0 count, unless they reach the middle. Up to 2^21 squared
    distances are kept, and computed once; more are computed again in every pass.
    """
    in_order = getattr(divergence, "in_order", lambda features: features)
    features = jax.lax.stop_gradient(in_order(features))
    if tiles.rows is not None:
        features = jax.tree.map(lambda leaf: leaf[tiles.rows], features)
    block = partial(_block, divergence, _padded(features, tiles), tiles)
    walk = _walk(block, tiles)
    sample = _sampled(divergence, features, tiles)
    total, dtype = tiles.pairs, sample.dtype

    def ranks(zeros: Array) -> tuple[Array, Array]:
        """How many zeros do not count, and how many distances are before the upper middle one."""
        least = jnp.where(2 * zeros >= total, zeros, 0) if ties else zeros
        return least, least + (total - least) // 2

    def step(state: _Search) -> _Search:
        counts = _up_to(walk, state.ends)
        zeros = jnp.where(state.low < 0, counts[0], state.zeros)  # the first end is 0
        below = ranks(zeros)[1]
        low, high, up_to_low, up_to_high = _narrowed(state, below, counts)
        inside = (up_to_high - up_to_low).astype(dtype)
        reach = jnp.asarray(NEXT, dtype) * jnp.sqrt(inside) / 2
        share = at_most(at_least(((below - up_to_low).astype(dtype) + reach) / inside, 0), 1)
        guesses = _bits(low + share * (high - low))
        first, last = _bits(low), _bits(high)
        ends = jnp.append(guesses, first + (last - first) // 2)  # halving always gets there
        ends = jax.lax.bitcast_convert_type(jnp.clip(ends, first + 1, last - 1), dtype)
        return _Search(low, high, up_to_low, up_to_high, zeros, ends)

    def unfinished(state: _Search) -> Array:
        between = _bits(state.high) - _bits(state.low) > 1
        return (state.low < 0) | ((state.up_to_low != ranks(state.zeros)[1]) & between)

    none, every = (jnp.asarray(number, _counter()) for number in (0, total))
    ends = jnp.concatenate([jnp.zeros(1, dtype), _first(sample, ties)])
    outside = (jnp.asarray(-1, dtype), jnp.asarray(jnp.finfo(dtype).max))
    end = jax.lax.while_loop(unfinished, step, _Search(*outside, none, every, none, ends))
    least, below = ranks(end.zeros)

    before, after = _neighbours(walk, end.low)
    # where no end stood between the two middle distances, they are equal
    apart = ((total - least) % 2 == 0) & (end.up_to_low == below)
    places = jnp.stack([jnp.where(apart, before.place, after.place), after.place])
    i, j = jnp.clip(places[:, 0], 0, tiles.n - 1), jnp.clip(places[:, 1], 0, tiles.n - 1)
    if tiles.rows is not None:
        i, j = tiles.rows[i], tiles.rows[j]
    return Middle(i, j, end.zeros == total)


def _first(sample: Float[Array, " s"], ties: bool) -> Float[Array, "3"]:
    """Where to count first: about the median of the sample."""
    zeros = jnp.sum(sample <= 0)
    skipped = jnp.where(2 * zeros >= sample.size, zeros, 0) if ties else zeros
    skipped = jnp.asarray(skipped).astype(sample.dtype)
    some = sample.size - skipped
    places = skipped + (some + jnp.asarray(FIRST, sample.dtype) * jnp.sqrt(some)) / 2
    # cheaper to compile than a sort
    up_to = jnp.sum(sample[:, None] >= sample[None], axis=1, dtype=sample.dtype)
    return sample[jnp.argmin(jnp.abs(up_to[None] - places[:, None]), axis=1)]


def _narrowed(
    state: _Search, below: UInt[Array, ""], counts: UInt[Array, " e"]
) -> tuple[Array, Array, Array, Array]:
    """The nearest ends on the two sides of the median, old or new, and the counts up to them."""
    ends = state.ends
    low = jnp.argmax(jnp.where(counts <= below, ends, -1))
    high = jnp.argmin(jnp.where(counts > below, ends, jnp.inf))
    up = (counts[low] <= below) & (ends[low] > state.low)
    down = (counts[high] > below) & (ends[high] < state.high)
    return (
        jnp.where(up, ends[low], state.low),
        jnp.where(down, ends[high], state.high),
        jnp.where(up, counts[low], state.up_to_low),
        jnp.where(down, counts[high], state.up_to_high),
    )


def _counter() -> Any:
    return jax.dtypes.canonicalize_dtype(np.uint64)


def _padded(features: Features, tiles: Tiles) -> Features:
    """Features of as many rows as the blocks have, the last one repeated."""
    blocks = -(-tiles.n // tiles.side)
    order = jnp.minimum(jnp.arange(blocks * tiles.side), tiles.n - 1)
    return jax.tree.map(lambda leaf: leaf[order], features)


def _block(divergence: DivergenceLike, padded: Features, tiles: Tiles, i: Array, j: Array) -> Array:
    """Squared distances [side, side] of blocks i and j, infinite outside of the pairs."""
    side = tiles.side

    def cut(k: Array) -> tuple[Features, Array]:
        rows = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, k * side, side), padded)
        return rows, k * side + jnp.arange(side)

    (rows, a), (cols, b) = cut(i), cut(j)
    between = getattr(divergence, "separations", divergence.squared_distances)
    with jax.default_matmul_precision("highest"):
        squared = at_least(between(rows, cols), 0)
    real = (a[:, None] < tiles.n) & (b[None] < tiles.n) & ((i != j) | (a[:, None] < b[None]))
    return jnp.where(real, squared, jnp.inf)


def _sampled(divergence: DivergenceLike, features: Features, tiles: Tiles) -> Float[Array, " s"]:
    """Squared distances of some of the pairs."""
    rng = np.random.default_rng(tiles.n)
    size = SAMPLE if tiles.pairs <= HELD else 16 * SAMPLE
    i = rng.integers(0, tiles.n, size)
    j = (i + rng.integers(1, tiles.n, size)) % tiles.n
    rows, cols = (jax.tree.map(lambda leaf, k=k: leaf[k], features) for k in (i, j))
    return at_least(divergence.paired(rows, cols), 0)


Add = Callable[[PyTree, Array, Int[Array, "k 2"]], PyTree]


def _walk(block: Callable[..., Array], tiles: Tiles) -> Callable[[Add, PyTree], PyTree]:
    """``walk(add, start)``: ``add`` over tiles [k, r, c] and where each begins; kept, if few."""
    i, j, side = jnp.asarray(tiles.i), jnp.asarray(tiles.j), tiles.side
    if tiles.i.size * side**2 <= HELD and side <= SIDE:
        blocks = jax.vmap(block)(i, j)
        corners = jnp.stack([i, j], axis=1) * side
        return lambda add, start: add(start, blocks, corners)
    heights = [min(SIDE, side - top) for top in range(0, side, SIDE)]

    def walk(add: Add, start: PyTree) -> PyTree:
        def step(carry: PyTree, tile: tuple[Array, Array]) -> tuple[PyTree, None]:
            squared = block(*tile)
            if side % SIDE:  # rows that belong to no pair
                rest = jnp.full((-side % SIDE, side), jnp.inf, squared.dtype)
                squared = jnp.concatenate([squared, rest])
            tops = SIDE * jnp.arange(len(heights))
            corners = jnp.stack([tile[0] * side + tops, tile[1] * side + 0 * tops], axis=1)
            return add(carry, squared.reshape(-1, SIDE, side), corners), None

        return jax.lax.scan(step, start, (i, j))[0]

    return walk


def _up_to(walk: Callable[..., PyTree], ends: Float[Array, " e"]) -> UInt[Array, " e"]:
    """How many squared distances are up to each of four ends."""
    lanes = [LANE * k for k in range(ends.size)]

    def add(counts: Array, squared: Array, _: Array) -> Array:
        # one sum for all ends: each has its own bits of a word, enough for a column of the tile
        words = sum(
            (squared <= end).astype(jnp.uint32) << lane
            for end, lane in zip(ends, lanes, strict=True)
        )
        columns = jnp.sum(words, axis=-2)
        parts = [(columns >> lane) & ((1 << LANE) - 1) for lane in lanes]
        return counts + jnp.stack([jnp.sum(part, dtype=counts.dtype) for part in parts])

    return walk(add, jnp.zeros(ends.shape, _counter()))


class _Nearest(NamedTuple):
    value: Scalar
    place: Int[Array, "2"]


def _neighbours(walk: Callable[..., PyTree], end: Scalar) -> tuple[_Nearest, _Nearest]:
    """The largest squared distance up to ``end`` and the smallest beyond it, and their pairs."""

    def nearest(values: Array, corners: Array) -> _Nearest:
        """The smallest of these values."""
        by_column = jnp.min(values, axis=-2)
        k, column = jnp.unravel_index(jnp.argmin(by_column), by_column.shape)
        row = jnp.argmin(values[k, :, column])
        return _Nearest(by_column[k, column], corners[k] + jnp.stack([row, column]))

    def add(carry: tuple[_Nearest, _Nearest], squared: Array, corners: Array):
        within = squared <= end
        sides = (jnp.where(within, -squared, jnp.inf), jnp.where(within, jnp.inf, squared))
        return tuple(
            jax.tree.map(lambda a, b, less=one.value < old.value: jnp.where(less, a, b), one, old)
            for old, one in zip(carry, (nearest(side, corners) for side in sides), strict=True)
        )

    nothing = _Nearest(jnp.asarray(jnp.inf, end.dtype), jnp.zeros(2, int))
    return walk(add, (nothing, nothing))


def _bits(values: Array) -> Int[Array, "..."]:
    """Values >= 0 as integers in the same order."""
    signed = jnp.int32 if values.dtype == jnp.float32 else jnp.int64
    return jax.lax.bitcast_convert_type(values, signed)
