"""Do intervals from the test rows alone hold the calibration error? Six binary populations."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxcal import calibration_error

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import runner
from populations import POPULATIONS as ALL
from populations import Population, uniform
from reference import from_test_rows

FOLDER = Path(__file__).parent / "tuned"
POPULATIONS = {
    "calibrated": Population(uniform(0, 1), lambda c: c),
    "square": ALL["U(0 1)^2"],
    **{name: ALL[name] for name in ("overconfident", "rare labels", "too sure by .1", "waves")},
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
        c = population.quantile(jax.random.uniform(place, (n,)))
        y = jax.random.bernoulli(label, jnp.asarray(population.rate(np.asarray(c))))
        report = calibration_error(fit, c, y.astype(int), notion="binary", estimators="paper")
        truth, step = population.error(), from_test_rows.quoted(report).one_step
        assert step is not None

        def holds(low: Array, high: Array) -> bool:
            return bool(low <= truth + 1e-9 and truth <= high + 1e-9)

        return {
            "printed": holds(*from_test_rows.one_step(report)[:2]),
            "printed_high": float(from_test_rows.one_step(report).high),
            "one_fit": holds(*from_test_rows.quoted(report).interval[:2]),
            "lower_bound": float(step.lower_bound) <= truth**2 + 1e-9,
            "plug_in": holds(*from_test_rows.plug_in(report.best)[:2]),
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
