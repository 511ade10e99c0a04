"""Averages of a kernel over predictions: in closed form, by quadrature, or from draws."""

from jaxcal.kernel_means import classes, mixtures, normals, particles
from jaxcal.kernel_means.dispatch import KernelMeans, kernel_means, pair
from jaxcal.kernel_means.laws import law, law_of

__all__ = [
    "KernelMeans",
    "classes",
    "kernel_means",
    "law",
    "law_of",
    "mixtures",
    "normals",
    "pair",
    "particles",
]
