"""Test calibration from log densities, exactly for every n, by exchangeable candidates."""

from jaxcal.candidates.exchangeability import exchangeability_test
from jaxcal.candidates.proposals import Candidates, Chains, Drawn
from jaxcal.candidates.ranks import coordinate, distance_to, log_density, ranks

__all__ = [
    "Candidates",
    "Chains",
    "Drawn",
    "coordinate",
    "distance_to",
    "exchangeability_test",
    "log_density",
    "ranks",
]
__dir__ = __all__.copy  # completion shows the public names
