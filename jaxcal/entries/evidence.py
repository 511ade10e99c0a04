r"""Compute the statistic of the calibration test: evidence averaged over alternatives.

An entry is a sum :math:`\sum_i t_i \varphi_i` over observations of a moment t times a feature, with
mean 0 under calibration. It is divided by :math:`(\sum_i t_i^2 \varphi_i^2)^{1/2}`. Under random
signs, scaled entries z have variance 1 and correlations R. Entries form blocks, and blocks form
groups, one per alternative. If all entries of a block are shifted by :math:`N(0, \tau^2 I)`, the
log evidence is

.. math:: \tfrac12 z^\top (R^{-1} - (R + \tau^2 I)^{-1}) z - \tfrac12 \log |I + \tau^2 R^{-1}|.

If only one entry is shifted, R is 1. The evidence is averaged over these two cases, over blocks and
over groups; the statistic is the log of this mean. The divisors, R, :math:`\tau` and the weights of
groups do not depend on the signs, so they affect power only, not the level.

Source: Good (1992), The Bayes/non-Bayes compromise, for averaged evidence as a statistic.

A learned entry detects errors along an unknown function of the features. Observations are divided
at random into parts. A ridge regression on the first k parts learns :math:`\hat t_{kq}(p)`, the
mean of moment :math:`t_q` given prediction p, from cosines and sines of features. Each observation
of the next part adds :math:`\sum_q \hat t_{kq}(p) t_q` to the entry. Under calibration this has
mean 0 given earlier parts, so sums are a martingale. They are positive if errors recur.

Source: Dawid (1984) for judging each part by earlier ones; Rahimi and Recht (2007) for cosines.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int

from jaxcal.engine.signs import HadamardSigns
from jaxcal.entries.moments import Frame, Group, whole
from jaxcal.entries.ranks import Seen
from jaxcal.numerics import at_least, eliminated, normal_of, uniforms
from jaxcal.typing import Key, Points

TAU2 = 8.0  # shifts of about 3 deviations
RIDGE = 0.02  # share of the identity in R, as entries may be collinear
NARROW = 32  # most entries of a narrow block


class Entries(NamedTuple):
    """Terms ``values`` [n, k] of n observations in k entries; each column has sum of squares 1 (or
    0). The first c are in blocks, with ``correlations`` [c, c]; the rest are `Group.alone`."""

    values: Float[Array, "n k"]
    correlations: Float[Array, "c c"]

    @classmethod
    def of(cls, groups: list[Group], kept: Bool[Array, " n"]) -> "Entries":
        """Return the scaled columns of all groups; rows of observations not ``kept`` are 0."""
        values, in_blocks = side_by_side(groups, kept)
        sizes = jnp.sqrt(jnp.sum(values**2, axis=0, keepdims=True))
        values = values / jnp.where(sizes > 0, sizes, 1)
        of_blocks = values[:, :in_blocks]
        return cls(values, of_blocks.T @ of_blocks)

    def sums(self, signs: Float[Array, "n b"] | HadamardSigns) -> Float[Array, "k b1"]:
        """Return column sums of ``values``, [k, 1 + b]: unsigned, then for b columns of signs."""
        if isinstance(signs, HadamardSigns):
            drawn = signs.sums(self.values)
        else:
            drawn = self.values.T @ signs
        return jnp.concatenate([jnp.sum(self.values, axis=0)[:, None], drawn], axis=1)


def side_by_side(groups: list[Group], kept: Bool[Array, " n"]) -> tuple[Float[Array, "n k"], int]:
    """Return the columns of all groups, and how many are in blocks (these come first). Rows of
    observations that are not ``kept`` are 0."""
    blocks = [block for group in groups for block in group.blocks]
    alone = [group.alone for group in groups if group.alone is not None]
    values = jnp.where(kept[:, None], jnp.concatenate(blocks + alone, axis=1), 0)
    return values, sum(block.shape[1] for block in blocks)


def log_evidence(
    z: Float[Array, "k b"], r: Float[Array, "c c"], groups: list[Group]
) -> Float[Array, "g b"]:
    """Return the log of (prior weight times evidence) for g groups and b columns of entries.

    ``z`` [k, b]: entries of variance 1, where the first c are in blocks; ``r`` [c, c]: correlations
    of the entries in blocks. Cost: w^3 + w^2 b for the largest block, of w entries.
    """
    sizes = [block.shape[1] for group in groups for block in group.blocks]
    single = z**2 * (TAU2 / (1 + TAU2) / 2) - math.log1p(TAU2) / 2
    of_one = _means(single[: len(r)], sizes)
    blocks = jnp.logaddexp(of_one, _whole(z, r, sizes)) - math.log(2)
    evidence = _means(blocks, [len(group.blocks) for group in groups])
    also = [k for k, group in enumerate(groups) if group.alone is not None]
    if also:
        counts = [group.alone.shape[1] for group in groups if group.alone is not None]
        alone = _means(single[len(r) :], counts)
        both = jnp.logaddexp(evidence[np.asarray(also)], alone) - math.log(2)
        evidence = evidence.at[np.asarray(also)].set(both)
    row = 0
    for k, group in enumerate(groups):
        if group.positive:  # the shift is |N(0, tau^2)|
            side = at_least(z[row] * (TAU2 / (1 + TAU2) / 2) ** 0.5, -3)
            evidence = evidence.at[k].add(jnp.log1p(jax.scipy.special.erf(side)))
        row += sum(block.shape[1] for block in group.blocks)
    weights = np.asarray([group.weight for group in groups])
    return evidence + jnp.log(jnp.asarray(weights, z.dtype))[:, None]


def _runs(counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Split rows into m consecutive runs of lengths ``counts``; w is the largest. Return the row
    numbers of each run, padded with 0, and a mask that is False for padding, both [m, w]."""
    offsets = np.arange(max(counts))[None]
    real = offsets < np.asarray(counts)[:, None]
    return np.where(real, np.cumsum([0, *counts[:-1]])[:, None] + offsets, 0), real


def _means(logs: Float[Array, "k b"], counts: list[int]) -> Float[Array, "m b"]:
    """Return log(mean(exp(logs))) over each of m consecutive runs of ``counts`` rows."""
    at, real = _runs(counts)
    filled = jnp.where(real[:, :, None], logs[at], -jnp.inf)
    return jax.nn.logsumexp(filled, axis=1) - jnp.log(jnp.asarray(counts, logs.dtype))[:, None]


def _whole(z: Float[Array, "k b"], r: Float[Array, "c c"], sizes: list[int]) -> Float[Array, "m b"]:
    """Return the log evidence that all entries of a block are shifted, for each of m blocks. Blocks
    of at most `NARROW` entries are padded to one width, and wider blocks to another width."""
    used, (at, real) = jnp.diagonal(r) > 0, _runs(sizes)
    narrow = np.asarray(sizes) <= NARROW
    evidences = []
    for kept in (narrow, ~narrow):
        if np.any(kept):
            width = max(np.asarray(sizes)[kept])
            places = at[kept, :width]
            evidences.append(_shifted(z[places], real[kept, :width] & used[places], r, places))
    return jnp.concatenate(evidences)[np.argsort(np.argsort(~narrow, kind="stable"))]


def _shifted(
    z: Float[Array, "m w b"], there: Bool[Array, "m w"], r: Float[Array, "c c"], at: np.ndarray
) -> Float[Array, "m b"]:
    """Return the log evidence of `_whole` for m blocks of w entries, padding included. ``at`` [m,
    w]: index of each entry in r. ``there``: False for padding and for entries that are always 0."""
    pairs, eye = there[:, :, None] & there[:, None], jnp.eye(at.shape[1], dtype=r.dtype)[None]
    inside = jnp.where(pairs, (1 - RIDGE) * r[at[:, :, None], at[:, None]] + RIDGE * eye, eye)
    both = jnp.stack([inside, inside + TAU2 * eye])
    _, log_dets, inverses = eliminated(both, jnp.broadcast_to(eye[None], both.shape))
    z = jnp.where(there[:, :, None], z, 0)
    forms = jnp.sum(z * ((inverses[0] - inverses[1]) @ z), axis=1)
    filling = jnp.sum(~there, axis=1, dtype=z.dtype) * math.log1p(TAU2)
    return (forms + (log_dets[0] - log_dets[1] + filling)[:, None]) / 2


PARTS = 5
PENALTY = 10.0  # ridge of the regression, in observations
WAVES = 32  # number of waves: half along single features, half along all
WEIGHT = 0.08  # prior weight of the alternative
LENGTHS = 0.75  # length of a wave, in deviations of a feature


def varying(
    key: Key, frame: Frame, seen: Seen, inputs: Points | None, kept: Bool[Array, " n"]
) -> Group:
    """Return the `Group` "varying", for shifts or spreads that are an unknown function of features.
    Cost per observation: 4 (PARTS - 1) WAVES^2 multiplications."""
    features = jnp.concatenate(frame.features(seen, inputs), axis=1)
    (n, q), keys = features.shape, jax.random.split(key)
    chance, place = uniforms([*keys], [(q, WAVES), (n,)], features.dtype)
    waves = _waves(normal_of(chance) / LENGTHS, features)
    moments = jnp.concatenate([seen.ranks.normal, whole(seen.ranks)], axis=1)
    moments = jnp.where(kept[:, None], moments, 0)  # NaN must not enter the entries of others
    part = jnp.where(kept, jnp.floor(PARTS * place).astype(int), PARTS)
    return Group("varying", WEIGHT, [learned(waves, moments, part)], positive=True)


def learned(
    features: Float[Array, "n r"], moments: Float[Array, "n q"], part: Int[Array, " n"]
) -> Float[Array, "n 1"]:
    """Return each observation's term of the learned entry (see the module). The regression has an
    intercept, which the term omits. Terms are 0 in part 0, and in the unused part `PARTS`."""
    centered = features - jnp.mean(features, axis=0, keepdims=True)
    regressors = jnp.concatenate([jnp.ones_like(centered[:, :1]), centered], axis=1)
    ridge = jnp.diag(jnp.full(regressors.shape[1], PENALTY, features.dtype).at[0].set(1))

    def sums(k: Array) -> tuple[Array, Array]:
        here = jnp.where((part == k)[:, None], regressors, 0)
        return here.T @ regressors, here.T @ moments

    def of_part(at: tuple[Array, Array]) -> Float[Array, " n"]:
        k, slopes = at
        return jnp.where(part == k, jnp.sum((centered @ slopes[1:]) * moments, axis=1), 0)

    squares, products = jax.lax.map(sums, jnp.arange(PARTS - 1))
    earlier = jnp.cumsum(squares, axis=0) + ridge[None], jnp.cumsum(products, axis=0)
    slopes = eliminated(*earlier).solutions
    return jnp.sum(jax.lax.map(of_part, (jnp.arange(1, PARTS), slopes)), axis=0)[:, None]


def _waves(drawn: Float[Array, "q w"], features: Float[Array, "n q"]) -> Float[Array, "n r"]:
    q, half = len(drawn), WAVES // 2
    along_one = jnp.where(jnp.arange(q)[:, None] == jnp.arange(half)[None] % q, drawn[:, :half], 0)
    angles = features @ jnp.concatenate([along_one, drawn[:, half:] / q**0.5], axis=1)
    return jnp.concatenate([jnp.cos(angles), jnp.sin(angles)], axis=1)
