r"""CKCE beyond classes: any predictions with kernel means or draws, and unnormalized densities.

The residual of an observation is :math:`\ell(y, \cdot) - E_{Z \sim p}\, \ell(Z, \cdot)`, or, for a
density known up to its constant, the Stein feature of its score at the target: both have mean 0
given the prediction where the model is calibrated. Only their products D are needed.
"""

from typing import Unpack

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxcal import checks
from jaxcal.ckce import solve
from jaxcal.ckce.estimator import CKCE
from jaxcal.ckce.ridge import Ridge, ridge_at
from jaxcal.divergences.vectors import gram_block
from jaxcal.numerics import not_finite
from jaxcal.pairwise.weighted import Weighted, WeightedFeatures
from jaxcal.preparation import Specification, SteinOptions, stein_specification
from jaxcal.results import recorded
from jaxcal.skce.specification import MeanOptions, mean_specification
from jaxcal.typing import ArrayLike, DTypeLike, Key, KeyLike, PredictionsLike


@recorded
def ckce_means(
    key: KeyLike,
    predictions: PredictionsLike,
    targets: ArrayLike,
    *,
    ridge: Ridge = None,
    **options: Unpack[MeanOptions],
) -> CKCE:
    r"""CKCE of predictions whose kernel means or draws are known: regression, posteriors, classes.

    :math:`Tr(A^{-1} D A^{-1} K)` with K a kernel on a distance between predictions and
    :math:`D_{ij} = \ell(y_i, y_j) - E\ell(Z_i, y_j) - E\ell(y_i, Z_j) + E\ell(Z_i, Z_j)`; so JKCE
    of the same kernels is `jaxcal.skce.skce`. Means from S draws add about the null mean divided
    by S, as every draw also meets itself, which keeps D positive semidefinite; prefer closed
    forms. Compare models at one n, ridge and kernel: give bandwidths, ``standardize=False`` or the
    same targets, and the same divergence.

    Args:
        key: Random key, used only where draws are needed.
        predictions: As in `jaxcal.skce_test`.
        targets: As in `jaxcal.skce_test`.
        ridge: As in `ckce`.
        **options: As in `jaxcal.skce.skce`.

    Returns:
        `CKCE`.

    Raises:
        ValueError: Shapes or values are wrong; the message names the argument.
        TypeError: An argument is of the wrong type; the message names it.

    Cost: 5 n^3 multiplications, memory O(n^2).

    Source: Moskvichev and Sejdinovic, Section 3.2, which names regression without an experiment.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 60))
        >>> predictions = dist.Normal(centers, 1.0)
        >>> good = jaxcal.ckce.ckce_means(1, predictions, centers + noise)
        >>> shifted = jaxcal.ckce.ckce_means(1, predictions, centers + 1 + noise)
        >>> bool(good.estimate < shifted.estimate)
        True
    """
    key = checks.key(key)
    predictions, ys, spec = mean_specification(predictions, targets, **options)
    strength = ridge_at(ridge, ys.shape[0], floating(ys))
    return _estimate(key, predictions, ys, spec, strength)


@recorded
def ckce_stein(
    key: KeyLike,
    predictions: PredictionsLike,
    targets: ArrayLike,
    *,
    ridge: Ridge = None,
    **options: Unpack[SteinOptions],
) -> CKCE:
    """CKCE of densities known up to their constants, from scores: no draws and no integrals.

    D is the Stein kernel of the targets (`jaxcal.kccsd_test` without its kernel on predictions),
    and K the kernel on predictions, by default Gaussian on their Fisher divergence. Residuals are
    Stein features, so values are in units of the score squared: sharper predictions weigh more.
    ``whiten`` takes that away.

    Args:
        key: Random key of nodes.
        predictions: As in `jaxcal.kccsd_test`.
        targets: As in `jaxcal.kccsd_test`.
        ridge: As in `ckce`.
        **options: As in `jaxcal.kccsd`, but ``precondition``, which is not served.

    Returns:
        `CKCE`.

    Raises:
        ValueError: Shapes or values are wrong; the message names the argument.
        TypeError: An argument is of the wrong type; the message names it.

    Cost: 5 n^3 multiplications, memory O(n^2).

    Source: The combination of KCCSD's Stein features with CKCE is ours.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 60))
        >>> predictions = dist.Normal(centers, 1.0)
        >>> good = jaxcal.ckce.ckce_stein(1, predictions, centers + noise)
        >>> shifted = jaxcal.ckce.ckce_stein(1, predictions, centers + 1 + noise)
        >>> bool(good.estimate < shifted.estimate)
        True
    """
    key = checks.key(key)
    if options.get("precondition") is not None:
        raise ValueError("precondition: not served by ckce_stein; use jaxcal.kccsd_test")
    ys = checks.targets(targets)
    predictions = checks.predictions(predictions, ys)
    spec = stein_specification(ys, **options)
    strength = ridge_at(ridge, ys.shape[0], ys.dtype)
    return _estimate(key, predictions, ys, spec, strength)


@jax.jit
def _estimate(
    key: Key, predictions: PredictionsLike, targets: Array, spec: Specification, ridge: Array
) -> CKCE:
    keys = jax.random.split(key, 3)[:2]
    prepared, featured = spec.fit(keys, predictions, targets)
    pairwise, features = prepared.pairwise, featured.features
    assert isinstance(pairwise, Weighted)
    described, kernel = features.predictions, prepared.prediction_kernel
    with jax.default_matmul_precision("highest"):
        gram = gram_block(kernel, prepared.embedding.divergence, described, described)
        products = residual_products(pairwise, features, features)
    products = (products + products.T) / 2
    fit = solve.fit_products((gram + gram.T) / 2, products, ridge.astype(gram.dtype))
    error = jnp.sqrt(jnp.mean(fit.influence**2) / gram.shape[0])
    bad = not_finite((described, targets))
    fit = jax.tree.map(lambda part: jnp.where(bad > 0, jnp.nan, part), fit)
    return CKCE(
        fit.estimate,
        error,
        fit.contributions,
        fit.influence,
        ridge,
        prepared.bandwidths,
        bad,
        ~prepared.identical_predictions,
        jax.lax.stop_gradient(fit.rounding),
    )


def residual_products(pairwise: Weighted, rows: WeightedFeatures, cols: WeightedFeatures) -> Array:
    """Inner products of the residuals of some observations with those of others, [r, c]."""
    (statistic,), (left,), (right,) = pairwise.statistics, rows.residuals, cols.residuals
    return jnp.sum(statistic.block(left, right), axis=0)


def floating(ys: Array) -> DTypeLike:
    """The floating type of the targets; classes have the default one."""
    return ys.dtype if jnp.issubdtype(ys.dtype, jnp.inexact) else jnp.result_type(float)
