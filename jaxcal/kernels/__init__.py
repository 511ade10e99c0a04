"""Kernels on targets and vectors, distances between predictions, and the bandwidth rules."""

from jaxcal.kernels.gaussians import Bures, GaussianFisher, GaussianKernelFisher, Wasserstein
from jaxcal.kernels.mmd import MMD
from jaxcal.kernels.points import (
    IMQ,
    Constant,
    Gaussian,
    Laplace,
    Linear,
    Matern52,
    RationalQuadratic,
)
from jaxcal.kernels.predictions import (
    Fisher,
    GradientKernel,
    KernelFisher,
    SlicedWasserstein,
    Vectors,
)
from jaxcal.kernels.simplex import Euclidean, TotalVariation

__all__ = [
    "IMQ",
    "MMD",
    "Bures",
    "Constant",
    "Euclidean",
    "Fisher",
    "Gaussian",
    "GaussianFisher",
    "GaussianKernelFisher",
    "GradientKernel",
    "KernelFisher",
    "Laplace",
    "Linear",
    "Matern52",
    "RationalQuadratic",
    "SlicedWasserstein",
    "TotalVariation",
    "Vectors",
    "Wasserstein",
]
