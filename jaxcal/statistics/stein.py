r"""Compute the statistic h(i, j) of the Stein tests: for one pair, and in blocks of pairs.

For a kernel l on targets and scores s, the Stein kernel of two observations is

.. math:: h = l\, s^\top s' + s^\top \nabla_{y'} l + s'^\top \nabla_y l
              + \mathrm{tr}\, \nabla_y \nabla_{y'} l

(Glaser et al. 2023, eq. 10). Scores and gradients may be multiplied by a preconditioner: a matrix
M for each prediction. The result is the Stein kernel of the matrix-valued kernel l M^T M' (App. A).
"""

from collections.abc import Callable
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxcal.kernels import points
from jaxcal.numerics import TURN
from jaxcal.statistics.finite_rank import Draw, Frequencies, twice, waves
from jaxcal.typing import KernelLike, Point, PointKernel, Points, Scalar


class SteinFeatures(NamedTuple):
    """Targets and scores [n, d] of n observations, and preconditioners M: None, multiples [n] of I,
    diagonals [n, d] or matrices [n, d, d]."""

    ys: Points
    scores: Points
    preconditioner: Array | None = None


def stein(kernel: PointKernel, x: Point, y: Point, score_x: Point, score_y: Point) -> Scalar:
    r"""Return :math:`l s_x^\top s_y+s_x^\top\nabla_y l+s_y^\top\nabla_x l+tr\nabla_x\nabla_y l`.

    l is the ``kernel`` at (x, y), which is differentiated automatically, twice. Points and scores
    are [d]. The value has the unit of a squared score; NaN or infinite scores propagate. O(d^2).
    Source: Glaser et al. (2023), eq. 10.
    """
    k = kernel(x, y)
    k_x, k_y = jax.grad(kernel, argnums=(0, 1))(x, y)
    k_xy = jax.jacfwd(jax.grad(kernel, argnums=0), argnums=1)(x, y)
    return k * score_x @ score_y + score_x @ k_y + score_y @ k_x + jnp.trace(k_xy)


def check_smooth(kernel: PointKernel, y: Points, size: float) -> None:
    r"""Raise ValueError if automatic differentiation misses the kernel's second derivative.

    It misses a kink such as that of abs(x - y). At x = y, the derivative
    :math:`\partial_{x_q} \partial_{y_q}` of the kernel (q <= 8) is compared with finite differences
    for six step sizes, multiples of ``size``. Agreement to 5 % for one step size is enough.
    """
    d, eps = y.shape[1], float(jnp.finfo(y.dtype).eps)
    directions = jnp.eye(d, dtype=y.dtype)[:8]

    def along(x: Point, e: Point, width: Array) -> tuple[Array, Array]:
        def k(a: Array, b: Array) -> Array:
            return kernel(x + a * e, x + b * e)

        zero = jnp.zeros((), y.dtype)
        derivatives = jax.jacfwd(jax.grad(k, argnums=0), argnums=1)(zero, zero)
        corners = k(width, width) - k(width, -width) - k(-width, width) + k(-width, -width)
        return derivatives, corners / (4 * width**2)

    widths = size * eps**0.25 * 10.0 ** jnp.arange(-3, 3, dtype=y.dtype)
    each = jax.vmap(
        jax.vmap(jax.vmap(along, in_axes=(None, None, 0)), in_axes=(None, 0, None)),
        in_axes=(0, None, None),
    )
    derivatives, steps = (np.asarray(part) for part in jax.jit(each)(y, directions, widths))
    rounding = np.where(np.arange(6) < 3, 0, 40 * eps / np.asarray(widths) ** 2)
    value = np.abs(np.asarray(jax.vmap(lambda x: kernel(x, x))(y)))[:, None, None]
    agree = np.abs(derivatives - steps) <= 0.05 * np.abs(derivatives) + rounding * value
    if np.all(np.any(agree, axis=-1)):
        return
    worst = np.unravel_index(np.argmin(np.any(agree, axis=-1)), agree.shape[:2])
    raise ValueError(
        f"target_kernel: a Stein test differentiates it twice, and at x = y automatic "
        f"differentiation finds {derivatives[worst][0]:.3g} where differences give "
        f"{steps[worst][3]:.3g}: is it smooth there? abs(x - y) is not; use Matern52 or a smoother "
        f"kernel"
    )


def stein_components(
    kernel: PointKernel,
    x: Point,
    y: Point,
    score_x: Point,
    score_y: Point,
    m_x: Float[Array, "d d"],
    m_y: Float[Array, "d d"],
) -> Point:
    r"""Return the d components of the Stein kernel with :math:`s \to M s, \nabla \to M \nabla`.

    With l the ``kernel``, M = ``m_x`` and M' = ``m_y``,
    :math:`h_q = l (M s)_q (M's')_q + (M s)_q (M' \nabla' l)_q + (M's')_q (M \nabla l)_q
    + (M \nabla \nabla' l M'^\top)_{qq}`; with M = I their sum is `stein`.
    """
    k = kernel(x, y)
    k_x, k_y = jax.grad(kernel, argnums=(0, 1))(x, y)
    k_xy = jax.jacfwd(jax.grad(kernel, argnums=0), argnums=1)(x, y)
    u, v = m_x @ score_x, m_y @ score_y
    return k * u * v + u * (m_y @ k_y) + v * (m_x @ k_x) + jnp.sum((m_x @ k_xy) * m_y, axis=1)


def _derivatives(f: Callable[[Array], Array], u: Array) -> tuple[Array, Array, Array]:
    """Return f, f' and f'' of an elementwise function, by scalar automatic differentiation."""

    def slope(u: Array) -> tuple[Array, Array]:
        return jax.jvp(f, (u,), (jnp.ones_like(u),))

    (value, first), (_, second) = jax.jvp(slope, (u,), (jnp.ones_like(u),))
    return value, first, second


def _radial_block(f: Callable[[Array], Array], a: SteinFeatures, b: SteinFeatures) -> Array:
    r"""Return a block [r, c] of h for l = f(u), u = |y - y'|^2, by three matrix products:
    :math:`f s^\top s' + 2 f' (s' - s)^\top (y - y') - 2 d f' - 4 u f''`."""
    r2 = points.squared_distances(a.ys, b.ys)
    value, first, second = _derivatives(f, r2)
    inner_a = jnp.sum(a.scores * a.ys, -1, keepdims=True)
    inner_b = jnp.sum(b.scores * b.ys, -1, keepdims=True)
    left = jnp.concatenate([a.scores, a.ys, -inner_a, -jnp.ones_like(inner_a)], -1)
    right = jnp.concatenate([b.ys, b.scores, jnp.ones_like(inner_b), inner_b], -1)
    cross = left @ right.T
    d = a.ys.shape[-1]
    return value * (a.scores @ b.scores.T) + 2 * first * (cross - d) - 4 * r2 * second


def _component_blocks(
    f: Callable[[Array], Array], lengths: Array, a: SteinFeatures, b: SteinFeatures
) -> Array:
    r"""Return blocks [d, r, c] of the components for l = f(v), v = |(y - y') / lengths|^2.

    With t = y / lengths, N = M / lengths, u = M s, a_q = N_q (t - t'), b_q = N'_q (t - t'):
    h_q = f u_q u'_q + 2 f' (u'_q a_q - u_q b_q) - 2 f' N_q N'_q - 4 f'' a_q b_q.
    """
    lengths = jnp.atleast_1d(lengths)
    ts, us = a.ys / lengths[None], b.ys / lengths[None]
    value, first, second = _derivatives(f, points.squared_distances(ts, us))
    # the rows N_q of N = M / lengths as [d, n, d], and (M s)_q as [d, n]
    n_a, s_a = _rows(a, lengths)
    n_b, s_b = _rows(b, lengths)

    def component(n_a: Array, s_a: Array, n_b: Array, s_b: Array) -> Array:
        along_a = jnp.sum(n_a * ts, -1)[:, None] - n_a @ us.T
        along_b = ts @ n_b.T - jnp.sum(n_b * us, -1)[None]
        s_a, s_b = s_a[:, None], s_b[None, :]
        return (
            value * s_a * s_b
            + 2 * first * (s_b * along_a - s_a * along_b - n_a @ n_b.T)
            - 4 * second * along_a * along_b
        )

    return jax.lax.map(lambda q: component(*q), (n_a, s_a, n_b, s_b))


def _matrices(features: SteinFeatures) -> Float[Array, "n d d"]:
    """Return each observation's preconditioner as a matrix; the identity for None or scalars."""
    n, d = features.ys.shape
    eye = jnp.eye(d, dtype=features.ys.dtype)
    m = features.preconditioner
    if m is None or m.ndim == 1:  # `Stein.block` multiplies h by scalar preconditioners
        return jnp.broadcast_to(eye, (n, d, d))
    return m[:, :, None] * eye[None] if m.ndim == 2 else m


def _rows(features: SteinFeatures, lengths: Array) -> tuple[Array, Array]:
    m = _matrices(features)
    return jnp.swapaxes(m / lengths[None, None], 0, 1), jnp.einsum("nqe,ne->qn", m, features.scores)


class Stein(eqx.Module):
    """The Stein kernel h of two observations (see the module), the statistic of KSD.

    KCCSD and KCSD multiply it by a kernel on predictions (`jaxcal.statistics.weighted.Weighted`).
    With ``components``, the d summands of h, one per target coordinate, are channels. For radial
    target kernels (one bandwidth or one per dimension) blocks are matrix products, O(d) per pair;
    other twice differentiable kernels use automatic differentiation, O(d^2) per pair.
    """

    target_kernel: KernelLike  # its profile or bandwidth, if any, selects the algorithm
    dimension: int = eqx.field(static=True)
    components: bool = eqx.field(default=False, static=True)

    @property
    def channels(self) -> int:
        return self.dimension if self.components else 1

    def block(self, rows: SteinFeatures, cols: SteinFeatures) -> Float[Array, "c r s"]:
        h, m = self._target_block(rows, cols), rows.preconditioner
        if m is not None and m.ndim == 1:
            assert cols.preconditioner is not None
            h = h * (m[:, None] * cols.preconditioner[None])[None]
        return h

    def diagonal(self, features: SteinFeatures) -> Float[Array, "c n"]:
        radial, m = points.profile(self.target_kernel), features.preconditioner
        if radial is not None and not self.components and (m is None or m.ndim == 1):
            value, first, _ = _derivatives(radial, jnp.zeros((), features.ys.dtype))
            h = value * jnp.sum(features.scores**2, axis=1) - 2 * features.ys.shape[1] * first
            return (h if m is None else h * m**2)[None]

        def alone(one: SteinFeatures) -> Array:
            single = jax.tree.map(lambda leaf: leaf[None], one)
            return self.block(single, single)[:, 0, 0]

        return jnp.moveaxis(jax.vmap(alone)(features), 0, 1)

    def waves(self, draw: Draw, features: SteinFeatures) -> "SteinWaves":
        """Return the map to random features of the target kernel under the Stein operator."""
        frequencies = draw.frequencies(self.dimension, self.target_kernel)
        return SteinWaves(frequencies, self.components)

    def _target_block(self, rows: SteinFeatures, cols: SteinFeatures) -> Array:
        kernel, m = self.target_kernel, rows.preconditioner
        scalar = not self.components and (m is None or m.ndim == 1)
        radial = points.profile(kernel)
        if radial is not None and scalar:
            return _radial_block(radial, rows, cols)[None]
        if radial is not None:
            blocks = _component_blocks(radial, jnp.ones((), rows.ys.dtype), rows, cols)
        elif points.is_radial(kernel) and kernel.bandwidth is not None:
            blocks = _component_blocks(kernel.shape, kernel.bandwidth, rows, cols)
        else:
            blocks = self._autodiff_block(rows, cols)
        return blocks if self.components else jnp.sum(blocks, axis=0, keepdims=True)

    def _autodiff_block(self, rows: SteinFeatures, cols: SteinFeatures) -> Array:
        def pair(a, b):
            return stein_components(self.target_kernel, a[0], b[0], a[1], b[1], a[2], b[2])

        left = (rows.ys, rows.scores, _matrices(rows))
        right = (cols.ys, cols.scores, _matrices(cols))
        return jnp.moveaxis(points.gram(pair, left, right), -1, 0)


class SteinWaves(eqx.Module):
    """Map that applies the Stein operator to r cosines and r sines: 2 r d values per observation.
    With ``components`` there are d channels, one per target coordinate, otherwise one channel."""

    frequencies: Frequencies
    components: bool = eqx.field(default=False, static=True)

    def __call__(
        self, vectors: Float[Array, "q n"], features: SteinFeatures
    ) -> Float[Array, "c p n"]:
        _, omega, sizes = self.frequencies
        turns = self.frequencies.turns(vectors) + (omega / TURN) @ features.ys.T
        cos, sin = waves(turns, twice(sizes))
        s, w = features.scores.T[:, None], twice(omega).T[:, :, None]
        z = s * cos[None] - w * sin[None]
        match features.preconditioner:
            case None:
                pass
            case m if m.ndim == 3:
                z = jnp.einsum("nij,jpn->ipn", m, z)
            case m:
                z = jnp.moveaxis(m.reshape(*m.shape, *[1] * (3 - m.ndim)), 0, -1) * z
        return z if self.components else z.reshape(1, -1, z.shape[-1])
