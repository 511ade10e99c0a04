"""Measures around calibration: quantiles, losses, temperature, binned errors, ensembles."""

from jaxcal.measures.classes import (
    calibration_error,
    ece,
    lp_ball_error,
    mce,
    top_label,
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
from jaxcal.measures.reliability import Reliability, reliability
from jaxcal.measures.temperature import (
    PowerExponential,
    TemperatureFit,
    fit_temperature,
    with_temperature,
)

__all__ = [
    "PowerExponential",
    "QuantileCalibration",
    "Reliability",
    "TemperatureFit",
    "calibration_error",
    "ece",
    "ensemble",
    "fit_temperature",
    "lp_ball_error",
    "mce",
    "mmce",
    "mse",
    "nll",
    "pinball_loss",
    "pit",
    "quantile_calibration",
    "quantiles",
    "reliability",
    "top_label",
    "with_temperature",
]
