"""The expansions of several models, or groups, of class probabilities, and what they say."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float, Int, PyTree

from jaxcal.ckce import kernels, probability
from jaxcal.ckce.baselines import mean_skill
from jaxcal.ckce.effect import Curve, all_softened, curve_of
from jaxcal.ckce.estimator import checked_problem, positive
from jaxcal.ckce.expansion import (
    Expansion,
    by_features,
    claimed_residuals,
    order_statistic,
    studentized,
    value_interval,
)
from jaxcal.ckce.features import NystroemFeatures, pivots, spread
from jaxcal.ckce.inputs import Ridge, class_root, noise, residuals, ridge_at, stacked
from jaxcal.ckce.results import Differences
from jaxcal.divergences.vectors import Vectors
from jaxcal.engine.batching import one_at_a_time
from jaxcal.kernels import grams, points
from jaxcal.kernels.bandwidths import median_heuristic
from jaxcal.numerics import at_least
from jaxcal.read import checks
from jaxcal.typing import ArrayLike, Contents, KernelLike, Key, Scalar

LONG = 3e10  # numbers of features multiplied by each other, a few seconds of a processor


def default_rank(n: int, m: int) -> int:
    r"""The rank of `compare` for n predictions of m classes: 2 m + 20 n^(1/4), at least 128.

    Of a Gram matrix with trace at most 2 n no more than :math:`20 n^{1/4}` eigenvalues reach a
    tenth of n^(-1/4) n, the default ridge; smaller ones are shrunk to nothing by the ridge. The
    linear part of the kernel has rank m.
    """
    return min(n, max(128, 2 * m + int(20 * n**0.25)))


def of_classes(
    key: Key,
    stack: Float[Array, "M n m"],
    targets: ArrayLike,
    *,
    n_draws: int,
    level: float,
    rank: int | None,
    prediction_kernel: KernelLike,
    similarity: ArrayLike | None,
    ridge: Ridge,
    bandwidth: ArrayLike | str | None,
) -> Contents:
    """The fields of a `Comparison` of M models, with arguments as in `compare`."""
    _, n, m = stack.shape
    if n < 3:
        raise ValueError(f"targets: comparing needs at least 3 observations, got n={n}")
    labels = checks.labels(targets, n, m)
    kernel = points.as_kernel(prediction_kernel, "prediction_kernel")
    kernels.check_bandwidth(kernel, m)
    if isinstance(bandwidth, str):
        width = None if bandwidth == "own" else pooled(stack)
    else:
        width = positive(bandwidth, stack.dtype)
    fields = compare_stack(
        key,
        stack,
        jnp.ones(stack.shape[:2], stack.dtype),
        labels,
        kernel,
        class_root(similarity, m, stack.dtype),
        ridge_at(ridge, n, stack.dtype),
        width,
        n_draws=n_draws,
        rank=default_rank(n, m) if rank is None else min(checks.integer(rank, "rank"), n),
        level=level,
        thing="model",
    )
    return fields | {"n": n, "unit": "temperature"}


def errors_of_models(
    key: Key, models: Any, targets: ArrayLike, n_draws: int, level: float
) -> Contents:
    """The fields of a `Comparison` of models by the measure "probability"."""
    stack = stacked(models)[1]
    _, n, m = stack.shape
    if n < 3:
        raise ValueError(f"targets: comparing needs at least 3 observations, got n={n}")
    weights = jnp.ones(stack.shape[:2], stack.dtype)
    components = probability.n_components(n, m)
    return _errors(key, stack, weights, checks.labels(targets, n, m), components, n_draws, level)


def errors_of_groups(
    key: Key, predictions: Any, targets: ArrayLike, groups: Any, n_draws: int, level: float
) -> tuple[Contents, tuple[str, ...]]:
    """The fields of a `Comparison` of one model's groups, with as many components as the smallest
    has, and their names."""
    q = one_model(predictions)
    n, m = q.shape
    labels, kinds = checks.labels(targets, n, m), grouped(groups, n)
    components = probability.n_components(min(kinds.sizes), m)
    stack = jnp.broadcast_to(q, (len(kinds.names), n, m))
    weights = jnp.asarray(kinds.weights, q.dtype)
    return _errors(key, stack, weights, labels, components, n_draws, level), kinds.names


def _errors(
    key: Key,
    stack: Float[Array, "M n m"],
    weights: Float[Array, "M n"],
    labels: Int[Array, " n"],
    components: int,
    n_draws: int,
    level: float,
) -> Contents:
    errors_key, draws_key = jax.random.split(key)
    size = {"components": components, "n_draws": n_draws}
    each, skills = probability.errors(errors_key, stack, weights, labels, **size)
    none, zero = jnp.zeros(len(stack), jnp.int32), jnp.zeros(len(stack), stack.dtype)
    return probability.judged(draws_key, each, level) | {
        "skill": skills,
        "bandwidths": zero,
        "ridge": zero[0],
        "left_out": zero,
        "nonfinite_kernel": none,
        "n": stack.shape[1],
        "unit": "probability",
    }


class Grouped(NamedTuple):
    """Groups of the observations of one model: names, and weights [g, n], 1 of its own."""

    names: tuple[str, ...]
    weights: Float[np.ndarray, "g n"]

    @property
    def sizes(self) -> list[int]:
        return self.weights.sum(axis=1).astype(int).tolist()


def grouped(groups: Any, n: int) -> Grouped:
    """The groups of n observations, or an error that names the argument."""
    if isinstance(groups, Tracer):
        raise TypeError("groups: inside jit or vmap close over them, as they decide shapes")
    try:
        labels = np.asarray(groups.detach().cpu() if hasattr(groups, "detach") else groups)
    except ValueError:  # rows of several lengths
        labels = np.zeros(0)
    if labels.ndim != 1 or not labels.size or labels.dtype.kind not in "iubUSO":
        raise ValueError(f"groups: wanted text or integers of shape [n], got {checks.say(groups)}")
    if labels.size != n:
        raise ValueError(f"groups: wanted one for each of {n} observations, got {labels.size}")
    text = labels.dtype.kind in "USO"
    names, place, sizes = np.unique(labels.astype(str), return_inverse=True, return_counts=True)
    if len(names) < 2:
        raise ValueError(f"groups: wanted at least 2 groups, got {len(names)}")
    if min(sizes) < 3:
        raise ValueError(
            f"groups: comparing needs at least 3 observations of each, got {sizes.tolist()}"
        )
    return Grouped(
        tuple(name if text else f"group {name}" for name in names.tolist()),
        (place == np.arange(len(names))[:, None]).astype(float),
    )


def one_model(predictions: Any) -> Float[Array, "n m"]:
    """The class probabilities of the one model whose groups are compared."""
    try:
        return checks.probabilities(predictions, binary=True)
    except (TypeError, ValueError) as error:
        raise type(error)(f"models: groups are those of one model; {error}") from None


def of_groups(
    key: Key,
    predictions: Any,
    targets: ArrayLike,
    groups: Any,
    *,
    n_draws: int,
    level: float,
    rank: int | None,
    prediction_kernel: KernelLike,
    similarity: ArrayLike | None,
    ridge: Ridge,
    bandwidth: ArrayLike | None,
) -> tuple[Contents, tuple[str, ...]]:
    """One model's groups in the place of models, with arguments as in `compare`; their names."""
    q = one_model(predictions)
    problem = checked_problem(q, targets, prediction_kernel, similarity, None, bandwidth)
    n, m = problem.q.shape
    names, weights = grouped(groups, n)
    fields = compare_stack(
        key,
        jnp.broadcast_to(problem.q, (len(names), n, m)),
        jnp.asarray(weights, problem.q.dtype),
        problem.labels,
        problem.kernel,
        problem.root,
        ridge_at(ridge, n // len(names), problem.q.dtype),
        problem.bandwidth,
        n_draws=n_draws,
        rank=default_rank(n, m) if rank is None else min(checks.integer(rank, "rank"), n),
        level=level,
        thing="group",
    )
    return fields | {"n": n, "unit": "temperature"}, names


@jax.jit
def pooled(models: Float[Array, "M n m"]) -> Scalar:
    """The mean of the models' median distances, each weighted by itself; 1 where all are 0."""

    def of_one(q: Array) -> Array:
        length, one_prediction = median_heuristic(Vectors(q), q)
        return jnp.where(one_prediction | ~jnp.isfinite(length), 0, length)

    return kernels.weighted_by_itself(jax.lax.map(of_one, models))


class _Expanded(NamedTuple):
    expansion: Expansion
    curve: Curve
    bandwidth: Scalar
    left_out: Scalar
    nonfinite: Int[Array, "2"]  # predictions, values of the kernel


def _expanded(
    q: Array,
    weights: Array,
    key: Key,
    labels: Array,
    kernel: KernelLike,
    root: Array | None,
    ridge: Array,
    width: Array | None,
    *,
    rank: int,
) -> _Expanded:
    """One model's statistic, expanded, and what it is compared with."""
    kernel, bandwidths = kernels.fill(kernel, q, width)
    tolerance = 1000 * float(jnp.finfo(q.dtype).eps)
    candidates = spread(q)
    chosen, used = pivots(kernel, candidates, min(rank, len(candidates)), tolerance)
    features = NystroemFeatures.at(kernel, candidates[chosen], used)
    key, signs_key = jax.random.split(key)
    left = residuals(q, labels, root)
    claimed = claimed_residuals(signs_key, left, noise(q, root))
    soft = partial(all_softened, root=root)
    fitted = by_features(key, features, q, left, claimed, ridge, weights, also=soft)
    diagonal = grams.gram_diagonal(kernel, q)
    left_out = at_least(1 - fitted.kept / jnp.sum(weights * diagonal), 0)
    used_width = bandwidths.get("prediction", jnp.ones((), q.dtype))
    bad_kernel = jnp.sum(~jnp.isfinite(grams.gram(kernel, q, candidates[chosen][:1])))
    bad_kernel = bad_kernel + jnp.sum(~jnp.isfinite(diagonal))
    nonfinite = jnp.stack([jnp.sum(~jnp.isfinite(q).all(axis=1)), bad_kernel])
    return _Expanded(fitted.expansion, curve_of(fitted), used_width, left_out, nonfinite)


def compare_stack(
    key: Key,
    stack: Float[Array, "M n m"],
    weights: Float[Array, "M n"],
    labels: Int[Array, " n"],
    kernel: KernelLike,
    root: Array | None,
    ridge: Scalar,
    width: Array | None,
    *,
    n_draws: int,
    rank: int,
    level: float | Scalar,
    thing: str,
) -> Contents:
    """The fields of a `Comparison` of M models, each with weights 0 or 1 of the observations.

    Where that takes more than a few seconds a bar on stderr counts the models, each a ``thing``.
    """
    blocks_key, draws_key = jax.random.split(key)
    shared = (blocks_key, labels, kernel, root, ridge, width)
    count, n, _ = stack.shape
    eager = not any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves((key, stack, shared)))
    if eager and count * n * rank**2 > LONG:
        from tqdm import tqdm

        each = []
        for model in tqdm(range(count), desc="compare", unit=thing, leave=False):
            pair = (stack[model][None], weights[model][None])
            each.append(_measured(*pair, shared, rank=rank))
            jax.block_until_ready(each[-1])
        parts, skills = jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *each)
    else:
        parts, skills = _measured(stack, weights, shared, rank=rank)
    return judged(parts.expansion, parts.curve, draws_key, level, n_draws) | {
        "skill": skills,
        "bandwidths": parts.bandwidth,
        "ridge": ridge,
        "left_out": parts.left_out,
        "nonfinite_predictions": parts.nonfinite[:, 0],
        "nonfinite_kernel": parts.nonfinite[:, 1],
    }


@partial(jax.jit, static_argnames="rank")
def _measured(
    stack: Array, weights: Array, shared: tuple[PyTree, ...], *, rank: int
) -> tuple[_Expanded, dict[str, Array]]:
    """Expansions and skills of models, one at a time on a CPU."""

    @one_at_a_time
    def one(q: Array, weight: Array, shared: tuple[PyTree, ...]) -> _Expanded:
        return _expanded(q, weight, *shared, rank=rank)

    parts = jax.vmap(lambda q, weight: one(q, weight, shared))(stack, weights)
    return parts, jax.vmap(lambda q, weight: mean_skill(q, shared[1], weight))(stack, weights)


@partial(jax.jit, static_argnames="n_draws")
def judged(
    expansions: Expansion,
    curves: Curve,
    key: Key,
    level: float | Scalar,
    n_draws: int,
) -> Contents:
    """What a `Comparison` says of M statistics, however they were made."""
    ready = studentized(key, expansions, n_draws=n_draws)
    valued = jnp.isfinite(expansions.value) & jnp.isfinite(expansions.slope)
    values = jnp.where(valued, expansions.value, jnp.nan)
    corrected = jnp.where(valued, at_least(values, 0), jnp.nan)
    differences = Differences.of(values, ready, level)
    shown = (differences.p_adjusted <= level) & (differences.estimate > 0)
    terms = jnp.moveaxis(ready.terms, -1, 0)

    def interval(value: Scalar, slope: Scalar, terms: Array) -> tuple[Scalar, Scalar]:
        return value_interval(value, slope, terms, ready.normal, level)

    low, high = jax.vmap(interval)(expansions.value, expansions.slope, terms)
    label_noise = order_statistic(ready.terms[:, 1], 1 - level)
    return {
        "estimate": expansions.estimate,
        "corrected": corrected,
        "low": low,
        "high": high,
        "differences": differences,
        "may_be_best": valued & ~jnp.any(shown, axis=1),
        "effect": jax.vmap(Curve.effect)(curves, corrected, low, high, label_noise),
    }
