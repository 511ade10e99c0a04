"""Which cells does the table of `calibration_test` accuse? One guilty cell, all others innocent."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import run as names
from jax.scipy.stats import beta, norm

from jaxcal import Unnormalized, calibration_test

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
CONCENTRATION = 6.0  # of the bounded claims: Beta densities of these counts in all
# of coordinate 0, in claimed deviations or logs: everywhere, or along the input
FAULTS = {
    "none": (0.0, 0.0, 0.0, 0.0),
    "shift": (0.5, 0.0, 0.0, 0.0),
    "spread": (0.0, 0.0, 0.3, 0.0),
    "shift trend": (0.0, 0.4, 0.0, 0.0),
    "spread trend": (0.0, 0.0, 0.0, 0.3),
}
COLUMNS = 4  # everywhere, centre, scale, input 0; rows: shift of 0, of 1, spread of 0, of 1
GUILTY = {"none": (), "shift": (0, 0), "shift trend": (0, 3), "spread": (2, 0)}
GUILTY |= {"spread trend": (2, 3)}
MEASURED = ("guilty_found", "coordinate_accused", "kind_accused", "column_accused", "limits_hold")


@dataclass(frozen=True)
class Config:
    data_sets: int = 1000
    sizes: tuple[int, ...] = (200,)
    families: tuple[str, ...] = ("gaussian", "skewed", "student", "modes", "bounded")
    unseen: tuple[str, ...] = ("banana",)  # first looked at when all was written
    seed: int = 20261123


QUICK = Config(data_sets=4, sizes=(20,), families=("bounded",), unseen=())


def counts(center: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Both parameters of Beta densities with means that follow the centres."""
    mean = jax.nn.sigmoid(center)
    return CONCENTRATION * mean, CONCENTRATION * (1 - mean)


def log_density(family: str, params: Any, y: jax.Array) -> jax.Array:
    """Up to a constant. Of [2] coordinates, with ``center`` [2] and ``width`` []."""
    center, width = params
    if family == "bounded":
        a, b = counts(center)
        inside = jnp.all((y > 0) & (y < 1))
        z = jnp.clip(y, 1e-6, 1 - 1e-6)
        value = jnp.sum((a - 1) * jnp.log(z) + (b - 1) * jnp.log1p(-z))
        return jnp.where(inside, value, -jnp.inf)
    return names.log_density(family, (y - center) / width)


def targets(key: jax.Array, family: str, centers: jax.Array, widths: jax.Array, error: Any):
    """Targets [n, 2] whose coordinate 0 is off by ``error``: a shift and a log spread, [n] both."""
    shift, spread = error
    n = len(centers)
    if family == "bounded":  # in normal scores of the claimed distribution
        z = jax.random.normal(key, (n, 2))
        z = z.at[:, 0].set(jnp.exp(spread) * z[:, 0] - shift)
        a, b = counts(centers)
        return inverse_beta(norm.cdf(z), a, b)
    deviation = jnp.sqrt(names.covariance(family)[0, 0])
    relative = names.noise(key, family, n)
    relative = relative.at[:, 0].set(jnp.exp(spread) * relative[:, 0] - shift * deviation)
    return centers + widths[:, None] * relative


def inverse_beta(u: jax.Array, a: jax.Array, b: jax.Array) -> jax.Array:
    """Quantiles by halving."""

    def halve(_: int, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        middle = (ends[0] + ends[1]) / 2
        below = beta.cdf(middle, a, b) < u
        return jnp.where(below, middle, ends[0]), jnp.where(below, ends[1], middle)

    low, high = jax.lax.fori_loop(0, 24, halve, (jnp.zeros_like(u), jnp.ones_like(u)))
    return (low + high) / 2


def measured(key: jax.Array, fault: jax.Array, family: str, n: int) -> Any:
    """Effects, limits and adjusted p-values [4, 4] of one data set."""
    keys = jax.random.split(key, 5)
    centers = jax.random.normal(keys[0], (n, 2))
    if family != "bounded":
        centers = 2 * centers
    widths = 3 ** jax.random.uniform(keys[1], (n,), minval=-0.5, maxval=0.5)
    x = jax.random.normal(keys[2], (n,))
    shift, along, spread, growing = fault
    ys = targets(keys[3], family, centers, widths, (shift + along * x, spread + growing * x))
    predictions = Unnormalized(lambda p, y: log_density(family, p, y), (centers, widths))
    table = calibration_test(keys[4], predictions, ys, inputs=x).table
    assert table is not None
    return table.effect, table.low, table.high, table.p_adjusted


@lru_cache(maxsize=2)
def program(one: Callable[..., Any], family: str, n: int) -> Any:
    """What is measured of ``one`` data set, of many keys and one fault."""
    return jax.jit(
        lambda keys, fault: jax.lax.map(
            lambda key: one(key, fault, family, n), keys, batch_size=20
        ),
        compiler_options=runner.FASTER_COMPILATION,
    )


def make(config: Config) -> runner.Study:
    """Counts of data sets in which a cell is accused, at .05 after Holm: the guilty one; any of the
    other coordinate; of the guilty one any of the other kind; of the guilty row any other column.
    "limits_hold": the effect lies within the limits of the guilty cell. Without a fault
    "coordinate_accused" counts any cell."""
    cells = [
        {"family": family, "fault": fault, "n": n}
        for family in (*config.families, *config.unseen)
        for fault in FAULTS
        for n in config.sizes
    ]

    def measure(cell: Any, key: jax.Array) -> dict[str, Any]:
        keys = jax.random.split(key, config.data_sets)
        fault = FAULTS[cell["fault"]]
        _, low, high, p = program(measured, cell["family"], cell["n"])(keys, jnp.asarray(fault))
        accused = p <= 0.05
        if not GUILTY[cell["fault"]]:
            none = dict.fromkeys(MEASURED, 0)
            return {"data_sets": len(keys)} | none | {"coordinate_accused": total(accused)}
        row, column = GUILTY[cell["fault"]]
        size = sum(fault) * (-1 if row == 2 else 1)
        others = [k for k in range(COLUMNS) if k != column]
        within = (low[:, row, column] <= size) & (size <= high[:, row, column])
        return {
            "data_sets": len(keys),
            "guilty_found": total(accused[:, row, column]),
            "coordinate_accused": total(accused[:, 1::2]),
            "kind_accused": total(accused[:, 2 - row]),
            "column_accused": total(accused[:, row, jnp.asarray(others)]),
            "limits_hold": total(within),
        }

    return runner.Study(cells, ("data_sets", *MEASURED), measure, config.seed)


def total(accused: jax.Array) -> int:
    """In how many data sets anything is."""
    return int(jnp.sum(jnp.any(accused.reshape(len(accused), -1), axis=1)))


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER / "table", arguments)


if __name__ == "__main__":
    main()
