"""Exact posteriors of three simulators with nine faults: rejected, named, innocents accused?"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxcal import sbi
from jaxcal.sbi.report import PosteriorReport

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner
from reference import faulty

FOLDER = Path(__file__).parent
MEASURED = ("rejected", "named", "accused_a", "accused_b", "falsely_accused")
BOTH = "a |b |the corr|.* of [ab]|errors change|.*may be"
ABOUT = r"{0} is|the tails of {0}|(shift|spread|tails) of {0}\b"
# what names a fault of b (or of the parameter in its place), and what else is true beside it
NAMES = {
    "right": ("(?!)", ""),
    "narrow": (r"{0} is overconfident|spread of {0}: .*narrow", ".*or it is far too narrow"),
    "wide": (r"{0} is underconfident|spread of {0}: .*wide", ""),
    "shifted": (r"{0} is too high|shift of {0}: .*too high", ""),
    "correlation": ("the correlation", ""),
    "swapped": (".*may be swapped", BOTH),
    "dropped": (".*a mode may be missing", ABOUT.format("a")),
    "ignores": ("errors change|.* along input", "[ab] is under|spread of [ab]|the corr"),
    "prior": ("errors change|.* along input", "[ab] is under|spread of [ab]"),
    "tails": ("the tails of [ab]", ""),
}
WEAK = {"narrow": 0.6, "wide": 1.6, "shifted": 0.6}
STRONG = {"narrow": 0.3, "wide": 2.5, "shifted": 2.0}  # of a, with b independent and right


@dataclass(frozen=True)
class Config:
    n: int = 200
    data_sets: int = 20
    right: int = 40
    dropped: int = 100  # data sets in which an innocent "b" stands beside a dropped half of "a"
    beside: int = 20  # the same beside other strong faults
    simulators: tuple[str, ...] = faulty.SIMULATORS
    faults: tuple[str, ...] = tuple(NAMES)
    seed: int = 20261125


QUICK = Config(40, 1, 1, 1, 1, simulators=("gaussian",), faults=("right", "dropped"))


def true(text: str, fault: str, of: str, tied: bool) -> tuple[bool, bool]:
    """Whether a sentence names the fault, and whether it is true beside it."""
    name, beside = (pattern.format(of) for pattern in NAMES[fault])
    if fault == "dropped" and tied:  # what depends on a is wrong, too
        beside = BOTH.replace("|.*may be", "")
    named = bool(re.match(name, text))
    return named, named or bool(beside and re.match(beside, text))


def make(config: Config) -> runner.Study:
    """Of all data sets: rejected by the verdict; the fault named; "a" and "b" said to be off by
    themselves; anything said that is false."""
    groups = [
        ("a", 0, config.dropped, {"dropped": 1.0}),
        ("b", 1, config.data_sets, {f: WEAK.get(f, 1.0) for f in list(NAMES)[1:]}),
        ("b", 1, config.right, {"right": 1.0}),
        ("a", 0, config.beside, STRONG),
    ]
    cells = [
        {
            "simulator": simulator,
            "fault": fault,
            "size": size,
            "of": of,
            "tied": tied,
            "data_sets": data_sets,
        }
        for simulator in config.simulators
        for of, tied, data_sets, faults in groups
        for fault, size in faults.items()
        if fault in config.faults
    ]

    def measure(cell: Any, key: jax.Array) -> dict[str, int]:
        counts = dict.fromkeys(MEASURED, 0)
        for each in jax.random.split(key, cell["data_sets"]):
            report = checked(each, cell, config.n)
            said = report.findings()
            truth = [true(text, cell["fault"], cell["of"], bool(cell["tied"])) for text in said]
            accused = {k: any(re.match(ABOUT.format(k), text) for text in said) for k in "ab"}
            values = (
                float(report.p_value) <= report.level,
                any(named for named, _ in truth),
                accused["a"],
                accused["b"],
                not all(right for _, right in truth),
            )
            for name, value in zip(MEASURED, values, strict=True):
                counts[name] += int(value)
        return counts

    return runner.Study(cells, MEASURED, measure, config.seed)


def checked(key: jax.Array, cell: Any, n: int) -> PosteriorReport:
    """The report on one data set, from log densities alone."""
    simulator, fault, tie = cell["simulator"], cell["fault"], float(cell["tied"])
    keys = jax.random.split(key, 3)
    which = jnp.asarray(faulty.SIMULATORS.index(simulator))
    thetas, xs = faulty.simulated(keys[0], which, jnp.asarray(tie), n)
    prior, _ = faulty.simulated(keys[1], which, jnp.asarray(tie), faulty.PRIOR_DRAWS)
    density = faulty.posterior(simulator, fault, size=cell["size"], tie=tie, of=cell["of"])
    options = {"prior": prior, "bounds": faulty.bounds(simulator), "names": ["a", "b"]}
    return sbi.check_posterior(keys[2], density, thetas, xs, chains=None, **options)


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER / "faults", arguments)


if __name__ == "__main__":
    main()
