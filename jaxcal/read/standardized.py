"""Predictions in standardized units, so that no result depends on the unit of the data."""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.numerics import binary_size
from jaxcal.typing import Point, Points, PredictionsLike


def along_last(vector: Point, points: Float[Array, "*batch d"]) -> Float[Array, "*ones d"]:
    """Return the vector reshaped to broadcast along the last axis of the points."""
    return jnp.expand_dims(vector, range(points.ndim - 1))


class Units(eqx.Module):
    """The affine change of units ``t = (y - center) / scale``, with one scale per coordinate.

    ``center`` and ``scale`` [d] are in the units of the data.
    """

    center: Point
    scale: Point

    @classmethod
    def of(cls, ys: Points) -> "Units":
        """Return units from the mean and standard deviation of targets [n, d].

        A constant coordinate has scale 1. Only finite targets are used; the others stay unchanged
        and are counted.
        """
        finite = jnp.isfinite(ys)
        count = jnp.sum(finite, axis=0, dtype=ys.dtype)
        ends = jnp.max(jnp.where(finite[None], jnp.stack([-ys, ys]), -jnp.inf), axis=1)
        low, high = -ends[0], ends[1]
        largest = jnp.max(ends, axis=0)
        size = binary_size(largest)
        # squares and their sums stay within the range of their type
        parts = jnp.where(finite, ys, 0) / along_last(size, ys)
        mean = jnp.sum(parts, axis=0) / count
        about = jnp.where(finite, parts - along_last(mean, ys), 0)
        variance = jnp.sum(about**2, axis=0) / count
        # a coordinate that is constant up to rounding has no scale
        rounding = jnp.finfo(ys.dtype).eps * largest / size
        # NaN stays NaN: only a spread of 0 is replaced
        none = (high <= low) | (variance <= rounding**2)
        precision = jax.lax.rsqrt(jnp.where(none, 1, variance))
        # a quotient is computed once; a compiler would repeat a choice for each use
        scale = size / jnp.where(none, size, precision)
        return cls(mean * size, scale)

    @classmethod
    def unchanged(cls, ys: Points) -> "Units":
        """Return the identity: targets keep their units."""
        d = ys.shape[1]
        return cls(jnp.zeros(d, ys.dtype), jnp.ones(d, ys.dtype))

    def points(self, ys: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        """Return targets in the new units."""
        return (ys - along_last(self.center, ys)) / along_last(self.scale, ys)

    def scores(self, values: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        """Return scores in the new units, by the chain rule."""
        return values * along_last(self.scale, values)

    def original(self, ts: Float[Array, "*batch d"]) -> Float[Array, "*batch d"]:
        """Return targets in the units of the data."""
        return along_last(self.center, ts) + along_last(self.scale, ts) * ts


class OwnUnits(eqx.Module):
    """Units of each prediction: ``u = M^-1 (t - center)`` of targets t in common ``units``.

    ``center`` [n, d] and ``scale`` M [n, d, d]; points and scores have a leading axis n.
    """

    units: Units
    center: Float[Array, "n d"]
    scale: Float[Array, "n d d"]

    def points(self, ys: Float[Array, "n *m d"]) -> Float[Array, "n *m d"]:
        """Return targets in the units of their predictions."""
        return self.of_common(self.units.points(ys))

    def of_common(self, ts: Float[Array, "n *m d"]) -> Float[Array, "n *m d"]:
        """Return targets in the units of their predictions, from targets in common units."""
        gaps = ts - self._each(self.center, ts)
        rows = jnp.linalg.solve(self.scale, jnp.swapaxes(self._rows(gaps), 1, 2))
        return jnp.swapaxes(rows, 1, 2).reshape(ts.shape)

    def scores(self, values: Float[Array, "n *m d"]) -> Float[Array, "n *m d"]:
        """Return scores in the units of their predictions, by the chain rule."""
        rows = self._rows(self.units.scores(values))
        return jnp.einsum("nij,nmi->nmj", self.scale, rows).reshape(values.shape)

    def original(self, us: Float[Array, "n *m d"]) -> Float[Array, "n *m d"]:
        """Return targets in the units of the data."""
        ts = jnp.einsum("nij,nmj->nmi", self.scale, self._rows(us)).reshape(us.shape)
        return self.units.original(ts + self._each(self.center, us))

    def _rows(self, points: Array) -> Float[Array, "n m d"]:
        return points.reshape(points.shape[0], -1, points.shape[-1])

    def _each(self, centers: Array, points: Array) -> Array:
        return jnp.expand_dims(centers, range(1, points.ndim - 1))


class Standardized(eqx.Module):
    """Predictions over targets of shape ``event`` as predictions over vectors [d] in other units.

    Scores, moments and draws of the predictions are in these units.
    """

    predictions: PredictionsLike
    units: Units | OwnUnits
    event: tuple[int, ...] = eqx.field(static=True)


def in_units_of_data(predictions: Any) -> Any:
    """Return predictions without a change of units."""
    return predictions.predictions if isinstance(predictions, Standardized) else predictions
