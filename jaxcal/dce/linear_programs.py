"""Linear programs of the paper, by SciPy's HiGHS and outside of jit: the references."""

from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float

from jaxcal import checks
from jaxcal.dce.predictions import atoms, binary, positive


def smooth_ce_linear_program(
    predictions: Any, targets: Any, *, weights: Any = None, seconds: float | None = None
) -> float:
    """Smooth calibration error by its linear program over neighbours (Theorem 7.14).

    The reference for `smooth_ce`, which is the same number in a small part of the time.
    ``seconds``: the most that the solver may take; TimeoutError beyond.
    """
    import scipy.sparse as sparse

    seconds = None if seconds is None else checks.real(seconds, "seconds", above=0)
    distribution = positive(atoms(binary(predictions, targets, weights)))
    v, rho = distribution.v, distribution.rho
    if v.size == 1:
        return float(abs(rho[0]))
    d = _differences(v.size, sparse)
    gaps = np.diff(v)
    limits = np.concatenate([gaps, gaps])
    return -_solve(-rho, sparse.vstack([d, -d]), limits, (-1, 1), seconds).fun


class Chain(NamedTuple):
    """A solution of the chain program on places u [m]: ``a`` = r(u, 0), ``b`` = r(u, 1), and the
    mass ``at`` [m] that the optimal coupling puts on each place (in both labels together)."""

    value: float
    a: Float[np.ndarray, " m"]
    b: Float[np.ndarray, " m"]
    at: Float[np.ndarray, " m"]


def chain_program(u: Any, p0: Any, p1: Any) -> Chain:
    """The most of E[(1 - y) a(v) + y b(v)] over a, b that are 1-Lipschitz on the places ``u`` with
    (1 - u) a + u b <= 0: the lower distance to predictors with values in u. ``u`` holds 0 and 1.

    Source: eq. 21, with s eliminated.
    """
    import scipy.sparse as sparse

    m = u.size
    d = _differences(m, sparse)
    none = sparse.csr_matrix(d.shape)
    slopes = sparse.bmat([[d, none], [-d, none], [none, d], [none, -d]])
    below = sparse.hstack([sparse.diags(1 - u), sparse.diags(u)])
    limits = np.concatenate([*[np.diff(u)] * 4, np.zeros(m)])
    solution = _solve(
        -np.concatenate([p0, p1]), sparse.vstack([slopes, below]), limits, (None, None)
    )
    at = -solution.ineqlin.marginals[-m:]
    return Chain(-solution.fun, solution.x[:m], solution.x[m:], np.maximum(at, 0))


def _differences(m: int, sparse: Any) -> Any:
    return sparse.diags([-np.ones(m - 1), np.ones(m - 1)], [0, 1], shape=(m - 1, m))


def _solve(costs: Any, matrix: Any, limits: Any, bounds: Any, seconds: Any = None) -> Any:
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
