r"""Exact errors, risks and decompositions where the distribution is known: oracles and simulations.

A finite prediction set: atoms [a, m] (predictions), weights [a] (how often), conditionals [a, m]
(the true class probabilities given the prediction).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxcal.numerics import largest
from jaxcal.read import checks, convert
from jaxcal.squared_ce.functions import Factors
from jaxcal.squared_ce.reductions import Reduced, reduce
from jaxcal.typing import KeyLike, Scalar


class FiniteDistribution(NamedTuple):
    """A classifier with finitely many predictions and the truth about each of them."""

    atoms: Float[Array, "a m"]
    weights: Float[Array, " a"]
    conditionals: Float[Array, "a m"]

    def sample(self, key: KeyLike, n: int) -> tuple[Float[Array, "n m"], Array]:
        """Predictions [n, m] and labels [n]."""
        which_key, label_key = jax.random.split(convert.key(key))
        which = jax.random.choice(which_key, self.weights.size, (n,), p=self.weights)
        labels = jax.random.categorical(label_key, jnp.log(self.conditionals[which]))
        return self.atoms[which], labels

    def support(self, notion: str) -> tuple[Float[Array, " s"], Reduced]:
        """All (prediction, label) pairs as a problem, with their probabilities [s]."""
        a, m = self.atoms.shape
        atoms = jnp.repeat(self.atoms, m, axis=0)
        labels = jnp.tile(jnp.arange(m), a)
        joint = (self.weights[:, None] * self.conditionals).reshape(-1)
        return joint, reduce(atoms, labels, notion)

    def true_residual(self, notion: str) -> Float[Array, "*problems s d"]:
        """``p - E[outcome | input]`` at each point of `support`; equal inputs are taken together,
        since the scalar notions see only the input."""
        weights, problem = self.support(notion)

        def one(inputs: Array, residuals: Array) -> Array:
            equal = jnp.all(inputs[:, None] == inputs[None], axis=-1)
            same = jnp.where(equal, weights[None], 0)
            return (same @ residuals) / jnp.sum(same, axis=1, keepdims=True)

        if problem.inputs.ndim == 2:
            return one(problem.inputs, problem.residuals)
        return jax.vmap(one)(problem.inputs, problem.residuals)

    def squared_error(self, notion: str) -> Array:
        """The squared error: [] for canonical and top-label; class-wise [m], to be summed."""
        weights, _ = self.support(notion)
        return jnp.sum(self.true_residual(notion) ** 2, axis=-1) @ weights


def population_risk(
    weights: Float[Array, " s"], residuals: Float[Array, "s d"], factors: Factors
) -> Scalar:
    """``E (<D, D'> - h)^2`` over two independent draws of weighted support points, themselves
    included: the risk of which `empirical_risk` is an unbiased estimate."""
    d, (left, right) = weights[:, None] * residuals, factors
    pure = jnp.sum((d.T @ residuals) ** 2)
    cross = jnp.sum((d.T @ left) * (d.T @ right))
    w = weights[:, None]
    return pure - 2 * cross + jnp.sum(((w * left).T @ left) * ((w * right).T @ right))


def risk_from_moments(
    dd: Float[Array, "d d"], dr: Float[Array, "d d"], rr: Float[Array, "d d"]
) -> Scalar:
    """``|E D D^T|^2 - 2 |E D r^T|^2 + |E r r^T|^2``: the risk of h(p, p') = r(p) . r(p')."""
    return jnp.sum(dd**2) - 2 * jnp.sum(dr**2) + jnp.sum(rr**2)


def exchangeable_risk(brier: Any, cross: Any, square: Any, *, classes: int = 2) -> Any:
    """``(B^2 - 2 a^2 + b^2) / (m - 1)`` with B = E|D|^2, a = E D.r, b = E|r|^2.

    For a distribution that treats all m classes alike and an r that does so too and sums to 0.
    ``classes=2`` is also the scalar case, where it holds always: R(0) = B^2 and R(h*) = B^2 -
    (error)^4.
    """
    return (brier**2 - 2 * cross**2 + square**2) / (classes - 1)


class Decomposition(NamedTuple):
    """``brier = calibration - sharpness + uncertainty``, each [].

    Calibration is the SQUARED canonical error. Uncertainty is 1 - |P_Y|^2: eq. 5 of Gruber and
    Bach (2025) prints + |P_Y|^2, which does not add up.
    """

    brier: Scalar
    calibration: Scalar
    sharpness: Scalar
    uncertainty: Scalar


def murphy(distribution: FiniteDistribution) -> Decomposition:
    """Murphy's decomposition of the Brier score, each part from its definition."""
    checks.instance(distribution, FiniteDistribution, "distribution")
    weights, problem = distribution.support("canonical")
    marginal = distribution.weights @ distribution.conditionals
    conditional = problem.inputs - distribution.true_residual("canonical")
    return Decomposition(
        brier=weights @ jnp.sum(problem.residuals**2, axis=1),
        calibration=distribution.squared_error("canonical"),
        sharpness=weights @ jnp.sum((conditional - marginal[None]) ** 2, axis=1),
        uncertainty=1 - jnp.sum(marginal**2),
    )


def lp_ball_error(predictions: Any, conditional: Any, p: float, *, weights: Any = None) -> Scalar:
    r"""Calibration error over the unit ball of :math:`L^p`(distribution of predictions x counting).

    With :math:`\delta = P(Y | P) - P` [n, m] and 1/p + 1/q = 1: :math:`(E \|\delta\|_q^q)^{1/q}`
    for 1 < p < infinity, the largest :math:`|\delta|` for p = 1, :math:`E \|\delta\|_1` for
    p = infinity. p = 2 gives the root of the squared Euclidean ECE, p = infinity twice the ECE of
    total variation. ``weights`` [n] of sum 1: the distribution of the predictions, equal by
    default. Source: Widmann et al. (2021), Theorem G.1.
    """
    if isinstance(p, bool) or not isinstance(p, int | float | np.number) or not p >= 1:
        raise ValueError(f"p: wanted a number of at least 1, or infinity, got {p!r}")
    rows = checks.probabilities(predictions, "predictions", binary=True)
    truth = checks.probabilities(conditional, "conditional")
    if truth.shape != rows.shape:
        raise ValueError(f"conditional: wanted the shape {rows.shape}, got {truth.shape}")
    n = rows.shape[0]
    w = jnp.full(n, 1 / n, rows.dtype) if weights is None else convert.floats(weights, "weights")
    if w.shape != (n,):
        raise ValueError(f"weights: wanted one a prediction, shape ({n},), got {w.shape}")
    sizes = jnp.abs(truth - rows)
    if p == 1:
        return largest(jnp.where(w[:, None] > 0, sizes, 0))
    q = 1.0 if p == float("inf") else p / (p - 1)
    most = largest(sizes)  # its powers underflow for p near 1
    scale = jnp.where(most > 0, most, 1)
    return scale * jnp.sum(w[:, None] * (sizes / scale) ** q) ** (1 / q)
