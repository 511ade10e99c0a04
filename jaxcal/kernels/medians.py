"""The median of all pairwise distances: counted, never sorted.

A search finds the pairs that attain the median; the bandwidth is their distance, computed from
their features like any other. So it has derivatives of every order: those of these pairs.
"""

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int, PyTree, UInt

from jaxcal.numerics import at_least, at_most, not_finite, safe_sqrt
from jaxcal.typing import Divergence, DivergenceLike, Features, Scalar

TILE = 512  # the side of a tile where distances are computed anew for every count
SIDE = 64  # that of a tile which is kept, and the rows of a tile that are counted at a time
KEPT_AT_MOST = 1 << 21  # so many distances are kept
LANE = 8  # bits of a counting word for one end: SIDE < 2^8, and a float32 counts to 2^24
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
    def alone(self) -> bool:
        """Whether one tile holds all pairs."""
        return self.i.size == 1

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
    compared = Compared(divergence, in_order(divergence, features), all_tiles(n, tile))
    return at_middle(divergence, features, middles([compared], ties=True)[0])


def count(features: Features) -> int:
    """The number of predictions; ValueError where there is no pair."""
    n = jax.tree.leaves(features)[0].shape[0]
    if n < 2:
        raise ValueError(f"a median distance needs at least 2 predictions, got n={n}")
    return n


def in_order(divergence: DivergenceLike, features: Features) -> Features:
    """Features as the distance computes most easily, or with the most digits, from them."""
    return getattr(divergence, "in_order", lambda features: features)(features)


def at_middle(divergence: Divergence, features: Features, pairs: Middle) -> Scalar:
    """The mean distance of the pairs that attain the median; 1 where all are equal."""
    rows, cols = (jax.tree.map(lambda leaf, k=k: leaf[k], features) for k in (pairs.i, pairs.j))
    lengths = safe_sqrt(divergence.paired(rows, cols))
    median = jnp.where(pairs.all_equal, 1.0, (lengths[0] + lengths[1]) / 2)
    return jnp.where(not_finite(features) == 0, median, jnp.nan)


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


class Compared(NamedTuple):
    """A distance, the features of n observations as it takes them (`in_order`), and their pairs."""

    divergence: DivergenceLike
    features: Features
    tiles: Tiles

    def block(self) -> Callable[..., Array]:
        """Distances of a tile, which are no part of what is differentiated."""
        features, tiles = jax.lax.stop_gradient(self.features), self.tiles
        if tiles.rows is not None:
            features = jax.tree.map(lambda leaf: leaf[tiles.rows], features)
        of = _folded if tiles.alone else _block
        return partial(of, self.divergence, _padded(features, tiles), tiles)


def middles(several: Sequence[Compared], *, ties: bool) -> list[Middle]:
    """The pairs that attain the median of each of several distances between n observations, over
    tiles of the same sizes: of all pairs, or of those at positive distances.

    With ``ties`` pairs at distance 0 count, unless they reach the middle. Up to 2^21
    distances are kept, and computed once, and then one search finds all the medians: a program of
    half the kernels for two. More are computed again in every pass.
    """
    tiles = several[0].tiles
    search = partial(_search, tiles=tiles, ties=ties)
    blocks = [each.block() for each in several]
    if tiles.i.size * tiles.side**2 <= KEPT_AT_MOST:
        kept, corners = zip(*(_kept(block, tiles) for block in blocks), strict=True)

        def over(distances: Array) -> tuple[Array, Array]:
            walk = lambda add, start: add(start, distances, corners[0])  # noqa: E731
            return search(walk, _first(distances, tiles.pairs))

        if len({distances.dtype for distances in kept}) == 1:
            ends = list(zip(*jax.vmap(over)(jnp.stack(kept)), strict=True))
        else:
            ends = [over(distances) for distances in kept]
    else:
        places = jnp.arange(2)  # of a block above the diagonal
        ends = [
            search(_walk(block, tiles), _first(block(*places), tiles.side**2)) for block in blocks
        ]
    return [_middle(*one, each.tiles) for one, each in zip(ends, several, strict=True)]


def _middle(places: Int[Array, "2 2"], all_equal: Array, tiles: Tiles) -> Middle:
    """The observations in these places of the tiles."""
    if tiles.alone:
        folded = places[:, :1] > places[:, 1:]
        places = jnp.where(folded, places + -(-tiles.n // 2), places)
    if tiles.rows is not None:
        places = tiles.rows[places]
    return Middle(places[:, 0], places[:, 1], all_equal)


def _search(
    walk: Callable[..., PyTree], first: Float[Array, "2"], *, tiles: Tiles, ties: bool
) -> tuple[Int[Array, "2 2"], Bool[Array, ""]]:
    """Where the one or two middle distances are, and whether all are 0; the first counts are up to
    ``first``."""
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
        root = jax.lax.rsqrt(inside)
        share = (short * root + jnp.asarray(NEXT, dtype) / 2) * root
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
    return places, end.zeros == total


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
    (i, j) is that of (h + i, h + j) where j < i."""
    n, half = tiles.n, -(-tiles.n // 2)
    distances = jnp.sqrt(_squares(divergence, features, features))
    filling = jnp.asarray(jnp.inf, distances.dtype)
    last = jax.lax.pad(distances[half:, half:], filling, [(0, 2 * half - n, 0), (0, half, 0)])
    i, j = jnp.arange(half)[:, None], jnp.arange(n)[None]
    return jnp.where(i < j, distances[:half], jnp.where(j < i, last, jnp.inf))


def _squares(divergence: DivergenceLike, rows: Features, cols: Features) -> Array:
    between = getattr(divergence, "separations", divergence.squared_distances)
    with jax.default_matmul_precision("highest"):
        return at_least(between(rows, cols), 0)


def _first(distances: Float[Array, "*s"], pairs: int) -> Float[Array, "2"]:
    """Up to which distances to count first: about the mean of those of so many pairs."""
    total = jnp.sum(jnp.where(distances < jnp.inf, distances, 0))
    return total / pairs * jnp.asarray(FIRST, distances.dtype)


Add = Callable[[PyTree, Array, Int[Array, "k 2"]], PyTree]


def _cut(distances: Array, i: Array, j: Array, side: int) -> tuple[Array, Array]:
    """A tile as tiles of at most SIDE rows, and their corners."""
    if (rows := len(distances)) <= SIDE:
        return distances[None], jnp.stack([i, j])[None] * side
    if rows % SIDE:  # rows that belong to no pair
        rest = jnp.full((-rows % SIDE, side), jnp.inf, distances.dtype)
        distances = jnp.concatenate([distances, rest])
    tops = np.arange(0, rows, SIDE)
    corners = jnp.stack([i * side + tops, j * side + 0 * tops], axis=1)
    return distances.reshape(-1, SIDE, side), corners


def _kept(block: Callable[..., Array], tiles: Tiles) -> tuple[Array, Array]:
    """All tiles [k, r, c], and where each begins."""
    i, j = jnp.asarray(tiles.i), jnp.asarray(tiles.j)
    if tiles.alone:
        return _cut(block(i[0], j[0]), i[0], j[0], tiles.side)
    blocks, corners = jax.vmap(lambda i, j: _cut(block(i, j), i, j, tiles.side))(i, j)
    return blocks.reshape(-1, *blocks.shape[2:]), corners.reshape(-1, 2)


def _walk(block: Callable[..., Array], tiles: Tiles) -> Callable[[Add, PyTree], PyTree]:
    """``walk(add, start)``: ``add`` over tiles [k, r, c] and where each begins, one at a time."""

    def walk(add: Add, start: PyTree) -> PyTree:
        def step(carry: PyTree, tile: tuple[Array, Array]) -> tuple[PyTree, None]:
            return add(carry, *_cut(block(*tile), *tile, tiles.side)), None

        return jax.lax.scan(step, start, (jnp.asarray(tiles.i), jnp.asarray(tiles.j)))[0]

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
        _, height, width = distances.shape
        beyond = (distances > end)[None] == jnp.arange(2)[:, None, None, None].astype(bool)
        sign = jnp.asarray([-1, 1], distances.dtype)[:, None, None, None]
        sides = jnp.where(beyond, distances[None] * sign, jnp.inf)
        values = jnp.min(sides, axis=(1, 2, 3))
        # a number below 2^24, which float32 holds
        number = jnp.arange(distances.size, dtype=jnp.float32).reshape(1, *distances.shape)
        nearest = sides == values[:, None, None, None]
        at = jnp.min(jnp.where(nearest, number, distances.size - 1), axis=(1, 2, 3))
        at = at.astype(corners.dtype)
        inner = jax.lax.rem(at, height * width)
        places = jnp.stack([jax.lax.div(inner, width), jax.lax.rem(inner, width)], axis=1)
        places = places + corners[jax.lax.div(at, height * width)]
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
