"""Accuracy and calibration over training: mean and range of networks, and their ensembles."""

import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D

sys.path.insert(0, str(Path(__file__).parents[1]))
import figures
import runner

FOLDER = Path(__file__).parent
# axes as in the paper: logarithmic, or asinh where values change sign or explode
PANELS = {
    "mse": ("mean squared error", "log", None),
    "unbiased": ("SKCE, unbiased", "asinh", 1e-3),
    "nll": ("negative log likelihood", "asinh", 1.0),
    "biased": ("SKCE, biased", "log", None),
    "pinball": ("pinball loss", "log", None),
    "p_value": ("p-value, bootstrap", "linear", None),
}
TICKS = {
    "unbiased": (-0.01, -0.001, 0, 0.001, 0.01, 0.1),
    "nll": (-10, 0, 10, 1e3, 1e5, 1e7),
}


def main(arguments: Sequence[str] | None = None) -> Path:
    source = Path(arguments[0]) if arguments else FOLDER / "results.csv"
    rows = runner.read(source)
    published = runner.read(FOLDER / "published.csv")
    figure, grid = plt.subplots(3, 2, figsize=(10, 8.4), sharex=True, layout="constrained")
    for axes, (name, (label, scale, width)) in zip(grid.flat, PANELS.items(), strict=True):
        for data, colour in (("train", "0.6"), ("test", "black")):
            shown = [row for row in rows if row["data"] == data]
            grid_of = list(dict.fromkeys(int(row["iteration"]) for row in shown))
            at = [max(iteration, 5) for iteration in grid_of]  # a place for 0 on a log axis

            def over_sets(part: str, name=name, shown=shown, grid_of=grid_of):
                """One row an iteration, one column a data set."""
                values = [
                    [float(row[f"{name}{part}"]) for row in shown if int(row["iteration"]) == t]
                    for t in grid_of
                ]
                return np.asarray(values)

            low, high = over_sets("_low").min(axis=1), over_sets("_high").max(axis=1)
            mean, ensemble = over_sets("").mean(axis=1), over_sets("_ensemble").mean(axis=1)
            axes.fill_between(at, low, high, color=colour, alpha=0.2, linewidth=0)
            axes.plot(at, mean, "-", color=colour)
            axes.plot(at, ensemble, "--", color=colour)
        seen = [int(row["iteration"]) for row in published]
        for part, marker in (("", "o"), ("_ensemble", "s")):
            values = [float(row[f"{name}{part}"]) for row in published]
            axes.plot(seen, values, marker, color="black", markerfacecolor="none", markersize=4.5)
        if scale == "asinh":
            axes.set_yscale("asinh", linear_width=width)
            ticks = TICKS[name]
            axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
            axes.set_yticks([], minor=True)
        else:
            axes.set_yscale(scale)
        axes.set_ylabel(label)
        axes.set_xscale("log")
    grid[2, 1].axhline(0.05, color="0.6", linewidth=0.8)
    for axes in grid[2]:
        axes.set_xlabel("iteration (0 is drawn at 5)")
        axes.set_xticks([10, 100, 1000, 5000], ["10", "100", "1000", "5000"])
    handles = [
        Line2D([], [], color="black", label="test, mean of ten"),
        Line2D([], [], color="black", linestyle="--", label="test, ensemble"),
        Line2D([], [], color="0.6", label="train, mean of ten"),
        Line2D([], [], color="0.6", linestyle="--", label="train, ensemble"),
        Line2D([], [], color="black", marker="o", mfc="w", linestyle="", label="published, mean"),
        Line2D(
            [], [], color="black", marker="s", mfc="w", linestyle="", label="published, ensemble"
        ),
    ]
    figure.legend(handles=handles, frameon=False, ncols=6, loc="outside upper center", fontsize=8)
    path = source.with_name("figure.png")
    figures.save(figure, path)
    return path


if __name__ == "__main__":
    print(main(sys.argv[1:]))
