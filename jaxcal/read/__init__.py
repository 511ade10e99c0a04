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

__all__ = [
    "Draws",
    "LogDensities",
    "OwnUnits",
    "Scores",
    "Standardized",
    "Units",
    "Unnormalized",
    "draws",
    "gaussian_moments",
]
__dir__ = __all__.copy  # completion shows the public names
