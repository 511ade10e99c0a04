"""Protocol of moments, and their values at n targets in the units of each prediction."""

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.read.convert import say
from jaxcal.read.scores import each_density
from jaxcal.typing import Point, Predictions, Scalar

LogDensityOfOne: TypeAlias = Callable[[Point], Scalar]


@runtime_checkable
class Moment(Protocol):
    """Protocol of moments: numbers with mean zero if y is a draw of the prediction.

    Called with the log density of ONE prediction, known up to its constant, and one target [d],
    both in the units of that prediction; ``log_density(z)`` is a differentiable function of any
    point [d]. Returns q numbers [q], or a dict of such arrays whose keys name the error that a
    nonzero mean indicates. A plain function is a moment.

    Optional attributes and methods:

    - ``whole_space = True``: the moment has mean zero only if the density vanishes at every
      boundary of its support, as with all derivatives of a log density; it is left out otherwise.
    - ``smoothness``: how often the density is differentiated; 0 by default.
    - ``marginal = True``: values are a vector in the units of the prediction, to be converted to
      claimed standard deviations of each coordinate.
    - ``common = True``: evaluate in units common to all predictions, even if each has its own.
    - ``randomized = True``: pass a random key per target as third argument.
    - ``fitted(key, dimension, dtype)``: returns the moment with its random draws, the same for all
      predictions and independent of targets.

    Example:
        >>> import jax, jaxcal
        >>> def score(log_density, y):  # its mean under the prediction is 0
        ...     return jax.grad(log_density)(y)
        >>> isinstance(score, jaxcal.moments.Moment)
        True
    """

    def __call__(
        self, log_density: LogDensityOfOne, y: Point, /
    ) -> Float[Array, " q"] | dict[str, Float[Array, " q"]]: ...


def evaluate(
    moment: Moment,
    predictions: Predictions,
    targets: Float[Array, "n *event"],
    centers: Float[Array, "#n d"],
    scales: Float[Array, "#n d d"],
    *rows: Any,
) -> dict[str, Float[Array, "n q"]]:
    r"""Return the values [n, q] of a moment at n targets by name, in the units of each prediction.

    The units of a prediction are :math:`u = M^{-1}(y - c)`, with centres c [n, d] and scales M [n,
    d, d] (or one of each for all) that are functions of the predictions alone. ``rows`` are further
    arguments of the moment, one row per target. Log densities are evaluated at the raw points, so
    that targets lose no digits; where one is NaN, such as log(y) at y < 0, the density counts as 0.
    Values without names are called "moment".
    """
    n, event = targets.shape[0], targets.shape[1:]
    flat = targets.reshape(n, -1)
    scales = jnp.broadcast_to(scales, (n, flat.shape[1], flat.shape[1]))
    us = jnp.linalg.solve(scales, (flat - centers)[..., None])[..., 0]

    def one(log_density: Any, y: Array, u: Point, scale: Array, *row: Any) -> Any:
        def own(z: Point) -> Scalar:
            value = log_density(y + (scale @ (z - u)).reshape(event))
            return jnp.where(jnp.isnan(value), -jnp.inf, value)

        values = moment(own, u, *row)
        values = values if isinstance(values, dict) else {"moment": values}
        return {name: _numbers(part) for name, part in values.items()}

    values = each_density(predictions, one, targets, us, scales, *rows)
    if not getattr(moment, "marginal", False):
        return values
    deviations = jnp.linalg.norm(scales, axis=2, keepdims=True)
    return {name: jnp.einsum("nij,nj->ni", scales / deviations, v) for name, v in values.items()}


def _numbers(value: Any) -> Float[Array, " q"]:
    """Return the value of a moment as a vector, or raise TypeError."""
    try:
        numbers = jnp.atleast_1d(value)
    except TypeError:
        numbers = None
    if numbers is None or numbers.ndim > 1 or not jnp.issubdtype(numbers.dtype, jnp.inexact):
        raise TypeError(
            f"moment: wanted numbers [q] for a log density and a target, or a dict of such, got "
            f"{say(value)}"
        )
    return numbers
