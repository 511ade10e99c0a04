"""Processor seconds by rows, with 10^9 rows on paper, in units of a matrix product."""

import sys
from pathlib import Path

import matplotlib.pyplot as plt

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
NAMES = {
    "calibration": "calibration_test, 2 coordinates, 500 draws",
    "classes": "skce_test, 10 classes, 20 random features",
    "comparison": "compare, 3 models of 10 classes",
    "table": "table of yes and no",
}


def main() -> None:
    """One line per test; dashed from the largest number of rows that was measured."""
    rows = runner.read(FOLDER / "results.csv")
    figure, ax = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    for color, (test, name) in zip(("C0", "C1", "C3", "C2"), NAMES.items(), strict=True):
        points = sorted(
            (int(row["rows"]), float(row["cpu_seconds"]))
            for row in rows
            if row["test"] == test and row["workers"] == "1"
        )
        n, seconds = points[-1]
        ax.plot(*zip(*points, strict=True), "o-", color=color, label=name)
        ax.plot([n, 10**9], [seconds, seconds * 10**9 / n], "--", color=color)
        for row in rows:
            if row["test"] == test and row["workers"] != "1":
                ax.plot(int(row["rows"]), float(row["cpu_seconds"]), "x", color=color)
    for seconds, said in ((60, "a minute"), (3600, "an hour")):
        ax.axhline(seconds, color="0.85", linewidth=0.8, zorder=0)
        ax.text(1.1e5, seconds * 1.15, f"{said} of one core", color="0.5", fontsize=8)
    ax.set(xscale="log", yscale="log", xlabel="rows", ylabel="processor seconds, all workers")
    ax.legend(title="dashed: on paper; x: 2 and 4 workers", fontsize=8, title_fontsize=8)
    figure.savefig(FOLDER / "figure.png", dpi=130)


if __name__ == "__main__":
    main()
