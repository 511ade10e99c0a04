"""How much of the best affine repair do few pairs win back?

The best one has the same parameters, without shrinkage, by maximum likelihood on 100,000 pairs.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import run as repairs
from jax.flatten_util import ravel_pytree
from scipy.optimize import minimize

from jaxcal import Unnormalized
from jaxcal.read import Standardized
from jaxcal.repairing.certificate import in_data_units
from jaxcal.repairing.fit import NOWHERE, Features, Parameters, fit, log_likelihoods

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
CHUNK = 2000  # predictions whose mass is looked for at a time
MEASURED = ("gain", "best", "right", "short", "error")


@dataclass(frozen=True)
class Config:
    many: int = 100_000
    # d, n, data sets, families and faults
    # in more than two dimensions the right density is in place of the best map, which is no better
    sizes: tuple[tuple[int, int, int, tuple[str, ...], tuple[str, ...]], ...] = (
        (2, 500, 100, ("quartic",), repairs.FAULTS),
        (5, 500, 8, ("quartic",), tuple(fault for fault in repairs.FAULTS if fault != "shrinkage")),
        (2, 500, 10, ("skewed",), ("shrinkage",)),
        (2, 500, 10, ("modes",), ("correlation",)),
    )
    seed: int = 20261126


QUICK = Config(many=4000, sizes=((2, 60, 2, ("quartic",), repairs.FAULTS),))


def drawn(key: jax.Array, family: str, fault: jax.Array, d: int, n: int) -> Any:
    params, ys, right = repairs.pairs(key, family, fault, d, n)
    return Unnormalized(repairs.claim(family), params), ys, right


@lru_cache(maxsize=2)
def search(family: str, d: int, many: int) -> Any:
    """Features of many pairs, and the negative mean log likelihood of parameters with its slope."""

    @jax.jit
    def seen(key: jax.Array, fault: jax.Array) -> Any:
        predictions, ys, _ = drawn(key, family, fault, d, many)
        first = jax.tree.map(lambda leaf: leaf[: 2 * CHUNK], (predictions.params, ys))
        nothing = jnp.zeros((many, 0))
        density = repairs.claim(family)
        features, _ = Features.of(Unnormalized(density, first[0]), first[1], nothing[: 2 * CHUNK])

        def framed(chunk: Any) -> Any:
            return features.frame(Unnormalized(density, chunk), CHUNK, nothing[:CHUNK])

        apart = jax.tree.map(lambda leaf: leaf.reshape(-1, CHUNK, d), predictions.params)
        frame = jax.tree.map(
            lambda leaf: leaf.reshape(many, *leaf.shape[2:]), jax.lax.map(framed, apart)
        )
        return features, frame, predictions.params, ys

    @jax.jit
    def loss(parameters: Parameters, features: Features, frame: Any, params: Any, ys: Any) -> Any:
        predictions = Unnormalized(repairs.claim(family), params)
        standardized = Standardized(predictions, features.units, ys.shape[1:])
        ts = features.units.points(ys)
        logs = log_likelihoods(parameters, frame, standardized, ts)
        return -jnp.mean(jnp.where(logs > NOWHERE, logs, NOWHERE))

    return seen, jax.jit(jax.value_and_grad(loss))


def best(key: jax.Array, family: str, fault: jax.Array, d: int, many: int) -> Any:
    """The most likely map of many pairs, with its features."""
    seen, loss = search(family, d, many)
    features, frame, params, ys = seen(key, fault)
    flat, unravel = ravel_pytree(Parameters.zeros(frame))

    def asked(theta: np.ndarray) -> tuple[float, np.ndarray]:
        theta = unravel(jnp.asarray(theta, flat.dtype))
        value, slope = loss(theta, features, frame, params, ys)
        return float(value), np.asarray(ravel_pytree(slope)[0], float)

    options = {"maxiter": 200, "ftol": 1e-8, "gtol": 1e-5}
    outcome = minimize(asked, np.zeros(flat.size), jac=True, method="L-BFGS-B", options=options)
    return unravel(jnp.asarray(outcome.x, flat.dtype)), features


@lru_cache(maxsize=2)
def program(family: str, d: int, n: int) -> Any:
    """Mean gains on new pairs of the map of n pairs, of the best one and of the right density."""
    density = repairs.claim(family)

    def gain(of: tuple[Parameters, Features], params: Any, ys: jax.Array) -> jax.Array:
        parameters, features = of
        frame = features.frame(Unnormalized(density, params), len(ys), jnp.zeros((len(ys), 0)))
        move = in_data_units(parameters.moves(frame), features.units)
        after = jax.vmap(density)(params, move.back(ys)) - move.log_size
        return jnp.mean(after - jax.vmap(density)(params, ys))

    def measured(key: jax.Array, fault: jax.Array, most: Any) -> jax.Array:
        keys = jax.random.split(key)
        predictions, ys, _ = drawn(keys[0], family, fault, d, n)
        features, frame = Features.of(predictions, ys, jnp.zeros((n, 0)))
        standardized = Standardized(predictions, features.units, ys.shape[1:])
        ts = features.units.points(ys)
        fitted = fit(frame, standardized, ts, jnp.ones(n, bool)).parameters
        new, targets, right = drawn(keys[1], family, fault, d, repairs.FRESH)
        of_best = jnp.mean(right) if most is None else gain(most, new.params, targets)
        return jnp.stack([gain((fitted, features), new.params, targets), of_best, jnp.mean(right)])

    return jax.jit(
        lambda keys, fault, most: jax.lax.map(lambda key: measured(key, fault, most), keys),
        compiler_options=runner.FASTER_COMPILATION,
    )


def make(config: Config) -> runner.Study:
    """Means over data sets, in nats an observation, on the same ``FRESH`` new pairs: ``gain`` of
    the map of n pairs, of the ``best`` map and of the ``right`` density; by how much the first
    falls ``short`` of the second, with the standard ``error`` of that."""
    cells = [
        {"family": family, "fault": fault, "d": d, "n": n, "data_sets": data_sets}
        for d, n, data_sets, families, faults in config.sizes
        for family in families
        for fault in faults
    ]

    def measure(cell: Any, key: jax.Array) -> dict[str, float]:
        family, d = cell["family"], cell["d"]
        keys = jax.random.split(key, cell["data_sets"] + 1)
        fault = jnp.asarray([cell["fault"] == name for name in repairs.FAULTS], jnp.float32)
        most = best(keys[0], family, fault, d, config.many) if d <= 2 else None
        gain, of_best, right = np.asarray(program(family, d, cell["n"])(keys[1:], fault, most)).T
        short = of_best - gain
        error = short.std() / (len(short) - 1) ** 0.5
        values = (gain.mean(), of_best.mean(), right.mean(), short.mean(), error)
        return {name: round(float(value), 5) for name, value in zip(MEASURED, values, strict=True)}

    return runner.Study(cells, MEASURED, measure, config.seed)


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER / "best", arguments)


if __name__ == "__main__":
    main()
