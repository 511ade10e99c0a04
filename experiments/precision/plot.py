"""The error of float32 over n: of the estimate and of the null draws."""

import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt

sys.path.insert(0, str(Path(__file__).parents[1]))
import figures
import runner

FOLDER = Path(__file__).parent
STYLES = {
    "calibrated": ("black", "o", "-", "N(x, I)"),
    "offset": ("0.5", "s", "--", "N(x + 100, I)"),
    "heavy": ("0.25", "x", ":", "heavy-tailed scores"),
}
PANELS = {
    "estimate": "error of the estimate\n(null standard deviations)",
    "draws": "largest error of 500 null draws\n(null standard deviations)",
}


def main(arguments: Sequence[str] | None = None) -> Path:
    source = Path(arguments[0]) if arguments else FOLDER / "results.csv"
    rows = runner.read(source)
    dimensions = list(dict.fromkeys(row["d"] for row in rows))
    figure, grid = plt.subplots(
        2,
        len(dimensions),
        figsize=(3.6 * len(dimensions), 5.2),
        sharex=True,
        sharey=True,
        squeeze=False,
    )
    for column, d in enumerate(dimensions):
        for line, (name, label) in enumerate(PANELS.items()):
            axes = grid[line, column]
            for family, (colour, marker, style, says) in STYLES.items():
                shown = [row for row in rows if (row["d"], row["family"]) == (d, family)]
                ns = [int(row["n"]) for row in shown]
                middle = [float(row[f"{name}_median"]) for row in shown]
                largest = [float(row[f"{name}_largest"]) for row in shown]
                axes.plot(ns, middle, color=colour, marker=marker, linestyle=style, label=says)
                axes.vlines(ns, middle, largest, color=colour, linewidth=0.8)
            axes.set_xscale("log", base=2)
            axes.set_yscale("log")
            grid[line, 0].set_ylabel(label)
        ticks = sorted({int(row["n"]) for row in rows})
        grid[1, column].set_xticks(ticks, [str(n) for n in ticks])
        grid[1, column].set_xlabel("observations n")
        grid[0, column].set_title(f"d = {d}")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, ncols=3, frameon=False, loc="upper center", fontsize=9)
    figure.text(0.5, 0.0, "marks: median data set; lines up: the worst", ha="center", fontsize=9)
    path = source.with_name("figure.png")
    figures.save(figure, path)
    return path


if __name__ == "__main__":
    main(sys.argv[1:])
