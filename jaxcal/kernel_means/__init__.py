"""Averages of a kernel over predictions: in closed form, by finite sums, or from draws."""

from jaxcal.kernel_means import laplaces, mixtures, normals, particles, waves
from jaxcal.kernel_means.dispatch import kernel_means, pair
from jaxcal.read.families import distribution

__all__ = [
    "distribution",
    "kernel_means",
    "laplaces",
    "mixtures",
    "normals",
    "pair",
    "particles",
    "waves",
]


def __dir__() -> list[str]:
    return sorted(__all__)
