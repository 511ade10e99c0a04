"""The median of all pairwise distances: counted, never sorted.

A search finds the pairs that attain the median; the bandwidth is their distance, computed from
their features like any other. So it has derivatives of every order: those of these pairs.
"""

from collections.abc import Callable
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree, UInt

from jaxcal.numerics import at_least, at_most, safe_sqrt
from jaxcal.typing import Divergence, DivergenceLike, Features, Scalar

TILE = 512  # the side of a tile where distances are computed anew for every count
SIDE = 64  # that of a tile which is kept, and the rows of a tile that are counted at a time
KEPT_AT_MOST = 1 << 21  # so many distances are kept
LANE = 8  # bits of a counting word for one end: SIDE < 2^8, and a float32 counts to 2^24
SAMPLE = 32  # pairs that suggest where to begin
FIRST = np.asarray([0.8, 1.4])  # where to count, in their mean distance
NEXT = np.asarray([-0.7, 0.7])  # and then, in standard errors of a linear guess between the ends


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
    # 0, or NaN where a feature is not finite
    spoiled = sum(jnp.sum(0 * jax.lax.stop_gradient(leaf)) for leaf in jax.tree.leaves(features))
    return jnp.where(pairs.all_equal, 1.0, (lengths[0] + lengths[1]) / 2) + spoiled


class _Search(NamedTuple):
    """Distances ``low`` < ``high`` on the two sides of the median and the ``ends`` up to
    which to count next, as places in the order of floats (`_places`), 0 below all of them; and how
    many distances are up to low and high, and how many are 0."""

    low: UInt[Array, ""]
    high: UInt[Array, ""]
    up_to_low: UInt[Array, ""]
    up_to_high: UInt[Array, ""]
    zeros: UInt[Array, ""]
    ends: UInt[Array, " e"]

    def joined(self) -> UInt[Array, " s"]:
        """All of it as one vector: a loop that carries one is a program of few kernels."""
        return jnp.concatenate([jnp.stack(self[:-1]), self.ends])

    @classmethod
    def split(cls, joined: UInt[Array, " s"]) -> "_Search":
        low, high, up_to_low, up_to_high, zeros = (joined[k] for k in range(5))
        return cls(low, high, up_to_low, up_to_high, zeros, joined[5:])


def middle(divergence: Divergence, features: Features, tiles: Tiles, *, ties: bool) -> Middle:
    """The pairs that attain the median over these pairs: of all, or of the positive distances.

    With ``ties`` pairs at distance 0 count, unless they reach the middle. Up to 2^21
    distances are kept, and computed once; more are computed again in every pass.
    """
    if tiles.rows is not None:
        features = jax.tree.map(lambda leaf: leaf[tiles.rows], features)
    in_order = getattr(divergence, "in_order", lambda features: features)
    features = jax.lax.stop_gradient(in_order(features))
    alone = tiles.i.size == 1
    block = partial(_folded if alone else _block, divergence, _padded(features, tiles), tiles)
    walk, first = _walk(block, tiles), _first(divergence, features, tiles.n)
    total, dtype = tiles.pairs, first.dtype
    highest = _places(jnp.asarray(jnp.finfo(dtype).max))

    def ranks(zeros: Array) -> tuple[Array, Array]:
        """How many zeros do not count, and how many distances are before the upper middle one."""
        least = jnp.where(2 * zeros >= total, zeros, 0) if ties else zeros
        return least, least + (total - least) // 2

    def step(joined: UInt[Array, " s"]) -> UInt[Array, " s"]:
        low, high, up_to_low, up_to_high, zeros, ends = _Search.split(joined)
        counts = _up_to(walk, _values(ends, dtype))
        zeros = jnp.where(low == 0, counts[0], zeros)  # the first end is 0
        below = ranks(zeros)[1]
        for k in range(len(NEXT) + 1):  # the nearest on the two sides
            end, count, before = ends[k], counts[k], counts[k] <= below
            low, up_to_low = (
                jnp.where(before & (new > old), new, old)
                for new, old in ((end, low), (count, up_to_low))
            )
            high, up_to_high = (
                jnp.where(~before & (new < old), new, old)
                for new, old in ((end, high), (count, up_to_high))
            )
        inside, short = ((up - up_to_low).astype(dtype) for up in (up_to_high, below))
        share = (short + jnp.asarray(NEXT, dtype) * jnp.sqrt(inside) / 2) / inside
        least = _values(low, dtype)
        most = jnp.where(high < highest, _values(high, dtype), 4 * least)
        guesses = _places(least + at_most(at_least(share, 0), 1) * (most - least))
        ends = jnp.append(guesses, low + (high - low) // 2)  # halving always gets there
        return _Search(
            low, high, up_to_low, up_to_high, zeros, jnp.clip(ends, low + 1, high - 1)
        ).joined()

    def unfinished(joined: UInt[Array, " s"]) -> Array:
        state = _Search.split(joined)
        apart = state.up_to_low != ranks(state.zeros)[1]
        return (state.low == 0) | (apart & (state.high - state.low > 1))

    none, every = (jnp.asarray(number, _counter()) for number in (0, total))
    ends = jnp.append(jnp.ones(1, none.dtype), jnp.minimum(_places(first), highest - 1))
    start = _Search(none, highest, none, every, none, ends)
    end = _Search.split(jax.lax.while_loop(unfinished, step, start.joined()))
    least, below = ranks(end.zeros)

    before, after = _neighbours(walk, _values(end.low, dtype)).place
    # where no end stood between the two middle distances, they are equal
    apart = ((total - least) % 2 == 0) & (end.up_to_low == below)
    places = jnp.clip(jnp.stack([jnp.where(apart, before, after), after]), 0, tiles.n - 1)
    if alone:
        turned = places[:, :1] > places[:, 1:]
        places = jnp.where(turned, tiles.n - 1 - places, places)
    if tiles.rows is not None:
        places = tiles.rows[places]
    return Middle(places[:, 0], places[:, 1], end.zeros == total)


def _counter() -> Any:
    return jax.dtypes.canonicalize_dtype(np.uint64)


def _padded(features: Features, tiles: Tiles) -> Features:
    """Features of as many rows as the blocks have, the last one repeated."""
    missing = -tiles.n % tiles.side

    def pad(leaf: Array) -> Array:
        return jnp.pad(leaf, ((0, missing), *((0, 0) for _ in leaf.shape[1:])), mode="edge")

    return jax.tree.map(pad, features) if missing else features


def _block(divergence: DivergenceLike, padded: Features, tiles: Tiles, i: Array, j: Array) -> Array:
    """Distances [side, side] of blocks i and j, infinite outside of the pairs."""
    side = tiles.side

    def cut(k: Array) -> tuple[Features, Array]:
        rows = jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, k * side, side), padded)
        return rows, k * side + jnp.arange(side)

    (rows, a), (cols, b) = cut(i), cut(j)
    distances = jnp.sqrt(_squares(divergence, rows, cols))
    real = (a[:, None] < tiles.n) & (b[None] < tiles.n) & ((i != j) | (a[:, None] < b[None]))
    return jnp.where(real, distances, jnp.inf)


def _folded(divergence: DivergenceLike, features: Features, tiles: Tiles, *_: Array) -> Array:
    """Distances [h, n] of one block in half its rows, infinite outside of the pairs i < j: entry
    (i, j) is that of (n - 1 - i, n - 1 - j) where j < i."""
    n, half = tiles.n, -(-tiles.n // 2)
    i, j = jnp.arange(half)[:, None], jnp.arange(n)[None]
    both = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf[::-1]]), features)
    rows = jax.tree.map(lambda leaf: leaf[:, :half], both)
    first, last = jax.vmap(partial(_squares, divergence))(rows, both)
    real = (i < j) | ((j < i) & (2 * i != n - 1))  # the middle row is its own partner
    return jnp.where(real, jnp.sqrt(jnp.where(i < j, first, last)), jnp.inf)


def _squares(divergence: DivergenceLike, rows: Features, cols: Features) -> Array:
    between = getattr(divergence, "separations", divergence.squared_distances)
    with jax.default_matmul_precision("highest"):
        return at_least(between(rows, cols), 0)


def _first(divergence: DivergenceLike, features: Features, n: int) -> Float[Array, "2"]:
    """Up to which distances to count first: about the mean of some."""
    starts = np.linspace(0, n - 1, SAMPLE).astype(int)
    rows, cols = (
        jax.tree.map(lambda leaf, k=k: leaf[k], features)
        for k in (starts, (starts + 1 + n // 2) % n)
    )
    distances = jnp.sqrt(at_least(divergence.paired(rows, cols), 0))
    return jnp.mean(distances) * jnp.asarray(FIRST, distances.dtype)


Add = Callable[[PyTree, Array, Int[Array, "k 2"]], PyTree]


def _walk(block: Callable[..., Array], tiles: Tiles) -> Callable[[Add, PyTree], PyTree]:
    """``walk(add, start)``: ``add`` over tiles [k, r, c] and where each begins; kept, if few."""
    i, j, side = jnp.asarray(tiles.i), jnp.asarray(tiles.j), tiles.side

    def cut(distances: Array, i: Array, j: Array) -> tuple[Array, Array]:
        """A tile as tiles of at most SIDE rows, and their corners."""
        if (rows := len(distances)) <= SIDE:
            return distances[None], jnp.stack([i, j])[None] * side
        if rows % SIDE:  # rows that belong to no pair
            rest = jnp.full((-rows % SIDE, side), jnp.inf, distances.dtype)
            distances = jnp.concatenate([distances, rest])
        tops = np.arange(0, rows, SIDE)
        corners = jnp.stack([i * side + tops, j * side + 0 * tops], axis=1)
        return distances.reshape(-1, SIDE, side), corners

    if tiles.i.size == 1:
        whole = cut(block(i[0], j[0]), i[0], j[0])
        return lambda add, start: add(start, *whole)
    if tiles.i.size * side**2 <= KEPT_AT_MOST:
        blocks, corners = jax.vmap(lambda i, j: cut(block(i, j), i, j))(i, j)
        joined = blocks.reshape(-1, *blocks.shape[2:]), corners.reshape(-1, 2)
        return lambda add, start: add(start, *joined)

    def walk(add: Add, start: PyTree) -> PyTree:
        def step(carry: PyTree, tile: tuple[Array, Array]) -> tuple[PyTree, None]:
            return add(carry, *cut(block(*tile), *tile)), None

        return jax.lax.scan(step, start, (i, j))[0]

    return walk


def _up_to(walk: Callable[..., PyTree], ends: Float[Array, " e"]) -> UInt[Array, " e"]:
    """How many distances are up to each of three ends."""
    lanes = LANE * np.arange(ends.size, dtype=np.uint32)[:, None]

    def add(counts: Array, distances: Array, _: Array) -> Array:
        # one sum for all ends: each has its own bits of a word, enough for a column of the tile
        bits = [
            (distances <= end).astype(jnp.uint32) << lane
            for end, lane in zip(ends, lanes[:, 0], strict=True)
        ]
        words = reduce(jnp.add, bits)
        columns = jnp.sum(words.astype(jnp.float32), axis=-2).reshape(1, -1).astype(jnp.uint32)
        parts = (columns >> lanes) & ((1 << LANE) - 1)
        return counts + jnp.sum(parts.astype(jnp.float32), axis=1).astype(counts.dtype)

    return walk(add, jnp.zeros(ends.shape, _counter()))


class _Nearest(NamedTuple):
    value: Float[Array, "2"]
    place: Int[Array, "2 2"]


def _neighbours(walk: Callable[..., PyTree], end: Scalar) -> _Nearest:
    """Of the largest distance up to ``end`` and the smallest beyond it, their pairs."""

    def add(carry: _Nearest, distances: Array, corners: Array) -> _Nearest:
        within, (_, height, width) = distances <= end, distances.shape
        sides = jnp.where(within, -distances, jnp.inf), jnp.where(within, jnp.inf, distances)
        values = jnp.stack([jnp.min(side) for side in sides])
        nearest = (values * jnp.asarray([-1, 1], values.dtype))[:, None]
        # a number below 2^24, which float32 holds
        number = jnp.arange(distances.size, dtype=jnp.float32)[None]
        at = jnp.where(distances.reshape(1, -1) == nearest, number, distances.size - 1)
        at = jnp.min(at, axis=1)
        k, inner = jnp.divmod(at.astype(corners.dtype), height * width)
        places = corners[k] + jnp.stack(jnp.divmod(inner, width), axis=1)
        less = values < carry.value
        return _Nearest(
            jnp.where(less, values, carry.value), jnp.where(less[:, None], places, carry.place)
        )

    return walk(add, _Nearest(jnp.full(2, jnp.inf, end.dtype), jnp.zeros((2, 2), int)))


def _places(values: Float[Array, "*s"]) -> UInt[Array, "*s"]:
    """Values >= 0 as whole numbers in the same order, from 1 on."""
    unsigned = jnp.uint32 if values.dtype == jnp.float32 else jnp.uint64
    return jax.lax.bitcast_convert_type(values, unsigned).astype(_counter()) + 1


def _values(places: UInt[Array, "*s"], dtype: Any) -> Float[Array, "*s"]:
    """The values in these places; 0 below all of them."""
    unsigned = jnp.uint32 if dtype == jnp.float32 else jnp.uint64
    bits = (places - jnp.minimum(places, 1)).astype(unsigned)
    return jax.lax.bitcast_convert_type(bits, dtype)
