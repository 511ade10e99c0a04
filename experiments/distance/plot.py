"""Measures over the temperature: samples of this study against independent values."""

import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt

sys.path.insert(0, str(Path(__file__).parents[1]))
import figures
import runner

FOLDER = Path(__file__).parent
STYLES = {
    "binned": ("0.6", "o", ":", "binned ECE, 20 bins"),
    "surrogate": ("0.45", "^", "--", "surrogate interval"),
    "interval": ("0.45", "v", "-.", "interval"),
    "kernel": ("black", "x", "--", "Laplace kernel"),
    "smooth": ("black", "s", "-", "smooth"),
}


def main(arguments: Sequence[str] | None = None) -> Path:
    source = Path(arguments[0]) if arguments else FOLDER / "results.csv"
    rows = [row for row in runner.read(source) if row["part"].startswith("sampled")]
    parts = list(dict.fromkeys(row["part"] for row in rows))
    figure, grid = plt.subplots(
        1, len(parts), figsize=(4.4 * len(parts), 3.6), sharey=True, squeeze=False
    )
    for axes, part in zip(grid[0], parts, strict=True):
        for name, (colour, marker, style, label) in STYLES.items():
            shown = [row for row in rows if (row["part"], row["measure"]) == (part, name)]
            if not shown:
                continue
            temperature = [1 / float(row["case"]) for row in shown]
            axes.errorbar(
                temperature,
                [float(row["value"]) for row in shown],
                yerr=[float(row["sd"]) for row in shown],
                color=colour,
                marker=marker,
                markersize=4,
                linestyle=style,
                capsize=2,
                label=label,
            )
            axes.plot(
                temperature,
                [float(row["reference"]) for row in shown],
                "+",
                color="black",
                markersize=11,
                linewidth=0,
                markeredgewidth=0.7,
                label="independent value" if name == "smooth" else None,
            )
        axes.set_xscale("log")
        axes.set_title(part.replace("sampled ", "") + " observations", fontsize="medium")
        axes.set_xlabel("temperature T = 1 / beta (1 is calibrated)")
        axes.spines[["top", "right"]].set_visible(False)
    grid[0, 0].set_ylabel("error (mean and sd over trials)")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(
        handles, labels, frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 0.98)
    )
    figure.tight_layout()
    path = source.with_name("figure.png")
    figures.save(figure, path)
    return path


if __name__ == "__main__":
    main(sys.argv[1:])
