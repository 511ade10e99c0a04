"""Draw figures with Matplotlib, which is imported on use.

``result.figure()`` returns the figure of a result, which notebooks show;
``result.figure().savefig("name.png")`` saves it. Each function here draws a single panel on the
axes ``ax``, or on a new pyplot figure if None, and returns the axes; ``ax.figure.savefig`` or
``matplotlib.pyplot.savefig`` saves it. Pyplot keeps the last ten new figures. Greys and line styles
carry the meaning, not colours.
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
