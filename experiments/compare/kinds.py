"""Comparing a distribution, a density up to its constant and draws: do the intervals cover?"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.scipy.stats import norm

import jaxcal
from jaxcal.ckce.ranks import LEVELS

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
    data_sets: int = 200
    n_draws: int = 199
    seed: int = 20261125


QUICK = Config(sizes=(20,), data_sets=2, n_draws=19)


def log_density(parameters, y):
    center, deviation = parameters
    return -((y - center) ** 2) / (2 * deviation**2)


def squared_error(shift, spread):
    """The mean square error of the probabilities of events, by the closed form of normals."""
    levels = jnp.asarray(LEVELS)
    true = norm.cdf(shift + spread * norm.ppf(levels))
    return jnp.mean((true - levels) ** 2)


def make(config: Config) -> runner.Study:
    """Rates by the measure "probability" of three kinds of models of one number."""
    cells = [
        {"design": design, "n": n, "data_sets": config.data_sets}
        for n in config.sizes
        for design in DESIGNS
    ]

    def measure(cell, key):
        design, n = DESIGNS[cell["design"]], cell["n"]
        truth = jnp.stack([squared_error(*model) for model in design])
        gaps = truth[:, None] - truth[None]

        @runner.spread
        def every(key):
            keys = jax.random.split(key, 4)
            mean = jax.random.normal(keys[0], (n,))
            targets = mean + DEVIATION * jax.random.normal(keys[1], (n,))
            centers = [mean + shift * DEVIATION for shift, _ in design]
            deviations = [jnp.full(n, spread * DEVIATION) for _, spread in design]
            noise = jax.random.normal(keys[2], (n, N_SAMPLES))
            models = {
                "distribution": dist.Normal(centers[0], deviations[0]),
                "density": jaxcal.Unnormalized(log_density, (centers[1], deviations[1])),
                "draws": jaxcal.Draws(centers[2][:, None] + deviations[2][:, None] * noise),
            }
            result = jaxcal.compare(keys[3], models, targets, n_draws=config.n_draws)
            d = result.differences
            wrongly = (d.p_adjusted <= 0.05) & (d.estimate > 0) & ~(gaps > 1e-9)
            covers = (result.low <= truth) & (truth <= result.high)
            between = ((d.low <= gaps) & (gaps <= d.high)) | jnp.eye(3, dtype=bool)
            best = result.may_be_best | (truth > jnp.min(truth) + 1e-9)
            return jnp.any(wrongly), jnp.all(best), *covers, jnp.all(between)

        rates = every(jax.random.split(key, cell["data_sets"]))
        return {name: jnp.mean(rate) for name, rate in zip(MEASURED, rates, strict=True)}

    return runner.Study(cells, MEASURED, measure, config.seed, paired=("data_sets",))


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
