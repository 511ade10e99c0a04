"""Null distributions of a statistic under calibration, from sums over pairs to a p-value.

`contract` defines the protocol of nulls; a null from another package needs nothing else.
"""

from jaxcal.nulls.contract import Needs, Null, Outcome, Sums
from jaxcal.nulls.limits import BlockNormal, Eigenvalues
from jaxcal.nulls.resampling import DependentWild, HadamardWild, Redrawn, Wild

__all__ = [
    "BlockNormal",
    "DependentWild",
    "Eigenvalues",
    "HadamardWild",
    "Needs",
    "Null",
    "Outcome",
    "Redrawn",
    "Sums",
    "Wild",
]
__dir__ = __all__.copy  # completion shows the public names
