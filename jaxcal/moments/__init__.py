"""Moments: functions of a prediction and a target with mean zero under calibration."""

from jaxcal.moments.balance import Balance, Exchangeable
from jaxcal.moments.stein import Curvature, Moment, Score

__all__ = ["Balance", "Curvature", "Exchangeable", "Moment", "Score"]
__dir__ = __all__.copy  # completion shows the public names
