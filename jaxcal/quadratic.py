r"""THE engine: one walk over blocks of H accumulates every sum over pairs that a test needs.

H is never held. Blocks above the diagonal are computed once and count twice. For n observations,
b weight columns and tiles of side t the walk costs n^2 b flops (plus the blocks themselves) and
O(t^2 + n b) memory; up to one tile it is a single fused program. ``vmap`` over data sets or models
is one program too, which on a CPU walks them one at a time, in cache.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec
from jaxtyping import Array, Float

from jaxcal.batching import one_at_a_time
from jaxcal.typing import Features, Pairwise, Scalar

TILE = 512  # a float32 tile is 1 MiB: it stays in a core's second-level cache
LANES = 8  # matrix products want their columns in multiples of this


class QuadraticSums(NamedTuple):
    """Sums over pairs of n observations, for each channel c of h (h is the sum of its channels).

    ``total`` [c]: sum of h_ij over i != j. ``diagonal`` [c, n]: h_ii. ``row_sums`` [c, n]: sum of
    h_ij over j != i. ``forms`` [c, b]: sum of w_i w_j h_ij over i != j. ``squares`` [c]: sum of
    h_ij^2 over i != j, and ``all_squares`` []: the same for the sum of the channels; where asked.
    """

    total: Float[Array, " c"]
    diagonal: Float[Array, "c n"]
    row_sums: Float[Array, "c n"]
    forms: Float[Array, "c b"]
    squares: Float[Array, " c"] | None = None
    all_squares: Scalar | None = None


class _Tile(NamedTuple):
    forms: Float[Array, "c k"]
    row_sums: Float[Array, "c r"]
    col_sums: Float[Array, "c s"]
    squares: Float[Array, " c1"]  # the channels', then that of their sum


class _Carry(NamedTuple):
    forms: Float[Array, "c k"]
    lost: Float[Array, "c k"]  # what rounding has taken from ``forms`` so far (Kahan)
    row_sums: Float[Array, "c n"]
    squares: Float[Array, " c1"]


def quadratic_sums(
    pairwise: Pairwise,
    features: Features,
    weights: Float[Array, "n b"],
    *,
    squares: bool = False,
    tile: int = TILE,
    mesh: Mesh | None = None,
) -> QuadraticSums:
    """All sums over pairs in one pass over blocks of H.

    ``weights`` [n, b]: one bootstrap draw a column; b may be 0. ``mesh``: devices that share the
    tiles; results differ between meshes by rounding only. Raises ValueError if n < 2.
    Not finite where h is not. Differentiable: the backward pass computes the blocks again.
    """
    n = count(features)
    if n < 2:
        raise ValueError(f"a sum over pairs needs at least 2 observations, got n={n}")
    if weights.shape[0] != n:
        raise ValueError(f"weights: wanted one row an observation, n={n}, got {weights.shape}")
    if tile < 1:
        raise ValueError(f"tile: wanted a positive number of observations, got {tile}")
    walk = partial(_sums, squares=squares, tile=tile, mesh=mesh)
    return one_at_a_time(walk)(pairwise, features, weights)


def _sums(
    pairwise: Pairwise,
    features: Features,
    weights: Array,
    *,
    squares: bool,
    tile: int,
    mesh: Mesh | None,
) -> QuadraticSums:
    n, b = weights.shape
    diagonal = pairwise.diagonal(features)
    columns = _columns(weights, diagonal.dtype)
    side = _side(n, tile, 1 if mesh is None else mesh.size)
    if side >= n:
        whole = _tile(pairwise, features, features, columns, columns, 0, squares)
        forms, row_sums, squared = whole.forms, whole.row_sums, whole.squares
    else:
        walk = partial(_walk, pairwise, n=n, side=side, squares=squares)
        forms, row_sums, squared = _spread(walk, mesh, -(-n // side))(features, columns)
    return QuadraticSums(
        total=forms[:, 0],
        diagonal=diagonal,
        row_sums=row_sums[:, :n],
        forms=forms[:, 1 : b + 1],
        squares=squared[:-1] if squares else None,
        all_squares=squared[-1] if squares else None,
    )


def count(features: Features) -> int:
    """The number of observations; ValueError where the leaves disagree."""
    counts = {leaf.shape[0] for leaf in jax.tree.leaves(features)}
    if len(counts) != 1:
        raise ValueError(f"features: leading axes must agree, got {sorted(counts)}")
    return counts.pop()


def ordered_pairs(n: int) -> float:
    """n (n - 1), as a float: from n = 46,342 on it is no 32-bit integer."""
    return float(n * (n - 1))


def _columns(weights: Array, dtype: jnp.dtype) -> Array:
    """The draws between a column of ones (the statistic itself) and more of them, up to LANES."""
    more = -(weights.shape[1] + 1) % LANES
    # padding is fused with the drawing of the weights, so that they are held once
    return jax.lax.pad(weights.astype(dtype), jnp.ones((), dtype), ((0, 0, 0), (1, more, 0)))


def _side(n: int, tile: int, devices: int) -> int:
    """The side of the tiles: equal tiles, at least about one a device."""
    if devices == 1 and n <= tile:
        return n
    tiles = max(-(-n // tile), 2, int(np.ceil(np.sqrt(2 * devices))))
    return min(n - 1, -(-n // tiles))


def _tile(pairwise, rows, cols, weights_i, weights_j, offset, squares) -> _Tile:
    """The sums of one tile; ``offset`` is the row number of its first row minus its column's."""
    # the products inside a block cancel: the reduced precision some devices prefer is not enough
    with jax.default_matmul_precision("highest"):
        h = pairwise.block(rows, cols)
    side = jnp.arange(h.shape[-1])
    h = jnp.where((side[: h.shape[-2], None] + offset == side[None])[None], 0, h)
    hw = h @ weights_j
    one = jnp.ones((1, h.shape[-2]), h.dtype)
    forms = (one @ (weights_i[None] * hw))[:, 0, :]
    real_i, real_j = weights_i[:, 0], weights_j[:, 0]  # 0 for padding
    squared = jnp.zeros(h.shape[0] + 1, h.dtype)
    if squares:
        both = jnp.concatenate([h, jnp.sum(h, axis=0, keepdims=True)])
        squared = jnp.einsum("i,cij,j->c", real_i, both**2, real_j)
    return _Tile(forms, hw[:, :, 0], jnp.einsum("i,cij->cj", real_i, h), squared)


def _walk(pairwise, first, second, factor, features, columns, *, n, side, squares):
    """Sums over the listed tiles: ``factor`` 1 on the diagonal, 2 above it, 0 for padding."""
    tiles = -(-n // side)
    pad = tiles * side - n

    def padded(leaf):
        # repeats of a real observation, so that padding brings no NaN of its own
        return jnp.concatenate([leaf, jnp.broadcast_to(leaf[:1], (pad, *leaf.shape[1:]))])

    features = jax.tree.map(padded, features)
    columns = jnp.concatenate([columns, jnp.zeros((pad, columns.shape[1]), columns.dtype)])

    def cut(leaf, k):
        return jax.lax.dynamic_slice_in_dim(leaf, k * side, side)

    @jax.checkpoint
    def step(carry, item):
        i, j, factor = item
        rows, cols = (jax.tree.map(lambda leaf, k=k: cut(leaf, k), features) for k in (i, j))
        part = _tile(
            pairwise, rows, cols, cut(columns, i), cut(columns, j), (i - j) * side, squares
        )
        # Kahan's compensated sum
        term = part.forms * factor - carry.lost
        forms = carry.forms + term
        lost = (forms - carry.forms) - term
        upper = (factor > 1).astype(factor.dtype)
        row_sums = _add_at(carry.row_sums, i * side, part.row_sums * jnp.minimum(factor, 1))
        row_sums = _add_at(row_sums, j * side, part.col_sums * upper)
        return _Carry(forms, lost, row_sums, carry.squares + part.squares * factor), None

    zeros = jnp.zeros((pairwise.channels, columns.shape[1]), columns.dtype)
    rows = jnp.zeros((pairwise.channels, tiles * side), columns.dtype)
    start = _Carry(zeros, zeros, rows, jnp.zeros(pairwise.channels + 1, columns.dtype))
    carry, _ = jax.lax.scan(step, start, (first, second, factor))
    return carry.forms, carry.row_sums, carry.squares


def _add_at(sums: Array, start: Array, values: Array) -> Array:
    old = jax.lax.dynamic_slice_in_dim(sums, start, values.shape[1], axis=1)
    return jax.lax.dynamic_update_slice_in_dim(sums, old + values, start, axis=1)


def _spread(walk, mesh: Mesh | None, tiles: int):
    """The walk over all tiles on and above the diagonal, shared out among the mesh's devices."""
    i, j = np.triu_indices(tiles)
    factor = np.where(i == j, 1, 2)

    def run(i, j, factor, features, columns):
        return walk(i, j, factor.astype(columns.dtype), features, columns)

    if mesh is None:
        return partial(run, jnp.asarray(i), jnp.asarray(j), jnp.asarray(factor))
    missing = -i.size % mesh.size
    i, j, factor = (np.concatenate([a, np.zeros(missing, int)]) for a in (i, j, factor))
    axes = tuple(mesh.axis_names)

    def shared(*args):
        return jax.tree.map(lambda x: jax.lax.psum(x, axes), run(*args))

    split, whole = PartitionSpec(axes), PartitionSpec()
    # every k-th tile to the same device: the cheap diagonal ones are spread evenly
    i, j, factor = (a.reshape(-1, mesh.size).T.reshape(-1) for a in (i, j, factor))
    spread = jax.shard_map(
        shared,
        mesh=mesh,
        in_specs=(split, split, split, whole, whole),
        out_specs=whole,
        check_vma=False,
    )
    return partial(spread, jnp.asarray(i), jnp.asarray(j), jnp.asarray(factor))


class BlockSums(NamedTuple):
    """``means`` [c, m]: the mean of h_ij over i != j within each of m blocks; ``diagonal`` [c, n];
    ``row_sums`` [c, n]: sums within the blocks, 0 for observations left over. ``squares`` [c]: sum
    of h_ij^2 over i != j within the blocks, ``all_squares`` []: the same for the sum of the
    channels; where asked."""

    means: Float[Array, "c m"]
    diagonal: Float[Array, "c n"]
    row_sums: Float[Array, "c n"]
    squares: Float[Array, " c"] | None = None
    all_squares: Scalar | None = None


def block_sums(
    pairwise: Pairwise, features: Features, size: int, *, squares: bool = False
) -> BlockSums:
    """Means of h within consecutive blocks of ``size`` observations: O(n size) evaluations of h.

    The last n mod size observations are left out. Raises ValueError unless 2 <= size <= n.
    """
    n = count(features)
    if not 2 <= size <= n:
        raise ValueError(f"block size: wanted 2 <= size <= n={n}, got {size}")
    m = n // size
    blocks = jax.tree.map(lambda a: a[: m * size].reshape(m, size, *a.shape[1:]), features)

    diagonal = pairwise.diagonal(features)

    def one(block: Features) -> tuple[Array, Array]:
        columns = _columns(jnp.zeros((size, 0)), diagonal.dtype)
        tile = _tile(pairwise, block, block, columns, columns, 0, squares)
        return tile.row_sums, tile.squares

    batch = max(1, TILE**2 // size**2)
    sums, squared = (
        jax.lax.map(one, blocks, batch_size=batch) if m > batch else jax.vmap(one)(blocks)
    )
    row_sums = jnp.moveaxis(sums, 0, 1)
    return BlockSums(
        means=jnp.sum(row_sums, axis=-1) / ordered_pairs(size),
        diagonal=diagonal,
        row_sums=jnp.pad(row_sums.reshape(-1, m * size), ((0, 0), (0, n - m * size))),
        squares=jnp.sum(squared, axis=0)[:-1] if squares else None,
        all_squares=jnp.sum(squared, axis=0)[-1] if squares else None,
    )
