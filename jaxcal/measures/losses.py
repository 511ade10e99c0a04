"""Losses of predictions: negative log likelihood, pinball loss."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array

from jaxcal.measures.quantiles import LEVELS, quantiles
from jaxcal.read import checks
from jaxcal.read.scores import is_distribution, log_densities_at
from jaxcal.typing import ArrayLike, PredictionsLike, Scalar


def nll(predictions: PredictionsLike, targets: ArrayLike) -> Scalar:
    """Return the mean negative log likelihood (NLL) of n targets.

    Args:
        predictions: A numpyro distribution with batch shape [n], or anything with ``log_prob``.
            Unnormalized densities have no likelihood.
        targets: Targets, [n] or [n, ...]; classes for distributions of classes.

    Returns:
        The mean, []; infinite if a target has density 0.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> import numpyro.distributions as dist
        >>> predictions = dist.Normal(jnp.zeros(3), 1.0)
        >>> round(float(jaxcal.measures.nll(predictions, jnp.zeros(3))), 3)
        0.919
    """
    checks.of_jax(predictions)
    if not is_distribution(predictions):
        raise TypeError(
            f"predictions: a likelihood needs a normalized density such as a numpyro distribution, "
            f"got {type(predictions).__name__}"
        )
    return -jnp.mean(log_densities_at(predictions, _matching(predictions, targets)))


def pinball_loss(
    predictions: PredictionsLike, targets: ArrayLike, *, levels: ArrayLike = LEVELS
) -> Scalar:
    r"""Return the mean of :math:`(1-\tau)(q-y)_+ + \tau(y-q)_+` at the predicted quantiles q.

    Args:
        predictions: Predictions of numbers, as in `quantiles`.
        targets: Targets, [n].
        levels: Levels tau; by default the 19 levels .05, .10, .., .95.

    Returns:
        The loss, [], in units of the targets.

    Source: Widmann et al. (2021), App. A.3.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> import numpyro.distributions as dist
        >>> predictions = dist.Normal(jnp.zeros(2), 1.0)
        >>> targets = jnp.array([1.0, -3.0])
        >>> round(float(jaxcal.measures.pinball_loss(predictions, targets, levels=(0.5,))), 3)
        1.0
    """
    ys = checks.targets(targets)
    ys = ys[:, 0] if ys.ndim == 2 and ys.shape[1] == 1 else ys
    q = quantiles(predictions, levels)
    if ys.shape != q.shape[:1]:
        raise ValueError(f"targets: wanted one number a prediction, {q.shape[:1]}, got {ys.shape}")
    at = checks.floats(levels, "levels").astype(q.dtype).reshape(-1)
    gap = ys[:, None] - q
    return jnp.mean(jnp.where(gap < 0, (at - 1)[None] * gap, at[None] * gap))


def _matching(predictions: Any, targets: ArrayLike) -> Array:
    """Return targets in the shape of the distribution."""
    ys = checks.numbers(targets, "targets")
    shape = (*predictions.batch_shape, *predictions.event_shape)
    if ys.shape != shape and not (predictions.batch_shape == () and ys.shape[1:] == shape):
        raise ValueError(f"targets: wanted shape {shape} to match the predictions, got {ys.shape}")
    return ys
