"""Test calibration from log densities, exactly for every n, by exchangeable candidates."""

from jaxcal.candidates.exchangeability import exchangeability_test
from jaxcal.candidates.proposals import Candidates, Chains, Drawn
from jaxcal.candidates.ranks import ranks

__all__ = [
    "Candidates",
    "Chains",
    "Drawn",
    "exchangeability_test",
    "ranks",
]
__dir__ = __all__.copy  # completion shows the public names
