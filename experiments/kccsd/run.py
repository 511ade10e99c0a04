"""Figures 1 and F.1-F.12 of the KCCSD paper: rejection rates of every series, model and size."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import jax
import jax.numpy as jnp

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import kccsd_grid as grid
import kccsd_models as models
import runner

FOLDER = Path(__file__).parent
ALL = models.MODELS | models.CALIBRATED


@dataclass(frozen=True)
class Config:
    """The paper's size."""

    data_sets: int = 100
    models: tuple[str, ...] = tuple(models.MODELS)
    sizes: tuple[int, ...] = (64, 128, 256, 512, 1024)
    n_draws: int = 500
    seed: int = 20230721


QUICK = Config(data_sets=4, models=("HGM",), sizes=(32,), n_draws=50)
LEVEL = Config(data_sets=1000, models=tuple(models.CALIBRATED), seed=20230722)


def make(config: Config) -> runner.Study:
    """Rejection rates at 0.05 of every series of tests, one line a series, model and size."""
    cells = [
        {
            "model": model,
            "n": n,
            **one._asdict(),
            "data_sets": config.data_sets,
            "n_draws": config.n_draws,
        }
        for n in config.sizes  # the cheap ones first
        for model in config.models
        for one in grid.series()
    ]

    @lru_cache(maxsize=1)
    def program():
        return runner.spread(lambda *data: grid.p_values(*data, config.n_draws))

    @lru_cache(maxsize=1)  # all series of a model and size come from one program, on the same data
    def p_values(model: str, n: int, seeds: bytes) -> jax.Array:
        key = jax.random.wrap_key_data(jnp.frombuffer(seeds, jnp.uint32))
        data_key, test_key = jax.random.split(key)
        data = jax.jit(jax.vmap(lambda k: ALL[model](k, n)))(
            jax.random.split(data_key, config.data_sets)
        )
        return program()(jax.random.split(test_key, config.data_sets), *data)

    def measure(cell: runner.Cell, key: jax.Array) -> dict[str, int]:
        one = grid.Series(*(cell[name] for name in grid.Series._fields))
        result = p_values(cell["model"], cell["n"], jax.random.key_data(key).tobytes())
        p = result[:, grid.series().index(one)]
        return runner.rejections(p)

    return runner.Study(
        cells,
        runner.REJECTIONS,
        measure,
        config.seed,
        paired=grid.Series._fields,
    )


def main(arguments: Sequence[str] | None = None) -> Path:
    """The paper's study; with ``--level`` first, the calibrated models with 1,000 data sets."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    if "--level" not in argv:
        return runner.command_line(make, Config(), QUICK, FOLDER, argv)
    argv.remove("--level")
    return runner.command_line(
        make, LEVEL, QUICK, FOLDER, ["--output", str(FOLDER / "level.csv"), *argv]
    )


if __name__ == "__main__":
    main()
