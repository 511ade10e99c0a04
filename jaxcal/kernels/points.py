r"""Kernels k(x, y) on vectors, each defined for ONE pair of points [d].

A radial kernel is defined by its profile: ``k(x, y) = shape(u)`` with
``u = sum_i ((x_i - y_i) / l_i)^2`` and bandwidth ``l``, a scalar or one length per dimension, in
the units of the points. ``bandwidth=None`` selects the median heuristic of the test.
"""

from collections.abc import Callable
from functools import reduce
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.kernels.algebra import (  # noqa: F401 (also imported from here)
    Bandwidth,
    Constant,
    Function,
    Kernel,
    Product,
    Profile,
    Radial,
    Scaled,
    Sum,
    all_unset,
    as_kernel,
    check_bandwidth,
    is_radial,
    lengths,
    needs_bandwidth,
    of_type,
    profile,
    shift_invariant,
    smoothness,
    with_bandwidth,
)
from jaxcal.numerics import at_least, safe_power, safe_sqrt
from jaxcal.read import convert
from jaxcal.typing import Features, Key, Scalar

FEW = 16  # up to this dimension, `separations` subtracts coordinates one by one


class Gaussian(Radial):
    """Gaussian kernel ``exp(-u / 2)``: smooth, with light tails; the usual default.

    ``u = sum_i ((x_i - y_i) / l_i)^2`` with the bandwidth l.

    Args:
        bandwidth: Length l, [] or one per coordinate [d], in the units of the points; None uses the
            median heuristic of the test.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> kernel = jaxcal.kernels.Gaussian(2.0)
        >>> round(float(kernel(jnp.zeros(1), jnp.ones(1))), 3)  # exp(-1/8)
        0.882
    """

    smooth: ClassVar[bool | None] = True

    def shape(self, u: Array) -> Array:
        return jnp.exp(-u / 2)

    def precisions(self, key: Key, count: int) -> Float[Array, " count"]:
        return jnp.ones(count)


class IMQ(Radial):
    """Inverse multiquadric kernel ``(1 + u)^-beta``, with u as in `Gaussian`: heavy tails.

    The figures of the KCCSD paper use ``beta = 1/2``.

    Args:
        bandwidth: As in `Gaussian`.
        beta: Exponent, above 0.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> round(float(jaxcal.kernels.IMQ(1.0)(jnp.zeros(1), jnp.ones(1))), 3)  # 2^-1/2
        0.707
    """

    smooth: ClassVar[bool | None] = True
    beta: float = eqx.field(default=0.5, static=True)

    def __check_init__(self):
        convert.number(self.beta, "beta", above=0)

    def shape(self, u: Array) -> Array:
        return _inverse_power(1 + u, self.beta)

    def precisions(self, key: Key, count: int) -> Float[Array, " count"]:
        return 2 * jax.random.gamma(key, self.beta, (count,))


class RationalQuadratic(Radial):
    """Rational quadratic kernel ``(1 + u / (2 alpha))^-alpha``: a scale mixture of Gaussians.

    Args:
        bandwidth: As in `Gaussian`, which also defines u.
        alpha: Exponent, above 0; the limit of large alpha is the Gaussian kernel.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> kernel = jaxcal.kernels.RationalQuadratic(1.0, alpha=0.5)
        >>> round(float(kernel(jnp.zeros(1), jnp.ones(1))), 3)  # 2^-1/2
        0.707
    """

    smooth: ClassVar[bool | None] = True
    alpha: float = eqx.field(default=1.0, static=True)

    def __check_init__(self):
        convert.number(self.alpha, "alpha", above=0)

    def shape(self, u: Array) -> Array:
        return _inverse_power(1 + u / (2 * self.alpha), self.alpha)

    def precisions(self, key: Key, count: int) -> Float[Array, " count"]:
        return jax.random.gamma(key, self.alpha, (count,)) / self.alpha


def _inverse_power(u: Array, exponent: float) -> Array:
    """Return ``u^-exponent``, by a square root or a division if possible, which is faster."""
    if exponent == 0.5:
        return jax.lax.rsqrt(u)
    return 1 / u if exponent == 1 else u**-exponent


# Matern 5/2 is twice differentiable in the points but sqrt(u) is not differentiable at u = 0, so
# its two derivatives in u are written in closed form: with t = sqrt(5 u),
# (1 + t + t^2/3) e^-t  ->  -5/6 (1 + t) e^-t  ->  25/12 e^-t.
@jax.custom_jvp
def _matern52(u: Array) -> Array:
    t = safe_sqrt(5 * u)
    return (1 + t + t**2 / 3) * jnp.exp(-t)


@jax.custom_jvp
def _matern52_slope(u: Array) -> Array:
    t = safe_sqrt(5 * u)
    return -5 / 6 * (1 + t) * jnp.exp(-t)


@_matern52.defjvp
def _(primals, tangents):
    return _matern52(*primals), _matern52_slope(*primals) * tangents[0]


@_matern52_slope.defjvp
def _(primals, tangents):
    return _matern52_slope(*primals), 25 / 12 * jnp.exp(-safe_sqrt(5 * primals[0])) * tangents[0]


class Matern52(Radial):
    """Matérn kernel 5/2, ``(1 + t + t^2/3) e^-t`` with ``t = sqrt(5 u)``.

    Functions of its RKHS are twice continuously differentiable, in general not more often.

    Args:
        bandwidth: As in `Gaussian`, which also defines u.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> round(float(jaxcal.kernels.Matern52(1.0)(jnp.zeros(1), jnp.ones(1))), 3)
        0.524
    """

    smooth: ClassVar[bool | None] = True

    def shape(self, u: Array) -> Array:
        return _matern52(u)

    def precisions(self, key: Key, count: int) -> Float[Array, " count"]:
        return 2.5 / jax.random.gamma(key, 2.5, (count,))


class Laplace(Radial):
    """Laplace kernel ``exp(-sqrt(u))``, of the Euclidean distance.

    It is not differentiable at x = y: use it between predictions, not as the target kernel of a
    Stein test. `L1Laplace` is the product of one-dimensional Laplace kernels over coordinates.

    Args:
        bandwidth: As in `Gaussian`, which also defines u.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> round(float(jaxcal.kernels.Laplace(1.0)(jnp.zeros(1), jnp.ones(1))), 3)  # 1/e
        0.368
    """

    smooth: ClassVar[bool | None] = False

    def shape(self, u: Array) -> Array:
        return jnp.exp(-safe_sqrt(u))

    def precisions(self, key: Key, count: int) -> Float[Array, " count"]:
        return 0.5 / jax.random.gamma(key, 0.5, (count,))


class PowerExponential(Radial):
    r"""Power-exponential kernel ``exp(-r^power)``, with r = sqrt(u) and u as in `Gaussian`.

    With power nu and bandwidth :math:`\lambda^{-1/\nu}` it is the prediction kernel
    :math:`\exp(-\lambda d^\nu)` of a distance d, positive definite for Euclidean distances of
    vectors. Power 1 is `Laplace`; power 2 with bandwidth l is `Gaussian` with bandwidth
    l / sqrt(2). The kernel is twice differentiable at x = y only if the power is 2.

    Args:
        bandwidth: As in `Gaussian`.
        power: Exponent, above 0 and at most 2.

    Source: Widmann, Lindsten and Zachariah (2021), eq. 4.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> kernel = jaxcal.kernels.PowerExponential(1.0, power=1.5)
        >>> round(float(kernel(jnp.zeros(1), jnp.ones(1))), 3)  # 1/e
        0.368
    """

    power: float = eqx.field(default=1.0, static=True)

    def __check_init__(self):
        if not 0 < convert.real(self.power, "power") <= 2:
            raise ValueError(
                f"power: wanted 0 < power <= 2, where exp(-r^power) is positive definite, got "
                f"{self.power}"
            )

    @property
    def smooth(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self.power == 2

    def shape(self, u: Array) -> Array:
        return jnp.exp(-u if self.smooth else -safe_power(u, self.power / 2))


class L1Laplace(Kernel):
    """Laplace kernel ``exp(-sum_i abs(x_i - y_i) / l_i)``: a product over coordinates.

    It equals `Laplace` in one dimension, and is not differentiable where x_i = y_i for some i.

    Args:
        bandwidth: Length l, [] or one per coordinate [d], in the units of the points; None uses the
            median heuristic of the test.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> kernel = jaxcal.kernels.L1Laplace(1.0)
        >>> round(float(kernel(jnp.zeros(2), jnp.ones(2))), 3)  # exp(-2)
        0.135
    """

    smooth: ClassVar[bool | None] = False
    shift_invariant: ClassVar[bool] = True
    bandwidth: Bandwidth = eqx.field(default=None, converter=check_bandwidth)

    def __call__(self, x: Array, y: Array) -> Scalar:
        if self.bandwidth is None:
            raise ValueError("L1Laplace has no bandwidth yet: give one, or let a test choose it")
        gaps = (x - y) * jnp.sign(x - y)  # absolute value with derivative 0 at 0
        return jnp.exp(-jnp.sum(gaps / of_type(self.bandwidth, gaps)))


class Linear(Kernel):
    """Linear kernel ``k(x, y) = x . y``, whose RKHS consists of the linear functions.

    It depends on the origin of the points, not only on their differences.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> float(jaxcal.kernels.Linear()(jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0])))
        11.0
    """

    smooth: ClassVar[bool | None] = True

    def __call__(self, x: Array, y: Array) -> Scalar:
        return jnp.sum(x * y)

    def gram(self, xs: Array, ys: Array) -> Array:
        """Return ``[x_i . y_j]``, one matrix product."""
        return xs @ ys.T


def gram(kernel: Callable[..., Array], xs: Features, ys: Features) -> Float[Array, "n m ..."]:
    """Return ``[k(x_i, y_j)]`` by n m evaluations of the kernel."""
    return jax.vmap(lambda x: jax.vmap(lambda y: kernel(x, y))(ys))(xs)


def by_rows(pair: Callable[..., Array], rows: Features, cols: Features) -> Float[Array, "r c"]:
    """Return ``[pair(row, col)]``, one row at a time: only c pairs are in memory at once."""
    return jax.lax.map(lambda row: jax.vmap(lambda col: pair(row, col))(cols), rows)


def matrix(kernel: Any, xs: Float[Array, "n q"], ys: Float[Array, "m q"]) -> Float[Array, "n m"]:
    """Return ``[k(x_i, y_j)]``, for linear and radial kernels by matrix products.

    For radial kernels points are centred at the mean of ``ys``, so that a common offset adds no
    rounding error. Other kernels use their method ``gram(xs, ys)`` or, without one, the function
    `gram`; sums, products and multiples combine the matrices of their parts. Cost O(n m q).
    """
    radial = profile(kernel)
    if radial is not None:
        offset = jnp.mean(jnp.where(jnp.isfinite(ys), ys, 0), axis=0, keepdims=True)
        return radial(squared_distances(xs - offset, ys - offset))
    match kernel:
        case Sum(left=left, right=right):
            return matrix(left, xs, ys) + matrix(right, xs, ys)
        case Product(left=left, right=right):
            return matrix(left, xs, ys) * matrix(right, xs, ys)
        case Scaled(scale=scale, kernel=inner):
            return scale * matrix(inner, xs, ys)
    return kernel.gram(xs, ys) if hasattr(kernel, "gram") else gram(kernel, xs, ys)


def squared_distances(xs: Float[Array, "n q"], ys: Float[Array, "m q"]) -> Float[Array, "n m"]:
    """Return ``|x_i - y_j|^2`` from ONE matrix product and the norms, clipped at 0.

    The rounding error is about eps times the largest squared norm: centre the points first.
    """
    if xs.shape[-1] == 1:  # as fast, and exact
        return (xs - ys.T) ** 2
    x2, y2 = jnp.sum(xs**2, -1), jnp.sum(ys**2, -1)
    return at_least(x2[:, None] + y2[None] - 2 * (xs @ ys.T), 0)


def separations(xs: Float[Array, "n q"], ys: Float[Array, "m q"]) -> Float[Array, "n m"]:
    """Return ``|x_i - y_j|^2``, exactly 0 for equal rows.

    Up to 16 coordinates are subtracted one by one; for more, `squared_distances` is used, and
    values below its rounding error are set to 0."""
    q = xs.shape[1]
    if q <= FEW:
        # a product with I copies the columns into rows: to read columns is four times slower
        eye = jnp.eye(q, dtype=xs.dtype)
        left, right = (jnp.matmul(eye, zs.T, precision="highest") for zs in (xs, ys))
        return reduce(jnp.add, [(left[k][:, None] - right[k][None]) ** 2 for k in range(q)])
    squared = squared_distances(xs, ys)
    size = jnp.sum(xs**2, axis=-1)[:, None] + jnp.sum(ys**2, axis=-1)[None]
    return jnp.where(squared <= q**0.5 * jnp.finfo(xs.dtype).eps * size, 0, squared)
