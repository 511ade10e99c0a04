"""Other measures of predictions: quantiles, losses, fitted temperatures, binned errors."""

from jaxcal.measures.classes import confidences, ece, reliability
from jaxcal.measures.quantiles import pinball_loss, pit, quantile_calibration, quantiles
from jaxcal.measures.temperature import fit_temperature, nll, with_temperature

__all__ = [
    "confidences",
    "ece",
    "fit_temperature",
    "nll",
    "pinball_loss",
    "pit",
    "quantile_calibration",
    "quantiles",
    "reliability",
    "with_temperature",
]
__dir__ = __all__.copy  # completion shows the public names
