"""A straight line through a sine: SKCE sees what the quantiles do not, over many data sets."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import scipy.stats
from jax.scipy.special import ndtr

from jaxcal.kernels import Gaussian, Laplace
from jaxcal.skce import skce_test

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner
from reference.nulls import Multinomial
from reference.regression import least_squares, noisy_sine

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Config:
    repetitions: int = 1000
    n_draws: int = 2000
    n_draws_first: int = 100_000  # the paper's, on the data set that the figure shows
    n_train: int = 100
    n: int = 50
    seed: int = 20210501


QUICK = Config(repetitions=5, n_draws=100, n_draws_first=200)


def data(key: jax.Array, n_train: int, n: int):
    """Training data, validation data, and the line of least squares."""
    train_key, key = jax.random.split(key)
    train, held_out = noisy_sine(train_key, n_train), noisy_sine(key, n)
    return train, held_out, least_squares(*train)


@partial(jax.jit, static_argnames=("n_draws", "n_train", "n"))
def one(key, *, n_draws: int, n_train: int, n: int):
    """The test of one data set, and the values of the predicted distribution functions."""
    data_key, test_key = jax.random.split(key)
    _, (xs, ys), line = data(data_key, n_train, n)
    result = skce_test(
        test_key,
        dist.Normal(line(xs), line.deviation),
        ys,
        standardize=False,
        target_kernel=Gaussian(1.0),
        prediction_kernel=Laplace(1.0),
        null=Multinomial(n_draws),
    )
    return result, line, ndtr((ys - line(xs)) / line.deviation)


def make(config: Config) -> runner.Study:
    """The paper's least-squares example, on many data sets."""
    cells = [
        {"repetition": k, "draws": config.n_draws if k else config.n_draws_first}
        for k in range(config.repetitions + 1)
    ]

    def measure(cell, key):
        result, line, pit = one(key, n_draws=cell["draws"], n_train=config.n_train, n=config.n)
        return {
            "p_value": result.p_value,
            "unbiased": result.estimate,
            "biased": result.biased,
            "p_value_of_quantiles": scipy.stats.kstest(np.asarray(pit), "uniform").pvalue,
            "intercept": line.intercept,
            "slope": line.slope,
            "deviation": line.deviation,
            "not_a_number": int(jnp.isnan(result.p_value)),
        }

    measured = ("p_value", "unbiased", "biased", "p_value_of_quantiles")
    measured += ("intercept", "slope", "deviation", "not_a_number")
    return runner.Study(cells, measured, measure, config.seed)


def main(arguments: Sequence[str] | None = None) -> Path:
    jax.config.update("jax_enable_x64", True)
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
