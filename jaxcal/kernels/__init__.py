"""Kernels k(x, y) on points, classes and sequences of tokens, and bandwidth heuristics."""

from jaxcal.kernels.classes import ClassGram, Delta, Hamming, Spectrum
from jaxcal.kernels.points import (
    IMQ,
    Constant,
    Gaussian,
    Kernel,
    L1Laplace,
    Laplace,
    Linear,
    Matern52,
    PowerExponential,
    Radial,
    RationalQuadratic,
)

__all__ = [
    "IMQ",
    "ClassGram",
    "Constant",
    "Delta",
    "Gaussian",
    "Hamming",
    "Kernel",
    "L1Laplace",
    "Laplace",
    "Linear",
    "Matern52",
    "PowerExponential",
    "Radial",
    "RationalQuadratic",
    "Spectrum",
]
__dir__ = __all__.copy  # completion shows the public names
