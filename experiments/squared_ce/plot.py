"""The risk over theta in the simulation, and the errors of the classifiers by estimator."""

import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
import figures
import runner

FOLDER = Path(__file__).parent
TRUTH = 0.063278**0.5
# the exact curve of the simulation, from 3e7 draws
EXACT = {
    0.03125: 0.025780,
    0.05: 0.017829,
    0.1: 0.010415,
    0.16: 0.009347,
    0.2: 0.009452,
    0.25: 0.009613,
    0.3: 0.009667,
    0.4: 0.009526,
    0.5: 0.009270,
    0.7: 0.008856,
    0.8: 0.008743,
    0.9: 0.008683,
    1.0: 0.008666,
    1.1: 0.008680,
    1.25: 0.008743,
    1.5: 0.008912,
    2.0: 0.009321,
    5.0: 0.010921,
    10.0: 0.011797,
    31.0: 0.012510,
}
MARKS = {"15 bins": "s", "bins": "D", "kde": "o", "kkr": "x", "ukkr": "+"}


def curve(axes, rows) -> None:
    shown = sorted((r for r in rows if r["part"] == "curve"), key=lambda r: float(r["what"]))
    theta = np.array([float(row["what"]) for row in shown])
    mean, spread = (np.array([float(row[name]) for row in shown]) for name in ("risk", "spread"))
    axes.fill_between(theta, mean - spread, mean + spread, color="0.88", label="mean ± sd, n = 500")
    axes.plot(theta, mean, color="0.35")
    axes.plot(list(EXACT), list(EXACT.values()), "k.", markersize=4, label="exact")
    axes.axvline(1, color="0.5", linestyle=":", linewidth=0.8)
    axes.set(xscale="log", xlabel="θ (the truth is 1)", ylabel="risk")
    axes.legend(frameon=False, fontsize=8)


def tuned(axes, rows) -> None:
    places = []
    for k, part in enumerate(("as run", "printed")):
        for j, name in enumerate(("kde", "kkr", "ukkr")):
            values = [float(r["error"]) for r in rows if (r["part"], r["what"]) == (part, name)]
            place = k * 4 + j
            axes.plot(np.full(len(values), place), values, MARKS[name], color="0.25", markersize=5)
            places.append((place, f"{name}\n{part}"))
    axes.axhline(TRUTH, color="black", linewidth=0.8, linestyle="--")
    axes.text(max(p for p, _ in places), TRUTH, "truth", ha="right", va="bottom", fontsize=8)
    axes.margins(y=0.08)
    axes.set_xticks(*zip(*places, strict=True), fontsize=7)
    axes.set_ylabel("canonical error, n = 500")


def classifiers(axes, rows, notion: str, source: str) -> None:
    shown = [row for row in rows if row["notion"] == notion]
    names = list(dict.fromkeys(row["classifier"] for row in shown))
    estimators = [name for name in MARKS if any(row["what"] == name for row in shown)]
    for j, estimator in enumerate(estimators):
        shift = (j - (len(estimators) - 1) / 2) * 0.14
        for i, name in enumerate(names):
            chosen_rows = [r for r in shown if (r["classifier"], r["what"]) == (name, estimator)]
            for row in chosen_rows:
                low, error, high = (float(row[c]) for c in ("low", "error", "high"))
                axes.plot([low, high], [i + shift] * 2, color="0.7", linewidth=1)
                label = estimator if i == 0 else None
                axes.plot(
                    error, i + shift, MARKS[estimator], color="0.2", markersize=4, label=label
                )
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel(f"{source}: {notion} error, 95 % over test samples")
    axes.legend(frameon=False, fontsize=7, ncols=5, loc="lower center", bbox_to_anchor=(0.5, 1))


def main(arguments: Sequence[str] | None = None) -> Path:
    source = Path(arguments[0]) if arguments else FOLDER / "results.csv"
    rows = runner.read(source)
    panels = []
    for name, title in (("digits", "digits"), ("cifar10", "CIFAR-10")):
        path = source.with_name(f"results_{name}.csv")
        values = runner.read(path) if path.exists() else []
        notions = dict.fromkeys(row["notion"] for row in values)
        panels += [(values, notion, title) for notion in notions]
    lines = 1 + -(-len(panels) // 2)
    figure, grid = plt.subplots(
        lines, 2, figsize=(9, 3.1 * lines), layout="constrained", squeeze=False
    )
    curve(grid[0, 0], rows)
    tuned(grid[0, 1], rows)
    for axes, panel in zip(grid[1:].flat, panels, strict=False):
        classifiers(axes, *panel)
    for axes in grid[1:].flat[len(panels) :]:
        axes.set_visible(False)
    path = source.with_name("figure.png")
    figures.save(figure, path)
    return path


if __name__ == "__main__":
    main(sys.argv[1:])
