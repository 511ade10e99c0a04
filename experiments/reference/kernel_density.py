"""Kernel density ratios as the authors' code uses them: in-sample errors and bandwidths."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import logsumexp
from jaxtyping import Array, Float

from jaxcal.read import checks, convert
from jaxcal.squared_ce.functions import one_problem, positive
from jaxcal.squared_ce.kde import BLOCK, GRID, log_kernel, logits_of, on_simplex
from jaxcal.squared_ce.reductions import Reduced
from jaxcal.typing import Scalar


def log_density(p: Array, points: Array, b: Any) -> Float[Array, " t"]:
    """`log_kernel` with the factors p_k^(z_k / b) of p_k = 0, where 0^0 = 1."""
    none = points @ (p <= 0).astype(points.dtype) > 0
    return log_kernel(p, points, b) + jnp.where(none, -jnp.inf, 0.0)


def dirichlet(
    queries: Float[Array, "n m"], points: Float[Array, "t m"], bandwidth: Any
) -> Float[Array, "n t"]:
    """The kernel's values: each training point sets a density, which the queries are put into."""
    return jnp.exp(jax.vmap(lambda p: log_density(p, points, bandwidth))(queries))


def leave_one_out_error(problem: Reduced, bandwidth: float | Array) -> Scalar:
    """The squared error with each observation's ratio taken from the others, shape [].

    The original in-sample estimator; with the own term included (fit and evaluate on the same data)
    the estimate is far smaller. Cost O(n^2 d).
    """
    checks.instance(problem, Reduced, "problem")
    one_problem(problem)
    bandwidth = convert.number(bandwidth, "bandwidth", above=0)
    points, n = on_simplex(problem.inputs), problem.n
    if n < 2:
        raise ValueError(f"problem: leaving one out needs at least 2 observations, got n={n}")

    def one(i: Array) -> Array:
        others, outcomes = (jnp.roll(a, -i, axis=0)[1:] for a in (points, problem.outcomes))
        ratio = jax.nn.softmax(logits_of(points[i], others, bandwidth)) @ outcomes
        return jnp.sum((problem.inputs[i] - ratio) ** 2)

    return jnp.mean(jax.lax.map(one, jnp.arange(n), batch_size=max(1, BLOCK // n)))


def likelihood_bandwidth(problem: Reduced, bandwidths: Any = GRID) -> Scalar:
    """The bandwidth under which the inputs are likeliest, each under the density of the others.

    Inputs of density 0 for every bandwidth, as a confidence of 1 among smaller ones, do not count;
    NaN where none is left. Cost O(c n^2 d).
    """
    checks.instance(problem, Reduced, "problem")
    one_problem(problem)
    points, n = on_simplex(problem.inputs), problem.n
    values = jnp.asarray(positive(bandwidths, "bandwidths"), points.dtype)

    def one(i: Array) -> Array:
        def at(b: Array) -> Array:
            logs = log_density(points[i], points, b)
            return logsumexp(jnp.where(jnp.arange(n) != i, logs, -jnp.inf))

        return jax.lax.map(at, values)

    logs = jax.lax.map(one, jnp.arange(n), batch_size=max(1, BLOCK // n))
    counted = jnp.all(jnp.isfinite(logs), axis=1, keepdims=True)
    likelihood = jnp.sum(jnp.where(counted, logs, 0.0), axis=0)
    return jnp.where(jnp.any(counted), values[jnp.argmax(likelihood)], jnp.nan)
