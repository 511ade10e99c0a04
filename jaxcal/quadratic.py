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
from jaxcal.results import Estimate
from jaxcal.typing import Features, Pairwise, Scalar

TILE = 512  # a float32 tile is 1 MiB: it stays in a core's second-level cache
LANES = 8  # matrix products want their columns in multiples of this


class QuadraticSums(NamedTuple):
    """Sums over pairs of n observations, for each channel c of h (h is the sum of its channels).

    ``total`` [c]: sum of h_ij over i != j. ``diagonal`` [c, n]: h_ii. ``row_sums`` [c, n]: sum of
    h_ij over j != i. ``forms`` [c, b]: sum of w_i w_j h_ij over i != j. ``squares`` [c]: sum of
    h_ij^2 over i != j, and ``all_squares`` []: the same for the sum of the channels; where asked.
    ``eigenvalues`` [r, k]: the largest of H without its diagonal, nearly, or 0 in their place where
    they are negative; the sum of the channels first and then each channel where there are several;
    where asked.
    """

    total: Float[Array, " c"]
    diagonal: Float[Array, "c n"]
    row_sums: Float[Array, "c n"]
    forms: Float[Array, "c b"]
    squares: Float[Array, " c"] | None = None
    all_squares: Scalar | None = None
    eigenvalues: Float[Array, "r k"] | None = None


class _Tile(NamedTuple):
    forms: Float[Array, "c k"]
    row_sums: Float[Array, "c r"]
    col_sums: Float[Array, "c s"]
    squares: Float[Array, " c1"]  # the channels', then that of their sum
    row_products: Float[Array, "c r q"]  # h times the sketch, q = 0 where there is none
    col_products: Float[Array, "c s q"]


class _Carry(NamedTuple):
    forms: Float[Array, "c k"]
    lost: Float[Array, "c k"]  # what rounding has taken from ``forms`` so far (Kahan)
    row_sums: Float[Array, "c n"]
    squares: Float[Array, " c1"]
    products: Float[Array, "c n q"]


def quadratic_sums(
    pairwise: Pairwise,
    features: Features,
    weights: Float[Array, "n b"],
    *,
    squares: bool = False,
    sketch: Float[Array, "n q"] | None = None,
    tile: int = TILE,
    mesh: Mesh | None = None,
) -> QuadraticSums:
    """All sums over pairs in one pass over blocks of H.

    Args:
        pairwise: The statistic.
        features: Pytree with leading axis n.
        weights: [n, b], one bootstrap draw a column; b may be 0.
        squares: Whether sums of squares of h are wanted.
        sketch: [n, q] normal draws that the largest q eigenvalues of H are taken from, or None.
        tile: Observations on the side of a tile.
        mesh: Devices that share the tiles; results differ between meshes by rounding only.

    Returns:
        `QuadraticSums`. Not finite where h is not. Differentiable: the backward pass computes the
        blocks again.

    Raises:
        ValueError: fewer than 2 observations, or weights of another length.

    Cost: n^2 (b + 2 q) multiplications and n^2 / 2 values of h.
    """
    n = count(features)
    if n < 2:
        raise ValueError(f"a sum over pairs needs at least 2 observations, got n={n}")
    if weights.shape[0] != n:
        raise ValueError(f"weights: wanted one row an observation, n={n}, got {weights.shape}")
    if tile < 1:
        raise ValueError(f"tile: wanted a positive number of observations, got {tile}")
    walk = partial(_sums, squares=squares, tile=tile, mesh=mesh)
    return one_at_a_time(walk)(pairwise, features, weights, sketch)


def pair_means(
    pairwise: Pairwise, features: Features, *, tile: int = TILE, mesh: Mesh | None = None
) -> Estimate:
    """The means of h over pairs of different observations, and over all pairs."""
    none = jnp.zeros((count(features), 0))
    return means(quadratic_sums(pairwise, features, none, tile=tile, mesh=mesh))


def means(sums: QuadraticSums) -> Estimate:
    """The means of h over pairs of different observations, and over all pairs, from the sums."""
    n, total = sums.diagonal.shape[1], jnp.sum(sums.total)
    return Estimate(total / ordered_pairs(n), (total + jnp.sum(sums.diagonal)) / float(n**2))


def _sums(
    pairwise: Pairwise,
    features: Features,
    weights: Array,
    sketch: Array | None,
    *,
    squares: bool,
    tile: int,
    mesh: Mesh | None,
) -> QuadraticSums:
    n, b = weights.shape
    diagonal = pairwise.diagonal(features)
    columns = _columns(weights, diagonal.dtype)
    random = jnp.zeros((n, 0)) if sketch is None else sketch
    random = random.astype(diagonal.dtype)
    side = _side(n, tile, 1 if mesh is None else mesh.size)
    if side >= n:
        both = columns, random
        whole = _tile(pairwise, features, features, both, both, 0, squares)
        forms, row_sums, squared = whole.forms, whole.row_sums, whole.squares
        products = whole.row_products
    else:
        walk = partial(_walk, pairwise, n=n, side=side, squares=squares)
        spread = _spread(walk, mesh, -(-n // side))
        forms, row_sums, squared, products = spread(features, (columns, random))
    values = None
    if sketch is not None:
        values = eigenvalues(products[:, :n], diagonal, random)
    return QuadraticSums(
        total=forms[:, 0],
        diagonal=diagonal,
        row_sums=row_sums[:, :n],
        forms=forms[:, 1 : b + 1],
        squares=squared[:-1] if squares else None,
        all_squares=squared[-1] if squares else None,
        eigenvalues=values,
    )


def eigenvalues(
    products: Float[Array, "c n q"], diagonal: Float[Array, "c n"], sketch: Float[Array, "n q"]
) -> Float[Array, "r q"]:
    r"""The largest q eigenvalues of each channel of H without its diagonal D, nearly.

    ``products`` are H - D times q random columns ``sketch``. H, positive semidefinite, is taken for
    :math:`Y (\Omega^\top Y)^{-1} Y^\top = V \Lambda V^\top`, :math:`Y = H \Omega`, and the
    eigenvalues are those of :math:`\Lambda - V^\top D V`. The sum over channels first where there
    are several. Cost 2 n q^2. Source: Tropp, Yurtsever, Udell and Cevher (2017), Algorithm 3.
    """
    if products.shape[0] > 1:
        products, diagonal = (
            jnp.concatenate([jnp.sum(part, axis=0, keepdims=True), part])
            for part in (products, diagonal)
        )

    def of_channel(y: Float[Array, "n q"], diagonal: Float[Array, " n"]) -> Float[Array, " q"]:
        y = y + diagonal[:, None] * sketch
        # a shift by rounding, which is taken off again, tells directions from noise
        shift = jnp.finfo(y.dtype).eps * jnp.sqrt(jnp.sum(y**2))
        y = y + shift * sketch
        core = sketch.T @ y
        sizes, directions = jnp.linalg.eigh((core + core.T) / 2)
        real = sizes > shift * sketch.shape[0] / 2
        half = y @ (directions * jnp.where(real, jnp.where(real, sizes, 1) ** -0.5, 0)[None])
        values, rotation = jnp.linalg.eigh(half.T @ half)
        seen = values > shift
        basis = half @ (rotation * jnp.where(seen, jnp.where(seen, values, 1) ** -0.5, 0)[None])
        inner = jnp.diag(jnp.where(seen, values - shift, 0))
        return jnp.linalg.eigvalsh(inner - basis.T @ (diagonal[:, None] * basis))

    with jax.default_matmul_precision("highest"):
        return jax.vmap(of_channel)(products, diagonal)


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


def _tile(pairwise, rows, cols, columns_i, columns_j, offset, squares) -> _Tile:
    """The sums of one tile; ``offset`` is the row number of its first row minus its column's.

    Columns are those of the weights, and those of the sketch."""
    (weights_i, sketch_i), (weights_j, sketch_j) = columns_i, columns_j
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
    across = jnp.swapaxes(h, 1, 2) @ (real_i[:, None] * sketch_i)
    sums = hw[:, :, 0], jnp.einsum("i,cij->cj", real_i, h)
    return _Tile(forms, *sums, squared, h @ sketch_j, across)


def _walk(pairwise, first, second, factor, features, columns, *, n, side, squares):
    """Sums over the listed tiles: ``factor`` 1 on the diagonal, 2 above it, 0 for padding."""
    tiles = -(-n // side)
    pad = tiles * side - n

    def padded(leaf):
        # repeats of a real observation, so that padding brings no NaN of its own
        return jnp.concatenate([leaf, jnp.broadcast_to(leaf[:1], (pad, *leaf.shape[1:]))])

    features = jax.tree.map(padded, features)
    columns = jax.tree.map(lambda leaf: jnp.pad(leaf, ((0, pad), (0, 0))), columns)
    weights, sketch = columns

    def cut(leaf, k):
        return jax.lax.dynamic_slice_in_dim(leaf, k * side, side)

    @jax.checkpoint
    def step(carry, item):
        i, j, factor = item
        (rows, columns_i), (cols, columns_j) = (
            jax.tree.map(lambda leaf, k=k: cut(leaf, k), (features, columns)) for k in (i, j)
        )
        part = _tile(pairwise, rows, cols, columns_i, columns_j, (i - j) * side, squares)
        # Kahan's compensated sum
        term = part.forms * factor - carry.lost
        forms = carry.forms + term
        lost = (forms - carry.forms) - term
        upper = (factor > 1).astype(factor.dtype)
        row_sums = _add_at(carry.row_sums, i * side, part.row_sums * jnp.minimum(factor, 1))
        row_sums = _add_at(row_sums, j * side, part.col_sums * upper)
        products = _add_at(carry.products, i * side, part.row_products * jnp.minimum(factor, 1))
        products = _add_at(products, j * side, part.col_products * upper)
        squared = carry.squares + part.squares * factor
        return _Carry(forms, lost, row_sums, squared, products), None

    channels, dtype = pairwise.channels, weights.dtype
    zeros = jnp.zeros((channels, weights.shape[1]), dtype)
    rows = jnp.zeros((channels, tiles * side), dtype)
    products = jnp.zeros((channels, tiles * side, sketch.shape[1]), dtype)
    start = _Carry(zeros, zeros, rows, jnp.zeros(channels + 1, dtype), products)
    carry, _ = jax.lax.scan(step, start, (first, second, factor))
    return carry.forms, carry.row_sums, carry.squares, carry.products


def _add_at(sums: Array, start: Array, values: Array) -> Array:
    old = jax.lax.dynamic_slice_in_dim(sums, start, values.shape[1], axis=1)
    return jax.lax.dynamic_update_slice_in_dim(sums, old + values, start, axis=1)


def _spread(walk, mesh: Mesh | None, tiles: int):
    """The walk over all tiles on and above the diagonal, shared out among the mesh's devices."""
    i, j = np.triu_indices(tiles)
    factor = np.where(i == j, 1, 2)

    def run(i, j, factor, features, columns):
        return walk(i, j, factor.astype(columns[0].dtype), features, columns)

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
        weights = _columns(jnp.zeros((size, 0)), diagonal.dtype)
        columns = weights, weights[:, :0]
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
