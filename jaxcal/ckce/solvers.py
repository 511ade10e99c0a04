r"""Solve the ridge regression of residuals on predictions exactly, by one Cholesky factor.

K [n, n] is the Gram matrix of the predictions, R [n, p] holds the residuals, A = K + n lambda I and
B = A^-1 R. The fitted function is :math:`f = \sum_i B_i k(q_i, \cdot)`, and CKCE is its squared
norm, :math:`Tr(B^\top K B) = Tr(A^{-1} R R^\top A^{-1} K)`. No matrix is inverted. The solver of
`jaxcal.ckce.features` needs no Gram matrix. Any object with the signature of `Solver` is a solver.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxcal.kernels import grams
from jaxcal.typing import KernelLike, Scalar

Gram = Float[Array, "n n"]
Predictions = Float[Array, "n m"]
Residuals = Float[Array, "n p"]


class Fit(NamedTuple):
    """One estimate from a solver.

    Attributes:
        estimate: The estimate, [].
        contributions: Contribution of each observation, [n]; they sum to the estimate.
        influence: Derivative of the estimate in the weight of each observation, [n]; its mean is 0.
        rounding: Bound on the rounding error of the estimate, []; see `rounding`.
    """

    estimate: Scalar
    contributions: Float[Array, " n"]
    influence: Float[Array, " n"]
    rounding: Scalar


class Sizes(NamedTuple):
    """Squared norms of B, R (``right``) and R - A B (``left``), with the symbols of
    `jaxcal.ckce.solvers`; ``height``: largest k(q, q)."""

    b: Scalar
    right: Scalar
    left: Scalar
    height: Scalar


def rounding(
    estimate: Scalar, sizes: Sizes, n: int, ridge: Scalar, dropped: Scalar | float = 0.0
) -> Scalar:
    r"""Return a bound on the rounding error of the estimate, []; the error is usually much smaller.

    Symbols are those of `jaxcal.ckce.solvers`. Rounding errors E of K change the estimate by
    :math:`Tr(B^\top (2 n \lambda A^{-1} - I) E B)`, at most :math:`\|E\| \|B\|^2`. A residual
    r = R - A B of the solve changes it by at most :math:`2 \|B\| \|r\|`. These first-order bounds
    need :math:`\|E\|` far below :math:`n \lambda`; otherwise the result is the largest possible
    estimate, :math:`\|R\|^2 / 4 n \lambda`. For :math:`\|E\|` the code takes 8 eps n^(1/2) max
    k(q, q) + n^(-1/2) ``dropped``, where ``dropped`` is the trace of an omitted part of K.
    """
    error = 8 * jnp.finfo(estimate.dtype).eps * sizes.height * n**0.5 + dropped / n**0.5
    share = error / (n * ridge)
    first = error * sizes.b + 2 * jnp.sqrt(sizes.b * sizes.left)
    first = first / jnp.where(share < 0.5, 1 - share, 1) ** 2
    far = sizes.right / (4 * n * ridge)
    most = jnp.where(jnp.abs(estimate) > far, jnp.abs(estimate), far)
    return jnp.where((share < 0.5) & (first < most), first, most)


def factor(gram: Gram, ridge: Scalar) -> Gram:
    """Return the lower Cholesky factor of K + n ridge I; NaN if rounding makes it indefinite."""
    n = gram.shape[0]
    shifted = gram + n * ridge * jnp.eye(n, dtype=gram.dtype)
    return jax.lax.linalg.cholesky(shifted, symmetrize_input=False)


def solve(low: Gram, right: Float[Array, "n p"]) -> Float[Array, "n p"]:
    """Return A^-1 times ``right``, from the lower Cholesky factor of A."""
    return jax.scipy.linalg.cho_solve((low, True), right)


def fit(gram: Gram, residuals: Residuals, ridge: Scalar) -> Fit:
    r"""Compute CKCE as :math:`Tr(B^\top K B)`, with contributions and influence of observations.

    Symbols are those of `jaxcal.ckce.solvers`. The influence is the derivative of the estimate in
    the weight of observation i, :math:`2 n^2 \lambda [(K A^{-1} B)_i \cdot B_i - mean]`, at fixed
    ridge and bandwidth. The squared standard error is the mean square of the influence, divided by
    n. Cost n^3 / 3 + 3 n^2 p multiplications. Differentiable.
    Source of the estimate: Moskvichev and Sejdinovic, Section 3.1; the influence is ours.
    """
    n = gram.shape[0]
    low = factor(gram, ridge)
    b = solve(low, residuals)
    fitted = gram @ b
    contributions = jnp.sum(b * fitted, axis=1)
    # K A^-1 B = B - n lambda A^-1 B
    along = b - n * ridge * solve(low, b)
    pull = jnp.sum(along * b, axis=1)
    influence = 2 * float(n) ** 2 * ridge * (pull - jnp.mean(pull))
    estimate = jnp.sum(contributions)
    unsolved = jnp.sum((residuals - fitted - n * ridge * b) ** 2)
    sizes = Sizes(jnp.sum(b**2), jnp.sum(residuals**2), unsolved, jnp.max(jnp.diagonal(gram)))
    return Fit(estimate, contributions, influence, rounding(estimate, sizes, n, ridge))


def fit_products(gram: Gram, products: Gram, ridge: Scalar) -> Fit:
    r"""Compute `fit` from the products D = R R^T of the residuals, [n, n], instead of R.

    CKCE is the inner product of :math:`A^{-1} D A^{-1}` and K. Cost 10/3 n^3 multiplications.
    """
    n = gram.shape[0]
    low = factor(gram, ridge)
    s = solve(low, solve(low, products).T)
    contributions = jnp.sum(((s + s.T) / 2) * gram, axis=1)
    # the diagonal of (K A^-1 B) B^T = K A^-1 S
    along = solve(low, gram)
    pull = jnp.sum(along.T * s, axis=1)
    influence = 2 * float(n) ** 2 * ridge * (pull - jnp.mean(pull))
    estimate = jnp.sum(contributions)
    b, right = jnp.abs(jnp.trace(s)), jnp.trace(products)
    sizes = Sizes(b, right, 0 * b, jnp.max(jnp.diagonal(gram)))
    return Fit(estimate, contributions, influence, rounding(estimate, sizes, n, ridge))


def null_weights(gram: Gram, ridge: Scalar) -> Gram:
    r"""Return W = A^-1 K A^-1, with the module's symbols: CKCE is Tr(W R R^T). Cost 7/3 n^3."""
    low = factor(gram, ridge)
    w = solve(low, solve(low, gram).T)
    return (w + w.T) / 2


class Approximation(eqx.Module):
    """Approximation of the Gram matrix by a solver, and its error.

    Attributes:
        how: Name of the method, such as "incomplete Cholesky".
        size: Number of features, or of steps of an iterative solver, [].
        error: Omitted share of the trace, or relative residual of an iterative solver, [].
    """

    how: str = eqx.field(static=True)
    size: Int[Array, ""]
    error: Scalar


class Solution(NamedTuple):
    """Result of a solver.

    Attributes:
        fit: The estimate, with its contributions and influence.
        approximation: How the Gram matrix was approximated; None if it was exact.
    """

    fit: Fit
    approximation: Approximation | None = None


@runtime_checkable
class Solver(Protocol):
    """Protocol of solvers of ``(K + n ridge I) B = R``, K the Gram matrix of q, called inside jit.

    ``solver(kernel, q, residuals, ridge)`` takes a kernel with all bandwidths set, n predictions q
    [n, m], residuals R [n, p] and the ridge, and returns a `Solution`.
    """

    def __call__(
        self, kernel: KernelLike, q: Predictions, residuals: Residuals, ridge: Scalar, /
    ) -> Solution: ...


class Exact(eqx.Module):
    """Solver by one Cholesky factor of the Gram matrix.

    Cost: n^3 / 3 multiplications, memory n^2.

    Example:
        >>> import jax, jaxcal
        >>> logits = jax.random.normal(jax.random.key(0), (100, 3))
        >>> targets = jax.random.categorical(jax.random.key(1), logits)
        >>> result = jaxcal.ckce.ckce(jax.nn.softmax(logits), targets, solver=jaxcal.ckce.Exact())
        >>> result.approximation is None
        True
    """

    def __call__(
        self, kernel: KernelLike, q: Predictions, residuals: Residuals, ridge: Scalar
    ) -> Solution:
        return Solution(fit(grams.square_gram(kernel, q), residuals, ridge))
