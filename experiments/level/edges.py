"""Level and power of `calibration_test` where log densities have an edge."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr, ndtri

from jaxcal import Unnormalized, calibration_test

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
BATCH = 10  # data sets a step


@dataclass(frozen=True)
class Config:
    data_sets: int = 300
    sizes: tuple[int, ...] = (50, 200, 1000)
    families: tuple[str, ...] = (
        "exponential",
        "uniform",
        "cut normal",
        "half-Cauchy",
        "gamma 1.5",
        "triangular",
        "Lomax 2",
    )
    scales: tuple[float, ...] = (1.3, 1 / 1.3)
    n_scales: int = 200
    seed: int = 20261123


QUICK = Config(data_sets=4, sizes=(20,), families=("exponential",), scales=(), n_scales=20)

Family = Callable[[jax.Array, int], tuple[Any, jax.Array, jax.Array]]


def inside(where: jax.Array, value: jax.Array) -> jax.Array:
    return jnp.where(where, value, -jnp.inf)


# Families: key, n -> log densities up to a constant, distances of the targets from ``start``, start


def exponential(key: jax.Array, n: int):
    x, noise = jax.random.split(key)
    rate = jnp.exp(0.5 * jax.random.normal(x, (n,)))
    model = Unnormalized(lambda rate, y: inside(y > 0, -rate * y), rate)
    return model, jax.random.exponential(noise, (n,)) / rate, jnp.zeros(n)


def uniform(key: jax.Array, n: int):
    x, noise = jax.random.split(key)
    center = jax.random.normal(x, (n,))
    model = Unnormalized(lambda c, y: inside(jnp.abs(y - c) < 1.5, 0 * y), center)
    return model, jax.random.uniform(noise, (n,), minval=-1.5, maxval=1.5), center


def cut_normal(key: jax.Array, n: int):
    """Of mean x / 2 and deviation 1 before it is cut at 0."""
    x, noise = jax.random.split(key)
    center = jax.random.normal(x, (n,)) / 2
    below = ndtr(-center)
    distance = center + ndtri(below + (1 - below) * jax.random.uniform(noise, (n,)))
    model = Unnormalized(lambda c, y: inside(y > 0, -((y - c) ** 2) / 2), center)
    return model, distance, jnp.zeros(n)


def half_cauchy(key: jax.Array, n: int):
    x, noise = jax.random.split(key)
    size = jnp.exp(0.5 * jax.random.normal(x, (n,)))
    model = Unnormalized(lambda s, y: inside(y > 0, -jnp.log1p((y / s) ** 2)), size)
    return model, size * jnp.abs(jax.random.cauchy(noise, (n,))), jnp.zeros(n)


def gamma(key: jax.Array, n: int):
    """Of shape 1.5: 0 at its edge, where the score has no variance; no number beyond."""
    x, noise = jax.random.split(key)
    rate = jnp.exp(0.5 * jax.random.normal(x, (n,)))
    model = Unnormalized(lambda rate, y: jnp.log(y) / 2 - rate * y, rate)
    return model, jax.random.gamma(noise, 1.5, (n,)) / rate, jnp.zeros(n)


def triangular(key: jax.Array, n: int):
    """Falls from its largest value, at x, to 0 at x + 2."""
    x, noise = jax.random.split(key)
    start = jax.random.normal(x, (n,))

    def log_density(start, y):
        z = (y - start) / 2
        return inside((z > 0) & (z < 1), jnp.log1p(-jnp.clip(z, 0, 1 - 1e-12)))

    distance = 2 * (1 - jnp.sqrt(jax.random.uniform(noise, (n,))))
    return Unnormalized(log_density, start), distance, start


def lomax(key: jax.Array, n: int):
    """Of shape 2: a mean and no variance."""
    x, noise = jax.random.split(key)
    size = jnp.exp(0.5 * jax.random.normal(x, (n,)))
    model = Unnormalized(lambda s, y: inside(y > 0, -3 * jnp.log1p(y / s)), size)
    return model, size * (jax.random.uniform(noise, (n,), minval=1e-7) ** -0.5 - 1), jnp.zeros(n)


FAMILIES: dict[str, Family] = {
    "exponential": exponential,
    "uniform": uniform,
    "cut normal": cut_normal,
    "half-Cauchy": half_cauchy,
    "gamma 1.5": gamma,
    "triangular": triangular,
    "Lomax 2": lomax,
}


def make(config: Config) -> runner.Study:
    """Rejections of calibrated predictions, and of targets whose scale is not the one claimed."""

    def measure(cell, key):
        family, n, scale = FAMILIES[cell["family"]], cell["n"], cell["scale"]

        def one(key):
            data_key, test_key = jax.random.split(key)
            predictions, distance, start = family(data_key, n)
            ys = start + scale * distance
            result = calibration_test(test_key, predictions, ys)
            return result.p_value, result.notes["density-with-edge"]

        keys = jax.random.split(key, config.data_sets)
        p, bounded = jax.jit(lambda keys: jax.lax.map(one, keys, batch_size=BATCH))(keys)
        return runner.rejections(p) | {"edge_seen": int(jnp.sum(bounded))}

    rows = [(family, n, 1.0) for family in config.families for n in config.sizes]
    rows += [
        (family, config.n_scales, round(scale, 3))
        for family in config.families
        for scale in config.scales
    ]
    cells = [
        {"family": family, "n": n, "scale": scale, "data_sets": config.data_sets}
        for family, n, scale in rows
    ]
    measured = (*runner.REJECTIONS, "edge_seen")
    return runner.Study(cells, measured, measure, config.seed, paired=("scale",))


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER / "edges", arguments)


if __name__ == "__main__":
    main()
