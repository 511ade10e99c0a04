r"""Sums over pairs where h is an inner product of vectors z_i: n p numbers instead of n^2.

:math:`\sum_{i \neq j} w_i w_j \langle z_i, z_j \rangle = |Z^\top w|^2 - \sum_i w_i^2 |z_i|^2`, and
the eigenvalues of H other than 0 are those of :math:`Z^\top Z`. Vectors are made block by block and
never held. For p numbers an observation and b weight columns the walk costs n p b multiplications,
n p^2 / 2 more where squares or eigenvalues are asked for, and O(rows p + p^2) memory.
"""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh
from jaxtyping import Array, Float, PyTree

from jaxcal.batching import one_at_a_time, over_rows
from jaxcal.quadratic import QuadraticSums, count
from jaxcal.typing import Features, OfVectors

ROWS = 2048  # at a time: enough for a matrix product at full rate
SIDE = 256  # of the blocks of a symmetric product: smaller ones are slower by more than they save


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
    """All sums over pairs of observations, from sums of their vectors.

    Args:
        pairwise: The statistic, with ``vectors(features)`` of shape [channels, p, n].
        features: Pytree with leading axis n.
        weights: [n, b], one draw of the null a column; b may be 0.
        squares: Whether sums of squares of h are wanted.
        eigenvalues: Whether the p largest eigenvalues of H without its diagonal are wanted, exact
            where the diagonal is constant.
        rows: Observations at a time.
        mesh: Devices that share the observations; results differ between meshes by rounding only.

    Returns:
        `QuadraticSums`, as from `jaxcal.quadratic.quadratic_sums`. Not finite where a vector is
        not.

    Raises:
        ValueError: fewer than 2 observations, or weights of another length.

    Cost: vectors of each observation twice, n p b multiplications, and for squares or eigenvalues
    n p^2 / 2, or as much more as a triangle of blocks of `SIDE` is above half a square.
    """
    n = count(features)
    if n < 2:
        raise ValueError(f"a sum over pairs needs at least 2 observations, got n={n}")
    if weights.shape[0] != n:
        raise ValueError(f"weights: wanted one row an observation, n={n}, got {weights.shape}")
    walk = partial(_sums, squares=squares, eigenvalues=eigenvalues, rows=rows, mesh=mesh)
    return one_at_a_time(walk)(pairwise, features, weights)


class VectorSums(NamedTuple):
    """Of n vectors z [c, p, n] and weight columns w: ``along`` [b, c, p], their weighted sums;
    ``products``, the sum of z z^T over all channels [c p, c p] as `triangle`, () where not asked
    for."""

    along: Float[Array, "b c p"]
    products: tuple[Float[Array, "_ _"], ...]


def vector_sums(
    z: Float[Array, "c p n"], columns: Float[Array, "n b"], *, products: bool
) -> VectorSums:
    """Sums over the observations of one block; ``columns`` are 0 for padding in all entries.

    Cost n c p b multiplications, and n (c p)^2 / 2 for the products.
    """
    c, p, n = z.shape
    # the products decide p-values to many digits: reduced precision is not enough
    with jax.default_matmul_precision("highest"):
        flat = z.reshape(c * p, n)
        along = (flat @ columns).T.reshape(-1, c, p)
        return VectorSums(along, triangle(flat) if products else ())


def triangle(z: Float[Array, "p n"]) -> tuple[Float[Array, "_ _"], ...]:
    """``z @ z.T`` as rows of blocks, each row from its block on the diagonal to the right."""
    return tuple(z[k : k + SIDE] @ z[k:].T for k in range(0, len(z), SIDE))


def square(rows: tuple[Float[Array, "_ _"], ...]) -> Float[Array, "p p"]:
    """The symmetric matrix of the rows of its `triangle`."""
    p = rows[0].shape[1]
    upper = jnp.concatenate([jnp.pad(row, ((0, 0), (p - row.shape[1], 0))) for row in rows])
    return jnp.triu(upper) + jnp.triu(upper, 1).T


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
    missing = -n % (side * devices)
    columns = jnp.concatenate([jnp.ones((n, 1), dtype), weights.astype(dtype)], axis=1)

    def padded(leaf: Array) -> Array:
        # repeats of a real observation, so that padding brings no NaN of its own
        return jnp.concatenate([leaf, jnp.broadcast_to(leaf[:1], (missing, *leaf.shape[1:]))])

    def blocks(data: PyTree) -> PyTree:
        return jax.tree.map(lambda leaf: leaf.reshape(-1, side, *leaf.shape[1:]), data)

    def block_of(pairwise: OfVectors, block: PyTree) -> VectorSums:
        features, columns = block
        real = columns[:, 0]  # 0 for padding
        z = pairwise.vectors(features) * real[None, None]
        return vector_sums(z, columns, products=squares or eigenvalues)

    data = jax.tree.map(padded, features), jnp.pad(columns, ((0, missing), (0, 0)))

    @partial(over_rows, mesh=mesh, reduce=True)
    def gather(pairwise: OfVectors, data: PyTree) -> VectorSums:
        @jax.checkpoint
        def step(carry: PyTree, block: PyTree) -> tuple[PyTree, None]:
            sums, lost = carry
            # Kahan's compensated sum
            term = jax.tree.map(jnp.subtract, block_of(pairwise, block), lost)
            total = jax.tree.map(jnp.add, sums, term)
            return (total, jax.tree.map(lambda t, s, x: (t - s) - x, total, sums, term)), None

        data = blocks(data)
        shapes = jax.eval_shape(block_of, pairwise, jax.tree.map(lambda leaf: leaf[0], data))
        zeros = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        return jax.lax.scan(step, (zeros, zeros), data)[0][0]

    @partial(over_rows, mesh=mesh, reduce=False)
    def spread(shared: PyTree, data: PyTree) -> tuple[Array, Array]:
        def one(block: PyTree) -> tuple[Array, Array]:
            z = shared[0].vectors(block[0])
            return jnp.sum(z**2, axis=1), jnp.einsum("cp,cpn->cn", shared[1], z)

        return jax.lax.map(one, blocks(data))

    sums = gather(pairwise, data)
    diagonal, with_all = (
        jnp.moveaxis(part, 0, 1).reshape(channels, -1)[:, :n]
        for part in spread((pairwise, sums.along[0]), data)
    )
    forms = jnp.sum(sums.along**2, axis=-1).T - diagonal @ columns**2
    result = QuadraticSums(forms[:, 0], diagonal, with_all - diagonal, forms[:, 1:])
    if not sums.products:
        return result
    products = square(sums.products)
    apart = _channel_blocks(products, channels)
    if squares:
        result = result._replace(
            squares=jnp.sum(apart**2, axis=(1, 2)) - jnp.sum(diagonal**2, axis=1),
            all_squares=jnp.sum(products**2) - jnp.sum(jnp.sum(diagonal, axis=0) ** 2),
        )
    if eigenvalues:
        # without the diagonal of H, which is nearly its mean in each of few directions of n
        means = jnp.mean(diagonal, axis=1)
        every = jnp.linalg.eigvalsh(products)[None] - jnp.sum(means)
        if channels > 1:
            each = jnp.linalg.eigvalsh(apart) - means[:, None]
            each = jnp.pad(each, ((0, 0), (every.shape[1] - each.shape[1], 0)))
            every = jnp.concatenate([every, each])
        result = result._replace(eigenvalues=every)
    return result


def _channel_blocks(products: Float[Array, "cp cp"], channels: int) -> Float[Array, "c p p"]:
    p = products.shape[0] // channels
    return jnp.stack([products[k * p : (k + 1) * p, k * p : (k + 1) * p] for k in range(channels)])
