"""Level and power of the linear-time test against its number of features, on one data set a row."""

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from jaxcal import RandomFeatures, kccsd_test
from jaxcal.kernels import Gaussian
from jaxcal.nulls import Eigenvalues, Wild

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
PAIRS = 0  # features of the test of all pairs


@dataclass(frozen=True)
class Config:
    level_sets: int = 1000
    level_n: int = 2000
    level_features: tuple[int, ...] = (20, 100, 300)
    power_sets: int = 1000
    power_n: int = 128
    power_features: tuple[int, ...] = (6, 20, 100, 300)
    plain_features: tuple[int, ...] = (20, 100)  # not orthogonal
    pairs_n: tuple[int, ...] = (100, 300)  # level by all pairs
    wild_features: tuple[int, ...] = (20, 100)  # power with signs instead of eigenvalues
    seed: int = 20261122


# each way of features, of nulls and of bandwidths once: a cell is a program
QUICK = Config(20, 100, (20,), 20, 32, (), (6,), (), ())


def hgm(key: jax.Array, n: int, wrong: bool):
    """N(sum x, v(x)), 1 <= v <= 11, as in the KCCSD paper; wrong predictions claim v = 1."""
    x_key, y_key = jax.random.split(key)
    x = jax.random.normal(x_key, (n, 3))
    sd = jnp.sqrt(1 + 10 * jnp.exp(-jnp.sum((x - 2 / 3) ** 2, axis=1) / (2 * 0.8**2)))
    mean = jnp.sum(x, axis=1)
    claimed = jnp.ones_like(sd) if wrong else sd
    return dist.Normal(mean, claimed), mean + sd * jax.random.normal(y_key, (n,))


def make(config: Config) -> runner.Study:
    """Rejection rates of calibrated and of miscalibrated models by features, and the time taken."""
    rows = [("level", n, PAIRS, True, "Eigenvalues", config.level_sets) for n in config.pairs_n]
    power = [(size, True, "Eigenvalues") for size in (PAIRS, *config.power_features)]
    power += [(size, False, "Eigenvalues") for size in config.plain_features]
    power += [(size, True, "Wild") for size in (PAIRS, *config.wild_features)]
    rows += [("power", config.power_n, *how, config.power_sets) for how in power]
    rows += [
        ("level", config.level_n, size, True, "Eigenvalues", config.level_sets)
        for size in config.level_features
    ]

    def measure(cell, key):
        def one(key):
            keys = jax.random.split(key, 3)
            predictions, targets = hgm(keys[0], cell["n"], cell["what"] == "power")
            null = Eigenvalues() if cell["null"] == "Eigenvalues" else Wild(500)
            features = None
            if cell["features"] != PAIRS:
                features = RandomFeatures(keys[2], cell["features"], cell["orthogonal"])
            kernels = {}
            if cell["what"] == "level":  # medians of 2^21 pairs would be nine tenths of the work
                kernels = {"target_kernel": Gaussian(1.0), "prediction_kernel": Gaussian(1.0)}
            result = kccsd_test(
                keys[1], predictions, targets, null=null, features=features, **kernels
            )
            return result.p_value

        keys = jax.random.split(key, cell["data_sets"])
        program = (
            jax.jit(lambda keys: jax.lax.map(one, keys))
            .lower(keys)
            .compile(runner.FASTER_COMPILATION)
        )
        start = time.process_time()
        p = jax.block_until_ready(program(keys))
        seconds = time.process_time() - start
        return {
            **runner.rejections(p),
            "milliseconds": 1000 * seconds / len(p),
        }

    names = ("what", "n", "features", "orthogonal", "null", "data_sets")
    return runner.Study(
        [dict(zip(names, row, strict=True)) for row in rows],
        (*runner.REJECTIONS, "milliseconds"),
        measure,
        config.seed,
        paired=("features", "orthogonal", "null"),
    )


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
