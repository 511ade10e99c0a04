"""Time series: how often are calibrated forecasts rejected when errors depend on those before?"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from jaxcal import kccsd_test
from jaxcal.nulls import DependentWild, Wild

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
BATCH = 20  # data sets a step


@dataclass(frozen=True)
class Config:
    data_sets: int = 500
    sizes: tuple[int, ...] = (100, 300, 1000)
    correlations: tuple[float, ...] = (0.0, 0.3, 0.5, 0.7, 0.9)
    n_draws: int = 199
    seed: int = 20261122


QUICK = Config(data_sets=20, sizes=(30,), correlations=(0.5,), n_draws=19)
MEASURED = ("dependent_wild", "independent_wild", "told", "rejected_not_told", "mean_covered")


def autoregressive(key: jax.Array, n: int, correlation: jax.Array) -> jax.Array:
    """A stationary Gaussian series of variance 1."""
    noise = jax.random.normal(key, (n,))

    def step(last: jax.Array, new: jax.Array) -> tuple[jax.Array, jax.Array]:
        here = correlation * last + jnp.sqrt(1 - correlation**2) * new
        return here, here

    return jnp.append(noise[:1], jax.lax.scan(step, noise[0], noise[1:])[1])


def make(config: Config) -> runner.Study:
    """N(x, 1), x independent, with autoregressive errors: rates at .05, and limits of the mean."""
    cells = [
        {"n": n, "correlation": correlation, "data_sets": config.data_sets}
        for n, correlation in product(config.sizes, config.correlations)
    ]

    @lru_cache(maxsize=1)
    def program(n):
        def one(key, correlation):
            x_key, error_key, test_key = jax.random.split(key, 3)
            x = jax.random.normal(x_key, (n,))
            ys = x + autoregressive(error_key, n, correlation)
            predictions = dist.Normal(x, 1.0)
            dependent = kccsd_test(
                test_key, predictions, ys, null=DependentWild(config.n_draws), coordinates=True
            )
            independent = kccsd_test(test_key, predictions, ys, null=Wild(config.n_draws))
            assert dependent.coordinates is not None
            means = dependent.coordinates.marginal_mean
            assert means is not None
            return (
                dependent.p_value <= 0.05,
                independent.p_value <= 0.05,
                dependent.diagnostics.few_stretches,
                (means.low[0] <= 0) & (means.high[0] >= 0),
            )

        return jax.jit(
            lambda keys, rho: jax.lax.map(lambda key: one(key, rho), keys, batch_size=BATCH)
        )

    def measure(cell, key):
        keys = jax.random.split(key, config.data_sets)
        correlation = jnp.asarray(cell["correlation"], jnp.float32)
        dependent, independent, told, covered = program(cell["n"])(keys, correlation)
        return {
            "dependent_wild": jnp.mean(dependent),
            "independent_wild": jnp.mean(independent),
            "told": jnp.mean(told),
            "rejected_not_told": jnp.mean(dependent & ~told),
            "mean_covered": jnp.mean(covered),
        }

    return runner.Study(cells, MEASURED, measure, config.seed)


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
