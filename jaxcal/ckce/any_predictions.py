r"""CKCE beyond classes: distributions, draws, and densities up to their constants.

The residual of an observation is :math:`\ell(y, \cdot) - E_{Z \sim p}\, \ell(Z, \cdot)`, or, for a
density known up to its constant, the Stein feature of its score at the target, in units of the
spread that its scores claim: both have mean 0 given the prediction where the model is calibrated.
Only their products D are needed. Means from S draws add about the null mean divided by S. The same
target kernel, distance between predictions, bandwidth and ridge serve all models, and the expansion
is that of class probabilities (`jaxcal.ckce.expansion`).
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxcal.ckce import kernels, solvers
from jaxcal.ckce.effect import SHIFTS, Curve
from jaxcal.ckce.expansion import Expansion, by_products
from jaxcal.ckce.inputs import Ridge, ridge_at
from jaxcal.ckce.results import CKCE
from jaxcal.divergences.mmd import MMD
from jaxcal.divergences.vectors import gram_block
from jaxcal.fit import Fitted, Specification, stein_specification
from jaxcal.kernels import points
from jaxcal.kernels.points import Constant, Gaussian
from jaxcal.numerics import at_least, not_finite
from jaxcal.read import Scores, Unnormalized, checks
from jaxcal.read.families import Classes, distribution_of
from jaxcal.read.scores import is_distribution
from jaxcal.skce.specification import mean_specification
from jaxcal.statistics.weighted import Weighted, WeightedFeatures
from jaxcal.typing import ArrayLike, DTypeLike, KernelLike, Key, PredictionsLike, Scalar
from jaxcal.whitening import Regression


class AnyExpanded(NamedTuple):
    """Of one model; or of M, with a leading axis."""

    expansion: Expansion
    curve: Curve
    nonfinite: Int[Array, ""]


def are_classes(models: list[PredictionsLike]) -> bool:
    """Whether all models give class probabilities."""
    return all(
        isinstance(model, (np.ndarray, jax.Array, list, tuple))
        or hasattr(model, "detach")
        or hasattr(model, "__array__")
        or isinstance(distribution_of(model), Classes)
        for model in models
    )


def specifications(
    names: tuple[str, ...],
    models: list[PredictionsLike],
    targets: ArrayLike,
    prediction_kernel: KernelLike | None,
) -> tuple[list[PredictionsLike], Array, list[Specification]]:
    """Checked models and targets, and one choice of statistic for all."""
    by_scores = any(isinstance(model, (Unnormalized, Scores)) for model in models)
    same = len({type(distribution_of(model)) for model in models}) == 1
    ready, specs, ys = [], [], jnp.zeros(0)
    for name, model in zip(names, models, strict=True):
        try:
            checked, ys, spec = _specification(
                model, targets, prediction_kernel, by_scores=by_scores, same=same
            )
        except (TypeError, ValueError) as error:
            raise type(error)(f"models[{name}]: {error}") from None
        ready.append(checked)
        specs.append(spec)
    return ready, ys, specs


def _specification(
    model: PredictionsLike,
    targets: ArrayLike,
    prediction_kernel: KernelLike | None,
    *,
    by_scores: bool,
    same: bool,
) -> tuple[PredictionsLike, Array, Specification]:
    kernel = Gaussian() + Constant() if prediction_kernel is None else prediction_kernel
    if not by_scores:
        return mean_specification(
            model,
            targets,
            divergence=None if same else MMD(of_targets=True),
            prediction_kernel=kernel,
            target_kernel=Gaussian(),
        )
    ys = checks.targets(targets)
    # in claimed deviations, in which the median distance of two targets is near this
    d = ys[0].size
    length = float(np.sqrt(2 * d) * (1 - 2 / (9 * d)) ** 1.5)
    spec = stein_specification(
        ys,
        prediction_kernel=kernel,
        target_kernel=Gaussian(length),
        whiten=Regression(),
        n_nodes=checks.nodes(None, d),
    )
    return checks.predictions(model, ys), ys, spec


def ckce(
    key: Key,
    predictions: PredictionsLike,
    targets: ArrayLike,
    prediction_kernel: KernelLike | None,
    ridge: Ridge,
    bandwidth: ArrayLike | None,
) -> CKCE:
    """`jaxcal.ckce.ckce` of predictions that are no class probabilities."""
    by_scores = isinstance(predictions, (Unnormalized, Scores))
    predictions, ys, spec = _specification(
        predictions, targets, prediction_kernel, by_scores=by_scores, same=True
    )
    dtype = floating(ys)
    if bandwidth is not None:
        width = checks.number(bandwidth, "bandwidth", above=0).astype(dtype)
        spec = _at_bandwidth(spec, width)
    return _ckce(key, predictions, ys, spec, ridge_at(ridge, ys.shape[0], dtype))


def _at_bandwidth(spec: Specification, width: Scalar) -> Specification:
    kernel = points.with_bandwidth(spec.prediction_kernel, width)
    return replace(spec, prediction_kernel=kernel)


def floating(ys: Array) -> DTypeLike:
    """The floating type of the targets; classes have the default one."""
    return ys.dtype if jnp.issubdtype(ys.dtype, jnp.inexact) else jnp.result_type(float)


def _products(pairwise: Weighted, rows: WeightedFeatures, cols: WeightedFeatures) -> Array:
    """Inner products of the residuals of some observations with those of others, [r, c]."""
    return jnp.sum(pairwise.statistic.block(rows.residual, cols.residual), axis=0)


def _gram_and_products(prepared: Fitted, features: WeightedFeatures) -> tuple[Array, Array]:
    """K and D, [n, n] each."""
    assert isinstance(prepared.pairwise, Weighted)
    kernel, divergence = prepared.prediction_kernel, prepared.embedding.divergence
    gram = gram_block(kernel, divergence, features.predictions, features.predictions)
    products = _products(prepared.pairwise, features, features)
    return (gram + gram.T) / 2, (products + products.T) / 2


@jax.jit
def _ckce(
    key: Key, predictions: PredictionsLike, ys: Array, spec: Specification, ridge: Array
) -> CKCE:
    prepared, featured = spec.fit(jax.random.split(key, 3)[:2], predictions, ys)
    features = featured.features
    with jax.default_matmul_precision("highest"):
        gram, products = _gram_and_products(prepared, features)
    fit = solvers.fit_products(gram, products, ridge.astype(gram.dtype))
    return CKCE.of(
        fit,
        ridge,
        prepared.bandwidths,
        nonfinite=not_finite((features.predictions, ys)),
        identical=prepared.notes["identical-predictions"],
    )


def expanded(
    key: Key,
    models: list[PredictionsLike],
    ys: Array,
    specs: list[Specification],
    ridge: Scalar,
    width: Scalar | None,
) -> tuple[AnyExpanded, Array]:
    """The expansions of M models, stacked, and their bandwidths [M]."""
    if width is None and points.needs_bandwidth(specs[0].prediction_kernel):
        pairs = zip(models, specs, strict=True)
        medians = jnp.stack([_median(key, model, ys, spec) for model, spec in pairs])
        width = kernels.weighted_by_itself(medians)
    width = jnp.ones((), ridge.dtype) if width is None else width
    specs = [_at_bandwidth(spec, width) for spec in specs]
    each = [
        _expanded(key, model, ys, spec, ridge) for model, spec in zip(models, specs, strict=True)
    ]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *each), jnp.full(len(models), width)


@jax.jit
def _median(key: Key, predictions: PredictionsLike, ys: Array, spec: Specification) -> Scalar:
    """The median distance of two predictions of one model; 0 where all agree."""
    prepared, _ = spec.fit(jax.random.split(key, 3)[:2], predictions, ys)
    median = prepared.bandwidths["prediction"]
    return jnp.where(prepared.notes["identical-predictions"] | ~jnp.isfinite(median), 0, median)


@jax.jit
def _expanded(
    key: Key, predictions: PredictionsLike, ys: Array, spec: Specification, ridge: Scalar
) -> AnyExpanded:
    keys = jax.random.split(key, 3)
    prepared, featured = spec.fit(keys[:2], predictions, ys)
    pairwise, features = prepared.pairwise, featured.features
    assert isinstance(pairwise, Weighted)
    with jax.default_matmul_precision("highest"):
        gram, products = _gram_and_products(prepared, features)
        # CKCE of residuals with products D is <A^-1 K A^-1, D>
        weights = solvers.null_weights(gram, ridge)

        def shifted(size: Scalar) -> Scalar:
            """CKCE of what a shift of the targets adds to the residuals."""
            there = prepared.features(keys[:2], predictions, ys + size * spread).features
            across = _products(pairwise, features, there)
            moved = _products(pairwise, there, there) - across - across.T + products
            return at_least(jnp.sum(weights * moved), 0)

        spread = jnp.std(ys, axis=0, keepdims=True)
        sizes = jnp.asarray(SHIFTS, gram.dtype)
        curve = Curve(sizes, jax.lax.map(shifted, sizes))
    expansion = by_products(keys[2], gram, products, ridge)
    bad = not_finite((features.predictions, ys))
    expansion = jax.tree.map(lambda a: jnp.where(bad > 0, jnp.nan, a), expansion)
    return AnyExpanded(expansion, curve, bad)


def log_scores(models: list[PredictionsLike], ys: Array) -> dict[str, Array]:
    """Mean negative log densities, in nats [M], where some model has one; NaN for the others."""
    if not any(is_distribution(model) for model in models):
        return {}
    return {"log": jnp.stack([_log_score(model, ys) for model in models])}


def _log_score(model: Any, ys: Array) -> Scalar:
    if not is_distribution(model):
        return jnp.full((), jnp.nan, ys.dtype)
    return -jnp.mean(model.log_prob(ys)).astype(ys.dtype)
