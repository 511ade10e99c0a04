"""Kernels on targets and vectors, distances between predictions, and the bandwidth rule."""

from jaxcal.kernels.points import (
    IMQ,
    Constant,
    Gaussian,
    Laplace,
    Matern52,
    RationalQuadratic,
)
from jaxcal.kernels.predictions import Fisher, Vectors

__all__ = [
    "IMQ",
    "Constant",
    "Fisher",
    "Gaussian",
    "Laplace",
    "Matern52",
    "RationalQuadratic",
    "Vectors",
]
