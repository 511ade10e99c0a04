"""ACMMD of models of letters: the estimate beside its closed form, level and power of the test."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import jaxcal
from jaxcal.divergences import Vectors
from jaxcal.kernels import Gaussian, Hamming

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
LETTERS, DRAWS = 12, 12
RATE = 1 / 6  # of the kernel on sequences
OF_X = Gaussian(0.2)  # kernel on x, which is uniform on [.2, .7]
LOW, HIGH = 0.2, 0.7


@dataclass(frozen=True)
class Config:
    level: int = 1000  # data sets of the right model
    power: int = 300  # data sets of each shift
    sizes: tuple[int, ...] = (30, 60, 100)
    shifts: tuple[float, ...] = (0.0, 0.05, 0.1, 0.15, 0.2)
    seed: int = 20261125


QUICK = Config(4, 4, (20,), (0.0, 0.2))


def letters(key: jax.Array, probabilities: jax.Array, m: int) -> jax.Array:
    """m sequences of independent letters 0 and 1 for each probability of a 1, [n, m, LETTERS]."""
    shape = (len(probabilities), m, LETTERS)
    return jax.random.bernoulli(key, probabilities[:, None, None], shape).astype(float)


def exact(shift: float) -> float:
    """The squared ACMMD by quadrature over x."""
    nodes, weights = np.polynomial.legendre.leggauss(40)
    x, weights = LOW + (HIGH - LOW) * (nodes + 1) / 2, weights / 2
    of_x = np.exp(-((x[:, None] - x) ** 2) / (2 * float(OF_X.bandwidth) ** 2))

    def mean(p: np.ndarray, q: np.ndarray) -> np.ndarray:
        unequal = p[:, None] * (1 - q) + (1 - p[:, None]) * q
        return (1 - (1 - np.exp(-RATE)) * unequal) ** LETTERS

    y = x + shift
    return float(weights @ (of_x * (mean(x, x) - mean(x, y) - mean(y, x) + mean(y, y))) @ weights)


@lru_cache
def program(n: int) -> Any:
    def one(key: jax.Array, shift: jax.Array) -> tuple[jax.Array, jax.Array]:
        x_key, target_key, draw_key, test_key = jax.random.split(key, 4)
        x = jax.random.uniform(x_key, (n,), minval=LOW, maxval=HIGH)
        result = jaxcal.skce_test(
            test_key,
            jaxcal.Draws(letters(draw_key, x + shift, DRAWS)),
            letters(target_key, x, 1)[:, 0],
            divergence=Vectors(x[:, None]),
            prediction_kernel=OF_X,
            target_kernel=Hamming(RATE),
            standardize=False,
        )
        return result.p_value, result.statistic

    return jax.jit(lambda keys, shift: jax.lax.map(lambda key: one(key, shift), keys))


def make(config: Config) -> runner.Study:
    """Rejections, and the mean of the statistic with its standard error beside the exact value."""
    cells = [
        {"kernel": "Hamming", "n": n, "shift": shift, "data_sets": sets}
        for n in config.sizes
        for shift in config.shifts
        for sets in [config.power if shift else config.level]
    ]

    def measure(cell: runner.Cell, key: jax.Array) -> dict[str, Any]:
        keys = jax.random.split(key, cell["data_sets"])
        p, statistic = program(cell["n"])(keys, jnp.asarray(cell["shift"]))
        expected = exact(cell["shift"])
        error = jnp.std(statistic, ddof=1) / len(keys) ** 0.5
        numbers = {"mean": float(jnp.mean(statistic)), "error": float(error), "exact": expected}
        return runner.rejections(p) | numbers

    return runner.Study(cells, (*runner.REJECTIONS, "mean", "error", "exact"), measure, config.seed)


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
