"""Do draws that share Hadamard's matrices keep level, power and the spread of p-values?"""

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
from jaxcal.nulls import HadamardWild, Wild

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
SHIFT = 0.25  # of faulty targets, in claimed standard deviations
TESTS = {"kccsd": kccsd_test}


@dataclass(frozen=True)
class Config:
    families: tuple[str, ...] = ("sorted", "clusters", "heavy")
    tests: tuple[str, ...] = tuple(TESTS)
    sizes: tuple[int, ...] = (32, 300)
    gaussian_sizes: tuple[int, ...] = (12, 32, 100, 300, 1000)
    data_sets: int = 1000
    seed: int = 20261122


QUICK = Config(("clusters",), ("kccsd",), (24,), (), 4)


def gaussian(key, n):
    """Forecasts in two dimensions whose widths vary by a factor of e^.4."""
    center_key, width_key, noise_key = jax.random.split(key, 3)
    centers, noise = (jax.random.normal(k, (n, 2)) for k in (center_key, noise_key))
    return centers, jnp.exp(0.4 * jax.random.normal(width_key, (n, 1))), noise


def in_order(key, n):
    """The same, sorted by the first center: neighbours have similar predictions."""
    centers, widths, noise = gaussian(key, n)
    order = jnp.argsort(centers[:, 0])
    return centers[order], widths[order], noise


def clusters(key, n):
    """Eight different forecasts, each given to n / 8 observations in a row."""
    centers, widths, noise = gaussian(key, n)
    first = (jnp.arange(n) * 8 // n) * n // 8
    return 3 * centers[first], widths[first], noise


FAMILIES = {"gaussian": gaussian, "sorted": in_order, "clusters": clusters, "heavy": gaussian}
DEGREES = 3  # of freedom of "heavy": a few observations have most of the say


def data_set(family: str, key, shift, n: int):
    """Predictions, and targets that are off by the shift."""
    data_key, draw_key = jax.random.split(key)
    centers, widths, noise = FAMILIES[family](data_key, n)
    if family == "heavy":
        noise = jax.random.t(draw_key, DEGREES, (n, 2))
        predictions = dist.StudentT(DEGREES, centers, widths).to_event(1)
    else:
        predictions = dist.Normal(centers, widths * jnp.ones_like(centers)).to_event(1)
    return predictions, centers + widths * (noise + shift)


@lru_cache
def program(family: str, test: str, n: int):
    """Two p-values of each null, for many data sets and any shift."""

    def one(key, shift):
        data_key, *keys = jax.random.split(key, 3)
        predictions, targets = data_set(family, data_key, shift, n)
        rows = [
            jnp.stack([TESTS[test](k, predictions, targets, null=null).p_value for k in keys])
            for null in (Wild(), HadamardWild())
        ]
        return jnp.stack(rows)

    return runner.spread(one)


MEASURED: tuple[str, ...] = (
    "wild_05",
    "hadamard_05",
    "wild_01",
    "hadamard_01",
    "wild_spread",
    "hadamard_spread",
)


def make(config: Config) -> runner.Study:
    """Rejections by either null, and the standard deviation of p-values of the same data."""
    groups = [("gaussian", test, n) for test in config.tests for n in config.gaussian_sizes]
    groups += list(product(config.families, config.tests, config.sizes))
    cells = [
        {
            "family": family,
            "test": test,
            "n": n,
            "fault": fault,
            "data_sets": config.data_sets // (4 if n >= 1000 else 1),
        }
        for family, test, n in groups
        for fault in ("correct", "shifted")
    ]

    def measure(cell, key):
        shift = jnp.asarray(SHIFT * (64 / cell["n"]) ** 0.5 if cell["fault"] == "shifted" else 0.0)
        keys = jax.random.split(key, cell["data_sets"])
        p = program(cell["family"], cell["test"], cell["n"])(
            keys, jnp.broadcast_to(shift, (len(keys),))
        )
        counts = [int(jnp.sum(p[:, null, 0] <= level)) for level in (0.05, 0.01) for null in (0, 1)]
        spread = jnp.sqrt(jnp.mean((p[:, :, 0] - p[:, :, 1]) ** 2, axis=0) / 2)
        return dict(zip(MEASURED, [*counts, *(round(float(s), 5) for s in spread)], strict=True))

    return runner.Study(cells, MEASURED, measure, config.seed)


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
