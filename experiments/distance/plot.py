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


WORDS = ("no", "yes")


def tables(rows) -> str:
    """Table 1 of the paper and its Figure 1, as what the study measured."""
    value = {(row["part"], row["case"], row["measure"]): float(row["value"]) for row in rows}
    names = list(dict.fromkeys(row["measure"] for row in rows if row["part"] == "table"))
    text = [
        "# Tables computed by this study",
        "",
        "Written by `plot.py` from `results.csv`.",
        "",
        "## Table 1: which measures are continuous, complete and sound",
        "",
        "*Jump*: change when predictions move by 1e-6, the larger of two examples. *Calibrated*: "
        "value of a calibrated predictor with noisy labels. *Two points*, *wiggle*: values of two "
        "miscalibrated ones. Continuous: jump below 0.01. Complete: 0 on the calibrated one. "
        "Sound: on both others at least the square of their lower distance. Verdicts on these "
        "examples alone: a yes is no proof, and other bins jump and cancel elsewhere.",
        "",
        "| measure | jump | calibrated | two points | wiggle | continuous | complete | sound |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in names:
        two, wiggle = "two points in a bin", "wiggle eps=0.005"
        jump = max(value["table", f"jump at {k} points", name] for k in ("two", "four"))
        quiet = value["table", "calibrated, noisy labels", name]
        seen = [value["table", case, name] for case in (two, wiggle)]
        least = [value["table", case, "lower"] ** 2 for case in (two, wiggle)]
        sound = all(a >= b for a, b in zip(seen, least, strict=True))
        verdicts = [WORDS[x] for x in (jump < 0.01, quiet < 1e-9, sound)]
        numbers = [f"{x:.2g}" for x in (jump, quiet, *seen)]
        text.append("| " + " | ".join([name, *numbers, *verdicts]) + " |")
    text += [
        "",
        "## Figure 1: how far one measure may be from another",
        "",
        "Largest ratios over the paper's constructions and 300 domains of four inputs at random, "
        "beside the largest that is proven possible (ECE: none, it cannot be bounded).",
        "",
        "    smooth / 2 <= lower <= true <= upper <= interval <= surrogate <= ECE",
        "    lower / 2 <= smooth <= 3 Laplace,  Laplace <= root lower,  interval <= 4 root lower",
        "",
        "| ratio | largest met | largest possible |",
        "|---|---|---|",
    ]
    for row in rows:
        if row["part"] == "relation":
            met, most = float(row["value"]), float(row["reference"])
            text.append(f"| {row['measure']} | {met:.4g} | {most:.4g} |")
    return "\n".join(text) + "\n"


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
    source.with_name("tables.md").write_text(tables(runner.read(source)))
    return path


if __name__ == "__main__":
    main(sys.argv[1:])
