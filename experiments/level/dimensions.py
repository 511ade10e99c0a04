"""Does `calibration_test` keep its level in twenty dimensions? Tails, edges, modes."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxcal import Unnormalized, calibration_test

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
BATCH = 10  # data sets a step


@dataclass(frozen=True)
class Config:
    d: int = 20
    sizes: tuple[int, ...] = (30, 64, 200)  # observations
    data_sets: int = 500
    # The last three were not looked at before the others were run
    families: tuple[str, ...] = (
        *("normal", "student", "cauchy", "uniform", "beta", "gamma"),
        *("modes", "lomax", "triangular"),
    )
    seed: int = 20261125


QUICK = Config(d=3, sizes=(20,), data_sets=4, families=("uniform",))


def inside(where: jax.Array, value: jax.Array) -> jax.Array:
    """``value`` where all coordinates lie ``where`` the density is positive."""
    return jnp.where(jnp.all(where), jnp.sum(jnp.where(where, value, 0)), -jnp.inf)


# Log densities of noise z [d], up to a constant, and noise [n, d]


def normal(z: jax.Array) -> jax.Array:
    return -jnp.sum(z**2) / 2


def student(z: jax.Array) -> jax.Array:
    """3 degrees of freedom: all coordinates are far out together."""
    return -(3 + z.size) / 2 * jnp.log1p(jnp.sum(z**2) / 3)


def cauchy(z: jax.Array) -> jax.Array:
    """Independent coordinates without a mean."""
    return -jnp.sum(jnp.log1p(z**2))


def uniform(z: jax.Array) -> jax.Array:
    return inside(jnp.abs(z) < 1, 0 * z)


def beta(z: jax.Array) -> jax.Array:
    """Of 2 and 3: 0 at its edges."""
    safe = jnp.clip(z, 1e-6, 1 - 1e-6)
    return inside((z > 0) & (z < 1), jnp.log(safe) + 2 * jnp.log1p(-safe))


def gamma(z: jax.Array) -> jax.Array:
    """Of shape 1.5: an edge, and a tail on one side."""
    return inside(z > 0, jnp.log(jnp.where(z > 0, z, 1)) / 2 - z)


def modes(z: jax.Array) -> jax.Array:
    """Two, 6 deviations apart in the first coordinate."""
    away = jnp.zeros_like(z).at[0].set(3.0)
    return jnp.logaddexp(normal(z - away), normal(z + away))


def lomax(z: jax.Array) -> jax.Array:
    """Of shape 2: an edge, and a tail without variance."""
    return inside(z > 0, -3 * jnp.log1p(jnp.where(z > 0, z, 1)))


def triangular(z: jax.Array) -> jax.Array:
    """Falls from its largest value at 0 to 0 at 1."""
    return inside((z > 0) & (z < 1), jnp.log1p(-jnp.clip(z, 0, 1 - 1e-6)))


Shape = tuple[int, int]


def from_student(key: jax.Array, shape: Shape) -> jax.Array:
    chi_key, key = jax.random.split(key)
    squares = 2 * jax.random.gamma(chi_key, 1.5, (shape[0], 1)) / 3
    return jax.random.normal(key, shape) / jnp.sqrt(squares)


def from_modes(key: jax.Array, shape: Shape) -> jax.Array:
    side_key, key = jax.random.split(key)
    side = jax.random.rademacher(side_key, shape[:1], jnp.float32)
    return jax.random.normal(key, shape).at[:, 0].add(3 * side)


def from_lomax(key: jax.Array, shape: Shape) -> jax.Array:
    return jax.random.uniform(key, shape, minval=1e-7) ** -0.5 - 1


def from_triangular(key: jax.Array, shape: Shape) -> jax.Array:
    return 1 - jnp.sqrt(jax.random.uniform(key, shape, minval=1e-7))


Family = tuple[Callable[[jax.Array], jax.Array], Callable[[jax.Array, Shape], jax.Array]]
FAMILIES: dict[str, Family] = {
    "normal": (normal, jax.random.normal),
    "student": (student, from_student),
    "cauchy": (cauchy, jax.random.cauchy),
    "uniform": (uniform, lambda key, shape: jax.random.uniform(key, shape, minval=-1)),
    "beta": (beta, lambda key, shape: jax.random.beta(key, 2.0, 3.0, shape)),
    "gamma": (gamma, lambda key, shape: jax.random.gamma(key, 1.5, shape)),
    "modes": (modes, from_modes),
    "lomax": (lomax, from_lomax),
    "triangular": (triangular, from_triangular),
}


def claimed(family: str) -> Any:
    log_density = FAMILIES[family][0]

    def of_one(params: Any, y: jax.Array) -> jax.Array:
        center, width = params
        return log_density((y - center) / width)

    return of_one


def make(config: Config) -> runner.Study:
    """Rejections at .05 and .01 of right predictions: independent centres with deviation 1, and
    widths that vary by exp(.4 normal) over predictions and coordinates."""
    cells = [  # so that a part of them has all families and all sizes
        {
            "family": family,
            "d": config.d,
            "n": config.sizes[(number + first) % len(config.sizes)],
            "data_sets": config.data_sets,
        }
        for first in range(len(config.sizes))
        for number, family in enumerate(config.families)
    ]

    def measure(cell: Any, key: jax.Array) -> dict[str, int]:
        shape, density = (cell["n"], cell["d"]), claimed(cell["family"])

        def one(key: jax.Array) -> jax.Array:
            keys = jax.random.split(key, 4)
            center = jax.random.normal(keys[0], shape)
            width = jnp.exp(0.4 * jax.random.normal(keys[1], shape))
            ys = center + width * FAMILIES[cell["family"]][1](keys[2], shape)
            return calibration_test(keys[3], Unnormalized(density, (center, width)), ys).p_value

        keys = jax.random.split(key, cell["data_sets"])
        every = jax.jit(
            lambda keys: jax.lax.map(one, keys, batch_size=BATCH),
            compiler_options=runner.FASTER_COMPILATION,
        )
        return runner.rejections(every(keys))

    return runner.Study(cells, runner.REJECTIONS, measure, config.seed)


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER / "dimensions", arguments)


if __name__ == "__main__":
    main()
