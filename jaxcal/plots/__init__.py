"""Figures. Matplotlib is imported on use, and no window ever opens.

Each function draws on ``ax``, or on a new figure of its own, and returns the axes: in a script
save by ``ax.figure.savefig("name.png")``. Greys and line styles carry the meaning, not colours.
"""

from jaxcal.plots.rejections import rejection_rates, rejections
from jaxcal.plots.results import contributions, coordinates, null_histogram
from jaxcal.plots.witness import witness, witness_map

__all__ = [
    "contributions",
    "coordinates",
    "null_histogram",
    "rejection_rates",
    "rejections",
    "witness",
    "witness_map",
]
