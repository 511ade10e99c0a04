r"""Kernel ridge regression of products of residuals (kkr), and of residuals (ukkr).

"kkr" regresses the products on the Kronecker product of the kernel with itself,

.. math:: h(p, p') = \mathrm{vec}(D D^T)^T (K \otimes K + \rho I)^{-1} (k(p) \otimes k(p'))
          = a(p)^T \Big[\frac{(b b^T)_{ij}}{v_i v_j + \rho}\Big]_{ij} a(p'),

and "ukkr" the residuals on the kernel and multiplies afterwards,
:math:`r(p) = \sum_i a_i(p)\, b_i / (v_i + \rho)`; a, v, b as in `jaxcal.squared_ce.spectral`.
Source: Gruber and Bach (2025), eq. 28 to 32.

Ridges here are EFFECTIVE: rho is what is added to K (x) K or to K. The paper's lambda is rho / n^2
for kkr and rho / n for ukkr. The authors ran rho = multiplier n^power with powers 1.5 (kkr) and .75
(ukkr); the paper prints lambda with n^.5, which is n^2.5 and n^1.5 here, up to a thousand times as
much.
On the diagonal kkr may be negative: the matrix of 1 / (v_i v_j + rho) is indefinite.
"""

from typing import Any, NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from jaxcal.kernels import points
from jaxcal.kernels.points import Gaussian
from jaxcal.read import checks
from jaxcal.squared_ce.estimators import Setting, positive
from jaxcal.squared_ce.functions import Factors, one_problem
from jaxcal.squared_ce.reductions import Reduced
from jaxcal.squared_ce.spectral import Spectral, spectral
from jaxcal.typing import KernelLike

RBF = Gaussian(1.0)  # exp(-gamma |x - y|^2) with the paper's gamma = 1/2


class RidgeSettings(NamedTuple):
    """Which kernel, and the effective ridge."""

    kernel: Int[Array, "*c"]
    ridge: Float[Array, "*c"]


def _kernels(value: object) -> tuple[KernelLike, ...]:
    kernels = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    if not kernels:
        raise ValueError("kernels: wanted at least one")
    kernels = tuple(points.as_kernel(kernel, "kernels") for kernel in kernels)
    for kernel in kernels:
        if points.needs_bandwidth(kernel):
            raise ValueError(f"kernels: {type(kernel).__name__} has no bandwidth; give one")
    return kernels


def _multipliers(value: Any) -> tuple[float, ...] | None:
    return None if value is None else positive(value, "ridges")


def _power(value: Any) -> float | None:
    return None if value is None else checks.real(value, "power")


def _kronecker(value: Any) -> bool:
    return checks.flag(value, "kronecker")


def _rank(value: object) -> int | None:
    return None if value is None else checks.integer(value, "rank")


# of 10: the multipliers that the authors tried, for scalar and for vector inputs
KKR = {True: [1 - 2 * i for i in range(1, 10)], False: [9 - i for i in range(1, 19)]}
UKKR = {True: [-i for i in range(1, 10)], False: [4.5 - i / 2 for i in range(1, 19)]}


class KernelRidge(eqx.Module):
    """Kernel ridge regression of residuals (ukkr), or of products of two residuals (kkr).

    kkr may be negative on the diagonal, and needs float64 for small ridges. Both share their
    factorisations. Settings name the multiplier of a ridge, which folds of different sizes share.

    Args:
        ridges: Multipliers of the ridges to try; None takes those of the authors' code for scalar
            or vector inputs.
        kernels: One kernel or several, all of which are tried with every ridge.
        rank: None for one exact eigendecomposition a kernel; a number for landmarks.
        power: A ridge is its multiplier times n^power, n training observations. None takes that of
            the authors' code, .75 for ukkr and 1.5 for kkr; the paper prints one more for each
            factor K, 1.5 and 2.5; with 0 multipliers are the ridges.
        kronecker: Whether to regress the products of residuals, on the Kronecker product of the
            kernel with itself (kkr).

    Cost: O(n^3) a kernel, or O(n rank^2) with landmarks; for t training points or landmarks each
    ridge takes O(n_eval t d), with products O(n_eval t^2 + n_eval^2 t).

    Source: Gruber and Bach (2025).

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> p = jnp.linspace(0.05, 0.95, 60)
        >>> problem = jaxcal.squared_ce.binary(p, jax.random.bernoulli(jax.random.key(0), p))
        >>> kkr = jaxcal.squared_ce.KernelRidge((0.1, 1.0), power=0, kronecker=True)
        >>> report = jaxcal.squared_ce.problem_error(1, problem, estimators=[kkr], folds=2)
        >>> report.best.grid
        [{'ridge': 0.1}, {'ridge': 1.0}]
    """

    ridges: tuple[float, ...] | None = eqx.field(default=None, static=True, converter=_multipliers)
    kernels: tuple[KernelLike, ...] = eqx.field(default=(RBF,), converter=_kernels)
    rank: int | None = eqx.field(default=None, static=True, converter=_rank)
    power: float | None = eqx.field(default=None, static=True, converter=_power)
    kronecker: bool = eqx.field(default=False, static=True, converter=_kronecker)

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
    """One of the two on one training set for all ridges; ``is_product``: it is ukkr."""

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
    """1 / values, and 0 where the value is 0: a pseudo-inverse."""
    return jnp.where(values > 0, 1 / jnp.where(values > 0, values, 1.0), 0.0)


def _shared(
    kernels: tuple[KernelLike, ...], train: Reduced, rank: int | None, shared: list[PyTree]
) -> Spectral:
    """Return the factorisation another estimator left for these kernels and this rank, or a new
    one."""
    for their_kernels, their_rank, factorisation in shared:
        if their_rank == rank and bool(eqx.tree_equal(their_kernels, kernels)):
            return factorisation
    one_problem(train)
    factorisation = spectral(kernels, train, rank)
    shared.append((kernels, rank, factorisation))
    return factorisation
