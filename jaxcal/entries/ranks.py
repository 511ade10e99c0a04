"""Rank targets among points near their predictions, and summarize these points."""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import ndtri
from jaxtyping import Array, Bool, Float, PyTree

from jaxcal.entries.landed import N_POINTS, Landed, landed
from jaxcal.numerics import not_finite, uniforms
from jaxcal.read import Draws, Standardized, Units, Unnormalized
from jaxcal.read.scores import (
    coarse,
    coarse_sums,
    is_discrete,
    is_distribution,
    score,
    signs_reversed,
    states_an_end,
)
from jaxcal.typing import Key, Keys, Points, Predictions

Statistics: TypeAlias = Callable[..., Array]  # a function of one target, and its inputs if any
LEAST_SHARE = 1e-6  # weight below which a point adds nothing to a mean
BLOCK = 4096  # observations whose points are in memory at once
IMPROBABLE = 1e-6  # probability that any of n correct predictions has a target so far in its tail


class Ranked(NamedTuple):
    """Ranks of n targets among their points; under calibration uniform given the prediction.

    There are ranks of the log ``density``, of ``coordinates``, of the user's ``statistics``, and of
    ``products`` (y_j - mean_j) (y_k - mean_k) of q pairs of coordinates. A rank is a uniform draw
    between the weight of smaller points and the weight of smaller or equal points; for ``density``,
    ``at_most`` is the upper end. If one coordinate of a prediction is wrong, the target has almost
    no weight, and its ranks in other coordinates are 0 or 1 too often. ``resolved`` avoids this: a
    rank of a coordinate below w is drawn again from (0, w), and a rank above 1 - w from (1 - w, 1),
    with w = 1 / (2 + 1 / ``grain``). ``halves``: ranks of coordinates among the first and the
    second half of the points. ``grain``: sum of squared weights. ``expected``: mean product of the
    normal scores of each pair under the prediction, for ``coordinates`` and ``resolved``.
    """

    density: Float[Array, " n"]
    at_most: Float[Array, " n"]
    coordinates: Float[Array, "n d"]
    products: Float[Array, "n q"]
    resolved: Float[Array, "n d"]
    statistics: Float[Array, "n s"]
    halves: Float[Array, "n 2 d"]
    grain: Float[Array, " n"]
    expected: Float[Array, "n 2 q"]

    def even(self, m: int = N_POINTS) -> Bool[Array, ""]:
        """Return whether all targets and their m points have equal weights, as draws do."""
        return jnp.all(jnp.abs(self.grain * (m + 1) - 1) < 1e-3)

    @property
    def shown(self) -> Float[Array, "n r"]:
        """Return ranks of log density, d coordinates and s statistics, [n, 1 + d + s]."""
        each = [self.density[:, None], self.coordinates, self.statistics]
        return jnp.concatenate(each, axis=1)

    @property
    def normal(self) -> Float[Array, "n d"]:
        """Return normal scores of ``coordinates``: standardized errors of Gaussian predictions."""
        return normal(self.coordinates)


class Seen(NamedTuple):
    """Summaries of the points near n predictions.

    Attributes:
        ranks: Ranks of the targets.
        centers, scales, claims: As in `Landed`.
        log_at_target: Log density at the target, up to a constant, [n].
        largest: Largest log density at the points, [n].
        chance: Weight of the target, [n].
        usable: Whether the weights are finite, [n].
        ends: Whether the density is 0 at a point, [n].
        flat: Whether the density is constant on the points; False if these are draws, [n].
        endless: As in `Landed`.
    """

    ranks: Ranked
    centers: Points
    scales: Float[Array, "n d d"]
    claims: tuple[Points, Points]
    log_at_target: Float[Array, " n"]
    largest: Float[Array, " n"]
    chance: Float[Array, " n"]
    usable: Bool[Array, " n"]
    ends: Bool[Array, " n"]
    flat: Bool[Array, " n"]
    endless: Bool[Array, " n"]

    @classmethod
    def of(cls, key: Key, near: Landed, values: Float[Array, "n k s"] | None = None) -> "Seen":
        """Summarize points ``near``; ``values``: user's statistics of the target and each point."""
        weights, largest = near.weights, jnp.max(near.logs, axis=1)
        weighted = jnp.max(weights, axis=1) > jnp.min(weights, axis=1)
        return cls(
            ranked(key, near, values),
            near.centers,
            near.scales,
            near.claims,
            log_at_target=near.logs[:, 0],
            largest=largest,
            chance=weights[:, 0],
            usable=jnp.all(jnp.isfinite(weights), axis=1),
            ends=jnp.any(near.logs == -jnp.inf, axis=1),
            flat=weighted & (largest == jnp.min(near.logs, axis=1)),
            endless=near.endless,
        )


def seen(
    key: Key | Keys,
    predictions: Standardized,
    ys: Points,
    targets: Array,
    statistics: Statistics | None = None,
    inputs: Float[Array, "n q"] | None = None,
) -> Seen:
    """Return summaries of the points near each prediction; ``ys`` and ``targets`` as in `landed`.
    With an `Unnormalized`, observations are processed in blocks, which bounds memory.

    With one key per row of an `Unnormalized`, the points of an observation do not depend on other
    rows. Distributions and `Draws` use the first key for all rows.
    """

    def of_block(
        key: Key,
        predictions: Standardized,
        ys: Points,
        targets: Array,
        inputs: Float[Array, "n q"] | None,
    ) -> Seen:
        keys = jax.random.split(key)
        near = landed(keys[0], predictions, ys, targets)
        if statistics is None:
            return Seen.of(keys[1], near)
        return Seen.of(keys[1], near, values_of(statistics, near.originals, inputs))

    def of_rows(keys: Keys, predictions: Standardized, ys: Points, targets: Array, _: None) -> Seen:
        densities = predictions.predictions
        assert isinstance(densities, Unnormalized)

        def of_row(key: Key, k: Array) -> Seen:
            def row(leaf: Array, axis: int = 0) -> Array:
                return jax.lax.dynamic_slice_in_dim(leaf, k, 1, axis)

            one = Standardized(densities.sliced(row), predictions.units, predictions.event)
            return jax.tree.map(
                lambda leaf: leaf[0], of_block(key, one, row(ys), row(targets), None)
            )

        return jax.vmap(of_row)(keys, jnp.arange(len(ys)))

    if not key.ndim:
        return _in_blocks(of_block, key, predictions, ys, targets, inputs)
    if not isinstance(predictions.predictions, Unnormalized):
        return of_block(key[0], predictions, ys, targets, inputs)
    return _in_blocks(of_rows, key, predictions, ys, targets, None)


def _in_blocks(
    function: Callable[..., PyTree],
    key: Key | Keys,
    predictions: Standardized,
    ys: Points,
    *arrays: Array | None,
) -> PyTree:
    """Apply a function to blocks of `BLOCK` rows, and join the results. A block gets one key or the
    keys of its rows. The last block overlaps the previous one; repeated rows are dropped."""
    n, densities = len(ys), predictions.predictions
    if n <= BLOCK or not isinstance(densities, Unnormalized):
        return function(key, predictions, ys, *arrays)
    count = -(-n // BLOCK)

    def one(at: tuple[Key, Array]) -> PyTree:
        block_key, start = at

        def rows(leaf: Array, axis: int = 0) -> Array:
            return jax.lax.dynamic_slice_in_dim(leaf, start, BLOCK, axis)

        block = Standardized(densities.sliced(rows), predictions.units, predictions.event)
        some = (array if array is None else rows(array) for array in arrays)
        return function(rows(key) if key.ndim else block_key, block, rows(ys), *some)

    def joined(leaf: Array) -> Array:
        before = leaf[:-1].reshape((count - 1) * BLOCK, *leaf.shape[2:])
        return jnp.concatenate([before, leaf[-1, BLOCK * count - n :]])

    starts = jnp.minimum(BLOCK * jnp.arange(count), n - BLOCK)
    keys = key[:count] if key.ndim else jax.random.split(key, count)
    return jax.tree.map(joined, jax.lax.map(one, (keys, starts)))


class Fit(NamedTuple):
    """Ranks (in ``seen``) and scores of n targets; ``notes`` by warning code. The test sums over
    ``kept`` observations [n]. ``impossible`` ones [n] (density 0, or far in the tail) lead to
    rejection. ``lost`` ones [n] have a density or score that is not finite. ``ends``: whether any
    density has a boundary; ``flat``: whether all are constant on the points near predictions."""

    seen: Seen
    scores: Points | None
    kept: Bool[Array, " n"]
    impossible: Bool[Array, " n"]
    lost: Bool[Array, " n"]
    ends: Bool[Array, ""]
    flat: Bool[Array, ""]
    notes: dict[str, Array]

    @classmethod
    def of(
        cls,
        key: Key | Keys,
        predictions: Predictions,
        targets: Array,
        fixed: tuple[Units, Bool[Array, ""]] | None = None,
        statistics: Statistics | None = None,
        inputs: Float[Array, "n q"] | None = None,
    ) -> "Fit":
        """Fit n observations. ``fixed``: (units, ``ends``), instead of those of the targets."""
        n = len(targets)
        raw = targets.reshape(n, -1)
        finite = jnp.all(jnp.isfinite(raw), axis=1)
        units = Units.of(raw) if fixed is None else fixed[0]
        ys = jnp.where(finite[:, None], units.points(raw), 0)
        of_units = Standardized(predictions, units, targets.shape[1:])
        near = seen(key, of_units, ys, targets, statistics, inputs)
        nowhere = near.log_at_target == -jnp.inf
        lost = (nowhere & (not_finite(predictions) > 0)) | (near.log_at_target == jnp.inf)
        lost = finite & (lost | (~nowhere & ~near.usable))
        outside = finite & nowhere & ~lost
        kept = finite & ~nowhere & ~lost
        improbable = kept & (near.ranks.at_most <= IMPROBABLE / n)
        ends = _says_an_end(predictions) | jnp.any(near.ends & kept)
        ends = ends if fixed is None else fixed[1]
        sized, finest = kept & jnp.isfinite(near.largest), jnp.finfo(near.largest.dtype).eps
        notes = {
            "impossible-targets": jnp.sum(outside),
            "improbable-targets": jnp.sum(improbable),
            "density-with-edge": ends,
            "endless-densities": jnp.sum(near.endless & kept),
            "far-points": jnp.mean(jnp.where(kept, near.chance, 0)),
            "coarse-logs": jnp.max(jnp.abs(jnp.where(sized, near.largest, 0))) * finest,
        }
        if not (isinstance(predictions, Draws) or is_discrete(predictions)):  # rounded like targets
            sums = coarse_sums(raw.astype(ys.dtype), units.scale, 1 / near.claims[1])
            notes |= coarse(sums, n)
        scores = None
        if not (isinstance(predictions, Draws) or _says_an_end(predictions)):
            at_targets = units.scores(score(predictions, targets).reshape(n, -1))
            scores = jnp.where(jnp.isfinite(at_targets) & ~ends, at_targets, 0)
            lost = lost | (kept & ~ends & ~jnp.all(jnp.isfinite(at_targets), axis=1))
            notes["reversed-sign"] = signs_reversed(ys, scores) & ~ends
        notes["nonfinite-scores"] = jnp.sum(lost)
        flat = jnp.all(near.flat | ~kept)
        return cls(near, scores, kept, outside | improbable, lost, ends, flat, notes)


def _says_an_end(predictions: Predictions) -> bool:
    return is_distribution(predictions) and states_an_end(predictions)


def values_of(
    statistics: Statistics,
    points: Float[Array, "n k *event"],
    inputs: Float[Array, "n q"] | None,
) -> Float[Array, "n k s"]:
    """Return s statistics of each of k points, the target first; NaN counts as -infinity."""

    def of_row(members: Array, x: Array | None) -> Array:
        return jax.vmap(lambda y: jnp.ravel(statistics(*((y,) if x is None else (y, x)))))(members)

    values = jax.vmap(of_row, in_axes=(0, None if inputs is None else 0))(points, inputs)
    return jnp.where(jnp.isnan(values), -jnp.inf, values).astype(points.dtype)


def ranked(key: Key, near: Landed, statistics: Float[Array, "n k s"] | None = None) -> Ranked:
    """Return the ranks of the targets; ties are broken at random, independently per statistic."""
    w, d = near.weights, near.points.shape[2]
    middle = jnp.sum(w[:, :, None] * near.points, axis=1, keepdims=True)
    gaps = near.points - middle
    i, j = np.triu_indices(d, 1)
    each = [near.logs[:, :, None], near.points, gaps[:, :, i] * gaps[:, :, j]]
    values = jnp.concatenate(each if statistics is None else [*each, statistics], axis=2)
    at_targets = values[:, :1]
    below = jnp.sum(jnp.where(values < at_targets, w[:, :, None], 0), axis=1)
    ties = jnp.sum(jnp.where(values == at_targets, w[:, :, None], 0), axis=1)
    keys = [key, jax.random.fold_in(key, 1)]
    fallen, again = uniforms(keys, [ties.shape, (len(w), d)], ties.dtype)
    u = below + fallen * ties
    u = jnp.clip(u, 0, 1)
    coordinates = u[:, 1 : d + 1]
    grain = jnp.sum(w**2, axis=1)
    least = 1 / (2 + 1 / grain[:, None])
    low, high = coordinates < least, coordinates > 1 - least
    resolved = jnp.where(low, least * again, jnp.where(high, 1 - least * again, coordinates))
    products, of_statistics = jnp.split(u[:, d + 1 :], [len(i)], axis=1)
    at_most = below[:, 0] + ties[:, 0]
    edges = jnp.stack([jnp.full_like(least, float(jnp.finfo(least.dtype).eps)), least], axis=1)
    expected = expected_products(w, near.points, edges)[:, :, i, j]
    halves = _halves(jax.random.fold_in(key, 2), near)
    shares = products, resolved, of_statistics
    return Ranked(u[:, 0], at_most, coordinates, *shares, halves, grain, expected)


def _halves(key: Key, near: Landed) -> Float[Array, "n 2 d"]:
    """Return the ranks of target coordinates among the first and the second half of the points."""
    n, k, d = near.points.shape
    count = (k - 1) // 2
    fallen = uniforms([key], [(2, n, d)], near.weights.dtype)[0]
    target, weight = near.points[:, :1], near.weights[:, :1]

    def half(start: int, fallen: Array) -> Array:
        points, w = (a[:, start : start + count] for a in (near.points, near.weights))
        total = weight + jnp.sum(w, axis=1, keepdims=True)
        below = jnp.sum(jnp.where(points < target, w[:, :, None], 0), axis=1)
        ties = weight + jnp.sum(jnp.where(points == target, w[:, :, None], 0), axis=1)
        return jnp.clip((below + fallen * ties) / total, 0, 1)

    return jnp.stack([half(1, fallen[0]), half(1 + count, fallen[1])], axis=1)


def expected_products(
    w: Float[Array, "n k"], points: Float[Array, "n k d"], edges: Float[Array, "n e 1"]
) -> Float[Array, "n e d d"]:
    """Return the sum over points c of w_c s_ci s_cj, for coordinates i, j and each of e ``edges``.

    s_ci is the mean normal score of the rank of point c in coordinate i. This rank is uniform over
    an interval whose length is the weight of the point. Ranks in (0, edge) are drawn again from
    (0, edge), and ranks in (1 - edge, 1) from (1 - edge, 1). The diagonal is not 1."""
    each = jnp.swapaxes(points, 1, 2)

    def add(shares: tuple[Array, Array], point: tuple[Array, Array]) -> tuple[Any, None]:
        value, weight = point[0][:, :, None], point[1][:, None, None]
        parts = value < each, value == each
        return tuple(
            share + jnp.where(part, weight, 0) for share, part in zip(shares, parts, strict=True)
        ), None

    # one point at a time: a sum over pairs takes 30 times as long
    nothing = jnp.zeros_like(each), jnp.zeros_like(each)
    (low, width), _ = jax.lax.scan(add, nothing, (jnp.moveaxis(points, 1, 0), w.T))

    def integral(rank: Float[Array, "n d k"]) -> Float[Array, "n e d k"]:
        """Return the integral of the normal score up to a rank, made linear beyond the edges."""
        height = -jax.scipy.stats.norm.pdf(normal(rank))[:, None]
        edge, of_edge = edges[..., None], -jax.scipy.stats.norm.pdf(ndtri(edges))[..., None]
        nearest = jnp.minimum(rank, 1 - rank)[:, None]
        return jnp.where(nearest < edge, of_edge * nearest / edge, height)

    wide = (width > LEAST_SHARE)[:, None]
    gaps = integral(low + width) - integral(low)
    means = jnp.where(wide, gaps / jnp.where(wide, width[:, None], 1), 0)
    return jnp.einsum("nk,neik,nejk->neij", w, means, means)


def normal(ranks: Float[Array, "*shape"]) -> Float[Array, "*shape"]:
    """Return normal scores of ranks, finite at 0 and 1; standard normal for uniform ranks."""
    edge = float(jnp.finfo(ranks.dtype).eps)
    return ndtri(jnp.clip(ranks, edge, 1 - edge))
