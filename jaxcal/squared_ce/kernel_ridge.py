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
from jaxcal.kernels.grams import gram_diagonal
from jaxcal.kernels.points import Gaussian
from jaxcal.read import checks
from jaxcal.squared_ce.estimators import Setting, positive
from jaxcal.squared_ce.functions import Factors, one_problem
from jaxcal.squared_ce.reductions import Reduced
from jaxcal.squared_ce.spectral import Spectral, spectral
from jaxcal.squared_ce.tuning import Range
from jaxcal.typing import KernelLike

STRONG = 1e3  # traces of K: there the residual is at most a thousandth of its mean
RBF = Gaussian(1.0)  # exp(-gamma |x - y|^2) with the paper's gamma = 1/2
# multipliers of the authors' code, for scalar and for vector inputs
KRONECKER = {True: [1 - 2 * i for i in range(1, 10)], False: [9 - i for i in range(1, 19)]}
TWO_STEP = {True: [-i for i in range(1, 10)], False: [4.5 - i / 2 for i in range(1, 19)]}


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


def _power(value: Any) -> float:
    return checks.real(value, "power")


def _rank(value: object) -> int | None:
    return None if value is None else checks.integer(value, "rank")


class KroneckerRidge(eqx.Module):
    """Kernel ridge regression of products of residuals (kkr).

    Settings name the multiplier of a ridge, which folds of different sizes share. Needs float64 for
    small ridges.

    Args:
        ridges: Multipliers of the ridges to try; None takes those of the authors' code for scalar
            or vector inputs. Two or more are continued past the end at which one is chosen.
        kernels: One kernel or several, all of which are tried with every ridge.
        rank: None for one exact eigendecomposition a kernel; a number for landmarks.
        power: A ridge is its multiplier times n^power, n training observations: 1.5 as the authors
            ran it, 2.5 as the paper prints it, 0 for multipliers that are the ridges.

    Cost: O(n^3) a kernel, or O(n rank^2) with landmarks; each ridge O(n_eval t^2 + n_eval^2 t) for
    t training points or landmarks.

    Source: Gruber and Bach (2025).

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> p = jnp.linspace(0.05, 0.95, 60)
        >>> problem = jaxcal.squared_ce.binary(p, jax.random.bernoulli(jax.random.key(0), p))
        >>> kkr = jaxcal.squared_ce.KroneckerRidge((0.1, 1.0), power=0)
        >>> report = jaxcal.squared_ce.problem_error(1, problem, estimators=[kkr], folds=2)
        >>> len(report.best.grid) >= 2  # the two, and what continues them
        True
    """

    ridges: tuple[float, ...] | None = eqx.field(default=None, static=True, converter=_multipliers)
    kernels: tuple[KernelLike, ...] = eqx.field(default=(RBF,), converter=_kernels)
    rank: int | None = eqx.field(default=None, static=True, converter=_rank)
    power: float = eqx.field(default=1.5, static=True, converter=_power)

    @property
    def name(self) -> str:
        return "kkr" if self.rank is None else f"kkr (rank {self.rank})"

    def _ridges(self, problem: Reduced) -> tuple[float, ...]:
        scalar = problem.inputs.shape[-1] == 1
        return self.ridges or tuple(10.0**exponent for exponent in KRONECKER[scalar])

    def grid(self, problem: Reduced) -> list[Setting]:
        return _names(self._ridges(problem), len(self.kernels))

    def ranges(self, problem: Reduced) -> dict[str, Range]:
        return _ranges(self.power, self.kernels, problem, 2)

    def with_values(self, name: str, values: tuple[float, ...]) -> "KroneckerRidge":
        return KroneckerRidge(values, self.kernels, self.rank, self.power)

    def fit(self, train: Reduced, shared: list[object]) -> "FittedKronecker":
        factor = _shared(self.kernels, train, self.rank, shared)
        return FittedKronecker(
            factor, _settings(self._ridges(train), self.power, len(self.kernels), train)
        )


class TwoStepRidge(eqx.Module):
    """Kernel ridge regression of residuals, whose product is h (ukkr).

    Never negative on the diagonal. Shares its factorisation with `KroneckerRidge`.

    Args:
        ridges: As in `KroneckerRidge`.
        kernels: As in `KroneckerRidge`.
        rank: As in `KroneckerRidge`.
        power: As in `KroneckerRidge`: .75 as the authors ran it, 1.5 as the paper prints it.

    Cost: O(n^3) a kernel, or O(n rank^2) with landmarks; each ridge O(n_eval t d) for t training
    points or landmarks.

    Source: Gruber and Bach (2025).

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> p = jnp.linspace(0.05, 0.95, 60)
        >>> problem = jaxcal.squared_ce.binary(p, jax.random.bernoulli(jax.random.key(0), p))
        >>> ukkr = jaxcal.squared_ce.TwoStepRidge((0.1, 1.0), power=0)
        >>> report = jaxcal.squared_ce.problem_error(1, problem, estimators=[ukkr], folds=2)
        >>> len(report.best.grid) >= 2  # the two, and what continues them
        True
    """

    ridges: tuple[float, ...] | None = eqx.field(default=None, static=True, converter=_multipliers)
    kernels: tuple[KernelLike, ...] = eqx.field(default=(RBF,), converter=_kernels)
    rank: int | None = eqx.field(default=None, static=True, converter=_rank)
    power: float = eqx.field(default=0.75, static=True, converter=_power)

    @property
    def name(self) -> str:
        return "ukkr" if self.rank is None else f"ukkr (rank {self.rank})"

    def _ridges(self, problem: Reduced) -> tuple[float, ...]:
        scalar = problem.inputs.shape[-1] == 1
        return self.ridges or tuple(10.0**exponent for exponent in TWO_STEP[scalar])

    def grid(self, problem: Reduced) -> list[Setting]:
        return _names(self._ridges(problem), len(self.kernels))

    def ranges(self, problem: Reduced) -> dict[str, Range]:
        return _ranges(self.power, self.kernels, problem, 1)

    def with_values(self, name: str, values: tuple[float, ...]) -> "TwoStepRidge":
        return TwoStepRidge(values, self.kernels, self.rank, self.power)

    def fit(self, train: Reduced, shared: list[object]) -> "FittedTwoStep":
        factor = _shared(self.kernels, train, self.rank, shared)
        return FittedTwoStep(
            factor, _settings(self._ridges(train), self.power, len(self.kernels), train)
        )


class FittedKronecker(eqx.Module):
    """kkr on one training set for all ridges."""

    spectral: Spectral
    settings: RidgeSettings

    @property
    def is_product(self) -> bool:
        return False

    def features(self, inputs: Array) -> Float[Array, "g n r"]:
        return self.spectral.lifted(inputs)

    def factors(self, features: Float[Array, "g n r"], setting: RidgeSettings) -> Factors:
        lifted, values = features[setting.kernel], self.spectral.values[setting.kernel]
        loadings = self.spectral.loadings[setting.kernel]
        damped = loadings @ loadings.T * _inverse(jnp.outer(values, values) + setting.ridge)
        return Factors(lifted, lifted @ damped)


class FittedTwoStep(eqx.Module):
    """ukkr on one training set for all ridges."""

    spectral: Spectral
    settings: RidgeSettings

    @property
    def is_product(self) -> bool:
        return True

    def features(self, inputs: Array) -> Float[Array, "g n r"]:
        return self.spectral.lifted(inputs)

    def factors(self, features: Float[Array, "g n r"], setting: RidgeSettings) -> Factors:
        values = self.spectral.values[setting.kernel]
        damped = self.spectral.loadings[setting.kernel]
        damped = damped * _inverse(values + setting.ridge)[:, None]
        residual = features[setting.kernel] @ damped
        return Factors(residual, residual)


def _inverse(values: Array) -> Array:
    """1 / values, and 0 where the value is 0: a pseudo-inverse."""
    return jnp.where(values > 0, 1 / jnp.where(values > 0, values, 1.0), 0.0)


def _names(ridges: tuple[float, ...], kernels: int) -> list[Setting]:
    which: list[Setting] = [{"kernel": str(k)} if kernels > 1 else {} for k in range(kernels)]
    return [each | {"ridge": m} for each in which for m in ridges]


def _ranges(
    power: float, kernels: tuple[KernelLike, ...], problem: Reduced, factors: int
) -> dict[str, Range]:
    """From ridges that rounding hides to those that leave nothing of h, for ``factors`` times K, of
    every kernel."""
    traces = [float(jnp.sum(gram_diagonal(kernel, problem.inputs))) for kernel in kernels]
    if not (min(traces) > 0 and max(traces) < np.inf):
        return {}
    weakest, strongest = (
        trace**factors / float(problem.n) ** power for trace in (min(traces), max(traces))
    )
    ends = float(jnp.finfo(problem.inputs.dtype).eps) * weakest, STRONG**factors * strongest
    return {"ridge": Range(*ends, "no ridge but rounding", "h is 0")}


def _settings(
    ridges: tuple[float, ...], power: float, kernels: int, train: Reduced
) -> RidgeSettings:
    values = np.asarray([multiplier * float(train.n) ** power for multiplier in ridges])
    return RidgeSettings(
        jnp.repeat(jnp.arange(kernels), values.size),
        jnp.asarray(np.tile(values, kernels), train.inputs.dtype),
    )


def _shared(
    kernels: tuple[KernelLike, ...], train: Reduced, rank: int | None, shared: list[PyTree]
) -> Spectral:
    """The factorisation another estimator left for these kernels and this rank, or a new one."""
    for their_kernels, their_rank, factorisation in shared:
        if their_rank == rank and bool(eqx.tree_equal(their_kernels, kernels)):
            return factorisation
    one_problem(train)
    factorisation = spectral(kernels, train, rank)
    shared.append((kernels, rank, factorisation))
    return factorisation
