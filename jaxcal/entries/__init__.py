"""Test calibration in O(n) by sums of moments times features; name and locate errors."""

from jaxcal.entries.calibration import calibration_test

__all__ = ["calibration_test"]
__dir__ = __all__.copy  # completion shows the public names
