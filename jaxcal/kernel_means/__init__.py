"""Averages of a kernel over predictions: in closed form, by finite sums, or from draws."""

from jaxcal.kernel_means import closed_forms, mixtures, particles, waves
from jaxcal.kernel_means.dispatch import kernel_means, pair
from jaxcal.read.families import distribution

__all__ = [
    "closed_forms",
    "distribution",
    "kernel_means",
    "mixtures",
    "pair",
    "particles",
    "waves",
]
__dir__ = __all__.copy  # completion shows the public names
