"""Kernels k(x, y) on points and classes, and the bandwidth rules."""

from jaxcal.kernels.classes import ClassGram, Delta
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
    Profile,
    Radial,
    RationalQuadratic,
)

__all__ = [
    "IMQ",
    "ClassGram",
    "Constant",
    "Delta",
    "Gaussian",
    "Kernel",
    "L1Laplace",
    "Laplace",
    "Linear",
    "Matern52",
    "PowerExponential",
    "Profile",
    "Radial",
    "RationalQuadratic",
]


def __dir__() -> list[str]:
    return sorted(__all__)
