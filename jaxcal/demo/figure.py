"""The demonstration's figure: a row of three panels for each forecaster."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Shaped

from jaxcal import plots
from jaxcal.demo.narration import TARGETS
from jaxcal.results import TestResult


def draw(
    results: Sequence[tuple[str, TestResult]], dates: Shaped[np.ndarray, " n"], output: Path
) -> None:
    """Save the null, the days and the coordinates of each named result to ``output``."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(14, 3.9 * len(results)), layout="constrained")
    rows = figure.subfigures(len(results), 1, squeeze=False, hspace=0.06)
    for (row,), (name, result) in zip(rows, results, strict=True):
        row.suptitle(name, fontweight="bold", x=0.01, ha="left")
        null, days, coordinates = row.subplots(1, 3, width_ratios=(1, 1.25, 0.9))
        plots.null_histogram(result, ax=null)
        plots.contributions(result, dates, label="day of the forecast", ax=days)
        plots.coordinates(result, TARGETS, ax=coordinates)
    figure.savefig(output, dpi=120)
