r"""A statistic of many entries: the evidence averaged over named alternatives.

An entry is the sum over observations of a moment times a feature, with mean 0 under calibration.
Divided by the roots of their sums of squares, entries z have deviation 1 and correlations R under
random signs. If the entries of a block are shifted by :math:`N(0, \tau^2 I)`, the log evidence is

.. math:: \tfrac12 z^\top (R^{-1} - (R + \tau^2 I)^{-1}) z - \tfrac12 \log |I + \tau^2 R^{-1}|,

and if only one entry is shifted, the same with R = 1. The statistic is the log of the evidence
averaged over both kinds, blocks and groups. R and the roots do not change under signs, so they,
:math:`\tau` and the weights of groups affect power only.

Source: Good (1992), The Bayes/non-Bayes compromise, for averaged evidence as a statistic.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float

from jaxcal.engine.signs import HadamardSigns
from jaxcal.entries.moments import Group
from jaxcal.numerics import at_least, eliminated

TAU2 = 8.0  # shifts of about 3 deviations
RIDGE = 0.02  # share of the identity in R, as entries may be collinear
NARROW = 32  # most entries of a narrow block


class Entries(NamedTuple):
    """Entries of all groups, ``values`` [n, k] with sums of squares 1 or 0: first the c entries of
    blocks, with ``correlations`` [c, c], then entries of which a single one may be shifted."""

    values: Float[Array, "n k"]
    correlations: Float[Array, "c c"]

    @classmethod
    def of(cls, groups: list[Group], kept: Bool[Array, " n"]) -> "Entries":
        """Return the entries of the observations that are kept, in the order of the groups."""
        values, in_blocks = side_by_side(groups, kept)
        sizes = jnp.sqrt(jnp.sum(values**2, axis=0, keepdims=True))
        values = values / jnp.where(sizes > 0, sizes, 1)
        of_blocks = values[:, :in_blocks]
        return cls(values, of_blocks.T @ of_blocks)

    def sums(self, signs: Float[Array, "n b"] | HadamardSigns) -> Float[Array, "k b1"]:
        """Return sums of the entries: without signs, then with each column of signs."""
        if isinstance(signs, HadamardSigns):
            drawn = signs.sums(self.values)
        else:
            drawn = self.values.T @ signs
        return jnp.concatenate([jnp.sum(self.values, axis=0)[:, None], drawn], axis=1)


def side_by_side(groups: list[Group], kept: Bool[Array, " n"]) -> tuple[Float[Array, "n k"], int]:
    """Return entries of all groups (0 unless ``kept``), and the number of those in blocks."""
    blocks = [block for group in groups for block in group.blocks]
    alone = [group.alone for group in groups if group.alone is not None]
    values = jnp.where(kept[:, None], jnp.concatenate(blocks + alone, axis=1), 0)
    return values, sum(block.shape[1] for block in blocks)


def log_evidence(
    z: Float[Array, "k b"], r: Float[Array, "c c"], groups: list[Group]
) -> Float[Array, "g b"]:
    """Return the weighted log evidence of each group, for b columns of sums of variance 1.

    r: correlations of the blocks' entries, which come first. Cost: k^3 for the largest block, of k
    entries, and k^2 b.
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
        if group.positive:  # a shift by |N(0, tau^2)|
            side = at_least(z[row] * (TAU2 / (1 + TAU2) / 2) ** 0.5, -3)
            evidence = evidence.at[k].add(jnp.log1p(jax.scipy.special.erf(side)))
        row += sum(block.shape[1] for block in group.blocks)
    weights = np.asarray([group.weight for group in groups])
    return evidence + jnp.log(jnp.asarray(weights, z.dtype))[:, None]


def _runs(counts: list[int]) -> tuple[np.ndarray, np.ndarray]:
    """Return row numbers of m consecutive runs with these counts, padded to the longest, and a mask
    of the entries that are not padding, both [m, w]."""
    offsets = np.arange(max(counts))[None]
    real = offsets < np.asarray(counts)[:, None]
    return np.where(real, np.cumsum([0, *counts[:-1]])[:, None] + offsets, 0), real


def _means(logs: Float[Array, "k b"], counts: list[int]) -> Float[Array, "m b"]:
    """Return the log of the mean exponential over each run of rows."""
    at, real = _runs(counts)
    filled = jnp.where(real[:, :, None], logs[at], -jnp.inf)
    return jax.nn.logsumexp(filled, axis=1) - jnp.log(jnp.asarray(counts, logs.dtype))[:, None]


def _whole(z: Float[Array, "k b"], r: Float[Array, "c c"], sizes: list[int]) -> Float[Array, "m b"]:
    """Return the log evidence of m blocks whose entries may all be shifted.

    Narrow blocks are padded to one width and wide ones to the widest, so that two programs
    suffice."""
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
    """Return `_whole` for blocks of one width; ``there`` is the mask of their entries."""
    pairs, eye = there[:, :, None] & there[:, None], jnp.eye(at.shape[1], dtype=r.dtype)[None]
    inside = jnp.where(pairs, (1 - RIDGE) * r[at[:, :, None], at[:, None]] + RIDGE * eye, eye)
    both = jnp.stack([inside, inside + TAU2 * eye])
    _, log_dets, inverses = eliminated(both, jnp.broadcast_to(eye[None], both.shape))
    z = jnp.where(there[:, :, None], z, 0)
    forms = jnp.sum(z * ((inverses[0] - inverses[1]) @ z), axis=1)
    filling = jnp.sum(~there, axis=1, dtype=z.dtype) * math.log1p(TAU2)
    return (forms + (log_dets[0] - log_dets[1] + filling)[:, None]) / 2
