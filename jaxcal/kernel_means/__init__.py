"""Averages of a kernel over predictions: in closed form, by finite sums, or from draws."""

from jaxcal.kernel_means import (
    classes,
    laplaces,
    mixtures,
    normals,
    particles,
    scale_mixtures,
    waves,
)
from jaxcal.kernel_means.dispatch import kernel_means, pair
from jaxcal.read.families import distribution

__all__ = [
    "classes",
    "distribution",
    "kernel_means",
    "laplaces",
    "mixtures",
    "normals",
    "pair",
    "particles",
    "scale_mixtures",
    "waves",
]


def __dir__() -> list[str]:
    return sorted(__all__)
