"""Level and power of the calibration test beside tests from exact draws, on identical data sets."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import families
import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jaxtyping import Array

from jaxcal import calibration_test, kccsd_test, skce_test
from jaxcal.nulls import Wild

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
DRAWS = 199  # of the null, as of the predictions 99
PARTS = (
    "KCCSD: shape",
    "score: shift",
    "balance: spread",
    "curvature: correlation",
    "jumps: weights",
)
GAUSSIAN = ("widths", "narrow", "hgm")  # for which the SKCE has closed forms
METHODS = ("calibration", "KCCSD", *PARTS, "coverage", "SBC", "TARP", "SKCE")
FAULT_OF = {  # what the winner should say
    "shift of one": ("shift", "shape", "weights"),
    "shift of all": ("shift", "shape", "weights"),
    "too narrow": ("spread",),
    "too wide": ("spread",),
    "box spread": ("spread",),
    "HGM": ("spread",),
    "correlation left out": ("correlation",),
    "mode weights": ("weights",),
}


@dataclass(frozen=True)
class Config:
    families: tuple[str, ...] = tuple(families.FAMILIES)
    power_sets: int = 200
    level_sets: int = 400  # of every family at its own n
    largest: int = 1000  # observations a data set
    more_level: tuple[tuple[str, int, int], ...] = (  # family, n, data sets
        ("widths", 64, 1000),
        ("skewed", 64, 1000),
        ("modes", 1000, 200),
    )
    seed: int = 20261122


QUICK = Config(("hgm",), 4, 4, 16, ())


def uniform(u: Array) -> Array:
    """The p-value of Kolmogorov and Smirnov, [n] values, by Stephens' finite-n form."""
    n = u.shape[0]
    u, i = jnp.sort(u), jnp.arange(n)
    gap = jnp.maximum(jnp.max((i + 1) / n - u), jnp.max(u - i / n))
    k = jnp.arange(1, 40)
    root = (n**0.5 + 0.12 + 0.11 / n**0.5) * gap
    return jnp.clip(2 * jnp.sum((-1.0) ** (k - 1) * jnp.exp(-2 * (k * root) ** 2)), 0, 1)


def from_draws(key: jax.Array, data: families.DataSet) -> Array:
    """p-values of coverage, SBC (Bonferroni) and TARP from the exact draws of the predictions."""
    keys = jax.random.split(key, 4)
    n, m, d = data.draws.shape

    def rank(key, own, others):
        below = jnp.sum(others < own[:, None], axis=1) + jax.random.uniform(key, (n,))
        return uniform(below / (m + 1))

    ys = data.targets
    coverage = rank(keys[0], data.logs(ys[:, None])[:, 0], data.logs(data.draws))
    each = [rank(jax.random.fold_in(keys[1], j), ys[:, j], data.draws[..., j]) for j in range(d)]
    sbc = jnp.minimum(1, d * jnp.min(jnp.stack(each)))
    low, high = jnp.min(ys, axis=0), jnp.max(ys, axis=0)
    reference = low + (high - low) * jax.random.uniform(keys[2], ys.shape)
    own = jnp.linalg.norm(ys - reference, axis=1)
    others = jnp.linalg.norm(data.draws - reference[:, None], axis=2)
    return jnp.stack([coverage, sbc, rank(keys[3], own, others)])


@lru_cache
def program(name: str, n: int):
    """One program a family and size, for every fault."""

    def one(key, fault):
        data_key, test_key, rank_key = jax.random.split(key, 3)
        data = families.data_set(name, data_key, families.Fault(*fault), n)
        null = Wild(DRAWS)
        ours = calibration_test(test_key, data.predictions, data.targets, null=null)
        assert ours.parts is not None
        of = dict(zip(ours.parts.names, ours.parts.p_values, strict=True))
        each = jnp.stack([of.get(part, jnp.nan) for part in PARTS])
        places = jnp.asarray([PARTS.index(part) for part in ours.parts.names])
        stein = kccsd_test(test_key, data.predictions, data.targets, null=null).p_value
        skce = jnp.nan
        if name in GAUSSIAN:
            center, inverse, _ = data.predictions.params
            claimed = dist.MultivariateNormal(center, scale_tril=jnp.linalg.inv(inverse))
            skce = skce_test(test_key, claimed, data.targets, null=null).p_value
        p = jnp.concatenate(
            [
                jnp.stack([ours.p_value, stein]),
                each,
                from_draws(rank_key, data),
                jnp.asarray(skce)[None],
            ]
        )
        return p, places[ours.parts.winner]

    return runner.spread(one)


def make(config: Config) -> runner.Study:
    """Rejections at 5 %, and how often the winner of a rejection names a fault that is there."""
    cells = []
    for name in config.families:
        family = families.FAMILIES[name]
        sets = {"correct": config.level_sets}
        cells += [
            {
                "family": name,
                "fault": fault,
                "n": min(family.n, config.largest),
                "data_sets": sets.get(fault, config.power_sets),
            }
            for fault in family.faults
        ]
    cells += [
        {"family": name, "fault": "correct", "n": n, "data_sets": sets}
        for name, n, sets in config.more_level
    ]

    def measure(cell, key):
        fault = jnp.asarray(families.FAULTS[cell["fault"]])
        keys = jax.random.split(key, cell["data_sets"])
        p, winner = program(cell["family"], cell["n"])(
            keys, jnp.broadcast_to(fault, (len(keys), *fault.shape))
        )
        rejected = {name: int(jnp.sum(p[:, k] <= 0.05)) for k, name in enumerate(METHODS)}
        names = FAULT_OF.get(cell["fault"], tuple(part.split(": ")[1] for part in PARTS))
        right = jnp.asarray([part.split(": ")[1] in names for part in PARTS])
        named = int(jnp.sum((p[:, 0] <= 0.05) & right[winner]))
        return rejected | {"named": named, "not_a_number": int(jnp.sum(jnp.isnan(p[:, 0])))}

    return runner.Study(cells, (*METHODS, "named", "not_a_number"), measure, config.seed)


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
