"""jaxcal: can I trust the uncertainty of this probabilistic model?"""

from jaxcal import kernels, nulls
from jaxcal.calibration import kccsd, kccsd_test
from jaxcal.goodness_of_fit import kcsd, kcsd_test, ksd, ksd_test
from jaxcal.models import Draws, Scores, Unnormalized
from jaxcal.results import Estimate, TestResult

__version__ = "0.1.0"

__all__ = [
    "Draws",
    "Estimate",
    "Scores",
    "TestResult",
    "Unnormalized",
    "kccsd",
    "kccsd_test",
    "kcsd",
    "kcsd_test",
    "kernels",
    "ksd",
    "ksd_test",
    "nulls",
]
