"""Features with which the map of a repair varies: claimed centre and log scale, and inputs."""

from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.entries.landed import located
from jaxcal.entries.moments import Scaling, within
from jaxcal.read import Standardized, Units
from jaxcal.repairing.fit import Frame
from jaxcal.typing import Points

MOST = 10  # columns of claims, and of inputs; more are reduced to principal components
PAIRS = 6  # fewest pairs per parameter
DRAWS = 20  # fewest draws per prediction with which errors may vary with claims
INPUTS, OWN, CLAIMS = "inputs", "its own claims", "claims of all coordinates"


def too_many(n: int, d: int, q: int, n_samples: int = 0) -> list[str]:
    """Return the names of groups of features to omit: those that would give the map more than n /
    `PAIRS` parameters and, if 0 < ``n_samples`` < `DRAWS`, those of centres and scales."""
    count, left_out = 2 * d + d * (d - 1) // 2, []
    more = {
        INPUTS: 2 * d * min(q, MOST),
        OWN: 4 * d,
        CLAIMS: 2 * d * min(2 * d, MOST) if d > 1 else 0,
    }
    for name, number in more.items():
        vague = name != INPUTS and 0 < n_samples < DRAWS
        if (PAIRS * (count + number) > n or vague) and number:
            left_out.append(name)
        else:
            count += number
    return left_out


class Columns(NamedTuple):
    """Map of q columns to r features: standardize by ``scaling``, multiply by ``mix`` [q, r]."""

    scaling: Scaling
    mix: Float[Array, "q r"]

    @classmethod
    def of(cls, columns: Float[Array, "n q"], most: int | None = None) -> "Columns":
        """Return the map fitted to columns, with at most ``most`` principal components."""
        scaling, q = Scaling.of(columns), columns.shape[1]
        mix = jnp.eye(q, dtype=columns.dtype)
        if most is not None and q > most:
            z = scaling(columns)
            _, vectors = jnp.linalg.eigh(z.T @ z)
            largest = vectors[:, -most:]
            sizes = jnp.std(z @ largest, axis=0)
            mix = largest / jnp.where(sizes > 0, sizes, 1)[None]
        return cls(scaling, mix)

    def unless(self, left_out: bool) -> "Columns":
        """Return the same map, or one whose features are all 0 if ``left_out``."""
        return self._replace(mix=jnp.zeros_like(self.mix)) if left_out else self

    def __call__(self, columns: Float[Array, "n q"]) -> Float[Array, "n r"]:
        return within(self.scaling(columns) @ self.mix)


class Features(eqx.Module):
    """Functions that compute the features of a `Frame`: ``own`` from d centres and from d log
    scales, ``claims`` from all 2 d, ``inputs`` from inputs. ``event``: shape of a target."""

    units: Units
    event: tuple[int, ...] = eqx.field(static=True)
    own: tuple[Columns, Columns]
    claims: Columns
    inputs: Columns

    @classmethod
    def of(
        cls, predictions: Any, targets: Array, inputs: Float[Array, "n q"], n_samples: int = 0
    ) -> "tuple[Features, Frame]":
        """Return `Features` fitted to predictions, targets and inputs, with their `Frame`."""
        units = Units.of(targets.reshape(len(targets), -1))
        geometry = _located(predictions, units, targets.shape)
        center, scale, _ = geometry
        (n, d), q = center.shape, inputs.shape[1]
        left_out = too_many(n, d, q, n_samples)
        parts = center, jnp.log(jnp.linalg.norm(scale, axis=2))
        both = jnp.concatenate(parts, axis=1)
        alone = [Columns.of(columns).unless(OWN in left_out) for columns in parts]
        # with one coordinate, claims of all coordinates are the same as its own
        both = both[:, :0] if d == 1 or CLAIMS in left_out else both
        features = cls(
            units,
            tuple(targets.shape[1:]),
            (alone[0], alone[1]),
            Columns.of(both, MOST),
            Columns.of(inputs, MOST).unless(INPUTS in left_out),
        )
        return features, features._frame(*geometry, inputs)

    def frame(self, predictions: Any, n: int, inputs: Float[Array, "n q"]) -> Frame:
        """Return the `Frame` of n other predictions, with their inputs."""
        return self._frame(*_located(predictions, self.units, (n, *self.event)), inputs)

    def _frame(self, center: Points, scale: Array, reliable: Array, inputs: Array) -> Frame:
        parts = center, jnp.log(jnp.linalg.norm(scale, axis=2))
        both = jnp.concatenate(parts, axis=1)[:, : len(self.claims.mix)]
        return Frame(
            reliable,
            center,
            scale,
            jnp.linalg.inv(scale),
            (self.own[0](parts[0]), self.own[1](parts[1])),
            self.claims(both),
            self.inputs(inputs),
        )


def _located(predictions: Any, units: Units, shape: tuple[int, ...]) -> tuple[Points, Array, Array]:
    d = len(units.center)
    inner = Standardized(predictions, units, shape[1:])
    center, scale, reliable = located(jax.random.key(0), inner, shape[0], d, units.center.dtype)
    eyes = jnp.eye(d, dtype=scale.dtype)[None]
    return (
        jnp.where(reliable[:, None], center, 0),
        jnp.where(reliable[:, None, None], scale, eyes),
        reliable,
    )
