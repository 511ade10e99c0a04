"""Bounds, extremes and roots that propagate NaN; linear solves; random numbers.

On a CPU the compiler may drop NaN in a fused ``maximum`` or ``minimum``, and in a maximum over many
entries: ``sum(maximum(x, 0))`` of more than a few thousand entries with one NaN is finite. A
comparison with ``where`` keeps NaN, so the package bounds floats only by these functions.
"""

import functools
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike
from jaxtyping import Array, Float, Int, PyTree, UInt32

from jaxcal.typing import DTypeLike

TURN = 2 * math.pi
CORRELATED = 0.1  # draws with a larger lag-one correlation count as dependent
PANEL = 20  # most rows of a large matrix that are eliminated together
# coefficients in x^2 of cos(pi x / 2) and sin(pi x / 2) / x, from Chebyshev nodes of [0, 1]
COSINE = (0.9999999998, -1.233700534, 0.2536693222, -0.02086268671, 9.177229238e-4, -2.38241523e-5)
SINE = (1.570796327, -0.6459640956, 0.07969260369, -4.681657707e-3, 1.602545899e-4, -3.431788893e-6)

Arguments = ParamSpec("Arguments")
Outcome = TypeVar("Outcome")


def full_precision(function: Callable[Arguments, Outcome]) -> Callable[Arguments, Outcome]:
    """Return the function with matrix products in full precision, also in functions that it calls.
    By default GPUs and TPUs keep 10 bits or fewer of float32, which is too few for sums that
    cancel."""

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Outcome:
        with jax.default_matmul_precision("highest"):
            return function(*args, **kwargs)

    return call


@functools.cache
def most_maps() -> float:
    """Return the number of memory maps that a process may have; infinity if that is unknown."""
    try:
        return float(Path("/proc/sys/vm/max_map_count").read_bytes())
    except OSError:  # not Linux
        return math.inf


def make_room() -> None:
    """Drop all compiled programs if the process uses more than half of its permitted memory maps:
    LLVM aborts at the limit. A large program uses about 800 maps (JAX 0.10) to 1,500 (0.12)."""
    most, maps = most_maps(), Path("/proc/self/maps")
    if math.isfinite(most) and maps.read_bytes().count(b"\n") > most / 2:
        jax.clear_caches()


def at_least(x: Array, low: ArrayLike) -> Array:
    """Return ``maximum(x, low)``; NaN if either is NaN. At ties the derivative is that of x."""
    return jnp.where((x < low) | jnp.isnan(low), low, x)


def at_most(x: Array, high: ArrayLike) -> Array:
    """Return ``minimum(x, high)``; NaN if either is NaN. At ties the derivative is that of x."""
    return jnp.where((x > high) | jnp.isnan(high), high, x)


def largest(x: Array, axis: int | None = None) -> Array:
    """Return ``max(x)`` along an axis, or of all entries; NaN if one of them is NaN."""
    return jnp.where(jnp.any(jnp.isnan(x), axis=axis), jnp.nan, jnp.max(x, axis=axis))


def smallest(x: Array, axis: int | None = None) -> Array:
    """Return ``min(x)`` along an axis, or of all entries; NaN if one of them is NaN."""
    return -largest(-x, axis)


def not_finite(tree: PyTree) -> Int[Array, ""]:
    """Return the number of entries of a pytree that are NaN or infinite."""
    leaves = [jnp.asarray(leaf) for leaf in jax.tree.leaves(tree)]
    leaves = [leaf for leaf in leaves if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    # float32 sums compile to fewer kernels than those of integers, and count to 2^24 exactly
    counts = [jnp.sum(~jnp.isfinite(leaf), dtype=jnp.float32) for leaf in leaves]
    return sum(counts, start=jnp.zeros((), jnp.float32)).astype(int)


def group_sums(x: Array, group: Array, k: int) -> Array:
    """Return the sum of ``x`` [n, ...] in each of k groups, [k, ...]; ``group`` [n], from 0.

    Rows are first added in blocks of at most max(64, k), because rounding errors of one long sum
    in float32 may reach some percent. Memory O(n + k) for each column.
    """
    side = max(64, k)
    blocks = -(-x.shape[0] // side)
    block = jnp.arange(x.shape[0], dtype=group.dtype) // side
    parts = jax.ops.segment_sum(x, group + k * block, blocks * k)
    return jnp.sum(parts.reshape(blocks, k, *x.shape[1:]), axis=0)


def with_total(by_channel: Array) -> Array:
    """Return the sum over channels and then, if there are several, the channels, stacked."""
    if by_channel.shape[0] == 1:
        return by_channel
    return jnp.concatenate([jnp.sum(by_channel, axis=0, keepdims=True), by_channel])


def bisected(
    rises: Callable[[Array], Array], low: Array, high: Array, steps: int
) -> tuple[Array, Array]:
    """Return the ends of intervals halved ``steps`` times: the low end moves to the middle where
    ``rises(middle)``, else the high end."""

    def halve(_: object, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        middle = (low + high) / 2
        above = rises(middle)
        return jnp.where(above, middle, low), jnp.where(above, high, middle)

    return jax.lax.fori_loop(0, steps, halve, (low, high))


def binary_size(x: Array) -> Array:
    """Return the smallest power of two above ``abs(x)``; 1 for 0, NaN and infinity. Dividing x by
    it loses no digits, and the square of the quotient neither overflows nor underflows."""
    unsigned = jnp.uint32 if x.dtype == jnp.float32 else jnp.uint64
    exponent = jax.lax.bitcast_convert_type(jnp.asarray(jnp.inf, x.dtype), unsigned)
    bits = jax.lax.bitcast_convert_type(jax.lax.stop_gradient(x), unsigned) & exponent
    below = jax.lax.bitcast_convert_type(bits, x.dtype)  # 0 for 0, infinite for NaN too
    return jnp.where((below > 0) & (below < jnp.inf), 2 * below, 1)


def in_order(x: Array) -> Array:
    """Return ``jnp.sort(x)`` along the last axis, sorted as integers: faster on a CPU."""
    signed = jnp.int32 if x.dtype == jnp.float32 else jnp.int64

    def turned(bits: Array) -> Array:  # reverse the order of negative numbers; its own inverse
        return jnp.where(bits < 0, bits ^ jnp.iinfo(signed).max, bits)

    bits = jax.lax.bitcast_convert_type(jnp.where(jnp.isnan(x), jnp.nan, x), signed)
    return jax.lax.bitcast_convert_type(turned(jnp.sort(turned(bits))), x.dtype)


def middle(points: Array) -> Array:
    """Return the lower median of each column of points [n, d]. NaN counts as largest."""
    return in_order(points.T)[:, (points.shape[0] - 1) // 2]


def cos_and_sin(turns: Array) -> tuple[Array, Array]:
    r"""Return cosine and sine of :math:`2 \pi x`, for x = ``turns``.

    In float32, polynomials with errors below 2e-7 are used, ten times faster on a CPU than the
    compiler's functions. Whole turns are subtracted without rounding.
    """
    if turns.dtype != jnp.float32:
        angle = TURN * (turns - jnp.round(turns))
        return jnp.cos(angle), jnp.sin(angle)
    halves = jnp.round(2 * turns)
    x = 2 * (2 * turns - halves)  # in quarters of a turn, -1 to 1
    sign = 1 - 2 * (halves - 2 * jnp.floor(halves / 2))
    return sign * _polynomial(COSINE, x * x), sign * x * _polynomial(SINE, x * x)


def _polynomial(coefficients: tuple[float, ...], x: Array) -> Array:
    value = jnp.full_like(x, coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = value * x + coefficient
    return value


class Eliminated(NamedTuple):
    r"""Solutions of linear equations for positive definite A [*, k, k] and columns V [*, k, b].

    Attributes:
        forms: :math:`v^\top A^{-1} v` of each column, [*, b].
        log_det: :math:`\log \det A`, [*].
        solutions: :math:`A^{-1} V`, [*, k, b].
    """

    forms: Float[Array, "*batch b"]
    log_det: Float[Array, "*batch"]
    solutions: Float[Array, "*batch k b"]


def eliminated(
    matrices: Float[Array, "*batch k k"], columns: Float[Array, "*batch k b"]
) -> Eliminated:
    """Return `Eliminated` by Gauss-Jordan elimination of one row or, if k > 2 `PANEL`, up to
    `PANEL` rows at a time. Pivots are at least eps times diagonals. No LAPACK: it may deadlock."""
    k = matrices.shape[-1]
    width = max(w for w in range(1, PANEL + 1 if k > 2 * PANEL else 2) if k % w == 0)
    both = jnp.concatenate([matrices, columns], axis=-1)
    least = jnp.finfo(both.dtype).eps * jnp.diagonal(matrices, axis1=-2, axis2=-1)[..., None]

    def step(carry: tuple[Array, Array, Array], j: Array) -> tuple[PyTree, None]:
        (both, forms, log_det), cut = carry, jax.lax.dynamic_slice_in_dim
        rows, before = cut(both, j, width, -2), cut(both, j, width, -1)
        if width > 1:
            more, logs, solved = eliminated(cut(rows, j, width, -1), rows)
        else:
            pivots = at_least(cut(rows, j, 1, -1), cut(least, j, 1, -2))
            logs, solved = jnp.log(pivots)[..., 0, 0], rows / pivots
            more = (solved * rows)[..., 0, :]
        if width > 1:
            both = jax.lax.dynamic_update_slice_in_dim(both - before @ solved, solved, j, -2)
        else:  # to update the slice would copy all of a small matrix
            row = jax.lax.broadcasted_iota(j.dtype, both.shape, both.ndim - 2)
            both = jnp.where(row == j, solved, both - before * solved)
        return (both, forms + more[..., k:], log_det + logs), None

    start = (both, jnp.zeros_like(columns[..., 0, :]), jnp.zeros_like(matrices[..., 0, 0]))
    (both, forms, log_det), _ = jax.lax.scan(step, start, jnp.arange(0, k, width))
    return Eliminated(forms, log_det, both[..., k:])


def uniforms(
    keys: Sequence[Array], shapes: Sequence[tuple[int, ...]], dtype: DTypeLike
) -> list[Array]:
    """Return the numbers of `jax.random.uniform` for each key and shape, all from one call,
    because compiling each call takes a quarter of a second."""
    most = max(map(math.prod, shapes))
    drawn = jax.vmap(lambda key: jax.random.uniform(key, (most,), dtype))(jnp.stack(keys))
    return [u[: math.prod(shape)].reshape(shape) for u, shape in zip(drawn, shapes, strict=True)]


def normals(key: Array, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
    """Return the numbers of `jax.random.normal`, drawn as one vector, which compiles faster."""
    return jax.random.normal(key, (math.prod(shape),), dtype).reshape(shape)


def normal_of(uniform: Array) -> Array:
    """Return normals from uniforms; equal to `jax.random.normal` with the key of the uniforms."""
    low = np.nextafter(np.asarray(-1, uniform.dtype), 0, dtype=uniform.dtype)
    return 2**0.5 * jax.lax.erf_inv(at_least(uniform * (1 - low) + low, low))


def independent_signs(key: Array, n: int, b: int, dtype: DTypeLike) -> Float[Array, "n b"]:
    """Return independent random signs, 1 or -1: one for each bit of random 32-bit integers."""
    return signs_of_words(jax.random.bits(key, (n * -(-b // 32),), jnp.uint32), n, b, dtype)


def signs_of_words(
    words: UInt32[Array, " w"], n: int, b: int, dtype: DTypeLike
) -> Float[Array, "n b"]:
    """Return signs, 1 or -1, from the bits of 32-bit integers, ceil(b / 32) integers per row."""
    words = words[: n * -(-b // 32)].reshape(n, -1)
    ones = (words[:, :, None] >> jnp.arange(32, dtype=jnp.uint32)[None, None]) & 1
    return 1 - 2 * ones.reshape(n, -1)[:, :b].astype(dtype)


def safe_sqrt(u: Array) -> Array:
    """Return the square root, with gradient 0 at 0; 0 for negative u, NaN for NaN."""
    return _from_zero(jnp.sqrt, u)


def safe_power(u: Array, exponent: float) -> Array:
    """Return ``u^exponent``, exponent > 0, with gradient 0 at 0; 0 for negative u, NaN for NaN."""
    return _from_zero(lambda u: u**exponent, u)


def _from_zero(function: Callable[[Array], Array], u: Array) -> Array:
    positive = u > 0
    return jnp.where(positive, function(jnp.where(positive, u, 1)), jnp.where(u <= 0, 0, u))


@jax.custom_jvp
def psd_root(matrix: Float[Array, "*batch d d"]) -> Float[Array, "*batch d d"]:
    r"""Return the symmetric square root R of a positive semidefinite matrix A.

    Negative eigenvalues count as 0, as rounding may make a Gram matrix slightly indefinite. The
    derivative dR solves R dR + dR R = dA in the basis of eigenvectors, and is finite for equal
    eigenvalues. Its entry for two eigenvectors with eigenvalue 0 is 0.
    """
    values, vectors = jnp.linalg.eigh(matrix)
    return (vectors * jnp.sqrt(at_least(values, 0))[..., None, :]) @ jnp.swapaxes(vectors, -1, -2)


@psd_root.defjvp
def _(primals, tangents):
    root = psd_root(primals[0])
    values, vectors = jnp.linalg.eigh(jax.lax.stop_gradient(primals[0]))
    roots = jnp.sqrt(at_least(values, 0))
    transposed = jnp.swapaxes(vectors, -1, -2)
    sums = roots[..., :, None] + roots[..., None, :]

    def solve(_, change: Array) -> Array:
        inner = transposed @ change @ vectors
        return vectors @ jnp.where(sums > 0, inner / jnp.where(sums > 0, sums, 1), 0) @ transposed

    # differentiate the equation, as derivatives of the eigenvectors may not exist
    change = (tangents[0] + jnp.swapaxes(tangents[0], -1, -2)) / 2
    slope = jax.lax.custom_linear_solve(
        lambda change: root @ change + change @ root, change, solve, symmetric=True
    )
    return root, slope


def sketched_eigenvalues(
    products: Float[Array, "c n q"], diagonal: Float[Array, "c n"], sketch: Float[Array, "n q"]
) -> Float[Array, "r q"]:
    r"""Return approximations of the q largest eigenvalues of H - D, with D the diagonal of H.

    There is one positive semidefinite H per channel c. ``products`` are :math:`(H - D) \Omega` for
    q random columns ``sketch`` :math:`\Omega`. With :math:`Y = H \Omega`, H is approximated by
    :math:`Y (\Omega^\top Y)^{-1} Y^\top = V \Lambda V^\top`. Returned are the eigenvalues of
    :math:`\Lambda - V^\top D V`, ascending: a row per channel and, for several channels, first a
    row for their sum. Cost 2 n q^2. Source: Tropp, Yurtsever, Udell and Cevher (2017), Algorithm 3.
    """

    def of_channel(y: Float[Array, "n q"], diagonal: Float[Array, " n"]) -> Float[Array, " q"]:
        y = y + diagonal[:, None] * sketch
        # a shift by the rounding error, subtracted later, separates directions from noise
        shift = jnp.finfo(y.dtype).eps * jnp.sqrt(jnp.sum(y**2))
        y = y + shift * sketch
        core = sketch.T @ y
        sizes, directions = jnp.linalg.eigh((core + core.T) / 2)
        used = sizes > shift * sketch.shape[0] / 2  # not rounding errors
        half = y @ (directions * jnp.where(used, jnp.where(used, sizes, 1) ** -0.5, 0)[None])
        values, rotation = jnp.linalg.eigh(half.T @ half)
        kept = values > shift
        basis = half @ (rotation * jnp.where(kept, jnp.where(kept, values, 1) ** -0.5, 0)[None])
        inner = jnp.diag(jnp.where(kept, values - shift, 0))
        return jnp.linalg.eigvalsh(inner - basis.T @ (diagonal[:, None] * basis))

    return jax.vmap(of_channel)(with_total(products), with_total(diagonal))


def apart(lag: float) -> int:
    """Return the least number of steps t such that the correlation lag^t is <= `CORRELATED`."""
    return math.ceil(math.log(CORRELATED) / math.log(min(max(lag, 1e-6), 1 - 1e-6)))
