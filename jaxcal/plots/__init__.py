"""Figures. Matplotlib is imported on use.

``result.figure()`` returns the figure of a result, which notebooks show;
``result.figure().savefig("name.png")`` saves it. The functions here draw single panels: each draws
on ``ax`` and returns it, or makes a new pyplot figure, which ``matplotlib.pyplot.savefig`` or
``ax.figure.savefig`` saves; pyplot keeps the last ten. Greys and line styles carry the meaning, not
colours.
"""

from jaxcal.plots.comparisons import comparison, differences, rejections
from jaxcal.plots.reliability import reliability
from jaxcal.plots.results import contributions, coordinates, null_histogram, parts, table
from jaxcal.plots.where import where

__all__ = [
    "comparison",
    "contributions",
    "coordinates",
    "differences",
    "null_histogram",
    "parts",
    "rejections",
    "reliability",
    "table",
    "where",
]
__dir__ = __all__.copy  # completion shows the public names
