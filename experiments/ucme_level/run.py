"""UCME at locations: how often are calibrated and shifted forecasts rejected, by which null?"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from jaxcal.kernels import Gaussian
from jaxcal.nulls import Wild
from jaxcal.ucme import F, ucme_test

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner
from reference.nulls import ChiSquared

FOLDER = Path(__file__).parent
BATCH = 50  # data sets a step
SD = 0.7  # claimed and, where calibrated, true


@dataclass(frozen=True)
class Config:
    data_sets: int = 1000
    sizes: tuple[int, ...] = (16, 32, 64, 128, 300, 1000)
    dimensions: tuple[int, ...] = (1, 3)
    n_draws: int = 199
    seed: int = 20261123


QUICK = Config(data_sets=20, sizes=(16,), dimensions=(1,), n_draws=19)
NULLS = ("signs", "f", "chi_squared")
MEASURED = tuple(f"{null}_{state}" for state in ("calibrated", "shifted") for null in NULLS)


def make(config: Config) -> runner.Study:
    """N(x, .7^2 I), x normal, at 5 observations left out: rates at .05, NaN not rejecting. Shifted:
    the first coordinate of the targets by 2.5 / sqrt(n) standard deviations."""
    cells = [
        {"d": d, "n": n, "data_sets": config.data_sets}
        for d, n in product(config.dimensions, config.sizes)
    ]
    nulls = dict(zip(NULLS, (Wild(config.n_draws), F(), ChiSquared()), strict=True))
    # bandwidths given, in standard deviations of the targets: medians of all pairs cost far more
    # than the test, and these are near them
    lengths = {1: (0.7, 0.7), 3: (1.8, 1.8)}

    @partial(jax.jit, static_argnames=("d", "n"))
    def rejected(keys, shift, d, n):
        def one(key):
            x_key, y_key, test_key = jax.random.split(key, 3)
            x = jax.random.normal(x_key, (n, d))
            ys = x + SD * jax.random.normal(y_key, (n, d))
            ys = ys.at[:, 0].add(shift * SD)
            predictions = dist.Normal(x, SD).to_event(1)
            target, prediction = (Gaussian(length) for length in lengths[d])
            test = partial(
                ucme_test,
                test_key,
                predictions,
                ys,
                target_kernel=target,
                prediction_kernel=prediction,
            )
            return [test(null=null).p_value <= 0.05 for null in nulls.values()]

        return jax.lax.map(one, keys, batch_size=min(BATCH, config.data_sets))

    def measure(cell, key):
        d, n = cell["d"], cell["n"]
        rates = {}
        for place, state in enumerate(("calibrated", "shifted")):
            keys = jax.random.split(jax.random.fold_in(key, place), config.data_sets)
            shift = jnp.asarray(place * 2.5 / n**0.5, jnp.float32)
            for null, value in zip(nulls, rejected(keys, shift, d, n), strict=True):
                rates[f"{null}_{state}"] = jnp.mean(value)
        return rates

    return runner.Study(cells, MEASURED, measure, config.seed)


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
