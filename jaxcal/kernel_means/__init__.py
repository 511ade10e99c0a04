"""Averages of a kernel over predictions: in closed form, by quadrature, or from draws."""

from jaxcal.kernel_means import (
    classes,
    laplaces,
    mixtures,
    normals,
    particles,
    quadrature,
    scale_mixtures,
)
from jaxcal.kernel_means.dispatch import KernelMeans, kernel_means, pair
from jaxcal.models.laws import law, law_of

__all__ = [
    "KernelMeans",
    "classes",
    "kernel_means",
    "laplaces",
    "law",
    "law_of",
    "mixtures",
    "normals",
    "pair",
    "particles",
    "quadrature",
    "scale_mixtures",
]
