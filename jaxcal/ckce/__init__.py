"""Estimate and test conditional kernel calibration errors (CKCE), and compare models by them."""

from jaxcal.ckce.class_comparison import skill
from jaxcal.ckce.compare import compare
from jaxcal.ckce.estimator import ckce, ckce_test
from jaxcal.ckce.kernels import Equal, simplex_kernel
from jaxcal.ckce.solvers import Exact, LowRank

__all__ = ["Equal", "Exact", "LowRank", "ckce", "ckce_test", "compare", "simplex_kernel", "skill"]
__dir__ = __all__.copy  # completion shows the public names
