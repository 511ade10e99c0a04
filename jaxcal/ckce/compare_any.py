r"""Comparing predictions of any kind: distributions, draws, and densities up to their constants.

The residual of an observation is that of `jaxcal.ckce.ckce_means` or `jaxcal.ckce.ckce_stein`, the
same target kernel, distance between predictions, bandwidth and ridge serve all models, and the
expansion is that of class probabilities (`jaxcal.ckce.expansion`).
"""

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Int

from jaxcal import checks
from jaxcal.ckce import kernels, solve
from jaxcal.ckce.effect import Curve
from jaxcal.ckce.expansion import Expansion, by_products
from jaxcal.ckce.general import residual_products
from jaxcal.divergences import MeanEmbedding
from jaxcal.divergences.vectors import gram_block
from jaxcal.kernel_means import distribution_of
from jaxcal.kernels import points
from jaxcal.kernels.points import Constant, Gaussian
from jaxcal.models import Scores, Unnormalized
from jaxcal.models.families import Classes
from jaxcal.numerics import at_least, not_finite
from jaxcal.pairwise.weighted import Weighted
from jaxcal.preparation import Specification, stein_specification
from jaxcal.scores import is_distribution
from jaxcal.skce.specification import mean_specification
from jaxcal.typing import ArrayLike, KernelLike, Key, PredictionsLike, Scalar
from jaxcal.whitening import Regression

SHIFTS = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6)  # in standard deviations of the targets


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
    kernel = Gaussian() + Constant() if prediction_kernel is None else prediction_kernel
    by_scores = [isinstance(model, (Unnormalized, Scores)) for model in models]
    ready, specs, ys = [], [], jnp.zeros(0)
    for name, model in zip(names, models, strict=True):
        try:
            if any(by_scores):
                ys = checks.targets(targets)
                ready.append(checks.predictions(model, ys))
                # in claimed deviations, in which the median distance of two targets is near this
                d = ys[0].size
                length = float(np.sqrt(2 * d) * (1 - 2 / (9 * d)) ** 1.5)
                specs.append(
                    stein_specification(
                        ys,
                        prediction_kernel=kernel,
                        target_kernel=Gaussian(length),
                        whiten=Regression(),
                        n_nodes=checks.nodes(None, d),
                    )
                )
            else:
                same = len({type(distribution_of(other)) for other in models}) == 1
                checked, ys, spec = mean_specification(
                    model,
                    targets,
                    divergence=None if same else MeanEmbedding(),
                    prediction_kernel=kernel,
                    target_kernel=Gaussian(),
                )
                ready.append(checked)
                specs.append(spec)
        except (TypeError, ValueError) as error:
            raise type(error)(f"models[{name}]: {error}") from None
    return ready, ys, specs


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
    specs = [
        replace(spec, prediction_kernel=points.with_bandwidth(spec.prediction_kernel, width))
        for spec in specs
    ]
    each = [
        _expanded(key, model, ys, spec, ridge) for model, spec in zip(models, specs, strict=True)
    ]
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *each), jnp.full(len(models), width)


@jax.jit
def _median(key: Key, predictions: PredictionsLike, ys: Array, spec: Specification) -> Scalar:
    """The median distance of two predictions of one model; 0 where all agree."""
    prepared, _ = spec.fit(jax.random.split(key, 3)[:2], predictions, ys)
    median = prepared.bandwidths["prediction"]
    return jnp.where(prepared.identical_predictions | ~jnp.isfinite(median), 0, median)


@jax.jit
def _expanded(
    key: Key, predictions: PredictionsLike, ys: Array, spec: Specification, ridge: Scalar
) -> AnyExpanded:
    keys = jax.random.split(key, 3)
    prepared, featured = spec.fit(keys[:2], predictions, ys)
    pairwise, features = prepared.pairwise, featured.features
    assert isinstance(pairwise, Weighted)
    described = features.predictions
    with jax.default_matmul_precision("highest"):
        gram = gram_block(
            prepared.prediction_kernel, prepared.embedding.divergence, described, described
        )
        gram = (gram + gram.T) / 2
        products = residual_products(pairwise, features, features)
        # CKCE of residuals with products D is <A^-1 K A^-1, D>
        weights = solve.null_weights(gram, ridge)

        def shifted(size: Scalar) -> Scalar:
            """CKCE of what a shift of the targets adds to the residuals."""
            there = prepared.features(keys[:2], predictions, ys + size * spread).features
            across = residual_products(pairwise, features, there)
            moved = residual_products(pairwise, there, there) - across - across.T + products
            return at_least(jnp.sum(weights * moved), 0)

        spread = jnp.std(ys, axis=0, keepdims=True)
        sizes = jnp.asarray(SHIFTS, gram.dtype)
        curve = Curve(sizes, jax.lax.map(shifted, sizes))
    expansion = by_products(keys[2], gram, (products + products.T) / 2, ridge)
    bad = not_finite((described, ys))
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
