"""What shift results name, and how often data shifted by it are rejected, beside the 80 %."""

import sys
from collections.abc import Sequence
from pathlib import Path

import matplotlib.pyplot as plt

sys.path.insert(0, str(Path(__file__).parents[1]))
import figures
import runner

FOLDER = Path(__file__).parent


def main(arguments: Sequence[str] | None = None) -> Path:
    source = Path(arguments[0]) if arguments else FOLDER / "results.csv"
    rows = runner.read(source)
    trials = int(rows[0]["data_sets"])
    names = [f"{row['family']}, {row['test'].upper()}, n = {row['n']}" for row in rows]
    places = range(len(rows))
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(9.2, 0.34 * len(rows) + 1.3), sharey=True, layout="constrained"
    )
    named, low, high = (
        [float(row[column]) for row in rows] for column in ("named", "named_10", "named_90")
    )
    reach = [
        [mid - end for mid, end in zip(named, low, strict=True)],
        [end - mid for mid, end in zip(named, high, strict=True)],
    ]
    left.errorbar(named, places, xerr=reach, fmt="o", color="black", capsize=3)
    left.set_yticks(places, names)
    left.invert_yaxis()
    left.set_xlim(left=0)
    left.set_xlabel("named shift, in standard deviations\n(median; 10 % to 90 % of data sets)")
    shares = [0.8, 0.05]
    for share in shares:
        right.axvspan(*figures.band(share, trials, 0.99), color="0.9", zorder=0)
        right.axvline(share, color="0.5", linewidth=0.8, zorder=1)
    for column, marker, label in (
        ("rejected_shifted", "o", "data shifted by it"),
        ("rejected_calibrated", "x", "calibrated data"),
    ):
        rates = [int(row[column]) / trials for row in rows]
        errors = [2 * figures.standard_error(rate, trials) for rate in rates]
        right.errorbar(
            rates, places, xerr=errors, fmt=marker, color="black", capsize=2, label=label
        )
    right.set_xlim(-0.03, 1.03)
    right.set_xlabel(f"rejected at level .05, of {trials}\n(grey: 99 % bands of .05 and .8)")
    right.legend(frameon=False, fontsize=8, loc="center")
    path = source.with_name("figure.png")
    figures.save(figure, path)
    return path


if __name__ == "__main__":
    main(sys.argv[1:])
