"""Measures around calibration: quantiles, losses, temperature, binned errors, ensembles."""

from jaxcal.measures.classes import (
    absolute,
    calibration_error,
    ece,
    euclidean,
    lp_ball_error,
    mce,
    squared_euclidean,
    top_label,
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
    "absolute",
    "calibration_error",
    "ece",
    "ensemble",
    "euclidean",
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
    "squared_euclidean",
    "top_label",
    "total_variation",
    "wilson",
    "with_temperature",
]
