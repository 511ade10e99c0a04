r"""Estimators of known form: h = 0, and families h(p, p') = r_theta(p) . r_theta(p').

The risk is quadratic in r, so it is flat wherever r = 0 and cannot tell r from -r: a descent from
one start may end at "calibrated" or in a false minimum. Hence a grid, or several starts.
Source: Gruber and Bach (2025), Sec. 5.1 (a grid of temperatures).
"""

from collections.abc import Callable

import equinox as eqx
import jax
import jax.numpy as jnp
import jax.scipy.optimize
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxcal.read import convert
from jaxcal.squared_ce.functions import Factors, Setting, one_problem, risk_of_factors
from jaxcal.squared_ce.reductions import Reduced


class Zero(eqx.Module):
    """The function ``h = 0``: "the classifier is calibrated".

    Its risk is what an estimator has to go below.
    """

    @property
    def name(self) -> str:
        return "zero"

    def grid(self, problem: Reduced) -> list[Setting]:
        return [{}]

    def fit(self, train: Reduced, shared: list[object]) -> "FittedZero":
        return FittedZero(jnp.zeros((1, train.inputs.shape[-1]), train.inputs.dtype))


class FittedZero(eqx.Module):
    """The residual 0 everywhere."""

    settings: Float[Array, "1 d"]

    @property
    def is_product(self) -> bool:
        return True

    def features(self, inputs: Array) -> Array:
        return inputs

    def factors(self, features: Array, setting: Array) -> Factors:
        zeros = jnp.broadcast_to(setting, features.shape)
        return Factors(zeros, zeros)


class Parametric(eqx.Module):
    """A parametric family of residuals, chosen or fitted by the risk.

    Args:
        residual: Function ``residual(theta, inputs)`` from [n, d] to [n, d], differentiable in
            theta. Pass a named function: equal lambdas are compiled again.
        thetas: Candidates, [c] or [c, q].
        descend: Take the candidates as starts, from each of which BFGS lowers the risk on the
            training data; the validation data then choose among the ends.
    """

    residual: Callable[[PyTree, Array], Array] = eqx.field(static=True)
    thetas: np.ndarray = eqx.field(
        converter=lambda thetas: np.asarray(convert.floats(thetas, "thetas"))
    )
    descend: bool = eqx.field(default=False, static=True)

    def __check_init__(self):
        thetas = np.asarray(self.thetas)
        if thetas.ndim not in (1, 2) or not thetas.size or not np.all(np.isfinite(thetas)):
            raise ValueError(
                f"thetas: wanted finite candidates, [c] or [c, q], got shape {thetas.shape}"
            )

    @property
    def name(self) -> str:
        return getattr(self.residual, "__name__", "parametric")

    def grid(self, problem: Reduced) -> list[Setting]:
        def called(value: float) -> float | str:
            """A start is no value of the parameter: past the last one lies nothing to be tried."""
            return f"{value:.6g}" if self.descend else float(value)

        what = "start" if self.descend else "theta"
        if self.thetas.ndim == 1:
            return [{what: called(theta)} for theta in self.thetas]
        return [
            {f"{what}[{k}]": called(value) for k, value in enumerate(theta)}
            for theta in self.thetas
        ]

    def fit(self, train: Reduced, shared: list[object]) -> "FittedParametric":
        one_problem(train)
        thetas = jnp.asarray(self.thetas, train.inputs.dtype)
        if self.descend:
            thetas = _descend(self.residual, thetas, train)
        return FittedParametric(self.residual, thetas)


class FittedParametric(eqx.Module):
    """The family at all candidates."""

    residual: Callable[[PyTree, Array], Array] = eqx.field(static=True)
    settings: Float[Array, "c *q"]

    @property
    def is_product(self) -> bool:
        return True

    def features(self, inputs: Array) -> Array:
        return inputs

    def factors(self, features: Array, setting: Array) -> Factors:
        residual = self.residual(setting, features)
        return Factors(residual, residual)


@eqx.filter_jit
def _descend(residual: Callable[[PyTree, Array], Array], starts: Array, train: Reduced) -> Array:
    """The ends of BFGS from each start, on the training risk in units of that of h = 0."""
    zero = jnp.zeros_like(train.residuals)
    unit = risk_of_factors(train.residuals, Factors(zero, zero)).value

    def one(start: Array) -> Array:
        def relative(flat: Array) -> Array:
            fitted = residual(flat.reshape(start.shape), train.inputs)
            return risk_of_factors(train.residuals, Factors(fitted, fitted)).value / unit

        end = jax.scipy.optimize.minimize(relative, start.reshape(-1), method="BFGS")
        return end.x.reshape(start.shape)

    return jax.lax.map(one, starts)
