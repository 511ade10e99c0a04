"""What `dce.recalibrate` says of its map on new predictions, beside what is true of it.

All predictions of a group become equal, so the ECE of a map on new predictions is the mean
distance of the groups' mean labels to those of the population, which is computed here on a grid of
predictions. The last two populations were left unseen until the method was fixed.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxcal.dce import recalibrate

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
GRID = 20_000  # predictions that stand for the population


class Population(NamedTuple):
    """``predict(u)``: the prediction from a uniform number; ``rate(v)``: P(y = 1 | v)."""

    predict: Callable[[Any], Any]
    rate: Callable[[Any], Any]


def root_of_odds(v: Any) -> Any:
    return jnp.sqrt(v) / (jnp.sqrt(v) + jnp.sqrt(1 - v))


POPULATIONS = {
    "calibrated": Population(lambda u: u, lambda v: v),
    "calibrated, 11 values": Population(lambda u: jnp.floor(11 * u) / 10, lambda v: v),
    "calibrated, U(0, .1)": Population(lambda u: 0.1 * u, lambda v: v),
    "overconfident": Population(lambda u: u, root_of_odds),
    "too high, U(0, .1) five times": Population(lambda u: 0.1 * u, lambda v: v / 5),
    "unseen: calibrated, in two clusters": Population(
        lambda u: jnp.where(u < 0.5, 0.15, 0.8) + 0.05 * u, lambda v: v
    ),
    "unseen: too low by .4 v (1 - v)": Population(
        lambda u: u, lambda v: jnp.clip(v + 0.4 * v * (1 - v), 0, 1)
    ),
}


@dataclass(frozen=True)
class Config:
    data_sets: int = 500
    sizes: tuple[int, ...] = (100, 300, 1000)
    populations: tuple[str, ...] = tuple(POPULATIONS)
    batch: int = 25  # data sets a step
    seed: int = 20240704


QUICK = Config(data_sets=4, sizes=(20,), populations=tuple(POPULATIONS)[:1])


def study(config: Config) -> runner.Study:
    """Shares of data sets whose interval holds the ECE of the map, and what the report said."""

    @jax.jit
    def repairs(keys: Any, v: Any, y: Any, grid: Any, rates: Any) -> Any:
        def one(data: Any) -> Any:
            repair = recalibrate(*data)
            of = repair.groups.group[repair.groups.of(grid)]
            truth = jnp.sum(jnp.abs(jax.ops.segment_sum(repair(grid) - rates, of, 128))) / GRID
            before = jnp.mean(jnp.abs(grid - rates))
            after, rejected = repair.after, repair.before.p_value <= 0.05
            shown = rejected & (after.high < repair.before.interval.low)
            return truth, before, repair.expected, after.low, after.high, rejected, shown

        return jax.lax.map(one, (keys, v, y), batch_size=config.batch)

    def measure(cell: runner.Cell, key: jax.Array) -> dict[str, Any]:
        population = POPULATIONS[cell["population"]]
        place, label, map_key = jax.random.split(key, 3)
        sets = config.data_sets
        v = population.predict(jax.random.uniform(place, (sets, cell["n"])))
        y = jax.random.bernoulli(label, population.rate(v)).astype(v.dtype)
        grid = population.predict((jnp.arange(GRID) + 0.5) / GRID)
        keys = jax.random.split(map_key, sets)
        arrays = repairs(keys, v, y, grid, population.rate(grid))
        truth, before, expected, low, high, rejected, shown = arrays
        return {
            "ece_before": before[0],
            "ece_after": jnp.mean(truth),
            "expected_after": jnp.mean(expected),
            "mean_high": jnp.mean(high),
            "coverage": jnp.mean((low <= truth) & (truth <= high)),
            "too_low": jnp.mean(high < truth),
            "nothing_to_repair": jnp.mean(~rejected),
            "gain_shown": jnp.mean(shown),
            "loss_shown_as_gain": jnp.mean(shown & (truth > before)),
            "data_sets": sets,
        }

    cells = [{"population": name, "n": n} for n, name in product(config.sizes, config.populations)]
    measured = ("ece_before", "ece_after", "expected_after", "mean_high", "coverage", "too_low")
    measured += ("nothing_to_repair", "gain_shown", "loss_shown_as_gain", "data_sets")
    return runner.Study(cells, measured, measure, config.seed)


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(study, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
