"""Power of the linear-time test against its number of features and against its cost."""

import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt

sys.path.insert(0, str(Path(__file__).parents[1]))
import figures
import runner

FOLDER = Path(__file__).parent
STYLES = {
    ("True", "Eigenvalues"): ("black", "o", "-", "orthogonal, Eigenvalues"),
    ("False", "Eigenvalues"): ("0.5", "s", "--", "independent, Eigenvalues"),
    ("True", "Wild"): ("0.25", "^", ":", "orthogonal, Wild"),
}


def main(arguments: Sequence[str] | None = None) -> Path:
    source = Path(arguments[0]) if arguments else FOLDER / "results.csv"
    rows = [row for row in runner.read(source) if row["what"] == "power"]
    figure, (by_size, by_cost) = plt.subplots(1, 2, figsize=(8.6, 3.6), sharey=True)
    for (orthogonal, null), (colour, marker, line, label) in STYLES.items():
        shown = [row for row in rows if (row["orthogonal"], row["null"]) == (orthogonal, null)]
        shown.sort(key=lambda row: int(row["features"]))
        for row in shown:
            sets, size = int(row["data_sets"]), int(row["features"])
            rate = int(row["rejected_05"]) / sets
            error = 2 * figures.standard_error(rate, sets)
            cost = float(row["milliseconds"])
            if size == 0:
                by_size.axhline(rate, color=colour, linestyle=line, linewidth=0.8)
                by_cost.plot(cost, rate, marker="*", color=colour, markersize=11)
                place = {"textcoords": "offset points", "xytext": (6, 4), "fontsize": 8}
                by_cost.annotate(f"all pairs, {null}", (cost, rate), **place)
                continue
            for axes, x in ((by_size, size), (by_cost, cost)):
                axes.errorbar(x, rate, yerr=error, color=colour, capsize=2, marker=marker)
        curve = [row for row in shown if row["features"] != "0"]
        rates = [int(row["rejected_05"]) / int(row["data_sets"]) for row in curve]
        for axes, name in ((by_size, "features"), (by_cost, "milliseconds")):
            xs = [float(row[name]) for row in curve]
            axes.plot(xs, rates, color=colour, linestyle=line, marker=marker, label=label)
    by_size.set_xlabel("features R (horizontal lines: all pairs)")
    by_cost.set_xlabel("processor milliseconds a data set")
    by_size.set_ylabel("rejected at .05, n = 128")
    by_size.legend(frameon=False, fontsize=8, loc="lower right")
    for axes in (by_size, by_cost):
        axes.set_xscale("log")
    path = source.with_name("figure.png")
    figures.save(figure, path)
    return path


if __name__ == "__main__":
    main(sys.argv[1:])
