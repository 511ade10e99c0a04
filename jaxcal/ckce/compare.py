r"""Which of several models is calibrated best? Every pairwise difference, with its uncertainty.

All models see the same observations, so observations are drawn again for all models together:
a difference of two is far more certain than either value.
"""

from functools import partial
from itertools import pairwise
from typing import Any, ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxcal import checks
from jaxcal.batching import one_at_a_time
from jaxcal.ckce import kernels, solve
from jaxcal.ckce.estimator import COMPARABLE, positive
from jaxcal.ckce.kernels import simplex_kernel
from jaxcal.ckce.low_rank import NystroemFeatures, pivots
from jaxcal.ckce.residuals import class_root, residuals, stacked
from jaxcal.ckce.ridge import Ridge, ridge_at
from jaxcal.divergences.vectors import Vectors
from jaxcal.kernels import points
from jaxcal.kernels.bandwidths import median_heuristic
from jaxcal.numerics import at_least
from jaxcal.results import Result, Sentences, confidence
from jaxcal.typing import Key, KeyLike, Scalar


class Differences(NamedTuple):
    """Of every pair, each [M, M]: row model minus column model, so negative favours the row.

    ``estimate``; the ends ``low`` and ``high`` of its interval; ``p_value`` of no difference, and
    ``p_adjusted`` for all pairs together (the largest standardized difference, so it accounts for
    their dependence). The diagonal holds 0 and p = 1.
    """

    estimate: Float[Array, "M M"]
    low: Float[Array, "M M"]
    high: Float[Array, "M M"]
    p_value: Float[Array, "M M"]
    p_adjusted: Float[Array, "M M"]


class Comparison(Result):
    """CKCE of M models on the same n observations, and all their differences.

    ``estimate`` [M]: CKCE, never negative. ``corrected`` [M]: without the products of observations
    with themselves, so that a calibrated model scores 0 on average; differences are of these.
    ``low``, ``high`` [M]: intervals of ``corrected``; like those of ``differences`` (`Differences`)
    of confidence 1 - ``level``.
    ``first`` [M]: in what share of the resampled data sets each model was the best of those that
    have values, and NaN for the others. ``bandwidths`` [M], ``ridge`` []. ``left_out`` [M]: share
    of each Gram matrix's trace that the low rank leaves out. ``nonfinite_predictions``,
    ``nonfinite_kernel`` [M]: how many predictions, and values of the kernel on them, are NaN or
    infinite.
    """

    _scalar: ClassVar[str] = "ridge"

    estimate: Float[Array, " M"]
    corrected: Float[Array, " M"]
    low: Float[Array, " M"]
    high: Float[Array, " M"]
    differences: Differences
    first: Float[Array, " M"]
    bandwidths: Float[Array, " M"]
    ridge: Scalar
    left_out: Float[Array, " M"]
    nonfinite_predictions: Int[Array, " M"]
    nonfinite_kernel: Int[Array, " M"]
    names: tuple[str, ...] = eqx.field(static=True)
    n: int = eqx.field(static=True)
    n_draws: int = eqx.field(static=True)
    level: float = eqx.field(static=True)

    def ranking(self) -> list[str]:
        """The names of the models, best calibrated first, by ``corrected``."""
        return [self.names[i] for i in np.argsort(np.asarray(self.corrected), kind="stable")]

    def _sentences(self) -> Sentences:
        widths, left = np.asarray(self.bandwidths), np.asarray(self.left_out)
        pairs = len(self.names) * (len(self.names) - 1) // 2
        sentences = [
            (
                "every model has a bandwidth of its own, so the values are norms in different "
                f"spaces: CKCE is {COMPARABLE}",
                bool(np.any(widths != widths[0])),
            ),
            (
                f"the low rank leaves out up to {left.max():.1%} of the kernel: take a larger rank",
                bool(np.any(left > 0.01)),
            ),
            (
                f"{self.n_draws} draws cannot give p-values below {1 / (1 + self.n_draws):.2g}, "
                f"with {pairs} pairs to look at: take more",
                self.n_draws < 99,
            ),
        ]
        without_value = np.flatnonzero(~np.isfinite(np.asarray(self.corrected))).tolist()
        return sentences + [(self._why(k), True) for k in without_value]

    def _why(self, k: int) -> str:
        """Why model k has no value, from what was counted."""
        says = f"not a number for {self.names[k]}, which is left out of the others' ranking: "
        if count := int(self.nonfinite_predictions[k]):
            return says + f"{count} of its predictions are NaN or infinite"
        width = float(self.bandwidths[k])
        if count := int(self.nonfinite_kernel[k]):
            return says + (
                f"{count} values of the kernel on its predictions are NaN or infinite (bandwidth "
                f"{width:.3g})"
            )
        return says + (
            f"its Gram matrix with ridge {float(self.ridge):.3g} and bandwidth {width:.3g} is not "
            f"positive definite in {np.asarray(self.corrected).dtype}: raise the ridge or use "
            f"64-bit types"
        )

    def _contents(self) -> dict[str, Any]:
        return super()._contents() | {"ranking": self.ranking()}

    def _batch_lines(self) -> list[str]:
        return [f"Comparisons of {len(self.names)} models, batch {self.batch_shape}"]

    def _lines(self) -> list[str]:
        return _report(self)


def _report(comparison: Comparison) -> list[str]:
    wide = max(5, *(len(name) for name in comparison.names))
    order = np.argsort(np.asarray(comparison.corrected), kind="stable")
    title = f"{confidence(comparison.level)} interval"
    lines = [
        f"CKCE of {len(comparison.names)} models, n = {comparison.n}, "
        f"ridge {float(comparison.ridge):.4g}: {COMPARABLE}",
        f"  {'model':{wide}s}   corrected   {title:22s}CKCE   best in",
    ]
    for i in order:
        low, high = float(comparison.low[i]), float(comparison.high[i])
        lines.append(
            f"  {comparison.names[i]:{wide}s}   {float(comparison.corrected[i]):9.3g}   "
            f"[{low:8.3g}, {high:8.3g}]   {float(comparison.estimate[i]):7.3g}   "
            f"{float(comparison.first[i]):6.1%}"
        )
    p = np.asarray(comparison.differences.p_adjusted)
    lines.append("  each against the next, p-value adjusted for all pairs:")
    for a, b in pairwise(order):
        gap = float(comparison.differences.estimate[a, b])
        says = "better" if p[a, b] <= comparison.level else "no difference shown"
        lines.append(
            f"  {comparison.names[a]} - {comparison.names[b]}: {gap:.3g}, p = {p[a, b]:.3g}, {says}"
        )
    return lines


def compare(
    key: KeyLike,
    models: Any,
    targets: Any,
    *,
    n_draws: int = 999,
    level: float = 0.05,
    rank: int = 128,
    prediction_kernel: Any = simplex_kernel(),
    similarity: Any = None,
    ridge: Ridge = None,
    bandwidth: Any = "pooled",
) -> Comparison:
    r"""Every pairwise difference in CKCE of M models, with intervals and adjusted p-values.

    ``models``: a mapping from names to class probabilities [n, m], a sequence of them, or an array
    [M, n, m]; ``targets`` [n]: classes. One n, one ridge and one kernel serve all: ``bandwidth`` is
    the median distances of all models "pooled" (`pooled_bandwidth`), a number, or "own", a median
    each.

    Differences are of CKCE without the products of observations with themselves,
    :math:`\sum_{i \ne j} W_{ij} r_i^\top r_j`, W = A^-1 K A^-1: label noise, which differs between
    models, adds nothing to it on average. They are resampled over observations, drawn with
    replacement for all models together: the interval is the difference minus the quantiles of
    its centred draws, the p-value counts centred draws at least as large, and the adjusted one
    compares with the largest standardized draw over all pairs. ``level``: up to it a p-value says
    "better", and intervals have confidence 1 - level. Where both models of a pair are
    calibrated the draws vary too much, and the test is conservative. p >= 1 / (n_draws + 1).

    Gram matrices have rank at most ``rank``, by incomplete Cholesky; what that leaves out is
    reported. Cost M n rank^2 n_draws multiplications; models are walked by vmap.
    Values do not depend on the order of the observations; the resamples that a key draws do.
    The paper ranks models and has no intervals; the method is ours.
    """
    key = checks.key(key)
    names, stack = stacked(models)
    _, n, m = stack.shape
    if n < 3:
        raise ValueError(f"targets: comparing needs at least 3 observations, got n={n}")
    labels = checks.labels(targets, n, m)
    level = checks.level(level)
    separate = isinstance(bandwidth, str) and bandwidth == "own"
    kernel = points.as_kernel(prediction_kernel, "prediction_kernel")
    kernels.check_bandwidth(kernel, m)
    if isinstance(bandwidth, str) and bandwidth not in ("own", "pooled"):
        raise ValueError(f"bandwidth: wanted 'pooled', 'own' or a number, got {bandwidth!r}")
    if separate:
        width = None
    elif isinstance(bandwidth, str):
        width = _pooled(stack)
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
        n_draws=checks.integer(n_draws, "n_draws"),
        rank=min(checks.integer(rank, "rank"), n),
        level=level,
    )
    return Comparison(**fields, names=names, n=n, n_draws=n_draws, level=level)


def pooled_bandwidth(models: Any) -> Scalar:
    r"""One bandwidth for all models: the mean of their medians, each weighted by itself.

    :math:`\gamma = \sum_k m_k^2 / \sum_k m_k` with m_k the median distance of two different
    predictions of model k, 0 where all are equal or one is NaN; 1 where that is so of all models.

    A bandwidth far below a model's distances makes its Gram matrix the identity, and CKCE of that
    model noise; one far above leaves a model of little spread nearly constant, as it is. So a model
    counts by how far its predictions differ: where all medians agree this is their value, it lies
    between their mean and the largest, and one more model moves it from :math:`\gamma'` by
    :math:`m (m - \gamma') / \sum_k m_k`, which vanishes with m. The median of all distances
    together is ruled by a model whose predictions hardly differ: half of them are (nearly) 0.

    ``models`` as in `compare`, at least one.
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


class _Replicated(NamedTuple):
    estimate: Scalar
    corrected: Scalar
    draws: Float[Array, " b"]
    bandwidth: Scalar
    left_out: Scalar
    nonfinite: Int[Array, "2"]  # predictions, values of the kernel


def _replicated(
    q: Array,
    labels: Array,
    counts: Array,
    kernel: Any,
    root: Any,
    ridge: Array,
    width: Any,
    *,
    rank: int,
) -> _Replicated:
    """One model: its value, and its values under ``counts`` [b, n] of every observation."""
    n = q.shape[0]
    kernel, bandwidths = kernels.fill(kernel, q, width)
    tolerance = 1000 * float(jnp.finfo(q.dtype).eps)
    chosen, used = pivots(kernel, q, rank, tolerance)
    features = NystroemFeatures.at(kernel, q[chosen], used)(q)
    left = residuals(q, labels, root)
    with jax.default_matmul_precision("highest"):

        def value(weights: Array) -> tuple[Array, Array]:
            heavy = features * weights[:, None]
            low = solve.factor(heavy.T @ features, ridge * (n / rank))
            return low, jnp.sum(solve.solve(low, heavy.T @ left) ** 2)

        low, estimate = value(jnp.ones(n, q.dtype))
        # W_ii |r_i|^2, W = F (F'F + n ridge)^-2 F'
        diagonal = jnp.sum(solve.solve(low, features.T) ** 2, axis=0) * jnp.sum(left**2, axis=1)
        draws = jax.lax.map(lambda c: value(c)[1] - (c**2) @ diagonal, counts)
    whole = jnp.sum(kernels.gram_diagonal(kernel, q))
    left_out = at_least(1 - jnp.sum(features**2) / whole, 0)
    used_width = bandwidths.get("prediction", jnp.ones((), q.dtype))
    nonfinite = jnp.stack([jnp.sum(~jnp.isfinite(q).all(axis=1)), jnp.sum(~jnp.isfinite(features))])
    return _Replicated(
        estimate, estimate - jnp.sum(diagonal), draws, used_width, left_out, nonfinite
    )


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
    level: Scalar | float,
) -> dict[str, Any]:
    n = stack.shape[1]
    drawn = jax.random.randint(key, (n_draws, n), 0, n)
    counts = jax.vmap(lambda i: jnp.bincount(i, length=n))(drawn).astype(stack.dtype)

    @one_at_a_time
    def one(q: Array, shared: tuple[Any, ...]) -> _Replicated:
        return _replicated(q, *shared, rank=rank)

    shared = (labels, counts, kernel, root, ridge, width)
    replicated = jax.vmap(lambda q: one(q, shared))(stack)
    tails = jnp.asarray([level / 2, 1 - level / 2], stack.dtype)

    def interval(value: Array, centred: Array) -> tuple[Array, Array]:
        ends = jnp.quantile(centred, tails, axis=-1)
        return value - ends[1], value - ends[0]

    centred = replicated.draws - jnp.mean(replicated.draws, axis=1, keepdims=True)
    low, high = interval(replicated.corrected, centred)
    gaps = centred[:, None] - centred[None]
    estimate = replicated.corrected[:, None] - replicated.corrected[None]
    valued = jnp.isfinite(replicated.corrected) & jnp.all(jnp.isfinite(replicated.draws), axis=1)
    best = jnp.argmin(jnp.where(valued[:, None], replicated.draws, jnp.inf), axis=0)
    first = jnp.mean(best[None] == jnp.arange(stack.shape[0])[:, None], axis=1, dtype=stack.dtype)
    return {
        "estimate": replicated.estimate,
        "corrected": replicated.corrected,
        "low": low,
        "high": high,
        "differences": _differences(estimate, gaps, *interval(estimate, gaps)),
        "first": jnp.where(valued, first, jnp.nan),
        "bandwidths": replicated.bandwidth,
        "ridge": ridge,
        "left_out": replicated.left_out,
        "nonfinite_predictions": replicated.nonfinite[:, 0],
        "nonfinite_kernel": replicated.nonfinite[:, 1],
    }


def _differences(
    estimate: Float[Array, "M M"], gaps: Float[Array, "M M b"], low: Array, high: Array
) -> Differences:
    """p-values of no difference from the centred draws of every pair."""
    b = gaps.shape[-1]
    spread = jnp.std(gaps, axis=-1)
    scale = jnp.where(spread > 0, spread, 1)
    size = jnp.abs(estimate)
    good = jnp.isfinite(size) & jnp.isfinite(spread)
    # pairs without a value take no part in the others' adjustment
    standard = jnp.where(good[..., None], jnp.abs(gaps) / scale[..., None], 0)
    largest = jnp.max(standard, axis=(0, 1))
    p = (1 + jnp.sum(jnp.abs(gaps) >= size[..., None], axis=-1)) / (1 + b)
    adjusted = (1 + jnp.sum(largest[None, None] >= (size / scale)[..., None], axis=-1)) / (1 + b)
    # NaN never becomes a verdict
    p, adjusted = (jnp.where(good, a, jnp.nan) for a in (p, jnp.maximum(p, adjusted)))
    return Differences(estimate, low, high, p, adjusted)
