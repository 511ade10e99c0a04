"""jaxcal tests whether the uncertainty of a probabilistic model can be trusted.

Importing jaxcal does not import JAX. Each function, class and subpackage (`kernels`, `divergences`,
`nulls`, `skce`, `ucme`, `moments`, `mcmc`, `coverage`, `candidates`, `measures`, `ckce`,
`squared_ce`, `dce`, `streaming`, `sbi`, `plots`, `whitening`) is imported on first use.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from jaxcal import (
        candidates,
        ckce,
        coverage,
        dce,
        divergences,
        kernels,
        mcmc,
        measures,
        moments,
        nulls,
        plots,
        sbi,
        skce,
        squared_ce,
        streaming,
        ucme,
        whitening,
    )
    from jaxcal.checking.check import check
    from jaxcal.checking.streamed import streamed_check
    from jaxcal.ckce import compare
    from jaxcal.dce import distance_from_calibration
    from jaxcal.entries.calibration import calibration_test
    from jaxcal.fit.explanation import explain
    from jaxcal.fit.specification import RandomFeatures
    from jaxcal.mcmc import mcmc_draws
    from jaxcal.read import Draws, LogDensities, Scores, Unnormalized
    from jaxcal.repairing.repair import repair
    from jaxcal.results import TestResult, load
    from jaxcal.skce import kce, skce_interval, skce_test
    from jaxcal.squared_ce import calibration_error
    from jaxcal.stein.calibration import kccsd, kccsd_test, moment_test
    from jaxcal.stein.goodness_of_fit import kcsd, kcsd_test, ksd, ksd_test
    from jaxcal.ucme import ucme_test

__version__ = "0.2.0"

_NAMES = {  # public functions and classes by the module that defines them
    "read": "Draws LogDensities Scores Unnormalized",
    "results": "TestResult load",
    "fit.explanation": "explain",
    "fit.specification": "RandomFeatures",
    "stein.calibration": "kccsd kccsd_test moment_test",
    "stein.goodness_of_fit": "kcsd kcsd_test ksd ksd_test",
    "entries.calibration": "calibration_test",
    "mcmc": "mcmc_draws",
    "skce": "kce skce_interval skce_test",
    "ucme": "ucme_test",
    "ckce": "compare",
    "squared_ce": "calibration_error",
    "dce": "distance_from_calibration",
    "repairing.repair": "repair",
    "checking.check": "check",
    "checking.streamed": "streamed_check",
}
_HOMES = {name: home for home, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    module = f"jaxcal.{_HOMES.get(name, name)}"
    try:
        home = import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        raise AttributeError(f"module 'jaxcal' has no attribute {name!r}") from None
    return getattr(home, name) if name in _HOMES else home


__all__ = [
    "Draws",
    "LogDensities",
    "RandomFeatures",
    "Scores",
    "TestResult",
    "Unnormalized",
    "calibration_error",
    "calibration_test",
    "candidates",
    "check",
    "ckce",
    "compare",
    "coverage",
    "dce",
    "distance_from_calibration",
    "divergences",
    "explain",
    "kccsd",
    "kccsd_test",
    "kce",
    "kcsd",
    "kcsd_test",
    "kernels",
    "ksd",
    "ksd_test",
    "load",
    "mcmc",
    "mcmc_draws",
    "measures",
    "moment_test",
    "moments",
    "nulls",
    "plots",
    "repair",
    "sbi",
    "skce",
    "skce_interval",
    "skce_test",
    "squared_ce",
    "streamed_check",
    "streaming",
    "ucme",
    "ucme_test",
    "whitening",
]
__dir__ = __all__.copy  # completion shows the public names
