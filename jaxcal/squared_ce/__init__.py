"""Squared calibration errors of classifiers, with the estimator chosen by its risk.

`calibration_error` is the whole of it: probabilities and labels in, a `Report` out. The parts are
public too: reductions to regression problems, estimators, risks and intervals.
"""

from jaxcal.squared_ce.binning import Bins
from jaxcal.squared_ce.estimators import Zero
from jaxcal.squared_ce.intervals import compare_risks, mean_interval, one_step
from jaxcal.squared_ce.kde import KernelDensity
from jaxcal.squared_ce.kernel_ridge import (
    KroneckerRidge,
    Ridges,
    TwoStepRidge,
    kkr_ridges,
    ukkr_ridges,
)
from jaxcal.squared_ce.leave_one_out import LeaveOneOut, leave_one_out
from jaxcal.squared_ce.nested import nested_calibration_error
from jaxcal.squared_ce.parametric import Parametric
from jaxcal.squared_ce.pipeline import calibration_error, default_estimators, problem_error
from jaxcal.squared_ce.reductions import (
    Reduced,
    binary,
    canonical,
    class_wise,
    reduce,
    softmax,
    top_label,
)
from jaxcal.squared_ce.report import Report
from jaxcal.squared_ce.risk import empirical_risk
from jaxcal.squared_ce.tuned import Tuned

__all__ = [
    "Bins",
    "KernelDensity",
    "KroneckerRidge",
    "LeaveOneOut",
    "Parametric",
    "Reduced",
    "Report",
    "Ridges",
    "Tuned",
    "TwoStepRidge",
    "Zero",
    "binary",
    "calibration_error",
    "canonical",
    "class_wise",
    "compare_risks",
    "default_estimators",
    "empirical_risk",
    "kkr_ridges",
    "leave_one_out",
    "mean_interval",
    "nested_calibration_error",
    "one_step",
    "problem_error",
    "reduce",
    "softmax",
    "top_label",
    "ukkr_ridges",
]


def __dir__() -> list[str]:
    return sorted(__all__)
