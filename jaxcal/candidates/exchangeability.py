r"""Test whether targets are exchangeable with candidates.

A set consists of a target and its candidates. Under calibration, given the set, each member is the
target with a known probability w. So redrawing which member is the target gives the exact null
distribution of every statistic, for every n. The residual of a feature :math:`\phi` is
:math:`r_i = \phi(y_i) - b_i`, where :math:`b_i` is an estimate, from the set alone, of the
mean of :math:`\phi` under prediction i. The statistic is a quadratic form, as in
`jaxcal.engine.quadratic`: :math:`\sum_{i \ne j} k(p_i, p_j) \langle r_i, r_j \rangle`.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from jaxcal.candidates.proposals import Candidates, Chains, Proposal
from jaxcal.candidates.ranks import coordinate, log_density, ranks
from jaxcal.candidates.results import ExchangeabilityResult
from jaxcal.coverage import massart
from jaxcal.divergences.fisher import Fisher
from jaxcal.divergences.vectors import NodeScores
from jaxcal.engine import LightJit, few_targets
from jaxcal.engine.quadratic import TILE, quadratic_sums
from jaxcal.fit.fitted import Embedding
from jaxcal.kernels import points
from jaxcal.kernels.bandwidths import median_heuristic
from jaxcal.kernels.points import Constant, Gaussian
from jaxcal.numerics import largest, not_finite
from jaxcal.read import Standardized, Units, checks, convert
from jaxcal.read.observations import continuous, densities, n_repeated
from jaxcal.read.scores import (
    log_densities_and_gradients,
    log_densities_at,
    scores_at,
    within_support,
)
from jaxcal.results import recorded
from jaxcal.statistics.weighted import Weighted, WeightedFeatures
from jaxcal.typing import (
    ArrayLike,
    BaseMeasure,
    DivergenceLike,
    KernelLike,
    Key,
    KeyLike,
    Pairwise,
    Predictions,
    PredictionsLike,
    Scalar,
)
from jaxcal.whitening import Landing

EXPLAINED = 0.8  # least share of a feature's variance that a control variate must explain
PARTS = ("log density", "location", "scale", "correlation")


@recorded
def exchangeability_test(
    key: KeyLike,
    predictions: Predictions,
    targets: ArrayLike,
    *,
    proposal: Proposal = Chains(),
    divergence: DivergenceLike = Fisher(),
    prediction_kernel: KernelLike = Gaussian() + Constant(),
    base_measure: BaseMeasure | None = None,
    n_nodes: int | None = None,
    n_resamples: int = 500,
    level: float = 0.05,
    tile: int = TILE,
) -> ExchangeabilityResult:
    """Test calibration by comparing each target with exchangeable candidates.

    Four kinds of features are compared between targets and candidates: the log density, the
    coordinates, and their squares and products; coordinates are standardized for each prediction.
    The combined p-value is that of the largest standardized statistic. Each draw of the null
    distribution picks the target at random among the target and its candidates. So p-values are
    exact for every n, also for chains that mix slowly. (But default nodes and the units of the
    divergence depend on all targets, which changes the level by O(1/n).)

    Args:
        key: Random key: typed, legacy or an integer seed.
        predictions: A `jaxcal.Unnormalized` or a numpyro distribution with batch shape [n].
        targets: Observed targets, shape [n], [n, d] or [n, ...].
        proposal: Proposal of candidates: `Drawn` or `Chains`. `Chains` detect wrong weights of
            modes only with their option ``nodes``.
        divergence: Divergence between predictions; see `jaxcal.divergences`.
        prediction_kernel: Kernel on the divergence. The default adds the constant kernel, which
            detects an error common to all predictions.
        base_measure: Nodes [m, d], m >= d + 2, in the units of the targets. Scores at the nodes
            define the divergence. An ascent from the node of highest density finds a mode of each
            prediction; the curvature at the mode defines its scale. By default ``n_nodes`` normal
            points with the mean and spread of the targets, the same for every key.
        n_nodes: Number of default nodes; max(10, 2 d + 2) by default.
        n_resamples: Number of draws of the null.
        level: Probability of rejecting a calibrated model; it determines ``result.verdict``.
        tile: Number of rows and columns of each block of pairs that is computed at a time.

    Returns:
        `ExchangeabilityResult`.

    Cost: that of the proposal and of `jaxcal.whitening.Landing`, n n_nodes scores, and
    2 n^2 n_resamples multiplications for each of the 1 + 2 d + d (d - 1) / 2 features.

    Source: Besag and Clifford (1989).

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 100))
        >>> predictions = dist.Normal(centers, 1.0)
        >>> jaxcal.candidates.exchangeability_test(1, predictions, centers + 2 * noise).verdict
        'rejected'
    """
    key = convert.key(key)
    ys = checks.targets(targets)
    predictions = densities(predictions, ys)
    checks.instance(proposal, Proposal, "proposal", "jaxcal.candidates.Chains()")
    if isinstance(proposal, Chains):
        continuous(predictions)
    d, level = ys[0].size, checks.level(level)
    n_resamples = convert.integer(n_resamples, "n_resamples")
    n_nodes = checks.nodes(n_nodes, d, least=d + 1)
    if base_measure is not None:
        base_measure = convert.floats(base_measure, "base_measure")
        if base_measure.shape[1:] != ys.shape[1:] or base_measure.shape[0] < d + 2:
            raise ValueError(
                f"base_measure: wanted at least {d + 2} nodes of shape {ys.shape[1:]}, got shape "
                f"{base_measure.shape}"
            )
    checks.divergence(divergence, "divergence")
    result = _test(
        key,
        predictions,
        ys,
        proposal,
        divergence,
        points.as_kernel(prediction_kernel, "prediction_kernel"),
        base_measure,
        n_nodes=n_nodes,
        n_resamples=n_resamples,
        tile=convert.integer(tile, "tile"),
    )
    return replace(result, level=level)


@dataclass(frozen=True)
class _Densities:
    """`Densities` of n ``predictions`` at points [n, k, d]; ``event``: shape of a target."""

    predictions: Any
    event: tuple[int, ...]

    def __call__(self, points: Float[Array, "n k d"], /) -> tuple[Array, Array]:
        rows = self._rows(points)
        logs, gradients = jax.vmap(partial(log_densities_and_gradients, self.predictions))(rows)
        logs = jax.vmap(partial(within_support, self.predictions))(rows, logs)
        gradients = gradients.reshape(*logs.shape, points.shape[2])
        return jnp.moveaxis(logs, 0, 1), jnp.moveaxis(gradients, 0, 1)

    def logs(self, points: Float[Array, "n k d"], /) -> Float[Array, "n k"]:
        each = jax.vmap(partial(log_densities_at, self.predictions))
        return jnp.moveaxis(each(self._rows(points)), 0, 1)

    def _rows(self, points: Float[Array, "n k d"]) -> Array:
        n, k, _ = points.shape
        return jnp.moveaxis(points, 1, 0).reshape(k, n, *self.event)


@partial(LightJit, light=few_targets, static_argnames=("n_nodes", "n_resamples", "tile"))
def _test(
    key: Key,
    predictions: PredictionsLike,
    targets: Array,
    proposal: Any,
    divergence: DivergenceLike,
    kernel: KernelLike,
    base_measure: Any,
    *,
    n_nodes: int,
    n_resamples: int,
    tile: int,
) -> ExchangeabilityResult:
    _, feature_key, candidate_key, index_key, rank_key = jax.random.split(key, 5)
    n, event = targets.shape[0], targets.shape[1:]
    ys = targets.reshape(n, -1)
    d = ys.shape[1]
    if base_measure is None:
        # the same for every key, which then affects candidates and redrawn indices only
        nodes = jax.random.normal(jax.random.key(0), (n_nodes, d), ys.dtype)
    else:
        nodes = Units.of(ys).points(base_measure.reshape(-1, d).astype(ys.dtype))
    fit = _fit(feature_key, predictions, targets, nodes, divergence, kernel)
    candidates = proposal(candidate_key, _Densities(predictions, event), ys, fit.roots)
    logs = candidates.log_densities
    undefined = jnp.any(jnp.isnan(logs) | (logs == jnp.inf), axis=1)
    undefined = undefined | ~jnp.all(jnp.isfinite(ys), axis=1)
    impossible = jnp.sum(~undefined & (logs[:, 0] == -jnp.inf))
    nonfinite, nonfinite_features = jnp.sum(undefined), not_finite(fit.features.predictions)
    all_finite = (nonfinite == 0) & (nonfinite_features == 0)

    indices = _redrawn(index_key, candidates.weights, n_resamples)
    forms = partial(_forms, fit.pairwise, fit.features, indices, tile)
    parts = _features(candidates, fit.roots)
    statistics = jnp.stack([jnp.sum(jax.lax.map(forms, part), axis=0) for part in parts])
    standardized, p = _p_values(statistics)
    combined = jnp.nanmax(standardized, axis=0)
    still = jnp.all(candidates.points == candidates.points[:, :1], axis=(1, 2))
    still = still | (candidates.weights[:, 0] >= 1)
    spread = jnp.any(~jnp.isnan(standardized[:, 0])) & ~jnp.all(still)
    total = jnp.mean(combined >= combined[0], dtype=combined.dtype)
    total = jnp.where(impossible > 0, 1 / (1 + n_resamples), jnp.where(spread, total, jnp.nan))
    u = jnp.stack(
        [
            ranks(jax.random.fold_in(rank_key, j), candidates, statistic)
            for j, statistic in enumerate([log_density, *map(coordinate, range(d))])
        ],
        axis=1,
    )
    return ExchangeabilityResult(
        p_value=jnp.where(all_finite, total, jnp.nan),
        part_p_values=jnp.where(all_finite, p, jnp.nan),
        part_statistics=jnp.where(all_finite, standardized[:, 0], jnp.nan),
        ranks=u,
        rank_p_values=jax.vmap(uniformity, in_axes=1)(u),
        acceptance=candidates.acceptance,
        nonfinite=nonfinite,
        nonfinite_features=nonfinite_features,
        impossible=impossible,
        repeated=n_repeated(targets, predictions),
        unmoved=jnp.sum(still),
        parts=PARTS if d > 1 else PARTS[:3],
        n_resamples=n_resamples,
        n_points=candidates.weights.shape[1],
    )


class _Fit(NamedTuple):
    """``pairwise``: kernel on predictions. ``features``: arguments of this kernel. ``roots``: scale
    M of each prediction in units of the targets; M M^T is the inverse curvature at a mode."""

    pairwise: Weighted
    features: WeightedFeatures
    roots: Float[Array, "n d d"]


def _fit(
    key: Key,
    predictions: PredictionsLike,
    targets: Array,
    nodes: Float[Array, "m d"],
    divergence: DivergenceLike,
    kernel: KernelLike,
) -> _Fit:
    n, ys = targets.shape[0], targets.reshape(targets.shape[0], -1)
    units = Units.of(ys)
    standardized = Standardized(predictions, units, targets.shape[1:])
    _, values = scores_at(standardized, units.points(ys), nodes)
    assert values is not None
    embedding, described = Embedding.fit(
        key,
        divergence,
        standardized,
        NodeScores(nodes, values),
        standardize=True,
        unitless=points.all_unset(kernel),
    )
    bandwidth, _ = median_heuristic(embedding.divergence, described)
    # the kernel alone: `quadratic_sums` multiplies it by residuals later, so weights are 1 here
    pairwise = Weighted(points.with_bandwidth(kernel, bandwidth), embedding.divergence)
    features = WeightedFeatures(described, jnp.ones((n, 1), ys.dtype))
    roots = Landing().summits(standardized, nodes, n).scale
    usable = jnp.all(jnp.isfinite(roots), axis=(1, 2), keepdims=True)
    eye = jnp.eye(ys.shape[1], dtype=ys.dtype)[None]
    return _Fit(pairwise, features, units.scale[None, :, None] * jnp.where(usable, roots, eye))


def _features(candidates: Candidates, roots: Float[Array, "n d d"]) -> list[Float[Array, "q n k"]]:
    r"""Return q features minus their means, [q, n, k], for each kind: log density, t, t^2, t_i t_j.

    t is a standardized target or candidate. The mean of a feature under a prediction is estimated
    from the target and its candidates, with control variates from the score s at t:
    :math:`E_p[s] = 0`, :math:`E_p[t s^\top + I] = 0`. This is exact for Gaussian predictions.
    One coefficient per feature minimizes the variance over all sets. A control that explains less
    than `EXPLAINED` of the variance is not used, as power would be lost. All values depend on the
    sets only, not on which member is the target.
    """
    w = candidates.weights[:, :, None]

    def mean(values: Float[Array, "n k q"]) -> Float[Array, "n 1 q"]:
        return jnp.sum(w * values, axis=1, keepdims=True)

    def centred(values: Float[Array, "n k q"], controls: Float[Array, "n k q"]) -> Array:
        gaps, changes = values - mean(values), controls - mean(controls)
        power = jnp.sum(w * changes**2, axis=(0, 1), keepdims=True)
        varies = power > 1e-6 * jnp.sum(w * controls**2, axis=(0, 1), keepdims=True)
        products = jnp.sum(w * gaps * changes, axis=(0, 1), keepdims=True)
        explained = products**2 > EXPLAINED * power * jnp.sum(w * gaps**2, (0, 1), keepdims=True)
        return gaps + jnp.where(varies & explained, products / power, 0) * mean(controls)

    # candidates of weight 0 are never drawn: their infinite log density must not enter sums
    logs = jnp.where(candidates.weights > 0, candidates.log_densities, 0)
    logs = jnp.where(jnp.isfinite(logs), logs, 0)
    gradients = candidates.gradients
    scores = jnp.zeros_like(candidates.points) if gradients is None else gradients
    scores = jnp.einsum("nij,nki->nkj", roots, jnp.where(jnp.isfinite(scores), scores, 0))
    gaps = candidates.points - mean(candidates.points)
    t = centred(jnp.linalg.solve(roots[:, None], gaps[..., None])[..., 0], scores)
    squares = t * scores + 1
    i, j = np.triu_indices(t.shape[-1], 1)
    parts = [
        centred(logs[:, :, None], jnp.sum(squares, axis=2, keepdims=True)),
        t,
        centred(t**2, squares),
    ]
    if i.size:
        crossed = (t[..., i] * scores[..., j] + t[..., j] * scores[..., i]) / 2
        parts.append(centred(t[..., i] * t[..., j], crossed))
    return [jnp.moveaxis(part, 2, 0) for part in parts]


def _redrawn(key: Key, weights: Float[Array, "n k"], b: int) -> Int[Array, "n b1"]:
    """Return 1 + b indices for each set: 0, the observed target, and b drawn by ``weights``."""
    n = weights.shape[0]
    drawn = jax.random.categorical(key, jnp.log(weights)[:, None], axis=-1, shape=(n, b))
    return jnp.concatenate([jnp.zeros((n, 1), drawn.dtype), drawn], axis=1)


def _forms(
    pairwise: Pairwise, described: PyTree, indices: Array, tile: int, feature: Array
) -> Array:
    """Return the quadratic forms of a feature [n, k] for the observed and for b redrawn choices of
    the targets, [1 + b]; ``indices`` [n, 1 + b] are those of `_redrawn`."""
    residuals = jnp.take_along_axis(feature, indices, axis=1)
    return jnp.sum(quadratic_sums(pairwise, described, residuals, tile=tile).forms, axis=0)


def _p_values(statistics: Float[Array, "g b1"]) -> tuple[Array, Array]:
    """Return statistics [g, 1 + b], each row standardized by its mean and deviation, and the
    p-values [g] of column 0; NaN for a row whose values are all equal."""
    deviation = jnp.std(statistics, axis=1, keepdims=True)
    mean = jnp.mean(statistics, axis=1, keepdims=True)
    standardized = jnp.where(deviation > 0, (statistics - mean) / deviation, jnp.nan)
    p = jnp.mean(standardized >= standardized[:, :1], axis=1, dtype=statistics.dtype)
    return standardized, jnp.where(jnp.isnan(standardized[:, 0]), jnp.nan, p)


@jax.jit
def uniformity(u: Float[Array, " n"]) -> Scalar:
    """Return a p-value of uniformity of n ranks: Kolmogorov-Smirnov, by Massart's bound."""
    n = u.shape[0]
    steps = jnp.arange(n, dtype=u.dtype)
    ordered = jnp.sort(u)
    gap = largest(jnp.concatenate([(steps + 1) / n - ordered, ordered - steps / n]))
    return massart(gap, n, sides=2)
