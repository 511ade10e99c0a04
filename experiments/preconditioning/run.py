"""Does the preconditioner gain power where predictions differ in width, and keep the level?"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from jaxcal import kccsd_test
from jaxcal.nulls import Wild

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
BATCH = 50  # data sets a step: enough for two cores, little memory


@dataclass(frozen=True)
class Config:
    data_sets: int = 1000
    sizes: tuple[int, ...] = (32, 64, 128)
    forms: tuple[str, ...] = ("none", "isotropic", "diagonal")
    units: tuple[str, ...] = ("standardized", "original")
    n_draws: int = 500
    n_nodes: int = 10
    delta: float = 1.0
    seed: int = 20230721


QUICK = Config(data_sets=20, sizes=(16,), forms=("isotropic",), units=("original",))


def hgm(key: jax.Array, n: int, delta: float, calibrated: jax.Array):
    """The paper's heteroscedastic model, and targets from it or from N(sum x, 1)."""
    x_key, y_key = jax.random.split(key)
    x = jax.random.normal(x_key, (n, 3))
    distance2 = jnp.sum((x - 2 / 3) ** 2, axis=1)
    sd = jnp.sqrt(1 + 10 * delta * jnp.exp(-distance2 / (2 * 0.8**2)))
    mean = jnp.sum(x, axis=1)
    noise = jax.random.normal(y_key, (n,))
    return dist.Normal(mean, sd), mean + jnp.where(calibrated, sd, 1.0) * noise


@partial(
    jax.jit,
    static_argnames=("config", "n", "form", "units"),
    compiler_options=runner.FASTER_COMPILATION,
)
def p_values(key, calibrated, *, config: Config, n: int, form: str, units: str):
    """One p-value a data set; one program for the power and the level of a setting."""

    def one(key):
        data_key, test_key = jax.random.split(key)
        predictions, targets = hgm(data_key, n, config.delta, calibrated)
        return kccsd_test(
            test_key,
            predictions,
            targets,
            precondition=None if form == "none" else form,
            standardize=units == "standardized",
            null=Wild(config.n_draws),
            n_nodes=config.n_nodes,
        ).p_value

    keys = jax.random.split(key, config.data_sets)
    return jax.lax.map(one, keys, batch_size=min(BATCH, config.data_sets))


def make(config: Config) -> runner.Study:
    """Power and level of kccsd_test on HGM, with and without preconditioning."""
    cells = [
        {
            "units": units,
            "n": n,
            "precondition": form,
            "truth": truth,
            "data_sets": config.data_sets,
        }
        for units in config.units
        for n in config.sizes
        for form in config.forms
        for truth in ("homoscedastic", "calibrated")
    ]

    def measure(cell, key):
        p = p_values(
            key,
            jnp.asarray(cell["truth"] == "calibrated"),
            config=config,
            n=cell["n"],
            form=cell["precondition"],
            units=cell["units"],
        )
        return runner.rejections(p)

    return runner.Study(
        cells,
        runner.REJECTIONS,
        measure,
        config.seed,
        paired=("units", "precondition"),
    )


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
