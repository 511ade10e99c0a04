r"""Sum h_ij = <z_i, z_j> over pairs of n observations, from the n vectors z_i [p] alone.

:math:`\sum_{i \neq j} w_i w_j h_{ij} = |Z^\top w|^2 - \sum_i w_i^2 |z_i|^2` for weights w, where Z
[n, p] has rows z_i, which are computed block by block and not stored. The nonzero eigenvalues of
[h_ij] are those of :math:`Z^\top Z`. With b weight columns this takes n p b multiplications.
Squares or eigenvalues take n p^2 / 2 more. Memory holds one block of Z and a [p, p] matrix.
"""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, PyTree

from jaxcal.engine import one_at_a_time, over_rows
from jaxcal.engine.quadratic import QuadraticSums, count
from jaxcal.typing import Features, OfVectors

ROWS = 4096  # rows per block: enough for a matrix product at full rate
SIDE = 256  # side of the blocks of a symmetric product: smaller ones cost more than they save


def linear_sums(
    pairwise: OfVectors,
    features: Features,
    weights: Float[Array, "n b"],
    *,
    squares: bool = False,
    eigenvalues: bool = False,
    rows: int = ROWS,
    mesh: Mesh | None = None,
) -> QuadraticSums:
    """Return sums of h_ij over pairs of observations, computed from one vector per observation.

    Args:
        pairwise: The statistic h, the inner product of ``vectors(features)``, [channels, p, n].
        features: Pytree with leading axis n >= 2.
        weights: [n, b], one column per draw of the null; b may be 0.
        squares: Whether to compute sums of squares of h.
        eigenvalues: Whether to compute the p largest eigenvalues of [h_ij] with diagonal 0; exact
            if all h_ii are equal.
        rows: Observations per block.
        mesh: Devices that share the observations; results differ between meshes by rounding only.

    Returns:
        `QuadraticSums`, as from `jaxcal.engine.quadratic.quadratic_sums`; not finite if a vector
        is not.

    Cost: two evaluations of each vector, and n p b multiplications. Squares or eigenvalues add n p
    (p + `SIDE`) / 2.
    """
    n = count(features)
    if n < 2:
        raise ValueError(f"a sum over pairs needs at least 2 observations, got n={n}")
    if weights.shape[0] != n:
        raise ValueError(f"weights: wanted one row per observation, n={n}, got {weights.shape}")
    walk = partial(_sums, squares=squares, eigenvalues=eigenvalues, rows=rows, mesh=mesh)
    return one_at_a_time(walk)(pairwise, features, weights)


Parts = list[Float[Array, "_ n"]]
Triangle = list[list[Float[Array, "_ _"]]]


def parts_of(z: Float[Array, "p n"]) -> Parts:
    """Return z split into parts of at most `SIDE` rows. Use only these parts afterwards: if z is
    used elsewhere too, the compiler recomputes all of z for every part."""
    return [z[k : k + SIDE] for k in range(0, len(z), SIDE)]


def along(parts: Parts, columns: Float[Array, "n b"]) -> Float[Array, "p b"]:
    """Return ``z @ columns`` from the parts of z."""
    return jnp.concatenate([part @ columns for part in parts])


def triangle(parts: Parts) -> Triangle:
    """Return the blocks of ``z @ z.T`` on and above the diagonal: one list per row of blocks."""
    return [[part @ other.T for other in parts[k:]] for k, part in enumerate(parts)]


def square(blocks: Triangle) -> Float[Array, "p p"]:
    """Return ``z @ z.T`` from the blocks that `triangle` returns."""
    k = range(len(blocks))
    return jnp.block([[blocks[i][j - i] if i <= j else blocks[j][i - j].T for j in k] for i in k])


def filled(features: PyTree, columns: Float[Array, "n b"], missing: int) -> PyTree:
    """Return features and columns padded by ``missing`` rows: features by copies of the first
    observation, so that padding cannot be NaN, and columns by zeros."""

    def repeated(leaf: Array) -> Array:
        return jnp.concatenate([leaf, jnp.broadcast_to(leaf[:1], (missing, *leaf.shape[1:]))])

    return jax.tree.map(repeated, features), jnp.pad(columns, ((0, missing), (0, 0)))


def in_blocks(tree: PyTree, rows: int) -> PyTree:
    """Return arrays with leading axis k * rows reshaped to k blocks, [k, rows, ...]."""
    return jax.tree.map(lambda leaf: leaf.reshape(-1, rows, *leaf.shape[1:]), tree)


def total(function: Callable[[PyTree], PyTree], blocks: PyTree) -> PyTree:
    """Return the sum of ``function(block)`` over blocks, with Kahan's compensation."""

    @jax.checkpoint
    def step(carry: PyTree, block: PyTree) -> tuple[PyTree, None]:
        sums, lost = carry
        term = jax.tree.map(jnp.subtract, function(block), lost)
        added = jax.tree.map(jnp.add, sums, term)
        return (added, jax.tree.map(lambda a, s, x: (a - s) - x, added, sums, term)), None

    shapes = jax.eval_shape(function, jax.tree.map(lambda leaf: leaf[0], blocks))
    zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
    return jax.lax.scan(step, (zeros, zeros), blocks)[0][0]


def _sums(
    pairwise: OfVectors,
    features: Features,
    weights: Array,
    *,
    squares: bool,
    eigenvalues: bool,
    rows: int,
    mesh: Mesh | None,
) -> QuadraticSums:
    n, channels = weights.shape[0], pairwise.channels
    dtype = jax.eval_shape(pairwise.vectors, features).dtype
    devices = 1 if mesh is None else mesh.size
    side = min(rows, -(-n // devices))
    columns = jnp.concatenate([jnp.ones((n, 1), dtype), weights.astype(dtype)], axis=1)
    data = filled(features, columns, -n % (side * devices))

    @partial(over_rows, mesh=mesh, reduce=True)
    def gather(pairwise: OfVectors, data: PyTree) -> tuple[Array, Triangle]:
        def of_block(block: PyTree) -> tuple[Array, Triangle]:
            features, columns = block
            z = pairwise.vectors(features) * columns[None, None, :, 0]  # 0 for padding
            parts = parts_of(z.reshape(-1, side))
            return along(parts, columns), triangle(parts) if squares or eigenvalues else []

        return total(of_block, in_blocks(data, side))

    @partial(over_rows, mesh=mesh, reduce=False)
    def spread(shared: PyTree, data: PyTree) -> tuple[Array, Array]:
        def one(block: PyTree) -> tuple[Array, Array]:
            z = shared[0].vectors(block[0])
            return jnp.sum(z**2, axis=1), jnp.einsum("cp,cpn->cn", shared[1], z)

        return jax.lax.map(one, in_blocks(data, side))

    sums, blocks = gather(pairwise, data)
    sums = sums.reshape(channels, -1, columns.shape[1])
    diagonal, with_all = (
        jnp.moveaxis(part, 0, 1).reshape(channels, -1)[:, :n]
        for part in spread((pairwise, sums[..., 0]), data)
    )
    forms = jnp.sum(sums**2, axis=1) - diagonal @ columns**2
    result = QuadraticSums(forms[:, 0], diagonal, with_all - diagonal, forms[:, 1:])
    if not blocks:
        return result
    products = square(blocks)
    p = products.shape[0] // channels
    ends = [slice(k * p, (k + 1) * p) for k in range(channels)]
    by_channel = jnp.stack([products[end, end] for end in ends])
    if squares:
        every = jnp.sum(products**2) - jnp.sum(jnp.sum(diagonal, axis=0) ** 2)
        each = jnp.sum(by_channel**2, axis=(1, 2)) - jnp.sum(diagonal**2, axis=1)
        result = result._replace(squares=jnp.append(every, each if channels > 1 else each[:0]))
    if eigenvalues:
        # subtract the mean in place of the diagonal of H: nearly equal along p of n directions
        means = jnp.mean(diagonal, axis=1)
        every = jnp.linalg.eigvalsh(products)[None] - jnp.sum(means)
        if channels > 1:
            each = jnp.linalg.eigvalsh(by_channel) - means[:, None]
            each = jnp.pad(each, ((0, 0), (every.shape[1] - each.shape[1], 0)))
            every = jnp.concatenate([every, each])
        result = result._replace(eigenvalues=every)
    return result
