"""Time series: how often are calibrated forecasts rejected when errors depend on those before?"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from jaxcal import kccsd_test, skce_test
from jaxcal.nulls import DependentWild, Wild

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
BATCH = 20  # data sets a step
# series e_t = rho e_(t - lag) + noise, by (lag, rho, standard deviation), that errors are sums of
SEASONS = {
    "season 24": ((24, 0.8, 1.0),),
    "season 7": ((7, 0.8, 1.0),),
    "season 24, days alike": ((24, 0.8, 0.8), (1, 0.7, 0.6)),
    "seasons 24 and 7": ((24, 0.8, 0.8), (7, 0.8, 0.6)),
}


@dataclass(frozen=True)
class Config:
    data_sets: int = 400
    most: int = 100_000  # observations in a cell
    sizes: tuple[int, ...] = (100, 300, 1000)
    correlations: tuple[float, ...] = (0.0, 0.3, 0.5, 0.7, 0.9)
    seasons: tuple[str, ...] = tuple(SEASONS)
    n_draws: int = 199
    seed: int = 20261122


QUICK = Config(
    data_sets=20, sizes=(30,), correlations=(0.5,), seasons=("seasons 24 and 7",), n_draws=19
)
MEASURED = (
    "dependent_wild",
    "independent_wild",
    "told",
    "season_told",
    "rejected_not_told",
    "mean_covered",
    "skce",
    "skce_season_told",
    "skce_rejected_not_told",
)


def returning(key: jax.Array, n: int, lag: int, correlation: jax.Array | float) -> jax.Array:
    """A stationary Gaussian series of variance 1 in which values return after ``lag``."""
    noise = jax.random.normal(key, (-(-n // lag), lag))

    def step(last: jax.Array, new: jax.Array) -> tuple[jax.Array, jax.Array]:
        here = correlation * last + jnp.sqrt(1 - correlation**2) * new
        return here, here

    rest = jax.lax.scan(step, noise[0], noise[1:])[1]
    return jnp.concatenate([noise[:1], rest]).reshape(-1)[:n]


def data_sets(key: jax.Array, n: int, kind: str, count: int) -> tuple[jax.Array, ...]:
    """Keys, centres of the forecasts and targets of ``count`` series [count, n]."""
    parts = SEASONS[kind] if kind in SEASONS else ((1, float(kind), 1.0),)

    def data(key):
        x_key, *keys, test_key = jax.random.split(key, 2 + len(parts))
        x = jax.random.normal(x_key, (n,))
        errors = [
            size * returning(key, n, lag, correlation)
            for key, (lag, correlation, size) in zip(keys, parts, strict=True)
        ]
        return test_key, x, x + sum(errors)

    return jax.vmap(data)(jax.random.split(key, count))


def study(config: Config, measured: tuple[str, ...], program: Any) -> runner.Study:
    """Means of what ``program(n)`` measures of each data set of n: N(x, 1), x independent, with
    errors that depend."""
    kinds = (*map(str, config.correlations), *config.seasons)
    cells = [
        {"n": n, "errors": kind, "data_sets": min(config.data_sets, config.most // n)}
        for n, kind in product(config.sizes, kinds)
    ]

    def measure(cell, key):
        sets = data_sets(key, cell["n"], cell["errors"], cell["data_sets"])
        return dict(zip(measured, map(jnp.mean, program(cell["n"])(*sets)), strict=True))

    return runner.Study(cells, measured, measure, config.seed)


def make(config: Config) -> runner.Study:
    """Rates at .05, and limits of the mean."""

    @lru_cache(maxsize=1)
    def program(n):
        def one(key, x, ys):
            predictions, null = dist.Normal(x, 1.0), DependentWild(config.n_draws)
            dependent = kccsd_test(key, predictions, ys, null=null, coordinates=True)
            independent = kccsd_test(key, predictions, ys, null=Wild(config.n_draws))
            skce = skce_test(key, predictions, ys, null=null)
            assert dependent.coordinates is not None
            means = dependent.coordinates.marginal_mean
            assert means is not None
            few, season = dependent.notes["dependent-observations"], dependent.notes["season"] > 0
            rejected, elsewhere = dependent.p_value <= 0.05, skce.notes["season"] > 0
            return (
                rejected,
                independent.p_value <= 0.05,
                few,
                season,
                rejected & ~few & ~season,
                (means.low[0] <= 0) & (means.high[0] >= 0),
                skce.p_value <= 0.05,
                elsewhere,
                (skce.p_value <= 0.05) & ~skce.notes["dependent-observations"] & ~elsewhere,
            )

        return jax.jit(
            lambda *sets: jax.lax.map(lambda one_set: one(*one_set), sets, batch_size=BATCH)
        )

    return study(config, MEASURED, program)


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
