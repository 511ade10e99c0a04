r"""Estimate products of residuals (kkr), or residuals (ukkr), by kernel ridge regression.

"kkr" regresses the products on the Kronecker product of the kernel with itself,

.. math:: h(p, p') = \mathrm{vec}(D D^T)^T (K \otimes K + \rho I)^{-1} (k(p) \otimes k(p'))
          = a(p)^T \Big[\frac{(b b^T)_{ij}}{v_i v_j + \rho}\Big]_{ij} a(p'),

and "ukkr" regresses the residuals on the kernel, :math:`r(p) = \sum_i a_i(p)\, b_i / (v_i + \rho)`,
and takes h(p, p') = r(p) . r(p'). Here D [n, d] are the training residuals, k(p) [n] the kernel
values of p and the training inputs, K = Q diag(v) Q^T the Gram matrix of these inputs,
a(p) = Q^T k(p), and b = Q^T D the loadings. A low rank replaces K by G G^T, where the
rows of G are Nyström features phi(p) and G^T G = V diag(v) V^T; then a(p) = V^T phi(p) and
b = V^T G^T D. One factorisation is used for all ridges. Source: Gruber and Bach (2025), eq. 28-32.

The ridge rho is added to K (x) K (kkr) or to K (ukkr). The authors' code uses
rho = multiplier n^power, with power 1.5 (kkr) or .75 (ukkr). The paper's lambda is rho / n^2 (kkr)
or rho / n (ukkr); its formulas imply the powers 2.5 and 1.5, hence a larger rho.
For kkr, h(p, p) may be negative: the matrix of 1 / (v_i v_j + rho) is indefinite.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from jaxcal.engine.linear import filled, in_blocks
from jaxcal.kernels import points
from jaxcal.kernels.bandwidths import by_values
from jaxcal.kernels.grams import NystroemFeatures, gram, gram_diagonal, pivots
from jaxcal.kernels.points import Gaussian
from jaxcal.numerics import at_least, full_precision
from jaxcal.read import convert
from jaxcal.squared_ce.functions import Factors, Setting, one_problem, positive
from jaxcal.squared_ce.reductions import Reduced
from jaxcal.typing import KernelLike

PIVOT_ROWS = 8192  # number of observations among which landmarks are chosen
QUERY_ROWS = 4096  # number of queries for which a(p) is computed at a time


class Spectral(eqx.Module):
    """Factorisations of g kernels, with r eigenvalues each; the module defines a(p), v and b.

    ``centres`` [g, t, q]: the training points, or landmarks among them. ``lift`` [g, t, r]:
    a(p) = k(p, centres) @ lift. ``values`` [g, r]: eigenvalues v >= 0. ``loadings`` [g, r, d]: b.
    ``unexplained`` [g]: share of the Gram matrix's trace that a low rank omits; 0 if exact.
    """

    kernels: tuple[KernelLike, ...]
    centres: Float[Array, "g t q"]
    lift: Float[Array, "g t r"]
    values: Float[Array, "g r"]
    loadings: Float[Array, "g r d"]
    unexplained: Float[Array, " g"]

    def lifted(self, queries: Float[Array, "n q"]) -> Float[Array, "g n r"]:
        """Return a(p) = k(p, centres) @ lift for each kernel and query p. Cost: O(g n t r)."""
        parts = [
            _lift_rows(kernel, centres, lift, queries)
            for kernel, centres, lift in zip(self.kernels, self.centres, self.lift, strict=True)
        ]
        return jnp.stack(parts)


@full_precision
def spectral(kernels: tuple[KernelLike, ...], train: Reduced, rank: int | None) -> Spectral:
    """Return the factorisation of each kernel's Gram matrix at the training inputs.

    ``rank`` None: one eigendecomposition per kernel, O(n^3) time and O(n^2) memory. Otherwise
    ``rank`` landmarks, in O(n rank^2 + rank^3) per kernel.
    """
    return _spectral(kernels, train, None if rank is None else min(rank, train.n))


@eqx.filter_jit
def _spectral(kernels: tuple[KernelLike, ...], train: Reduced, rank: int | None) -> Spectral:
    parts = [
        _exact(kernel, train) if rank is None else _low_rank(kernel, train, rank)
        for kernel in kernels
    ]
    centres, lift, values, loadings, unexplained = (
        jnp.stack(list(column)) for column in zip(*parts, strict=True)
    )
    return Spectral(kernels, centres, lift, values, loadings, unexplained)


def _exact(kernel: KernelLike, train: Reduced) -> tuple[Array, Array, Array, Array, Array]:
    values, vectors = jnp.linalg.eigh(gram(kernel, train.inputs, train.inputs))
    loadings = vectors.T @ train.residuals
    none = jnp.zeros((), values.dtype)
    return train.inputs, vectors, at_least(values, 0), loadings, none


def _low_rank(
    kernel: KernelLike, train: Reduced, rank: int
) -> tuple[Array, Array, Array, Array, Array]:
    step = max(1, train.n // max(PIVOT_ROWS, 4 * rank))
    candidates = train.inputs[by_values(train.inputs)[::step]]
    rows, used = pivots(kernel, candidates, rank, float(jnp.finfo(candidates.dtype).eps) ** 0.75)
    landmarks = candidates[rows]
    to_features = NystroemFeatures.at(kernel, landmarks, used).lift
    features = _lift_rows(kernel, landmarks, to_features, train.inputs)
    values, vectors = jnp.linalg.eigh(features.T @ features)
    loadings = vectors.T @ (features.T @ train.residuals)
    trace = jnp.sum(gram_diagonal(kernel, train.inputs))
    unexplained = at_least(1 - jnp.sum(features**2) / trace, 0)
    return landmarks, to_features @ vectors, at_least(values, 0), loadings, unexplained


@full_precision
def _lift_rows(kernel: KernelLike, centres: Array, lift: Array, queries: Array) -> Array:
    """Return ``k(queries, centres) @ lift``, computed in blocks of `QUERY_ROWS` queries."""
    n = queries.shape[0]
    side = max(1, min(n, QUERY_ROWS))
    padded, _ = filled(queries, queries[:, :0], -n % side)
    blocks = jax.lax.map(lambda rows: gram(kernel, rows, centres) @ lift, in_blocks(padded, side))
    return blocks.reshape(-1, lift.shape[1])[:n]


class RidgeSettings(NamedTuple):
    """Kernel index and ridge rho: arrays [c] for c candidates, or scalars for one candidate."""

    kernel: Int[Array, "*c"]
    ridge: Float[Array, "*c"]


def _kernels(value: object) -> tuple[KernelLike, ...]:
    value = Gaussian(1.0) if value is None else value  # exp(-gamma |x - y|^2), gamma = 1/2
    kernels = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if not kernels:
        raise ValueError("kernels: wanted at least one")
    kernels = tuple(points.as_kernel(kernel, "kernels") for kernel in kernels)
    for kernel in kernels:
        if points.needs_bandwidth(kernel):
            raise ValueError(f"kernels: {type(kernel).__name__} has no bandwidth; give one")
    return kernels


def _checked(check: Callable[[Any, str], Any], name: str) -> Callable[[Any], Any]:
    return lambda value: None if value is None else check(value, name)


# exponents of 10 of the multipliers that the authors tried; True: scalar inputs, False: vectors
KKR = {True: [1 - 2 * i for i in range(1, 10)], False: [9 - i for i in range(1, 19)]}
UKKR = {True: [-i for i in range(1, 10)], False: [4.5 - i / 2 for i in range(1, 19)]}


class KernelRidge(eqx.Module):
    """Estimate residuals (ukkr), or products of two residuals (kkr), by kernel ridge regression.

    For kkr, the estimate of a squared error may be negative, and small ridges need float64. All
    estimators with the same kernels and rank share one factorisation per training set.

    Args:
        ridges: Multipliers of the ridges to try; by default those of the authors' code.
        kernels: One kernel or several, which are all tried with every ridge; by default the
            paper's ``Gaussian(1.0)``. Their bandwidths must be set.
        rank: Number of landmarks; None for one exact eigendecomposition per kernel.
        power: The ridge is a multiplier times n^power for n training observations. By default .75
            for ukkr and 1.5 for kkr, as in the authors' code; the paper's formulas imply 1.5 and
            2.5.
        kronecker: True for kkr, which regresses the products of residuals on the Kronecker product
            of the kernel with itself; False for ukkr.

    Cost: O(n^3) per kernel, or O(n rank^2) with landmarks. With t training points or landmarks, a
    ridge takes O(n_eval t d) for ukkr and O(n_eval t^2 + n_eval^2 t) for kkr.

    Source: Gruber and Bach (2025).

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> p = jnp.linspace(0.05, 0.95, 60)
        >>> targets = jax.random.bernoulli(jax.random.key(0), p)
        >>> kkr = jaxcal.squared_ce.KernelRidge((0.1, 1.0), power=0, kronecker=True)
        >>> report = jaxcal.calibration_error(1, p, targets, notion="binary", estimators=[kkr])
        >>> report.best.grid
        [{'ridge': 0.1}, {'ridge': 1.0}]
    """

    ridges: tuple[float, ...] | None = eqx.field(
        default=None, static=True, converter=_checked(positive, "ridges")
    )
    kernels: tuple[KernelLike, ...] = eqx.field(default=None, converter=_kernels)
    rank: int | None = eqx.field(
        default=None, static=True, converter=_checked(convert.integer, "rank")
    )
    power: float | None = eqx.field(
        default=None, static=True, converter=_checked(convert.real, "power")
    )
    kronecker: bool = eqx.field(
        default=False, static=True, converter=partial(convert.flag, name="kronecker")
    )

    @property
    def name(self) -> str:
        short = "kkr" if self.kronecker else "ukkr"
        return short if self.rank is None else f"{short} (rank {self.rank})"

    @property
    def _power(self) -> float:
        if self.power is None:
            return 1.5 if self.kronecker else 0.75
        return self.power

    def _ridges(self, problem: Reduced) -> tuple[float, ...]:
        exponents = (KKR if self.kronecker else UKKR)[problem.inputs.shape[-1] == 1]
        return self.ridges or tuple(10.0**exponent for exponent in exponents)

    def grid(self, problem: Reduced) -> list[Setting]:
        which: list[Setting] = [{}]
        if len(self.kernels) > 1:
            which = [{"kernel": str(k)} for k in range(len(self.kernels))]
        return [each | {"ridge": m} for each in which for m in self._ridges(problem)]

    def fit(self, train: Reduced, shared: list[object]) -> "FittedRidge":
        factor = _shared(self.kernels, train, self.rank, shared)
        values = np.asarray(self._ridges(train)) * float(train.n) ** self._power
        settings = RidgeSettings(
            jnp.repeat(jnp.arange(len(self.kernels)), values.size),
            jnp.asarray(np.tile(values, len(self.kernels)), train.inputs.dtype),
        )
        return FittedRidge(factor, settings, not self.kronecker)


class FittedRidge(eqx.Module):
    """`KernelRidge` fitted to one training set; ``is_product``: True for ukkr, False for kkr."""

    spectral: Spectral
    settings: RidgeSettings
    is_product: bool = eqx.field(static=True)

    def features(self, inputs: Array) -> Float[Array, "g n r"]:
        return self.spectral.lifted(inputs)

    def factors(self, features: Float[Array, "g n r"], setting: RidgeSettings) -> Factors:
        lifted, values = features[setting.kernel], self.spectral.values[setting.kernel]
        loadings = self.spectral.loadings[setting.kernel]
        if self.is_product:
            residual = lifted @ (loadings * _inverse(values + setting.ridge)[:, None])
            return Factors(residual, residual)
        damped = loadings @ loadings.T * _inverse(jnp.outer(values, values) + setting.ridge)
        return Factors(lifted, lifted @ damped)


def _inverse(values: Array) -> Array:
    """Return 1 / values, and 0 for values that are not positive, as in a pseudo-inverse."""
    return jnp.where(values > 0, 1 / jnp.where(values > 0, values, 1.0), 0.0)


def _shared(
    kernels: tuple[KernelLike, ...], train: Reduced, rank: int | None, shared: list[PyTree]
) -> Spectral:
    """Return the factorisation in the list ``shared`` for these kernels and this rank; compute and
    append it if there is none."""
    for their_kernels, their_rank, factorisation in shared:
        if their_rank == rank and bool(eqx.tree_equal(their_kernels, kernels)):
            return factorisation
    one_problem(train)
    factorisation = spectral(kernels, train, rank)
    shared.append((kernels, rank, factorisation))
    return factorisation
