"""Power and level over n, with and without preconditioning."""

import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt

sys.path.insert(0, str(Path(__file__).parents[1]))
import figures
import runner

FOLDER = Path(__file__).parent
STYLES = {
    "none": ("0.55", "o", "-"),
    "isotropic": ("black", "s", "-"),
    "diagonal": ("0.3", "x", ":"),
}


def main(arguments: Sequence[str] | None = None) -> Path:
    source = Path(arguments[0]) if arguments else FOLDER / "results.csv"
    rows = runner.read(source)
    units = list(dict.fromkeys(row["units"] for row in rows))
    trials = int(rows[0]["data_sets"])
    figure, grid = plt.subplots(
        2, len(units), figsize=(3.6 * len(units), 5.2), sharex=True, sharey="row", squeeze=False
    )
    for column, unit in enumerate(units):
        for line, truth in enumerate(("homoscedastic", "calibrated")):
            axes = grid[line, column]
            for k, (form, (colour, marker, style)) in enumerate(STYLES.items()):
                shown = [
                    row
                    for row in rows
                    if (row["units"], row["truth"], row["precondition"]) == (unit, truth, form)
                ]
                rates = [int(row["rejected_05"]) / trials for row in shown]
                axes.errorbar(
                    [int(row["n"]) * (1 + 0.02 * (k - 1)) for row in shown],
                    rates,
                    yerr=[2 * figures.standard_error(rate, trials) for rate in rates],
                    color=colour,
                    marker=marker,
                    linestyle=style,
                    capsize=2,
                    label=f"precondition={None if form == 'none' else form!r}",
                )
            axes.set_xscale("log", base=2)
            ticks = sorted({int(row["n"]) for row in rows})
            axes.set_xticks(ticks, [str(n) for n in ticks])
        grid[0, column].set_title(f"{unit} units")
        grid[0, column].set_ylim(0, 1.02)
        grid[1, column].set_ylim(0, 0.1)
        figures.shade(grid[1, column], 0.05, trials, 0.9999)
        grid[1, column].set_xlabel("observations n")
    grid[0, 0].set_ylabel("power at level 0.05")
    grid[1, 0].set_ylabel("false rejections at level 0.05\n(grey: 99.99 % binomial band)")
    grid[0, 0].legend(frameon=False, fontsize=8, loc="lower right")
    path = source.with_name("figure.png")
    figures.save(figure, path)
    return path


if __name__ == "__main__":
    main(sys.argv[1:])
