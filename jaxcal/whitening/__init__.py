r"""Whiten targets: transform each one by a centre and a scale of its prediction.

For y a draw from p, :math:`u = M_p^{-1} (y - c_p)` is a draw from the transformed density, whose
score is :math:`M_p^\top s_p(y)`. Every Stein test therefore applies to :math:`(p, u, M_p^\top s_p)`
for any centre and any invertible scale that depend only on predictions and nodes. After whitening,
a wrong spread is the same error in sharp and in wide predictions, so the evidence adds up.

:math:`M = D R^{1/2}`, with D the standard deviations and R the correlation matrix of a prediction.
With this M, u does not depend on the units of coordinates, and permuting coordinates permutes u.
Source of M: Kessy, Lewin and Strimmer (2018), "ZCA-cor".
"""

from jaxcal.whitening.whiteners import Landing, LocationScale, Moments, Regression

__all__ = ["Landing", "LocationScale", "Moments", "Regression"]
__dir__ = __all__.copy  # completion shows the public names
