"""Base classes of kernels, and their sums, products and multiples.

The attributes of a kernel say how it is used; it needs no base class. A test sets a ``bandwidth``
that is None. Gram matrices of kernels with ``bandwidth`` and ``shape(u)`` are computed by matrix
products. An attribute ``smooth`` other than None is trusted, not checked.
"""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, TypeGuard

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from jaxcal.read import convert
from jaxcal.typing import ArrayFunction, ArrayLike, KernelLike, PointKernel, Scalar

Bandwidth = Float[Array, ""] | Float[Array, " d"] | None


def check_bandwidth(value: Any) -> Any:
    """Return the value as an array [] or [d], or None; ValueError if a length is not positive and
    finite. Values that JAX traces are not checked."""
    if value is None:
        return value
    # so that 1 and 1.0 share a compiled program
    array = convert.floats(float(value) if type(value) is int else value, "bandwidth")
    if array.ndim > 1 or array.size < 1:
        raise ValueError(f"bandwidth: a scalar or one length per dimension, got {array.shape}")
    if isinstance(array, Tracer):
        return array
    lengths = np.asarray(array)  # compared without compilation
    if not np.all((lengths > 0) & (lengths < np.inf)):
        raise ValueError(f"bandwidth: lengths must be positive and finite, got {value}")
    return array


class Kernel(eqx.Module):
    """Base of kernels of two points: ``k1 + k2``, ``k1 * k2`` and ``2.0 * k`` are kernels again.

    A subclass implements ``__call__(x, y)`` for ONE pair of points [d]. The class attribute
    ``smooth`` states whether the kernel is twice differentiable at x = y; with None, tests that
    need this check it numerically. ``shift_invariant`` states whether the kernel depends on x - y
    alone: tests with ``standardize=False`` give it targets minus their mean, to others the targets.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> class Cosine(jaxcal.kernels.Kernel):
        ...     def __call__(self, x, y):
        ...         return jnp.sum(jnp.cos(x - y))
        >>> kernel = Cosine() * jaxcal.kernels.Gaussian(1.0) + 2.0 * jaxcal.kernels.Constant()
        >>> float(kernel(jnp.zeros(1), jnp.zeros(1)))
        3.0
    """

    smooth: ClassVar[bool | None] = None
    shift_invariant: ClassVar[bool] = False
    __array_ufunc__ = None  # NumPy scalars on the left then defer to __rmul__

    @abstractmethod
    def __call__(self, x: Array, y: Array) -> Scalar:
        """Return the kernel of ONE pair of points [d]."""

    def __add__(self, other: PointKernel) -> "Sum":
        return Sum(self, other)

    def __radd__(self, other: PointKernel) -> "Sum":
        return Sum(other, self)

    def __mul__(self, other: PointKernel | ArrayLike) -> "Product | Scaled":
        return Product(self, other) if callable(other) else Scaled(other, self)

    def __rmul__(self, other: PointKernel | ArrayLike) -> "Product | Scaled":
        return Product(other, self) if callable(other) else Scaled(other, self)


class Radial(Kernel):
    """Base of radial kernels ``shape(u)``, `u = sum_i ((x_i - y_i) / l_i)^2`` with bandwidth l.

    A subclass implements ``shape``, elementwise. A Gram matrix is then one matrix product.

    Args:
        bandwidth: Length l, [] or one per coordinate [d], in the units of the points; None: chosen
            by the test.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> class Cauchy(jaxcal.kernels.Radial):
        ...     def shape(self, u):
        ...         return 1 / (1 + u)
        >>> float(Cauchy(2.0)(jnp.zeros(1), 2 * jnp.ones(1)))
        0.5
    """

    shift_invariant: ClassVar[bool] = True
    bandwidth: Bandwidth = eqx.field(default=None, converter=check_bandwidth)

    @abstractmethod
    def shape(self, u: Array) -> Array:
        """Return the kernel at the squared distance u, in units of the bandwidth."""

    def __call__(self, x: Array, y: Array) -> Scalar:
        if self.bandwidth is None:
            raise ValueError(
                f"{type(self).__name__} has no bandwidth yet: give one, or let a test choose it"
            )
        gap = x - y
        return self.shape(jnp.sum((gap / of_type(self.bandwidth, gap)) ** 2))


class Profile(Radial):
    """Radial kernel ``function(u)``: wraps the method ``shape`` of a user's kernel that is no
    pytree. Programs are compiled again for each new ``function``."""

    function: ArrayFunction = eqx.field(static=True, kw_only=True)

    def shape(self, u: Array) -> Array:
        return self.function(u)


def is_radial(kernel: KernelLike) -> TypeGuard[Radial]:
    """Return whether the kernel has a ``bandwidth`` and a ``shape(u)``, as `Radial` kernels do."""
    return hasattr(kernel, "bandwidth") and callable(getattr(kernel, "shape", None))


def of_type(number: Array, points: Array) -> Array:
    """Return a length or scale, cast to the dtype of the points if that is floating.

    ValueError if there are several lengths, but not one per coordinate.
    """
    if jnp.size(number) != 1 and jnp.shape(number) != jnp.shape(points)[-1:]:
        raise ValueError(
            f"bandwidth: {jnp.size(number)} lengths for points of shape {jnp.shape(points)}: give "
            f"one length, or one per coordinate"
        )
    if not jnp.isdtype(points.dtype, "real floating"):
        return number
    return jnp.asarray(number).astype(points.dtype)


class Constant(Kernel):
    """Constant kernel ``k = 1``; as the kernel between predictions it turns KCCSD into KSD.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> float(jaxcal.kernels.Constant()(jnp.zeros(3), jnp.ones(3)))
        1.0
    """

    smooth: ClassVar[bool | None] = True
    shift_invariant: ClassVar[bool] = True

    def __call__(self, x: Array, y: Array) -> Scalar:
        return jnp.ones((), jnp.result_type(x))


class Function(Kernel):
    """Kernel from a function of two points. Programs are compiled again for each new function."""

    function: ArrayFunction = eqx.field(static=True)
    name: str = eqx.field(default="kernel", static=True)  # the argument, for error messages

    def __call__(self, x: Array, y: Array) -> Scalar:
        try:
            value = self.function(x, y)
        except Exception as error:
            said = f"fails for points of shape {jnp.shape(x)} when JAX traces it"
            raise TypeError(f"{self.name}: {said}: {str(error).partition(chr(10))[0]}") from error
        return convert.returned(value, self.name, "two points")


def as_kernel(value: Any, name: str = "kernel") -> Any:
    """Return the value as a kernel: a function becomes a `Function`, or a `Profile` if radial.

    Kernels that are pytrees are returned unchanged. TypeError with ``name`` for anything else.
    """
    if isinstance(value, type) or not callable(value):
        remedy = f"; call it: {value.__name__}()" if isinstance(value, type) else ""
        raise TypeError(
            f"{name}: wanted a kernel such as jaxcal.kernels.Gaussian() or a function of two "
            f"points, got {convert.say(value)}{remedy}"
        )
    kernel: Any = value
    if not jax.tree_util.all_leaves([kernel]):
        return kernel
    if is_radial(kernel):
        return Profile(kernel.bandwidth, function=kernel.shape)
    return Function(kernel, name)


class Sum(Kernel):
    """Sum of two kernels, ``left(x, y) + right(x, y)``."""

    left: KernelLike = eqx.field(converter=as_kernel)
    right: KernelLike = eqx.field(converter=as_kernel)

    def __call__(self, x: Array, y: Array) -> Scalar:
        return self.left(x, y) + self.right(x, y)


class Product(Kernel):
    """Product of two kernels, ``left(x, y) right(x, y)``."""

    left: KernelLike = eqx.field(converter=as_kernel)
    right: KernelLike = eqx.field(converter=as_kernel)

    def __call__(self, x: Array, y: Array) -> Scalar:
        return self.left(x, y) * self.right(x, y)


class Scaled(Kernel):
    """Multiple of a kernel, ``scale kernel(x, y)`` with scale > 0."""

    scale: Scalar = eqx.field(converter=check_bandwidth)
    kernel: KernelLike = eqx.field(converter=as_kernel)

    def __call__(self, x: Array, y: Array) -> Scalar:
        value = self.kernel(x, y)
        return of_type(self.scale, value) * value


def profile(kernel: KernelLike) -> Callable[[Array], Array] | None:
    """Return f such that k(x, y) = f(|x - y|^2), or None if no such f is known.

    f is known for radial kernels with a scalar bandwidth, constants, and combinations of these."""
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
            return None if f is None else lambda r2: of_type(scale, r2) * f(r2)
        case _ if is_radial(kernel):
            length = kernel.bandwidth
            if length is None or jnp.ndim(length):
                return None
            return lambda r2: kernel.shape(r2 / of_type(length, r2) ** 2)
        case _:
            return None


def _elements(kernel: KernelLike) -> list[Any]:
    """List the kernels in a sum, product or multiple; for others, the kernel itself."""
    children = [getattr(kernel, name, None) for name in ("left", "right", "kernel")]
    inner = [part for child in children if child is not None for part in _elements(child)]
    return [*inner, kernel] if not inner or hasattr(kernel, "bandwidth") else inner


def smoothness(kernel: KernelLike) -> bool | None:
    """Return whether the kernel is twice differentiable at x = y; None if that is not declared."""
    answers = [getattr(part, "smooth", None) for part in _elements(kernel)]
    return False if False in answers else None if None in answers else True


def shift_invariant(kernel: KernelLike) -> bool:
    """Return whether the kernel declares that it depends on x - y alone."""
    return all(getattr(part, "shift_invariant", False) for part in _elements(kernel))


def lengths(kernel: KernelLike) -> list[Array]:
    """List the bandwidths, of this kernel or of kernels in it, with one length per dimension."""
    bandwidths = [getattr(part, "bandwidth", None) for part in _elements(kernel)]
    return [each for each in bandwidths if each is not None and jnp.ndim(each)]


def needs_bandwidth(kernel: KernelLike) -> bool:
    """Return whether the bandwidth of the kernel, or of any kernel in it, is unset (None)."""
    return any(map(_is_unset, _elements(kernel)))


def all_unset(kernel: KernelLike) -> bool:
    """Return whether the kernel, or every kernel in a sum or product, has an unset bandwidth."""
    return all(map(_is_unset, _elements(kernel)))


def _is_unset(kernel: Any) -> bool:
    return hasattr(kernel, "bandwidth") and kernel.bandwidth is None


def with_bandwidth(kernel: KernelLike, bandwidth: Array) -> Any:
    """Return the kernel with every unset bandwidth, also of kernels in it, set to ``bandwidth``."""
    unset = [place for place, part in enumerate(_elements(kernel)) if _is_unset(part)]
    if not unset:
        return kernel

    def bandwidths(kernel: KernelLike) -> list[Any]:
        parts = _elements(kernel)
        return [parts[place].bandwidth for place in unset]

    values = [bandwidth] * len(unset)
    return eqx.tree_at(bandwidths, kernel, values, is_leaf=lambda leaf: leaf is None)
