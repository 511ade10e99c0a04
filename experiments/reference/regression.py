r"""Regression problems with known calibration: those of the paper on the kernel calibration error.

Source: Widmann, Lindsten and Zachariah (2021), Section 6 and App. A; Friedman (1991) for the third.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.read import convert
from jaxcal.typing import KeyLike, Scalar

NOISE = 0.15  # of the sine, where x = 0
DEVIATION = 0.1  # of the synthetic Gaussians, in every coordinate
SHIFT = 0.1  # where their first coordinate is, whatever the prediction


def _positive(n: int, name: str = "n") -> None:
    convert.integer(n, name)


class Regression(NamedTuple):
    """``xs`` [n] or [n, d] and ``ys`` [n]."""

    xs: Float[Array, "*n"]
    ys: Float[Array, " n"]


def noisy_sine(key: KeyLike, n: int) -> Regression:
    r"""X ~ U[-1, 1], :math:`Y = \sin(\pi X) + |1 + X| \epsilon` with noise of deviation 0.15.

    A straight line with normal noise of one width does not fit it: its predictions are not
    calibrated, although their quantiles over all x nearly are.
    """
    _positive(n)
    x_key, noise_key = jax.random.split(convert.key(key))
    xs = jax.random.uniform(x_key, (n,), minval=-1, maxval=1)
    noise = NOISE * jax.random.normal(noise_key, (n,))
    return Regression(xs, jnp.sin(jnp.pi * xs) + jnp.abs(1 + xs) * noise)


class Line(NamedTuple):
    """Ordinary least squares with normal noise: N(intercept + slope x, deviation^2); each []."""

    intercept: Scalar
    slope: Scalar
    deviation: Scalar

    def __call__(self, xs: Float[Array, " n"]) -> Float[Array, " n"]:
        return self.intercept + self.slope * xs


def least_squares(xs: Float[Array, " n"], ys: Float[Array, " n"]) -> Line:
    """The line of least squares, and the standard deviation (ddof = 1) of its residuals.

    For `noisy_sine` and n to infinity: intercept 0, slope 3 / pi, deviation 0.47543. Raises
    ValueError if n < 3; not finite where all x are equal.
    """
    if (n := xs.shape[0]) < 3:
        raise ValueError(f"xs: a line and its residuals need at least 3 observations, got {n}")
    x, y = jnp.mean(xs), jnp.mean(ys)
    slope = jnp.sum((xs - x) * (ys - y)) / jnp.sum((xs - x) ** 2)
    line = Line(y - slope * x, slope, jnp.zeros_like(y))
    return line._replace(deviation=jnp.std(ys - line(xs), ddof=1))


class Forecasts(NamedTuple):
    """Predictions N(means[i], deviation^2 I), ``means`` [n, d], and ``targets`` [n, d]."""

    means: Float[Array, "n d"]
    deviation: Scalar
    targets: Float[Array, "n d"]


def gaussian_forecasts(key: KeyLike, n: int, *, d: int = 1, calibrated: bool | Array) -> Forecasts:
    r"""Predictions N(c 1, 0.1^2 I) with c ~ U(0, 1), and targets from them where ``calibrated``.

    Otherwise the first coordinate of the targets is N(0.1, 0.1^2) whatever was predicted. With
    the kernel :math:`\exp(-W_2) \exp(-\|y - y'\|^2 / 2)` the SKCE is then 0.1107737 for d = 1
    and 0.0595975 for d = 10.
    """
    _positive(n)
    _positive(d, "d")
    c_key, noise_key = jax.random.split(convert.key(key))
    means = jnp.broadcast_to(jax.random.uniform(c_key, (n, 1)), (n, d))
    centre = jnp.where(calibrated, means, means.at[:, 0].set(SHIFT))
    noise = DEVIATION * jax.random.normal(noise_key, (n, d))
    return Forecasts(means, jnp.asarray(DEVIATION, means.dtype), centre + noise)


def friedman1(key: KeyLike, n: int) -> Regression:
    r"""X ~ U[0, 1]^10, of which five enter:
    :math:`Y = 10 \sin(\pi x_1 x_2) + 20 (x_3 - 1/2)^2 + 10 x_4 + 5 x_5 + N(0, 1)`."""
    _positive(n)
    x_key, noise_key = jax.random.split(convert.key(key))
    xs = jax.random.uniform(x_key, (n, 10))
    waves = 10 * jnp.sin(jnp.pi * xs[:, 0] * xs[:, 1]) + 20 * (xs[:, 2] - 0.5) ** 2
    ys = waves + 10 * xs[:, 3] + 5 * xs[:, 4] + jax.random.normal(noise_key, (n,))
    return Regression(xs, ys)
