"""Are right predictions left as they are, and is no gain certified, where draws or rows depend on
each other, or draws are few?"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import limits
import numpy as np
import numpyro.distributions as dist

from jaxcal import Draws
from jaxcal.repairing.certificate import certificate, cross_fitted, in_data_units
from jaxcal.repairing.move import gaussians, independent, one_more
from jaxcal.repairing.repair import _energy_gained
from jaxcal.results.notes import memory

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
FOLDS, LEVEL, SAID = 5, 0.05, 0.25
NAMES = ("of", "d", "n", "m", "correlation", "fault", "in_order", "data_sets")
MEASURED = ("gain", "truth", "covered", "above_0", "said", "wide")


@dataclass(frozen=True)
class Config:
    rows: tuple[tuple[int, int, int], ...] = ((1, 200, 100),)  # d, n, data sets
    lags: tuple[float, ...] = (0.0, 0.5, 0.8)
    faults: tuple[str, ...] = ("none", "spread")
    # d, n, draws, correlation of successive ones, data sets
    draws: tuple[tuple[int, int, int, float, int], ...] = (
        (1, 500, 100, 0.9, 20),
        (1, 500, 100, 0.0, 20),
        (1, 500, 20, 0.0, 20),
        (1, 500, 10, 0.0, 20),
        (1, 500, 5, 0.0, 20),
        (2, 500, 10, 0.0, 20),
        (2, 500, 20, 0.0, 20),
    )
    seed: int = 20261126


QUICK = Config(rows=((1, 40, 2),), lags=(0.5,), faults=("none",), draws=((1, 40, 8, 0.0, 2),))


def chain(key: jax.Array, lag: Any, shape: tuple[int, ...]) -> jax.Array:
    """Standard normal numbers with correlation ``lag`` along the first axis."""

    def step(z: jax.Array, e: jax.Array) -> tuple[jax.Array, jax.Array]:
        z = lag * z + (1 - lag**2) ** 0.5 * e
        return z, z

    first, others = jax.random.split(key)
    return jax.lax.scan(
        step, jax.random.normal(first, shape[1:]), jax.random.normal(others, shape)
    )[1]


def gained(maps: Any, key: jax.Array, fault: jax.Array, d: int) -> jax.Array:
    """Mean gain of each map on new predictions, in nats, from two moments."""
    center, width = limits.claims(key, limits.NEW, d)
    mean, deviation = limits.moments(center, fault)
    new, nothing = dist.Normal(center, width).to_event(1), jnp.zeros((limits.NEW, 0))
    frame = maps.features.frame(new, limits.NEW, nothing)

    def of(parameters: Any) -> jax.Array:
        move = in_data_units(parameters.moves(frame), maps.features.units)
        inverse = move.inverse * width[:, None] / width[:, :, None]
        gap = jnp.einsum("nij,nj->ni", inverse, mean - move.shift / width)
        square = jnp.sum(gap**2, 1) + jnp.sum((inverse * deviation[:, None]) ** 2, (1, 2))
        before = jnp.sum(mean**2 + deviation**2, 1)
        return jnp.mean(before - square) / 2 - jnp.mean(move.log_size)

    return jax.lax.map(of, maps.parameters)


def summary(maps: Any, limits_of: Any, truth: jax.Array) -> jax.Array:
    gain, low, high, _, gains = limits_of
    wide = jnp.exp(jnp.mean(maps.fitted.parameters.stretch["common"]))
    return jnp.concatenate([jnp.stack([gain, low, high, truth, wide]), gains])


@lru_cache(maxsize=2)
def of_rows(d: int, n: int, in_order: bool) -> Any:
    def measured(key: jax.Array, lag: jax.Array, fault: jax.Array) -> jax.Array:
        keys = jax.random.split(key, 4)
        center, width = limits.claims(keys[0], n, d)
        mean, deviation = limits.moments(center, fault)
        ys = center + width * (mean + deviation * chain(keys[1], lag, (n, d)))
        claimed = dist.Normal(center, width).to_event(1)
        folds = None if in_order else keys[2]
        maps = cross_fitted(folds, claimed, ys, jnp.zeros((n, 0)), FOLDS)
        of_limits = certificate(maps.gains, maps.fold, LEVEL, in_order)
        return summary(maps, of_limits, jnp.mean(gained(maps, keys[3], fault, d)[:-1]))

    return jax.jit(
        lambda keys, lag, fault: jax.lax.map(
            lambda key: measured(key, lag, fault), keys, batch_size=10
        )
    )


def of_draws(keys: jax.Array, d: int, n: int, m: int, lag: float) -> jax.Array:
    none = jnp.asarray(limits.FAULTS["none"])

    @jax.jit
    def fitted(key: jax.Array, draws: Draws, ys: jax.Array) -> jax.Array:
        m, nothing = draws.samples.shape[1], jnp.zeros((n, 0))
        keys = jax.random.split(key)
        maps = cross_fitted(keys[0], gaussians(draws), ys, nothing, FOLDS, one_more(draws), m)
        of_limits = certificate(_energy_gained(draws, maps, ys, nothing), maps.fold, LEVEL)
        return summary(maps, of_limits, gained(maps, keys[1], none, d)[-1])

    rows = []
    for key in keys:
        parts = jax.random.split(key, 4)
        center, width = limits.claims(parts[0], n, d)
        noise = jnp.moveaxis(chain(parts[1], lag, (m, n, d)), 0, 1)
        draws, _ = independent(Draws(center[:, None] + width[:, None] * noise))
        ys = center + width * jax.random.normal(parts[2], (n, d))
        # of other shapes where a chain is thinned by one step more
        rows.append(fitted(parts[3], draws, ys))
    return jnp.stack(rows)


def make(config: Config) -> runner.Study:
    """Means over data sets of the certified ``gain`` (of rows in nats, of draws in energy score),
    of the ``truth`` in nats on new predictions, and of how many times as ``wide`` predictions are
    made; counts of data sets in which limits hold the truth (rows; of draws another unit), lie
    above 0, and in which neighbouring gains are ``said`` to be correlated."""
    rows: list[runner.Cell] = [
        dict(zip(NAMES, ("rows", d, n, 0, lag, fault, in_order, data_sets), strict=True))
        for d, n, data_sets in config.rows
        for fault in config.faults
        for in_order in (False, True)
        for lag in config.lags
    ]
    draws: list[runner.Cell] = [
        dict(zip(NAMES, ("draws", d, n, m, lag, "none", False, data_sets), strict=True))
        for d, n, m, lag, data_sets in config.draws
    ]

    def measure(cell: Any, key: jax.Array) -> dict[str, Any]:
        keys, (d, n, lag) = (
            jax.random.split(key, cell["data_sets"]),
            [cell[name] for name in ("d", "n", "correlation")],
        )
        if cell["of"] == "rows":
            fault = jnp.asarray(limits.FAULTS[cell["fault"]])
            values = np.asarray(of_rows(d, n, cell["in_order"])(keys, jnp.asarray(lag), fault))
        else:
            values = np.asarray(of_draws(keys, d, n, cell["m"], lag))
        gain, low, high, truth, wide = values[:, :5].T
        covered = np.sum((low <= truth) & (truth <= high))
        return {
            "gain": round(float(gain.mean()), 5),
            "truth": round(float(truth.mean()), 5),
            "covered": int(covered) if cell["of"] == "rows" else float("nan"),
            "above_0": int(np.sum(low > 0)),
            "said": int(np.sum(memory(values[:, 5:, None]) > SAID)),
            "wide": round(float(wide.mean()), 4),
        }

    return runner.Study([*rows, *draws], MEASURED, measure, config.seed, paired=("in_order",))


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER / "dependent", arguments)


if __name__ == "__main__":
    main()
