r"""Entries: moments with mean zero given the prediction, times features of the prediction.

For any feature :math:`\varphi` of a prediction, or of its input, and any moment with
:math:`E[t(p, Y) \mid p] = 0`, :math:`E[\varphi(p) t(p, Y)] = 0`: with :math:`\varphi = 1` an error
that all predictions share, with the claimed centre, the claimed log scale or an input one that
grows along it.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxcal.entries.ranks import Seen, normal
from jaxcal.numerics import at_least, at_most, eliminated
from jaxcal.typing import Key, Points

FARTHEST = 3.0  # deviations of a feature, so that none dominates
MOST = 10  # columns of a feature; of more, the leading principal components
SKETCHED = 200  # columns whose principal components are taken
MOST_ALONE = 512  # products of a moment with single columns
WAVES = 8  # random waves along the features of the predictions


class Group(NamedTuple):
    """A named alternative: ``blocks`` of entries [n, k], each of which may be off as a whole or one
    by one, the prior ``weight`` of the group, and entries [n, k] of which one ``alone`` may be off,
    or None."""

    name: str
    weight: float
    blocks: list[Float[Array, "n k"]]
    alone: Float[Array, "n k"] | None = None


def features_of(seen: Seen) -> tuple[Points, Points]:
    """Claimed centres and log scales of each coordinate, [n, d] both, standardized."""
    centers, deviations = seen.claims
    return standardized(centers), standardized(jnp.log(deviations))


class Scaling(NamedTuple):
    """Columns brought to mean 0 and deviation 1 by those of a fit: ``center`` and ``scale`` [q],
    infinite where all are equal."""

    center: Float[Array, " q"]
    scale: Float[Array, " q"]

    @classmethod
    def of(cls, columns: Float[Array, "n q"]) -> "Scaling":
        """Those of a fit."""
        deviation = jnp.std(columns, axis=0)
        size = jnp.max(jnp.abs(columns), axis=0)
        spread = deviation > 8 * jnp.finfo(columns.dtype).eps * size
        return cls(jnp.mean(columns, axis=0), jnp.where(spread, deviation, jnp.inf))

    def __call__(self, columns: Float[Array, "n q"]) -> Float[Array, "n q"]:
        """At most `FARTHEST` deviations away; 0 where all of the fit are equal."""
        gaps = columns - self.center[None]
        scaled = jnp.where(jnp.isfinite(self.scale)[None], gaps / self.scale[None], 0)
        return within(scaled)


def within(columns: Float[Array, "n q"]) -> Float[Array, "n q"]:
    """At most `FARTHEST` deviations away."""
    return at_most(at_least(columns, -FARTHEST), FARTHEST)


def standardized(columns: Float[Array, "n q"]) -> Float[Array, "n q"]:
    """Mean 0 and deviation 1, at most `FARTHEST` deviations away; 0 where all are equal."""
    return Scaling.of(columns)(columns)


class Few(NamedTuple):
    """Standardized columns, or their leading principal components where there are more than `MOST`;
    of more than `SKETCHED`, as of images, those of so many random combinations. ``vectors`` [r, q]
    are those of a fit, and ``scaling`` that of the components; None for few columns."""

    columns: Scaling
    vectors: Float[Array, "r q"] | None
    components: Scaling | None

    @classmethod
    def of(cls, columns: Float[Array, "n q"]) -> "Few":
        """Those of a fit."""
        scaling = Scaling.of(columns)
        if columns.shape[1] <= MOST:
            return cls(scaling, None, None)
        mixed = _sketched(scaling(columns))
        vectors = jnp.linalg.eigh(mixed.T @ mixed)[1][:, -MOST:]
        return cls(scaling, vectors, Scaling.of(mixed @ vectors))

    def __call__(self, columns: Float[Array, "n q"]) -> Float[Array, "n r"]:
        """The columns of other observations."""
        scaled = self.columns(columns)
        if self.vectors is None or self.components is None:
            return scaled
        return self.components(_sketched(scaled) @ self.vectors)


def _sketched(columns: Float[Array, "n q"]) -> Float[Array, "n r"]:
    n_columns = columns.shape[1]
    if n_columns <= SKETCHED:
        return columns
    mixed = jax.random.normal(jax.random.key(0), (n_columns, SKETCHED), columns.dtype)
    return columns @ mixed / n_columns**0.5


class Frame(NamedTuple):
    """What features are in units of: claimed centres, log scales, ``inputs`` [q] or None, and the
    ``frequencies`` [r, w] of random waves along the first two."""

    center: Few
    scale: Few
    inputs: Few | None
    frequencies: Float[Array, "r w"]

    @classmethod
    def of(cls, key: Key, seen: Seen, inputs: Float[Array, "n q"] | None) -> "Frame":
        """That of a fit."""
        centers, deviations = seen.claims
        center, scale = Few.of(centers), Few.of(jnp.log(deviations))
        q = 2 * min(centers.shape[1], MOST)
        frequencies = jax.random.normal(key, (q, WAVES), centers.dtype) / q**0.5
        return cls(center, scale, None if inputs is None else Few.of(inputs), frequencies)


def cosines(ranks: Float[Array, "n q"], order: int) -> Float[Array, "n q"]:
    """Mean 0 and variance 1, bounded and, for one order, symmetric."""
    return 2**0.5 * jnp.cos(jnp.pi * order * ranks)


def groups(
    frame: Frame,
    seen: Seen,
    scores: Points | None,
    ends: Bool[Array, ""],
    inputs: Float[Array, "n q"] | None,
) -> list[Group]:
    """The named alternatives. ``scores`` [n, d] at the targets are None where distributions say
    that their density ends; there, and where it ``ends`` otherwise, ranks alone tell of shifts."""
    ranks, d = seen.ranks, seen.centers.shape[1]
    centers, deviations = seen.claims
    center = frame.center.columns(centers)
    features = [frame.center(centers), frame.scale(jnp.log(deviations))]
    waves = _waves(frame.frequencies, jnp.concatenate(features, axis=1))
    columns = None
    if inputs is not None and frame.inputs is not None:
        columns = frame.inputs.columns(inputs)
        features.append(frame.inputs(inputs))
    place, shift = -cosines(ranks.coordinates, 1), ranks.normal
    shifts = [place]
    if scores is not None:
        covariances = seen.scales @ jnp.swapaxes(seen.scales, 1, 2)
        deviations = jnp.linalg.norm(seen.scales, axis=2)
        axes = jnp.broadcast_to(jnp.eye(d, dtype=scores.dtype)[None], covariances.shape)
        precisions = eliminated(covariances, axes).forms
        alone = -jnp.einsum("nij,nj->ni", covariances, scores) / deviations
        shift = jnp.where(ends, shift, alone)
        shifts.append(shift)
        if d > 1:
            given_others = -scores / jnp.sqrt(at_least(precisions, 0))
            shifts.append(jnp.where(ends, ranks.normal, given_others))
    if d > 1:  # in common
        shifts.append(jnp.sum(shift, axis=1, keepdims=True))
    density = ranks.density[:, None]
    width, spread = -normal(density), normal(jnp.abs(2 * ranks.coordinates - 1))
    bumps = [cosines(density, order) for order in (1, 2, 3, 4)]
    skewness = [cosines(ranks.coordinates, order) for order in (3, 4)]
    shrinkage = jnp.sum(shift * center, axis=1, keepdims=True)
    named = [
        Group("shift", 0.33, shifts),
        Group("spread", 0.22, [width, spread]),
        Group("correlation", 0.08, [normal(ranks.products)]),
        Group("tails", 0.08, bumps),
        Group("skewness", 0.03, [jnp.concatenate(skewness, axis=1)]),
        Group(
            "shift trend",
            0.14,
            [*(_crossed(shift, f) for f in features), shrinkage],
            _alone(shift, columns),
        ),
        Group(
            "spread trend",
            0.15,
            [_crossed(t, f) for t in (width, spread) for f in features],
            _alone(width, columns),
        ),
        Group("varying", 0.02, [_crossed(shift, waves), _crossed(width, waves)]),
    ]
    return [group for group in named if group.blocks[0].shape[1] > 0]


def _alone(
    moments: Float[Array, "n q"], columns: Float[Array, "n r"] | None
) -> Float[Array, "n k"] | None:
    """Moments, or their sum, times each of many columns: what a model ignores may vary little, and
    then leading components leave it out."""
    if columns is None or not MOST < columns.shape[1] <= SKETCHED:
        return None
    if moments.shape[1] * columns.shape[1] > MOST_ALONE:
        moments = jnp.sum(moments, axis=1, keepdims=True)
    return _crossed(moments, columns)


def _crossed(moments: Float[Array, "n q"], features: Float[Array, "n r"]) -> Float[Array, "n k"]:
    return (moments[:, :, None] * features[:, None]).reshape(len(moments), -1)


def _waves(frequencies: Array, features: Float[Array, "n q"]) -> Float[Array, "n r"]:
    angles = features @ frequencies
    return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=1)
