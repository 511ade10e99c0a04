"""Rejection rates of all cells with their binomial bands; prints the cells outside."""

import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt

sys.path.insert(0, str(Path(__file__).parents[1]))
import figures
import runner

FOLDER = Path(__file__).parent
LEVELS = {"rejected_05": 0.05, "rejected_01": 0.01}
WIDE, NARROW = 0.9999, 0.95
ONE_SIDED = ("Bound",)  # promises at most the level, and rejects far less
MARKERS = {"kccsd": "o", "kcsd": "^", "ksd": "x"}


def outside(row: dict[str, str], column: str, coverage: float) -> str:
    """ "above", "below", or "" inside the binomial band of the nominal level."""
    trials, count = int(row["data_sets"]), int(row[column])
    low, high = figures.band(LEVELS[column], trials, coverage)
    if count > round(high * trials):
        return "above"
    return "below" if count < round(low * trials) and row["null"] not in ONE_SIDED else ""


def report(rows: list[dict[str, str]]) -> None:
    """Print how many cells lie outside their bands, and name each outside the wide one."""
    print(
        "| null | n | cells | mean at .05 | outside 95 % | outside 99.99 % | mean at .01 | ", end=""
    )
    print("outside 95 % | outside 99.99 % |\n|---|---|---|---|---|---|---|---|---|")
    for null in dict.fromkeys(row["null"] for row in rows):
        for n in sorted({int(row["n"]) for row in rows if row["null"] == null}):
            chosen = [row for row in rows if (row["null"], int(row["n"])) == (null, n)]
            line = [null, n, len(chosen)]
            for column in LEVELS:
                rates = [int(row[column]) / int(row["data_sets"]) for row in chosen]
                line.append(f"{sum(rates) / len(rates):.3f}")
                for coverage in (NARROW, WIDE):
                    sides = [outside(row, column, coverage) for row in chosen]
                    line.append(f"+{sides.count('above')} -{sides.count('below')}")
            print("|", " | ".join(map(str, line)), "|")
    print("\noutside the 99.99 % band:")
    for row in rows:
        for column, level in LEVELS.items():
            if side := outside(row, column, WIDE):
                print(f"  {side} {level}: {int(row[column])} of {row['data_sets']}:", end=" ")
                print(" ".join(list(row.values())[:7]))
    print("NaN p-values:", sum(int(row["not_a_number"]) for row in rows))


def main(arguments: Sequence[str] | None = None) -> Path:
    source = Path(arguments[0]) if arguments else FOLDER / "results.csv"
    rows = runner.read(source)
    report(rows)
    trials = int(rows[0]["data_sets"])
    lanes = [
        (null, n)
        for null in dict.fromkeys(row["null"] for row in rows)
        for n in sorted({int(row["n"]) for row in rows if row["null"] == null})
    ]
    figure, panels = plt.subplots(1, 2, figsize=(9.5, 0.27 * len(lanes) + 1.6), sharey=True)
    for axes, (column, level) in zip(panels, LEVELS.items(), strict=True):
        for coverage, grey in ((WIDE, "0.9"), (NARROW, "0.8")):
            axes.axvspan(*figures.band(level, trials, coverage), color=grey, zorder=0)
        axes.axvline(level, color="0.5", linewidth=0.8, zorder=1)
        for lane, (null, n) in enumerate(lanes):
            chosen = [row for row in rows if (row["null"], int(row["n"])) == (null, n)]
            for k, row in enumerate(chosen):
                beyond = outside(row, column, WIDE)
                axes.plot(
                    int(row[column]) / trials,
                    -lane + 0.6 * ((k + 0.5) / len(chosen) - 0.5),
                    MARKERS[row["test"]],
                    color="black" if beyond else "0.4",
                    markersize=6 if beyond else 3.5,
                    fillstyle="full" if beyond else "none",
                    markeredgewidth=1.6 if beyond else 0.8,
                )
        axes.set_xlabel(f"rejection rate at level {level}")
        axes.set_xlim(left=-0.002)
        axes.set_yticks([-k for k in range(len(lanes))], [f"{null}, n = {n}" for null, n in lanes])
    for test, marker in MARKERS.items():
        panels[0].plot([], [], marker, color="0.4", fillstyle="none", label=test)
    panels[0].plot([], [], "o", color="black", label="outside the 99.99 % band")
    panels[0].legend(frameon=False, fontsize=8, ncols=4, loc="lower left", bbox_to_anchor=(0, 1.0))
    figure.tight_layout()
    path = source.with_name("figure.png")
    figures.save(figure, path)
    return path


if __name__ == "__main__":
    main(sys.argv[1:])
