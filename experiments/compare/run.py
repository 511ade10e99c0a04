"""Comparing models: do intervals cover, and how often is one of equal models accused?"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxcal.ckce import compare
from jaxcal.ckce.class_comparison import default_rank, pooled
from jaxcal.ckce.inputs import n_components
from jaxcal.ckce.kernels import simplex_kernel
from jaxcal.ckce.probability import basis
from jaxcal.ckce.solvers import primal_fit
from jaxcal.kernels import Gaussian
from jaxcal.kernels.grams import NystroemFeatures, pivots
from jaxcal.streaming import StreamedTest

sys.path.insert(0, str(Path(__file__).parents[1]))
import runner

FOLDER = Path(__file__).parent
LARGE = 10_000  # observations behind a true value

MEASURED = (
    "accused",  # some difference at .05 after adjustment that is none, or has the other sign
    "found",  # the first pair, at .05 after adjustment, with the right sign
    "all_differences_covered",
    "value_covered",  # of the first model
    "value_below",  # the interval lies below the truth
    "value_above",
    "last_covered",  # of the last model
    "best_kept",  # all models that are the best may be so
    "outside_interval",  # share of models whose own estimate is outside, or an end negative
    "width",  # median, of the first model
    "largest_width",  # of all models and data sets
)


@dataclass(frozen=True)
class Config:
    measures: tuple[tuple[str, int, tuple[int, ...]], ...] = (
        ("probability", 500, (20, 100, 400)),
        ("ckce", 200, (20, 100)),
        ("skce", 200, (100,)),
        ("probability", 200, (2000,)),
        ("ckce", 200, (400,)),
        ("skce", 200, (400,)),
        ("skce", 100, (2000,)),
        ("ckce", 100, (2000,)),
        ("streamed", 200, (2000,)),
    )
    laws: tuple[str, ...] = (
        "calibrated_3",
        "over_confident_3",
        "under_confident",
        "rare_labels",
        "calibrated_20",
        "square_wave",
        "one_hot",
        "base_rate",
        "in_sample_bins",
        "one_better_3",
        "five_calibrated_3",
        "five_one_better_3",
        "six_values",
        "over_confident_20",
        "opposite_3",
        "rare_class",
        "opposite_halves",
    )
    unseen: tuple[tuple[str, int, tuple[int, ...]], ...] = (
        ("probability", 500, (100, 400)),
        ("ckce", 200, (100,)),
        ("skce", 200, (100,)),
    )
    n_draws: int = 199
    seed: int = 20261124


# cells that accused in .07 or covered in .93 or less, with more data sets (the first ones included)
AGAIN: dict[tuple[str, int, str], int] = {
    ("opposite_3", 400, "probability"): 2000,
    ("opposite_halves", 400, "probability"): 2000,
    ("opposite_3", 400, "ckce"): 1000,
    ("over_confident_20", 400, "ckce"): 1000,
    ("under_confident", 2000, "ckce"): 500,
    ("heavy_logits", 400, "probability"): 2000,
    ("over_confident_20", 100, "ckce"): 1000,
    ("opposite_halves", 100, "probability"): 2000,
    ("under_confident", 2000, "skce"): 500,
    ("under_confident", 400, "ckce"): 1000,
    ("over_confident_3", 2000, "skce"): 500,
    ("one_hot", 2000, "ckce"): 500,
    ("under_confident", 2000, "probability"): 1000,
    ("one_hot", 2000, "skce"): 500,
    ("heavy_logits", 100, "ckce"): 1000,
}


QUICK = Config(
    measures=(("probability", 4, (40,)), ("ckce", 4, (40,)), ("streamed", 2, (1024,))),
    laws=("calibrated_3", "base_rate"),
    unseen=(),
    n_draws=19,
)


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
    """Calibrated models of labels with probability .01."""
    part_key, label_key = jax.random.split(key)
    return binary(label_key, jax.random.uniform(part_key, (2, n), maxval=0.02), 0.01)


def square_wave(key, n):
    """Two models that are .1 too high and too low by turns."""
    part_key, label_key = jax.random.split(key)
    right, _, labels = binary(label_key, jax.random.uniform(part_key, (2, n)), 0.5)
    p = right[..., 1]
    return two(p + 0.1 * jnp.sign(jnp.sin(16 * jnp.pi * p))), right, labels


def one_hot(key, n):
    """Two models that are sure of a class, and right in 85 %."""
    label_key, error_key = jax.random.split(key)
    labels = jax.random.bernoulli(label_key, 0.5, (n,))
    says = labels ^ jax.random.bernoulli(error_key, 0.15, (2, n))
    return two(says * 1.0), two(jnp.where(says, 0.85, 0.15)), labels.astype(int)


def rare_class(key, n):
    """Three classes, one of probability .02, whose odds both models halve."""
    part_key, label_key = jax.random.split(key)
    base = jnp.asarray([0.6, 0.38, 0.02])
    logs = jax.random.loggamma(part_key, jnp.broadcast_to(8 * base, (2, n, 3)))
    parts = jax.nn.softmax(logs, axis=-1)
    right = (parts + base) / 2
    labels = jax.random.categorical(label_key, jnp.log(jnp.mean(parts, axis=0)))
    halved = right * jnp.asarray([1, 1, 0.5])
    return halved / jnp.sum(halved, axis=-1, keepdims=True), right, labels


def opposite_halves(key, n):
    """A model that says too much above 1/2, and one that says too little below it."""
    part_key, label_key = jax.random.split(key)
    p = jax.random.uniform(part_key, (n,))
    labels = (jax.random.uniform(label_key, (n,)) < p).astype(int)
    models = [jnp.where(p > 0.5, p + 0.55 * (1 - p), p), jnp.where(p < 0.5, 0.45 * p, p)]
    return two(jnp.stack(models)), two(jnp.stack([p, p])), labels


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


# temperatures of Dirichlet models: 1 is calibrated, below is too sure
DESIGNS = {
    "calibrated_3": ((1.0, 1.0), 3),
    "over_confident_3": ((0.5, 0.5), 3),
    "one_better_3": ((1.0, 0.5), 3),
    "five_calibrated_3": ((1.0,) * 5, 3),
    "five_one_better_3": ((1.0, *(0.5,) * 4), 3),
    "opposite_3": ((0.5, 2.0), 3),
    "calibrated_20": ((1.0, 1.0), 20),
    "over_confident_20": ((0.5, 0.5), 20),
}
LAWS = {
    "base_rate": partial(fitted, bins=1),
    "in_sample_bins": partial(fitted, bins=10),
    "under_confident": under_confident,
    "rare_labels": rare_labels,
    "square_wave": square_wave,
    "one_hot": one_hot,
    "six_values": six_values,
    "rare_class": rare_class,
    "opposite_halves": opposite_halves,
} | {name: partial(dirichlet, temperatures=t, m=m) for name, (t, m) in DESIGNS.items()}
FITTED = ("base_rate", "in_sample_bins")


def seen_in_part(key, parts, mean):
    """What two models should say that see one of two independent parts [2, n, m] each, whose mean
    is the truth; and labels."""
    labels = jax.random.categorical(key, jnp.log(jnp.mean(parts, axis=0)))
    return (parts + mean) / 2, labels


def dirichlet_parts(key, n, weights):
    logs = jax.random.loggamma(key, jnp.broadcast_to(weights, (2, n, len(weights))))
    return jax.nn.softmax(logs, axis=-1)


def powered(q, power):
    return jax.nn.softmax(power * jnp.log(q), axis=-1)


def wrong_labels_4(key, n):
    """15 % of the labels are drawn anew, which neither model knows."""
    keys = jax.random.split(key)
    parts = 0.85 * dirichlet_parts(keys[0], n, jnp.full(4, 0.75)) + 0.15 / 4
    right, labels = seen_in_part(keys[1], parts, 0.25)
    return (right - 0.15 / 4) / 0.85, right, labels


def shifted_logits(key, n):
    """Two models of two classes, mostly sure, whose logits are .5 too high."""
    keys = jax.random.split(key)
    right, labels = seen_in_part(keys[1], dirichlet_parts(keys[0], n, jnp.full(2, 0.3)), 0.5)
    return jax.nn.softmax(jnp.log(right) + jnp.asarray([0.0, 0.5]), axis=-1), right, labels


def two_populations(key, n):
    """Calibrated models that are nearly certain of one half of the observations."""
    keys = jax.random.split(key)
    weights = jnp.where(jnp.arange(n) % 2, 10.0, 0.1)[None, :, None]
    logs = jax.random.loggamma(keys[0], jnp.broadcast_to(weights, (2, n, 3)))
    right, labels = seen_in_part(keys[1], jax.nn.softmax(logs, axis=-1), 1 / 3)
    return right, right, labels


def merged_5(key, n):
    """Calibrated models, the second of which cannot tell two classes apart."""
    keys = jax.random.split(key)
    right, labels = seen_in_part(keys[1], dirichlet_parts(keys[0], n, jnp.full(5, 0.6)), 0.2)
    mean = jnp.mean(right[1, :, :2], axis=1, keepdims=True)
    right = right.at[1, :, :2].set(mean)
    return right, right, labels


def heavy_logits(key, n):
    """Student's logits; the first model is too sure, the second one not sure enough."""
    keys = jax.random.split(key)
    parts = jax.nn.softmax(jax.random.t(keys[0], 2.0, (2, n, 3)), axis=-1)
    right, labels = seen_in_part(keys[1], parts, 1 / 3)
    return jnp.stack([powered(right[0], 1 / 0.6), powered(right[1], 1 / 1.6)]), right, labels


def unequal_10(key, n):
    """Ten classes, the rarest a tenth as frequent as the first; the second model hedges."""
    keys = jax.random.split(key)
    base = 1 / jnp.arange(1, 11)
    base = base / jnp.sum(base)
    right, labels = seen_in_part(keys[1], dirichlet_parts(keys[0], n, 5 * base), base)
    return jnp.stack([right[0], 0.8 * right[1] + 0.02]), right, labels


# run once, when nothing was to be changed any more
UNSEEN = {
    "wrong_labels_4": wrong_labels_4,
    "shifted_logits": shifted_logits,
    "two_populations": two_populations,
    "merged_5": merged_5,
    "heavy_logits": heavy_logits,
    "unequal_10": unequal_10,
}
LAWS |= UNSEEN


@partial(jax.jit, static_argnames=("n", "m"))
def without_noise(q, right, width, *, n, m):
    """CKCE at the ridge of n observations, from the mean residuals of many."""
    kernel = simplex_kernel(width)
    rank = 2 * default_rank(n, m)
    chosen, used = pivots(kernel, q[: 4 * rank], rank, 1e-4)
    features = NystroemFeatures.at(kernel, q[chosen], used)
    ridge = jnp.asarray(n**-0.25, q.dtype)
    return primal_fit(features, q, right - q, ridge, height=jnp.ones(()))[0].estimate


@partial(jax.jit, static_argnames=("n", "m"))
def regressed(q, right, width, *, n, m):
    """Half the mean square of the linear regression of the mean residuals of many on q."""
    f = basis(q, jnp.ones(len(q)), n_components(n, m))(q)
    return jnp.sum((f.T @ (right - q)) ** 2) / (2 * len(q))


@partial(jax.jit, static_argnames=("n", "m"))
def averaged(q, right, width, *, n, m):
    """SKCE of the mean residuals of many."""
    kernel = Gaussian(width)
    rank = 2 * default_rank(n, m)
    chosen, used = pivots(kernel, q[: 4 * rank], rank, 1e-4)
    f = NystroemFeatures.at(kernel, q[chosen], used)(q)
    return jnp.sum((f.T @ (right - q)) ** 2) / len(q) ** 2


TRUTH = {"ckce": without_noise, "skce": averaged}
TRUTH |= dict.fromkeys(("probability", "streamed"), regressed)


def true_values(measure, models, right, width, n):
    """Values without label noise as n observations have them; models of one kind have the mean."""
    values = []
    for q, r in zip(models, right, strict=True):
        wrong = bool(jnp.any(jnp.abs(q - r) > 1e-5))
        value = TRUTH[measure](q, r, width, n=n, m=q.shape[1]) if wrong else jnp.zeros(())
        values.append(value)
    values = jnp.stack(values)
    some = values > 0
    common = jnp.sum(values) / jnp.maximum(jnp.sum(some), 1)
    alike = jnp.max(values) < 1.1 * jnp.min(jnp.where(some, values, jnp.inf))
    return jnp.where(some & alike, common, values)


@partial(jax.jit, static_argnames=("law", "n"))
def drawn(keys, law, n):
    """Models [sets, M, n, m] and labels [sets, n]."""
    return jax.lax.map(lambda key: law(key, n)[::2], keys)


@partial(jax.jit, static_argnames=("n_draws", "measure"))
def compared(keys, models, labels, width, *, n_draws, measure):
    """One comparison a data set, compiled once for all laws of a shape."""
    options = {} if measure == "probability" else {"bandwidth": width}

    def one(of):
        return compare(*of, n_draws=n_draws, measure=measure, **options)

    return jax.lax.map(one, (keys, models, labels))


def streamed(keys, models, labels, *, n_draws):
    """The comparisons by "probability" of one pass, in batches of a quarter of the observations."""
    size, results = labels.shape[1] // 4, []
    for key, q, y in zip(keys, np.asarray(models), np.asarray(labels), strict=True):
        test = StreamedTest.comparison(key, q, y, n_draws=n_draws)
        cuts = range(0, len(y), size)
        state = test.run((q[:, start : start + size], y[start : start + size]) for start in cuts)
        results.append(test.result(state))
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *results)


@jax.jit
def rates(results, truth):
    """What is measured, of each comparison."""
    gap = truth[:, None] - truth[None]

    def one(result):
        d = result.differences
        shown = d.p_adjusted <= 0.05
        wrongly = shown & (d.estimate > 0) & ~(gap > 0)
        covered = (result.low <= truth) & (truth <= result.high)
        kept = (result.low <= result.corrected) & (result.corrected <= result.high)
        return (
            jnp.any(wrongly),
            shown[0, 1] & (d.estimate[0, 1] * gap[0, 1] > 0),
            jnp.all(((d.low <= gap) & (gap <= d.high)) | jnp.eye(len(truth), dtype=bool)),
            covered[0],
            result.high[0] < truth[0],
            result.low[0] > truth[0],
            covered[-1],
            jnp.all(result.may_be_best | (truth > jnp.min(truth))),
            jnp.mean(1.0 - (kept & (result.low >= 0))),
            result.high[0] - result.low[0],
            jnp.max(result.high - result.low),
        )

    return jax.lax.map(one, results)


def make(config: Config) -> runner.Study:
    """Rates over data sets, with differences and values of many observations as the truth."""
    cells = [
        {"law": law, "n": n, "measure": measure, "data_sets": AGAIN.get((law, n, measure), sets)}
        for measures, laws in ((config.measures, config.laws), (config.unseen, UNSEEN))
        for measure, sets, sizes in measures
        for n in sizes
        for law in laws
    ]

    def measure(cell, key):
        law, n = LAWS[cell["law"]], cell["n"]
        in_sample = cell["law"] in FITTED
        large_key, sets_key, test_key = jax.random.split(key, 3)
        models, right, _ = jax.jit(law, static_argnums=1)(large_key, LARGE)
        width = pooled(models[:1, :2000] if in_sample else models[:, :2000])
        values = true_values(cell["measure"], models, right, width, n)
        # a model fitted to the labels is wrong, by an unknown amount
        truth = jnp.asarray([0.0, jnp.inf]) if in_sample else values
        models, labels = drawn(jax.random.split(sets_key, cell["data_sets"]), law, n)
        keys = jax.random.split(test_key, cell["data_sets"])
        if cell["measure"] == "streamed":
            results = streamed(keys, models, labels, n_draws=config.n_draws)
        else:
            options = {"n_draws": config.n_draws, "measure": cell["measure"]}
            results = compared(keys, models, labels, width, **options)
        *shares, width_of, largest = rates(results, truth)
        numbers = [jnp.mean(share) for share in shares] + [jnp.median(width_of), jnp.max(largest)]
        if in_sample:  # the truth of the fitted model is not computed
            numbers[2] = numbers[6] = jnp.nan
        return dict(zip(MEASURED, numbers, strict=True))

    return runner.Study(cells, MEASURED, measure, config.seed, paired=("data_sets", "measure"))


def main(arguments: Sequence[str] | None = None) -> Path:
    return runner.command_line(make, Config(), QUICK, FOLDER, arguments)


if __name__ == "__main__":
    main()
