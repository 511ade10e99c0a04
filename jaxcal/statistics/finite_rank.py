r"""Approximate statistics h(i, j) by < z_i, z_j > with random vectors z, in linear time.

For shift-invariant kernels k on predictions and l on targets, with k(p, p) = l(y, y) = 1,

.. math:: k(p, p')\, l(y, y') = E \cos(\theta - \theta'), \qquad
          \theta = \nu^\top \phi(p) + \omega^\top y,

with random frequencies :math:`\nu, \omega` and the vectors :math:`\phi(p)` of a divergence. A
linear operator maps l to h; applied to :math:`\cos\theta` and :math:`\sin\theta`, it gives z. For
Stein tests z is :math:`s \cos\theta - \omega \sin\theta` and
:math:`s \sin\theta + \omega \cos\theta`. For tests with kernel means, the characteristic function
of the prediction is subtracted. The mean of < z_i, z_j > over the distribution of frequencies is h.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from jaxcal.divergences.vectors import VectorDivergence
from jaxcal.kernels.points import Constant, L1Laplace, Product, Scaled, Sum
from jaxcal.numerics import TURN, cos_and_sin, normals
from jaxcal.statistics.weighted import Weighted, WeightedFeatures
from jaxcal.typing import DTypeLike, Features, KernelLike, Key, OfVectors


class Frequencies(NamedTuple):
    """r random frequencies: ``predictions`` [r, q] of a kernel k on predictions, ``targets`` [r, d]
    of a kernel l on targets, and amplitudes ``sizes`` [r] with E sum(sizes^2) = k(x, x) l(y, y)."""

    predictions: Float[Array, "r q"]
    targets: Float[Array, "r d"]
    sizes: Float[Array, " r"]

    def turns(self, vectors: Float[Array, "q n"]) -> Float[Array, "r n"]:
        """Return nu . phi / (2 pi) for the frequencies nu and the columns phi of ``vectors``."""
        return (self.predictions / TURN) @ vectors


class Draw(eqx.Module):
    """Sampler of ``count`` frequencies, the same at every call. ``kernel``: kernel on vectors of
    predictions, of length ``dimension``; ``target_kernel``: kernel on targets; ``orthogonal``:
    whether frequencies come from `orthogonal_normals`."""

    key: Key
    kernel: KernelLike
    target_kernel: KernelLike
    count: int = eqx.field(static=True)
    dimension: int = eqx.field(static=True)
    orthogonal: bool = eqx.field(static=True)
    dtype: DTypeLike = eqx.field(static=True)

    def frequencies(self, d: int = 0, kernel: KernelLike | None = None) -> Frequencies:
        """Return frequencies of the kernel on predictions and, if d > 0, of a kernel on targets
        [n, d]: ``kernel``, or ``target_kernel`` if ``kernel`` is None."""
        keys, q = self._keys(), self.dimension
        draw = orthogonal_normals if self.orthogonal else normals
        drawn = draw(keys[0], (self.count, q + d), self.dtype)
        first = precisions(
            self.kernel, keys[1], self.count, q, "prediction_kernel", dtype=self.dtype
        )
        nu = first.frequencies(drawn[:, :q])
        if d == 0:
            none = jnp.zeros((self.count, 0), self.dtype)
            return Frequencies(nu, none, jnp.sqrt(first.height / self.count))
        kernel = self.target_kernel if kernel is None else kernel
        second = precisions(kernel, keys[2], self.count, d, "target_kernel", dtype=self.dtype)
        sizes = jnp.sqrt(first.height * second.height / self.count)
        return Frequencies(nu, second.frequencies(drawn[:, q:]), sizes)

    def signs(self, length: int) -> Float[Array, "r length"]:
        """Return random signs 1 and -1, one row per frequency."""
        return jax.random.rademacher(self._keys()[3], (self.count, length), self.dtype)

    def _keys(self) -> Array:
        return jax.random.split(self.key, 4)


# maps vectors phi(p) [q, n] and features of a statistic to random features [channels, p, n] of the
# product of this statistic and a kernel on predictions
Waves: TypeAlias = Callable[[Array, Any], Array]


def in_waves(weighted: Weighted, features: WeightedFeatures, draw: Draw) -> "WeightedWaves":
    """Return the map to random features of the product of a prediction kernel and a statistic.

    The statistic of ``weighted`` needs a method ``waves(draw, features)`` or `OfVectors.vectors`;
    TypeError if it has neither.
    """
    divergence, statistic = weighted.divergence, weighted.statistic
    assert isinstance(divergence, VectorDivergence)
    if hasattr(statistic, "waves"):
        waves: Waves = statistic.waves(draw, features.residual)  # pyright: ignore
        return WeightedWaves(divergence, waves)
    if isinstance(statistic, OfVectors):
        return WeightedWaves(divergence, VectorWaves(draw.frequencies(), statistic))
    raise TypeError(
        f"features: {type(statistic).__name__} has no random features: it needs a method "
        f"vectors(features), [channels, q, n], whose inner products it is, or "
        f"waves(draw, features)"
    )


class WeightedWaves(eqx.Module):
    """Map to random features of the product of a kernel on predictions and a statistic."""

    divergence: VectorDivergence
    statistic: Waves

    def __call__(self, features: WeightedFeatures) -> Float[Array, "c p n"]:
        vectors = self.divergence.vectors(features.predictions).T
        return self.statistic(vectors, features.residual)


class VectorWaves(eqx.Module):
    """Map to the products of 2 r cosines and sines with the q entries of `OfVectors.vectors`."""

    frequencies: Frequencies
    statistic: OfVectors

    def __call__(self, vectors: Float[Array, "q n"], features: Features) -> Float[Array, "c p n"]:
        cos, _ = waves(self.frequencies.turns(vectors), twice(self.frequencies.sizes))
        z = self.statistic.vectors(features)
        return (cos[None, :, None] * z[:, None]).reshape(len(z), -1, z.shape[-1])


class FiniteRank(eqx.Module):
    """Pairwise statistic < z_i, z_j > with z = ``map(features)``, [channels, p, n] contiguous along
    n. Sums over pairs then need n p numbers, not n^2. ``route``: text on how z is computed."""

    map: Callable[[Any], Array]
    channels: int = eqx.field(default=1, static=True)
    route: str = eqx.field(default="", static=True)

    def vectors(self, features: Features) -> Float[Array, "c p n"]:
        """Return the vectors z of n observations."""
        return self.map(features)

    def block(self, rows: Features, cols: Features) -> Float[Array, "c r s"]:
        return jnp.einsum("cpr,cps->crs", self.vectors(rows), self.vectors(cols))

    def diagonal(self, features: Features) -> Float[Array, "c n"]:
        return jnp.sum(self.vectors(features) ** 2, axis=1)


def waves(turns: Float[Array, "r n"], sizes: Float[Array, " p"]) -> tuple[Array, Array]:
    """Return ``a = sizes * (cos, sin)`` and ``b = sizes * (sin, -cos)``, each [p, n], p = 2 r.

    cos and sin are those of 2 pi ``turns``. For x and y [r, n], ``a * twice(x) - b * twice(y)`` is
    the real parts, then the imaginary parts, of ``exp(2 pi i turns) (x + i y)``, times ``sizes``.
    """
    cos, sin = cos_and_sin(turns)
    both = jnp.concatenate([cos, sin]), jnp.concatenate([sin, -cos])
    return sizes[:, None] * both[0], sizes[:, None] * both[1]


def twice(rows: Array) -> Array:
    """Return rows [r, ..] twice, [2 r, ..]: once for cosines and once for sines."""
    return jnp.concatenate([rows, rows])


class Precisions(NamedTuple):
    """r random Gaussian kernels whose mixture is a kernel k. ``values`` [r, d]: variances of their
    normal frequencies. ``height`` [r]: values of the kernels at distance 0, with mean k(x, x).
    ``drawn`` [r, d]: frequencies to add, from kernels with a method ``frequencies``; else 0."""

    values: Float[Array, "r d"]
    height: Float[Array, " r"]
    drawn: Float[Array, "r d"] | float = 0.0

    def frequencies(self, normals: Float[Array, "r d"]) -> Float[Array, "r d"]:
        """Return frequencies [r, d], from standard normal vectors."""
        return normals * jnp.sqrt(self.values) + self.drawn


def precisions(
    kernel: Any,
    key: Key,
    count: int,
    d: int,
    name: str = "kernel",
    *,
    dtype: Any = None,
) -> Precisions:
    r"""Return random `Precisions` [count, d] of Gaussian kernels whose mixture is the kernel.

    The kernel may be `Gaussian`, `IMQ`, `RationalQuadratic`, `Matern52`, `Laplace`, `L1Laplace`,
    `Constant`, their sums, products and multiples, with bandwidths. It may be any radial kernel
    f(|x - y|^2) with a method ``precisions(key, count)`` that draws S [count] with
    :math:`f(u) = E e^{-S u / 2}`; or any kernel with k(x, x) = 1 and a method ``frequencies(key,
    count, d)`` that draws [count, d] from its spectral density. Otherwise TypeError about ``name``.
    """
    dtype = jnp.result_type(float) if dtype is None else dtype

    def inner(part: Any, key: Key) -> Precisions:
        return precisions(part, key, count, d, name, dtype=dtype)

    one = jnp.ones(count, dtype)
    match kernel:
        case Constant():
            return Precisions(jnp.zeros((count, d), dtype), one)
        case Sum(left=left, right=right):
            keys = jax.random.split(key, 3)
            a, b = inner(left, keys[0]), inner(right, keys[1])
            total = jnp.mean(a.height) + jnp.mean(b.height)
            share = jnp.mean(a.height) / total
            first = jax.random.uniform(keys[2], (count,), dtype) < share
            values, drawn = (
                jnp.where(first[:, None], *pair)
                for pair in ((a.values, b.values), (a.drawn, b.drawn))
            )
            return Precisions(values, total * one, drawn)
        case Product(left=left, right=right):
            keys = jax.random.split(key)
            a, b = inner(left, keys[0]), inner(right, keys[1])
            return Precisions(a.values + b.values, a.height * b.height, a.drawn + b.drawn)
        case Scaled(scale=scale, kernel=part):
            a = inner(part, key)
            return a._replace(height=jnp.asarray(scale, dtype) * a.height)
        case L1Laplace(bandwidth=lengths) if lengths is not None:
            # independent Cauchy frequencies in each coordinate
            drawn = 0.5 / jax.random.gamma(key, 0.5, (count, d), dtype)
            return Precisions(drawn / jnp.asarray(lengths, dtype) ** 2 * jnp.ones((1, d)), one)
        case _ if hasattr(kernel, "frequencies"):
            drawn = jnp.asarray(kernel.frequencies(key, count, d), dtype)
            if drawn.shape != (count, d):
                raise ValueError(
                    f"{name}: {type(kernel).__name__}.frequencies(key, {count}, {d}) must be of "
                    f"shape {(count, d)}, got {drawn.shape}"
                )
            return Precisions(jnp.zeros((count, d), dtype), one, drawn)
        case _ if hasattr(kernel, "precisions") and kernel.bandwidth is not None:
            drawn = jnp.asarray(kernel.precisions(key, count), dtype)[:, None]
            lengths = jnp.broadcast_to(jnp.asarray(kernel.bandwidth, dtype), (d,))
            return Precisions(drawn / lengths[None] ** 2, one)
    raise TypeError(
        f"{name}: random features are those of Gaussian, IMQ, RationalQuadratic, Matern52, "
        f"Laplace, L1Laplace and Constant, their sums, products and multiples, of radial kernels "
        f"with a method precisions(key, count), and of kernels with a method "
        f"frequencies(key, count, d), which draws from the spectral density; got {kernel}"
    )


def orthogonal_normals(key: Key, shape: tuple[int, int], dtype: DTypeLike) -> Float[Array, "r d"]:
    """Return standard normal vectors, of ``shape`` (r, d), orthogonal in each block of d vectors.
    Source: Yu, Suresh, Choromanski, Holtmann-Rice and Kumar (2016), Orthogonal random features."""
    count, d = shape
    blocks = -(-count // d)
    drawn = jax.random.normal(key, (blocks, d, d), dtype)
    q, r = jnp.linalg.qr(drawn)
    signs = jnp.where(jnp.diagonal(r, axis1=-2, axis2=-1) < 0, -1, 1).astype(dtype)
    directions = q * signs[:, None, :]  # uniformly distributed orthogonal matrices
    norms = jnp.linalg.norm(
        jax.random.normal(jax.random.fold_in(key, 1), (blocks, d, d), dtype), axis=-1
    )
    return (jnp.swapaxes(directions, 1, 2) * norms[..., None]).reshape(blocks * d, d)[:count]
