"""Sums of moments times features of predictions, which locate and name errors in linear time."""

from jaxcal.entries.calibration import calibration_test

__all__ = ["calibration_test"]


def __dir__() -> list[str]:
    return sorted(__all__)
