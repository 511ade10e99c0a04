r"""Kernel means in one dimension by quadrature, for any kernel of a distance.

With X the symmetric gap of two points about z, the distance of their centres, and p its density,

.. math:: \kappa = \int_0^z p(x) [k(z - x) + k(z + x)]\,dx
          + \int_0^\infty p(z + y) [k(y) + k(2z + y)]\,dy,

so that the kinks of p at 0 and of k at z are endpoints. Nodes of each integral are uniform in the
logarithm of the distance to its endpoints, which resolves every scale: the rule does not
depend on the bandwidths. All terms are positive, so float32 loses only a few roundings.

Absolute error for kernels of height 1 in float64, for all ratios of scales, bandwidth and distance:
`ERROR`. `jaxcal.kernels.means.dispatch.pair` registers `radial_over_laplaces` in the place of
random quantiles.
"""

from collections.abc import Callable
from typing import ClassVar, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from jaxcal.kernels import points
from jaxcal.kernels.means.closed_forms import e1
from jaxcal.kernels.means.dispatch import Averages, NoClosedForm, check_dimension, own_by_second
from jaxcal.kernels.means.mixtures import GRADING, log_node
from jaxcal.read.families import Laplaces, Normals
from jaxcal.typing import ArrayFunction, KernelLike, Scalar

ERROR = 3e-7


class Grid(NamedTuple):
    """Nodes s > 0 and their weights for an integral over ds / s, [q] each."""

    nodes: np.ndarray
    weights: np.ndarray


def slope(x: np.ndarray) -> np.ndarray:
    """Return the derivative of `log_node` at x."""
    return 1 + 2 * GRADING * np.logaddexp(0, -x) / (1 + np.exp(x))


def below(low: float, high: float, size: int) -> Grid:
    """Return a grid of ``size`` nodes from ``low`` < 1 to ``high``, sparse towards 0."""
    wide = np.linspace(-40, 40, 80001)
    start, stop = np.interp(np.log([low, high]), log_node(wide), wide)
    x = np.linspace(start, stop, size)
    return Grid(np.exp(log_node(x)), (x[1] - x[0]) * slope(x))


def both_sides(low: float, size: int) -> Grid:
    """Return ``size`` nodes from ``low`` < 1 to 1 / low, sparse towards 0 and infinity."""
    wide = np.linspace(-40, 40, 80001)
    end = np.interp(-np.log(low), log_node(wide) - log_node(-wide) - wide, wide)
    x = np.linspace(-end, end, size)
    weights = (x[1] - x[0]) * (slope(x) + slope(-x) - 1)
    return Grid(np.exp(log_node(x) - log_node(-x) - x), weights)


BETWEEN = both_sides(1e-10, 89)
BEYOND = below(1e-10, 30.0, 59)  # in units of the density's scale

Density = Callable[[Array], Array]


def integral(kernel: ArrayFunction, density: Density, scale: Array, z: Array) -> Array:
    """Return ``E k(abs(X - z))`` for z >= 0 and X / scale of symmetric density ``density(abs(u))``.

    ``kernel``: a function of the squared distance. ``scale``, ``z`` and the result: [r, c].
    Cost: 2 times 148 evaluations of the kernel, one node at a time.
    """
    far = z > scale
    ratio = jnp.where(far, scale / jnp.where(far, z, 1), 1)
    reach = jnp.where(far, 1, z / scale)  # ratio z / scale, at most 1

    def between(s: Scalar) -> Array:
        rest = 1 + ratio * s
        left = z / rest  # to z, in x = z - left
        both = kernel(left**2) + kernel((2 * z - left) ** 2)
        return density(reach * s / rest) * both * reach * s / rest**2

    def beyond(s: Scalar) -> Array:
        y = scale * s
        return density(z / scale + s) * (kernel(y**2) + kernel((2 * z + y) ** 2)) * s

    return _sum(between, BETWEEN, z) + _sum(beyond, BEYOND, z)


def _sum(at: Callable[[Scalar], Array], grid: Grid, like: Array) -> Array:
    @jax.checkpoint
    def step(total: Array, node: tuple[Scalar, Scalar]) -> tuple[Array, None]:
        return total + node[1] * at(node[0]), None

    nodes = tuple(jnp.asarray(side, like.dtype) for side in grid)
    return jax.lax.scan(step, jnp.zeros_like(like), nodes)[0]


class OnTheLine(eqx.Module):
    """Kernel means by quadrature; ``gap`` is the distribution of a difference."""

    route: ClassVar[str] = f"quadrature on the line, error below {ERROR:g}"
    error: ClassVar[float] = ERROR
    kernel: KernelLike
    gap: Callable[[Array, Array | None], tuple[Density, Array]] = eqx.field(static=True)

    def first(self, rows: PyTree, ys: Array) -> Array:
        check_dimension(ys, 1)
        centre, spread = rows
        return self._average(centre - ys.T, spread, None)

    def second(self, rows: PyTree, cols: PyTree) -> Array:
        (centre, spread), (other, width) = rows, cols
        return self._average(centre - other.T, spread, width.T)

    def own(self, features: PyTree) -> Array:
        return own_by_second(self, features)

    def _average(self, shift: Array, spread: Array, other: Array | None) -> Array:
        density, scale = self.gap(spread, other)
        profile = points.profile(self.kernel)
        assert profile is not None
        return integral(profile, density, jnp.broadcast_to(scale, shift.shape), jnp.abs(shift))


def _floored(scale: Array) -> Array:
    """Return the scale, at least the smallest one whose square is positive."""
    least = jnp.finfo(scale.dtype).tiny ** 0.5
    return jnp.where(scale < least, least, scale)


def laplace_gap(scale: Array, other: Array | None) -> tuple[Density, Array]:
    r"""Return the density of a difference of Laplace variables of scales :math:`B \ge C`, and B.

    In units of B: :math:`e^{-u} (1 + u E_1(u (1 - \nu) / \nu)) / (2 (1 + \nu))`, :math:`\nu = C/B`.
    """
    if other is None:
        return lambda u: jnp.exp(-u) / 2, _floored(scale)
    swap = scale < other
    wide = _floored(jnp.where(swap, other, scale))
    ratio = jnp.where(swap, scale, other) / wide
    ratio = jnp.where(ratio < (eps := jnp.finfo(ratio.dtype).eps), eps, ratio)

    def density(u: Array) -> Array:
        return jnp.exp(-u) * (1 + u * e1(u * (1 - ratio) / ratio)) / (2 * (1 + ratio))

    return density, wide


def normal_gap(variance: Array, other: Array | None) -> tuple[Density, Array]:
    """Return the density of a difference of normal variables, and its standard deviation."""
    total = variance if other is None else variance + other
    tiny = jnp.finfo(total.dtype).tiny
    scale = jnp.sqrt(jnp.where(total < tiny, tiny, total))
    return lambda u: jnp.exp(-(u**2) / 2) * (2 * jnp.pi) ** -0.5, scale


def over_the_line(
    kernel: KernelLike,
    centre: Array,
    spread: Array,
    gap: Callable[[Array, Array | None], tuple[Density, Array]],
) -> Averages:
    """Return features and formulas for one-dimensional predictions; else NoClosedForm."""
    if centre.shape[-1] != 1:
        raise NoClosedForm("without a closed form, averages over several coordinates need draws")
    for lengths in points.lengths(kernel):
        if lengths.size != 1:
            raise ValueError(
                f"kernel: a bandwidth of {lengths.size} lengths for predictions of 1 coordinate"
            )
    single = jax.tree.map(lambda leaf: jnp.reshape(leaf, ()).astype(centre.dtype), kernel)
    if points.profile(single) is None:
        raise NoClosedForm("the rule needs a kernel of the distance")
    return (centre, spread), OnTheLine(single, gap)


def radial_over_normals(kernel: KernelLike, distribution: Normals) -> Averages:
    """Return kernel means of radial kernels by quadrature, in one dimension."""
    variance = distribution.cov.reshape(distribution.mean.shape)
    return over_the_line(kernel, distribution.mean, variance, normal_gap)


def radial_over_laplaces(kernel: KernelLike, distribution: Laplaces) -> Averages:
    """Return kernel means of radial kernels by quadrature, in one dimension."""
    return over_the_line(kernel, distribution.loc, distribution.scale, laplace_gap)
