"""Kernels on sequences of tokens: integer arrays [l], padded to a common length.

They compare tokens for equality and have no derivatives, so pass ``standardize=False`` to tests. A
kernel ``exp(-rate * distance)`` of the edit distance is not offered: it is not positive definite
for every rate (Cortes, Haffner and Mohri, 2004), so the estimated error of a wrong model may be
negative.
"""

from functools import partial

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Bool

from jaxcal.kernels.algebra import Kernel
from jaxcal.numerics import safe_sqrt
from jaxcal.read import convert
from jaxcal.typing import DTypeLike, Scalar


class Hamming(Kernel):
    """Hamming kernel ``exp(-rate h)``, h the number of positions at which two sequences differ.

    Positive definite and characteristic, as a product over positions of kernels that are 1 for
    equal and ``exp(-rate)`` for different tokens.

    Args:
        rate: Above 0; about 1 over the typical number of positions at which two sequences differ.

    Source: Glaser et al. (2024), who compare conditional models of proteins by it.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> kernel = jaxcal.kernels.Hamming(0.5)
        >>> x, y = jnp.array([3, 1, 4, 1]), jnp.array([3, 1, 5, 9])
        >>> round(float(kernel(x, y)), 3)  # exp(-0.5 * 2)
        0.368
    """

    rate: Scalar = eqx.field(default=1.0, converter=partial(convert.number, name="rate", above=0))

    def __call__(self, x: Array, y: Array) -> Scalar:
        dtype = _real(x)
        return jnp.exp(-self.rate.astype(dtype) * jnp.sum(x != y, dtype=dtype))


class Spectrum(Kernel):
    """Spectrum kernel: the cosine between the counts of all runs of ``length`` tokens.

    Positive semidefinite; it depends on the distribution of these runs only. Negative tokens are
    padding and belong to no run; without any run the kernel is 0.

    Args:
        length: Tokens in a run, at least 1 and at most the length of the sequences.

    Cost: O(length l^2) comparisons per pair of sequences of l tokens.

    Source: Leslie, Eskin and Noble (2002).

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> kernel = jaxcal.kernels.Spectrum(2)
        >>> x, y = jnp.array([0, 1, 0, 1]), jnp.array([1, 0, 1, -1])
        >>> round(float(kernel(x, y)), 3)  # counts of 01 and 10: (2, 1) and (1, 1), 3 / sqrt(10)
        0.949
    """

    length: int = eqx.field(default=2, static=True)

    def __check_init__(self):
        convert.integer(self.length, "length")

    def __call__(self, x: Array, y: Array) -> Scalar:
        if min(len(x), len(y)) < self.length:
            raise ValueError(
                f"length: wanted runs no longer than the sequences, got {self.length} for "
                f"sequences of {min(len(x), len(y))} tokens"
            )
        dtype = _real(x)
        norms = self._shared(x, x, dtype) * self._shared(y, y, dtype)
        return self._shared(x, y, dtype) / jnp.where(norms > 0, safe_sqrt(norms), 1)

    def _shared(self, x: Array, y: Array, dtype: DTypeLike) -> Scalar:
        """Return the number of pairs of equal runs, one of x and one of y."""
        same: Bool[Array, "l k"] = (x[:, None] == y[None]) & (x[:, None] >= 0)
        rows, cols = (len(z) - self.length + 1 for z in (x, y))
        runs = same[:rows, :cols]
        for i in range(1, self.length):
            runs = runs & same[i : i + rows, i : i + cols]
        return jnp.sum(runs, dtype=dtype)


def _real(x: Array) -> DTypeLike:
    return x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else jnp.result_type(float)
