"""jaxcal: can I trust the uncertainty of this probabilistic model?

The tests of KCCSD are imported at once. The other rooms (`skce`, `ucme`, `mcmc`, `coverage`,
`candidates`, `measures`, `ckce`, `squared_ce`, `distance`, `simulators`, `sbi`, `plots`) and the
functions that stand for them here are imported when they are first named.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from jaxcal import kernels, nulls
from jaxcal.calibration import kccsd, kccsd_test
from jaxcal.goodness_of_fit import kcsd, kcsd_test, ksd, ksd_test
from jaxcal.models import Draws, Scores, Unnormalized
from jaxcal.results import Estimate, TestResult

if TYPE_CHECKING:
    from jaxcal import (
        candidates,
        ckce,
        coverage,
        distance,
        mcmc,
        measures,
        plots,
        sbi,
        simulators,
        skce,
        squared_ce,
        ucme,
    )
    from jaxcal.ckce import compare
    from jaxcal.distance import distance_from_calibration
    from jaxcal.mcmc import mcmc_draws
    from jaxcal.skce import kce, skce_interval, skce_test
    from jaxcal.squared_ce import calibration_error
    from jaxcal.ucme import ucme_test

__version__ = "0.1.0"

_ROOMS = ("candidates", "ckce", "coverage", "distance", "mcmc", "measures", "plots", "sbi")
_ROOMS += ("simulators", "skce", "squared_ce", "ucme")
_LATER = {  # functions by the room they live in
    "calibration_error": "squared_ce",
    "compare": "ckce",
    "distance_from_calibration": "distance",
    "kce": "skce",
    "mcmc_draws": "mcmc",
    "skce_interval": "skce",
    "skce_test": "skce",
    "ucme_test": "ucme",
}


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"jaxcal.{name}")
    if name in _LATER:
        return getattr(import_module(f"jaxcal.{_LATER[name]}"), name)
    raise AttributeError(f"module 'jaxcal' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


__all__ = [
    "Draws",
    "Estimate",
    "Scores",
    "TestResult",
    "Unnormalized",
    "calibration_error",
    "candidates",
    "ckce",
    "compare",
    "coverage",
    "distance",
    "distance_from_calibration",
    "kccsd",
    "kccsd_test",
    "kce",
    "kcsd",
    "kcsd_test",
    "kernels",
    "ksd",
    "ksd_test",
    "mcmc",
    "mcmc_draws",
    "measures",
    "nulls",
    "plots",
    "sbi",
    "simulators",
    "skce",
    "skce_interval",
    "skce_test",
    "squared_ce",
    "ucme",
    "ucme_test",
]
