"""Kernels on targets and vectors, distances between predictions, and the bandwidth rules."""

from jaxcal.kernels.classes import ClassGram, Delta
from jaxcal.kernels.definiteness import positive_definiteness
from jaxcal.kernels.gaussians import Bures, GaussianFisher, GaussianKernelFisher, Wasserstein
from jaxcal.kernels.laplaces import LaplaceWasserstein
from jaxcal.kernels.mixture_wasserstein import MixtureWasserstein
from jaxcal.kernels.mmd import MMD
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
    "ClassGram",
    "Constant",
    "Delta",
    "Euclidean",
    "Fisher",
    "Gaussian",
    "GaussianFisher",
    "GaussianKernelFisher",
    "GradientKernel",
    "Kernel",
    "KernelFisher",
    "L1Laplace",
    "Laplace",
    "LaplaceWasserstein",
    "Linear",
    "Matern52",
    "MixtureWasserstein",
    "PowerExponential",
    "Profile",
    "Radial",
    "RationalQuadratic",
    "SlicedWasserstein",
    "TotalVariation",
    "Vectors",
    "Wasserstein",
    "positive_definiteness",
]
