r"""Random frequencies of a shift-invariant kernel: k(x, y) = E cos(w . (x - y)) k(x, x).

A radial kernel that is a mixture of Gaussian kernels (Schoenberg) has normal frequencies of random
precision: with :math:`shape(u) = E e^{-S u / 2}`, w is normal of variance S over the squared
bandwidth. Other kernels of height 1 may draw w from their spectral density, by a method
``frequencies(key, count, d)``. Products add frequencies; sums select one at random. Source: Rahimi
and Recht (2007).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.kernels.points import Constant, L1Laplace, Product, Scaled, Sum
from jaxcal.typing import DTypeLike, Key


class Precisions(NamedTuple):
    """Random variances ``values`` [r, d] of the frequencies, and the ``height`` [r] of the kernel
    of each; the mean height is k(x, x). ``drawn`` [r, d]: frequencies from kernels that draw them
    directly."""

    values: Float[Array, "r d"]
    height: Float[Array, " r"]
    drawn: Float[Array, "r d"] | float = 0.0

    def frequencies(self, normals: Float[Array, "r d"]) -> Float[Array, "r d"]:
        """Return the frequencies, from standard normal vectors."""
        return normals * jnp.sqrt(self.values) + self.drawn


def precisions(
    kernel: Any,
    key: Key,
    count: int,
    d: int,
    name: str = "kernel",
    *,
    dtype: Any = None,
) -> Precisions:
    r"""Draw the precisions [count, d] of Gaussian kernels whose mixture is a kernel on vectors.

    The kernel may be `Gaussian`, `IMQ`, `RationalQuadratic`, `Matern52`, `Laplace`, `L1Laplace`,
    `Constant`, their sums, products and multiples, with their bandwidths; any radial kernel with a
    method ``precisions(key, count)`` that draws S of :math:`shape(u) = E e^{-S u / 2}`; or any
    kernel with k(x, x) = 1 and a method ``frequencies(key, count, d)`` that draws [count, d] from
    its spectral density. For others, TypeError with the ``name`` of the argument.
    """
    dtype = jnp.result_type(float) if dtype is None else dtype

    def inner(part: Any, key: Key) -> Precisions:
        return precisions(part, key, count, d, name, dtype=dtype)

    one = jnp.ones(count, dtype)
    match kernel:
        case Constant():
            return Precisions(jnp.zeros((count, d), dtype), one)
        case Sum(left=left, right=right):
            keys = jax.random.split(key, 3)
            a, b = inner(left, keys[0]), inner(right, keys[1])
            total = jnp.mean(a.height) + jnp.mean(b.height)
            share = jnp.mean(a.height) / total
            first = jax.random.uniform(keys[2], (count,), dtype) < share
            values, drawn = (
                jnp.where(first[:, None], *pair)
                for pair in ((a.values, b.values), (a.drawn, b.drawn))
            )
            return Precisions(values, total * one, drawn)
        case Product(left=left, right=right):
            keys = jax.random.split(key)
            a, b = inner(left, keys[0]), inner(right, keys[1])
            return Precisions(a.values + b.values, a.height * b.height, a.drawn + b.drawn)
        case Scaled(scale=scale, kernel=part):
            a = inner(part, key)
            return a._replace(height=jnp.asarray(scale, dtype) * a.height)
        case L1Laplace(bandwidth=lengths) if lengths is not None:
            # independent Cauchy frequencies in each coordinate
            drawn = 0.5 / jax.random.gamma(key, 0.5, (count, d), dtype)
            return Precisions(drawn / jnp.asarray(lengths, dtype) ** 2 * jnp.ones((1, d)), one)
        case _ if hasattr(kernel, "frequencies"):
            drawn = jnp.asarray(kernel.frequencies(key, count, d), dtype)
            if drawn.shape != (count, d):
                raise ValueError(
                    f"{name}: {type(kernel).__name__}.frequencies(key, {count}, {d}) must be of "
                    f"shape {(count, d)}, got {drawn.shape}"
                )
            return Precisions(jnp.zeros((count, d), dtype), one, drawn)
        case _ if hasattr(kernel, "precisions") and kernel.bandwidth is not None:
            drawn = jnp.asarray(kernel.precisions(key, count), dtype)[:, None]
            lengths = jnp.broadcast_to(jnp.asarray(kernel.bandwidth, dtype), (d,))
            return Precisions(drawn / lengths[None] ** 2, one)
    raise TypeError(
        f"{name}: random features are those of Gaussian, IMQ, RationalQuadratic, Matern52, "
        f"Laplace, L1Laplace and Constant, their sums, products and multiples, of radial kernels "
        f"with a method precisions(key, count), and of kernels with a method "
        f"frequencies(key, count, d), which draws from the spectral density; got {kernel}"
    )


def orthogonal_normals(key: Key, count: int, d: int, dtype: DTypeLike) -> Float[Array, "count d"]:
    """Return standard normal vectors [count, d] that are orthogonal within blocks of d.

    Source: Yu, Suresh, Choromanski, Holtmann-Rice and Kumar (2016), Orthogonal random features.
    """
    blocks = -(-count // d)
    drawn = jax.random.normal(key, (blocks, d, d), dtype)
    q, r = jnp.linalg.qr(drawn)
    signs = jnp.where(jnp.diagonal(r, axis1=-2, axis2=-1) < 0, -1, 1).astype(dtype)
    directions = q * signs[:, None, :]  # uniformly distributed orthogonal matrices
    norms = jnp.linalg.norm(
        jax.random.normal(jax.random.fold_in(key, 1), (blocks, d, d), dtype), axis=-1
    )
    return (jnp.swapaxes(directions, 1, 2) * norms[..., None]).reshape(blocks * d, d)[:count]
