"""Posteriors over free parameters: the same distributions after the change to the whole space."""

from dataclasses import dataclass
from typing import Any

import equinox as eqx
from jaxtyping import Array, Float

from jaxcal.models import Unnormalized
from jaxcal.sbi.space import Space
from jaxcal.typing import Key, LogDensity, Scalar


@dataclass(frozen=True)
class _FreedDensity:
    """A log density of free parameters from that of the bounded ones, with the log-Jacobian."""

    log_density: LogDensity

    def __call__(self, params: tuple[Space, Any], u: Array) -> Scalar:
        space, inner = params
        return self.log_density(inner, space.bound(u)) + space.log_jacobian(u)


class FreedDistribution(eqx.Module):
    """A distribution over [d] with batch shape [n], over free parameters; offers what tests ask
    of a numpyro distribution."""

    distribution: Any
    space: Space

    @property
    def batch_shape(self) -> tuple[int, ...]:
        return tuple(self.distribution.batch_shape)

    @property
    def event_shape(self) -> tuple[int, ...]:
        return (len(self.space.low),)

    @property
    def support(self) -> Any:
        from numpyro.distributions import constraints

        return constraints.real_vector

    def log_prob(self, us: Float[Array, "*batch d"]) -> Float[Array, "*batch"]:
        thetas = self.space.bound(us)
        bounded = thetas if self.distribution.event_shape else thetas[..., 0]
        return self.distribution.log_prob(bounded) + self.space.log_jacobian(us)

    def sample(self, key: Key, shape: tuple[int, ...] = ()) -> Float[Array, "*batch d"]:
        drawn = self.distribution.sample(key, shape)
        return self.space.free(drawn if self.distribution.event_shape else drawn[..., None])


def over_free(predictions: Unnormalized, space: Space) -> Unnormalized:
    """Densities of free parameters, also inside of jit."""
    params, axes = (space, predictions.params), (None, predictions.in_axes)
    return Unnormalized(_FreedDensity(predictions.log_density), params, in_axes=axes)


def freed(predictions: Any, space: Space) -> Any:
    """Predictions over parameters as predictions over free ones: an `Unnormalized` or a
    distribution again."""
    if isinstance(predictions, Unnormalized):
        return over_free(predictions, space) if space.bounded.any() else predictions
    if not space.bounded.any() and predictions.event_shape:
        return predictions
    return FreedDistribution(predictions, space)
