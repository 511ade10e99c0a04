"""Is a density twice differentiable, as curvature needs it? A look along short segments."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxcal.moments.evaluation import evaluate
from jaxcal.numerics import at_least
from jaxcal.typing import Key, Predictions

ROUGH = 0.01  # of segments that may disagree


def smooth(
    key: Key,
    predictions: Predictions,
    targets: Float[Array, "n *event"],
    centers: Float[Array, "#n d"],
    scales: Float[Array, "#n d d"],
) -> Bool[Array, ""]:
    r"""Check that automatic differentiation sees what the scores do, in all but 1 % of n segments.

    :math:`s(b) - s(a) = \int_a^b \nabla^2 \log p` along a segment from each target in a direction
    of its own, .3 times as long as a prediction is typically wide (one over the root mean square
    of the scores), with the integral by Gauss's rule of two points. Across a kink (of a ReLU
    network, of a Laplace density) the left side jumps, and the right side does not see it.

    Args:
        key: Random key of the directions.
        predictions: A `jaxcal.Unnormalized` or a numpyro distribution with batch shape [n].
        targets: Targets, [n, *event].
        centers: Centres, [n, d] or [1, d], as in `evaluate`.
        scales: Scales, [n, d, d] or [1, d, d], as in `evaluate`.

    Returns:
        Whether the densities look twice differentiable, [] of bool.

    Cost: 3 gradients and 2 Hessian-vector products a target.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> import numpyro.distributions as dist
        >>> targets = jax.random.normal(jax.random.key(0), (50,))
        >>> units = jnp.zeros((1, 1)), jnp.ones((1, 1, 1))
        >>> kinked = dist.Laplace(jnp.zeros(50), 1.0)
        >>> bool(jaxcal.moments.smooth(jax.random.key(1), kinked, targets, *units))
        False
    """
    n, d = targets.shape[0], centers.shape[1]
    scores = evaluate(_score, predictions, targets, centers, scales)["moment"]
    size = jnp.sqrt(jnp.mean(jnp.where(jnp.isfinite(scores), scores, 0) ** 2))
    length = 0.3 / jnp.where(size > 0, size, 1)
    directions = jax.random.normal(key, (n, d), targets.dtype)
    directions = directions / jnp.linalg.norm(directions, axis=1, keepdims=True)
    steps = length * directions

    segment: Any = _gap
    gaps = evaluate(segment, predictions, targets, centers, scales, steps)["moment"]
    off = jnp.linalg.norm(gaps, axis=1) > 0.1 * at_least(size, 0)
    return jnp.mean(off, dtype=targets.dtype) <= ROUGH


def _score(log_density: Any, y: Array) -> Array:
    return jax.grad(log_density)(y)


def _gap(log_density: Any, y: Array, step: Array) -> Array:
    """The difference of scores along a segment less the integral of what autodiff sees."""
    score = jax.grad(log_density)

    def slope(part: float) -> Array:
        return jax.jvp(score, (y + part * step,), (step,))[1]

    inner = 0.5 / 3**0.5
    return score(y + step) - score(y) - (slope(0.5 - inner) + slope(0.5 + inner)) / 2
