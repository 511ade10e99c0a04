r"""One statistic from many entries: the evidence, averaged over named alternatives.

An entry is the sum over observations of a moment times a feature, with mean 0 under calibration.
Divided by the roots of their sums of squares, entries z have deviation 1 under random signs, and
correlations R. Where the entries of a block may be shifted by :math:`N(0, \tau^2 I)`, the log
evidence is

.. math:: \tfrac12 z^\top (R^{-1} - (R + \tau^2 I)^{-1}) z - \tfrac12 \log |I + \tau^2 R^{-1}|,

and where one entry alone may be, the same with R = 1. The statistic is the log of the evidence
averaged over both kinds, blocks and groups. R and the roots do not change under signs, so that
they, :math:`\tau` and the weights of groups move power alone.

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
RIDGE = 0.02  # share of the identity in R, as entries may be collinear


class Entries(NamedTuple):
    """``values`` [n, k] of all groups, with sums of squares 1 or 0: the blocks side by side, with
    their ``correlations`` [c, c], then entries of which one alone may be off."""

    values: Float[Array, "n k"]
    correlations: Float[Array, "c c"]

    @classmethod
    def of(cls, groups: list[Group], kept: Bool[Array, " n"]) -> "Entries":
        """Those of the observations that are kept, in the order of the groups."""
        values, in_blocks = side_by_side(groups, kept)
        sizes = jnp.sqrt(jnp.sum(values**2, axis=0, keepdims=True))
        values = values / jnp.where(sizes > 0, sizes, 1)
        of_blocks = values[:, :in_blocks]
        with jax.default_matmul_precision("highest"):
            return cls(values, of_blocks.T @ of_blocks)

    def sums(self, signs: Float[Array, "n b"] | HadamardSigns) -> Float[Array, "k b1"]:
        """Sums of the entries, then with each column of signs."""
        if isinstance(signs, HadamardSigns):
            drawn = signs.sums(self.values)
        else:
            with jax.default_matmul_precision("highest"):
                drawn = self.values.T @ signs
        return jnp.concatenate([jnp.sum(self.values, axis=0)[:, None], drawn], axis=1)


def side_by_side(groups: list[Group], kept: Bool[Array, " n"]) -> tuple[Float[Array, "n k"], int]:
    """Entries of all groups, 0 of observations that are not kept; so many are of blocks."""
    blocks = [block for group in groups for block in group.blocks]
    alone = [group.alone for group in groups if group.alone is not None]
    values = jnp.where(kept[:, None], jnp.concatenate(blocks + alone, axis=1), 0)
    return values, sum(block.shape[1] for block in blocks)


def log_evidence(
    z: Float[Array, "k b"], r: Float[Array, "c c"], groups: list[Group]
) -> Float[Array, "g b"]:
    """Log evidence of each group, with its weight, for b columns of sums of variance 1; r are the
    correlations of those of blocks, which come first. Its derivative is that along z, with r held
    fixed.

    Cost: k^3 for the largest block, of k entries, and k^2 b.
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
    """Of one entry that may be off."""
    return z**2 * (TAU2 / (1 + TAU2) / 2) - math.log1p(TAU2) / 2


def _of_blocks(
    z: Float[Array, "k b"], r: Float[Array, "c c"], sizes: list[int]
) -> Float[Array, "m b"]:
    """Log evidence of each of m blocks: the mean of that of single entries, and of the block as a
    whole where it has several. Blocks are filled up to 1, 4, 16 entries or the largest, so that few
    programs serve them all."""
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
    """Of blocks whose entries may all be off; places that are not ``there`` say nothing."""
    pairs, eye = there[:, :, None] & there[:, None], jnp.eye(at.shape[1], dtype=r.dtype)[None]
    inside = jnp.where(pairs, (1 - RIDGE) * r[at[:, :, None], at[:, None]] + RIDGE * eye, eye)
    fixed = jax.lax.stop_gradient(z)
    forms, log_dets, solutions = jax.lax.stop_gradient(
        eliminated(jnp.stack([inside, inside + TAU2 * eye]), jnp.stack([fixed, fixed]))
    )
    # nothing is added here, but the slopes in z, so that none are taken through the elimination
    forms = forms + 2 * jnp.sum((z - fixed)[None] * solutions, axis=2)
    # minus twice the logs of two normal densities, without and with shifts
    twice = forms + log_dets[:, :, None]
    filling = jnp.sum(~there, axis=1, dtype=z.dtype) * math.log1p(TAU2)
    return (twice[0] - twice[1] + filling[:, None]) / 2
