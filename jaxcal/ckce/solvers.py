"""Solvers of the regression of residuals on predictions: values of the argument `solver` of `ckce`.

`Exact` factors the Gram matrix; `jaxcal.ckce.low_rank`, `jaxcal.ckce.fourier` and
`jaxcal.ckce.conjugate_gradients` do without it. Any object with the same call is a solver.
"""

from typing import NamedTuple, Protocol, runtime_checkable

import equinox as eqx
from jaxtyping import Array, Float, Int

from jaxcal import checks
from jaxcal.ckce import solve
from jaxcal.kernels import grams
from jaxcal.typing import KernelLike, Scalar

Predictions = Float[Array, "n m"]
Residuals = Float[Array, "n p"]


class Approximation(eqx.Module):
    """How a solver replaced the Gram matrix, and the error that was left.

    Attributes:
        how: The method.
        size: Number of features or steps, [].
        error: Share of the trace that was left out, or relative residual of the solve, [].

    Example:
        >>> import jax, jaxcal
        >>> logits = jax.random.normal(jax.random.key(0), (100, 3))
        >>> targets = jax.random.categorical(jax.random.key(1), logits)
        >>> solver = jaxcal.ckce.LowRank(32)
        >>> result = jaxcal.ckce.ckce(jax.nn.softmax(logits), targets, solver=solver)
        >>> int(result.approximation.size) <= 32
        True
    """

    how: str = eqx.field(static=True)
    size: Int[Array, ""]
    error: Scalar


class Solution(NamedTuple):
    """What a solver returns.

    Attributes:
        fit: The fit: coefficients and what the estimate needs of them.
        approximation: What was approximated; None where nothing was.
        broken: Number of entries of the solver's own points, such as landmarks, that are not
            finite.

    Example:
        >>> import jaxcal
        >>> jaxcal.ckce.Solution(fit=None).broken
        0
    """

    fit: solve.Fit
    approximation: Approximation | None = None
    broken: Int[Array, ""] | int = 0


@runtime_checkable
class Solver(Protocol):
    """Protocol of solvers of ``(K + n ridge I) B = R``, called inside of jit.

    ``solver(kernel, q, residuals, ridge)`` takes a kernel with all its bandwidths, n predictions q
    [n, m], residuals R [n, p] and the ridge, and returns a `Solution`.

    Example:
        >>> import jaxcal
        >>> isinstance(jaxcal.ckce.Exact(), jaxcal.ckce.Solver)
        True
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
        return Solution(solve.fit(grams.square_gram(kernel, q), residuals, ridge))


def check_solver(value: object) -> Solver:
    """A solver ready to use, or TypeError."""
    if isinstance(value, type) or not isinstance(value, Solver):
        remedy = f"; call it: {value.__name__}(..)" if isinstance(value, type) else ""
        raise TypeError(
            f"solver: wanted one such as jaxcal.ckce.LowRank(256), got {checks.say(value)}{remedy}"
        )
    return value
