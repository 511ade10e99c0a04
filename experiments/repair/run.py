"""What does a repair win back, is its certificate right, and do right predictions come back?"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxcal import Unnormalized, calibration_test
from jaxcal.repairing.certificate import certificate, cross_fitted, in_data_units
from jaxcal.repairing.move import move_all

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
FRESH, FOLDS, LEVEL = 4000, 5, 0.05
FAULTS = ("none", "shift", "spread", "shrinkage", "spread trend", "correlation")
FAMILIES = ("quartic", "student", "modes", "skewed")
Size = tuple[int, int, int, tuple[str, ...], tuple[str, ...]]
MEASURED = ("gain", "error", "fresh", "best", "covered", "above_0", "rejected_before")
MEASURED += ("rejected_after",)


@dataclass(frozen=True)
class Config:
    # d, n, data sets, families and faults; skewed first looked at when all was written
    sizes: tuple[Size, ...] = (
        (2, 100, 50, FAMILIES, FAULTS),
        (2, 500, 50, FAMILIES, FAULTS),
        (1, 500, 50, FAMILIES, FAULTS[:-1]),
        (1, 100, 50, FAMILIES, FAULTS[:-1]),
        (2, 2000, 20, ("skewed", "quartic"), FAULTS),
        (10, 500, 8, ("student", "quartic"), ("none", "shift", "spread", "correlation")),
        (10, 2000, 4, ("student",), ("none", "shift", "spread trend")),
    )
    seed: int = 20261124


QUICK = Config(sizes=((2, 40, 2, ("quartic",), FAULTS),))


def log_density(family: str, z: jax.Array) -> jax.Array:
    """Of noise [d], up to a constant."""
    if family == "quartic":
        return -jnp.sum(z**4)
    if family == "student":
        return -3 * jnp.sum(jnp.log1p(z**2 / 5))
    if family == "modes":
        far = jnp.where(jnp.arange(len(z)) == 0, 2.0, 0.0)
        return jnp.logaddexp(-jnp.sum((z - far) ** 2) / 2, -jnp.sum((z + far) ** 2) / 2)
    return jnp.sum(2 * z - jnp.exp(z))  # logarithms of Gamma(2)


def noise(key: jax.Array, family: str, shape: tuple[int, int]) -> jax.Array:
    first, second = jax.random.split(key)
    if family == "quartic":
        size = jax.random.gamma(first, 0.25, shape) ** 0.25
        return size * jax.random.rademacher(second, shape, size.dtype)
    if family == "student":
        return jax.random.t(first, 5.0, shape)
    if family == "modes":
        side = jax.random.rademacher(second, (shape[0],), jnp.float32)
        return jax.random.normal(first, shape).at[:, 0].add(2 * side)
    return jnp.log(jax.random.gamma(first, 2.0, shape))


def claim(family: str) -> Any:
    def density(params: Any, y: jax.Array) -> jax.Array:
        center, width = params
        return log_density(family, (y - center) / width)

    return density


def pairs(key: jax.Array, family: str, fault: jax.Array, d: int, n: int) -> Any:
    """Parameters of claims, targets [n, d], and what the right densities are, over the claimed,
    at the targets: log ratios [n]. ``fault`` is one of `FAULTS`, as numbers that are 0 or 1."""
    keys = jax.random.split(key, 3)
    center = 2 * jax.random.normal(keys[0], (n, d))
    width = jnp.exp(0.4 * jax.random.normal(keys[1], (n, d)))
    z = noise(keys[2], family, (n, d))
    _, shift, spread, shrinkage, trend, correlation = fault
    off = correlation * 0.35 / max(d - 1, 1)
    mix = jnp.eye(d) + off * (1 - jnp.eye(d))
    log_wide = 0.25 * spread + 0.25 * trend * jnp.clip(center[:, :1] / 2, -3, 3)
    wide = jnp.exp(log_wide) * jnp.ones((1, d))
    moved = 0.3 * shift * width + 0.15 * shrinkage * center
    ys = center + moved + wide * width * (z @ mix)
    claimed = jax.vmap(lambda e: log_density(family, e))((ys - center) / width)
    right = jax.vmap(lambda e: log_density(family, e))(z)
    size = d * log_wide[:, 0] + jnp.linalg.slogdet(mix)[1]
    return (center, width), ys, right - size - claimed


def after(number: jax.Array, tree: Any) -> Any:
    """The same arrays, once a number is known: calls of LAPACK side by side can wait for each other
    for ever (`tests/laws/test_lapack.py`)."""
    return jax.tree.map(lambda leaf: jnp.where(number > 1e30, jnp.nan, leaf), tree)


@lru_cache(maxsize=2)
def program(family: str, d: int, n: int) -> Any:
    density = claim(family)

    def measured(key: jax.Array, fault: jax.Array) -> Any:
        keys = jax.random.split(key, 4)
        params, ys, _ = pairs(keys[0], family, fault, d, n)
        predictions = Unnormalized(density, params)
        nothing = jnp.zeros((n, 0))
        maps = cross_fitted(keys[1], predictions, ys, nothing, FOLDS)
        mean, low, high, *_ = certificate(maps.gains, maps.fold, LEVEL)
        moved = move_all(predictions, maps.moves)
        moved, predictions, ys = after(mean, (moved, predictions, ys))
        first = calibration_test(keys[2], predictions, ys).p_value
        moved, ys = after(first, (moved, ys))
        second = calibration_test(keys[2], moved, ys).p_value
        new, targets, best = after(second, pairs(keys[3], family, fault, d, FRESH))
        frame = maps.features.frame(Unnormalized(density, new), FRESH, jnp.zeros((FRESH, 0)))

        def gained(parameters: Any) -> jax.Array:
            move = in_data_units(parameters.moves(frame), maps.features.units)
            back = jax.vmap(density)(new, move.back(targets)) - move.log_size
            return jnp.mean(back - jax.vmap(density)(new, targets))

        fresh = jax.lax.map(gained, maps.parameters)
        return jnp.stack(
            [mean, low, high, first, second, jnp.mean(fresh[:-1]), fresh[-1], jnp.mean(best)]
        )

    return jax.jit(
        lambda keys, fault: jax.lax.map(lambda key: measured(key, fault), keys),
        compiler_options=runner.FASTER_COMPILATION,
    )


def make(config: Config) -> runner.Study:
    """Means over data sets: of the certified ``gain``, with its ``error`` (standard, of the mean),
    of the gain of the map of all pairs on ``FRESH`` new ones, ``fresh``, and of the ``best``
    possible. Counts of data sets: limits hold the gain of the folds' maps on new pairs
    (``covered``), they lie above 0 (``above_0``), the test rejects before and after."""
    cells = [
        {"family": family, "fault": fault, "d": d, "n": n}
        for d, n, _, families, faults in config.sizes
        for family in families
        for fault in faults
    ]
    data_sets = {size[:2]: size[2] for size in config.sizes}

    def measure(cell: Any, key: jax.Array) -> dict[str, Any]:
        keys = jax.random.split(key, data_sets[cell["d"], cell["n"]])
        fault = jnp.asarray([cell["fault"] == name for name in FAULTS], jnp.float32)
        values = np.asarray(program(cell["family"], cell["d"], cell["n"])(keys, fault))
        gain, low, high, before, after, folds, fresh, best = values.T
        return {
            "data_sets": len(values),
            "gain": round(float(gain.mean()), 5),
            "error": round(float(gain.std() / len(gain) ** 0.5), 5),
            "fresh": round(float(fresh.mean()), 5),
            "best": round(float(best.mean()), 5),
            "covered": int(np.sum((low <= folds) & (folds <= high))),
            "above_0": int(np.sum(low > 0)),
            "rejected_before": int(np.sum(before <= LEVEL)),
            "rejected_after": int(np.sum(after <= LEVEL)),
        }

    return runner.Study(cells, ("data_sets", *MEASURED), measure, config.seed)


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
