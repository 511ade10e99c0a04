"""Test and estimate the kernel calibration error (SKCE), with intervals."""

from jaxcal.skce.calibration import kce, skce, skce_test
from jaxcal.skce.estimates import block_estimates, skce_interval

__all__ = ["block_estimates", "kce", "skce", "skce_interval", "skce_test"]
__dir__ = __all__.copy  # completion shows the public names
