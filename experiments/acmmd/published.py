"""The synthetic experiment of Glaser et al. (2024) beside the rejection rates that they drew."""

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
LENGTH, DRAWS = 20, 4
RATE, WIDTH = 1.0, 1.0  # of the kernels on sequences and on x
XS = np.linspace(0.3, 0.45, 5)  # probability of each of the two letters, which is x
SIZES = (10, 100, 200, 500, 1000)
PUBLISHED = {  # rejections of 300 by size, read from the figure of the authors' repository
    0.0: (19, 19, 19, 18, 16),
    0.01: (21, 18, 18, 18, 17),
    0.03: (27, 13, 19, 20, 27),
    0.1: (19, 32, 55, 125, 249),
    0.3: (30, 227, 299, 300, 300),
}


@dataclass(frozen=True)
class Config:
    data_sets: int = 300
    large: int = 100  # data sets of more than 200 pairs
    sizes: tuple[int, ...] = SIZES
    seed: int = 20261126


QUICK = Config(2, 2, (10,))


def sequences(key: jax.Array, x: jax.Array, shift: jax.Array, m: int) -> jax.Array:
    """m sequences for each x [n, m, LENGTH]: letters 1 and 2 until the first 0, which ends them."""
    uniform = jax.random.uniform(key, (len(x), m, LENGTH))
    first = jnp.zeros(LENGTH).at[0].set(shift)  # more of letter 1, less of letter 2
    ones, letters = x[:, None, None] + first, 2 * x[:, None, None]
    tokens = jnp.where(uniform < ones, 1.0, jnp.where(uniform < letters, 2.0, 0.0))
    return tokens * jnp.cumprod(tokens > 0, axis=-1)


def exact(shift: float) -> float:
    """The squared ACMMD: first letters alone differ, and what follows is averaged backwards."""
    p, q = np.meshgrid(XS, XS)
    unequal = np.exp(-RATE)
    both = ended_q = ended_p = np.ones_like(p)  # of rests when both go on, and when one has ended
    for _ in range(LENGTH - 1):
        both = (
            (1 - 2 * p) * (1 - 2 * q)
            + 2 * p * q * (1 + unequal) * both
            + unequal * (2 * p * (1 - 2 * q) * ended_q + 2 * q * (1 - 2 * p) * ended_p)
        )
        ended_q = 1 - 2 * p + 2 * p * unequal * ended_q
        ended_p = 1 - 2 * q + 2 * q * unequal * ended_p
    of_x = np.exp(-((p - q) ** 2) / (2 * WIDTH**2))
    return float(np.mean(of_x * 2 * shift**2 * (1 - unequal) * both))


@lru_cache
def program(n: int) -> Any:
    def one(key: jax.Array, shift: jax.Array) -> tuple[jax.Array, jax.Array]:
        x_key, target_key, draw_key, test_key = jax.random.split(key, 4)
        x = jax.random.choice(x_key, jnp.asarray(XS, jnp.float32), (n,))
        result = jaxcal.skce_test(
            test_key,
            jaxcal.Draws(sequences(draw_key, x, shift, DRAWS)),
            sequences(target_key, x, jnp.zeros(()), 1)[:, 0],
            divergence=Vectors(x[:, None]),
            prediction_kernel=Gaussian(WIDTH),
            target_kernel=Hamming(RATE),
            standardize=False,
        )
        return result.p_value, result.statistic

    return jax.jit(lambda keys, shift: jax.lax.map(lambda key: one(key, shift), keys))


def make(config: Config) -> runner.Study:
    """Rejections beside the published ones; the mean of the statistic and its exact value."""
    cells = [
        {"n": n, "shift": shift, "data_sets": sets, "published_of_300": counts[SIZES.index(n)]}
        for n in config.sizes
        for shift, counts in PUBLISHED.items()
        for sets in [config.large if n > 200 else config.data_sets]
    ]

    def measure(cell: runner.Cell, key: jax.Array) -> dict[str, Any]:
        keys = jax.random.split(key, cell["data_sets"])
        p, statistic = program(cell["n"])(keys, jnp.asarray(cell["shift"]))
        error = jnp.std(statistic, ddof=1) / len(keys) ** 0.5
        numbers = {"mean": float(jnp.mean(statistic)), "error": float(error)}
        return runner.rejections(p) | numbers | {"exact": exact(cell["shift"])}

    return runner.Study(cells, (*runner.REJECTIONS, "mean", "error", "exact"), measure, config.seed)


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER / "published", arguments)


if __name__ == "__main__":
    main()
