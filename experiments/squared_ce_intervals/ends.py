"""Grids that go on past their ends: how often a choice is the last one tried, and what changes.

python experiments/squared_ce_intervals/ends.py [--quick]
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcal.squared_ce import binary, problem_error

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import runner
from populations import POPULATIONS

FOLDER = Path(__file__).parent / "ends"
TUNED = ("bins", "kde", "kkr", "ukkr")
MEASURED = ("warned", "warned_extended", "at_limit", "rmse", "rmse_extended", "risk_drop")


@dataclass(frozen=True)
class Config:
    sizes: tuple[tuple[int, int], ...] = ((60, 20), (300, 20))  # rows, data sets
    populations: tuple[str, ...] = tuple(POPULATIONS)
    seed: int = 20251122


QUICK = Config(sizes=((60, 1),), populations=("U(0 1)^2",))


def study(config: Config) -> runner.Study:
    """By estimator: shares of data sets, the RMSE of the error, and the fall of the risk in
    hundredths of a per cent."""
    sets = dict(config.sizes)
    reports: dict[tuple[str, int], list[Any]] = {}

    def both(name: str, n: int, key: jax.Array) -> list[Any]:
        if (name, n) not in reports:
            reports.clear()
            reports[name, n] = [one(name, n, each) for each in jax.random.split(key, sets[n])]
        return reports[name, n]

    def one(name: str, n: int, key: jax.Array) -> tuple[Any, Any]:
        place, label, fit = jax.random.split(key, 3)
        c = POPULATIONS[name].quantile(jax.random.uniform(place, (n,)))
        rate = jnp.asarray(POPULATIONS[name].rate(np.asarray(c)))
        problem = binary(c, jax.random.bernoulli(label, rate).astype(int))
        return tuple(
            problem_error(fit, problem, estimators="paper", extend=extend)
            for extend in (False, True)
        )

    def measure(cell: runner.Cell, key: jax.Array) -> dict[str, Any]:
        truth = POPULATIONS[cell["population"]].error()
        pairs = [
            [_tuned(report, cell["estimator"]) for report in pair]
            for pair in both(cell["population"], cell["n"], key)
        ]
        before, after = zip(*pairs, strict=True)

        def rmse(tuned: Sequence[Any]) -> float:
            return float(np.sqrt(np.mean([(each.error - truth) ** 2 for each in tuned])))

        drops = [1 - new.risk / old.risk for old, new in pairs]
        return {
            "warned": float(np.mean([bool(each.edges[0]) for each in before])),
            "warned_extended": float(np.mean([bool(each.edges[0]) for each in after])),
            "at_limit": float(np.mean([bool(each.limits[0]) for each in after])),
            "rmse": rmse(before),
            "rmse_extended": rmse(after),
            "risk_drop": float(1e4 * np.mean(drops)),
        }

    cells = [
        {"population": name, "n": n, "estimator": estimator}
        for (n, _), name, estimator in product(config.sizes, config.populations, TUNED)
    ]
    return runner.Study(cells, MEASURED, measure, config.seed, paired=("estimator",))


def _tuned(report: Any, name: str) -> Any:
    return next(t for key, t in report.estimators.items() if key.split(" (")[0] == name)


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(study, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
