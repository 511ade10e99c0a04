"""Comparing a distribution, a density up to its constant and draws: do the intervals cover?"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.stats import norm

import jaxcal
from jaxcal.ckce.probability import LEVELS
from jaxcal.streaming import StreamedTest

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent / "kinds"
DEVIATION, N_SAMPLES = 0.6, 100
# shift and spread, in true deviations, of the distribution, the density and the draws
DESIGNS = {
    "calibrated": ((0.0, 1.0), (0.0, 1.0), (0.0, 1.0)),
    "too sure": ((0.0, 0.5), (0.0, 0.5), (0.0, 0.5)),
    "biased": ((0.5, 1.0), (0.5, 1.0), (0.5, 1.0)),
    "not sure enough": ((0.0, 2.0), (0.0, 2.0), (0.0, 2.0)),
    "one better": ((0.5, 1.0), (0.0, 1.0), (0.0, 0.5)),
}
MEASURED = ("accused", "best_kept", "covered_0", "covered_1", "covered_2", "differences_covered")


@dataclass(frozen=True)
class Config:
    sizes: tuple[int, ...] = (50, 200)
    large: int = 2000  # in memory, and in one pass
    designs: tuple[str, ...] = tuple(DESIGNS)
    data_sets: int = 200
    n_draws: int = 199
    seed: int = 20261125


QUICK = Config(sizes=(20,), large=1024, designs=("calibrated",), data_sets=2, n_draws=19)


def log_density(parameters, y):
    center, deviation = parameters
    return -((y - center) ** 2) / (2 * deviation**2)


def squared_error(shift, spread):
    """The mean square error of the probabilities of events, by the closed form of normals."""
    levels = jnp.asarray(LEVELS)
    true = norm.cdf(shift + spread * norm.ppf(levels))
    return jnp.mean((true - levels) ** 2)


def data_set(key, design, n):
    """The key of a comparison, a distribution, a density and draws of n numbers, and targets."""
    keys = jax.random.split(key, 4)
    mean = jax.random.normal(keys[0], (n,))
    targets = mean + DEVIATION * jax.random.normal(keys[1], (n,))
    centers = [mean + shift * DEVIATION for shift, _ in design]
    deviations = [jnp.full(n, spread * DEVIATION) for _, spread in design]
    noise = jax.random.normal(keys[2], (n, N_SAMPLES))
    return (
        keys[3],
        centers,
        deviations,
        centers[2][:, None] + deviations[2][:, None] * noise,
        targets,
    )


def models_of(centers, deviations, samples):
    return {
        "distribution": dist.Normal(centers[0], deviations[0]),
        "density": jaxcal.Unnormalized(log_density, (centers[1], deviations[1])),
        "draws": jaxcal.Draws(samples),
    }


def in_memory(key, centers, deviations, samples, targets, *, n_draws):
    return jaxcal.compare(key, models_of(centers, deviations, samples), targets, n_draws=n_draws)


def in_one_pass(key, centers, deviations, samples, targets, *, n_draws):
    """In batches of a quarter of the observations."""
    size = len(targets) // 4

    def batch(start):
        rows = slice(start, start + size)
        parts = ([part[rows] for part in parts] for parts in (centers, deviations))
        return models_of(*parts, samples[rows]), targets[rows]

    test = StreamedTest.comparison(key, *batch(0), n_draws=n_draws)
    return test.result(test.run(batch(start) for start in range(0, len(targets), size)))


def rates(result, truth):
    """What is measured, of one comparison."""
    gaps, d = truth[:, None] - truth[None], result.differences
    wrongly = (d.p_adjusted <= 0.05) & (d.estimate > 0) & ~(gaps > 1e-9)
    covers = (result.low <= truth) & (truth <= result.high)
    between = ((d.low <= gaps) & (gaps <= d.high)) | jnp.eye(3, dtype=bool)
    best = result.may_be_best | (truth > jnp.min(truth) + 1e-9)
    return jnp.any(wrongly), jnp.all(best), *covers, jnp.all(between)


def make(config: Config) -> runner.Study:
    """Rates by the measure "probability" of three kinds of models of one number."""
    sizes = [(n, "memory") for n in config.sizes] + [
        (config.large, way) for way in ("memory", "one pass") if config.large
    ]
    cells = [
        {"design": design, "n": n, "data_sets": config.data_sets, "way": way}
        for n, way in sizes
        for design in config.designs
    ]

    def measure(cell, key):
        design, n = DESIGNS[cell["design"]], cell["n"]
        truth = jnp.stack([squared_error(*model) for model in design])
        keys = jax.random.split(key, cell["data_sets"])

        def one(key):
            return rates(in_memory(*data_set(key, design, n), n_draws=config.n_draws), truth)

        if cell["way"] == "memory":
            every = runner.spread(one)(keys)
        else:
            sets = [jax.jit(partial(data_set, design=design, n=n))(key) for key in keys]
            results = [in_one_pass(*each, n_draws=config.n_draws) for each in sets]
            every = [jnp.stack(a) for a in zip(*(rates(r, truth) for r in results), strict=True)]
        return {name: jnp.mean(rate) for name, rate in zip(MEASURED, every, strict=True)}

    return runner.Study(cells, MEASURED, measure, config.seed, paired=("data_sets", "way"))


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
