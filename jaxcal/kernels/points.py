r"""Kernels on vectors and targets, each written for ONE pair of points.

A radial kernel is its profile: ``k(x, y) = shape(u)`` with ``u = sum_i ((x_i - y_i) / l_i)^2`` and
the bandwidth ``l`` a scalar or one length per dimension, in the units of the points.
``bandwidth=None`` leaves the choice to the median heuristic of the test that uses the kernel.
"""

from collections.abc import Callable
from functools import reduce
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from jaxcal import convert
from jaxcal.numerics import at_least, safe_power, safe_sqrt
from jaxcal.typing import Features, PointKernel, Scalar

FEW = 16  # coordinates that are subtracted one by one
Bandwidth = Float[Array, ""] | Float[Array, " d"] | None


def _bandwidth(value: Any) -> Any:
    """A positive, finite scalar or vector; tracers pass, since their value is not known yet."""
    if value is None:
        return value
    # one program for 1 and 1.0
    array = convert.floats(float(value) if type(value) is int else value, "bandwidth")
    if array.ndim > 1:
        raise ValueError(f"bandwidth: a scalar or one length per dimension, got {array.shape}")
    if isinstance(array, Tracer):
        return array
    lengths = np.asarray(array)  # compared without compiling
    if not np.all((lengths > 0) & (lengths < np.inf)):
        raise ValueError(f"bandwidth: lengths must be positive and finite, got {value}")
    return array


class _Algebra:
    """``k1 + k2``, ``k1 * k2`` and ``2.0 * k``; each of them is again a kernel."""

    __array_ufunc__ = None  # a NumPy number on the left leaves the product to the kernel

    def __add__(self, other: PointKernel) -> "Sum":
        return Sum(self, other)

    def __mul__(self, other: Any) -> "Product | Scaled":
        return Product(self, other) if callable(other) else Scaled(other, self)

    def __rmul__(self, scale: Any) -> "Scaled":
        return Scaled(scale, self)


def _radial(kernel: Any, x: Array, y: Array) -> Scalar:
    if kernel.bandwidth is None:
        raise ValueError(
            f"{type(kernel).__name__} has no bandwidth yet: give one, or let a test choose it"
        )
    gap = x - y
    return kernel.shape(jnp.sum((gap / _of_type(kernel.bandwidth, gap)) ** 2))


def _of_type(number: Array, points: Array) -> Array:
    """In the type of the points, which a length or a scale of float64 does not lift."""
    return number.astype(points.dtype) if jnp.isdtype(points.dtype, "real floating") else number


class Gaussian(_Algebra, eqx.Module):
    r"""``exp(-u / 2)``: smooth, light tails. The usual default."""

    bandwidth: Bandwidth = eqx.field(default=None, converter=_bandwidth)

    def shape(self, u: Array) -> Array:
        return jnp.exp(-u / 2)

    def __call__(self, x: Array, y: Array) -> Scalar:
        return _radial(self, x, y)


class IMQ(_Algebra, eqx.Module):
    r"""Inverse multiquadric ``(1 + u)^-beta``, ``0 < beta``; the KCCSD paper's figures use 1/2."""

    bandwidth: Bandwidth = eqx.field(default=None, converter=_bandwidth)
    beta: float = eqx.field(default=0.5, static=True)

    def __check_init__(self):
        convert.number(self.beta, "beta", above=0)

    def shape(self, u: Array) -> Array:
        return _inverse_power(1 + u, self.beta)

    def __call__(self, x: Array, y: Array) -> Scalar:
        return _radial(self, x, y)


class RationalQuadratic(_Algebra, eqx.Module):
    r"""``(1 + u / (2 alpha))^-alpha``: a scale mixture of Gaussians."""

    bandwidth: Bandwidth = eqx.field(default=None, converter=_bandwidth)
    alpha: float = eqx.field(default=1.0, static=True)

    def __check_init__(self):
        convert.number(self.alpha, "alpha", above=0)

    def shape(self, u: Array) -> Array:
        return _inverse_power(1 + u / (2 * self.alpha), self.alpha)

    def __call__(self, x: Array, y: Array) -> Scalar:
        return _radial(self, x, y)


def _inverse_power(u: Array, exponent: float) -> Array:
    """``u^-exponent``; a square root or a division costs a tenth of a power."""
    if exponent == 0.5:
        return jax.lax.rsqrt(u)
    return 1 / u if exponent == 1 else u**-exponent


# Matern 5/2 is twice differentiable in the points although sqrt(u) is not at u = 0, so its two
# derivatives in u are given in closed form: with t = sqrt(5 u),
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


class Matern52(_Algebra, eqx.Module):
    r"""``(1 + t + t^2/3) e^-t`` with ``t = sqrt(5 u)``: twice differentiable, no smoother."""

    bandwidth: Bandwidth = eqx.field(default=None, converter=_bandwidth)

    def shape(self, u: Array) -> Array:
        return _matern52(u)

    def __call__(self, x: Array, y: Array) -> Scalar:
        return _radial(self, x, y)


class Laplace(_Algebra, eqx.Module):
    r"""``exp(-sqrt(u))``. Not differentiable where x = y: between predictions only."""

    bandwidth: Bandwidth = eqx.field(default=None, converter=_bandwidth)

    def shape(self, u: Array) -> Array:
        return jnp.exp(-safe_sqrt(u))

    def __call__(self, x: Array, y: Array) -> Scalar:
        return _radial(self, x, y)


class PowerExponential(_Algebra, eqx.Module):
    r"""``exp(-r^power)``, r the distance in bandwidths, 0 < power <= 2.

    With bandwidth :math:`\lambda^{-1/\nu}` the prediction kernel :math:`\exp(-\lambda d^\nu)`:
    positive definite for every distance of vectors. Power 1 is `Laplace`; power 2 is a Gaussian of
    bandwidth 1 / sqrt(2). Not differentiable where x = y, unless the power is 2.
    Source: Widmann, Lindsten and Zachariah (2021), eq. 4.
    """

    bandwidth: Bandwidth = eqx.field(default=None, converter=_bandwidth)
    power: float = eqx.field(default=1.0, static=True)

    def __check_init__(self):
        if not 0 < convert.real(self.power, "power") <= 2:
            raise ValueError(
                f"power: wanted 0 < power <= 2, where exp(-r^power) is positive definite, got "
                f"{self.power}"
            )

    def shape(self, u: Array) -> Array:
        return jnp.exp(-safe_power(u, self.power / 2))

    def __call__(self, x: Array, y: Array) -> Scalar:
        return _radial(self, x, y)


class L1Laplace(_Algebra, eqx.Module):
    r"""``exp(-sum_i abs(x_i - y_i) / l_i)``: a product over coordinates, where `Laplace` is radial.

    The two agree in one dimension. Not differentiable where a coordinate of x and y agrees.
    """

    bandwidth: Bandwidth = eqx.field(default=None, converter=_bandwidth)

    def __call__(self, x: Array, y: Array) -> Scalar:
        if self.bandwidth is None:
            raise ValueError("L1Laplace has no bandwidth yet: give one, or let a test choose it")
        gaps = (x - y) * jnp.sign(x - y)  # whose derivative at 0 is 0
        return jnp.exp(-jnp.sum(gaps / _of_type(self.bandwidth, gaps)))


class Constant(_Algebra, eqx.Module):
    """``k = 1``: forgets its arguments. Between predictions it turns KCCSD into KSD."""

    def __call__(self, x: Array, y: Array) -> Scalar:
        return jnp.ones((), jnp.result_type(x))


class Linear(_Algebra, eqx.Module):
    """``k = x . y``: makes linear functions of the points reproducible; not of their distance."""

    def __call__(self, x: Array, y: Array) -> Scalar:
        return jnp.sum(x * y)


class Function(_Algebra, eqx.Module):
    """A plain function of two points as a kernel; compared by identity, so pass a named one."""

    function: Any = eqx.field(static=True)
    name: str = eqx.field(default="kernel", static=True)  # of the argument it was given for

    def __call__(self, x: Array, y: Array) -> Scalar:
        return convert.returned(self.function(x, y), self.name, "two points")


def as_kernel(value: Any, name: str = "kernel") -> Any:
    """Kernels as they are; a plain function, which is no pytree, as a `Function`.

    Raises TypeError, with the ``name`` of the argument, for what is no kernel of two points.
    """
    if isinstance(value, type) or not callable(value):
        remedy = f"; call it: {value.__name__}()" if isinstance(value, type) else ""
        raise TypeError(
            f"{name}: wanted a kernel such as jaxcal.kernels.Gaussian() or a function of two "
            f"points, got {convert.say(value)}{remedy}"
        )
    plain = callable(value) and jax.tree_util.all_leaves([value])
    return Function(value, name) if plain else value


class Sum(_Algebra, eqx.Module):
    """``k1(x, y) + k2(x, y)``."""

    left: Any = eqx.field(converter=as_kernel)
    right: Any = eqx.field(converter=as_kernel)

    def __call__(self, x: Array, y: Array) -> Scalar:
        return self.left(x, y) + self.right(x, y)


class Product(_Algebra, eqx.Module):
    """``k1(x, y) k2(x, y)``."""

    left: Any = eqx.field(converter=as_kernel)
    right: Any = eqx.field(converter=as_kernel)

    def __call__(self, x: Array, y: Array) -> Scalar:
        return self.left(x, y) * self.right(x, y)


class Scaled(_Algebra, eqx.Module):
    """``scale k(x, y)``, scale > 0."""

    scale: Scalar = eqx.field(converter=_bandwidth)
    kernel: Any = eqx.field(converter=as_kernel)

    def __call__(self, x: Array, y: Array) -> Scalar:
        value = self.kernel(x, y)
        return _of_type(self.scale, value) * value


RADIAL = (Gaussian, IMQ, RationalQuadratic, Matern52, Laplace, PowerExponential)
SCALED = (*RADIAL, L1Laplace)  # with a bandwidth of their own


def profile(kernel: Any) -> Callable[[Array], Array] | None:
    """The kernel as a function of the squared Euclidean distance, or None where it is not one.

    Radial kernels with one length, constants, and their sums, products and multiples have one.
    """
    match kernel:
        case Constant():
            return jnp.ones_like
        case Sum(left=left, right=right) | Product(left=left, right=right):
            f, g = profile(left), profile(right)
            if f is None or g is None:
                return None
            return (lambda r2: f(r2) + g(r2)) if type(kernel) is Sum else lambda r2: f(r2) * g(r2)
        case Scaled(scale=scale, kernel=inner):
            f = profile(inner)
            return None if f is None else lambda r2: _of_type(scale, r2) * f(r2)
        case _ if isinstance(kernel, RADIAL):
            length = kernel.bandwidth
            if length is None or length.ndim:
                return None
            return lambda r2: kernel.shape(r2 / _of_type(length, r2) ** 2)
        case _:
            return None


def _children(kernel: Any) -> list[Any]:
    names = [name for name in ("left", "right", "kernel") if hasattr(kernel, name)]
    return [getattr(kernel, name) for name in names]


def is_known(kernel: Any) -> bool:
    """Whether all parts of the kernel are kernels of this module, whose smoothness is known."""
    parts = _children(kernel)
    known = isinstance(kernel, (*SCALED, Constant, Linear)) or bool(parts)
    return known and all(map(is_known, parts))


def is_smooth(kernel: Any) -> bool:
    """False where the kernel is known not to be twice differentiable at x = y."""
    if isinstance(kernel, PowerExponential):
        return kernel.power == 2
    return not isinstance(kernel, (Laplace, L1Laplace)) and all(map(is_smooth, _children(kernel)))


def lengths(kernel: Any) -> list[Array]:
    """The bandwidths inside the kernel that are one length a dimension."""
    own = getattr(kernel, "bandwidth", None) if isinstance(kernel, SCALED) else None
    inner = [found for child in _children(kernel) for found in lengths(child)]
    return inner if own is None or own.ndim == 0 else [own]


def needs_bandwidth(kernel: Any) -> bool:
    """Whether some part of the kernel leaves its bandwidth to a heuristic."""
    own = isinstance(kernel, SCALED) and kernel.bandwidth is None
    return own or any(map(needs_bandwidth, _children(kernel)))


def all_open(kernel: Any) -> bool:
    """Whether every part of the kernel leaves its bandwidth to a heuristic: then it does not matter
    in which units the distances come."""
    if children := _children(kernel):
        return all(map(all_open, children))
    return isinstance(kernel, SCALED) and kernel.bandwidth is None


def with_bandwidth(kernel: Any, bandwidth: Array) -> Any:
    """The kernel with every open bandwidth set to this one; given bandwidths stay."""
    match kernel:
        case Sum(left=left, right=right) | Product(left=left, right=right):
            return type(kernel)(with_bandwidth(left, bandwidth), with_bandwidth(right, bandwidth))
        case Scaled(scale=scale, kernel=inner):
            return Scaled(scale, with_bandwidth(inner, bandwidth))
        case _ if isinstance(kernel, SCALED) and kernel.bandwidth is None:
            return eqx.tree_at(lambda k: k.bandwidth, kernel, bandwidth, is_leaf=_is_none)
        case _:
            return kernel


def _is_none(leaf: Any) -> bool:
    return leaf is None


def gram(kernel: Callable[..., Array], xs: Features, ys: Features) -> Float[Array, "n m ..."]:
    """``[k(x_i, y_j)]``: the definition, lifted once. Cost: n m evaluations of the kernel."""
    return jax.vmap(lambda x: jax.vmap(lambda y: kernel(x, y))(ys))(xs)


def squared_distances(xs: Float[Array, "n q"], ys: Float[Array, "m q"]) -> Float[Array, "n m"]:
    """``|x_i - y_j|^2`` by ONE matrix product of the vectors and their norms, clipped at 0.

    Rounding is of the order of eps times the largest squared norm: centre the points first.
    """
    x2, y2 = jnp.sum(xs**2, -1, keepdims=True), jnp.sum(ys**2, -1, keepdims=True)
    left = jnp.concatenate([-2 * xs, x2, jnp.ones_like(x2)], -1)
    right = jnp.concatenate([ys, jnp.ones_like(y2), y2], -1)
    return at_least(left @ right.T, 0)


def separations(xs: Float[Array, "n q"], ys: Float[Array, "m q"]) -> Float[Array, "n m"]:
    """``|x_i - y_j|^2``, and 0 exactly where the two cannot be told apart.

    Up to 16 coordinates are subtracted one by one. More go through `squared_distances`, where
    rounding leaves noise: below it there is no distance.
    """
    q = xs.shape[1]
    if q <= FEW:
        left, right = xs.T, ys.T
        return reduce(jnp.add, [(left[k][:, None] - right[k][None]) ** 2 for k in range(q)])
    squared = squared_distances(xs, ys)
    size = jnp.sum(xs**2, axis=-1)[:, None] + jnp.sum(ys**2, axis=-1)[None]
    return jnp.where(squared <= q**0.5 * jnp.finfo(xs.dtype).eps * size, 0, squared)
