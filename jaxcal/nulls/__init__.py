"""The distribution of a statistic under calibration: how a test gets from sums to a p-value.

`contract` says what a null is, and is all that one from outside the package needs.
"""

from jaxcal.nulls.contract import Needs, Null, Outcome, Sums
from jaxcal.nulls.eigenvalues import Eigenvalues
from jaxcal.nulls.limits import BlockNormal, BlockSquares, Bound, Gamma
from jaxcal.nulls.resampling import (
    DependentWild,
    HadamardWild,
    Multinomial,
    Redrawn,
    Spectrum,
    Wild,
)

__all__ = [
    "BlockNormal",
    "BlockSquares",
    "Bound",
    "DependentWild",
    "Eigenvalues",
    "Gamma",
    "HadamardWild",
    "Multinomial",
    "Needs",
    "Null",
    "Outcome",
    "Redrawn",
    "Spectrum",
    "Sums",
    "Wild",
]


def __dir__() -> list[str]:
    return sorted(__all__)
