"""Divergences between predictions. A kernel on predictions is a radial kernel of one of them.

A divergence turns every prediction into features once, and features into squared values. Those of
scores (`Fisher`, `KernelFisher`) need no constant of the density; the others need moments, draws or
class probabilities.
"""

from jaxcal.divergences.fisher import Fisher, GradientKernel, KernelFisher
from jaxcal.divergences.gaussians import Bures, GaussianFisher, GaussianKernelFisher, Wasserstein
from jaxcal.divergences.mmd import MMD
from jaxcal.divergences.simplex import Euclidean, TotalVariation
from jaxcal.divergences.transport import MixtureWasserstein, SlicedWasserstein
from jaxcal.divergences.vectors import Vectors

__all__ = [
    "MMD",
    "Bures",
    "Euclidean",
    "Fisher",
    "GaussianFisher",
    "GaussianKernelFisher",
    "GradientKernel",
    "KernelFisher",
    "MixtureWasserstein",
    "SlicedWasserstein",
    "TotalVariation",
    "Vectors",
    "Wasserstein",
]


def __dir__() -> list[str]:
    return sorted(__all__)
