"""What does `check_draws` print of a right parameter beside a wrong one, and do its limits hold?"""

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import run as names
import table

from jaxcal import sbi

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
AT_ONCE = 50  # data sets whose draws are in memory
# shift and log spread of parameter a, and factor of its correlation with b. b is right by itself;
# with another correlation, only if the draws are Gaussian
FAULTS = {
    "none": (0.0, 0.0, 1.0),
    "some shift": (0.5, 0.0, 1.0),
    "some spread": (0.0, 0.3, 1.0),
    "spread": (0.0, 0.7, 1.0),
    "correlation": (0.0, 0.0, 0.5),
}
SAID = {  # of what is printed
    "shift_of_a": r"a is too (high|low)",
    "shift_of_b": r"b is too (high|low)",
    "spread_of_a": r"a is (over|under)confident",
    "spread_of_b": r"b is (over|under)confident",
    "correlation": r"correlation of a and b",
    "tails_of_a": r"tails of a",
    "tails_of_b": r"tails of b",
    "trend": r"errors change with x",
}
HOLD = tuple(f"{name}_holds" for name in ("shift", "spread", "correlation"))
MEASURED = ("rejected", *SAID, *HOLD)
# families, n, draws, data sets and faults
Block = tuple[tuple[str, ...], int, int, int, tuple[str, ...]]


@dataclass(frozen=True)
class Config:
    """`banana` was first looked at when all was written."""

    blocks: tuple[Block, ...] = (
        *((("gaussian", "skewed", "modes"), 200, m, 500, tuple(FAULTS)) for m in (20, 99)),
        (("gaussian",), 1000, 20, 200, ("none", "some spread", "correlation")),
        (("gaussian",), 1000, 99, 200, ("none", "some spread", "correlation")),
        (("banana",), 200, 20, 500, tuple(FAULTS)),
        (("banana",), 200, 99, 500, tuple(FAULTS)),
    )
    seed: int = 20261127


QUICK = Config(((("gaussian",), 30, 8, 4, ("spread",)),))


@lru_cache
def of(m: int) -> Callable[..., Any]:
    """`measured` of m draws, one function for all cells that share a program."""
    return partial(measured, m)


def measured(m: int, key: jax.Array, fault: jax.Array, family: str, n: int) -> Any:
    """The result for one data set; errors of a are in claimed deviations."""
    keys = jax.random.split(key, 6)
    centers = 2 * jax.random.normal(keys[0], (n, 2))
    widths = 3 ** jax.random.uniform(keys[1], (n,), minval=-0.5, maxval=0.5)
    shift, spread, factor = fault
    slope = factor * names.ROOT[1, 0]
    root = names.ROOT.at[1].set(jnp.stack([slope, jnp.sqrt(1 - slope**2)]))
    relative = names.noise(keys[2], family, n) @ jnp.linalg.inv(names.ROOT).T @ root.T
    deviation = jnp.sqrt(names.covariance(family)[0, 0])
    off = jnp.exp(spread) * relative[:, 0] - shift * deviation
    thetas = centers + widths[:, None] * relative.at[:, 0].set(off)
    noise = names.noise(keys[3], family, n * m).reshape(n, m, 2)
    draws = centers[:, None] + widths[:, None, None] * noise
    x = jax.random.normal(keys[4], (n, 1))  # on which nothing depends
    return sbi.check_draws(keys[5], draws, thetas, x, names=["a", "b"])


def make(config: Config) -> runner.Study:
    """Data sets in which the p-value is at most .05, and in which each sentence is printed below
    it; and in which limits of the shift and spread of a, and of the correlation, hold the truth of
    Gaussian draws."""
    cells = [
        {"family": family, "fault": fault, "n": n, "draws": m, "data_sets": sets}
        for families, n, m, sets, faults in config.blocks
        for family in families
        for fault in faults
    ]

    def measure(cell: Any, key: jax.Array) -> dict[str, int]:
        run = table.program(of(cell["draws"]), cell["family"], cell["n"])
        fault = jnp.asarray(FAULTS[cell["fault"]])
        keys = jax.random.split(key, cell["data_sets"])
        counts = dict.fromkeys(MEASURED, 0)
        for start in range(0, len(keys), AT_ONCE):
            batch = jax.tree.map(np.asarray, run(keys[start : start + AT_ONCE], fault))
            for k in range(len(batch.ranks)):
                add(counts, jax.tree.map(lambda leaf, k=k: leaf[k], batch), FAULTS[cell["fault"]])
        return counts

    return runner.Study(cells, MEASURED, measure, config.seed)


def add(counts: dict[str, int], result: Any, fault: tuple[float, ...]) -> None:
    counts["rejected"] += int(result.p_value <= 0.05)
    printed = "\n".join(line for line in repr(result).splitlines() if line.startswith("  - "))
    for name, pattern in SAID.items():
        counts[name] += bool(re.search(pattern, printed))
    errors, slope = result.diagnosis, float(names.ROOT[1, 0])
    truths = fault[0], -fault[1], slope * (1 - fault[2])
    each = errors.shift, errors.marginal_spread, errors.correlation
    for name, means, truth in zip(HOLD, each, truths, strict=True):
        counts[name] += int(means.low[0] <= truth <= means.high[0])


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER / "draws", arguments)


if __name__ == "__main__":
    main()
