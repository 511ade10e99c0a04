"""Level and power of the tests by distances: smooth, interval, and with the Laplace kernel."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxcal.dce.intervals import smallest_width
from jaxcal.dce.predictions import binary, ordered
from jaxcal.dce.resampling import RandomIntervals, drawable, kernel_statistic, resampling_test
from jaxcal.dce.smooth import smooth_of_residuals

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent


class Population(NamedTuple):
    """``predict(u)``: the prediction from a uniform number; ``rate(v)``: P(y = 1 | v)."""

    predict: Callable[[Any], Any]
    rate: Callable[[Any], Any]


def waves(v: Any) -> Any:
    return v + 0.6 * v * (1 - v) * jnp.sign(jnp.sin(12 * jnp.pi * v))


def tempered(v: Any) -> Any:
    odds = jnp.sqrt(v / (1 - v))
    return odds / (1 + odds)


POPULATIONS = {
    "calibrated, U(0, 1)": Population(lambda u: u, lambda v: v),
    "calibrated, 11 values": Population(lambda u: jnp.round(10 * u) / 10, lambda v: v),
    "calibrated, U(0, .02)": Population(lambda u: 0.02 * u, lambda v: v),
    "calibrated, U(0, .002)": Population(lambda u: 0.002 * u, lambda v: v),
    "overconfident: the root of the odds": Population(lambda u: u, tempered),
    "too low by .4 v (1 - v)": Population(lambda u: u, lambda v: v + 0.4 * v * (1 - v)),
    "too low and too high in turn, twelfths": Population(lambda u: u, waves),
    "rare, three times too low": Population(lambda u: 0.02 * u, lambda v: 3 * v),
}
CALIBRATED, WRONG = tuple(POPULATIONS)[:4], tuple(POPULATIONS)[4:]


def smooth_statistic(v: Any, rho: Any) -> Any:
    """The smooth calibration error of sorted residuals."""
    return smooth_of_residuals(v, rho)[0]


def by_statistic(statistic: Any) -> Any:
    """A test with labels redrawn; all but "smooth" are those of `distance_from_calibration`."""

    def p_value(key: Any, v: Any, y: Any, n_draws: int) -> Any:
        data = drawable(ordered(binary(v, y)), equal=True, null="redraw")
        options = {"n_draws": n_draws, "null": "redraw"}
        return resampling_test(key, data, statistic=statistic, **options).p_value

    return p_value


TESTS = {
    "Laplace": by_statistic(kernel_statistic),
    "smooth": by_statistic(smooth_statistic),
    "interval": by_statistic(RandomIntervals(smallest_width(0.01))),
}


@dataclass(frozen=True)
class Config:
    data_sets: int = 1000
    sizes: tuple[int, ...] = (50, 200)
    populations: tuple[str, ...] = tuple(POPULATIONS)
    n_draws: int = 39
    batch: int = 50  # data sets a step
    seed: int = 20240311


QUICK = Config(data_sets=4, sizes=(20,), populations=tuple(POPULATIONS)[:2], n_draws=19)


def study(config: Config) -> runner.Study:
    """How many data sets are rejected at level .05."""

    def tested(name: str) -> Any:
        def one(data: Any) -> Any:
            return TESTS[name](*data, config.n_draws)

        return jax.jit(lambda *data: jax.lax.map(one, data, batch_size=config.batch))

    programs = {name: tested(name) for name in TESTS}

    def measure(cell: runner.Cell, key: jax.Array) -> dict[str, Any]:
        population = POPULATIONS[cell["population"]]
        place, label, redraw = jax.random.split(key, 3)
        shape = (config.data_sets, cell["n"])
        v = population.predict(jax.random.uniform(place, shape))
        y = jax.random.bernoulli(label, population.rate(v)).astype(v.dtype)
        p = programs[cell["test"]](jax.random.split(redraw, config.data_sets), v, y)
        return {"rejected": int(jnp.sum(p <= 0.05)), "data_sets": config.data_sets}

    cells = [
        {"population": name, "n": n, "test": test}
        for n, name, test in product(config.sizes, config.populations, TESTS)
    ]
    return runner.Study(cells, ("rejected", "data_sets"), measure, config.seed, ("test",))


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(study, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
