"""CKCE: which model is calibrated best, by comparing conditional mean operators."""

from jaxcal.ckce.compare import Comparison, Differences, compare, pooled_bandwidth
from jaxcal.ckce.competing import BrierSplit, Scores, brier_split, jkce, scores
from jaxcal.ckce.conjugate import ckce_conjugate
from jaxcal.ckce.estimator import CKCE, ckce, ckce_path, cross_validated_ridge, null_mean
from jaxcal.ckce.general import ckce_means, ckce_stein
from jaxcal.ckce.groups import ByGroup, ckce_by_group, ckce_given
from jaxcal.ckce.kernels import Equal, simplex_kernel
from jaxcal.ckce.large import ckce_fourier, ckce_low_rank
from jaxcal.ckce.null import ckce_test
from jaxcal.ckce.operators import (
    ConditionalMean,
    conditional_mean,
    inner_product,
    squared_distance,
)
from jaxcal.ckce.ranking import Trials, drawn_trials, shift_curves, subsample_trials

__all__ = [
    "CKCE",
    "BrierSplit",
    "ByGroup",
    "Comparison",
    "ConditionalMean",
    "Differences",
    "Equal",
    "Scores",
    "Trials",
    "brier_split",
    "ckce",
    "ckce_by_group",
    "ckce_conjugate",
    "ckce_fourier",
    "ckce_given",
    "ckce_low_rank",
    "ckce_means",
    "ckce_path",
    "ckce_stein",
    "ckce_test",
    "compare",
    "conditional_mean",
    "cross_validated_ridge",
    "drawn_trials",
    "inner_product",
    "jkce",
    "null_mean",
    "pooled_bandwidth",
    "scores",
    "shift_curves",
    "simplex_kernel",
    "squared_distance",
    "subsample_trials",
]
