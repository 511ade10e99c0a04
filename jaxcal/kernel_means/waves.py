r"""Characteristic functions of predictions: the means of cos(w . Z) and sin(w . Z).

As kernels of a point and a frequency they are averaged like any other: of normals and Laplace
distributions in closed form, of mixtures by linearity, of all others from draws. With
:math:`E e^{i w \cdot Z} = e^{i w \cdot \mu} g(w)`, g is :math:`e^{-w^\top \Sigma w / 2}` for
normals and :math:`\prod_j 1 / (1 + b_j^2 w_j^2)` for Laplace distributions.
"""

from typing import ClassVar

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from jaxcal.kernel_means.counts import ERROR
from jaxcal.kernel_means.dispatch import Averages, check_dimension, own_by_second, pair
from jaxcal.kernel_means.particles import FromDraws, FromQuantiles
from jaxcal.kernels.points import Kernel
from jaxcal.read.families import Laplaces, Lattice, Nodes, Normals, Particles, Stratified
from jaxcal.typing import Scalar


class Wave(Kernel):
    """``cos(w . z)`` of a point z and a frequency w, or ``sin(w . z)``; no positive kernel."""

    smooth: ClassVar[bool | None] = True
    sine: bool = eqx.field(default=False, static=True)

    def __call__(self, x: Array, y: Array) -> Scalar:
        return self.of(jnp.sum(x * y))

    def of(self, phase: Array) -> Array:
        """The wave at a phase."""
        return jnp.sin(phase) if self.sine else jnp.cos(phase)


class _Formulas(eqx.Module):
    """``first`` alone has a meaning: the means [r, c] over r predictions at c frequencies."""

    wave: Wave

    def second(self, rows: PyTree, cols: PyTree) -> Array:
        raise TypeError("a wave is no kernel of two points")

    def own(self, features: PyTree) -> Array:
        return own_by_second(self, features)


class OverNormals(_Formulas):
    """One matrix product for independent coordinates, d of them otherwise."""

    def first(self, rows: Normals, ws: Array) -> Float[Array, "r c"]:
        check_dimension(ws, rows.mean.shape[-1])
        if rows.cov.ndim == rows.mean.ndim:
            spread = rows.cov @ (ws**2).T
        else:
            spread = jnp.einsum("cj,njk,ck->nc", ws, rows.cov, ws)
        return self.wave.of(rows.mean @ ws.T) * jnp.exp(-spread / 2)


class OverLaplaces(_Formulas):
    """One matrix product, and a logarithm a coordinate."""

    def first(self, rows: Laplaces, ws: Array) -> Float[Array, "r c"]:
        check_dimension(ws, rows.loc.shape[-1])
        damping = jnp.sum(jnp.log1p((rows.scale[:, None, :] * ws[None]) ** 2), axis=-1)
        return self.wave.of(rows.loc @ ws.T) * jnp.exp(-damping)


class OverDraws(_Formulas):
    """The mean over all draws of a prediction."""

    route: str = eqx.field(static=True, default=FromDraws.route)

    def first(self, rows: Particles, ws: Array) -> Float[Array, "r c"]:
        check_dimension(ws, rows.points.shape[-1])
        return jnp.mean(self.wave.of(rows.points @ ws.T), axis=1)


class OverNodes(_Formulas):
    """A weighted sum over the nodes."""

    route: ClassVar[str] = "given nodes"

    def first(self, rows: Nodes, ws: Array) -> Float[Array, "r c"]:
        check_dimension(ws, rows.points.shape[-1])
        return jnp.sum(rows.weights[:, :, None] * self.wave.of(rows.points @ ws.T), axis=1)


class OverCounts(_Formulas):
    """One matrix product."""

    route: ClassVar[str] = f"sums over counts, error below {ERROR:g}"
    error: ClassVar[float] = ERROR
    points: Float[Array, "m d"]

    def first(self, rows: Array, ws: Array) -> Float[Array, "r c"]:
        check_dimension(ws, self.points.shape[-1])
        return rows @ self.wave.of(self.points @ ws.T)


@pair(Wave, Normals)
def wave_over_normals(kernel: Wave, distribution: Normals) -> Averages:
    """Closed form for any covariances."""
    return distribution, OverNormals(kernel)


@pair(Wave, Laplaces)
def wave_over_laplaces(kernel: Wave, distribution: Laplaces) -> Averages:
    """Closed form for any scales."""
    return distribution, OverLaplaces(kernel)


@pair(Wave, Particles)
def wave_over_draws(kernel: Wave, distribution: Particles) -> Averages:
    """From all draws."""
    return distribution, OverDraws(kernel)


@pair(Wave, Stratified)
def wave_over_quantiles(kernel: Wave, distribution: Stratified) -> Averages:
    """From all points."""
    return distribution, OverDraws(kernel, FromQuantiles.route)


@pair(Wave, Nodes)
def wave_over_nodes(kernel: Wave, distribution: Nodes) -> Averages:
    """By the quadrature rule."""
    return distribution, OverNodes(kernel)


@pair(Wave, Lattice)
def wave_over_counts(kernel: Wave, distribution: Lattice) -> Averages:
    """The sum over the counts."""
    return distribution.weights, OverCounts(kernel, distribution.points)
