"""Figures. Matplotlib is imported on use.

Each function draws on ``ax`` and returns it, or makes a new figure of pyplot, which notebooks show
and ``matplotlib.pyplot.savefig`` saves, as does ``ax.figure.savefig``; pyplot keeps the last ten.
`posterior_figure` has several panels and returns a figure of its own, outside of pyplot:
``figure.savefig("name.png")``. Greys and line styles carry the meaning, not colours.
"""

from jaxcal.plots.comparisons import calibration_errors, comparison, differences
from jaxcal.plots.coverage import coverage
from jaxcal.plots.rejections import rejections
from jaxcal.plots.reliability import bracket, reliability, reliability_with_witness
from jaxcal.plots.results import contributions, coordinates, null_histogram, parts, table
from jaxcal.plots.sbi import posterior_figure
from jaxcal.plots.where import where

__all__ = [
    "bracket",
    "calibration_errors",
    "comparison",
    "contributions",
    "coordinates",
    "coverage",
    "differences",
    "null_histogram",
    "parts",
    "posterior_figure",
    "rejections",
    "reliability",
    "reliability_with_witness",
    "table",
    "where",
]


def __dir__() -> list[str]:
    return sorted(__all__)
