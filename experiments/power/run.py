"""Level and power of the calibration test beside tests from exact draws, on identical data sets."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import families
import jax
import jax.numpy as jnp
import network
import numpyro.distributions as dist
import rivals

from jaxcal import calibration_test, kccsd_test, kcsd_test, skce_test, ucme_test
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
    "exchangeable: weights",
)
# for which SKCE and UCME have closed forms
GAUSSIAN = ("widths", "narrow", "five", "ten", "hgm", "qgm", "mgm")
CLOSED = ("SKCE", "UCME")
METHODS = (
    "calibration",
    "KCCSD",
    *PARTS,
    "coverage",
    "SBC",
    "TARP",
    "C2ST",
    "KCSD",
    "SKCE",
    "UCME",
    "best possible",
)
FAULT_OF = {  # what the winner should say
    "shift of one": ("shift", "shape", "weights"),
    "shift of all": ("shift", "shape", "weights"),
    "too narrow": ("spread",),
    "too wide": ("spread",),
    "box spread": ("spread",),
    "HGM": ("spread",),
    "QGM": ("shift", "shape", "weights"),
    "MMGM": ("shift", "shape", "weights"),
    "correlation left out": ("correlation",),
    "mode weights": ("weights",),
}


@dataclass(frozen=True)
class Config:
    families: tuple[str, ...] = tuple(families.FAMILIES)
    power_sets: int = 200
    level_sets: int = 1000  # of every family at its own n
    largest: int = 1000  # observations a data set
    more_level: tuple[tuple[str, int, int], ...] = (  # family, n, data sets
        ("widths", 64, 1000),
        ("skewed", 64, 1000),
        ("modes", 1000, 200),
        ("student", 100, 1000),
    )
    seed: int = 20261122


QUICK = Config(("hgm",), 4, 4, 16, ())


SPECIAL = ("hgm", "qgm", *network.SIMULATIONS)  # with a program of their own


def rejections(name: str, n: int, keys: jax.Array, fault: families.Fault):
    """p-values of all methods [data sets, methods], and which part is the strongest."""
    family = families.FAMILIES[name]
    special = name if name in SPECIAL else ""
    rows = (jnp.asarray(family[:6], float), jnp.asarray(fault))
    many = [jnp.broadcast_to(row, (len(keys), row.size)) for row in rows]
    p, winner = program(special, family.dimension, n)(keys, *many)
    closed_forms = jnp.asarray([name in GAUSSIAN or method not in CLOSED for method in METHODS])
    return jnp.where(closed_forms, p, jnp.nan), winner


@lru_cache
def program(special: str, dimension: int, n: int):
    """One program for all families and faults of a dimension."""

    def one(key, numbers, fault):
        data_key, test_key, rank_key = jax.random.split(key, 3)
        family = families.Family(*[*numbers, dimension, ()])
        data = families.data_set(special, family, data_key, families.Fault(*fault), n)
        null = Wild(DRAWS)
        ours = calibration_test(test_key, data.predictions, data.targets, null=null)
        assert ours.parts is not None
        of = dict(zip(ours.parts.names, ours.parts.p_values, strict=True))
        each = jnp.stack([of.get(part, jnp.nan) for part in PARTS])
        places = jnp.asarray([PARTS.index(part) for part in ours.parts.names])
        stein = kccsd_test(test_key, data.predictions, data.targets, null=null).p_value
        conditional = kcsd_test(
            test_key, data.predictions, data.targets, data.inputs, null=null
        ).p_value
        skce = ucme = best = jnp.asarray(jnp.nan)
        if special not in network.SIMULATIONS:  # as if Gaussian; `rejections` knows better
            center, inverse, _, _ = data.predictions.params
            claimed = dist.MultivariateNormal(center, scale_tril=jnp.linalg.inv(inverse))
            skce = skce_test(test_key, claimed, data.targets, null=null).p_value
            ucme = ucme_test(test_key, claimed, data.targets).p_value
        if data.ratios is not None:
            best = rivals.best_possible(data)
        others = [rivals.classifier(data), conditional, skce, ucme, best]
        p = jnp.concatenate(
            [
                jnp.stack([ours.p_value, stein]),
                each,
                rivals.from_draws(rank_key, data),
                jnp.stack(others),
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
        fault = families.FAULTS[cell["fault"]]
        keys = jax.random.split(key, cell["data_sets"])
        p, winner = rejections(cell["family"], cell["n"], keys, fault)
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
