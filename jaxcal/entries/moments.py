r"""Compute entries: moments with mean 0 given the prediction, times features of the prediction.

For any feature :math:`\varphi` of a prediction or its input, and any moment with
:math:`E[t(p, Y) \mid p] = 0`, :math:`E[\varphi(p) t(p, Y)] = 0`. :math:`\varphi = 1` detects an
error common to all predictions. The other features (centre and log scale of the prediction,
inputs) detect errors that change along them.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float

from jaxcal.entries.ranks import Ranked, Seen, normal
from jaxcal.numerics import at_least, at_most, eliminated
from jaxcal.typing import Points

FARTHEST = 3.0  # features are clipped at so many deviations, so that no observation dominates
MOST = 10  # most columns of a feature; more are reduced to principal components, or to the first
SKETCHED = 200  # most columns for exact principal components
MOST_ALONE = 512  # most products of a moment with single columns


class Group(NamedTuple):
    """Named alternative to calibration: a shift of all entries of one of the ``blocks`` [n, k], of
    one entry of a block, or of one entry of ``alone`` [n, k]. ``weight``: prior weight.
    ``positive``: whether the shift is known to be positive; allowed for a single entry only."""

    name: str
    weight: float
    blocks: list[Float[Array, "n k"]]
    alone: Float[Array, "n k"] | None = None
    positive: bool = False


def features_of(seen: Seen) -> tuple[Points, Points]:
    """Return centre and log scale of each prediction, standardized over them, [n, d] each."""
    centers, deviations = seen.claims
    return standardized(centers), standardized(jnp.log(deviations))


class Scaling(NamedTuple):
    """Standardization of columns by their mean ``center`` and deviation ``scale`` [q] in a sample;
    the scale of a constant column is infinite."""

    center: Float[Array, " q"]
    scale: Float[Array, " q"]

    @classmethod
    def of(cls, columns: Float[Array, "n q"]) -> "Scaling":
        """Fit the standardization to a sample."""
        deviation = jnp.std(columns, axis=0)
        size = jnp.max(jnp.abs(columns), axis=0)
        spread = deviation > 8 * jnp.finfo(columns.dtype).eps * size
        return cls(jnp.mean(columns, axis=0), jnp.where(spread, deviation, jnp.inf))

    def __call__(self, columns: Float[Array, "n q"]) -> Float[Array, "n q"]:
        """Standardize columns, clipped to `FARTHEST` deviations; 0 if constant in the sample."""
        gaps = columns - self.center[None]
        scaled = jnp.where(jnp.isfinite(self.scale)[None], gaps / self.scale[None], 0)
        return within(scaled)


def within(columns: Float[Array, "n q"]) -> Float[Array, "n q"]:
    """Return standardized columns, clipped to [-`FARTHEST`, `FARTHEST`]."""
    return at_most(at_least(columns, -FARTHEST), FARTHEST)


def standardized(columns: Float[Array, "n q"]) -> Float[Array, "n q"]:
    """Return columns of mean 0 and deviation 1, clipped to `FARTHEST`; 0 for constant columns."""
    return Scaling.of(columns)(columns)


class Few(NamedTuple):
    """Map columns to standardized columns or, if more than `MOST`, to principal components.

    More than `SKETCHED` columns, such as pixels, are first reduced to `SKETCHED` random
    combinations. ``columns``: scaling of columns. ``vectors``: principal axes; ``components``:
    scaling of principal components; both are None for at most `MOST` columns."""

    columns: Scaling
    vectors: Float[Array, "r q"] | None
    components: Scaling | None

    @classmethod
    def of(cls, columns: Float[Array, "n q"]) -> "Few":
        """Fit the map to columns."""
        scaling = Scaling.of(columns)
        if columns.shape[1] <= MOST:
            return cls(scaling, None, None)
        mixed = _sketched(scaling(columns))
        vectors = jnp.linalg.eigh(mixed.T @ mixed)[1][:, -MOST:]
        return cls(scaling, vectors, Scaling.of(mixed @ vectors))

    def __call__(self, columns: Float[Array, "n q"]) -> Float[Array, "n r"]:
        """Return features of ``columns``, whose observations need not be those of the fit."""
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
    """Fitted maps from centres, log scales and inputs of predictions to features."""

    center: Few
    scale: Few
    inputs: Few | None

    @classmethod
    def of(cls, seen: Seen, inputs: Float[Array, "n q"] | None) -> "Frame":
        """Fit the maps to a sample of predictions and inputs."""
        centers, deviations = seen.claims
        few = None if inputs is None else Few.of(inputs)
        return cls(Few.of(centers), Few.of(jnp.log(deviations)), few)

    @property
    def n_constant(self) -> Array:
        """Number of constant columns of inputs; 0 if there are more than `MOST`, as in images."""
        few = self.inputs
        if few is None or few.vectors is not None:
            return jnp.zeros((), int)
        return jnp.sum(jnp.isinf(few.columns.scale))

    def features(self, seen: Seen, inputs: Float[Array, "n q"] | None) -> list[Float[Array, "n r"]]:
        """Return a list of features: from centres of predictions, log scales, and inputs if any."""
        centers, deviations = seen.claims
        claimed = [self.center(centers), self.scale(jnp.log(deviations))]
        if inputs is None or self.inputs is None:
            return claimed
        return [*claimed, self.inputs(inputs)]

    def along(self, seen: Seen, inputs: Float[Array, "n q"] | None) -> Float[Array, "f n d"]:
        """Return standardized centres and log scales, and first `MOST` inputs repeated d times."""
        centers, deviations = seen.claims
        each = [self.center.columns(centers), self.scale.columns(jnp.log(deviations))]
        if inputs is not None and self.inputs is not None:
            few = self.inputs.columns(inputs)[:, :MOST].T
            each += [jnp.broadcast_to(column[:, None], centers.shape) for column in few]
        return jnp.stack(each)


def cosines(ranks: Float[Array, "n q"], order: int) -> Float[Array, "n q"]:
    """Return sqrt(2) cos(pi order u) of ranks u: mean 0 and variance 1 if u is uniform."""
    return 2**0.5 * jnp.cos(jnp.pi * order * ranks)


def groups(
    frame: Frame,
    seen: Seen,
    scores: Points | None,
    ends: Bool[Array, ""],
    inputs: Float[Array, "n q"] | None,
) -> list[Group]:
    """Return the `Group` of each alternative. Entries for shifts use ranks and ``scores`` [n, d] at
    the targets; only ranks if ``scores`` is None or ``ends`` (some density has a boundary)."""
    ranks, d = seen.ranks, seen.centers.shape[1]
    center, features = frame.center.columns(seen.claims[0]), frame.features(seen, inputs)
    columns = None
    if inputs is not None and frame.inputs is not None:
        columns = frame.inputs.columns(inputs)
    shift = ranks.normal
    shifts = [-cosines(ranks.coordinates, 1)]
    if scores is not None:
        covariances = seen.scales @ jnp.swapaxes(seen.scales, 1, 2)
        deviations = jnp.linalg.norm(seen.scales, axis=2)
        axes = jnp.broadcast_to(jnp.eye(d, dtype=scores.dtype)[None], covariances.shape)
        precisions = eliminated(covariances, axes).forms
        marginal = -jnp.einsum("nij,nj->ni", covariances, scores) / deviations
        shift = jnp.where(ends, shift, marginal)
        shifts.append(shift)
        if d > 1:
            given_others = -scores / jnp.sqrt(at_least(precisions, 0))
            shifts.append(jnp.where(ends, ranks.normal, given_others))
    if d > 1:  # common to all coordinates
        shifts.append(jnp.sum(shift, axis=1, keepdims=True))
    density = ranks.density[:, None]
    width, spread = whole(ranks), normal(jnp.abs(2 * ranks.coordinates - 1))
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
    ]
    u = ranks.statistics
    of_statistics = [-cosines(u, 1), normal(jnp.abs(2 * u - 1))]
    of_statistics += [_crossed(of_statistics[0], f) for f in features]
    named.append(Group("statistics", 0.2, of_statistics))
    return [group for group in named if group.blocks[0].shape[1] > 0]


def whole(ranks: Ranked) -> Float[Array, "n 1"]:
    """Return minus the normal score of the rank of the log density: large in the tail."""
    return -normal(ranks.density[:, None])


def _alone(
    moments: Float[Array, "n q"], columns: Float[Array, "n r"] | None
) -> Float[Array, "n k"] | None:
    """Return each moment times each column, [n, q r]; for q r > `MOST_ALONE` the sum of the moments
    times each column, [n, r]. None if ``columns`` is None, r <= `MOST` or r > `SKETCHED`."""
    if columns is None or not MOST < columns.shape[1] <= SKETCHED:
        return None
    if moments.shape[1] * columns.shape[1] > MOST_ALONE:
        moments = jnp.sum(moments, axis=1, keepdims=True)
    return _crossed(moments, columns)


def _crossed(moments: Float[Array, "n q"], features: Float[Array, "n r"]) -> Float[Array, "n k"]:
    return (moments[:, :, None] * features[:, None]).reshape(len(moments), -1)
