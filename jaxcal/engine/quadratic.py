r"""Compute every sum of a statistic h_ij over pairs of n observations in one pass over tiles.

A tile is a block of the matrix H = [h_ij], which is never stored; blocks above the diagonal are
computed once and count twice. For b weight columns and tiles of side t, one pass costs n^2 b flops
(plus evaluations of h) and O(t^2 + n b) memory; if n <= t it is a single fused program. All columns
of `HadamardSigns` together cost n^2 additions. A ``vmap`` over data sets or models compiles one
program, which on a CPU processes data sets one after another, as each fits into the cache.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Float

from jaxcal.engine import one_at_a_time, over_rows
from jaxcal.engine.signs import HadamardSigns, fold
from jaxcal.numerics import sketched_eigenvalues, with_total
from jaxcal.results import Estimate
from jaxcal.typing import Features, Pairwise

TILE = 512  # a float32 tile of 1 MiB fits in a core's second-level cache
LANES = 8  # matrix products are fastest for multiples of this many columns


class QuadraticSums(NamedTuple):
    """Sums of h_ij over pairs of n observations, for each of c channels, whose sum is h.

    ``total`` [c], or [c, m] for m blocks: sum of h_ij over i != j. ``diagonal`` [c, n]: h_ii.
    ``row_sums`` [c, n]: sum of h_ij over j != i. ``forms`` [c, b]: sum of w_i w_j h_ij over i != j,
    for each column w (signs come before weights). Other fields are None unless requested.
    ``squares`` [r]: sum of h_ij^2 over i != j. ``eigenvalues`` [r, k]: approximate largest
    eigenvalues of [h_ij] with diagonal 0, some possibly negative. Row 0 of these two is for the sum
    of the channels; if c > 1, rows 1 to c are for single channels.
    """

    total: Float[Array, "c *m"]
    diagonal: Float[Array, "c n"]
    row_sums: Float[Array, "c n"]
    forms: Float[Array, "c b"]
    squares: Float[Array, " r"] | None = None
    eigenvalues: Float[Array, "r k"] | None = None


class _Columns(NamedTuple):
    """Columns that multiply a tile of h; padded rows are 0. ``weights``: ones, then weights.
    ``sketch``: normal draws. ``signs`` and ``patterns`` are those of `HadamardSigns`."""

    weights: Float[Array, "r k"]
    sketch: Float[Array, "r q"]
    signs: Float[Array, "r _"]  # one column, or none
    patterns: Float[Array, "g p"]


class _Forms(NamedTuple):
    """Quadratic forms of the columns, summed over tiles by Kahan's compensated summation."""

    weighted: Float[Array, "c k"]
    shares: Float[Array, "c m p"]  # of sign patterns, by the offset of a pair (`_shares`)


class _Tile(NamedTuple):
    forms: _Forms
    row_sums: Float[Array, "c r"]
    col_sums: Float[Array, "c s"]
    squares: Float[Array, " r"]  # as in `QuadraticSums`; 0 unless requested
    row_products: Float[Array, "c r q"]  # h times the sketch; q = 0 without one
    col_products: Float[Array, "c s q"]


class _Carry(NamedTuple):
    forms: _Forms
    lost: _Forms  # rounding error of ``forms`` so far (Kahan)
    row_sums: Float[Array, "c n"]
    squares: Float[Array, " r"]
    products: Float[Array, "c n q"]


def quadratic_sums(
    pairwise: Pairwise,
    features: Features,
    weights: Float[Array, "n b"],
    *,
    signs: HadamardSigns | None = None,
    squares: bool = False,
    sketch: Float[Array, "n q"] | None = None,
    tile: int = TILE,
    mesh: Mesh | None = None,
) -> QuadraticSums:
    """Return sums of h_ij over all pairs of n observations, from one pass over tiles of pairs.

    Args:
        pairwise: The statistic h.
        features: Pytree with leading axis n >= 2.
        weights: [n, b], one column per bootstrap draw; b may be 0.
        signs: Columns of random signs, or None; in ``forms`` they come before ``weights``.
        squares: Whether to compute sums of squares of h.
        sketch: [n, q] normal draws, from which the q largest eigenvalues of [h_ij] with diagonal 0
            are estimated, or None.
        tile: Observations per side of a tile.
        mesh: Devices that share the tiles; results differ between meshes by rounding only.

    Returns:
        `QuadraticSums`, not finite if h is not. Differentiable: the backward pass recomputes the
        blocks.

    Cost: n^2 (b + 2 q) multiplications and n^2 / 2 values of h. ``signs`` in groups of m add n^2
    additions, and n^2 / m^2 multiplications for each column of signs.
    """
    n = count(features)
    if n < 2:
        raise ValueError(f"a sum over pairs needs at least 2 observations, got n={n}")
    if weights.shape[0] != n:
        raise ValueError(f"weights: wanted one row per observation, n={n}, got {weights.shape}")
    if tile < 1:
        raise ValueError(f"tile: wanted a positive number of observations, got {tile}")
    walk = partial(_sums, squares=squares, tile=tile, mesh=mesh)
    return one_at_a_time(walk)(pairwise, features, weights, sketch, signs)


def means(sums: QuadraticSums) -> Estimate:
    """Return the mean of h_ij over i != j (``unbiased``) and over all i and j (``biased``)."""
    n, total = sums.diagonal.shape[1], jnp.sum(sums.total)
    return Estimate(total / ordered_pairs(n), (total + jnp.sum(sums.diagonal)) / float(n**2))


def _sums(
    pairwise: Pairwise,
    features: Features,
    weights: Array,
    sketch: Array | None,
    signs: HadamardSigns | None,
    *,
    squares: bool,
    tile: int,
    mesh: Mesh | None,
) -> QuadraticSums:
    n, b = weights.shape
    diagonal = pairwise.diagonal(features)
    dtype = diagonal.dtype
    random = (jnp.zeros((n, 0)) if sketch is None else sketch).astype(dtype)
    columns = _Columns(_with_ones(weights, dtype), random, random[:, :0], random[:0, :0])
    group = 1 if signs is None else signs.group
    side = _side(n, tile, 1 if mesh is None else mesh.size, group)
    rows = slice(n)
    if signs is not None:
        features, columns, rows = _arranged(features, columns, signs, side)
    if side >= n:
        sums = _tile(pairwise, features, features, columns, columns, 0, group, squares)
        forms, row_sums, squared = sums.forms, sums.row_sums, sums.squares
        products = sums.row_products
    else:
        walk = partial(_walk, pairwise, n=n, side=side, group=group, squares=squares)
        tiled = _over_tiles(walk, mesh, -(-n // side), features, columns)
        forms, row_sums, squared, products = tiled
    row_sums, products = row_sums[:, rows], products[:, rows]
    values = None
    if sketch is not None:
        values = sketched_eigenvalues(products, diagonal, random)
    by_column = forms.weighted[:, 1 : b + 1]
    if signs is not None:
        by_column = jnp.concatenate([signs.of_shares(forms.shares), by_column], axis=1)
    return QuadraticSums(
        total=forms.weighted[:, 0],
        diagonal=diagonal,
        row_sums=row_sums,
        forms=by_column,
        squares=squared if squares else None,
        eigenvalues=values,
    )


def _arranged(
    features: Features, columns: _Columns, signs: HadamardSigns, side: int
) -> tuple[Features, _Columns, Array]:
    """Return features and columns with rows in the order of `Places`, and the row of each
    observation, [n]. The columns then include the signs and patterns of `Places`."""
    places = signs.arranged(side)
    dtype = columns.weights.dtype
    real = places.signs != 0

    def of_rows(leaf: Array) -> Array:
        return jnp.where(real[:, None], leaf[places.observations], 0)

    weights, sketch = of_rows(columns.weights), of_rows(columns.sketch)
    columns = _Columns(
        weights, sketch, places.signs.astype(dtype)[:, None], places.patterns.astype(dtype)
    )
    features = jax.tree.map(lambda leaf: leaf[places.observations], features)
    return features, columns, places.rows


def count(features: Features) -> int:
    """Return the length of the leading axis of all leaves; ValueError if lengths differ."""
    counts = {leaf.shape[0] for leaf in jax.tree.leaves(features)}
    if len(counts) != 1:
        raise ValueError(f"features: leading axes must agree, got {sorted(counts)}")
    return counts.pop()


def ordered_pairs(n: int) -> float:
    """Return n (n - 1) as a float: from n = 46,342 on it overflows 32-bit integers."""
    return float(n * (n - 1))


def _with_ones(weights: Array, dtype: jnp.dtype) -> Array:
    """Return a column of ones, the weights, and ones up to a multiple of `LANES` columns."""
    more = -(weights.shape[1] + 1) % LANES
    ones = jnp.ones((weights.shape[0], 1 + more), dtype)
    return jnp.concatenate([ones[:, :1], weights.astype(dtype), ones[:, 1:]], axis=1)


def _side(n: int, tile: int, devices: int, group: int) -> int:
    """Return the number of rows of a tile, a multiple of ``group``; every device gets a tile."""
    if devices == 1 and n <= tile:
        side = n
    else:
        tiles = max(-(-n // tile), 2, int(np.ceil(np.sqrt(2 * devices))))
        side = min(n - 1, -(-n // tiles))
    return -(-side // group) * group


def _tile(pairwise, rows, cols, columns_i, columns_j, offset, group, squares) -> _Tile:
    """Return the sums of one tile; ``offset``: index of its first row minus its first column."""
    h = pairwise.block(rows, cols)
    side = jnp.arange(h.shape[-1])
    h = jnp.where((side[: h.shape[-2], None] + offset == side[None])[None], 0, h)
    hw = h @ columns_j.weights
    one = jnp.ones((1, h.shape[-2]), h.dtype)
    weighted = (one @ (columns_i.weights[None] * hw))[:, 0, :]
    real_i, real_j = columns_i.weights[:, 0], columns_j.weights[:, 0]  # 0 for padding
    squared = jnp.zeros(h.shape[0] + (h.shape[0] > 1), h.dtype)
    if squares:
        squared = jnp.einsum("i,cij,j->c", real_i, with_total(h) ** 2, real_j)
    across = jnp.swapaxes(h, 1, 2) @ (real_i[:, None] * columns_i.sketch)
    sums = hw[:, :, 0], jnp.einsum("i,cij->cj", real_i, h)
    shares = _shares(h, columns_i, columns_j, group)
    return _Tile(_Forms(weighted, shares), *sums, squared, h @ columns_j.sketch, across)


def _shares(
    h: Float[Array, "c r s"], columns_i: _Columns, columns_j: _Columns, group: int
) -> Float[Array, "c m p"]:
    """Return sums of h_ij s_i s_j p_ik p_jk, [c, m, p], with signs s and patterns p. Entry (g, k)
    sums over pairs with a_i xor a_j = g, where a_i is the member number of i in its group."""
    if columns_i.signs.shape[1] == 0:
        return jnp.zeros((h.shape[0], group, 0), h.dtype)
    parts = fold(h * (columns_i.signs * columns_j.signs.T)[None], group)
    rows, cols = parts.shape[-2:]
    products = (parts.reshape(-1, cols) @ columns_j.patterns).reshape(*parts.shape[:2], rows, -1)
    return jnp.sum(products * columns_i.patterns[None, None], axis=2)


def _walk(pairwise, first, second, factor, features, columns, *, n, side, group, squares):
    """Return forms, row sums, squares and sketch products, summed over tiles (``first[k]``,
    ``second[k]``) of H. ``factor[k]``: 1 on the diagonal, 2 above it, 0 for padding."""
    tiles = -(-n // side)

    def cut(leaf, rows, filling):
        filling = jnp.broadcast_to(filling, (tiles * rows - leaf.shape[0], *leaf.shape[1:]))
        return jnp.concatenate([leaf, filling]).reshape(tiles, rows, *leaf.shape[1:])

    sizes = _Columns(side, side, side, side // group)
    in_tiles = (
        # pad with copies of a real observation, which add no NaN
        jax.tree.map(lambda leaf: cut(leaf, side, leaf[:1]), features),
        jax.tree.map(lambda leaf, k: cut(leaf, k, jnp.zeros((), leaf.dtype)), columns, sizes),
    )

    @jax.checkpoint
    def step(carry, item):
        i, j, factor = item
        (rows, columns_i), (cols, columns_j) = (
            jax.tree.map(lambda leaf, k=k: leaf[k], in_tiles) for k in (i, j)
        )
        part = _tile(pairwise, rows, cols, columns_i, columns_j, (i - j) * side, group, squares)
        # Kahan's compensated sum
        term = jax.tree.map(lambda new, lost: new * factor - lost, part.forms, carry.lost)
        forms = jax.tree.map(jnp.add, carry.forms, term)
        lost = jax.tree.map(lambda new, old, x: (new - old) - x, forms, carry.forms, term)
        upper = (factor > 1).astype(factor.dtype)
        row_sums = _add_at(carry.row_sums, i * side, part.row_sums * jnp.minimum(factor, 1))
        row_sums = _add_at(row_sums, j * side, part.col_sums * upper)
        products = _add_at(carry.products, i * side, part.row_products * jnp.minimum(factor, 1))
        products = _add_at(products, j * side, part.col_products * upper)
        squared = carry.squares + part.squares * factor
        return _Carry(forms, lost, row_sums, squared, products), None

    channels, weights = pairwise.channels, columns.weights
    dtype, k = weights.dtype, weights.shape[1]
    shares = jnp.zeros((channels, group, columns.patterns.shape[1]), dtype)
    zeros = _Forms(jnp.zeros((channels, k), dtype), shares)
    rows = jnp.zeros((channels, tiles * side), dtype)
    products = jnp.zeros((channels, tiles * side, columns.sketch.shape[1]), dtype)
    squared = jnp.zeros(channels + (channels > 1), dtype)
    start = _Carry(zeros, zeros, rows, squared, products)
    carry, _ = jax.lax.scan(step, start, (first, second, factor))
    return carry.forms, carry.row_sums, carry.squares, carry.products


def _add_at(sums: Array, start: Array, values: Array) -> Array:
    old = jax.lax.dynamic_slice_in_dim(sums, start, values.shape[1], axis=1)
    return jax.lax.dynamic_update_slice_in_dim(sums, old + values, start, axis=1)


def _over_tiles(walk, mesh: Mesh | None, tiles: int, features: Features, columns: _Columns):
    """Return the result of ``walk`` over the tiles i <= j, distributed over ``mesh``."""
    i, j = np.triu_indices(tiles)
    items = i, j, np.where(i == j, 1, 2)
    if mesh is not None:
        missing = -i.size % mesh.size
        # every k-th tile goes to the same device, which spreads the cheap diagonal ones evenly
        items = (np.pad(a, (0, missing)).reshape(-1, mesh.size).T.reshape(-1) for a in items)

    def run(shared, items):
        i, j, factor = items
        return walk(i, j, factor.astype(shared[1].weights.dtype), *shared)

    spread = over_rows(run, mesh=mesh, reduce=True)
    return spread((features, columns), tuple(map(jnp.asarray, items)))


def block_sums(
    pairwise: Pairwise, features: Features, size: int, *, squares: bool = False
) -> QuadraticSums:
    """Return sums over pairs within m consecutive blocks of ``size`` observations, without forms.
    ``total`` is [c, m]; ``row_sums`` are 0 for the last n mod size rows. Cost: O(n size) values.

    Pairs of the last n mod size observations are ignored. ValueError unless 2 <= size <= n."""
    n = count(features)
    if not 2 <= size <= n:
        raise ValueError(f"block size: wanted 2 <= size <= n={n}, got {size}")
    m = n // size
    blocks = jax.tree.map(lambda a: a[: m * size].reshape(m, size, *a.shape[1:]), features)

    diagonal = pairwise.diagonal(features)

    def one(block: Features) -> tuple[Array, Array]:
        weights = _with_ones(jnp.zeros((size, 0)), diagonal.dtype)
        none = weights[:, :0]
        columns = _Columns(weights, none, none, none[:0])
        tile = _tile(pairwise, block, block, columns, columns, 0, 1, squares)
        return tile.row_sums, tile.squares

    batch = max(1, TILE**2 // size**2)
    sums, squared = (
        jax.lax.map(one, blocks, batch_size=batch) if m > batch else jax.vmap(one)(blocks)
    )
    row_sums = jnp.moveaxis(sums, 0, 1)
    return QuadraticSums(
        total=jnp.sum(row_sums, axis=-1),
        diagonal=diagonal,
        row_sums=jnp.pad(row_sums.reshape(-1, m * size), ((0, 0), (0, n - m * size))),
        forms=diagonal[:, :0],
        squares=jnp.sum(squared, axis=0) if squares else None,
    )
