"""Compute p-values from sums over pairs, by the distribution of a statistic under calibration.

`contract` defines `Null`, the protocol that a null from another package has to implement.
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
