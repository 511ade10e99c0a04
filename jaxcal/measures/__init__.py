"""Measures around calibration: quantiles, losses, temperature, binned errors, ensembles."""

from jaxcal.measures.classes import (
    CanonicalError,
    absolute,
    canonical_error,
    confidences,
    ece,
    euclidean,
    mce,
    squared_euclidean,
    total_variation,
)
from jaxcal.measures.ensembles import ensemble
from jaxcal.measures.losses import mse, nll, pinball_loss
from jaxcal.measures.mmce import mmce
from jaxcal.measures.quantiles import (
    QuantileCalibration,
    pit,
    quantile_calibration,
    quantiles,
)
from jaxcal.measures.reliability import Reliability, reliability, wilson
from jaxcal.measures.temperature import (
    MultivariatePowerExponential,
    TemperatureFit,
    fit_temperature,
    with_temperature,
)

__all__ = [
    "CanonicalError",
    "MultivariatePowerExponential",
    "QuantileCalibration",
    "Reliability",
    "TemperatureFit",
    "absolute",
    "canonical_error",
    "confidences",
    "ece",
    "ensemble",
    "euclidean",
    "fit_temperature",
    "mce",
    "mmce",
    "mse",
    "nll",
    "pinball_loss",
    "pit",
    "quantile_calibration",
    "quantiles",
    "reliability",
    "squared_euclidean",
    "total_variation",
    "wilson",
    "with_temperature",
]


def __dir__() -> list[str]:
    return sorted(__all__)
