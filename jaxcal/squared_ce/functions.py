r"""Define calibration functions h(p, p'), their risk, and the protocol of their estimators.

The function to estimate is :math:`h^*(p, p') = \langle p - q(p), p' - q(p')\rangle`, with q(p) the
mean of the outcome given the prediction p; E h*(p, p) is the squared calibration error.
Every estimated h is a finite sum of products, :math:`h(p, p') = l(p) \cdot r(p')`, so one pair of
`Factors` describes it on a data set. The empirical risk, with residuals D = p - outcome, is

.. math:: \hat R(h) = \frac{1}{n(n-1)} \sum_{i \ne j} (\langle D_i, D_j\rangle - h(p_i, p_j))^2

If h was fitted on OTHER data, the expected risk R(h) is smallest at h*: R(h) - R(h*) =
E (h - h*)^2. Source: Gruber and Bach (2025), eq. 12, 13, 17, 20 and 22.

Differences of risks are small: R(0) - R(h*) = (E h*(p, p))^2 if p is scalar.
In float32, risks of good functions differ by less than their rounding errors: use float64.

An estimator has a grid of candidate hyperparameters. ``fit`` returns all candidates for one
training set, so that they can share computations such as a factorisation. On an evaluation set
`Fitted.features` are computed once, and `Fitted.factors` once per candidate.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, PyTree

from jaxcal.numerics import full_precision
from jaxcal.read import checks, convert
from jaxcal.squared_ce.reductions import Reduced
from jaxcal.typing import ArrayLike, Scalar


class Factors(NamedTuple):
    """Arrays that give a function h at n inputs, by ``h(p_i, p_j) = left[i] . right[j]``. If
    ``h(p, p') = r(p) . r(p')``, then ``left`` and ``right`` are the same array."""

    left: Float[Array, "n r"]
    right: Float[Array, "n r"]


@runtime_checkable
class CalibrationFunction(Protocol):
    """Symmetric function h(p, p'). ``factors(inputs)`` returns its `Factors` at inputs [n, d]."""

    def factors(self, inputs: Array, /) -> Factors: ...


class Residual(eqx.Module):
    """Calibration function ``h(p, p') = r(p) . r(p')``; ``function`` maps inputs to r, [n, d]."""

    function: Callable[[Array], Array] = eqx.field(static=True)

    def residual(self, inputs: Array) -> Array:
        return self.function(inputs)

    def factors(self, inputs: Array) -> Factors:
        residual = self.function(inputs)
        return Factors(residual, residual)


def on_diagonal(factors: Factors) -> Float[Array, " n"]:
    """Return ``h(p_i, p_i)`` for each i, [n]; >= 0 if h is a product of residuals."""
    return jnp.sum(factors.left * factors.right, axis=1)


def finite_rows(factors: Factors) -> Array:
    """Return whether each observation has finite factors, [n]."""
    return jnp.all(jnp.isfinite(factors.left) & jnp.isfinite(factors.right), axis=1)


class Risk(NamedTuple):
    """Empirical risk ``value`` [], a U-statistic, and ``rows`` [n]: for each observation the mean
    over its n - 1 pairs. The mean of ``rows`` is ``value``."""

    value: Scalar
    rows: Float[Array, " n"]

    @property
    def standard_error(self) -> Scalar:
        """Jackknife standard error of ``value``; NaN for n = 2. Too large for calibrated models."""
        return jackknife(self.rows)


def jackknife(rows: Float[Array, "*b n"]) -> Float[Array, "*b"]:
    """Return the jackknife standard error of a U-statistic of order 2; NaN for n < 3. ``rows``
    holds, for each of n observations, the mean over the n - 1 pairs that contain it."""
    n = rows.shape[-1]
    if n < 3:
        return jnp.full(rows.shape[:-1], jnp.nan, rows.dtype)
    gaps = rows - jnp.mean(rows, axis=-1, keepdims=True)
    return 2 / (n - 2) * jnp.sqrt((n - 1) / n * jnp.sum(gaps**2, axis=-1))


@full_precision
def empirical_risk(h: CalibrationFunction, problem: Reduced) -> Risk:
    """Return the empirical risk: the mean of ``(<D_i, D_j> - h(p_i, p_j))^2`` over i != j.

    Args:
        h: Calibration function: a symmetric function of two predictions with a method
            ``factors(inputs)``, such as `jaxcal.squared_ce.functions.Residual`. A function that
            `calibration_error` stores with ``keep=True`` needs float64 enabled in JAX.
        problem: Predictions p and residuals D from `reduce`, with n >= 2; for the class-wise
            notion, one of ``problem.problems()``.

    Returns:
        A named tuple: ``value`` [], and ``rows`` [n], the mean over the n - 1 pairs of each row.

    Cost: n r^2 or n^2 r, whichever is lower, for r factors.

    Source: Gruber and Bach (2025), Sec. 3.2.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> from jaxcal.squared_ce.functions import Residual
        >>> p = jnp.linspace(0.05, 0.95, 100)
        >>> targets = jax.random.bernoulli(jax.random.key(0), p)
        >>> problem = jaxcal.squared_ce.reduce(p, targets, "binary")
        >>> h = Residual(lambda inputs: 0.1 * (inputs - 0.5))  # the product of two residuals
        >>> jaxcal.squared_ce.empirical_risk(h, problem).rows.shape
        (100,)
    """
    checks.instance(problem, Reduced, "problem")
    if not isinstance(h, CalibrationFunction):
        raise TypeError(f"h: wanted what an estimator's fit returns, got {convert.say(h)}")
    one_problem(problem)
    return risk_of_factors(problem.residuals, h.factors(problem.inputs))


def risk_of_factors(residuals: Float[Array, "n d"], factors: Factors) -> Risk:
    """Return the `Risk` from residuals and the factors of h at the same observations."""
    n, d = residuals.shape
    if d + factors.left.shape[1] < n:
        return risk_by_moments(residuals, factors)
    return risk_by_pairs(residuals, factors)


def risk_by_moments(residuals: Float[Array, "n d"], factors: Factors) -> Risk:
    r"""Return the risk over all pairs, from second moments, in O(n (d + r)^2).

    With residuals D, factors L and R, and h_ii = L_i . R_i, n (n - 1) times the risk is

    .. math:: |D^T D|^2 - 2 \langle D^T L, D^T R\rangle + \langle L^T L, R^T R\rangle
              - \sum_i (|D_i|^2 - h_{ii})^2.

    Large terms cancel: float64 keeps about ten digits of the risk, float32 three.
    """
    n = _at_least_two(residuals)
    left, right = factors
    pure = jnp.sum((residuals @ (residuals.T @ residuals)) * residuals, axis=1)
    cross = jnp.sum((residuals @ (residuals.T @ right)) * left, axis=1)
    squares = jnp.sum((left @ (right.T @ right)) * left, axis=1)
    gaps = jnp.sum(residuals**2, axis=1) - on_diagonal(factors)
    rows = (pure - 2 * cross + squares - gaps**2) / (n - 1)
    return Risk(jnp.mean(rows), rows)


def risk_by_pairs(residuals: Float[Array, "n d"], factors: Factors) -> Risk:
    """Return the risk from a matrix of all pairs: O(n^2 (d + r)), memory O(n^2)."""
    n = _at_least_two(residuals)
    gaps = (residuals @ residuals.T - factors.left @ factors.right.T) ** 2
    rows = jnp.sum(jnp.fill_diagonal(gaps, 0, inplace=False), axis=1) / (n - 1)
    return Risk(jnp.mean(rows), rows)


def one_problem(problem: Reduced) -> None:
    """Raise ValueError for a class-wise `Reduced`, which consists of several problems."""
    if problem.inputs.ndim != 2:
        raise ValueError(
            f"problem: wanted one, inputs of shape [n, d], got {problem.inputs.shape}; "
            f"take the class-wise problems one by one: problem.problems()"
        )


def _at_least_two(residuals: Array) -> int:
    if residuals.ndim != 2 or residuals.shape[0] < 2:
        raise ValueError(
            f"residuals: wanted at least 2 observations, shape [n, d], got {residuals.shape}"
        )
    return residuals.shape[0]


Setting = dict[str, float | str]  # values of hyperparameters; texts have no order


@runtime_checkable
class Fitted(Protocol):
    """Protocol of an estimator fitted to one training set, with all its c candidates.

    ``settings``: hyperparameters, a pytree whose leaves have a leading axis c. All candidates share
    ``features(inputs)``. ``factors(features, setting)`` returns the `Factors` for one ``setting``.
    ``is_product``: whether h(p, p') = r(p) . r(p') for all candidates.
    """

    @property
    def settings(self) -> PyTree[Array]: ...

    @property
    def is_product(self) -> bool: ...

    def features(self, inputs: Array, /) -> PyTree[Array]: ...

    def factors(self, features: PyTree[Array], setting: PyTree[Array], /) -> Factors: ...


@runtime_checkable
class Estimator(Protocol):
    """Protocol of estimators of a calibration function, with a grid of candidates.

    ``grid(problem)`` lists the candidates' hyperparameters, ordered as ``Fitted.settings``, and
    ``fit(train, shared)`` returns `Fitted`. All estimators of a training set get the same list
    ``shared``: each `KernelRidge` stores its factorisation in it, or reuses a stored one.
    """

    @property
    def name(self) -> str: ...

    def grid(self, problem: Reduced, /) -> list[Setting]: ...

    def fit(self, train: Reduced, shared: list[object], /) -> Fitted: ...


if TYPE_CHECKING:  # the types that users may pass; `jaxcal.squared_ce.pipeline` converts them
    Estimators: TypeAlias = Sequence[Estimator]
else:
    Estimators = Any


class Candidate(eqx.Module):
    """One candidate of a fitted estimator as a calibration function."""

    fitted: Fitted
    setting: PyTree[Array]

    def factors(self, inputs: Array) -> Factors:
        return self.fitted.factors(self.fitted.features(inputs), self.setting)


def candidate(fitted: Fitted, i: int) -> Candidate:
    """Return the i-th candidate of a fitted estimator."""
    return Candidate(fitted, jax.tree.map(lambda leaf: leaf[i], fitted.settings))


class AtData(eqx.Module):
    """Values of all c candidates at n observations.

    ``rows`` [c, n]: `Risk.rows` at the observations that `at_data` uses, NaN at all others. The
    mean of the finite rows is the candidate's risk. ``finite`` [c, n]: whether factors are finite.
    """

    rows: Float[Array, "*c n"]
    finite: Bool[Array, "*c n"]


@eqx.filter_jit
def at_data(fitted: Fitted, problem: Reduced, use: Bool[Array, " n"] | None = None) -> AtData:
    """Return the values of every candidate at the observations of a problem.

    Risks are over pairs of observations in ``use`` (None: all) at which the candidate is finite.
    """
    features = fitted.features(problem.inputs)

    def one(setting: PyTree) -> AtData:
        factors = fitted.factors(features, setting)
        finite = finite_rows(factors)
        used = finite if use is None else finite & use
        return AtData(rows_among(problem.residuals, factors, used), finite)

    return jax.lax.map(one, fitted.settings)


def rows_among(
    residuals: Float[Array, "n d"], factors: Factors, use: Bool[Array, " n"]
) -> Float[Array, " n"]:
    """Return `Risk.rows` from pairs of observations in ``use`` only, NaN at other observations. All
    rows are NaN if ``use`` selects fewer than two observations."""
    some = use[:, None]
    among = Factors(jnp.where(some, factors.left, 0), jnp.where(some, factors.right, 0))
    # pairs with an observation whose residual and factors are 0 add 0
    rows = risk_of_factors(jnp.where(some, residuals, 0), among).rows
    others = jnp.sum(use) - 1
    scale = (residuals.shape[0] - 1) / jnp.maximum(others, 1)
    return jnp.where(use & (others > 0), rows * scale, jnp.nan)


def on_edge(grid: Sequence[Setting], chosen: int) -> list[str]:
    """Return the names of hyperparameters whose chosen value is the least or largest tried.

    Hyperparameters with a single value, or with texts as values, are never returned.
    """
    names = []
    for name, value in grid[chosen].items():
        if isinstance(value, str):
            continue
        tried = {setting[name] for setting in grid}
        if len(tried) > 1 and value in (min(tried), max(tried)):
            names.append(name)
    return names


def positive(values: ArrayLike, name: str) -> tuple[float, ...]:
    """Return one or more numbers as a tuple; ValueError unless all are positive and finite."""
    numbers = convert.array(values, name)
    if isinstance(numbers, Tracer):
        raise TypeError(f"{name}: values must be known, and these are traced: keep them out of jit")
    if not (
        jnp.issubdtype(numbers.dtype, jnp.floating) or jnp.issubdtype(numbers.dtype, jnp.integer)
    ):
        raise TypeError(f"{name}: wanted real numbers, got {numbers.dtype}")
    array = np.atleast_1d(np.asarray(numbers, np.float64))  # also inside of jit
    if array.ndim != 1 or not array.size or not np.all((array > 0) & (array < np.inf)):
        raise ValueError(f"{name}: wanted positive, finite numbers, got {values!r}")
    return tuple(array.tolist())
