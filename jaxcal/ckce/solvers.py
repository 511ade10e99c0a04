"""Solvers of the regression of residuals on predictions: values of the argument `solver` of `ckce`.

`Exact` factors the Gram matrix; `jaxcal.ckce.low_rank`, `jaxcal.ckce.fourier` and
`jaxcal.ckce.conjugate_gradients` do without it. Any object with the same call is a solver.
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
from jaxtyping import Array, Float, Int

from jaxcal import checks
from jaxcal.ckce import kernels, solve
from jaxcal.typing import Scalar

Predictions = Float[Array, "n m"]
Residuals = Float[Array, "n p"]


class Approximation(eqx.Module):
    """``how`` the Gram matrix was replaced, by how many features or steps (``size``), and the
    ``error`` that was left: the share of its trace, or the relative residual of the solve."""

    how: str = eqx.field(static=True)
    size: Int[Array, ""]
    error: Scalar


class Solution(NamedTuple):
    """The fit, what was approximated (None: nothing), and how many entries of the solver's own
    points, such as landmarks, are not finite."""

    fit: solve.Fit
    approximation: Approximation | None = None
    broken: Int[Array, ""] | int = 0


@runtime_checkable
class Solver(Protocol):
    """Solves ``(K + n ridge I) B = R`` for n predictions ``q`` [n, m] and residuals R [n, p].

    ``kernel`` has all its bandwidths. Called inside of jit.
    """

    def __call__(
        self, kernel: Any, q: Predictions, residuals: Residuals, ridge: Scalar, /
    ) -> Solution: ...


class Exact(eqx.Module):
    """One Cholesky factor of the Gram matrix: n^3 / 3 multiplications, memory n^2."""

    def __call__(
        self, kernel: Any, q: Predictions, residuals: Residuals, ridge: Scalar
    ) -> Solution:
        return Solution(solve.fit(kernels.square_gram(kernel, q), residuals, ridge))


def check_solver(value: Any) -> Any:
    """A solver ready to use, or TypeError."""
    if isinstance(value, type) or not isinstance(value, Solver):
        remedy = f"; call it: {value.__name__}(..)" if isinstance(value, type) else ""
        raise TypeError(
            f"solver: wanted one such as jaxcal.ckce.LowRank(256), got {checks.say(value)}{remedy}"
        )
    return value
