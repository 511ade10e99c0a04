"""Power and level of the check beside sbi's diagnostics, with draws of each posterior paid once.

A pool of pairs is cut into blocks, one test each. Draws of the posteriors are not those of sbi's
MCMC but better ones, which no MCMC of the same posterior can exceed: for two parameters on a grid,
weighted once more by the posterior itself; for more, by long chains from a weighted start. Each
block is tested twice: with the parameters that the observations were simulated from (power), and
with one draw more of the posterior at their place, for which that posterior is right (level).
"""

import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import run
import runner
import sbi_methods
from reference import problems as simulators
from reference.problems import VARIANCE, box

from jaxcal.sbi import check_posterior

FOLDER = Path(__file__).parent
METHODS = ("check", "SBC", "coverage", "TARP", "TARP ranks", "LC2ST")
FROM_DRAWS = {
    "SBC": "SBC KS",
    "coverage": "coverage KS",
    "TARP": "TARP",
    "TARP ranks": "TARP ranks",
    "LC2ST": "LC2ST",
}
COUNTED = [("power", name) for name in METHODS] + [("level", name) for name in METHODS[:-1]]
TRAINED = (
    ("two moons", "NLE", 500),
    ("bent", "NRE", 500),
    ("two moons", "NRE", 2000),
    ("bent", "NLE", 500),
    ("two moons", "NRE", 500),
    ("Gaussian 10", "NRE", 500),
)
# of N(x / 2, 1 / 20) in ten parameters: the claimed shift and spread, in its deviations
FAULTS = {
    "right": (0.0, 1.0),
    "too wide by .1": (0.0, 1.1),
    "too narrow by .1": (0.0, 0.9),
    "shifted by .2": (0.2, 1.0),
}


@dataclass(frozen=True)
class Config:
    trained: tuple[tuple[str, str, int], ...] = TRAINED
    faults: tuple[str, ...] = tuple(FAULTS)
    blocks: int = 20
    fault_blocks: int = 40
    n: int = 50  # pairs of a block
    m: int = 99  # draws of each posterior
    local: int = 10  # blocks whose power LC2ST is asked for: it trains 20 classifiers for each
    side: int = 100  # of the grid
    steps: int = 300  # of a chain
    epochs: int = 200
    seed: int = 20261124


QUICK = Config(
    trained=(("two moons", "NRE", 60),), faults=("too wide by .1",), blocks=1, fault_blocks=1, n=12,
    m=9, local=0, side=12, steps=2, epochs=2,
)  # fmt: skip


class Pool(NamedTuple):
    """Pairs, draws of each posterior [p, m + 1, d], and log densities of the parameters [p] and of
    the draws [p, m + 1], up to a constant a row."""

    thetas: np.ndarray
    xs: np.ndarray
    draws: np.ndarray
    at_thetas: np.ndarray
    at_draws: np.ndarray


def bent() -> simulators.Simulator:
    """A simulator of our own: x hardly tells the sign of the first parameter, and bends."""

    def mean(theta: jax.Array) -> jax.Array:
        return jnp.stack([jnp.abs(theta[0] + 0.2), theta[1] + 0.5 * theta[0] ** 2])

    def draw(key: jax.Array, theta: jax.Array) -> jax.Array:
        return mean(theta) + 0.3 * jax.random.normal(key, (2,))

    def log_likelihood(theta: jax.Array, x: jax.Array) -> jax.Array:
        return -jnp.sum((x - mean(theta)) ** 2) / (2 * 0.3**2)

    prior = box(-2.0, 2.0, 2)
    return simulators.Simulator("bent", prior, draw, log_likelihood, ("theta_1", "theta_2"))


run.TASKS["bent"] = bent


def at(posterior: Any, thetas: np.ndarray, xs: np.ndarray) -> np.ndarray:
    """Log densities [p, k], up to a constant a row, of parameters [p, k, d]."""
    import torch

    p, k, d = thetas.shape
    potential = posterior.potential_fn
    potential.set_x(torch.as_tensor(np.repeat(xs, k, axis=0)), x_is_iid=False)
    with torch.no_grad():
        logs = potential(torch.as_tensor(thetas.reshape(p * k, d).astype(np.float32)))
    return logs.reshape(p, k).double().numpy()


def chosen(logs: np.ndarray, k: int, rng: np.random.Generator) -> np.ndarray:
    """Places [p, k] drawn with weights exp(logs), systematically, in random order."""
    weights = np.exp(logs - np.max(logs, axis=1, keepdims=True))
    sums = np.cumsum(weights, axis=1) / np.sum(weights, axis=1, keepdims=True)
    levels = (np.arange(k) + rng.random((len(logs), 1))) / k
    places = [np.searchsorted(row[:-1], level) for row, level in zip(sums, levels, strict=True)]
    return rng.permuted(np.stack(places), axis=1)


def on_grid(
    posterior: Any, xs: np.ndarray, low: np.ndarray, high: np.ndarray, config: Config, rng: Any
) -> np.ndarray:
    """Draws [p, m + 1, 2] of posteriors within a box: cells of a grid, a point within each, and
    these drawn once more by the ratio of the density there to that of the cell."""
    edge = (np.arange(config.side) + 0.5) / config.side
    cells = np.stack(np.meshgrid(edge, edge, indexing="ij"), axis=-1).reshape(-1, 2)
    centers = low + (high - low) * cells
    logs = at(posterior, np.broadcast_to(centers, (len(xs), *centers.shape)), xs)
    places = chosen(logs, 20 * (config.m + 1), rng)
    inside = (rng.random((*places.shape, 2)) - 0.5) * (high - low) / config.side
    points = centers[places] + inside
    ratios = at(posterior, points, xs) - np.take_along_axis(logs, places, axis=1)
    final = chosen(ratios, config.m + 1, rng)
    return np.take_along_axis(points, final[:, :, None], axis=1)


def by_chains(posterior: Any, xs: np.ndarray, config: Config, rng: Any) -> np.ndarray:
    """Draws [p, m + 1, d] of posteriors near N(x / 2, 1 / 20): of as many chains, each from a draw
    of a wide normal by its weight, Metropolis with steps that suit the normal."""
    d, deviation = xs.shape[1], (VARIANCE / 2) ** 0.5
    z = 1.3 * rng.standard_normal((len(xs), 20 * (config.m + 1), d))
    points = xs[:, None] / 2 + deviation * z
    weights = at(posterior, points, xs) + np.sum((z / 1.3) ** 2, axis=2) / 2
    first = chosen(weights, config.m + 1, rng)
    places = np.take_along_axis(points, first[:, :, None], axis=1)
    logs = at(posterior, places, xs)
    for _ in range(config.steps):
        moved = places + 2.4 / d**0.5 * deviation * rng.standard_normal(places.shape)
        there = at(posterior, moved, xs)
        accepted = np.log(rng.random(logs.shape)) < there - logs
        places = np.where(accepted[:, :, None], moved, places)
        logs = np.where(accepted, there, logs)
    return places


def pool_of(simulator: Any, posterior: Any, key: jax.Array, config: Config) -> Pool:
    """All pairs, a few at a time."""
    p = config.blocks * config.n
    thetas, xs = (np.array(part, np.float32) for part in simulator.pairs(key, p))
    rng = np.random.default_rng(sbi_methods.key_seed(key))
    bounds = getattr(simulator.prior, "base_dist", None)
    draws = []
    for start in range(0, p, 10):
        few = xs[start : start + 10]
        if hasattr(bounds, "low"):
            assert bounds is not None
            low, high = np.asarray(bounds.low), np.asarray(bounds.high)
            draws.append(on_grid(posterior, few, low, high, config, rng))
        else:
            draws.append(by_chains(posterior, few, config, rng))
    everything = np.concatenate(draws).astype(np.float32)
    at_theta = at(posterior, thetas[:, None], xs)[:, 0]
    return Pool(thetas, xs, everything, at_theta, at(posterior, everything, xs))


def p_values(
    key: jax.Array, check: Callable[..., Any], block: Pool, thetas: Any, at_theta: Any, lc2st: bool
) -> dict[str, float]:
    """Of every method for these parameters [n, d], beside the block's draws but the last; and the
    check's processor seconds."""
    draws, others = block.draws[:, :-1], block.at_draws[:, :-1]
    ranks, seed = sbi_methods.Ranks(thetas, draws, at_theta, others), sbi_methods.key_seed(key)
    start = time.process_time()
    p = {"check": float(check(key, jnp.asarray(thetas), jnp.asarray(block.xs)).p_value)}
    p["cpu_check"] = time.process_time() - start
    for name, method in FROM_DRAWS.items():
        if name != "LC2ST":
            p[name] = sbi_methods.from_draws(method, seed, block.xs, ranks)
    if lc2st:
        rest = sbi_methods.Ranks(*(part[:-1] for part in ranks))
        local = block.xs[-1], draws[-1]
        p["LC2ST"] = sbi_methods.from_draws("LC2ST", seed, block.xs[:-1], rest, local)
    return p


def counts(
    key: jax.Array, check: Callable[..., Any], pool: Pool, blocks: int, local: int
) -> dict[str, Any]:
    """How often each method rejects at .05, and processor seconds of a check once compiled."""
    of = dict.fromkeys(COUNTED, 0)
    seconds, size = [], len(pool.xs) // blocks
    for b in range(blocks):
        block = Pool(*(part[b * size : (b + 1) * size] for part in pool))
        parameters = {
            "power": (block.thetas, block.at_thetas),
            "level": (block.draws[:, -1], block.at_draws[:, -1]),
        }
        for k, (word, (thetas, at_theta)) in enumerate(parameters.items()):
            test_key = jax.random.fold_in(jax.random.fold_in(key, b), k)
            asked = word == "power" and b < local
            p = p_values(test_key, check, block, thetas, at_theta, asked)
            seconds.append(p.pop("cpu_check"))
            for name, value in p.items():
                of[word, name] += value <= 0.05
    return {f"{word}_{name.replace(' ', '_')}": count for (word, name), count in of.items()} | {
        "blocks": blocks,
        "blocks_lc2st": min(blocks, local),
        "cpu_check": np.median(seconds) / size,
    }


def faulty_pool(fault: str, key: jax.Array, config: Config) -> tuple[Callable[..., Any], Pool]:
    """The check of a posterior in closed form, and exact draws of it."""
    shift, spread = FAULTS[fault]
    deviation = (VARIANCE / 2) ** 0.5
    simulator = simulators.gaussian_linear(10)

    def log_prob(theta: jax.Array, x: jax.Array) -> jax.Array:
        return -jnp.sum(((theta - x / 2) / deviation - shift) ** 2) / (2 * spread**2)

    pair_key, draw_key = jax.random.split(key)
    thetas, xs = simulator.pairs(pair_key, config.fault_blocks * config.n)
    z = jax.random.normal(draw_key, (len(xs), config.m + 1, 10))
    draws = xs[:, None] / 2 + deviation * (shift + spread * z)
    at_theta, others = (
        np.asarray(jax.vmap(at)(points, xs))
        for at, points in ((log_prob, thetas), (jax.vmap(log_prob, in_axes=(0, None)), draws))
    )
    pool = Pool(np.array(thetas), np.array(xs), np.array(draws), at_theta, others)

    def check(key: jax.Array, thetas: Any, xs: Any) -> Any:
        return check_posterior(key, log_prob, thetas, xs, prior=simulator.prior)

    return check, pool


def trained_pool(cell: Any, key: jax.Array, config: Config) -> tuple[Callable[..., Any], Pool, Any]:
    """The check of a posterior of sbi, its draws, and the processor seconds that these took."""
    train_key, pool_key = jax.random.split(key)
    training = run.Config(epochs=config.epochs)
    simulator, _, posterior = run.trained(
        cell["task"], cell["posterior"], cell["simulations"], train_key, training
    )
    start = time.process_time()
    pool = pool_of(simulator, posterior, pool_key, config)
    seconds = time.process_time() - start

    def check(key: jax.Array, thetas: Any, xs: Any) -> Any:
        import torch

        theta, x = (torch.as_tensor(np.array(part)) for part in (thetas, xs))
        return check_posterior(key, posterior, theta, x)

    return check, pool, seconds


def make(config: Config) -> runner.Study:
    """Rejections at .05 of each method, with true parameters and with draws of the posterior."""
    cells: list[dict[str, Any]] = [
        {"task": task, "posterior": algorithm, "simulations": budget}
        for task, algorithm, budget in config.trained
    ]
    cells += [
        {"task": "Gaussian 10", "posterior": fault, "simulations": 0} for fault in config.faults
    ]
    rejections = [f"{word}_{name.replace(' ', '_')}" for word, name in COUNTED]

    def measure(cell: Any, key: jax.Array) -> dict[str, Any]:
        pool_key, test_key = jax.random.split(key)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if cell["simulations"] == 0:
                check, pool = faulty_pool(cell["posterior"], pool_key, config)
                blocks, local, seconds = config.fault_blocks, 0, 0.0
            else:
                check, pool, seconds = trained_pool(cell, pool_key, config)
                blocks, local = config.blocks, config.local
            of = counts(test_key, check, pool, blocks, local)
        return of | {"cpu_draws": seconds / len(pool.xs)}

    measured = ("blocks", "blocks_lc2st", *rejections, "cpu_check", "cpu_draws")
    return runner.Study(cells, measured, measure, config.seed)


def main(arguments: Sequence[str] | None = None) -> Path:
    chosen_size = sys.argv[1:] if arguments is None else arguments
    quick = "--quick" in chosen_size
    if not sbi_methods.sbi_is_here():
        raise sbi_methods.not_here("every cell of this study")
    path = FOLDER / ("quick/power.csv" if quick else "power.csv")
    runner.run(make(QUICK if quick else Config()), path)
    return path


if __name__ == "__main__":
    main()
