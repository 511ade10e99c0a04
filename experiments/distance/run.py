"""Distances from calibration: known examples, Table 1 computed, Section 10."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxcal import dce
from jaxcal.kernels import Gaussian

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import reference_values
import runner
from reference import constructions, distances
from reference.lower_distance import lower_distance
from reference.partitions import upper_distance
from reference.smece import smece

FOLDER = Path(__file__).parent
TINY = 1e-6


@dataclass(frozen=True)
class Config:
    trials: int = 50
    interval_trials: int = 5  # at n = 10,000, where the best bins take n^2 steps
    sizes: tuple[int, ...] = (1000, 10000)
    betas: tuple[float, ...] = (0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
    wiggle_points: int = 4000
    relation_laws: int = 300
    seed: int = 20230616


QUICK = Config(
    trials=2,
    interval_trials=2,
    sizes=(1000,),
    betas=(1.0, 2.0),
    wiggle_points=4,
    relation_laws=2,
)

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
    "true": lambda domain: distances.true_distance(domain).value,
    "lower": lambda d: lower_distance(d.f, d.f_star, weights=d.mass, tol=1e-9).value,
    "upper": lambda d: upper_distance(d.f, d.f_star, weights=d.mass).value,
    "smooth": lambda d: dce.smooth_ce(d.f, d.f_star, weights=d.mass).value,
    "laplace": lambda d: dce.kernel_ce(d.f, d.f_star, weights=d.mass).value,
    "ece": lambda d: dce.unbinned_ece(d.f, d.f_star, weights=d.mass),
    "interval": lambda d: dce.interval_ce(d.f, d.f_star, weights=d.mass).value,
    "surrogate": lambda d: (
        dce.surrogate_interval_ce(d.f, d.f_star, weights=d.mass, accuracy=None).value
    ),
    "binned, 20 bins": lambda d: dce.binned_ece(d.f, d.f_star, weights=d.mass, edges=20).value,
    "binned, 15 bins": lambda d: dce.binned_ece(d.f, d.f_star, weights=d.mass, edges=15).value,
    "gaussian": lambda d: _gaussian(d),
    "smECE": lambda d: smece(d.f, d.f_star, weights=d.mass).value,
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


def padded(domain, size=4):
    """Inputs without mass up to ``size``: they change nothing, and small domains share programs."""
    left = max(0, size - domain.f.size)
    return distances.Domain(*(np.pad(x, (0, left)) for x in (domain.mass, domain.f, domain.f_star)))


def _gaussian(domain):
    v, y, w = domain.distribution()
    square, _ = distances.kernel_ce_of_pairs(v, y, Gaussian(0.5**0.5), weights=w)
    return jnp.sqrt(jnp.maximum(square, 0))


def _largest_sum(domain):
    """Ties count together: sup over t of |F(t)|."""
    _, atom = np.unique(domain.f, return_inverse=True)
    return np.max(np.abs(np.cumsum(np.bincount(atom, domain.mass * (domain.f_star - domain.f)))))


def table(case, name, config):
    """One entry of the computed Table 1; ``value`` and what a consistent measure would show."""

    def value(domain):
        return VALUES[name](padded(domain))

    if case == "jump at two points":
        whole = distances.Domain(np.full(2, 0.5), np.full(2, 0.5), np.array([0.0, 1.0]))
        return abs(value(constructions.two_points(TINY).domain) - value(whole)), 0.0
    if case == "jump at four points":
        near, at = (constructions.jumping_intervals(e).domain for e in (TINY, 0.0))
        near = distances.Domain(near.mass, near.f, at.f_star)
        return abs(value(near) - value(at)), 0.0
    if case == "calibrated, noisy labels":
        return value(distances.Domain(np.ones(1), np.full(1, 0.5), np.full(1, 0.5))), 0.0
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
        "binned": lambda v, y: dce.binned_ece(v, y, edges=20).value,
        "kernel": lambda v, y: dce.kernel_ce(v, y).value,
        "surrogate": lambda v, y: dce.surrogate_interval_ce(v, y, accuracy=0.01).value,
        "smooth": lambda v, y: dce.smooth_ce(v, y).value,
        "interval": lambda v, y: dce.interval_ce(v, y).value,
    }[measure]

    def one(key):
        return run(*constructions.tempered_sample(key, n, beta))

    return jax.lax.map(one, jax.random.split(key, trials))


# what is divided by what, and the largest ratio that the theory allows (Figure 1 of the paper)
RELATIONS = {
    "smooth / lower": (lambda m: (m["smooth"], m["lower"]), 2.0),
    "lower / smooth": (lambda m: (m["lower"], m["smooth"]), 2.0),
    "lower / true": (lambda m: (m["lower"], m["true"]), 1.0),
    "true / upper": (lambda m: (m["true"], m["upper"]), 1.0),
    "true / root lower": (lambda m: (m["true"], m["lower"] ** 0.5), 4.0),
    "upper / interval": (lambda m: (m["upper"], m["interval"]), 1.0),
    "interval / surrogate": (lambda m: (m["interval"], m["surrogate"]), 1.0),
    "interval / root lower": (lambda m: (m["interval"], m["lower"] ** 0.5), 4.0),
    "surrogate / root lower": (lambda m: (m["surrogate"], m["lower"] ** 0.5), 6.0),
    "laplace / root lower": (lambda m: (m["laplace"], m["lower"] ** 0.5), 1.0),
    "smooth / laplace": (lambda m: (m["smooth"], m["laplace"]), 3.0),
    "ece / root lower": (lambda m: (m["ece"], m["lower"] ** 0.5), float("inf")),
}


@lru_cache
def everything(laws):
    """All measures of the examples, of pairs that ECE cannot bear, and of domains at random."""
    rng = np.random.default_rng(20230616)
    domains = [example().domain for example in EXAMPLES.values()]
    domains += [constructions.two_points(e).domain for e in (1e-3, 1e-4, 1e-5)]
    domains += [constructions.smooth_above(e, e).domain for e in (1e-2, 1e-3)]
    for law in range(laws):
        f = rng.random(4)
        truth = f + 10 ** -rng.uniform(0, 2) * (rng.random(4) - f) if law % 2 else rng.random(4)
        domains.append(distances.Domain(rng.dirichlet(np.ones(4)), f, truth))
    names = ("true", "lower", "upper", "smooth", "laplace", "ece", "interval", "surrogate")
    return [{name: float(VALUES[name](padded(d))) for name in names} for d in domains]


def relation(name, laws):
    """The largest ratio met, and the largest allowed."""
    pair, allowed = RELATIONS[name]
    pairs = [pair(law) for law in everything(laws)]
    return max(a / b for a, b in pairs if b > 1e-7), allowed


def make(config: Config) -> runner.Study:
    """Known examples, a computed Table 1, samples of D_beta."""
    cells = [
        {"part": "example", "case": case, "measure": name, "trials": 1}
        for case, example in EXAMPLES.items()
        for name in example().values
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

    cells += [
        {"part": "relation", "case": "largest ratio", "measure": name, "trials": 1}
        for name in RELATIONS
    ]

    def measure(cell, key):
        part, case, name = cell["part"], cell["case"], cell["measure"]
        sd = reference_sd = 0.0
        if part == "example":
            example = EXAMPLES[case]()
            value, reference = VALUES[name](padded(example.domain)), example.values[name]
        elif part == "table":
            value, reference = table(case, name, config)
        elif part == "relation":
            value, reference = relation(name, config.relation_laws)
        else:
            n, beta = int(part.split("=")[1]), float(case)
            estimates = sampled(key, jnp.asarray(beta), n=n, trials=cell["trials"], measure=name)
            value, sd = jnp.mean(estimates), jnp.std(estimates, ddof=1)
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
