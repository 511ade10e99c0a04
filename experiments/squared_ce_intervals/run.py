"""Do the intervals of `calibration_error` hold the calibration error? Six binary populations."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxcal.squared_ce import binary, problem_error

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent


class Population(NamedTuple):
    """Confidences uniform between ``low`` and ``high``; ``rate(c)``: P(y = 1 | c)."""

    low: float
    high: float
    rate: Callable[[Any], Any]

    def error(self) -> float:
        """The calibration error, root of E (c - rate)^2, by the midpoint rule."""
        c = self.low + (np.arange(100_000) + 0.5) / 100_000 * (self.high - self.low)
        return float(np.sqrt(np.mean((c - self.rate(c)) ** 2)))


POPULATIONS = {
    "calibrated": Population(0, 1, lambda c: c),
    "square": Population(0, 1, lambda c: c**2),
    "overconfident": Population(0, 1, lambda c: 0.1 + 0.8 * c),
    "rare labels": Population(0, 0.1, lambda c: c / 2),
    "too sure by .1": Population(0.8, 1, lambda c: c - 0.1),
    "waves": Population(0.2, 0.8, lambda c: c + 0.15 * np.sin(8 * np.pi * c)),
}


@dataclass(frozen=True)
class Config:
    data_sets: int = 50
    sizes: tuple[int, ...] = (300,)
    populations: tuple[str, ...] = tuple(POPULATIONS)
    seed: int = 20251121


QUICK = Config(data_sets=1, sizes=(60,), populations=("calibrated",))


def study(config: Config) -> runner.Study:
    """Shares of data sets in which an interval or bound holds the calibration error."""

    def one(key: jax.Array, population: Population, n: int) -> dict[str, Any]:
        place, label, fit = jax.random.split(key, 3)
        c = jax.random.uniform(place, (n,), minval=population.low, maxval=population.high)
        y = jax.random.bernoulli(label, jnp.asarray(population.rate(np.asarray(c))))
        report = problem_error(fit, binary(c, y.astype(int)))
        truth, step = population.error(), report.quoted.one_step
        assert step is not None

        def holds(low: Array, high: Array) -> bool:
            return bool(low <= truth + 1e-9 and truth <= high + 1e-9)

        return {
            "printed": holds(*report.interval[:2]),
            "printed_high": float(report.interval.high),
            "one_fit": holds(*report.quoted.interval[:2]),
            "lower_bound": float(step.lower_bound) <= truth**2 + 1e-9,
            "plug_in": holds(*report.best.plug_in_interval[:2]),
            "estimate": report.best.error,
        }

    def measure(cell: runner.Cell, key: jax.Array) -> dict[str, Any]:
        population = POPULATIONS[cell["population"]]
        keys = jax.random.split(key, config.data_sets)
        rows = [one(each, population, cell["n"]) for each in keys]
        shares = {name: float(np.mean([row[name] for row in rows])) for name in rows[0]}
        return {"error": population.error(), **shares, "data_sets": config.data_sets}

    cells = [{"population": name, "n": n} for n, name in product(config.sizes, config.populations)]
    measured = ("error", "printed", "printed_high", "one_fit", "lower_bound", "plug_in", "estimate")
    return runner.Study(cells, (*measured, "data_sets"), measure, config.seed)


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(study, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
