"""Gram matrices in full precision, where a result hangs on their small eigenvalues."""

import jax
from jaxtyping import Array, Float

from jaxcal.kernels import points
from jaxcal.typing import KernelLike


def gram(
    kernel: KernelLike, xs: Float[Array, "n q"], ys: Float[Array, "m q"]
) -> Float[Array, "n m"]:
    """`jaxcal.kernels.points.matrix` in full precision: ``[k(x_i, y_j)]``."""
    with jax.default_matmul_precision("highest"):
        return points.matrix(kernel, xs, ys)


def square_gram(kernel: KernelLike, xs: Float[Array, "n q"]) -> Float[Array, "n n"]:
    """``[k(x_i, x_j)]``, exactly symmetric."""
    block = gram(kernel, xs, xs)
    return (block + block.T) / 2


def gram_diagonal(kernel: KernelLike, xs: Float[Array, "n q"]) -> Float[Array, " n"]:
    """``[k(x_i, x_i)]``."""
    return jax.vmap(kernel)(xs, xs)
