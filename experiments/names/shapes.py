"""Does the table of `calibration_test` accuse right correlations and tails, and find wrong ones?"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import run as names
import table

from jaxcal import Unnormalized
from jaxcal.entries.calibration import _table
from jaxcal.entries.moments import Frame
from jaxcal.entries.ranks import Fit
from jaxcal.nulls import HadamardWild

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
# shift and log spread of coordinate 0, its correlation (factor of ROOT's), share of outliers, and
# shift for each deviation of its centre
FAULTS = {
    "none": (0.0, 0.0, 1.0, 0.0, 0.0),
    "spread": (0.0, 0.7, 1.0, 0.0, 0.0),
    "shift": (1.5, 0.0, 1.0, 0.0, 0.0),
    "some spread": (0.0, 0.3, 1.0, 0.0, 0.0),
    "some shift": (0.5, 0.0, 1.0, 0.0, 0.0),
    "shift trend": (0.0, 0.0, 1.0, 0.0, 0.5),
    "some trend": (0.0, 0.0, 1.0, 0.0, 0.25),
    "correlation": (0.0, 0.0, 0.5, 0.0, 0.0),
    "tails": (0.0, 0.0, 1.0, 0.1, 0.0),
}
OUTLIER = 2.5  # factor of the errors of outliers
PARTS = ("correlation", "tails_of_0", "tails_of_1")
MEASURED = (*(f"{part}_{level}" for part in PARTS for level in ("05", "01")), "too_light")


@dataclass(frozen=True)
class Config:
    """Data sets of innocents, and of faults that should be found."""

    n: int = 100
    innocent: int = 1000
    guilty: int = 200
    families: tuple[str, ...] = ("gaussian", "modes", "skewed")
    unseen: tuple[str, ...] = ("banana",)  # first looked at when all was written
    seed: int = 20261125


QUICK = Config(n=20, innocent=4, guilty=4, families=("gaussian",), unseen=())


def measured(key: jax.Array, fault: jax.Array, family: str, n: int) -> Any:
    """Effects and p-values, without correction, of the three last rows of the table."""
    keys = jax.random.split(key, 5)
    centers = 2 * jax.random.normal(keys[0], (n, 2))
    widths = 3 ** jax.random.uniform(keys[1], (n,), minval=-0.5, maxval=0.5)
    shift, spread, factor, outliers, trend = fault
    relative = names.noise(keys[2], family, n) @ jnp.linalg.inv(names.ROOT).T
    far = jax.random.uniform(keys[3], (n, 1)) < outliers
    relative = jnp.where(far, OUTLIER, 1.0) * relative
    slope = factor * names.ROOT[1, 0]
    root = names.ROOT.at[1].set(jnp.stack([slope, jnp.sqrt(1 - slope**2)]))
    relative = relative @ root.T
    deviation = jnp.sqrt(names.covariance(family)[0, 0])
    shifts = shift + trend * centers[:, 0] / 2
    off = jnp.exp(spread) * relative[:, 0] - shifts * deviation
    ys = centers + widths[:, None] * relative.at[:, 0].set(off)
    predictions = Unnormalized(lambda p, y: table.log_density(family, p, y), (centers, widths))
    fit = Fit.of(keys[4], predictions, ys)
    of = _table(fit, Frame.of(fit.seen, None), None, jnp.asarray(0.05), predictions, HadamardWild())
    assert of is not None
    return of.effect[4:, 0], of.p_value[4:, 0]


def make(config: Config) -> runner.Study:
    """Data sets in which each p-value is at most .05 and .01; "too_light": of tails of both at .05,
    claimed too light."""
    cells = [
        {"family": family, "fault": fault, "n": config.n, "data_sets": sets}
        for family in (*config.families, *config.unseen)
        for fault in FAULTS
        for sets in [config.guilty if fault in ("correlation", "tails") else config.innocent]
    ]

    def measure(cell: Any, key: jax.Array) -> dict[str, Any]:
        run = table.program(measured, cell["family"], cell["n"])
        fault = jnp.asarray(FAULTS[cell["fault"]])
        keys = jax.random.split(key, cell["data_sets"])
        parts = [run(keys[k : k + 100], fault) for k in range(0, len(keys), 100)]
        effects, p = (jnp.concatenate(each) for each in zip(*parts, strict=True))
        counts = jnp.stack([jnp.sum(p <= level, axis=0) for level in (0.05, 0.01)], axis=1)
        light = jnp.sum((p[:, 1:] <= 0.05) & (effects[:, 1:] < 0))
        return dict(zip(MEASURED, [*map(int, counts.reshape(-1)), int(light)], strict=True))

    return runner.Study(cells, MEASURED, measure, config.seed)


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER / "shapes", arguments)


if __name__ == "__main__":
    main()
