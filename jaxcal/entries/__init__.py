"""Sums of moments times features of predictions, which locate and name errors in linear time."""

from jaxcal.entries.calibration import calibration_test

__all__ = ["calibration_test"]
__dir__ = __all__.copy  # completion shows the public names
