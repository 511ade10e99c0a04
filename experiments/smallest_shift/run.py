"""Is the smallest shift that a result names found with the 80 % it promises?"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

import jaxcal

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Config:
    data_sets: int = 200
    sizes: tuple[int, ...] = (100, 300)
    families: tuple[str, ...] = ("gaussian", "widths", "correlated", "student")
    tests: tuple[str, ...] = ("kccsd", "ksd")
    seed: int = 20261121


QUICK = Config(data_sets=10, sizes=(12,), families=("gaussian",), tests=("ksd",))


def predictions(family: str, key: jax.Array, n: int) -> dist.Distribution:
    """n predictions over vectors."""
    x = jax.random.normal(key, (n, 2))
    match family:
        case "gaussian":
            return dist.Normal(x[:, :1], 1.0).to_event(1)
        case "widths":
            return dist.Normal(x[:, :1], jnp.exp(x[:, 1:] / 2)).to_event(1)
        case "student":
            return dist.StudentT(5.0, x[:, :1], 1.0).to_event(1)
    return dist.MultivariateNormal(x, jnp.asarray([[1.0, 0.8], [0.8, 1.0]]))


@partial(jax.jit, static_argnames=("family", "test", "n"))
def results(keys: jax.Array, shift: jax.Array, *, family: str, test: str, n: int):
    """Tests of data sets whose first target coordinate is shifted by so many deviations."""

    def one(key):
        x_key, y_key, test_key = jax.random.split(key, 3)
        model = predictions(family, x_key, n)
        if test == "ksd":  # one distribution for all
            model = dist.Normal(jnp.zeros(1), 1.0).to_event(1)
        ys = model.sample(y_key, () if model.batch_shape else (n,))
        ys = ys.at[:, 0].add(shift * jnp.std(ys[:, 0]))
        run = jaxcal.ksd_test if test == "ksd" else jaxcal.kccsd_test
        return run(test_key, model, ys, null=jaxcal.nulls.Wild(300))

    return jax.lax.map(one, keys)


def make(config: Config) -> runner.Study:
    """The named shift of calibrated data sets, and how often data shifted by it are rejected."""

    def measure(cell, key):
        family, test, n, sets = cell.values()
        first, second = (jax.random.split(k, sets) for k in jax.random.split(key))
        how = {"family": family, "test": test, "n": n}
        calibrated = results(first, jnp.zeros(()), **how)
        named = calibrated.smallest_shift[:, 0]
        typical = np.nanmedian(named) if np.any(np.isfinite(named)) else np.nan
        shifted = results(second, jnp.asarray(typical, jnp.float32), **how)
        low, high = np.nanquantile(named, [0.1, 0.9])
        return {
            "named": f"{typical:.3f}",
            "named_10": f"{low:.3f}",
            "named_90": f"{high:.3f}",
            "unclear": int(np.sum(np.isnan(named))),
            "rejected_calibrated": int(np.sum(calibrated.verdict == "rejected")),
            "rejected_shifted": int(np.sum(shifted.verdict == "rejected")),
        }

    columns = ("family", "test", "n", "data_sets")
    cells = [
        dict(zip(columns, (family, test, n, config.data_sets), strict=True))
        for family, test, n in product(config.families, config.tests, config.sizes)
        if test != "ksd" or family == "gaussian"
    ]
    measured = ("named", "named_10", "named_90", "unclear")
    measured += ("rejected_calibrated", "rejected_shifted")
    return runner.Study(cells, measured, measure, config.seed)


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
