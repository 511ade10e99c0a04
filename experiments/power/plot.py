"""Power of the calibration test and of tests from exact draws, a row a family and fault."""

import sys
from pathlib import Path

from matplotlib.figure import Figure

sys.path.insert(0, str(Path(__file__).parents[1]))
import figures
import runner

FOLDER = Path(__file__).parent
# for which SKCE and UCME have closed forms
GAUSSIAN = ("widths", "narrow", "five", "ten", "hgm", "qgm", "mgm")
CLOSED = ("SKCE", "UCME")
COLUMNS = {
    "calibration": "calibration_test",
    "KCCSD": "kccsd_test",
    "coverage": "coverage, 99 draws",
    "SBC": "SBC, 99 draws",
    "TARP": "TARP, 99 draws",
    "C2ST": "classifier",
    "KCSD": "kcsd_test",
    "SKCE": "exact SKCE",
    "UCME": "exact UCME",
    "best possible": "likelihood ratio",
}
FROM_DRAWS = ("coverage", "SBC", "TARP")


def share(row: dict[str, str], name: str) -> float | None:
    """The share of rejections, or None where a method does not apply."""
    family = row["family"]
    missing = name in CLOSED and family not in GAUSSIAN
    missing |= name == "best possible" and (family == "network" or row["fault"] == "correct")
    return None if missing or not row[name] else int(row[name]) / int(row["data_sets"])


def brief(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}".removeprefix("0")


def report(rows: list[dict[str, str]]) -> None:
    """The tables of the README."""
    faulty = [row for row in rows if row["fault"] != "correct"]
    others = ("KCCSD", *FROM_DRAWS, "C2ST", "KCSD", "SKCE", "UCME", "best possible")
    near = []
    for row in faulty:
        ours, best = share(row, "calibration"), max(share(row, name) or 0 for name in FROM_DRAWS)
        near.append((ours or 0) >= best - 0.05)
        told = f"**{brief(ours)}**" if near[-1] else brief(ours)
        cells = [row["family"], row["fault"], told, *(brief(share(row, name)) for name in others)]
        print("|", " | ".join(cells), "|")
    print(f"within .05 of the best of three: {sum(near)} of {len(near)}\n")
    for row in rows:
        if row["fault"] == "correct":
            names = ("KCCSD", *FROM_DRAWS, "C2ST", "KCSD", "SKCE", "UCME")
            rates = [brief(share(row, name)) for name in names]
            print("|", " | ".join([row["family"], row["n"], row["data_sets"], *rates]), "|")


def main(arguments=None) -> Path:
    argv = sys.argv[1:] if arguments is None else arguments
    path = Path(argv[0]) if argv else FOLDER / "results.csv"
    rows = runner.read(path)
    report(rows)
    figure = Figure(figsize=(11.5, 1.6 + 0.26 * len(rows)))
    ax = figure.subplots()
    for i, row in enumerate(rows):
        for j, name in enumerate(COLUMNS):
            rate = share(row, name)
            figures.cell(ax, i, j, rate, brief(rate), "medium")
    labels = [
        f"{row['family']}: {row['fault']}" + (f", n = {row['n']}" if row["n"] != "200" else "")
        for row in rows
    ]
    figures.as_table(ax, labels, list(COLUMNS.values()), size="medium")
    ax.set_xlabel("share of data sets rejected at 5 % (n = 200 where none is named)")
    target = path.parent / "figure.png"
    figure.savefig(target, dpi=75, bbox_inches="tight")
    return target


if __name__ == "__main__":
    main()
