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
from jaxcal.numerics import eliminated

TAU2 = 8.0  # shifts of about 3 deviations
RIDGE = 0.02  # share of the identity in R, since entries may be collinear


class Entries(NamedTuple):
    """``values`` [n, k] of all groups, with sums of squares 1 or 0: first the blocks, with their
    ``correlations`` [c, c], then entries of which a single one may be shifted."""

    values: Float[Array, "n k"]
    correlations: Float[Array, "c c"]

    @classmethod
    def of(cls, groups: list[Group], kept: Bool[Array, " n"]) -> "Entries":
        """Return the entries of the observations that are kept, in the order of the groups."""
        blocks = [block for group in groups for block in group.blocks]
        alone = [group.alone for group in groups if group.alone is not None]
        values = jnp.concatenate(blocks + alone, axis=1)
        values = jnp.where(kept[:, None], values, 0)
        sizes = jnp.sqrt(jnp.sum(values**2, axis=0, keepdims=True))
        values = values / jnp.where(sizes > 0, sizes, 1)
        of_blocks = values[:, : sum(block.shape[1] for block in blocks)]
        with jax.default_matmul_precision("highest"):
            return cls(values, of_blocks.T @ of_blocks)

    def sums(self, signs: Float[Array, "n b"] | HadamardSigns) -> Float[Array, "k b1"]:
        """Return sums of the entries, then with each column of signs."""
        if isinstance(signs, HadamardSigns):
            drawn = signs.sums(self.values)
        else:
            with jax.default_matmul_precision("highest"):
                drawn = self.values.T @ signs
        return jnp.concatenate([jnp.sum(self.values, axis=0)[:, None], drawn], axis=1)


def log_evidence(
    z: Float[Array, "k b"], r: Float[Array, "c c"], groups: list[Group]
) -> Float[Array, "g b"]:
    """Return the weighted log evidence of each group, for b columns of sums of variance 1.

    r are the correlations of the blocks' entries, which come first. The derivative is that in z,
    with r constant. Cost: k^3 for the largest block, of k entries, and k^2 b.
    """
    sizes = [block.shape[1] for group in groups for block in group.blocks]
    blocks, singles = _of_blocks(z, r, sizes), _single(z[len(r) :])
    evidences, start, first = [], 0, 0
    for group in groups:
        own = blocks[start : start + len(group.blocks)]
        mean = jax.nn.logsumexp(own, axis=0) - math.log(len(group.blocks))
        if group.alone is not None:
            each = singles[first : first + group.alone.shape[1]]
            of_one = jax.nn.logsumexp(each, axis=0) - math.log(len(each))
            mean = jnp.logaddexp(mean, of_one) - math.log(2)
            first += len(each)
        evidences.append(mean + math.log(group.weight))
        start += len(group.blocks)
    return jnp.stack(evidences)


def _single(z: Float[Array, "*k b"]) -> Float[Array, "*k b"]:
    """Return the log evidence for a shift of one entry."""
    return z**2 * (TAU2 / (1 + TAU2) / 2) - math.log1p(TAU2) / 2


def _of_blocks(
    z: Float[Array, "k b"], r: Float[Array, "c c"], sizes: list[int]
) -> Float[Array, "m b"]:
    """Return the log evidence of each of m blocks: the mean over single entries and, for several
    entries, the block as a whole. Blocks are padded to 1, 4, 16 entries or the largest, so that few
    programs serve all."""
    used, starts = jnp.diagonal(r) > 0, np.cumsum([0, *sizes])[:-1]
    widths = sorted({1, 4, 16, max(*sizes, 17)})
    class_of = np.searchsorted(widths, sizes)
    order, evidences = [], []
    for number in sorted(set(class_of)):
        width, places = widths[number], np.flatnonzero(class_of == number)
        offsets, counts = np.arange(width), np.asarray(sizes)[places]
        real = offsets[None] < counts[:, None]
        at = np.where(real, starts[places][:, None] + offsets[None], 0)
        there = real & used[at]
        own = jnp.where(there[:, :, None], z[at], 0)
        single = jnp.where(real[:, :, None], _single(own), -jnp.inf)
        evidence = jax.nn.logsumexp(single, axis=1) - jnp.log(counts.astype(z.dtype))[:, None]
        if width > 1:
            evidence = jnp.logaddexp(evidence, _whole(own, there, r, at)) - math.log(2)
        order.append(places)
        evidences.append(evidence)
    return jnp.concatenate(evidences)[np.argsort(np.concatenate(order))]


def _whole(
    z: Float[Array, "m w b"], there: Bool[Array, "m w"], r: Float[Array, "c c"], at: np.ndarray
) -> Float[Array, "m b"]:
    """Return the log evidence of blocks whose entries may all be shifted; padding adds nothing."""
    pairs, eye = there[:, :, None] & there[:, None], jnp.eye(at.shape[1], dtype=r.dtype)[None]
    inside = jnp.where(pairs, (1 - RIDGE) * r[at[:, :, None], at[:, None]] + RIDGE * eye, eye)
    fixed = jax.lax.stop_gradient(z)
    forms, log_dets, solutions = jax.lax.stop_gradient(
        eliminated(jnp.stack([inside, inside + TAU2 * eye]), jnp.stack([fixed, fixed]))
    )
    # adds 0, but the derivatives in z, so that none are taken through the elimination
    forms = forms + 2 * jnp.sum((z - fixed)[None] * solutions, axis=2)
    # minus twice the log densities of two normals, without and with shifts
    twice = forms + log_dets[:, :, None]
    filling = jnp.sum(~there, axis=1, dtype=z.dtype) * math.log1p(TAU2)
    return (twice[0] - twice[1] + filling[:, None]) / 2
