"""What float32 does to CKCE at small ridges is bounded, and said; NaN is never a value."""

import numpy as np
import pytest
from reference.ckce_solvers import ConjugateGradients

from jaxcal.ckce import Exact, LowRank, ckce

RIDGES = [1e-8, 1e-6, 1e-4, 1e-1]
SOLVERS = [Exact(), LowRank(), ConjugateGradients()]


def problem(n):
    rng = np.random.default_rng(n)
    q = rng.dirichlet(np.ones(3), n).astype(np.float32)
    cumulative = np.cumsum(q.astype(float), axis=1)
    return q, np.sum(rng.uniform(size=(n, 1)) > cumulative[:, :2], axis=1)


@pytest.mark.slow
@pytest.mark.parametrize("n", [12, 100, 300])
def test_the_float32_error_is_below_its_bound_and_reported(n):
    q, ys = problem(n)
    wide = q.astype(np.float64)
    exact = [ckce(wide, ys, ridge=r, bandwidth=0.5) for r in RIDGES]
    for solver in SOLVERS:
        for ridge, true in zip(RIDGES, exact, strict=True):
            single = ckce(q, ys, solver=solver, ridge=ridge, bandwidth=0.5)
            error = abs(float(single.estimate) - float(true.estimate))
            assert np.isnan(error) or error <= float(single.rounding) + float(true.rounding)
            text = " ".join(single.warnings())
            assert ("may have moved the estimate" in text or np.isnan(error)) == (
                not float(single.rounding) <= 0.1 * float(single.estimate)
            )
        assert "may have moved" not in text  # at the largest ridge
    assert exact[2].rounding < 1e-4 * exact[2].estimate  # float64 has nothing to say there
