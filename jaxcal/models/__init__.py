"""What a prediction can be: an unnormalized density, precomputed scores, draws, a distribution."""

from jaxcal.models.arrays import Draws, LogDensities, Scores
from jaxcal.models.families import gaussian_moments
from jaxcal.models.sampling import draws
from jaxcal.models.standardized import OwnUnits, Standardized, Units
from jaxcal.models.unnormalized import Unnormalized

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


def __dir__() -> list[str]:
    return sorted(__all__)
