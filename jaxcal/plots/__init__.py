"""Figures. Matplotlib is imported on use.

Each function draws on ``ax`` and returns it, or makes a new figure of pyplot, which notebooks show
and ``matplotlib.pyplot.savefig`` saves, as does ``ax.figure.savefig``; pyplot keeps the last ten.
What makes several panels (`posterior_figure`, `reliability_of_classes`) returns a figure of its
own, outside of pyplot: ``figure.savefig("name.png")``. Greys and line styles carry the meaning, not
colours.
"""

from jaxcal.plots.ckce import comparison, differences, ridge_path
from jaxcal.plots.coverage import coverage
from jaxcal.plots.dce import bracket, reliability_of_classes, reliability_with_witness
from jaxcal.plots.quantiles import pit_histogram, quantile_calibration
from jaxcal.plots.rejections import rejection_rates, rejections
from jaxcal.plots.reliability import reliability
from jaxcal.plots.results import contributions, coordinates, null_histogram, parts
from jaxcal.plots.sbi import posterior_figure
from jaxcal.plots.squared_ce import calibration_errors, risk_over_grid
from jaxcal.plots.witness import witness, witness_map

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
    "pit_histogram",
    "posterior_figure",
    "quantile_calibration",
    "rejection_rates",
    "rejections",
    "reliability",
    "reliability_of_classes",
    "reliability_with_witness",
    "ridge_path",
    "risk_over_grid",
    "witness",
    "witness_map",
]


def __dir__() -> list[str]:
    return sorted(__all__)
