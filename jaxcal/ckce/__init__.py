"""CKCE: which model is calibrated best, by comparing conditional mean operators."""

from jaxcal.ckce.baselines import BrierSplit, Skill, brier_split, jkce, skill
from jaxcal.ckce.compare import compare, pooled_bandwidth
from jaxcal.ckce.comparison import Comparison, Differences
from jaxcal.ckce.conjugate_gradients import ConjugateGradients
from jaxcal.ckce.estimator import ckce, cross_validated_ridge, null_mean
from jaxcal.ckce.fourier import Fourier
from jaxcal.ckce.kernels import Equal, simplex_kernel
from jaxcal.ckce.low_rank import LowRank
from jaxcal.ckce.null import ckce_test
from jaxcal.ckce.operators import (
    ConditionalMean,
    conditional_mean,
    inner_product,
    squared_distance,
)
from jaxcal.ckce.result import CKCE
from jaxcal.ckce.solvers import Approximation, Exact, Solution, Solver

__all__ = [
    "CKCE",
    "Approximation",
    "BrierSplit",
    "Comparison",
    "ConditionalMean",
    "ConjugateGradients",
    "Differences",
    "Equal",
    "Exact",
    "Fourier",
    "LowRank",
    "Skill",
    "Solution",
    "Solver",
    "brier_split",
    "ckce",
    "ckce_test",
    "compare",
    "conditional_mean",
    "cross_validated_ridge",
    "inner_product",
    "jkce",
    "null_mean",
    "pooled_bandwidth",
    "simplex_kernel",
    "skill",
    "squared_distance",
]


def __dir__() -> list[str]:
    return sorted(__all__)
