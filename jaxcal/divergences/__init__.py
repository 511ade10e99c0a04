"""Compute divergences between predictions; kernels on predictions are functions of a divergence.

A divergence computes features of each prediction, and squared distances from features. `Fisher` and
`KernelFisher` use scores, which need no normalizing constant; the others use moments, draws, class
probabilities, or vectors from the user.
"""

from jaxcal.divergences.fisher import Fisher, GradientKernel, KernelFisher
from jaxcal.divergences.gaussians import GaussianFisher, GaussianKernelFisher, Wasserstein
from jaxcal.divergences.mmd import MMD
from jaxcal.divergences.vectors import Euclidean, TotalVariation, Vectors

__all__ = [
    "MMD",
    "Euclidean",
    "Fisher",
    "GaussianFisher",
    "GaussianKernelFisher",
    "GradientKernel",
    "KernelFisher",
    "TotalVariation",
    "Vectors",
    "Wasserstein",
]
__dir__ = __all__.copy  # completion shows the public names
