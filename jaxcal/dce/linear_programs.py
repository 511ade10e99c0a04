"""The linear program of the lower distance, by SciPy's HiGHS and outside of jit."""

from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxcal.typing import ArrayLike


class Chain(NamedTuple):
    """A solution of the chain program on places u [m]: ``a`` = r(u, 0), ``b`` = r(u, 1), and the
    mass ``at`` [m] that the optimal coupling puts on each place (in both labels together)."""

    value: float
    a: Float[np.ndarray, " m"]
    b: Float[np.ndarray, " m"]
    at: Float[np.ndarray, " m"]


def chain_program(u: np.ndarray, p0: np.ndarray, p1: np.ndarray) -> Chain:
    """The most of E[(1 - y) a(v) + y b(v)] over a, b that are 1-Lipschitz on the places ``u`` with
    (1 - u) a + u b <= 0: the lower distance to predictors with values in u. ``u`` holds 0 and 1.

    Source: eq. 21, with s eliminated.
    """
    import scipy.sparse as sparse

    m = u.size
    d = differences(m, sparse)
    none = sparse.csr_matrix(d.shape)
    slopes = sparse.bmat([[d, none], [-d, none], [none, d], [none, -d]])
    below = sparse.hstack([sparse.diags(1 - u), sparse.diags(u)])
    limits = np.concatenate([*[np.diff(u)] * 4, np.zeros(m)])
    solution = solve(
        -np.concatenate([p0, p1]), sparse.vstack([slopes, below]), limits, (None, None)
    )
    at = -solution.ineqlin.marginals[-m:]
    return Chain(-solution.fun, solution.x[:m], solution.x[m:], np.maximum(at, 0))


def differences(m: int, sparse: ModuleType) -> Any:
    """The matrix of differences of neighbours, [m - 1, m]."""
    return sparse.diags([-np.ones(m - 1), np.ones(m - 1)], [0, 1], shape=(m - 1, m))


def solve(costs: Any, matrix: Any, limits: Any, bounds: ArrayLike, seconds: Any = None) -> Any:
    """The solution of a program, or TimeoutError or RuntimeError.

    ``seconds``: the most that the solver may take.
    """
    from scipy.optimize import linprog

    tight = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}
    if seconds is not None:
        tight["time_limit"] = seconds
    solution = linprog(
        costs, A_ub=matrix.tocsr(), b_ub=limits, bounds=bounds, method="highs", options=tight
    )
    if solution.status == 1 and seconds is not None:
        raise TimeoutError(f"the linear program was not solved in {seconds} s")
    if solution.status != 0:
        raise RuntimeError(f"the linear program was not solved: {solution.message}")
    return solution
