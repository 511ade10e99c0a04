r"""Which of several models is calibrated best? Every pairwise difference, with its uncertainty.

All models see the same observations and the same draws of the bootstrap: a difference of two is
far more certain than either value.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxcal import checks
from jaxcal.batching import one_at_a_time
from jaxcal.ckce import kernels
from jaxcal.ckce.baselines import skill
from jaxcal.ckce.compare_any import are_classes, expanded, log_scores, specifications
from jaxcal.ckce.comparison import Comparison, Differences
from jaxcal.ckce.effect import Curve, EffectSize, calibrated_value, temperatures
from jaxcal.ckce.estimator import positive
from jaxcal.ckce.expansion import Expansion, by_features
from jaxcal.ckce.general import floating
from jaxcal.ckce.kernels import simplex_kernel
from jaxcal.ckce.low_rank import NystroemFeatures, pivots, spread
from jaxcal.ckce.multipliers import studentized, value_interval
from jaxcal.ckce.residuals import class_root, named, residuals, stacked
from jaxcal.ckce.ridge import Ridge, ridge_at
from jaxcal.divergences.vectors import Vectors
from jaxcal.kernels import points
from jaxcal.kernels.bandwidths import median_heuristic
from jaxcal.numerics import at_least
from jaxcal.typing import Key, KeyLike, Scalar


def default_rank(n: int, m: int) -> int:
    r"""The rank of `compare` for n predictions of m classes: 2 m + 20 n^(1/4), at least 128.

    Of a Gram matrix with trace at most 2 n no more than :math:`20 n^{1/4}` eigenvalues reach a
    tenth of n^(-1/4) n, the default ridge; smaller ones are shrunk to nothing by the ridge. The
    linear part of the kernel has rank m.
    """
    return min(n, max(128, 2 * m + int(20 * n**0.25)))


def compare(
    key: KeyLike,
    models: Any,
    targets: Any,
    *,
    n_draws: int = 999,
    level: float = 0.05,
    rank: int | None = None,
    prediction_kernel: Any = None,
    similarity: Any = None,
    ridge: Ridge = None,
    bandwidth: Any = "pooled",
) -> Comparison:
    r"""Which of M models is calibrated best: values, every difference, and the best ones.

    The error is CKCE at one ridge and kernel for all models, without the products of observations
    with themselves, :math:`\sum_{i \ne j} W_{ij} r_i^\top r_j`, W = A^-1 K A^-1: label noise,
    which differs between models, adds nothing to it on average. Intervals and p-values are of the
    difference of the means at this ridge, by a multiplier bootstrap of standardized differences
    (`jaxcal.ckce.multipliers`) with both terms of the expansion of CKCE
    (`jaxcal.ckce.expansion`): the second rules between calibrated models, where the first one
    vanishes. The adjusted p-value compares with the largest standardized draw over all pairs.
    Where both models are calibrated the test is somewhat conservative. p >= 1 / (n_draws + 1).

    Args:
        key: Random key: typed, legacy or an integer.
        models: A mapping from names to predictions, or a list of them: class probabilities
            [n, m] (or an array [M, n, m]); numpyro distributions with batch shape [n] and
            `jaxcal.Draws`, compared by kernel means (`ckce_means`); or, where one is a
            `jaxcal.Unnormalized` or `jaxcal.Scores`, densities, compared by scores in units of
            their own spread (`ckce_stein`).
        targets: [n] Classes 0..m-1, or values [n] or [n, d].
        n_draws: Draws of the bootstrap.
        level: Up to it a p-value says "better"; intervals have confidence 1 - level.
        rank: Largest rank of a Gram matrix, by incomplete Cholesky; None is `default_rank`. What
            it leaves out is in ``left_out``.
        prediction_kernel: On probability vectors, by default `simplex_kernel`; else on a distance
            between predictions, by default a Gaussian plus a constant. Unset bandwidths take
            ``bandwidth``.
        similarity: [m, m] Gram matrix of the classes; None is that of equality.
        ridge: A number, a function of n, or None for n^(-1/4).
        bandwidth: "pooled" for the median distances of all models (`pooled_bandwidth`), a number,
            or "own", a median each.

    Returns:
        `Comparison`. Values do not depend on the order of the observations; the draws do.

    Raises:
        ValueError: Shapes disagree, or there are fewer than 2 models or 3 observations.
        TypeError: An argument has the wrong type, named.

    Cost: M (n r^2 + min(n, 1024)^2 n_draws) multiplications and M min(n, 1024)^2 memory, for rank
    r; other predictions than class probabilities take 8 M n^3 instead.

    Source: Moskvichev and Sejdinovic rank models by CKCE and have no intervals; these are ours.

    Example:
        >>> import jax, jaxcal
        >>> from jax.nn import softmax
        >>> logits = jax.random.normal(jax.random.key(0), (300, 3))
        >>> labels = jax.random.categorical(jax.random.key(1), logits)
        >>> models = {"right": softmax(logits), "too sure": softmax(3 * logits)}
        >>> print(jaxcal.compare(0, models, labels).best())
        ['right']
    """
    key = checks.key(key)
    level, n_draws = checks.level(level), checks.integer(n_draws, "n_draws")
    if isinstance(bandwidth, str) and bandwidth not in ("own", "pooled"):
        raise ValueError(f"bandwidth: wanted 'pooled', 'own' or a number, got {bandwidth!r}")
    names, each = named(models)
    if are_classes(each):
        fields = _of_classes(
            key,
            stacked(models)[1],
            targets,
            n_draws=n_draws,
            level=level,
            rank=rank,
            prediction_kernel=simplex_kernel() if prediction_kernel is None else prediction_kernel,
            similarity=similarity,
            ridge=ridge,
            bandwidth=bandwidth,
        )
    else:
        for name, value in (("rank", rank), ("similarity", similarity)):
            if value is not None:
                raise ValueError(f"{name}: an option for class probabilities alone")
        if bandwidth == "own":
            raise ValueError("bandwidth: 'own' is an option for class probabilities alone")
        fields = _of_any(
            key,
            names,
            each,
            targets,
            n_draws=n_draws,
            level=level,
            prediction_kernel=prediction_kernel,
            ridge=ridge,
            bandwidth=bandwidth,
        )
    return Comparison(**fields, names=names, n_draws=n_draws, level=level)


def _of_classes(
    key: Key,
    stack: Float[Array, "M n m"],
    targets: Any,
    *,
    n_draws: int,
    level: float,
    rank: int | None,
    prediction_kernel: Any,
    similarity: Any,
    ridge: Ridge,
    bandwidth: Any,
) -> dict[str, Any]:
    _, n, m = stack.shape
    if n < 3:
        raise ValueError(f"targets: comparing needs at least 3 observations, got n={n}")
    labels = checks.labels(targets, n, m)
    kernel = points.as_kernel(prediction_kernel, "prediction_kernel")
    kernels.check_bandwidth(kernel, m)
    if isinstance(bandwidth, str):
        width = None if bandwidth == "own" else _pooled(stack)
    else:
        width = positive(bandwidth, stack.dtype)
    fields = _compare(
        key,
        stack,
        labels,
        kernel,
        class_root(similarity, m, stack.dtype),
        ridge_at(ridge, n, stack.dtype),
        width,
        n_draws=n_draws,
        rank=default_rank(n, m) if rank is None else min(checks.integer(rank, "rank"), n),
        level=level,
    )
    return fields | {"n": n, "unit": "temperature"}


def _of_any(
    key: Key,
    names: tuple[str, ...],
    models: list[Any],
    targets: Any,
    *,
    n_draws: int,
    level: float,
    prediction_kernel: Any,
    ridge: Ridge,
    bandwidth: Any,
) -> dict[str, Any]:
    each, ys, specs = specifications(names, models, targets, prediction_kernel)
    n, dtype = ys.shape[0], floating(ys)
    if n < 3:
        raise ValueError(f"targets: comparing needs at least 3 observations, got n={n}")
    fit_key, draws_key = jax.random.split(key)
    strength = ridge_at(ridge, n, dtype)
    width = None if isinstance(bandwidth, str) else positive(bandwidth, dtype)
    parts, widths = expanded(fit_key, each, ys, specs, strength, width, level, n_draws)
    scores = log_scores(each, ys)
    none = jnp.zeros(len(names), jnp.int32)
    return _judged(parts.expansion, parts.curve, parts.noise, draws_key, level, n_draws) | {
        "skill": {} if np.all(np.isnan(np.asarray(scores))) else {"log": scores},
        "bandwidths": widths,
        "ridge": strength,
        "left_out": jnp.zeros(len(names), dtype),
        "nonfinite_predictions": parts.nonfinite,
        "nonfinite_kernel": none,
        "n": n,
        "unit": "shift",
    }


def pooled_bandwidth(models: Any) -> Scalar:
    r"""One bandwidth for all models: the mean of their medians, each weighted by itself.

    :math:`\gamma = \sum_k m_k^2 / \sum_k m_k` with m_k the median distance of two different
    predictions of model k, 0 where all are equal or one is NaN; 1 where that is so of all models.
    A bandwidth far below a model's distances makes its Gram matrix the identity, and CKCE of that
    model noise; one far above leaves a model of little spread nearly constant, as it is. So a
    model counts by how far its predictions differ: where all medians agree this is their value, it
    lies between their mean and the largest, and one more model moves it from :math:`\gamma'` by
    :math:`m (m - \gamma') / \sum_k m_k`, which vanishes with m. The median of all distances
    together is ruled by a model whose predictions hardly differ: half of them are (nearly) 0.

    Args:
        models: As in `jaxcal.compare`, at least one.

    Returns:
        The bandwidth, [].

    Raises:
        ValueError: Shapes or probabilities are wrong; the message names the argument.
        TypeError: An argument is of the wrong type; the message names it.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> model = jnp.array([[1.0, 0.0], [0.0, 1.0]])
        >>> round(float(jaxcal.ckce.pooled_bandwidth([model])), 3)  # the distance, sqrt(2)
        1.414
    """
    return _pooled(stacked(models, least=1)[1])


@jax.jit
def _pooled(models: Float[Array, "M n m"]) -> Scalar:
    def of_one(q: Array) -> Array:
        length, one_prediction = median_heuristic(Vectors(q), q)
        return jnp.where(one_prediction | ~jnp.isfinite(length), 0, length)

    medians = jax.lax.map(of_one, models)
    total = jnp.sum(medians)
    return jnp.where(total == 0, 1, jnp.sum(medians**2) / jnp.where(total == 0, 1, total))


class _Expanded(NamedTuple):
    expansion: Expansion
    curve: Curve
    noise: Scalar
    bandwidth: Scalar
    left_out: Scalar
    nonfinite: Int[Array, "2"]  # predictions, values of the kernel


def _expanded(
    q: Array,
    key: Key,
    labels: Array,
    kernel: Any,
    root: Any,
    ridge: Array,
    width: Any,
    level: float | Scalar,
    *,
    rank: int,
    n_draws: int,
) -> _Expanded:
    """One model's statistic, expanded, and what it is compared with."""
    kernel, bandwidths = kernels.fill(kernel, q, width)
    tolerance = 1000 * float(jnp.finfo(q.dtype).eps)
    candidates = spread(q)
    chosen, used = pivots(kernel, candidates, min(rank, len(candidates)), tolerance)
    features = NystroemFeatures.at(kernel, candidates[chosen], used)
    key, reference_key = jax.random.split(key)
    expansion, kept, low = by_features(key, features, q, residuals(q, labels, root), ridge)
    noise = calibrated_value(reference_key, features, q, ridge, root, level=level, n_draws=n_draws)
    diagonal = kernels.gram_diagonal(kernel, q)
    left_out = at_least(1 - kept / jnp.sum(diagonal), 0)
    used_width = bandwidths.get("prediction", jnp.ones((), q.dtype))
    bad_kernel = jnp.sum(~jnp.isfinite(kernels.gram(kernel, q, candidates[chosen][:1])))
    bad_kernel = bad_kernel + jnp.sum(~jnp.isfinite(diagonal))
    nonfinite = jnp.stack([jnp.sum(~jnp.isfinite(q).all(axis=1)), bad_kernel])
    curve = temperatures(features, q, low, root)
    return _Expanded(expansion, curve, noise, used_width, left_out, nonfinite)


@partial(jax.jit, static_argnames=("n_draws", "rank"))
def _compare(
    key: Key,
    stack: Float[Array, "M n m"],
    labels: Int[Array, " n"],
    kernel: Any,
    root: Any,
    ridge: Scalar,
    width: Any,
    *,
    n_draws: int,
    rank: int,
    level: float | Scalar,
) -> dict[str, Any]:
    blocks_key, draws_key = jax.random.split(key)
    shared = (blocks_key, labels, kernel, root, ridge, width, jnp.asarray(level, stack.dtype))

    @one_at_a_time
    def one(q: Array, shared: tuple[Any, ...]) -> _Expanded:
        return _expanded(q, *shared, rank=rank, n_draws=n_draws)

    parts = jax.vmap(lambda q: one(q, shared))(stack)
    skills = jax.vmap(lambda q: skill(q, labels))(stack)
    return _judged(parts.expansion, parts.curve, parts.noise, draws_key, level, n_draws) | {
        "skill": {"accuracy": skills.accuracy, "Brier": skills.brier, "log": skills.cross_entropy},
        "bandwidths": parts.bandwidth,
        "ridge": ridge,
        "left_out": parts.left_out,
        "nonfinite_predictions": parts.nonfinite[:, 0],
        "nonfinite_kernel": parts.nonfinite[:, 1],
    }


@partial(jax.jit, static_argnames="n_draws")
def _judged(
    expansions: Expansion,
    curves: Curve,
    noise: Array,
    key: Key,
    level: float | Scalar,
    n_draws: int,
) -> dict[str, Any]:
    """What a `Comparison` says of M statistics, however they were made."""
    ready = studentized(key, expansions, n_draws=n_draws)
    differences = Differences.of(ready, level)
    valued = jnp.isfinite(expansions.value) & jnp.isfinite(ready.error[:-1, -1])
    shown = (differences.p_adjusted <= level) & (differences.estimate > 0)
    terms = jnp.moveaxis(ready.terms[..., :-1], -1, 0)
    low, high = jax.vmap(lambda e, t: value_interval(e, t, level))(expansions, terms)
    corrected = jnp.where(valued, expansions.value, jnp.nan)
    sizes = [jax.vmap(Curve.size)(curves, end) for end in (corrected, low, high, noise)]
    return {
        "estimate": expansions.estimate,
        "corrected": corrected,
        "low": low,
        "high": high,
        "differences": differences,
        "may_be_best": valued & ~jnp.any(shown, axis=1),
        "effect": EffectSize(*sizes),
    }
