r"""Kernel calibration error with the Laplace kernel, by a sort and two scans.

.. math:: kCE^2 = \sum_{ij} \rho_i \rho_j e^{-|v_i - v_j| / \ell}

On sorted predictions the sum over j < i satisfies the linear recursion
:math:`q_i = e^{-(v_i - v_{i-1})/\ell} (q_{i-1} + \rho_{i-1})`; the sum over j > i satisfies it from
the other end. No pairs are formed, and all exponentials are at most 1.
Source: Blasiok et al. (2023), Def. 8.1, Lemma 8.2 and eq. 28; the paper has :math:`\ell = 1`.
"""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxcal.dce.predictions import Ordered, binary, ordered, prefixes
from jaxcal.numerics import safe_sqrt
from jaxcal.read import checks
from jaxcal.results import Result, recorded
from jaxcal.typing import ArrayLike, Scalar, Vector


class KernelCE(Result):
    """Kernel calibration error with its witness.

    Differentiate ``squared``: the root has no derivative at 0.

    Attributes:
        value: Square root of ``squared``, [].
        squared: V-statistic of the square, []; non-negative up to rounding, biased upwards.
        unbiased: U-statistic of the square, []; may be negative, NaN for one observation.
        witness: Function of unit norm that attains the error, at each observation, [n]; 0 if the
            error is 0.
    """

    value: Scalar
    squared: Scalar
    unbiased: Scalar
    witness: Vector

    def _lines(self) -> list[str]:
        return [
            f"kernel calibration error {float(self.value):.6g} "
            f"(square: {float(self.squared):.4g} biased, {float(self.unbiased):.4g} unbiased)"
        ]


@jax.jit
def _laplace(data: Ordered, bandwidth: Scalar) -> KernelCE:
    v, rho = data.v, data.rho
    h = field(v, rho, bandwidth)
    squared = jnp.sum(rho * h)
    value = safe_sqrt(squared)
    pairs = 1 - jnp.sum(data.w**2)
    unbiased = (squared - jnp.sum(rho**2)) / jnp.where(pairs > 1e-12, pairs, jnp.nan)
    return KernelCE(value, squared, unbiased, data.back(of_unit_norm(h, value)))


def of_unit_norm(h: Vector, norm: Scalar) -> Vector:
    """Return a function's values over its norm: 0 if the norm is 0, NaN if it is NaN."""
    return jnp.where(norm > 0, h / jnp.where(norm > 0, norm, 1), 0 * norm)


def field(v: Vector, rho: Vector, bandwidth: Scalar) -> Vector:
    """Return sum over j of rho_j exp(-|v_i - v_j| / bandwidth) for ascending v, in O(n)."""
    left, right = sums(v, rho, bandwidth)
    return left + right - rho


def sums(v: Vector, rho: Vector, bandwidth: Scalar) -> tuple[Vector, Vector]:
    """Return sums over j <= i and over j >= i of rho_j exp(-|v_i - v_j| / bandwidth)."""
    decay = jnp.exp(-jnp.diff(v) / bandwidth)
    none = jnp.zeros(1, v.dtype)

    def recursion(x: tuple[Array, Array], y: tuple[Array, Array]) -> tuple[Array, Array]:
        return x[0] * y[0], x[1] * y[0] + y[1]

    _, left = prefixes(recursion, (jnp.concatenate([none, decay]), rho))
    _, right = prefixes(recursion, (jnp.concatenate([decay, none]), rho), reverse=True)
    return left, right


@recorded
def kernel_ce(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    bandwidth: ArrayLike = 1.0,
    weights: ArrayLike | None = None,
) -> KernelCE:
    r"""Return the kernel calibration error (MMCE) with the kernel :math:`e^{-|v - v'| / \ell}`.

    With bandwidth 1, as in the paper, the value is at most the square root of the true distance.
    Other kernels need not make it a consistent measure; a Gaussian one misses rapid changes
    (Theorem 8.6). Differentiable in all arguments (one-sided where predictions tie); works under
    jit and vmap.

    Args:
        predictions: Probabilities of label 1, [n].
        targets: Labels 0 or 1, or means of labels, [n].
        bandwidth: Length of the kernel, in units of probability, [].
        weights: Weights of the observations, [n], >= 0.

    Returns:
        `KernelCE`.

    Cost: one sort and O(n).

    Source: Blasiok et al. (2023), Def. 8.1, Lemma 8.2 and eq. 28.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> predictions, targets = jnp.full(4, 0.7), jnp.array([0, 0, 1, 1])
        >>> round(float(jaxcal.dce.kernel_ce(predictions, targets).value), 3)
        0.2
    """
    bandwidth = checks.number(bandwidth, "bandwidth", above=0)
    data = ordered(binary(predictions, targets, weights))
    return _laplace(data, bandwidth.astype(data.v.dtype))
