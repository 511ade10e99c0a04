"""The distribution of a statistic under calibration: how a test gets from sums to a p-value.

`contract` says what a null is, and is all that one from outside the package needs.
"""

from jaxcal.nulls.contract import Needs, Null, Outcome, Sums
from jaxcal.nulls.limits import BlockNormal, Bound, Eigenvalues
from jaxcal.nulls.resampling import (
    DependentWild,
    HadamardWild,
    Multinomial,
    Redrawn,
    Wild,
)

__all__ = [
    "BlockNormal",
    "Bound",
    "DependentWild",
    "Eigenvalues",
    "HadamardWild",
    "Multinomial",
    "Needs",
    "Null",
    "Outcome",
    "Redrawn",
    "Sums",
    "Wild",
]


def __dir__() -> list[str]:
    return sorted(__all__)
