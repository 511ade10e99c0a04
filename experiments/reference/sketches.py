r"""The papers' random estimators of distances, for comparison with the exact values.

The exact value for the Laplace kernel (`jaxcal.dce.kernel_ce`) is cheaper than any of these.
Source: Blasiok et al. (2023), Sections 6.2 and 8, Algorithms 1 and 2, with the corrections that
Algorithm 2 divides by n^2 and that Algorithm 1 sums over observations.
"""

import math
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.core import Tracer
from jaxtyping import Array, Float

from jaxcal.dce.intervals import boxcars
from jaxcal.dce.predictions import binary, ordered, sums
from jaxcal.read import convert
from jaxcal.typing import ArrayLike, Key, KeyLike, Scalar, Vector

NARROWEST = 1e-6  # bins of random shift: there are 1 / width of them


def positive_like(bandwidth: ArrayLike, v: Vector) -> Array:
    """The bandwidth in the dtype of the predictions; ValueError where it is known not to be > 0."""
    return convert.number(bandwidth, "bandwidth", above=0).astype(v.dtype)


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
    key = convert.key(key)
    data = binary(predictions, targets, weights)
    bandwidth = positive_like(bandwidth, data.v)
    n, size = data.v.size, (2, convert.integer(n_pairs, "n_pairs"))
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
    key = convert.key(key)
    data = binary(predictions, targets, weights)
    bandwidth = positive_like(bandwidth, data.v)
    rho = data.w * (data.y - data.v)
    omegas = jax.random.cauchy(key, (convert.integer(n_draws, "n_draws"),), rho.dtype) / bandwidth

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
    key = convert.key(key)
    data = ordered(binary(predictions, targets, weights))
    v, rho = data.v, data.rho
    bandwidth = positive_like(bandwidth, v)
    width_key, shift_key = jax.random.split(key)
    widths = (
        jax.random.gamma(width_key, 2.0, (convert.integer(n_draws, "n_draws"),), v.dtype)
        * bandwidth
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


def random_interval_ce(
    predictions: Any, targets: Any, *, width: Any, weights: Any = None
) -> Scalar:
    """Binned ECE with bins of this width, averaged exactly over all shifts of the bins.

    ``width`` > 0, also above 1. Differentiable, jit, vmap. Cost: one sort and O(n).
    Between |E[y - v]| (wide bins) and ECE, which it equals below the least gap between different
    predictions. Source: Def. 6.5.
    """
    width = convert.number(width, "width", above=0)
    data = binary(predictions, targets, weights)
    rho = data.w * (data.y - data.v)
    v, rho = jax.lax.sort((data.v, rho), num_keys=1, is_stable=False)
    return boxcars(v, rho, width.astype(v.dtype)[None])[0]


def sampled_interval_ce(
    key: KeyLike,
    predictions: Any,
    targets: Any,
    *,
    width: float | int,
    n_shifts: int = 100,
    weights: Any = None,
) -> tuple[Scalar, Scalar]:
    """The same by ``n_shifts`` random shifts, as in the paper: mean and its standard error.

    Cost O(n n_shifts). The exact average costs less than two shifts: use this for comparison only.
    """
    width = convert.real(width, "width", above=0)
    if not width >= NARROWEST:
        raise ValueError(f"width: wanted at least {NARROWEST}, as every bin is stored, got {width}")
    n_shifts = convert.integer(n_shifts, "n_shifts")
    data = binary(predictions, targets, weights)
    rho = data.w * (data.y - data.v)
    bins = math.ceil(1 / width) + 2

    def one(key: Key) -> Scalar:
        # the bin of v is that of v - r + width, never negative
        r = jax.random.uniform(key, (), data.v.dtype, maxval=width)
        which = jnp.floor((data.v - r) / width).astype(jnp.int32) + 1
        return jnp.sum(jnp.abs(jax.ops.segment_sum(rho, which, bins)))

    errors = jax.lax.map(one, jax.random.split(convert.key(key), n_shifts))
    return jnp.mean(errors), jnp.std(errors) / n_shifts**0.5
