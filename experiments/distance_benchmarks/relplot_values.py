"""smECE by the package relplot, for samples that run.py draws again; needs relplot, not jaxcal.

python experiments/distance_benchmarks/relplot_values.py writes relplot.csv.
"""

import csv
from pathlib import Path

import numpy as np

CASES = [(seed, n, power) for n in (200, 2000) for power in (0.5, 1.3, 3.0) for seed in (1, 2, 3)]


def main():
    import relplot

    path = Path(__file__).with_name("relplot.csv")
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["seed", "n", "power", "smece", "width"])
        for seed, n, power in CASES:
            rng = np.random.default_rng(seed)
            truth = rng.random(n)
            odds = (truth / (1 - truth)) ** power
            v, y = odds / (1 + odds), (rng.random(n) < truth).astype(float)
            value, width = relplot.smECE(v, y, return_width=True)
            writer.writerow([seed, n, power, repr(float(value)), repr(float(width))])


if __name__ == "__main__":
    main()
