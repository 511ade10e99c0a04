"""Comparing models by CKCE: do intervals cover, and how often is one of equal models accused?"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import jax
import jax.numpy as jnp

from jaxcal.ckce import compare, pooled_bandwidth
from jaxcal.ckce.class_comparison import default_rank
from jaxcal.ckce.expansion import by_features
from jaxcal.ckce.kernels import simplex_kernel
from jaxcal.ckce.low_rank import NystroemFeatures, pivots

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
LARGE = 10_000  # observations behind a true value

# temperatures of the models: 1 is calibrated, below is too sure
DESIGNS = {
    "calibrated": (1.0, 1.0),
    "slightly_wrong": (0.8, 0.8),
    "wrong": (0.5, 0.5),
    "one_better": (1.0, 0.7),
    "seven_calibrated": (1.0,) * 7,
    "seven_wrong": (0.5,) * 7,
}
MEASURED = (
    "accused",  # of equal models, some difference at .05 after adjustment; else a better one worse
    "best_lost",  # a best model is not among those that may be the best
    "rejected",  # the first pair at .05, without adjustment
    "difference_covered",
    "value_covered",  # of the last model
    "value_below",
    "value_above",
    "spread_ratio",  # of the interval of the first pair, over that of 1.96 true deviations
    "left_out",
)


@dataclass(frozen=True)
class Config:
    data_sets: int = 1000
    n: tuple[int, ...] = (200,)
    classes: tuple[int, ...] = (3, 10, 100)
    designs: tuple[str, ...] = tuple(DESIGNS)
    n_draws: int = 199
    seed: int = 20261122


QUICK = Config(data_sets=4, n=(40,), classes=(3,), designs=("calibrated",), n_draws=19)


def drawn(key, temperatures, m, n):
    """Models [M, n, m], what each should have said, and labels [n].

    The truth is the mean of M independent Dirichlet vectors; model k sees the k-th alone, so its
    calibrated prediction is the mean given that.
    """
    count = len(temperatures)
    part_key, label_key = jax.random.split(key)
    logs = jax.random.loggamma(part_key, jnp.full((count, n, m), 3.0 / m))
    parts = jax.nn.softmax(logs, axis=-1)
    right = (parts + (count - 1) / m) / count
    labels = jax.random.categorical(label_key, jnp.log(jnp.mean(parts, axis=0)))
    sharp = [
        jax.nn.softmax(jnp.log(q) / t, axis=-1) for q, t in zip(right, temperatures, strict=True)
    ]
    return jnp.stack(sharp), right, labels


@partial(jax.jit, static_argnames=("n", "m"))
def without_noise(q, right, width, *, n, m):
    """CKCE at the ridge of n observations, from the mean residuals of many."""
    kernel = simplex_kernel(width)
    rank = 2 * default_rank(n, m)
    chosen, used = pivots(kernel, q[: 4 * rank], rank, 1e-4)
    features = NystroemFeatures.at(kernel, q[chosen], used)
    key = jax.random.key(0)  # deals out blocks, of which the value knows nothing
    ridge, weights = jnp.asarray(n**-0.25, q.dtype), jnp.ones(len(q), q.dtype)
    return by_features(key, features, q, (right - q)[None], ridge, weights).expansions.estimate[0]


def make(config: Config) -> runner.Study:
    """Rates over data sets, with differences and values of many observations as the truth."""
    cells = [
        {"design": design, "classes": m, "n": n, "data_sets": config.data_sets}
        for m, n, design in product(config.classes, config.n, config.designs)
        if not (m > 10 and len(DESIGNS[design]) > 2)  # minutes a cell
    ]

    def measure(cell, key):
        temperatures, m, n = DESIGNS[cell["design"]], cell["classes"], cell["n"]
        large_key, sets_key = jax.random.split(key)
        models, right, _ = drawn(large_key, temperatures, m, LARGE)
        width = pooled_bandwidth(models[:, :2000])
        values = jnp.stack(
            [
                without_noise(q, r, width, n=n, m=m) if t != 1 else jnp.zeros(())
                for q, r, t in zip(models, right, temperatures, strict=True)
            ]
        )
        equal = len(set(temperatures)) == 1
        values = jnp.full_like(values, jnp.mean(values)) if equal else values

        @runner.spread
        def every(key):
            data_key, test_key = jax.random.split(key)
            models, _, labels = drawn(data_key, temperatures, m, n)
            result = compare(test_key, models, labels, n_draws=config.n_draws, bandwidth=width)
            d, gap = result.differences, values[0] - values[1]
            first = values <= jnp.min(values)
            wrongly = (d.p_adjusted <= 0.05) & (d.estimate > 0) & first[:, None]
            return (
                jnp.any(wrongly),
                jnp.any(first & ~result.may_be_best),
                d.p_value[0, 1] <= 0.05,
                (d.low[0, 1] <= gap) & (gap <= d.high[0, 1]),
                (result.low[-1] <= values[-1]) & (values[-1] <= result.high[-1]),
                result.high[-1] < values[-1],
                result.low[-1] > values[-1],
                (d.high[0, 1] - d.low[0, 1]) / 2 / 1.96,
                result.left_out[-1],
                d.estimate[0, 1],
            )

        *rates, size, left_out, gaps = every(jax.random.split(sets_key, config.data_sets))
        numbers = [jnp.mean(rate) for rate in rates]
        numbers += [jnp.mean(size) / jnp.std(gaps), jnp.mean(left_out)]
        return dict(zip(MEASURED, numbers, strict=True))

    return runner.Study(cells, MEASURED, measure, config.seed, paired=("data_sets",))


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
