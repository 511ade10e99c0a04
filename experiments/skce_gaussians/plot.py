"""Error and variance of the estimators, and errors of the tests, over n; published ones hollow."""

import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter

sys.path.insert(0, str(Path(__file__).parents[1]))
import figures
import runner

FOLDER = Path(__file__).parent
PANELS = [(model, d) for model in ("calibrated", "uncalibrated") for d in ("1", "10")]
ESTIMATORS = {
    "biased": ("biased", "0.6", ":", "D"),
    "pairs": ("B = 2", "0.6", "-", "o"),
    "root": ("B = √n", "0.35", "--", "^"),
    "full": ("B = n", "black", "-", "s"),
}
TESTS = {
    "pairs": ("B = 2", "0.6", "-", "o"),
    "root": ("B = √n", "0.35", "--", "^"),
    "bootstrap": ("bootstrap", "black", "-", "s"),
    "gamma": ("Gamma", "black", ":", None),
    "cme": ("CME, χ²", "0.35", ":", "v"),
    "cme_f": ("CME, F", "0.35", "-.", None),
}


def published(quantity: str, model: str, d: str, name: str) -> tuple[list[int], list[float]]:
    rows = runner.read(FOLDER / "published.csv")
    wanted = (quantity, model, d, name)
    chosen_rows = [r for r in rows if (r["quantity"], r["model"], r["d"], r["name"]) == wanted]
    return [int(r["n"]) for r in chosen_rows], [float(r["value"]) for r in chosen_rows]


def outside(axes: Axes, handles: list[Line2D], title: str) -> None:
    """A legend to the right of the last panel of a row, where it covers nothing."""
    axes.legend(
        handles=handles,
        title=title,
        frameon=False,
        fontsize=8,
        title_fontsize=8,
        handlelength=3,
        loc="center left",
        bbox_to_anchor=(1.0, 0.5),
    )


def main(arguments: Sequence[str] | None = None) -> Path:
    source = Path(arguments[0]) if arguments else FOLDER / "results.csv"
    rows = runner.read(source)
    figure, grid = plt.subplots(3, 4, figsize=(10.2, 5.9), sharex=True, layout="constrained")
    for column, (model, d) in enumerate(PANELS):
        shown = [row for row in rows if (row["model"], row["d"]) == (model, d)]
        sizes = [int(row["n"]) for row in shown]
        for line, what in enumerate(("error", "variance")):
            axes = grid[line, column]
            for name, (_, colour, style, marker) in ESTIMATORS.items():
                values = [float(row[f"{name}_{what}"]) for row in shown]
                axes.plot(sizes, values, style, color=colour)
                axes.plot(
                    *published(what, model, d, name),
                    marker,
                    color=colour,
                    markerfacecolor="none",
                    markersize=5,
                )
            axes.set_yscale("log")
            if (model, what) == ("uncalibrated", "error"):  # little more than one decade
                axes.yaxis.set_major_locator(LogLocator(subs=(1, 3)))
            axes.yaxis.set_minor_formatter(NullFormatter())
        grid[0, column].set_title(f"{model}, d = {d}", fontsize=10)
        axes = grid[2, column]
        level = model == "calibrated"
        for name, (_, colour, style, marker) in TESTS.items():
            rates = [float(row[f"{name}_rejected"]) / int(row["data_sets"]) for row in shown]
            axes.plot(sizes, rates if level else [1 - rate for rate in rates], style, color=colour)
            if marker:
                n, rates = published("rejected", model, d, name)
                # at n = 4 there are fewer observations than locations
                kept = [k for k in range(len(n)) if not (name == "cme" and n[k] == 4)]
                axes.plot(
                    [n[k] for k in kept],
                    [rates[k] if level else 1 - rates[k] for k in kept],
                    marker,
                    color=colour,
                    markerfacecolor="none",
                    markersize=5,
                )
        if level and shown:
            figures.shade(axes, 0.05, int(shown[0]["data_sets"]), 0.95)
            axes.set_yscale("symlog", linthresh=0.1)
            axes.set_yticks([0, 0.05, 0.1, 0.2, 0.5, 1], ["0", ".05", ".1", ".2", ".5", "1"])
        axes.set_ylim(-0.005 if level else -0.03, 1.05)
        axes.set_xscale("log", base=2)
        axes.set_xticks([4, 16, 64, 256, 1024], ["4", "16", "64", "256", "1024"], fontsize=8)
        axes.set_xlabel("number of observations n")
    grid[0, 0].set_ylabel("mean absolute error")
    grid[1, 0].set_ylabel("variance of estimates")
    grid[2, 0].set_ylabel("type I error at level .05")
    grid[2, 2].set_ylabel("type II error")
    for axes, what, table in (
        (grid[0, 3], "estimates", ESTIMATORS),
        (grid[2, 3], "tests", TESTS),
    ):
        handles = [
            Line2D([], [], color=c, linestyle=s, marker=m, markerfacecolor="none", label=label)
            for label, c, s, m in table.values()
        ]
        outside(axes, handles, what)
    line = Line2D([], [], color="black", label="computed here")
    mark = Line2D([], [], color="black", linestyle="none", marker="s", label="published")
    mark.set_markerfacecolor("none")
    outside(grid[1, 3], [line, mark], "lines and marks")
    path = source.with_name("figure.png")
    figures.save(figure, path)
    return path


if __name__ == "__main__":
    print(main(sys.argv[1:]))
