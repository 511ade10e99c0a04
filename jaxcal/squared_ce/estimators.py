"""Interface of estimators of a calibration function, whose candidates are fitted together.

An estimator has a grid of candidate hyperparameters. ``fit`` returns all candidates for one
training set, so that they can share computations such as a factorisation. At an evaluation set
``features`` are computed once, and ``factors`` once per candidate.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Bool, Float, PyTree

from jaxcal.read import checks
from jaxcal.squared_ce.functions import Factors, finite_rows, on_diagonal, risk_of_factors
from jaxcal.squared_ce.reductions import Reduced
from jaxcal.typing import ArrayLike

Setting = dict[str, float | str]  # a text is a choice without an order


@runtime_checkable
class Fitted(Protocol):
    """All candidates of one estimator on one training set.

    ``settings``: a pytree whose leaves have a leading axis of candidates; ``factors`` takes one
    entry of it. ``is_product``: whether h is a product of residuals, so that both factors are
    equal.
    """

    @property
    def settings(self) -> PyTree[Array]: ...

    @property
    def is_product(self) -> bool: ...

    def features(self, inputs: Array, /) -> PyTree[Array]: ...

    def factors(self, features: PyTree[Array], setting: PyTree[Array], /) -> Factors: ...


@runtime_checkable
class Estimator(Protocol):
    """Protocol of classes of calibration functions with a grid of candidates.

    ``grid(problem)``: names of the candidates, in the order of ``Fitted.settings``: numbers, or
    texts for choices without an order. ``fit(train, shared)``: ``shared`` is a list common to the
    estimators of one training set, in which a kernel ridge stores its factorisation for the next.
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
    """Return the i-th candidate."""
    return Candidate(fitted, jax.tree.map(lambda leaf: leaf[i], fitted.settings))


class AtData(eqx.Module):
    """All c candidates at an evaluation set of n observations.

    ``rows`` [c, n]: row means of the risk among the observations used (NaN for others), whose mean
    is the candidate's risk. ``diagonal`` [c, n]: h(p_i, p_i). ``finite`` [c, n]: whether h is
    finite. ``residuals`` [c, n, d]: the estimated residuals if h is a product of residuals, else
    None.
    """

    rows: Float[Array, "*c n"]
    diagonal: Float[Array, "*c n"]
    finite: Bool[Array, "*c n"]
    residuals: Float[Array, "*c n d"] | None


@eqx.filter_jit
def at_data(fitted: Fitted, problem: Reduced, use: Bool[Array, " n"] | None = None) -> AtData:
    """Evaluate risk, diagonal and residuals of every candidate, one after another.

    The risk of a candidate is over pairs of observations in ``use`` at which it is finite.
    """
    features = fitted.features(problem.inputs)
    residuals = problem.residuals

    def one(setting: PyTree) -> AtData:
        factors = fitted.factors(features, setting)
        finite = finite_rows(factors)
        return AtData(
            rows=rows_among(residuals, factors, finite if use is None else finite & use),
            diagonal=on_diagonal(factors),
            finite=finite,
            residuals=factors.left if fitted.is_product else None,
        )

    return jax.lax.map(one, fitted.settings)


def rows_among(
    residuals: Float[Array, "n d"], factors: Factors, use: Bool[Array, " n"]
) -> Float[Array, " n"]:
    """Return row means of the risk over pairs of observations in ``use``; NaN for others."""
    some = use[:, None]
    among = Factors(jnp.where(some, factors.left, 0), jnp.where(some, factors.right, 0))
    # pairs with an observation whose residual and factors are 0 add 0
    rows = risk_of_factors(jnp.where(some, residuals, 0), among).rows
    others = jnp.sum(use) - 1
    scale = (residuals.shape[0] - 1) / jnp.maximum(others, 1)
    return jnp.where(use & (others > 0), rows * scale, jnp.nan)


def on_edge(grid: Sequence[Setting], chosen: int) -> list[str]:
    """Return the hyperparameters whose chosen value is the smallest or the largest in the grid.

    Texts, such as names of kernels, have no order and are left out.
    """
    names = []
    for name, value in grid[chosen].items():
        if isinstance(value, str):
            continue
        tried = {setting[name] for setting in grid}
        if len(tried) > 1 and value in (min(tried), max(tried)):
            names.append(name)
    return names


def scalar_only(train: Reduced, name: str) -> None:
    """Raise ValueError for vector inputs, which have no bins."""
    if train.inputs.ndim != 2 or train.inputs.shape[1] != 1:
        raise ValueError(
            f"{name}: bins divide confidences, inputs of shape [n, 1], got {train.inputs.shape}; "
            f"the canonical error has no binned estimator here"
        )


def positive(values: ArrayLike, name: str) -> tuple[float, ...]:
    """Return positive, finite numbers as a tuple, at least one."""
    numbers = checks.array(values, name)
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
