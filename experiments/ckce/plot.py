"""E2: rates of right rankings over n. E4 and E5: measures along a shift."""

import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
import figures
import runner

FOLDER = Path(__file__).parent
STYLES = {
    "CKCE": ("black", "o", "-"),
    "JKCE": ("0.45", "s", "--"),
    "ECE": ("0.45", "x", ":"),
    "CKCE, bandwidth 0.3": ("black", "^", "-."),
}


def rankings(axes, rows):
    pairs = list(dict.fromkeys(row["model"] for row in rows))
    for ax, pair in zip(axes, pairs, strict=True):
        for measure in ("CKCE", "JKCE", "ECE"):
            shown = [r for r in rows if (r["model"], r["measure"]) == (pair, measure)]
            colour, mark, line = STYLES[measure]
            ns = [int(r["setting"]) for r in shown]
            rates = [float(r["mean"]) for r in shown]
            ax.plot(ns, rates, color=colour, marker=mark, linestyle=line, label=measure)
        ax.set(xscale="log", ylim=(-0.03, 1.03), title=pair, xlabel="observations n")
        ns = sorted({int(r["setting"]) for r in rows})
        ax.set_xticks(ns, [str(n) for n in ns], fontsize=8)
        ax.minorticks_off()
    axes[0].set_ylabel("rate of right rankings")


def shifts(ax, rows, measures, title, label):
    """Every curve divided by its mean, so that only its change is seen."""
    for measure in measures:
        shown = [r for r in rows if r["measure"] == measure]
        colour, mark, line = STYLES[measure]
        values = np.array([float(r["mean"]) for r in shown])
        places = [float(r["setting"]) for r in shown]
        ax.plot(places, values / values.mean(), color=colour, marker=mark, linestyle=line)
    ax.set(title=title, xlabel=label, ylim=(0, None))


def main(arguments: Sequence[str] | None = None) -> Path:
    source = Path(arguments[0]) if arguments else FOLDER / "results.csv"
    rows = runner.read(source)
    of = {name: [r for r in rows if r["experiment"] == name] for name in ("E2", "E4", "E5")}
    figure, grid = plt.subplots(2, 4, figsize=(12, 6), layout="constrained")
    rankings(grid[0], of["E2"])
    shifts(grid[1, 0], of["E4"], STYLES, "labels given predictions fixed", "location of the inputs")
    grid[1, 0].set_ylabel("measure over its mean")
    models = list(dict.fromkeys(row["model"] for row in of["E5"]))
    for ax, model in zip(grid[1, 1:3], models, strict=True):
        chosen_rows = [r for r in of["E5"] if r["model"] == model]
        shifts(ax, chosen_rows, ("CKCE", "JKCE"), f"images, {model}", "brightness (%)")
    ax = grid[1, 3]
    for model, line in zip(models, ("-", "--"), strict=True):
        for measure, colour in (("CKCE", "black"), ("JKCE", "0.45")):
            chosen_rows = [r for r in of["E5"] if (r["model"], r["measure"]) == (model, measure)]
            places = [float(r["setting"]) for r in chosen_rows]
            values = [float(r["mean"]) for r in chosen_rows]
            ax.plot(places, values, color=colour, linestyle=line, label=f"{measure}, {model}")
    ax.set(title="images, values", xlabel="brightness (%)", yscale="log")
    ax.legend(frameon=False, fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.22), ncols=1)
    handles = [
        plt.Line2D([], [], color=c, marker=m, linestyle=s, label=name)
        for name, (c, m, s) in STYLES.items()
    ]
    figure.legend(handles=handles, ncols=4, frameon=False, loc="outside upper center")
    path = source.with_name("figure.png")
    figures.save(figure, path)
    return path


if __name__ == "__main__":
    main(sys.argv[1:])
