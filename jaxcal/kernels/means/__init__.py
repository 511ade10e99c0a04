"""Averages of a kernel over predictions: in closed form, by finite sums, or from draws."""

from jaxcal.kernels.means import (  # which register themselves
    closed_forms,
    mixtures,
    particles,
    waves,
)
