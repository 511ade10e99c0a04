"""Level and power of the exchangeability test beside KCCSD, on identical data sets."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import jax
import jax.numpy as jnp

from jaxcal import Unnormalized, kccsd_test
from jaxcal.candidates import Chains, exchangeability_test
from jaxcal.nulls import Wild

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "sbi"))
import runner
import sbi_problems as problems

FOLDER = Path(__file__).parent
DRAWS = 199
CORRELATION = 0.5
GAUSSIAN = {  # shift and spread of the targets in claimed deviations, and the claimed correlation
    "correct": (0.0, 1.0, CORRELATION),
    "shifted": (0.15, 1.0, CORRELATION),
    "too narrow": (0.0, 1.15, CORRELATION),
    "too wide": (0.0, 1 / 1.15, CORRELATION),
    "correlation left out": (0.0, 1.0, 0.0),
}
MODES = {
    fault: list(problems.FAULTS).index(name)
    for fault, name in {
        "correct": "correct",
        "shifted": "shifted",
        "too narrow": "underdispersed",
        "too wide": "overdispersed",
        "mode weights": "mode weights",
    }.items()
}


@dataclass(frozen=True)
class Config:
    level_sizes: tuple[int, ...] = (12, 64, 300)
    level_sets: int = 1000
    power_size: int = 200
    power_sets: int = 200
    families: tuple[str, ...] = ("gaussian", "modes")
    seed: int = 20261121


QUICK = Config(level_sizes=(16,), level_sets=8, power_size=16, power_sets=4, families=("gaussian",))


def normal(params, y):
    centre, root = params
    return -jnp.sum(jax.scipy.linalg.solve_triangular(root, y - centre, lower=True) ** 2) / 2


def gaussian(key, fault, n):
    """Forecasts of correlation .5 whose widths vary over x, and targets with a fault."""
    shift, spread, claimed = fault
    centre_key, width_key, noise_key = jax.random.split(key, 3)
    centres = jax.random.normal(centre_key, (n, 2))
    widths = jnp.exp(0.4 * jax.random.normal(width_key, (n, 1)))
    z = jax.random.normal(noise_key, (n, 2))
    other = CORRELATION * z[:, 0] + (1 - CORRELATION**2) ** 0.5 * z[:, 1]
    targets = centres + widths * (spread * jnp.stack([z[:, 0], other], axis=1) + shift)
    root = jnp.stack([jnp.asarray([1.0, 0.0]), jnp.stack([claimed, (1 - claimed**2) ** 0.5])])
    return Unnormalized(normal, (centres, widths[:, :, None] * root[None])), targets


def modes(key, fault, n):
    """Two Gaussian modes three widths apart on each side of the middle."""
    data = problems.data_set(key, fault, n)
    return problems.unnormalized(data.posterior), data.thetas


FAMILIES = {"gaussian": (gaussian, GAUSSIAN), "modes": (modes, MODES)}


MEASURED = ("combined", "log_density", "location", "scale", "correlation", "kccsd", "acceptance")


@lru_cache
def program(name: str, n: int):
    """One program a family and size, for every fault."""

    def one(key, fault):
        data_key, test_key = jax.random.split(key)
        predictions, targets = FAMILIES[name][0](data_key, fault, n)
        result = exchangeability_test(
            test_key, predictions, targets, proposal=Chains(), n_resamples=DRAWS
        )
        stein = kccsd_test(test_key, predictions, targets, null=Wild(DRAWS))
        p = jnp.concatenate([result.p_value[None], result.part_p_values, stein.p_value[None]])
        return p, result.acceptance

    return runner.spread(one)


def make(config: Config) -> runner.Study:
    """Rejections at 5 % of the combined p-value, of each part, and of KCCSD."""
    cells = [
        {"family": name, "fault": "correct", "n": n, "data_sets": config.level_sets}
        for name in config.families
        for n in config.level_sizes
    ]
    cells += [
        {"family": name, "fault": fault, "n": config.power_size, "data_sets": config.power_sets}
        for name in config.families
        for fault in FAMILIES[name][1]
        if fault != "correct"
    ]

    def measure(cell, key):
        fault = jnp.asarray(FAMILIES[cell["family"]][1][cell["fault"]])
        keys = jax.random.split(key, cell["data_sets"])
        faults = jnp.broadcast_to(fault, (len(keys), *fault.shape))
        p, acceptance = program(cell["family"], cell["n"])(keys, faults)
        counts = [int(count) for count in jnp.sum(p <= 0.05, axis=0)]
        return dict(zip(MEASURED, [*counts, float(jnp.mean(acceptance))], strict=True))

    return runner.Study(cells, MEASURED, measure, config.seed)


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
