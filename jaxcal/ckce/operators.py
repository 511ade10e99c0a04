r"""Conditional mean embeddings and operators themselves: fit, evaluate, inner products, distances.

:math:`\hat C_{Y|X} = \Psi_Y (K_{XX} + n\lambda I)^{-1} \Phi_X^*` maps the feature of x to the
embedding of P(Y | x). One-hot labels with the kernel `Linear` are the Kronecker kernel on classes,
and probability vectors with it are the means of the predictions, so CKCE is the squared distance of
the operators of labels and of predictions.
"""

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal import checks
from jaxcal.ckce import kernels, solve
from jaxcal.ckce.ridge import Ridge, ridge_at
from jaxcal.kernels import grams
from jaxcal.kernels.points import Gaussian
from jaxcal.preparation import vector_kernel
from jaxcal.typing import ArrayLike, KernelLike, Scalar


class ConditionalMean(eqx.Module):
    """A fitted operator of P(Y | X).

    Attributes:
        xs: Inputs, [n, q].
        ys: Outputs, [n, d].
        kernel: Kernel on inputs, with its bandwidth.
        target_kernel: Kernel on outputs, with its bandwidth.
        ridge: Ridge, [].
        low: Cholesky factor of K + n ridge I, [n, n].

    Example:
        >>> import jax, jaxcal
        >>> x, noise = jax.random.normal(jax.random.key(0), (2, 40))
        >>> operator = jaxcal.ckce.conditional_mean(x, x + noise)
        >>> operator.xs.shape, operator.low.shape
        ((40, 1), (40, 40))
    """

    xs: Float[Array, "n q"]
    ys: Float[Array, "n d"]
    kernel: KernelLike
    target_kernel: KernelLike
    ridge: Scalar
    low: Float[Array, "n n"]

    def weights(self, xs: Float[Array, "r q"]) -> Float[Array, "r n"]:
        r"""Rows a(x) with :math:`\hat\mu_{Y|x} = \sum_i a_i(x) \psi(y_i)`.

        Args:
            xs: Inputs, [r, q].

        Returns:
            Weights of the n pairs, [r, n].
        """
        inputs = checks.floats(xs, "xs")
        xs = checks.rows(inputs, inputs.shape[0] if inputs.ndim else 0, "xs")
        if xs.shape[1] != (q := self.xs.shape[1]):
            raise ValueError(f"xs: wanted inputs of {q} coordinates, got shape {xs.shape}")
        return solve.solve(self.low, grams.gram(self.kernel, self.xs, xs)).T

    def __call__(self, xs: Float[Array, "r q"], ys: Float[Array, "c d"]) -> Float[Array, "r c"]:
        r"""The embedding of P(Y | x) evaluated at y: an estimate of :math:`E[\ell(Y, y) | x]`."""
        return self.weights(xs) @ grams.gram(self.target_kernel, self.ys, ys)


def conditional_mean(
    xs: ArrayLike,
    ys: ArrayLike,
    *,
    kernel: KernelLike = Gaussian(),
    target_kernel: KernelLike = Gaussian(),
    ridge: Ridge = None,
    bandwidth: ArrayLike | None = None,
    target_bandwidth: ArrayLike | None = None,
) -> ConditionalMean:
    """Fit the conditional mean operator of P(Y | X) to pairs.

    Args:
        xs: Inputs, [n, q] or [n].
        ys: Outputs, [n, d] or [n].
        kernel: Kernel on inputs.
        target_kernel: Kernel on outputs.
        ridge: A number, a function of n, or None for n^(-1/4).
        bandwidth: Bandwidth of a kernel on inputs without one; by default their median distance.
        target_bandwidth: The same for outputs.

    Returns:
        `ConditionalMean`.

    Raises:
        ValueError: Shapes or values are wrong; the message names the argument.
        TypeError: An argument is of the wrong type; the message names it.

    Cost: n^3 / 3 multiplications.

    Source: Moskvichev and Sejdinovic, eq. 4, after Song et al. (2010).

    Example:
        >>> import jax, jaxcal
        >>> x, noise = jax.random.normal(jax.random.key(0), (2, 40))
        >>> operator = jaxcal.ckce.conditional_mean(x, x + noise)
        >>> bool(jaxcal.ckce.inner_product(operator, operator) > 0)
        True
    """
    xs = checks.floats(xs, "xs")
    xs = checks.rows(xs, xs.shape[0] if xs.ndim else 0, "xs")
    ys = checks.rows(ys, xs.shape[0], "ys").astype(xs.dtype)
    kernel, _ = kernels.fill(kernel, xs, bandwidth)
    target_kernel = vector_kernel(target_kernel, ys)
    target_kernel, _ = kernels.fill(target_kernel, ys, target_bandwidth, "target_bandwidth")
    strength = ridge_at(ridge, xs.shape[0], xs.dtype)
    low = solve.factor(grams.square_gram(kernel, xs), strength)
    return ConditionalMean(xs, ys, kernel, target_kernel, strength, low)


def inner_product(a: ConditionalMean, b: ConditionalMean) -> Scalar:
    """Hilbert-Schmidt inner product :math:`Tr(A^{-1} L_{YZ} A'^{-1} K_{X'X})` of two operators.

    Both operators must have the same kernels, which are those of ``a`` here.

    Args:
        a: An operator fitted to n pairs.
        b: An operator fitted to n' pairs.

    Returns:
        The inner product, [].

    Raises:
        TypeError: These are no operators.

    Cost: O(n^2 n').

    Source: Ren et al. (2016), in Moskvichev and Sejdinovic, Section 2.3.

    Example:
        >>> import jax, jaxcal
        >>> x, noise = jax.random.normal(jax.random.key(0), (2, 40))
        >>> operator = jaxcal.ckce.conditional_mean(x, x + noise)
        >>> bool(jaxcal.ckce.inner_product(operator, operator) > 0)
        True
    """
    checks.instance(a, ConditionalMean, "a")
    checks.instance(b, ConditionalMean, "b")
    with jax.default_matmul_precision("highest"):
        left = solve.solve(a.low, grams.gram(a.target_kernel, a.ys, b.ys))
        right = solve.solve(b.low, grams.gram(a.kernel, b.xs, a.xs))
        return jnp.sum(left * right.T)


def squared_distance(a: ConditionalMean, b: ConditionalMean) -> Scalar:
    """CMMD^2: the squared Hilbert-Schmidt norm of the difference of two operators.

    0 in the population where the conditional distributions agree, given a characteristic target
    kernel. The operators may be of one sample or of two.

    Args:
        a: An operator.
        b: Another one, with the same kernels.

    Returns:
        The squared distance, [].

    Raises:
        TypeError: These are no operators.

    Cost: three times that of `inner_product`.

    Source: Ren et al. (2016), in Moskvichev and Sejdinovic, Section 2.3.

    Example:
        >>> import jax, jaxcal
        >>> x, noise = jax.random.normal(jax.random.key(0), (2, 40))
        >>> kernels = {"bandwidth": 1.0, "target_bandwidth": 1.0}
        >>> a = jaxcal.ckce.conditional_mean(x, x + noise, **kernels)
        >>> b = jaxcal.ckce.conditional_mean(x, x + 2 + noise, **kernels)
        >>> bool(jaxcal.ckce.squared_distance(a, b) > jaxcal.ckce.squared_distance(a, a))
        True
    """
    crossed = inner_product(a, b)
    return inner_product(a, a) + inner_product(b, b) - 2 * crossed
