"""Level, power and time of tests of posteriors, on identical pairs: known faults, trained nets."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxcal
from jaxcal import mcmc
from jaxcal.nulls import Wild
from jaxcal.read import Scores
from jaxcal.read.scores import scores_at
from jaxcal.skce import skce_test

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
import runner
import sbi_methods as known
import sbi_problems as problems

FOLDER = Path(__file__).parent
M = 99  # posterior draws of each pair, for the methods that need draws
LOCAL_X = jnp.asarray([1.5, 0.5])  # where LC2ST asks; one of the x that are wrong for some x


@dataclass(frozen=True)
class Config:
    n: int = 200
    data_sets: int = 200
    data_sets_slow: int = 20
    faults: tuple[str, ...] = tuple(problems.FAULTS)
    methods: tuple[str, ...] = (
        *known.OURS,
        "SKCE MCMC",
        *known.RANKS,
        *known.OF_SBI,
    )
    slow: tuple[str, ...] = ("SKCE MCMC", "LC2ST")  # trained networks take them for 8 data sets
    # (task, algorithm, simulations, data sets of n pairs)
    trained: tuple[tuple[str, str, int, int], ...] = (
        ("two moons", "NPE", 500, 40),
        ("two moons", "NPE", 2000, 20),
        ("two moons", "NLE", 500, 20),
        ("two moons", "NLE", 2000, 20),
    )
    trained_methods: tuple[str, ...] = (*known.OURS, *known.RANKS, *known.OF_SBI)
    seed: int = 20230721


def quick() -> Config:
    """A smoke size; sbi's methods and trained networks only where sbi is installed."""
    names = ("KCCSD", "SKCE", *known.RANKS)
    if known.sbi_is_here():
        names += ("SBC KS", "TARP")
    else:
        print("sbi is not installed: its methods and the trained posteriors are left out")
    return Config(n=60, data_sets=4, faults=("shifted",), methods=names, trained=())


def make(config: Config) -> runner.Study:
    """Rejections at 5 % and seconds a data set, on the clock and of the processors."""

    def of_faults(names, faults, sets):
        return [
            {"posterior": fault, "method": name, "data_sets": sets}
            for name in names
            for fault in faults
        ]

    cells = of_faults(
        [m for m in config.methods if m not in config.slow], config.faults, config.data_sets
    )
    cells += [
        {
            "posterior": f"{task} {how} {budget}",
            "method": name,
            "data_sets": min(sets, 8) if name in config.slow else sets,
        }
        for task, how, budget, sets in config.trained
        for name in config.trained_methods
    ]
    cells += of_faults(
        [m for m in config.methods if m in config.slow], config.faults, config.data_sets_slow
    )

    def measure(cell, key):
        if cell["method"] in known.OF_SBI and not known.sbi_is_here():
            raise known.not_here(cell["method"])
        if cell["posterior"] in problems.FAULTS:
            p, times = known_fault(cell, key, config.n)
        else:
            from sbi_trained import measure_trained

            p, times = measure_trained(cell, key, config)
        p = np.asarray(p)
        return {
            "rejected_05": int(np.sum(p <= 0.05)),
            "not_a_number": int(np.sum(np.isnan(p))),
            "seconds": times.wall,
            "cpu_seconds": times.cpu,
        }

    return runner.Study(
        cells,
        ("rejected_05", "not_a_number", "seconds", "cpu_seconds"),
        measure,
        config.seed,
        paired=("method", "data_sets"),
    )


def known_fault(cell, key, n: int):
    """p-values [k], and the times of one data set, without compilation."""
    name, fault = cell["method"], jnp.asarray(list(problems.FAULTS).index(cell["posterior"]))
    keys = jax.vmap(lambda i: jax.random.fold_in(key, i))(jnp.arange(cell["data_sets"]))
    if name in (*known.OURS, "SKCE MCMC"):
        test = compiled(name, n)
        jax.block_until_ready(test(jax.random.key(0), fault))
        clock = known.Clock()
        p = np.stack([test(k, fault) for k in keys])
        return p, clock.read(len(keys))
    with_draws = sampled(n)
    by_draws(name, *with_draws(keys[0], fault), keys[0])  # compiles, and imports torch
    clock = known.Clock()
    p = [by_draws(name, *with_draws(k, fault), k) for k in keys]
    return p, clock.read(len(keys))


@lru_cache
def compiled(name: str, n: int):
    """One program a method, for every fault."""
    return jax.jit(
        lambda key, fault: one(name, fault, n, key), compiler_options=runner.FASTER_COMPILATION
    )


@lru_cache
def sampled(n: int):
    return jax.jit(lambda key, fault: drawn(fault, n, key))


def one(name: str, fault, n: int, key):
    """One p-value of ours, from data to verdict."""
    data = problems.data_set(key, fault, n)
    posterior = problems.unnormalized(data.posterior)
    if name == "SKCE":
        draws = problems.draw(data.key, data.posterior, 40)
        return skce_test(data.key, jaxcal.Draws(draws), data.thetas, null=Wild(300)).p_value
    if name == "SKCE MCMC":
        chain_draws = mcmc.mcmc_draws(
            data.key,
            posterior,
            sampler=mcmc.NUTS(depth=6, target=0.8),
            n_samples=20,
            n_warmup=100,
            thin=2,
            event_shape=2,
        )
        draws = jaxcal.Draws(chain_draws.samples)
        return skce_test(data.key, draws, data.thetas, null=Wild(300)).p_value
    scores = Scores(*scores_at(posterior, data.thetas, data.nodes), data.nodes)
    return known.stein(name, data.key, data.thetas, scores, data.xs)


def drawn(fault, n: int, key):
    """Pairs, draws, and log densities of both, for the methods from draws."""
    data = problems.data_set(key, fault, n)
    draws = problems.draw(data.key, data.posterior, M)
    local = problems.numbered(fault, LOCAL_X[None])
    at = problems.draw(jax.random.fold_in(data.key, 1), local, 200)[0]
    values = jax.vmap(problems.log_density)(data.posterior, data.thetas)
    others = jax.vmap(jax.vmap(problems.log_density, (None, 0)))(data.posterior, draws)
    return data.thetas, data.xs, draws, values, others, at


def by_draws(name: str, thetas, xs, draws, values, others, at, key) -> float:
    thetas, xs, draws = np.asarray(thetas), np.asarray(xs), np.asarray(draws)
    ranks = known.Ranks(thetas, draws, np.asarray(values), np.asarray(others))
    return known.from_draws(name, known.key_seed(key), xs, ranks, (LOCAL_X, at))


def main(arguments: Sequence[str] | None = None) -> Path:
    argv = sys.argv[1:] if arguments is None else arguments
    smoke = quick() if "--quick" in argv else Config()
    return runner.command_line(make, Config(), smoke, FOLDER, arguments)


if __name__ == "__main__":
    main()
