"""Does SKCE keep its level where Laplace predictions are far wider and narrower than the kernel?"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import jax
import jax.numpy as jnp
import numpyro.distributions as dist

from jaxcal import skce_test
from jaxcal.kernels import IMQ, Gaussian, L1Laplace, Matern52, RationalQuadratic

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
KERNELS = {
    "Gaussian": Gaussian,
    "IMQ": IMQ,
    "L1Laplace": L1Laplace,
    "Matern52": Matern52,
    "RationalQuadratic": RationalQuadratic,
}


@dataclass(frozen=True)
class Config:
    data_sets: int = 100
    n: int = 100
    kernels: tuple[str, ...] = tuple(KERNELS)
    bandwidths: tuple[str, ...] = ("median", "0.1")  # in standard deviations of the targets
    seed: int = 20230721


QUICK = Config(data_sets=4, n=20, kernels=("IMQ", "L1Laplace"), bandwidths=("0.1",))


def make(config: Config) -> runner.Study:
    """Rejections at 0.05 and 0.01 of calibrated predictions, 40 % of scale 10, the rest 0.1."""
    scale = jnp.where(jnp.arange(config.n) < 0.4 * config.n, 10.0, 0.1)

    def measure(cell, key):
        bandwidth = None if cell["bandwidth"] == "median" else float(cell["bandwidth"])
        kernel = KERNELS[cell["kernel"]](bandwidth)

        @jax.jit
        def test(key):
            data_key, test_key = jax.random.split(key)
            ys = scale * jax.random.laplace(data_key, scale.shape)
            predictions = dist.Laplace(jnp.zeros_like(scale), scale)
            return skce_test(test_key, predictions, ys, target_kernel=kernel).p_value

        p = jax.lax.map(test, jax.random.split(key, config.data_sets))
        return {
            "data_sets": config.data_sets,
            **runner.rejections(p),
        }

    cells = [
        {"kernel": kernel, "bandwidth": bandwidth, "n": config.n}
        for kernel, bandwidth in product(config.kernels, config.bandwidths)
    ]
    measured = ("data_sets", *runner.REJECTIONS)
    return runner.Study(cells, measured, measure, config.seed, paired=("kernel", "bandwidth"))


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER / "laplace", arguments)


if __name__ == "__main__":
    main()
