"""Do limits of a repair's gain hold? Normal claims, whose maps gain what two moments say."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from jaxcal.moments.attribution import student_quantile
from jaxcal.repairing.certificate import certificate, cross_fitted, in_data_units

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
NEW, FOLDS, LEVEL = 3000, 5, 0.05
FAULTS = {  # of the mean: everywhere; of the log spread: everywhere, and along the first centre
    "none": (0.0, 0.0, 0.0),
    "shift": (0.3, 0.0, 0.0),
    "spread": (0.0, 0.25, 0.0),
    "spread trend": (0.0, 0.0, 0.25),
}
MEASURED = ("held", "too_low", "too_high", "held_as_independent", "above_0")


@dataclass(frozen=True)
class Config:
    # d, n and data sets
    sizes: tuple[tuple[int, int, int], ...] = (
        (1, 100, 300),
        (2, 100, 300),
        (1, 30, 300),
        (1, 500, 300),
        (2, 500, 300),
    )
    families: tuple[str, ...] = ("normal", "student", "skewed")
    faults: tuple[str, ...] = tuple(FAULTS)
    large: tuple[tuple[int, int, int], ...] = ((5, 300, 60),)  # normal, two faults
    seed: int = 20261125


QUICK = Config(sizes=((1, 40, 2),), families=("normal",), faults=("none",), large=())


def claims(key: jax.Array, n: int, d: int) -> tuple[jax.Array, jax.Array]:
    first, second = jax.random.split(key)
    widths = jnp.exp(0.3 * jax.random.normal(second, (n, d)))
    return jax.random.normal(first, (n, d)), widths


def noise(key: jax.Array, family: str, shape: tuple[int, int]) -> jax.Array:
    """With mean 0 and deviation 1."""
    if family == "normal":
        return jax.random.normal(key, shape)
    if family == "student":
        return jax.random.t(key, 6.0, shape) / 1.5**0.5
    return (jax.random.gamma(key, 3.0, shape) - 3) / 3**0.5


def moments(center: jax.Array, fault: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Mean and deviation of targets, in claimed units, [n, d]."""
    shift, spread, trend = fault
    deviation = jnp.exp(spread + trend * jnp.clip(center[:, :1], -3, 3))
    return jnp.full_like(center, shift), deviation * jnp.ones_like(center)


@lru_cache(maxsize=2)
def program(family: str, d: int, n: int) -> Any:
    def measured(key: jax.Array, fault: jax.Array) -> jax.Array:
        keys = jax.random.split(key, 4)
        center, width = claims(keys[0], n, d)
        mean, deviation = moments(center, fault)
        ys = center + width * (mean + deviation * noise(keys[1], family, (n, d)))
        predictions = dist.Normal(center, width).to_event(1)
        maps = cross_fitted(keys[2], predictions, ys, jnp.zeros((n, 0)), FOLDS)
        gain, low, high, _, gains = certificate(maps.gains, maps.fold, LEVEL)
        error = jnp.std(gains) / (n - 1) ** 0.5
        alone = student_quantile(jnp.asarray(1 - LEVEL / 2), jnp.asarray(n - 1.0)) * error
        center, width = claims(keys[3], NEW, d)
        mean, deviation = moments(center, fault)
        new = dist.Normal(center, width).to_event(1)
        frame = maps.features.frame(new, NEW, jnp.zeros((NEW, 0)))

        def gained(parameters: Any) -> jax.Array:
            move = in_data_units(parameters.moves(frame), maps.features.units)
            inverse = move.inverse * width[:, None] / width[:, :, None]
            gap = jnp.einsum("nij,nj->ni", inverse, mean - move.shift / width)
            square = jnp.sum(gap**2, 1) + jnp.sum((inverse * deviation[:, None]) ** 2, (1, 2))
            return jnp.mean(jnp.sum(mean**2 + deviation**2, 1) - square) / 2 - jnp.mean(
                move.log_size
            )

        truth = jnp.mean(jax.lax.map(gained, maps.parameters)[:-1])
        return jnp.stack([gain, low, high, alone, truth])

    return jax.jit(
        lambda keys, fault: jax.lax.map(
            lambda key: measured(key, fault), keys, batch_size=max(25 // d, 1)
        ),
        compiler_options=runner.FASTER_COMPILATION,
    )


def make(config: Config) -> runner.Study:
    """Counts of data sets in which limits hold what the maps of the folds gain, lie below or above
    it, hold where folds are taken for independent, and lie above 0."""
    everywhere = product(config.sizes, config.families, config.faults)
    large = product(config.large, ("normal",), ("none", "spread"))
    cells = [
        {"d": d, "n": n, "family": family, "fault": fault, "data_sets": data_sets}
        for (d, n, data_sets), family, fault in (*everywhere, *large)
    ]

    def measure(cell: Any, key: jax.Array) -> dict[str, int]:
        keys = jax.random.split(key, cell["data_sets"])
        fault = jnp.asarray(FAULTS[cell["fault"]])
        values = np.asarray(program(cell["family"], cell["d"], cell["n"])(keys, fault))
        gain, low, high, alone, truth = values.T
        return {
            "held": int(np.sum((low <= truth) & (truth <= high))),
            "too_low": int(np.sum(high < truth)),
            "too_high": int(np.sum(low > truth)),
            "held_as_independent": int(np.sum(np.abs(gain - truth) <= alone)),
            "above_0": int(np.sum(low > 0)),
        }

    return runner.Study(cells, MEASURED, measure, config.seed)


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER / "limits", arguments)


if __name__ == "__main__":
    main()
