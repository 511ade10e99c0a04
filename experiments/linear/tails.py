"""How far into its tail the limit distribution of `Eigenvalues` holds, and whether draws agree.

python experiments/linear/tails.py [--quick] continues tails/results.csv.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxcal import Scores, ksd_test, nulls
from jaxcal.kernels import Gaussian

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner
from reference.nulls import Spectrum

FOLDER = Path(__file__).parent / "tails"
LEVELS = {"rejected_01": 1e-2, "rejected_001": 1e-3, "rejected_0001": 1e-4}
DRAWS = {"wild": nulls.Wild(500), "spectrum": Spectrum(500)}


@dataclass(frozen=True)
class Config:
    n: tuple[int, ...] = (100,)
    d: tuple[int, ...] = (1,)
    data_sets: int = 10_000
    compared: int = 1000  # data sets whose p-values are held against draws
    seed: int = 20261123


QUICK = Config((30,), (1,), 40, 20)


def make(config: Config) -> runner.Study:
    """Rejections of calibrated models far in the tail, and p-values against those of 500 draws."""

    def measure(cell, key):
        def p_value(key, null):
            data_key, test_key = jax.random.split(key)
            ys = jax.random.normal(data_key, (cell["n"], cell["d"]))
            kernel = Gaussian(1.0)  # in the units of the test
            return ksd_test(test_key, Scores(-ys), ys, null=null, target_kernel=kernel).p_value

        def every(null, keys):
            return jax.jit(lambda keys: jax.lax.map(lambda key: p_value(key, null), keys))(keys)

        keys = jax.random.split(key, cell["data_sets"])
        p = every(nulls.Eigenvalues(), keys)
        numbers: dict[str, Any] = {name: int(jnp.sum(p <= level)) for name, level in LEVELS.items()}
        numbers["not_a_number"] = int(jnp.sum(jnp.isnan(p)))
        few = p[: config.compared]
        for name, null in DRAWS.items():
            drawn = every(null, keys[: config.compared])
            share = ((null.n_draws + 1) * drawn - 1) / null.n_draws
            gaps = (share - few) / jnp.sqrt(few * (1 - few) / null.n_draws)
            both = (few > 0.02) & (few < 0.98)
            numbers[f"rms_{name}"] = jnp.sqrt(jnp.mean(gaps**2, where=both))
            numbers[f"mean_{name}"] = jnp.mean(gaps, where=both)
        return numbers

    compared = [f"{what}_{name}" for name in DRAWS for what in ("rms", "mean")]
    return runner.Study(
        [
            {"n": n, "d": d, "data_sets": config.data_sets, "compared": config.compared}
            for n in config.n
            for d in config.d
        ],
        (*LEVELS, "not_a_number", *compared),
        measure,
        config.seed,
    )


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
