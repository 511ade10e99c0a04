"""The kernel calibration error (SKCE): tests, estimates and intervals."""

from jaxcal.skce.estimates import BlockEstimates, block_estimates, skce_interval
from jaxcal.skce.hypothesis_test import kce, skce, skce_test

__all__ = ["BlockEstimates", "block_estimates", "kce", "skce", "skce_interval", "skce_test"]
