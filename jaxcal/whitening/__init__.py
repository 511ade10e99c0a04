r"""Each prediction in its own units: a centre and a scale that are functions of it alone.

With :math:`u = M_p^{-1} (y - c_p)` a target that is a draw from p has the density of p carried
along, whose score is :math:`M_p^\top s_p(y)`: an affine change of variables a prediction, so that
every Stein test applies to :math:`(p, u, M_p^\top s_p)` as it stands, for any centre and any
invertible scale that depend on nothing but predictions and nodes. A wrong spread is then the
same fault in every prediction, sharp or wide, and adds up.

:math:`M = D R^{1/2}` with D the deviations and R the correlations that a prediction claims: u does
not change with the units of any coordinate, or with the order of coordinates.
Source of this root: Kessy, Lewin and Strimmer (2018), "ZCA-cor".
"""

from jaxcal.whitening.contract import Whitener
from jaxcal.whitening.densities import Landing, LocationScale, Regression
from jaxcal.whitening.moments import Moments

__all__ = ["Landing", "LocationScale", "Moments", "Regression", "Whitener"]


def __dir__() -> list[str]:
    return sorted(__all__)
