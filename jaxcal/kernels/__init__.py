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


def __dir__() -> list[str]:
    return sorted(__all__)
