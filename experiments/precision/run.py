"""How many digits does float32 keep? The same test on the same data in float32 and in float64."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist

from jaxcal import kccsd_test
from jaxcal.kernels import Gaussian

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Config:
    data_sets: int = 10
    sizes: tuple[int, ...] = (64, 256, 1024, 4096)
    dimensions: tuple[int, ...] = (1, 5)
    families: tuple[str, ...] = ("calibrated", "heavy", "offset")
    n_nodes: int = 10
    seed: int = 20230721


QUICK = Config(data_sets=2, sizes=(32,), dimensions=(5,))


def parameters(family: str, key: jax.Array, n: int, d: int):
    """Means, standard deviations and targets [n, d] of calibrated Gaussian predictions, float32.

    "calibrated": N(x, I). "heavy": standard deviations exp(1.5 g), so that scores have log-normal
    tails. "offset": N(x + 100, I), targets far from zero for their spread.
    """
    x_key, g_key, noise_key = jax.random.split(key, 3)
    mean = jax.random.normal(x_key, (n, d), jnp.float32) + (100 if family == "offset" else 0)
    sd = jnp.ones_like(mean)
    if family == "heavy":
        sd = jnp.exp(1.5 * jax.random.normal(g_key, (n, 1), jnp.float32)) * sd
    return mean, sd, mean + sd * jax.random.normal(noise_key, (n, d), jnp.float32)


def run_test(key, mean, sd, targets, base, target=None, prediction=None):
    # the base points and the bandwidths are given: their draws depend on the floating type
    return kccsd_test(
        key,
        dist.Normal(mean, sd).to_event(1),
        targets,
        base_measure=base,
        target_kernel=Gaussian(target),
        prediction_kernel=Gaussian(prediction),
    )


def errors(key: jax.Array, family: str, n: int, d: int, n_nodes: int) -> dict[str, float]:
    """The errors of one data set, in standard deviations of the null draws."""
    data_key, base_key, test_key = jax.random.split(key, 3)
    mean, sd, targets = parameters(family, data_key, n, d)
    base = jnp.mean(targets, 0) + jnp.std(targets, 0) * jax.random.normal(
        base_key, (n_nodes, d), jnp.float32
    )
    single = run_test(test_key, mean, sd, targets, base)
    arrays = [np.asarray(a, np.float64) for a in (mean, sd, targets, base)]
    lengths = [float(single.bandwidths[name]) for name in ("target", "prediction")]
    with jax.enable_x64(True):
        double = run_test(test_key, *(jnp.asarray(a) for a in arrays), *lengths)
        unit = float(jnp.std(double.null_samples))
        draws = np.asarray(double.null_samples)
        estimate, p = float(double.estimate), float(double.p_value)
    return {
        "estimate": abs(float(single.estimate) - estimate) / unit,
        "relative": abs(float(single.estimate) - estimate) / abs(estimate),
        "draws": float(np.max(np.abs(np.asarray(single.null_samples, np.float64) - draws))) / unit,
        "p_value": abs(float(single.p_value) - p),
    }


def make(config: Config) -> runner.Study:
    """Errors of float32 against float64: the estimate, the null draws and the p-value."""
    cells = [
        {"family": family, "d": d, "n": n, "data_sets": config.data_sets}
        for family in config.families
        for d in config.dimensions
        for n in config.sizes
    ]

    def measure(cell, key):
        result = [
            errors(k, cell["family"], cell["n"], cell["d"], config.n_nodes)
            for k in jax.random.split(key, config.data_sets)
        ]
        columns = {name: np.array([one[name] for one in result]) for name in result[0]}
        summary = {"not_a_number": int(np.sum(np.isnan(list(columns.values()))))}
        for name, values in columns.items():
            summary[f"{name}_median"] = np.median(values)
            summary[f"{name}_largest"] = np.max(values)
        return summary

    names = ("estimate", "relative", "draws", "p_value")
    measured = [f"{name}_{what}" for name in names for what in ("median", "largest")]
    return runner.Study(cells, (*measured, "not_a_number"), measure, config.seed)


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
