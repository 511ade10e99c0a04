"""Measure, bound and test the distance from calibration of binary predictions.

Start with `distance_from_calibration`. Predictions are probabilities of label 1; for classes pass
``notion="top-label"`` or ``"class-wise"``; for other notions use `jaxcal.measures.confidences`.
"""

from jaxcal.dce.binned import binned_ece, unbinned_ece
from jaxcal.dce.distance import distance_from_calibration
from jaxcal.dce.intervals import interval_ce, surrogate_interval_ce
from jaxcal.dce.lower import lower_distance
from jaxcal.dce.recalibration import recalibrate
from jaxcal.dce.smooth import kernel_ce, smooth_ce
from jaxcal.dce.table import Table

__all__ = [
    "Table",
    "binned_ece",
    "distance_from_calibration",
    "interval_ce",
    "kernel_ce",
    "lower_distance",
    "recalibrate",
    "smooth_ce",
    "surrogate_interval_ce",
    "unbinned_ece",
]
__dir__ = __all__.copy  # completion shows the public names
