"""Does the interval of `leave_one_out` hold the calibration error? With 15 bins beside it."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxcal.squared_ce import leave_one_out, reduce

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import runner
from populations import POPULATIONS

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Config:
    data_sets: int = 500
    sizes: tuple[int, ...] = (200, 1000, 10_000, 60)
    populations: tuple[str, ...] = tuple(POPULATIONS)
    seed: int = 20251121


QUICK = Config(data_sets=2, sizes=(60,), populations=("waves",))


def plain_bins(c: np.ndarray, y: np.ndarray, bins: int = 15) -> float:
    """The squared error in bins of equal width, on the rows that it is fitted to."""
    which = np.minimum((c * bins).astype(int), bins - 1)
    members, gaps = (np.bincount(which, weights=w, minlength=bins) for w in (c**0, c - y))
    return float(np.sum(gaps**2 / np.maximum(members, 1)) / c.size)


def study(config: Config) -> runner.Study:
    """Shares of data sets in which the 95 % interval holds the calibration error, and RMSEs."""

    def measure(cell: runner.Cell, key: jax.Array) -> dict[str, Any]:
        population, n = POPULATIONS[cell["population"]], cell["n"]
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        truth, rows = population.error(), []
        for _ in range(config.data_sets):
            c, y = population.draw(rng, n)
            with jax.enable_x64(True):
                result = leave_one_out(reduce(c, y, "binary"))
            rows.append((*map(float, result.interval[:2]), result.error, plain_bins(c, y) ** 0.5))
        low, high, estimate, bins = np.array(rows).T
        above, below = low > truth + 1e-9, high < truth - 1e-9
        return {
            "error": truth,
            "covered": np.mean(~above & ~below),
            "above": np.mean(above),
            "below": np.mean(below),
            "low": np.mean(low),
            "high": np.mean(high),
            "estimate": np.mean(estimate),
            "rmse": np.sqrt(np.mean((estimate - truth) ** 2)),
            "bins": np.mean(bins),
            "rmse_bins": np.sqrt(np.mean((bins - truth) ** 2)),
            "data_sets": config.data_sets,
        }

    cells = [{"population": name, "n": n} for name, n in product(config.populations, config.sizes)]
    measured = ("error", "covered", "above", "below", "low", "high", "estimate", "rmse", "bins")
    return runner.Study(cells, (*measured, "rmse_bins", "data_sets"), measure, config.seed)


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(study, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
