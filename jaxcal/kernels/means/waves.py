r"""Characteristic functions of predictions p: means of cos(w . Z) and sin(w . Z) for Z ~ p.

The functions cos and sin ("waves") are handled as kernels k(Z, w) of a point and a frequency. Means
over mixtures follow by linearity; draws, nodes and counts give sums. The closed forms are
:math:`E e^{i w \cdot Z} = e^{i w \cdot \mu} g(w)` with :math:`g = e^{-w^\top \Sigma w / 2}` for
normals and :math:`g = \prod_j 1 / (1 + b_j^2 w_j^2)` for Laplace distributions of scales b.
"""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxcal.kernels.means.dispatch import Averages, check_dimension, own_by_second, pair
from jaxcal.kernels.means.particles import DRAWS, QUANTILES
from jaxcal.kernels.points import Kernel
from jaxcal.numerics import TURN, cos_and_sin
from jaxcal.read.families import Laplaces, Normals, Particles, Stratified
from jaxcal.typing import Scalar


class Wave(Kernel):
    """The function cos(x . y) of a point x and a frequency y, or sin(x . y) if ``sine`` is True."""

    smooth: ClassVar[bool | None] = True
    sine: bool = eqx.field(default=False, static=True)

    def __call__(self, x: Array, y: Array) -> Scalar:
        return self.of(jnp.sum(x * y))

    def gram(self, xs: Array, ys: Array) -> Array:
        """Return waves [r, c] of r points and c frequencies."""
        return self.of(xs @ ys.T)

    def of(self, phase: Array) -> Array:
        """Return the wave at a phase."""
        cos, sin = cos_and_sin(phase / TURN)
        return sin if self.sine else cos


class _Formulas(eqx.Module):
    """Base of kernel means of waves: subclasses define ``first``; other methods raise TypeError."""

    wave: Wave

    def second(self, rows: PyTree, cols: PyTree) -> Array:
        raise TypeError("a wave is no kernel of two points")

    def own(self, features: PyTree) -> Array:
        return own_by_second(self, features)


class InClosedForm(_Formulas):
    """Means of a wave over normals or Laplace distributions. Cost per pair: O(d), for normals with
    full covariances O(d^2)."""

    def first(self, rows: Normals | Laplaces, ws: Array) -> Float[Array, "r c"]:
        center = rows.mean if isinstance(rows, Normals) else rows.loc
        check_dimension(ws, center.shape[-1])
        if isinstance(rows, Laplaces):
            damping = jnp.sum(jnp.log1p((rows.scale[:, None, :] * ws[None]) ** 2), axis=-1)
        elif rows.cov.ndim == rows.mean.ndim:
            damping = rows.cov @ (ws**2).T / 2
        else:
            damping = jnp.einsum("cj,njk,ck->nc", ws, rows.cov, ws) / 2
        return self.wave.of(center @ ws.T) * jnp.exp(-damping)


class OverDraws(_Formulas):
    """Means of a wave over the draws of each prediction, for all predictions at once."""

    route: str = eqx.field(static=True, default=DRAWS)

    def first(self, rows: Particles, ws: Array) -> Float[Array, "r c"]:
        check_dimension(ws, rows.points.shape[-1])
        return jnp.mean(self.wave.of(rows.points @ ws.T), axis=1)


@pair(Wave, Normals)
@pair(Wave, Laplaces)
def wave_in_closed_form(kernel: Wave, distribution: Normals | Laplaces) -> Averages:
    """Return features and formulas (see `pair`) in closed form, for any covariances or scales."""
    return distribution, InClosedForm(kernel)


@pair(Wave, Particles)
@pair(Wave, Stratified)
def wave_over_draws(kernel: Wave, distribution: Particles) -> Averages:
    """Return features and formulas (see `pair`) for draws or random quantiles (`Stratified`)."""
    route = QUANTILES if isinstance(distribution, Stratified) else DRAWS
    return distribution, OverDraws(kernel, route)
