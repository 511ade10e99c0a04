"""Calibration test from sums of moments times features; it names and locates errors in O(n)."""

from jaxcal.entries.calibration import calibration_test

__all__ = ["calibration_test"]
__dir__ = __all__.copy  # completion shows the public names
