"""What a moment is, and its values at n targets in the units of each prediction."""

from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, runtime_checkable

import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.convert import say
from jaxcal.scores import each_density
from jaxcal.typing import Point, Scalar

LogDensityOfOne: TypeAlias = Callable[[Point], Scalar]


@runtime_checkable
class Moment(Protocol):
    """Numbers with mean zero where y is a draw of the prediction, for every prediction.

    Called with the log density of ONE prediction, known up to its constant, and one target [d],
    both in the units of that prediction: ``log_density(z)`` is a function of any point [d] and may
    be differentiated. Returns q numbers [q], or a dict of such arrays whose names say what a mean
    other than zero points to. A plain function will do.

    A moment may also say ``whole_space = True`` (it is right only where the density has no boundary
    other than where it vanishes), ``smoothness`` (how often the density is differentiated; 0 if it
    does not say), ``marginal = True`` (its values are a vector in the units of the prediction,
    wanted in claimed standard deviations of each coordinate), ``common = True`` (in units that all
    predictions share, also where each has its own), and offer ``fitted(key, dimension, dtype)``,
    which returns the moment with what it draws at random, the same for all predictions and of no
    target.
    """

    def __call__(
        self, log_density: LogDensityOfOne, y: Point, /
    ) -> Float[Array, " q"] | dict[str, Float[Array, " q"]]: ...


def evaluate(
    moment: Moment,
    predictions: Any,
    targets: Float[Array, "n *event"],
    centers: Float[Array, "#n d"],
    scales: Float[Array, "#n d d"],
    *rows: Any,
) -> dict[str, Float[Array, "n q"]]:
    r"""A moment at n targets: values [n, q] by name; "moment" where it gives no names.

    The units of a prediction are :math:`u = M^{-1}(y - c)` with ``centers`` c [n, d] and ``scales``
    M [n, d, d], or [1, ..] for all: functions of the predictions alone, for which every moment
    keeps its mean zero. Log densities are those of the points as they came, so that the target
    itself loses no digit on the way. ``rows``: more arguments [n, ...] of the moment, one a target.
    Cost: n times the moment's.
    """
    n, event = targets.shape[0], targets.shape[1:]
    flat = targets.reshape(n, -1)
    scales = jnp.broadcast_to(scales, (n, flat.shape[1], flat.shape[1]))
    us = jnp.linalg.solve(scales, (flat - centers)[..., None])[..., 0]

    def one(log_density: Any, y: Array, u: Point, scale: Array, *row: Any) -> Any:
        def own(z: Point) -> Scalar:
            return log_density(y + (scale @ (z - u)).reshape(event))

        values = moment(own, u, *row)
        values = values if isinstance(values, dict) else {"moment": values}
        return {name: _numbers(part) for name, part in values.items()}

    values = each_density(predictions, one, targets, us, scales, *rows)
    if not getattr(moment, "marginal", False):
        return values
    deviations = jnp.linalg.norm(scales, axis=2, keepdims=True)
    return {name: jnp.einsum("nij,nj->ni", scales / deviations, v) for name, v in values.items()}


def _numbers(value: Any) -> Float[Array, " q"]:
    """What a moment returned, as a vector, or TypeError."""
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
