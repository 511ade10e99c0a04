"""The paper's own rejection rates, as read off its figures, and how far ours are from them."""

import csv
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))
import figures
import runner

FOLDER = Path(__file__).parent
TRIALS = 100  # data sets a published cell
WITHIN = 4  # standard errors of the difference
MODELS = {"MGM": "MGM", "LGM": "LGM", "HGM": "HGM", "MMGM": "MMGM (all)"}
DIVERGENCES = {"Fisher": "GFD", "Kernelized Fisher": "KGFD", "MMD": "MMD", "Wasserstein": "W2"}

Name = tuple[str, str, str, str, str, int]  # model, test, distance, target, exactness, n


class Comparison(NamedTuple):
    name: Name
    ours: float
    published: float
    errors: float  # the difference in standard errors of the difference


def readings(path: Path) -> dict[Name, float]:
    """Published rates by cell, from ``published_curves.csv``."""
    by_name = {}
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            divergence = (
                row["distribution_kernel"].removeprefix("Exp. ").removesuffix(" (discrete)")
            )
            name = (
                MODELS[row["model"]],
                row["test"],
                DIVERGENCES[divergence],
                row["target_kernel"],
                "exact" if row["exact_or_approx"] == "exact" else "approx",
                int(row["n"]),
            )
            by_name[name] = float(row["rejection_rate"])
    return by_name


def ours(path: Path) -> dict[Name, tuple[float, int]]:
    """Our rates and numbers of data sets by cell."""
    return {
        (
            row["model"],
            row["test"],
            row["divergence"],
            row["target"],
            row["exactness"],
            int(row["n"]),
        ): (int(row["rejected_05"]) / int(row["data_sets"]), int(row["data_sets"]))
        for row in runner.read(path)
    }


def compare(results: Path, published: Path) -> list[Comparison]:
    """Every cell that has a reading, in the order of the readings."""
    measured, comparisons = ours(results), []
    for name, reading in readings(published).items():
        if name not in measured:
            continue
        rate, trials = measured[name]
        error = math.hypot(
            figures.standard_error(rate, trials), figures.standard_error(reading, TRIALS)
        )
        comparisons.append(Comparison(name, rate, reading, (rate - reading) / error))
    return comparisons


def main(arguments: Sequence[str] | None = None) -> int:
    """``published.py FILE [results.csv]``: which cells differ by more than 4 standard errors."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if not argv or not Path(argv[0]).exists():
        print("published.py: give the file published_curves.csv with readings of the figures")
        return 2
    results = Path(argv[1]) if len(argv) > 1 else FOLDER / "results.csv"
    comparison = compare(results, Path(argv[0]))
    far = [one for one in comparison if abs(one.errors) > WITHIN]
    mean_square = sum(one.errors**2 for one in comparison) / len(comparison)
    print(
        f"{len(comparison)} cells have a published reading; {len(far)} differ by more than {WITHIN}"
    )
    print(f"standard errors of the difference; root mean square difference {mean_square**0.5:.2f}")
    for one in far:
        print(f"  {' '.join(map(str, one.name))}: ours {one.ours:.2f}, published", end=" ")
        print(f"{one.published:.2f}, {one.errors:+.1f} standard errors")
    return 0


if __name__ == "__main__":
    sys.exit(main())
