r"""Kernel calibration error with any kernel, and the paper's random estimators.

The exact value for the Laplace kernel is cheaper than any of these (`laplace`). They are here for
comparison, with their standard errors. Source: Blasiok et al. (2023), Section 8, Algorithms 1 and
2, with the corrections that Algorithm 2 divides by n^2 and that Algorithm 1 sums over observations.
"""

from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float

from jaxcal import checks
from jaxcal.dce.laplace import KernelCE, of_unit_norm, positive_like, root
from jaxcal.dce.predictions import binary, residuals
from jaxcal.dce.prefix_sums import sums
from jaxcal.kernels.points import Laplace, as_kernel, gram
from jaxcal.quadratic import TILE, quadratic_sums
from jaxcal.typing import KeyLike, PointKernel, Scalar


class _Residual(eqx.Module):
    """h(i, j) = rho_i rho_j K(v_i, v_j); features: v [n, 1] and rho [n]."""

    kernel: Any

    @property
    def channels(self) -> int:
        return 1

    def block(self, rows: Any, cols: Any, /) -> Array:
        return (rows[1][:, None] * cols[1][None] * gram(self.kernel, rows[0], cols[0]))[None]

    def diagonal(self, features: Any, /) -> Array:
        v, rho = features
        return (rho**2 * jax.vmap(lambda x: self.kernel(x, x))(v))[None]


def kernel_ce(
    predictions: Any,
    targets: Any,
    *,
    kernel: PointKernel = Laplace(1.0),
    weights: Any = None,
    tile: int = TILE,
) -> KernelCE:
    """Kernel calibration error with any kernel on points of shape [1], by the engine over pairs.

    Only the Laplace kernel makes it a consistent measure; a Gaussian is blind to fast changes
    (Theorem 8.6). For Laplace use `laplace_ce`, which is exact in O(n log n). Cost O(n^2) kernels,
    memory O(tile^2). Needs n >= 2.
    """
    kernel = as_kernel(kernel)
    tile = checks.integer(tile, "tile")
    if getattr(kernel, "bandwidth", 0) is None:
        raise ValueError("kernel: wanted one with a bandwidth, such as Gaussian(0.7071)")
    data = binary(predictions, targets, weights)
    rho = data.w * (data.y - data.v)
    features = (data.v[:, None], rho)
    none = jnp.zeros((rho.size, 0), rho.dtype)
    pair_sums = quadratic_sums(_Residual(kernel), features, none, tile=tile)
    squared = pair_sums.total[0] + jnp.sum(pair_sums.diagonal)
    value = root(squared)
    # the row sums hold rho_i h(v_i) without the diagonal
    times = pair_sums.row_sums[0] + pair_sums.diagonal[0]
    safe = jnp.where(rho != 0, rho, 1)
    witness = of_unit_norm(jnp.where(rho != 0, times / safe, 0), value)
    return KernelCE(value, squared, pair_sums.total[0] / (1 - jnp.sum(data.w**2)), witness)


class Sketch(eqx.Module):
    """``value`` []: mean of the ``draws`` [s], each unbiased for the square of the kernel
    calibration error of the data; ``standard_error`` [] of that mean, over the draws alone."""

    value: Scalar
    standard_error: Scalar
    draws: Float[Array, " s"]

    def __repr__(self) -> str:
        if self.value.ndim or isinstance(self.value, Tracer):
            return f"Sketch(batch or traced, shape {self.value.shape})"
        return (
            f"squared kernel calibration error {float(self.value):.4g} "
            f"(standard error {float(self.standard_error):.2g} from {self.draws.size} draws)"
        )


def _sketch(draws: Array) -> Sketch:
    return Sketch(jnp.mean(draws), jnp.std(draws) / draws.size**0.5, draws)


def pair_sample(
    key: KeyLike,
    predictions: Any,
    targets: Any,
    *,
    n_pairs: int,
    bandwidth: Any = 1.0,
    weights: Any = None,
) -> Sketch:
    """Mean over random ordered pairs, with replacement and the diagonal: the paper's default.

    Noisy: one draw has a standard deviation of about 0.1 however small the error, so near
    calibration 10 n pairs drown it. May be negative. Cost O(n_pairs). Source: Section 8.3.
    """
    key = checks.key(key)
    data = binary(predictions, targets, weights)
    bandwidth = positive_like(bandwidth, data.v)
    n, size = data.v.size, (2, checks.integer(n_pairs, "n_pairs"))
    chance = None if weights is None else data.w
    i, j = jax.random.choice(key, n, size, p=chance)
    r = data.y - data.v
    return _sketch(r[i] * r[j] * jnp.exp(-jnp.abs(data.v[i] - data.v[j]) / bandwidth))


def random_features(
    key: KeyLike,
    predictions: Any,
    targets: Any,
    *,
    n_draws: int = 100,
    bandwidth: Any = 1.0,
    weights: Any = None,
) -> Sketch:
    r"""Algorithm 1: :math:`|\sum_j \rho_j e^{-i\omega v_j}|^2`, :math:`\omega` Cauchy of scale
    1 / bandwidth. Each draw lies in [0, 1]; cost O(n) a draw. float32 loses the phase of the rare
    huge frequencies."""
    key = checks.key(key)
    data = binary(predictions, targets, weights)
    bandwidth = positive_like(bandwidth, data.v)
    rho = data.w * (data.y - data.v)
    omegas = jax.random.cauchy(key, (checks.integer(n_draws, "n_draws"),), rho.dtype) / bandwidth

    def one(omega: Scalar) -> Scalar:
        phase = omega * data.v
        return jnp.sum(rho * jnp.cos(phase)) ** 2 + jnp.sum(rho * jnp.sin(phase)) ** 2

    return _sketch(jax.lax.map(one, omegas))


def random_bins(
    key: KeyLike,
    predictions: Any,
    targets: Any,
    *,
    n_draws: int = 100,
    bandwidth: Any = 1.0,
    weights: Any = None,
) -> Sketch:
    r"""Algorithm 2: squared residuals of bins with random width :math:`\delta` ~ Gamma(2, scale
    bandwidth) and random shift. Each draw lies in [0, 1]; cost O(n) a draw after one sort."""
    key = checks.key(key)
    v, rho = residuals(binary(predictions, targets, weights))
    bandwidth = positive_like(bandwidth, v)
    width_key, shift_key = jax.random.split(key)
    widths = (
        jax.random.gamma(width_key, 2.0, (checks.integer(n_draws, "n_draws"),), v.dtype) * bandwidth
    )
    shifts = jax.random.uniform(shift_key, widths.shape, v.dtype) * widths

    def one(drawn: tuple[Scalar, Scalar]) -> Scalar:
        width, shift = drawn
        bins = jnp.floor((v + shift) / width)
        # sorted, so bins are runs: numbered by their starts, whatever their number
        run = sums(jnp.concatenate([jnp.zeros(1, bool), bins[1:] != bins[:-1]]).astype(jnp.int32))
        residual = jax.ops.segment_sum(rho, run, v.size, indices_are_sorted=True)
        return jnp.sum(residual**2)

    return _sketch(jax.lax.map(one, (widths, shifts)))
