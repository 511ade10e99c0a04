r"""Random signs for a wild bootstrap: independent ones, and columns whose forms share additions.

Columns that differ by columns of a Hadamard matrix only, :math:`w_j = s \circ h_j` with random
signs s, have forms that one transform gives all at once. The entries of h_j multiply as their row
numbers add bit by bit, :math:`h_j(a) h_j(a') = h_j(a \oplus a')`, so that

.. math:: w_j^\top H w_j = \sum_g h_j(g) \sum_a s_a s_{a \oplus g} H_{a, a \oplus g}:

n^2 additions for n draws, where independent columns take n^2 multiplications each. Every single
column is one of independent signs; two of them are uncorrelated, and so are their forms but for the
few pairs of entries that a random order of the observations leaves together.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxcal.typing import DTypeLike, Key

LARGEST_GROUP = 32  # larger groups save no more: blocks become narrow, and patterns are few by then
LEAST_GROUPS = 12  # 2^11 patterns of signs over the groups, so that few are drawn twice


def independent_signs(key: Key, n: int, b: int, dtype: DTypeLike) -> Float[Array, "n b"]:
    """Independent random signs, 32 from each random word: 32 times fewer words than one a sign."""
    words = jax.random.bits(key, (n * -(-b // 32),), jnp.uint32).reshape(n, -1)
    ones = (words[:, :, None] >> jnp.arange(32, dtype=jnp.uint32)[None, None]) & 1
    return 1 - 2 * ones.reshape(n, -1)[:, :b].astype(dtype)


class Places(NamedTuple):
    """Observations in tiles of whole groups, the first ones of all groups of a tile before the
    second ones, with signs of 0 for what fills the last tile."""

    observations: Int[Array, " t"]
    signs: Float[Array, " t"]
    patterns: Float[Array, "g q"]  # zeros for groups of filling alone
    rows: Int[Array, " n"]  # of each observation


class HadamardSigns(eqx.Module):
    r"""b columns of n signs in groups of m observations that share a Hadamard matrix.

    Observation ``order[k]`` is the k-th, number a = k mod m of group k div m. Column (j, r) gives
    it the sign ``signs[k]`` times entry (a, j) of the Hadamard matrix of Sylvester (1867) times
    ``patterns[group, r]``. With groups of one they are the independent columns ``patterns``.

    Attributes:
        order: Observations in random order, [n].
        signs: A sign for each place k, [n].
        patterns: Signs of the groups, [ceil(n / m), q].
        group: Observations m in a group, a power of two.
        count: Number b of columns, at most m q.
    """

    order: Int[Array, " n"]
    signs: Float[Array, " n"]
    patterns: Float[Array, "g q"]
    group: int = eqx.field(static=True)
    count: int = eqx.field(static=True)

    @classmethod
    def draw(cls, key: Key, n: int, b: int, dtype: DTypeLike) -> "HadamardSigns":
        """Random order, signs and patterns for n observations and b columns."""
        keys = jax.random.split(key, 3)
        group = LARGEST_GROUP
        while group > 1 and n < LEAST_GROUPS * group:
            group //= 2
        order = jax.random.permutation(keys[0], n)
        signs = independent_signs(keys[1], n, 1, dtype)[:, 0]
        patterns = independent_signs(keys[2], -(-n // group), -(-b // group), dtype)
        return cls(order, signs, patterns, group, b)

    def dense(self) -> Float[Array, "n b"]:
        """The columns themselves, [n, b]."""
        n, m = self.signs.shape[0], self.group
        slots = np.arange(n)
        columns = hadamard(m, self.signs.dtype)[slots % m][:, :, None]
        columns = (columns * self.patterns[slots // m][:, None]).reshape(n, -1)[:, : self.count]
        return jnp.zeros_like(columns).at[self.order].set(self.signs[:, None] * columns)

    def sums(self, values: Float[Array, "n k"]) -> Float[Array, "k b"]:
        """Sums of the rows of values with the signs of each column: ``values.T @ dense()``.

        Cost: n k (m + b / m) multiplications, where columns without a group take n k b.
        """
        (n, k), m, rows = values.shape, self.group, self.patterns.shape[0]
        own = values[self.order] * self.signs[:, None]
        own = jnp.pad(own, ((0, rows * m - n), (0, 0))).reshape(rows, m, k)
        with jax.default_matmul_precision("highest"):
            shared = jnp.einsum("aj,gak->gjk", hadamard(m, values.dtype), own)
            each = jnp.einsum("gjk,gr->kjr", shared, self.patterns)
        return each.reshape(k, -1)[:, : self.count]

    def arranged(self, side: int) -> Places:
        """Observations in tiles of a multiple of the group's size."""
        n, m = self.signs.shape[0], self.group
        tiles = -(-n // side)
        places = np.arange(tiles * side).reshape(tiles, side // m, m).swapaxes(1, 2).reshape(-1)
        real, kept = places < n, np.minimum(places, n - 1)
        missing = tiles * (side // m) - self.patterns.shape[0]
        return Places(
            jnp.where(real, self.order[kept], self.order[0]),
            jnp.where(real, self.signs[kept], 0),
            jnp.pad(self.patterns, ((0, missing), (0, 0))),
            jnp.zeros_like(self.order).at[self.order].set(np.argsort(places)[:n]),
        )

    def of_shares(self, shares: Float[Array, "c m q"]) -> Float[Array, "c b"]:
        """The forms of all columns from their sums over pairs that are g apart, g < m."""
        forms = jnp.einsum("jg,cgq->cjq", hadamard(self.group, shares.dtype), shares)
        return forms.reshape(shares.shape[0], -1)[:, : self.count]


def hadamard(m: int, dtype: DTypeLike) -> Float[Array, "m m"]:
    """Sylvester's Hadamard matrix for a power of two m: (-1) to the bits that i and j share."""
    matrix = np.ones((1, 1))
    while len(matrix) < m:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return jnp.asarray(matrix, dtype)


def fold(blocks: Float[Array, "c mp mq"], m: int) -> Float[Array, "c m p q"]:
    r"""Block g of the result: the sum over a of blocks (a, a xor g), of m by m blocks of each."""
    parts = blocks[:, None]
    while m > 1:
        radix = min(m, 8)  # bits taken at once: fewer passes, and programs that stay small
        rows, cols = (side // radix for side in parts.shape[-2:])
        split = parts.reshape(*parts.shape[:2], radix, rows, radix, cols)
        sums = [
            sum(split[:, :, a, :, a ^ g] for a in range(1, radix)) + split[:, :, 0, :, g]
            for g in range(radix)
        ]
        parts = jnp.stack(sums, axis=2).reshape(blocks.shape[0], -1, rows, cols)
        m //= radix
    return parts
