r"""Draw random signs for a wild bootstrap, with quadratic forms that are cheap.

The quadratic forms :math:`w_j^\top H w_j` of columns :math:`w_j = s \circ h_j`, with random signs s
and columns h_j of a Hadamard matrix, follow from one transform. With the bitwise exclusive or
:math:`\oplus` of row numbers, :math:`h_j(a) h_j(a') = h_j(a \oplus a')`, so that

.. math:: w_j^\top H w_j = \sum_g h_j(g) \sum_a s_a s_{a \oplus g} H_{a, a \oplus g}.

This takes n^2 additions for n draws; independent columns take n^2 multiplications each. Signs
within a column are independent. Two columns are uncorrelated. The correlation of their quadratic
forms is about the fraction of pairs of observations that lie in one group (`HadamardSigns`).
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxcal.numerics import signs_of_words
from jaxcal.typing import DTypeLike, Key

LARGEST_GROUP = 32  # larger groups save nothing: blocks become narrow and patterns few
LEAST_GROUPS = 12  # 2^11 sign patterns over the groups, so that few are drawn twice


class Places(NamedTuple):
    """Assignment of n observations to the t rows of all tiles. A tile holds whole `HadamardSigns`
    groups: the first members of all groups, then the second, etc. Padded rows have sign 0."""

    observations: Int[Array, " t"]  # observation in each row
    signs: Float[Array, " t"]
    patterns: Float[Array, "g q"]  # zeros for groups of padding only
    rows: Int[Array, " n"]  # row of each observation


class HadamardSigns(eqx.Module):
    r"""b columns of random signs of n observations, in groups of m that share a Hadamard matrix.

    Position k of the random order is member a = k mod m of group k div m. The sign of this
    observation in column j q + r is ``signs[k]`` times entry (a, j) of the Hadamard matrix of
    Sylvester (1867) times ``patterns[k div m, r]``. With m = 1 the columns are independent.

    Attributes:
        order: Observation at each position k: a random permutation, [n].
        signs: A random sign for each position k, [n].
        patterns: Random signs of the groups, [ceil(n / m), q].
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
        """Return random signs, b columns of n, with groups of m = 32 if n >= 384, else smaller."""
        keys = jax.random.split(key, 3)
        group = LARGEST_GROUP
        while group > 1 and n < LEAST_GROUPS * group:
            group //= 2
        order = jax.random.permutation(keys[0], n)
        groups, columns = -(-n // group), -(-b // group)
        # one generator for both, with the numbers of one for each
        most = max(n, groups * -(-columns // 32))
        words = jax.vmap(lambda key: jax.random.bits(key, (most,), jnp.uint32))(keys[1:])
        signs = signs_of_words(words[0], n, 1, dtype)[:, 0]
        patterns = signs_of_words(words[1], groups, columns, dtype)
        return cls(order, signs, patterns, group, b)

    def dense(self) -> Float[Array, "n b"]:
        """Return the columns as an array, [n, b]."""
        n, m = self.signs.shape[0], self.group
        slots = np.arange(n)
        columns = hadamard(m, self.signs.dtype)[slots % m][:, :, None]
        columns = (columns * self.patterns[slots // m][:, None]).reshape(n, -1)[:, : self.count]
        return jnp.zeros_like(columns).at[self.order].set(self.signs[:, None] * columns)

    def sums(self, values: Float[Array, "n k"]) -> Float[Array, "k b"]:
        """Return ``values.T @ dense()``: sums of the rows weighted by the signs of each column.
        Cost: n k (m + b / m) multiplications, instead of n k b."""
        (n, k), m, rows = values.shape, self.group, self.patterns.shape[0]
        signed = values[self.order] * self.signs[:, None]
        signed = jnp.pad(signed, ((0, rows * m - n), (0, 0))).reshape(rows, m, k)
        shared = jnp.einsum("aj,gak->gjk", hadamard(m, values.dtype), signed)
        each = jnp.einsum("gjk,gr->kjr", shared, self.patterns)
        return each.reshape(k, -1)[:, : self.count]

    def arranged(self, side: int) -> Places:
        """Return the `Places` in tiles of ``side`` rows, a multiple of the group size."""
        n, m = self.signs.shape[0], self.group
        tiles = -(-n // side)
        slots = np.arange(tiles * side).reshape(tiles, side // m, m).swapaxes(1, 2).reshape(-1)
        real, safe = slots < n, np.minimum(slots, n - 1)
        missing = tiles * (side // m) - self.patterns.shape[0]
        return Places(
            jnp.where(real, self.order[safe], self.order[0]),
            jnp.where(real, self.signs[safe], 0),
            jnp.pad(self.patterns, ((0, missing), (0, 0))),
            jnp.zeros_like(self.order).at[self.order].set(np.argsort(slots)[:n]),
        )

    def of_shares(self, shares: Float[Array, "c m q"]) -> Float[Array, "c b"]:
        """Return the quadratic forms of all columns from ``shares``, the sums that the function
        ``_shares`` of `jaxcal.engine.quadratic` computes for m offsets and q patterns."""
        forms = jnp.einsum("jg,cgq->cjq", hadamard(self.group, shares.dtype), shares)
        return forms.reshape(shares.shape[0], -1)[:, : self.count]


def hadamard(m: int, dtype: DTypeLike) -> Float[Array, "m m"]:
    """Return Sylvester's Hadamard matrix for a power of two m: (-1)^popcount(i & j) in (i, j)."""
    matrix = np.ones((1, 1))
    while len(matrix) < m:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return jnp.asarray(matrix, dtype)


def fold(blocks: Float[Array, "c mp mq"], m: int) -> Float[Array, "c m p q"]:
    """Return sums over a of the blocks (a, a xor g) of a matrix of m by m blocks, for g < m."""
    parts = blocks[:, None]
    while m > 1:
        radix = min(m, 8)  # 3 bits per pass: few passes, and small programs
        rows, cols = (side // radix for side in parts.shape[-2:])
        split = parts.reshape(*parts.shape[:2], radix, rows, radix, cols)
        sums = [
            sum(split[:, :, a, :, a ^ g] for a in range(1, radix)) + split[:, :, 0, :, g]
            for g in range(radix)
        ]
        parts = jnp.stack(sums, axis=2).reshape(blocks.shape[0], -1, rows, cols)
        m //= radix
    return parts
