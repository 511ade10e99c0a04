"""Estimate squared calibration errors of classifiers, and compare the estimators by their risk.

`calibration_error` takes probabilities and labels and returns a report. Its steps are public too:
`reduce` to a regression problem, estimators such as `Bins`, `empirical_risk`, `leave_one_out`.
"""

from jaxcal.squared_ce.binning import Bins
from jaxcal.squared_ce.functions import empirical_risk
from jaxcal.squared_ce.kde import KernelDensity
from jaxcal.squared_ce.kernel_ridge import KernelRidge
from jaxcal.squared_ce.leave_one_out import leave_one_out
from jaxcal.squared_ce.pipeline import calibration_error
from jaxcal.squared_ce.reductions import reduce

__all__ = [
    "Bins",
    "KernelDensity",
    "KernelRidge",
    "calibration_error",
    "empirical_risk",
    "leave_one_out",
    "reduce",
]
__dir__ = __all__.copy  # completion shows the public names
