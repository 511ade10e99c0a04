"""Calibration test from sums of moments times features: names and locates errors, linear in n."""

from jaxcal.entries.calibration import calibration_test

__all__ = ["calibration_test"]
__dir__ = __all__.copy  # completion shows the public names
