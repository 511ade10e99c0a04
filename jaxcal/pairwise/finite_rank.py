r"""h(i, j) = < z_i, z_j > with vectors z of finite length: sums over pairs from sums of vectors.

For a shift-invariant kernel on predictions times one on targets, both of height 1,

.. math:: k(p, p')\, l(y, y') = E \cos(\theta - \theta'), \qquad
          \theta = \nu^\top \phi(p) + \omega^\top y,

with random frequencies :math:`\nu, \omega` and the vectors :math:`\phi(p)` of a divergence. What a
test does to l it does to :math:`\cos\theta` and :math:`\sin\theta`: the Stein operator makes them
:math:`s \cos\theta - \omega \sin\theta` and :math:`s \sin\theta + \omega \cos\theta`, a kernel mean
is taken off by the characteristic function of the prediction. The mean of < z_i, z_j > over the
frequencies is h.
"""

from typing import Any, NamedTuple, Protocol, runtime_checkable

import equinox as eqx
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.kernel_means import KernelMeans
from jaxcal.numerics import TURN, cos_and_sin
from jaxcal.pairwise.weighted import WeightedFeatures
from jaxcal.typing import Features


class Frequencies(NamedTuple):
    """Of the joint kernel: ``predictions`` [r, q], ``targets`` [r, d], and the ``sizes`` [r] of
    the waves, whose squares sum to the kernel's height."""

    predictions: Float[Array, "r q"]
    targets: Float[Array, "r d"]
    sizes: Float[Array, " r"]


@runtime_checkable
class Map(Protocol):
    """Features of n observations to their vectors, the columns of [channels, p, n]: loops over
    observations then run over neighbours in memory."""

    def __call__(self, features: Any, /) -> Float[Array, "c p n"]: ...


class FiniteRank(eqx.Module):
    """Pairwise statistic < z_i, z_j >, z = ``vectors(features)`` [channels, p, n].

    The engine takes its sums from those of the vectors: n p numbers instead of n^2.
    """

    map: Map
    channels: int = eqx.field(default=1, static=True)
    route: str = eqx.field(default="", static=True)

    def vectors(self, features: Features) -> Float[Array, "c p n"]:
        """The vectors z of n observations."""
        return self.map(features)

    def block(self, rows: Features, cols: Features) -> Float[Array, "c r s"]:
        return jnp.einsum("cpr,cps->crs", self.vectors(rows), self.vectors(cols))

    def diagonal(self, features: Features) -> Float[Array, "c n"]:
        return jnp.sum(self.vectors(features) ** 2, axis=1)


class SteinWaves(eqx.Module):
    """Waves under the Stein operator: 2 r d numbers an observation, of r frequencies.

    With ``components`` each target coordinate is a channel.
    """

    frequencies: Frequencies
    divergence: Any
    components: bool = eqx.field(default=False, static=True)

    def __call__(self, features: WeightedFeatures) -> Float[Array, "c p n"]:
        nu, omega, sizes = self.frequencies
        (stein,) = features.residuals
        along = self.divergence.vectors(features.predictions).T
        cos, sin = waves((nu / TURN) @ along + (omega / TURN) @ stein.ys.T, twice(sizes))
        s, w = stein.scores.T[:, None], twice(omega).T[:, :, None]
        z = s * cos[None] - w * sin[None]
        match stein.preconditioner:
            case None:
                pass
            case m if m.ndim == 3:
                z = jnp.einsum("nij,jpn->ipn", m, z)
            case m:
                z = jnp.moveaxis(m.reshape(*m.shape, *[1] * (3 - m.ndim)), 0, -1) * z
        return z if self.components else z.reshape(1, -1, z.shape[-1])


class MeanWaves(eqx.Module):
    """Waves minus their means under the prediction: 2 r numbers an observation."""

    frequencies: Frequencies
    divergence: Any
    cosine: KernelMeans
    sine: KernelMeans

    def __call__(self, features: WeightedFeatures) -> Float[Array, "c p n"]:
        nu, omega, sizes = self.frequencies
        (observed,) = features.residuals
        cos, sin = cos_and_sin((omega / TURN) @ observed.ys.T)
        real = cos - self.cosine.first(observed.distribution, omega).T
        imaginary = sin - self.sine.first(observed.distribution, omega).T
        alpha = (nu / TURN) @ self.divergence.vectors(features.predictions).T
        turned_cos, turned_sin = waves(alpha, twice(sizes))
        return (turned_cos * twice(real) - turned_sin * twice(imaginary))[None]


class ClassWaves(eqx.Module):
    r"""Waves of the predictions times a random projection of the residual :math:`e_y - p`.

    ``directions`` [r, m] have second moment :math:`\Lambda`, the Gram matrix of the m classes.
    """

    frequencies: Frequencies
    divergence: Any
    directions: Float[Array, "r m"]

    def __call__(self, features: WeightedFeatures) -> Float[Array, "c p n"]:
        (observed,) = features.residuals
        p = observed.distribution.probabilities
        along = self.directions[:, observed.ys] - self.directions @ p.T
        nu, _, sizes = self.frequencies
        cos, _ = waves((nu / TURN) @ self.divergence.vectors(features.predictions).T, twice(sizes))
        return (cos * twice(along))[None]


def waves(turns: Float[Array, "r n"], sizes: Float[Array, " p"]) -> tuple[Array, Array]:
    """Cosine and sine [p, n], p = 2 r, of the turns and of a quarter turn less.

    A quarter turn makes the cosine a sine and the sine minus a cosine, so that one formula for z
    has the real and the imaginary part of ``exp(2 pi i turns) (real + i imaginary)``.
    """
    cos, sin = cos_and_sin(jnp.concatenate([turns, turns - 0.25]))
    return sizes[:, None] * cos, sizes[:, None] * sin


def twice(rows: Array) -> Array:
    """The same rows for cosines and for sines."""
    return jnp.concatenate([rows, rows])


def class_directions(
    signs: Float[Array, "r k"], matrix: Float[Array, "m m"] | None
) -> Float[Array, "r m"]:
    r"""Directions [r, m] with :math:`E (g^\top r)(g^\top r') = r^\top \Lambda r'` for residuals of
    sum 0, from random signs [r, m - 1]: along the ones, where no residual lies, none is lost."""
    m = signs.shape[1] + 1
    # an orthonormal basis [m, m - 1] of the vectors of sum 0
    ones = jnp.ones((m, 1), signs.dtype)
    basis = jnp.linalg.qr(jnp.concatenate([ones, jnp.eye(m, dtype=signs.dtype)[:, 1:]], 1))[0]
    basis = basis[:, 1:]
    if matrix is None:
        return signs @ basis.T
    gram = basis.T @ matrix.astype(signs.dtype) @ basis
    values, vectors = jnp.linalg.eigh((gram + gram.T) / 2)
    root = vectors * jnp.sqrt(jnp.where(values > 0, values, 0))[None]
    return signs @ (basis @ root).T
