r"""Kernel ridge regression of products of residuals (kkr), and of residuals (ukkr).

"kkr" regresses the products on the Kronecker product of the kernel with itself,

.. math:: h(p, p') = \mathrm{vec}(D D^T)^T (K \otimes K + \rho I)^{-1} (k(p) \otimes k(p'))
          = a(p)^T \Big[\frac{(b b^T)_{ij}}{v_i v_j + \rho}\Big]_{ij} a(p'),

and "ukkr" the residuals on the kernel and multiplies afterwards,
:math:`r(p) = \sum_i a_i(p)\, b_i / (v_i + \rho)`; a, v, b as in `jaxcal.squared_ce.spectral`.
Source: Gruber and Bach (2025), eq. 28 to 32.

Ridges here are EFFECTIVE: rho is what is added to K (x) K or to K. The paper's lambda is rho / n^2
for kkr and rho / n for ukkr. Its printed grids have the wrong powers of n; see `Ridges`.
On the diagonal kkr may be negative: the matrix of 1 / (v_i v_j + rho) is indefinite.
"""

from typing import NamedTuple

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int, PyTree

from jaxcal import checks
from jaxcal.kernels import points
from jaxcal.kernels.grams import gram_diagonal
from jaxcal.kernels.points import Gaussian
from jaxcal.squared_ce.estimators import Setting, positive
from jaxcal.squared_ce.functions import Factors
from jaxcal.squared_ce.reductions import Reduced
from jaxcal.squared_ce.risk import one_problem
from jaxcal.squared_ce.search import Range
from jaxcal.squared_ce.spectral import Spectral, spectral
from jaxcal.typing import KernelLike

STRONG = 1e3  # traces of K: there the residual is at most a thousandth of its mean
RBF = Gaussian(1.0)  # exp(-gamma |x - y|^2) with the paper's gamma = 1/2


class Ridges(eqx.Module):
    """Effective ridges ``multiplier * n^power`` with n the number of training observations.

    The authors ran powers 1.5 (kkr) and 0.75 (ukkr); the paper prints lambda with n^0.5, which is
    n^2.5 and n^1.5 here, up to a thousand times more.

    Args:
        multipliers: Multipliers to try, which folds of different sizes share.
        power: Power of n; with 0 the multipliers are the ridges.

    Source: Gruber and Bach (2025), and the authors' code.

    Example:
        >>> import jaxcal
        >>> jaxcal.squared_ce.TwoStepRidge(jaxcal.squared_ce.Ridges((0.1, 1.0), 0)).ridges.power
        0.0
    """

    multipliers: tuple[float, ...] = eqx.field(
        static=True, converter=lambda v: positive(v, "multipliers")
    )
    power: float = eqx.field(static=True, converter=lambda v: checks.real(v, "power"))

    def effective(self, n: int) -> tuple[float, ...]:
        return tuple(multiplier * float(n) ** self.power for multiplier in self.multipliers)


def kkr_ridges(*, scalar: bool, printed: bool = False) -> Ridges:
    """The grid of ridges of kkr, as it was run or as the paper prints it.

    Args:
        scalar: For scalar inputs; otherwise for vectors.
        printed: As the paper prints it; otherwise as it was run.

    Returns:
        `Ridges`.

    Source: Gruber and Bach (2025), and the authors' code.

    Example:
        >>> import jaxcal
        >>> jaxcal.squared_ce.kkr_ridges(scalar=True).power
        1.5
    """
    scalar, printed = checks.flag(scalar, "scalar"), checks.flag(printed, "printed")
    exponents = [1 - 2 * i for i in range(1, 10)] if scalar else [9 - i for i in range(1, 19)]
    return Ridges([10.0**e for e in exponents], 2.5 if printed else 1.5)


def ukkr_ridges(*, scalar: bool, printed: bool = False) -> Ridges:
    """The grid of ridges of ukkr, as it was run or as the paper prints it.

    Args:
        scalar: For scalar inputs; otherwise for vectors.
        printed: As the paper prints it; otherwise as it was run.

    Returns:
        `Ridges`.

    Source: Gruber and Bach (2025), and the authors' code.

    Example:
        >>> import jaxcal
        >>> jaxcal.squared_ce.ukkr_ridges(scalar=True).power
        0.75
    """
    scalar, printed = checks.flag(scalar, "scalar"), checks.flag(printed, "printed")
    exponents = [-i for i in range(1, 10)] if scalar else [4.5 - i / 2 for i in range(1, 19)]
    return Ridges([10.0**e for e in exponents], 1.5 if printed else 0.75)


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


def _rank(value: object) -> int | None:
    return None if value is None else checks.integer(value, "rank")


class KroneckerRidge(eqx.Module):
    """Kernel ridge regression of products of residuals (kkr).

    Settings name the multiplier of `Ridges`, which folds of different sizes share. Needs float64
    for small ridges.

    Args:
        ridges: None takes the grid of the authors' code for scalar or vector inputs. Two or more
            multipliers are continued past the end at which one is chosen.
        kernels: One kernel or several, all of which are tried with every ridge.
        rank: None for one exact eigendecomposition a kernel; a number for landmarks.

    Cost: O(n^3) a kernel, or O(n rank^2) with landmarks; each ridge O(n_eval t^2 + n_eval^2 t) for
    t training points or landmarks.

    Source: Gruber and Bach (2025).

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> p = jnp.linspace(0.05, 0.95, 60)
        >>> problem = jaxcal.squared_ce.binary(p, jax.random.bernoulli(jax.random.key(0), p))
        >>> kkr = jaxcal.squared_ce.KroneckerRidge(jaxcal.squared_ce.Ridges((0.1, 1.0), 0))
        >>> report = jaxcal.squared_ce.problem_error(1, problem, estimators=[kkr], folds=2)
        >>> len(report.best.grid) >= 2  # the two, and what continues them
        True
    """

    ridges: Ridges | None = None
    kernels: tuple[KernelLike, ...] = eqx.field(default=(RBF,), converter=_kernels)
    rank: int | None = eqx.field(default=None, static=True, converter=_rank)

    @property
    def name(self) -> str:
        return "kkr" if self.rank is None else f"kkr (rank {self.rank})"

    def _ridges(self, problem: Reduced) -> Ridges:
        return self.ridges or kkr_ridges(scalar=problem.inputs.shape[-1] == 1)

    def grid(self, problem: Reduced) -> list[Setting]:
        return _names(self._ridges(problem), len(self.kernels))

    def ranges(self, problem: Reduced) -> dict[str, Range]:
        return _ranges(self._ridges(problem), self.kernels, problem, 2)

    def with_values(self, name: str, values: tuple[float, ...]) -> "KroneckerRidge":
        power = (self.ridges or kkr_ridges(scalar=True)).power
        return KroneckerRidge(Ridges(values, power), self.kernels, self.rank)

    def fit(self, train: Reduced, shared: list[object]) -> "FittedKronecker":
        factor = _shared(self.kernels, train, self.rank, shared)
        return FittedKronecker(factor, _settings(self._ridges(train), len(self.kernels), train))


class TwoStepRidge(eqx.Module):
    """Kernel ridge regression of residuals, whose product is h (ukkr).

    Never negative on the diagonal. Shares its factorisation with `KroneckerRidge`.

    Args:
        ridges: As in `KroneckerRidge`.
        kernels: As in `KroneckerRidge`.
        rank: As in `KroneckerRidge`.

    Cost: O(n^3) a kernel, or O(n rank^2) with landmarks; each ridge O(n_eval t d) for t training
    points or landmarks.

    Source: Gruber and Bach (2025).

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> p = jnp.linspace(0.05, 0.95, 60)
        >>> problem = jaxcal.squared_ce.binary(p, jax.random.bernoulli(jax.random.key(0), p))
        >>> ukkr = jaxcal.squared_ce.TwoStepRidge(jaxcal.squared_ce.Ridges((0.1, 1.0), 0))
        >>> report = jaxcal.squared_ce.problem_error(1, problem, estimators=[ukkr], folds=2)
        >>> len(report.best.grid) >= 2  # the two, and what continues them
        True
    """

    ridges: Ridges | None = None
    kernels: tuple[KernelLike, ...] = eqx.field(default=(RBF,), converter=_kernels)
    rank: int | None = eqx.field(default=None, static=True, converter=_rank)

    @property
    def name(self) -> str:
        return "ukkr" if self.rank is None else f"ukkr (rank {self.rank})"

    def _ridges(self, problem: Reduced) -> Ridges:
        return self.ridges or ukkr_ridges(scalar=problem.inputs.shape[-1] == 1)

    def grid(self, problem: Reduced) -> list[Setting]:
        return _names(self._ridges(problem), len(self.kernels))

    def ranges(self, problem: Reduced) -> dict[str, Range]:
        return _ranges(self._ridges(problem), self.kernels, problem, 1)

    def with_values(self, name: str, values: tuple[float, ...]) -> "TwoStepRidge":
        power = (self.ridges or ukkr_ridges(scalar=True)).power
        return TwoStepRidge(Ridges(values, power), self.kernels, self.rank)

    def fit(self, train: Reduced, shared: list[object]) -> "FittedTwoStep":
        factor = _shared(self.kernels, train, self.rank, shared)
        return FittedTwoStep(factor, _settings(self._ridges(train), len(self.kernels), train))


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


def _names(ridges: Ridges, kernels: int) -> list[Setting]:
    which: list[Setting] = [{"kernel": str(k)} if kernels > 1 else {} for k in range(kernels)]
    return [each | {"ridge": m} for each in which for m in ridges.multipliers]


def _ranges(
    ridges: Ridges, kernels: tuple[KernelLike, ...], problem: Reduced, factors: int
) -> dict[str, Range]:
    """From ridges that rounding hides to those that leave nothing of h, for ``factors`` times K, of
    every kernel."""
    traces = [float(jnp.sum(gram_diagonal(kernel, problem.inputs))) for kernel in kernels]
    if not (min(traces) > 0 and max(traces) < np.inf):
        return {}
    weakest, strongest = (
        trace**factors / float(problem.n) ** ridges.power for trace in (min(traces), max(traces))
    )
    ends = float(jnp.finfo(problem.inputs.dtype).eps) * weakest, STRONG**factors * strongest
    return {"ridge": Range(*ends, "no ridge but rounding", "h is 0")}


def _settings(ridges: Ridges, kernels: int, train: Reduced) -> RidgeSettings:
    values = np.asarray(ridges.effective(train.n))
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
