"""Distances from calibration: known examples, Table 1 computed, Section 10's comparison."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxcal import distance
from jaxcal.distance import constructions
from jaxcal.kernels import Gaussian

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import reference_values
import runner

FOLDER = Path(__file__).parent
TINY = 1e-6


@dataclass(frozen=True)
class Config:
    trials: int = 50
    interval_trials: int = 5  # at n = 10,000, where the best bins take n^2 steps
    sizes: tuple[int, ...] = (1000, 10000)
    betas: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
    wiggle_points: int = 4000
    seed: int = 20230616


QUICK = Config(trials=4, interval_trials=2, sizes=(1000,), betas=(1.0, 2.0), wiggle_points=300)

EXAMPLES = {
    "barrier alpha=0.1": lambda: constructions.quadratic_barrier(0.1),
    "barrier, second truth": lambda: constructions.quadratic_barrier(0.1, second=True),
    "barrier alpha=0.5": lambda: constructions.quadratic_barrier(0.5),
    "two points eps=0.1": lambda: constructions.two_points(0.1),
    "two points eps=0.01": lambda: constructions.two_points(0.01),
    "intervals apart alpha=0.1": lambda: constructions.intervals_apart(0.1),
    "jumping intervals eps=0": lambda: constructions.jumping_intervals(0.0),
    "jumping intervals eps=0.001": lambda: constructions.jumping_intervals(0.001),
    "smooth above eta=t=0.1": lambda: constructions.smooth_above(0.1, 0.1),
    "constant 0.3 at rate 0.75": lambda: constructions.constant(0.3, 0.75),
}

VALUES = {
    "true": lambda domain: distance.true_distance(domain).value,
    "lower": lambda d: distance.lower_distance(d.f, d.f_star, weights=d.mass, tol=1e-9).value,
    "upper": lambda d: distance.upper_distance(d.f, d.f_star, weights=d.mass).value,
    "smooth": lambda d: distance.smooth_ce(d.f, d.f_star, weights=d.mass).value,
    "laplace": lambda d: distance.laplace_ce(d.f, d.f_star, weights=d.mass).value,
    "ece": lambda d: distance.ece(d.f, d.f_star, weights=d.mass),
    "interval": lambda d: distance.interval_ce(d.f, d.f_star, weights=d.mass).value,
    "surrogate": lambda d: (
        distance.surrogate_interval_ce(d.f, d.f_star, weights=d.mass, accuracy=None).value
    ),
    "binned, 20 bins": lambda d: distance.binned_ece(d.f, d.f_star, weights=d.mass, edges=20).value,
    "binned, 15 bins": lambda d: distance.binned_ece(d.f, d.f_star, weights=d.mass, edges=15).value,
    "gaussian": lambda d: _gaussian(d),
    "smECE": lambda d: distance.smece(d.f, d.f_star, weights=d.mass).value,
    "Brier score": lambda d: np.sum(d.mass * (d.f_star * (1 - d.f) ** 2 + (1 - d.f_star) * d.f**2)),
    "ECCE (sup of sums)": lambda d: _largest_sum(d),
}

TABLE = (
    "ece",
    "binned, 15 bins",
    "binned, 20 bins",
    "Brier score",
    "ECCE (sup of sums)",
    "gaussian",
    "laplace",
    "smooth",
    "lower",
    "interval",
    "surrogate",
    "smECE",
)


def _gaussian(domain):
    """A sum over pairs needs two observations: one atom is split."""
    v, y, w = (np.concatenate([a, a]) for a in domain.law())
    return distance.kernel_ce(v, y, weights=w, kernel=Gaussian(0.5**0.5)).value


def _largest_sum(domain):
    """Ties count together: sup over t of |F(t)|."""
    _, atom = np.unique(domain.f, return_inverse=True)
    return np.max(np.abs(np.cumsum(np.bincount(atom, domain.mass * (domain.f_star - domain.f)))))


def table(case, name, config):
    """One entry of the computed Table 1; ``value`` and what a consistent measure would show."""
    value = VALUES[name]
    if case == "jump at two points":
        whole = distance.Domain(np.full(2, 0.5), np.full(2, 0.5), np.array([0.0, 1.0]))
        return abs(value(constructions.two_points(TINY).domain) - value(whole)), 0.0
    if case == "jump at four points":
        near, at = (constructions.jumping_intervals(e).domain for e in (TINY, 0.0))
        near = distance.Domain(near.mass, near.f, at.f_star)
        return abs(value(near) - value(at)), 0.0
    if case == "calibrated, noisy labels":
        return value(distance.Domain(np.ones(1), np.full(1, 0.5), np.full(1, 0.5))), 0.0
    if case == "two points in a bin":
        return value(constructions.two_points(0.01).domain), float("nan")
    wiggle = constructions.hidden_from_gaussians(0.005, points=config.wiggle_points)
    return value(wiggle), float("nan")


CASES = (
    "jump at two points",
    "jump at four points",
    "calibrated, noisy labels",
    "two points in a bin",
    "wiggle eps=0.005",
)


@partial(jax.jit, static_argnames=("n", "trials", "measure"))
def sampled(key, beta, *, n, trials, measure):
    """One measure of ``trials`` samples of D_beta."""
    run = {
        "binned": lambda v, y: distance.binned_ece(v, y, edges=20).value,
        "kernel": lambda v, y: distance.laplace_ce(v, y).value,
        "surrogate": lambda v, y: distance.surrogate_interval_ce(v, y, accuracy=0.01).value,
        "smooth": lambda v, y: distance.smooth_ce(v, y).value,
        "interval": lambda v, y: distance.interval_ce(v, y).value,
    }[measure]

    def one(key):
        return run(*constructions.tempered_sample(key, n, beta))

    return jax.lax.map(one, jax.random.split(key, trials))


def make(config: Config) -> runner.Study:
    """Known examples, a computed Table 1, and samples of D_beta against independent values."""
    cells = [
        {"part": "example", "case": case, "measure": name, "trials": 1}
        for case, example in EXAMPLES.items()
        for name in example().known
    ]
    cells += [
        {"part": "table", "case": case, "measure": name, "trials": 1}
        for case in CASES
        for name in TABLE
    ]
    cells += [
        {
            "part": f"sampled n={n}",
            "case": str(beta),
            "measure": name,
            "trials": config.interval_trials if name == "interval" and n > 1000 else config.trials,
        }
        for n in config.sizes
        for name in reference_values.MEASURES
        for beta in config.betas
    ]

    def measure(cell, key):
        part, case, name = cell["part"], cell["case"], cell["measure"]
        sd = reference_sd = 0.0
        if part == "example":
            example = EXAMPLES[case]()
            value, reference = VALUES[name](example.domain), example.known[name]
        elif part == "table":
            value, reference = table(case, name, config)
        else:
            n, beta = int(part.split("=")[1]), float(case)
            found = sampled(key, jnp.asarray(beta), n=n, trials=cell["trials"], measure=name)
            value, sd = jnp.mean(found), jnp.std(found, ddof=1)
            reference, reference_sd = reference_values.SAMPLED[n][beta][
                reference_values.MEASURES.index(name)
            ]
        value = float(value)
        return {
            "value": value,
            "sd": float(sd),
            "reference": reference,
            "reference_sd": reference_sd,
            "not_a_number": int(np.isnan(value)),
        }

    names = ("value", "sd", "reference", "reference_sd", "not_a_number")
    return runner.Study(cells, names, measure, config.seed, paired=("measure", "trials"))


def main(arguments: Sequence[str] | None = None) -> Path:
    jax.config.update("jax_enable_x64", True)
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
