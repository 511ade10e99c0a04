"""Does the calibration test keep its level with every null of signs? Calibrated models."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path

import jax
import jax.numpy as jnp
import run as levels

from jaxcal import calibration_test
from jaxcal.nulls import DependentWild, HadamardWild, Wild

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
NULLS = {"HadamardWild": HadamardWild, "Wild": Wild, "DependentWild": DependentWild}


@dataclass(frozen=True)
class Config:
    data_sets: int = 1000
    sizes: tuple[int, ...] = (30, 64, 200)
    families: tuple[str, ...] = ("widths", "quartic")
    nulls: tuple[str, ...] = tuple(NULLS)
    n_draws: int = 500
    seed: int = 20230721


QUICK = Config(data_sets=4, sizes=(16,), families=("quartic",), nulls=("HadamardWild",))


@lru_cache
def p_values(family: str, null: str, n: int, n_draws: int):
    def one(key):
        data_key, test_key = jax.random.split(key)
        predictions, targets, _ = levels.CONDITIONAL[family](data_key, n)
        null_distribution = NULLS[null](n_draws)
        return calibration_test(test_key, predictions, targets, null=null_distribution).p_value

    return runner.spread(one)


def make(config: Config) -> runner.Study:
    """Rejections at .05 and .01 of calibrated predictions, from log densities alone."""

    def measure(cell, key):
        keys = jax.random.split(key, config.data_sets)
        p = p_values(cell["family"], cell["null"], cell["n"], config.n_draws)(keys)
        return {"data_sets": config.data_sets, **runner.rejections(jnp.asarray(p))}

    cells = [
        {"family": family, "n": n, "null": null}
        for family, n, null in product(config.families, config.sizes, config.nulls)
    ]
    return runner.Study(
        cells, ("data_sets", *runner.REJECTIONS), measure, config.seed, paired=("null",)
    )


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER / "calibration", arguments)


if __name__ == "__main__":
    main()
