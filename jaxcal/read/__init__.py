"""Input of predictions: unnormalized densities, precomputed scores, draws, distributions."""

from jaxcal.read.families import gaussian_moments
from jaxcal.read.predictions import (
    Draws,
    LogDensities,
    OwnUnits,
    Scores,
    Standardized,
    Units,
    Unnormalized,
)
from jaxcal.read.sampling import draws
