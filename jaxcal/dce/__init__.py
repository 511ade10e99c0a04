"""Distance from calibration of binary predictions: measures, bounds, witnesses and their noise.

Start with `distance_from_calibration`. Predictions are probabilities of label 1; for classes say
``notion="top-label"`` or ``"class-wise"`` there, and use `from_classes` before other measures.
"""

from jaxcal.dce.binned import BinnedECE, binned_ece, unbinned_ece
from jaxcal.dce.bracket import (
    Bracket,
    DistanceResult,
    dce_bracket,
    distance_from_calibration,
)
from jaxcal.dce.intervals import (
    IntervalCE,
    SurrogateCE,
    interval_ce,
    surrogate_interval_ce,
)
from jaxcal.dce.kernel import kernel_ce
from jaxcal.dce.laplace import KernelCE, laplace_ce, laplace_witness
from jaxcal.dce.lower import Coupling, LowerDistance, lower_distance
from jaxcal.dce.lower_bounds import LowerBounds, lower_distance_bounds
from jaxcal.dce.lower_slopes import lower_distance_value
from jaxcal.dce.measure_tests import MeasureTest, interval_ce_test, smooth_ce_test
from jaxcal.dce.predictions import from_classes
from jaxcal.dce.recalibration import Recalibration, recalibrate
from jaxcal.dce.smece import SmoothECE, smece
from jaxcal.dce.smooth import SmoothCE, smooth_ce
from jaxcal.dce.upper import Partition, upper_distance

__all__ = [
    "BinnedECE",
    "Bracket",
    "Coupling",
    "DistanceResult",
    "IntervalCE",
    "KernelCE",
    "LowerBounds",
    "LowerDistance",
    "MeasureTest",
    "Partition",
    "Recalibration",
    "SmoothCE",
    "SmoothECE",
    "SurrogateCE",
    "binned_ece",
    "dce_bracket",
    "distance_from_calibration",
    "from_classes",
    "interval_ce",
    "interval_ce_test",
    "kernel_ce",
    "laplace_ce",
    "laplace_witness",
    "lower_distance",
    "lower_distance_bounds",
    "lower_distance_value",
    "recalibrate",
    "smece",
    "smooth_ce",
    "smooth_ce_test",
    "surrogate_interval_ce",
    "unbinned_ece",
    "upper_distance",
]


def __dir__() -> list[str]:
    return sorted(__all__)
