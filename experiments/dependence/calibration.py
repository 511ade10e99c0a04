"""Does `calibration_test` keep its level in time series, by signs that last for a while?"""

import sys
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import jax
import numpyro.distributions as dist
import run as series

from jaxcal import calibration_test
from jaxcal.nulls import DependentWild, Wild

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
MEASURED = ("dependent_wild", "independent_wild", "told", "season_told", "rejected_not_told")


def make(config: series.Config) -> runner.Study:
    """Rates at .05, as in `run.py`."""

    @lru_cache(maxsize=1)
    def program(n):
        def one(key, x, ys):
            predictions = dist.Normal(x, 1.0)
            null, plain = DependentWild(config.n_draws), Wild(config.n_draws)
            result = calibration_test(key, predictions, ys, null=null)
            independent = calibration_test(key, predictions, ys, null=plain)
            few, season = result.notes["dependent-observations"], result.notes["season"] > 0
            rejected = result.p_value <= 0.05
            return (
                rejected,
                independent.p_value <= 0.05,
                few,
                season,
                rejected & ~few & ~season,
            )

        return jax.jit(
            lambda *sets: jax.lax.map(lambda each: one(*each), sets, batch_size=series.BATCH)
        )

    return series.study(config, MEASURED, program)


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(
        make, series.Config(), series.QUICK, FOLDER / "calibration", arguments
    )


if __name__ == "__main__":
    main()
