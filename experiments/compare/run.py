"""Comparing models by CKCE: do intervals cover, and how often is one of equal models accused?"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp

from jaxcal.ckce import compare, pooled_bandwidth
from jaxcal.ckce.class_comparison import default_rank
from jaxcal.ckce.expansion import by_features
from jaxcal.ckce.features import NystroemFeatures, pivots
from jaxcal.ckce.kernels import simplex_kernel

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
LARGE = 10_000  # observations behind a true value

# temperatures of Dirichlet models: 1 is calibrated, below is too sure
DESIGNS = {
    "calibrated": (1.0, 1.0),
    "wrong": (0.5, 0.5),
    "one_better": (1.0, 0.5),
    "seven_calibrated": (1.0,) * 7,
}


MEASURED = (
    "accused",  # some difference at .05 after adjustment that is none, or has the other sign
    "found",  # the first pair, at .05 after adjustment, with the right sign
    "all_differences_covered",
    "value_covered",  # of the first model
    "value_below",  # the interval lies below the truth
    "value_above",
    "last_covered",  # of the last model
    "outside_interval",  # share of models whose own estimate is outside, or an end negative
    "width",  # median, of the first model
    "largest_width",  # of all models and data sets
)


@dataclass(frozen=True)
class Config:
    data_sets: int = 300
    n: tuple[int, ...] = (20, 100, 400)
    laws: tuple[str, ...] = (
        "base_rate",
        "in_sample_bins",
        "under_confident",
        "rare_labels",
        "calibrated_3",
        "wrong_3",
        "one_better_3",
        "calibrated_20",
        "six_values",
        "wrong_20",
        "seven_calibrated_3",
    )
    n_draws: int = 199
    seed: int = 20261122


QUICK = Config(data_sets=4, n=(40,), laws=("calibrated_3", "base_rate"), n_draws=19)


def dirichlet(key, n, temperatures, m):
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


def two(p):
    return jnp.stack([1 - p, p], axis=-1)


def binary(key, parts, mean):
    """Two models, each the mean given one of two independent parts [2, n]."""
    labels = jax.random.uniform(key, parts.shape[1:]) < jnp.mean(parts, axis=0)
    right = two((parts + mean) / 2)
    return right, right, labels.astype(int)


def rare_labels(key, n):
    """Calibrated models of labels with probability .032."""
    part_key, label_key = jax.random.split(key)
    parts = jax.random.uniform(part_key, (2, n), minval=0.002, maxval=0.062)
    return binary(label_key, parts, 0.032)


def under_confident(key, n):
    """Two models of two classes whose logits are half as large as is right."""
    part_key, label_key = jax.random.split(key)
    right, _, labels = binary(label_key, jax.random.uniform(part_key, (2, n)), 0.5)
    return jax.nn.softmax(jnp.log(right) / 2, axis=-1), right, labels


def six_values(key, n):
    """Calibrated models with six different predictions, mostly sure. Unseen by the method."""
    values = jnp.asarray([0.01, 0.04, 0.1, 0.3, 0.9, 0.99])
    part_key, label_key = jax.random.split(key)
    parts = values[jax.random.randint(part_key, (2, n), 0, 6)]
    return binary(label_key, parts, jnp.mean(values))


def fitted(key, n, bins):
    """A calibrated model, and the frequency of the same labels in each of its bins."""
    part_key, label_key = jax.random.split(key)
    p = jax.random.uniform(part_key, (n,))
    labels = (jax.random.uniform(label_key, (n,)) < p).astype(int)
    cell = jnp.floor(bins * p).astype(int)
    counts, sums = (
        jax.ops.segment_sum(a, cell, bins) for a in (jnp.ones_like(p), labels.astype(p.dtype))
    )
    models = two(jnp.stack([p, (sums / jnp.maximum(counts, 1))[cell]]))
    return models, models, labels


LAWS = {
    "base_rate": partial(fitted, bins=1),
    "in_sample_bins": partial(fitted, bins=10),
    "under_confident": under_confident,
    "rare_labels": rare_labels,
    "six_values": six_values,
} | {
    f"{design}_{m}": partial(dirichlet, temperatures=temperatures, m=m)
    for design, temperatures in DESIGNS.items()
    for m in (3, 20)
}
FITTED = ("base_rate", "in_sample_bins")


@partial(jax.jit, static_argnames=("n", "m"))
def without_noise(q, right, width, *, n, m):
    """CKCE at the ridge of n observations, from the mean residuals of many."""
    kernel = simplex_kernel(width)
    rank = 2 * default_rank(n, m)
    chosen, used = pivots(kernel, q[: 4 * rank], rank, 1e-4)
    features = NystroemFeatures.at(kernel, q[chosen], used)
    key = jax.random.key(0)  # deals out blocks, of which the value knows nothing
    ridge, weights = jnp.asarray(n**-0.25, q.dtype), jnp.ones(len(q), q.dtype)
    left = right - q
    return by_features(key, features, q, left, left, ridge, weights).expansion.estimate


def true_values(models, right, width, n):
    """CKCE without label noise at the ridge of n observations; models of one kind have the mean."""
    values = [
        without_noise(q, r, width, n=n, m=q.shape[1]) if bool(jnp.any(q != r)) else jnp.zeros(())
        for q, r in zip(models, right, strict=True)
    ]
    values = jnp.stack(values)
    return jnp.where(jnp.all(values > 0), jnp.mean(values), values)


def make(config: Config) -> runner.Study:
    """Rates over data sets, with differences and values of many observations as the truth."""
    cells = [
        {"law": law, "n": n, "data_sets": config.data_sets} for n in config.n for law in config.laws
    ]

    def measure(cell, key):
        law, n = LAWS[cell["law"]], cell["n"]
        in_sample = cell["law"] in FITTED
        large_key, sets_key = jax.random.split(key)
        models, right, _ = law(large_key, LARGE)
        width = pooled_bandwidth(models[:1, :2000] if in_sample else models[:, :2000])
        values = true_values(models, right, width, n)

        @runner.spread
        def every(key):
            data_key, test_key = jax.random.split(key)
            models, _, labels = law(data_key, n)
            result = compare(test_key, models, labels, n_draws=config.n_draws, bandwidth=width)
            d = result.differences
            # a model fitted to the labels is wrong, by an unknown amount
            truth = jnp.asarray([0.0, jnp.inf]) if in_sample else values
            gap = truth[:, None] - truth[None]
            shown = d.p_adjusted <= 0.05
            wrongly = shown & (d.estimate > 0) & ~(gap > 0)
            held = (result.low <= truth) & (truth <= result.high)
            kept = (result.low <= result.corrected) & (result.corrected <= result.high)
            return (
                jnp.any(wrongly),
                shown[0, 1] & (d.estimate[0, 1] * gap[0, 1] > 0),
                jnp.all((d.low <= gap) & (gap <= d.high)),
                held[0],
                result.high[0] < truth[0],
                result.low[0] > truth[0],
                held[-1],
                jnp.mean(1.0 - (kept & (result.low >= 0))),
                result.high[0] - result.low[0],
                jnp.max(result.high - result.low),
            )

        *rates, width, largest = every(jax.random.split(sets_key, config.data_sets))
        numbers = [jnp.mean(rate) for rate in rates] + [jnp.median(width), jnp.max(largest)]
        if in_sample:  # the truth of the fitted model is not computed
            numbers[2] = numbers[6] = jnp.nan
        return dict(zip(MEASURED, numbers, strict=True))

    return runner.Study(cells, MEASURED, measure, config.seed, paired=("data_sets",))


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
