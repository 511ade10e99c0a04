"""Power of the calibration test and of tests from exact draws, a row a family and fault."""

import sys
from pathlib import Path

from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
COLUMNS = {
    "calibration": "calibration_test",
    "KCCSD": "kccsd_test",
    "KCCSD: shape": "KCCSD, k + 1",
    "score: shift": "shift",
    "balance: spread": "spread",
    "curvature: correlation": "correlation",
    "jumps: weights": "weights",
    "coverage": "coverage, 99 draws",
    "SBC": "SBC, 99 draws",
    "TARP": "TARP, 99 draws",
    "SKCE": "exact SKCE",
}


def main(arguments=None) -> Path:
    given = sys.argv[1:] if arguments is None else arguments
    path = Path(given[0]) if given else FOLDER / "results.csv"
    rows = runner.read(path)
    figure = Figure(figsize=(9.4, 1.6 + 0.26 * len(rows)))
    ax = figure.subplots()
    for i, row in enumerate(rows):
        for j, name in enumerate(COLUMNS):
            share = int(row[name]) / int(row["data_sets"])
            missing = name == "SKCE" and row["family"] not in ("widths", "narrow", "hgm")
            missing |= name == "curvature: correlation" and row["family"] == "hgm"
            face = "white" if missing else str(1 - 0.75 * share)
            ax.fill([j - 0.5, j + 0.5, j + 0.5, j - 0.5], [i - 0.5, i - 0.5, i + 0.5, i + 0.5],
                    color=face)  # fmt: skip
            ax.text(j, i, "" if missing else f"{share:.2f}", ha="center", va="center",
                    fontsize="x-small", color="white" if share > 0.6 else "black")  # fmt: skip
    labels = [f"{row['family']}, n = {row['n']}: {row['fault']}" for row in rows]
    ax.set_yticks(range(len(rows)), labels, fontsize="x-small")
    ax.set_xticks(range(len(COLUMNS)), list(COLUMNS.values()), rotation=40, ha="left",
                  fontsize="small")  # fmt: skip
    ax.xaxis.tick_top()
    ax.set(xlim=(-0.5, len(COLUMNS) - 0.5), ylim=(len(rows) - 0.5, -0.5))
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    ax.set_xlabel("share of data sets rejected at 5 %")
    target = path.parent / "figure.png"
    figure.savefig(target, dpi=62, bbox_inches="tight")
    return target


if __name__ == "__main__":
    main()
