"""The interval of `leave_one_out`, analytic, beside that of `compare`'s engine, by draws.

Both have the same functions of the confidences, the same estimate and the same data sets.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxcal.ckce.errors import added_residuals, judged, redrawn_residuals
from jaxcal.ckce.expansion import Noise
from jaxcal.ckce.probability import by_regression
from jaxcal.squared_ce import leave_one_out, reduce
from jaxcal.squared_ce.leave_one_out import _cosines, _functions

sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parent))
import runner
from populations import POPULATIONS

FOLDER = Path(__file__).parent / "draws"
MEASURED = ("error", "held", "held_by_draws", "width", "width_by_draws")


@dataclass(frozen=True)
class Config:
    sizes: tuple[int, ...] = (60, 200, 1000)
    data_sets: int = 300
    n_draws: int = 499
    populations: tuple[str, ...] = tuple(POPULATIONS)
    seed: int = 20261126


QUICK = Config(sizes=(60,), data_sets=2, n_draws=19, populations=("waves",))


@partial(jax.jit, static_argnames=("rank", "n_draws"))
def by_draws(key, confidences, labels, cosines, rank, n_draws):
    """Ends of the interval of the error, by draws."""
    keys = jax.random.split(key, 5)
    q = jnp.stack([1 - confidences, confidences], axis=1)
    n = len(q)
    noise = Noise(
        added_residuals(keys[0], n, 2, jnp.asarray(1.0 * n)), partial(redrawn_residuals, q=q)
    )
    d = jax.nn.one_hot(labels, 2, dtype=q.dtype) - q
    ones = jnp.ones(n, q.dtype)
    error = by_regression(tuple(keys[1:4]), cosines, ones, d, noise, 0.5, rank, n_draws)
    fields = judged(keys[4], jax.tree.map(lambda leaf: leaf[None], error), 0.05, 1.0)
    return jnp.sqrt(fields["low"][0]), jnp.sqrt(fields["high"][0])


def study(config: Config) -> runner.Study:
    """Shares of data sets in which 95 % intervals hold the error, and their mean widths."""

    def measure(cell, key):
        population, n = POPULATIONS[cell["population"]], cell["n"]
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        truth, rank, ends = population.error(), _functions(n, 1), []
        for k in range(config.data_sets):
            c, y = population.draw(rng, n)
            analytic = leave_one_out(reduce(c, y, "binary")).interval[:2]
            cosines = _cosines(c, np.arange(1, max(rank, 2)))
            drawn = by_draws(jax.random.fold_in(key, k), c, y, cosines, rank, config.n_draws)
            ends.append([*map(float, analytic), *map(float, drawn)])
        low, high, low_drawn, high_drawn = np.array(ends).T
        slack = 1e-9
        return {
            "error": truth,
            "held": np.mean((low <= truth + slack) & (truth <= high + slack)),
            "held_by_draws": np.mean((low_drawn <= truth + slack) & (truth <= high_drawn + slack)),
            "width": np.mean(high - low),
            "width_by_draws": np.mean(high_drawn - low_drawn),
        }

    cells = [{"population": name, "n": n} for n, name in product(config.sizes, config.populations)]
    return runner.Study(cells, MEASURED, measure, config.seed)


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(study, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
