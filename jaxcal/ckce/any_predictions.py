r"""Compute CKCE of distributions, draws, and unnormalized densities.

The residual of an observation is :math:`\ell(y, \cdot) - E_{Z \sim p}\, \ell(Z, \cdot)`, with
:math:`\ell` the kernel on targets. For an unnormalized density it is the Stein feature of the score
at the target, in units of the predicted spread. Both have mean 0 given the prediction of a
calibrated model. If S draws estimate the expectation, their noise raises CKCE by about c / S, where
c is the mean CKCE of a calibrated model. All models have the same kernels, distance, bandwidth and
ridge (`compared`).
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxcal.ckce import kernels, solvers
from jaxcal.ckce.errors import Error, judged
from jaxcal.ckce.expansion import by_products
from jaxcal.ckce.inputs import Ridge, ridge_at, standardized
from jaxcal.ckce.results import CKCE
from jaxcal.divergences.mmd import MMD
from jaxcal.divergences.vectors import gram_block
from jaxcal.fit.fitted import Fitted
from jaxcal.fit.options import stein_specification
from jaxcal.fit.specification import Specification
from jaxcal.kernels import points
from jaxcal.kernels.grams import square_gram
from jaxcal.kernels.points import Constant, Gaussian
from jaxcal.numerics import not_finite
from jaxcal.read import Scores, Unnormalized, checks, convert
from jaxcal.read.families import Classes, distribution_of
from jaxcal.read.observations import scored
from jaxcal.read.scores import compiled_log_densities, is_distribution
from jaxcal.skce.calibration import mean_specification
from jaxcal.statistics.weighted import Weighted, WeightedFeatures
from jaxcal.typing import ArrayLike, Contents, DTypeLike, KernelLike, Key, PredictionsLike, Scalar
from jaxcal.whitening import Regression


def are_classes(models: list[PredictionsLike]) -> bool:
    """Return whether all models are class probabilities: arrays, lists, or distributions."""
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
    prediction_kernel: KernelLike,
) -> tuple[list[PredictionsLike], Array, list[Specification]]:
    """Return checked models, targets, and a `Specification` per model; an error names the model."""
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
    prediction_kernel: KernelLike,
    *,
    by_scores: bool,
    same: bool,
) -> tuple[PredictionsLike, Array, Specification]:
    if not by_scores:
        return mean_specification(
            model,
            targets,
            divergence=None if same else MMD(of_targets=True),
            prediction_kernel=prediction_kernel,
            target_kernel=Gaussian(),
        )
    ys = checks.targets(targets)
    # in units of the predicted deviations, the median distance of two targets is about this
    d = ys[0].size
    length = float(np.sqrt(2 * d) * (1 - 2 / (9 * d)) ** 1.5)
    spec = stein_specification(
        ys,
        prediction_kernel=prediction_kernel,
        target_kernel=Gaussian(length),
        whiten=Regression(),
        n_nodes=checks.nodes(None, d),
    )
    return scored(model, ys), ys, spec


def ckce(
    key: Key,
    predictions: PredictionsLike,
    targets: ArrayLike,
    prediction_kernel: KernelLike | None,
    ridge: Ridge,
    bandwidth: ArrayLike | None,
) -> CKCE:
    """Return the result of `jaxcal.ckce.ckce` for predictions other than class probabilities."""
    by_scores = isinstance(predictions, (Unnormalized, Scores))
    kernel = Gaussian() + Constant() if prediction_kernel is None else prediction_kernel
    predictions, ys, spec = _specification(
        predictions, targets, kernel, by_scores=by_scores, same=True
    )
    dtype = floating(ys)
    if bandwidth is not None:
        width = convert.number(bandwidth, "bandwidth", above=0).astype(dtype)
        spec = _at_bandwidth(spec, width)
    return _ckce(key, predictions, ys, spec, ridge_at(ridge, ys.shape[0], dtype))


def _at_bandwidth(spec: Specification, width: Scalar) -> Specification:
    kernel = points.with_bandwidth(spec.prediction_kernel, width)
    return replace(spec, prediction_kernel=kernel)


def floating(ys: Array) -> DTypeLike:
    """Return the data type of the targets, or the default floating type if they are integers."""
    return ys.dtype if jnp.issubdtype(ys.dtype, jnp.inexact) else jnp.result_type(float)


def _gram_and_products(prepared: Fitted, features: WeightedFeatures) -> tuple[Array, Array]:
    assert isinstance(prepared.pairwise, Weighted)
    kernel, divergence = prepared.prediction_kernel, prepared.embedding.divergence
    gram = gram_block(kernel, divergence, features.predictions, features.predictions)
    statistic, residual = prepared.pairwise.statistic, features.residual
    products = jnp.sum(statistic.block(residual, residual), axis=0)
    return (gram + gram.T) / 2, (products + products.T) / 2


@jax.jit
def _ckce(
    key: Key, predictions: PredictionsLike, ys: Array, spec: Specification, ridge: Array
) -> CKCE:
    prepared, featured = spec.fit(jax.random.split(key, 3)[:2], predictions, ys)
    features = featured.features
    gram, products = _gram_and_products(prepared, features)
    fit = solvers.fit_products(gram, products, ridge.astype(gram.dtype))
    return CKCE.of(
        fit,
        ridge,
        prepared.bandwidths,
        nonfinite=not_finite((features.predictions, ys)),
        identical=prepared.notes["identical-predictions"],
    )


def compared(
    key: Key,
    names: tuple[str, ...],
    models: list[PredictionsLike],
    targets: ArrayLike,
    measure: str,
    n_draws: int,
    level: float,
    *,
    rank: int | None,
    target_kernel: ArrayLike | None,
    prediction_kernel: KernelLike | None,
    ridge: Ridge,
    bandwidth: ArrayLike | str | None,
    given: ArrayLike | None,
) -> Contents:
    """Return computed fields of a `Comparison`, by name; arguments are as in `jaxcal.compare`."""
    for name, value in (("rank", rank), ("target_kernel", target_kernel)):
        if value is not None:
            raise ValueError(f"{name}: an option for class probabilities alone")
    if isinstance(bandwidth, str) and bandwidth == "own":
        raise ValueError("bandwidth: 'own' is an option for class probabilities alone")
    kernel = prediction_kernel
    if kernel is None:
        kernel = Gaussian() + Constant() if measure == "ckce" else Gaussian()
    models, ys, specs = specifications(names, models, targets, kernel)
    n, dtype = ys.shape[0], floating(ys)
    if n < 3:
        raise ValueError(f"targets: comparing needs at least 3 observations, got n={n}")
    fit_key, draws_key = jax.random.split(key)
    strength, width = ridge_at(ridge, n, dtype), jnp.ones((), dtype)
    used = strength if measure == "ckce" else None
    unset = points.needs_bandwidth(specs[0].prediction_kernel)
    if bandwidth is not None and not isinstance(bandwidth, str):
        number = convert.number(bandwidth, "bandwidth", above=0).astype(dtype)
        width = number if unset else width
    elif unset:
        of_each = zip(models, specs, strict=True)
        medians = jnp.stack([_median(fit_key, model, ys, spec) for model, spec in of_each])
        width = kernels.weighted_by_itself(medians)
    keys, specs = (fit_key, draws_key), [_at_bandwidth(spec, width) for spec in specs]
    z = standardized(given, n, dtype)
    each = [
        _error(keys, model, ys, spec, used, z, n_draws)
        for model, spec in zip(models, specs, strict=True)
    ]
    errors = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
    return judged(draws_key, errors, level, np.inf) | {
        "skill": log_scores(models, ys),
        "bandwidths": jnp.full(len(models), width),
        "n": n,
        **({} if used is None else {"ridge": used}),
    }


@jax.jit
def _median(key: Key, predictions: PredictionsLike, ys: Array, spec: Specification) -> Scalar:
    prepared, _ = spec.fit(jax.random.split(key, 3)[:2], predictions, ys)
    median = prepared.bandwidths["prediction"]
    return jnp.where(prepared.notes["identical-predictions"] | ~jnp.isfinite(median), 0, median)


@partial(jax.jit, static_argnames="n_draws")
def _error(
    keys: tuple[Key, Key],
    predictions: PredictionsLike,
    ys: Array,
    spec: Specification,
    ridge: Scalar | None,
    variables: Array | None,
    n_draws: int,
) -> Error:
    """Return the error of one model: CKCE, or SKCE if ``ridge`` is None."""
    split = jax.random.split(keys[0], 3)
    prepared, featured = spec.fit(split[:2], predictions, ys)
    features = featured.features
    gram, products = _gram_and_products(prepared, features)
    if variables is not None:
        gram = gram * square_gram(kernels.fill(Gaussian(), variables)[0], variables)
    error = by_products((split[2], keys[1]), gram, products, ridge, n_draws)
    return error._replace(nonfinite=not_finite((features.predictions, ys)))


def log_scores(models: list[Any], ys: Array) -> dict[str, Array]:
    """Return {"log": [M]}, mean negative log densities in nats (NaN for models without density), or
    an empty dict if no model has one."""
    if not any(is_distribution(model) for model in models):
        return {}
    logs = [compiled_log_densities(m, ys) if is_distribution(m) else jnp.nan for m in models]
    return {"log": jnp.stack([-jnp.mean(of).astype(ys.dtype) for of in logs])}
