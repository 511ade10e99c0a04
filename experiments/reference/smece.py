r"""SmoothECE: residuals smoothed by a reflected Gaussian whose width equals the resulting error.

.. math:: S(\sigma) = \int_0^1 \Big|\sum_i \rho_i \tilde K_\sigma(t, v_i)\Big|\,dt,\qquad
          smECE = S(\sigma^*)\ \text{with}\ S(\sigma^*) = \sigma^*

The reflected Gaussian is the heat kernel of [0, 1] with closed ends, so smoothing multiplies cosine
coefficients by :math:`e^{-(\pi k \sigma)^2 / 2}`. S decreases in :math:`\sigma`, and bisection
finds the width. Residuals are first split between the two nearest points of a grid.
It differs from the smooth calibration error of `smooth_ce`, which is from another paper.
Source: Blasiok and Nakkiran, Smooth ECE (2023), and its package relplot.
"""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.dce.predictions import Binary, binary
from jaxcal.numerics import at_most
from jaxcal.read import convert
from jaxcal.typing import ArrayLike, Scalar

HALVINGS = 45


class SmoothECE(eqx.Module):
    """SmoothECE and its width.

    Attributes:
        value: The error, [].
        width: Width of the Gaussian smoothing, [], by default equal to the value.
        error: Bound [] of the change of the value by the grid.
        curve: Smoothed residual density at k / cells, [cells + 1]; its absolute integral is the
            value.
    """

    value: Scalar
    width: Scalar
    error: Scalar
    curve: Float[Array, " g"]


def smece(
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    cells: int = 8192,
    width: ArrayLike | None = None,
) -> SmoothECE:
    """Return SmoothECE: the ECE of residuals smoothed by a Gaussian as wide as the error itself.

    As defined by the package relplot, without its grid of 200 points, its ten bisections and its
    truncated Gaussian. Differentiable, including the dependence of the width.

    Args:
        predictions: Probabilities v of label 1, [n].
        targets: Labels y, 0 or 1, or means of labels, [n].
        weights: Weights of the observations, [n], >= 0.
        cells: Cells of the grid; its error is at most 0.121 / (cells width)^2 times E|y - v|.
        width: Fixed width, instead of the one that equals the error.

    Returns:
        `SmoothECE`.

    Cost: O(n + cells log cells).

    Source: Blasiok and Nakkiran, Smooth ECE (2023), and its package relplot.
    """
    cells = convert.integer(cells, "cells", least=2)
    width = None if width is None else convert.number(width, "width", above=0)
    return _smece(binary(predictions, targets, weights), cells, width)


@partial(jax.jit, static_argnames="cells")
def _smece(data: Binary, cells: int, width: ArrayLike) -> SmoothECE:
    rho = data.w * (data.y - data.v)
    place = jnp.nan_to_num(data.v) * cells
    cell = jnp.clip(jax.lax.stop_gradient(jnp.floor(place)).astype(jnp.int32), 0, cells - 1)
    part = place - cell.astype(place.dtype)
    on_grid = jax.ops.segment_sum(rho * (1 - part), cell, cells + 1)
    on_grid = on_grid + jax.ops.segment_sum(rho * part, cell + 1, cells + 1)
    # each residual and its mirror image, on a circle of length 2
    circle = jnp.concatenate([2 * on_grid[:1], on_grid[1:-1], 2 * on_grid[-1:], on_grid[-2:0:-1]])
    waves = jnp.fft.rfft(circle)
    frequency = jnp.pi * jnp.arange(cells + 1, dtype=rho.dtype)
    fixed_waves = jax.lax.stop_gradient(waves)

    def smoothed(waves: Array, filter: Array) -> Array:
        return jnp.fft.irfft(waves * filter.astype(waves.dtype), 2 * cells)[: cells + 1] * cells

    def integral(curve: Array) -> Scalar:
        return (jnp.sum(curve) - (curve[0] + curve[-1]) / 2) / cells

    def error(waves: Array, width: Scalar) -> Scalar:
        filter = jnp.exp(-((frequency * width) ** 2) / 2)
        return integral(jnp.abs(smoothed(waves, filter)))

    def halve(_: object, ends: tuple[Scalar, Scalar]) -> tuple[Scalar, Scalar]:
        low, high = ends
        middle = (low + high) / 2
        above = error(fixed_waves, middle) > middle
        return jnp.where(above, middle, low), jnp.where(above, high, middle)

    one = jnp.ones((), rho.dtype)
    if width is None:
        low, high = jax.lax.fori_loop(0, HALVINGS, halve, (0 * one, one))
        sigma = (low + high) / 2
    else:
        sigma = jnp.asarray(width, rho.dtype)
    filter = jnp.exp(-((frequency * sigma) ** 2) / 2)
    curve = smoothed(fixed_waves, filter)
    value = error(waves, sigma)
    if width is None:
        # S(sigma) = sigma also moves sigma: a Newton step of value 0 with the right derivative
        slope = integral(jnp.sign(curve) * smoothed(fixed_waves, -sigma * frequency**2 * filter))
        value = sigma + (value - sigma) / (1 - slope)
    bound = 0.121 * jnp.sum(jnp.abs(rho)) / (cells * sigma) ** 2
    return SmoothECE(value, sigma, jax.lax.stop_gradient(at_most(bound, one)), curve)
