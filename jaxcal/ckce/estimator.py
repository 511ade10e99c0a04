r"""CKCE: the conditional kernel calibration error, exact.

A model is calibrated where the distribution of the label given the prediction is the prediction.
CKCE is the squared Hilbert-Schmidt norm of the difference of the two conditional mean operators;
unlike an ECE or SKCE it is not an average over the predictions that happened to be made.
"""

from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxcal import checks
from jaxcal.batching import one_at_a_time
from jaxcal.ckce import any_predictions, kernels, solve
from jaxcal.ckce.any_predictions import are_classes
from jaxcal.ckce.kernels import simplex_kernel
from jaxcal.ckce.residuals import checked, class_root, noise, residuals
from jaxcal.ckce.result import CKCE
from jaxcal.ckce.ridge import Ridge, ridge_at, ridges_at
from jaxcal.ckce.solvers import Exact, Solution, Solver, check_solver
from jaxcal.kernels import grams, points
from jaxcal.kernels.points import Gaussian
from jaxcal.results import recorded
from jaxcal.typing import (
    ArrayLike,
    DTypeLike,
    KernelLike,
    KeyLike,
    Points,
    PredictionsLike,
    Scalar,
)


class Problem(NamedTuple):
    """A checked data set: probabilities, labels, kernel, root of the class similarity, ridge."""

    q: Float[Array, "n m"]
    labels: Int[Array, " n"]
    kernel: KernelLike
    root: Float[Array, "m m"] | None
    ridge: Scalar
    bandwidth: Scalar | None


def checked_problem(
    predictions: PredictionsLike,
    targets: ArrayLike,
    prediction_kernel: KernelLike,
    similarity: ArrayLike | None,
    ridge: Ridge,
    bandwidth: ArrayLike | None,
) -> Problem:
    """Every argument checked, or an error with its name."""
    q, labels = checked(predictions, targets)
    kernel = kernels.points.as_kernel(prediction_kernel, "prediction_kernel")
    kernels.check_bandwidth(kernel, q.shape[1])
    return Problem(
        q,
        labels,
        kernel,
        class_root(similarity, q.shape[1], q.dtype),
        ridge_at(ridge, q.shape[0], q.dtype),
        None if bandwidth is None else positive(bandwidth, q.dtype),
    )


def positive(value: object, dtype: DTypeLike) -> Scalar:
    """A positive, finite bandwidth as an array, or ValueError."""
    return checks.number(value, "bandwidth", above=0).astype(dtype)


@recorded
def ckce(
    predictions: PredictionsLike,
    targets: ArrayLike,
    *,
    key: KeyLike | None = None,
    covariates: ArrayLike | None = None,
    covariate_kernel: KernelLike = Gaussian(),
    solver: Solver = Exact(),
    prediction_kernel: KernelLike | None = None,
    similarity: ArrayLike | None = None,
    ridge: Ridge = None,
    bandwidth: ArrayLike | None = None,
) -> CKCE:
    """The conditional kernel calibration error (CKCE) of any predictions, from their targets.

    :math:`Tr(A^{-1} D A^{-1} K)` with K the Gram matrix of the predictions, A = K + n ridge I and
    D the products of the residuals, :math:`e_y - q` of class probabilities: the squared norm of
    the ridge regression of residuals on predictions. 0 for a calibrated model and infinitely many
    observations; at finite n the noise of the labels adds `null_mean`, and the ridge shrinks what
    the predictions say little about. Values are comparable at equal n, ridge and kernel only.
    Differentiable in the predictions, also where they coincide, and through the median distance.

    Args:
        predictions: Class probabilities q [n, m]; or anything else that `jaxcal.compare` takes,
            which is compared by the same residuals.
        targets: Classes 0, .., m - 1, [n]; or values, [n] or [n, d].
        key: Random key of draws and nodes, for predictions other than class probabilities.
        covariates: What to condition on besides the prediction, [n, a]: kernels are multiplied.
            With groups and the kernel `Equal`, the sum of ``contributions`` over a group of n_g
            observations is its own CKCE at the ridge ``ridge`` n / n_g.
        covariate_kernel: Kernel on covariates; an unset bandwidth is their median distance.
        solver: `Exact`; for more than some 10,000 observations `LowRank`, `Fourier` or
            `ConjugateGradients`, without covariates.
        prediction_kernel: As in `jaxcal.compare`.
        similarity: Gram matrix of the classes, [m, m]; by default that of equality.
        ridge: A number, a function of n, or None for n^(-1/4). Several numbers [r] give results
            with a leading axis r: values never increase in the ridge.
        bandwidth: Bandwidth of kernels without one; by default the median distance of these
            predictions. Give one number for all models that you compare, or use
            `jaxcal.compare`.

    Returns:
        `CKCE`.

    Raises:
        ValueError: Shapes, probabilities or classes are wrong; the message names the argument.
        TypeError: An argument is of the wrong type; the message names it.

    Cost: n^3 / 3 + O(n^2 m) multiplications and memory n^2 with `Exact`, for each ridge; 5 n^3 for
    other predictions than class probabilities.

    Source: Moskvichev and Sejdinovic, All Models Are Miscalibrated, But Some Less So, Sections 3.1
    and, for covariates, 3.3. Residuals of densities up to a constant are ours.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> logits = jax.random.normal(jax.random.key(0), (100, 3))
        >>> targets = jax.random.categorical(jax.random.key(1), logits)
        >>> good, sharp = jax.nn.softmax(logits), jax.nn.softmax(3 * logits)
        >>> first, second = (jaxcal.ckce.ckce(p, targets, bandwidth=0.5) for p in (good, sharp))
        >>> bool(first.estimate < second.estimate)
        True
    """
    solver, key = check_solver(solver), None if key is None else checks.key(key)
    if not are_classes([predictions]):
        for name, asked in (
            ("covariates", covariates is not None),
            ("solver", not isinstance(solver, Exact)),
            ("similarity", similarity is not None),
        ):
            if asked:
                raise ValueError(f"{name}: an option for class probabilities alone")
        if key is None:
            raise ValueError("key: wanted a random key, as this kind of predictions is sampled")
        return any_predictions.ckce(key, predictions, targets, prediction_kernel, ridge, bandwidth)
    kernel = simplex_kernel() if prediction_kernel is None else prediction_kernel
    problem = checked_problem(predictions, targets, kernel, similarity, 1, bandwidth)
    n, dtype = problem.q.shape[0], problem.q.dtype
    strength = ridge_at(ridge, n, dtype, several=True)
    condition = None
    if covariates is not None:
        if not isinstance(solver, Exact):
            raise ValueError("solver: with covariates only jaxcal.ckce.Exact() is served")
        condition = (
            checks.rows(covariates, n, "covariates").astype(dtype),
            points.as_kernel(covariate_kernel, "covariate_kernel"),
        )
    return _ckce(problem._replace(ridge=strength), solver, condition)


@eqx.filter_jit
def _ckce(problem: Problem, solver: Solver, condition: tuple[Points, KernelLike] | None) -> CKCE:
    def one(ridge: Scalar) -> CKCE:
        return one_at_a_time(_solved)(problem._replace(ridge=ridge), solver, condition)

    return jax.lax.map(one, problem.ridge) if problem.ridge.ndim else one(problem.ridge)


def _solved(problem: Problem, solver: Solver, condition: tuple[Points, KernelLike] | None) -> CKCE:
    kernel, bandwidths = kernels.fill(problem.kernel, problem.q, problem.bandwidth)
    left = residuals(problem.q, problem.labels, problem.root)
    if condition is None:
        solution = solver(kernel, problem.q, left, problem.ridge)
    else:
        covariates, on_covariates = condition
        on_covariates, used = kernels.fill(on_covariates, covariates)
        if used:
            bandwidths["covariate"] = used["prediction"]
        gram = grams.square_gram(kernel, problem.q) * grams.square_gram(on_covariates, covariates)
        solution = Solution(solve.fit(gram, left, problem.ridge))
    if not isinstance(solution, Solution):
        raise TypeError(
            f"solver: wanted a jaxcal.ckce.Solution for kernel, predictions, residuals and ridge, "
            f"got {checks.say(solution)}"
        )
    fit, approximation, broken = solution
    n = fit.influence.size
    nonfinite = jnp.sum(~jnp.isfinite(problem.q)) + broken
    fit = jax.tree.map(lambda part: jnp.where(nonfinite > 0, jnp.nan, part), fit)
    return CKCE(
        fit.estimate,
        jnp.sqrt(jnp.mean(fit.influence**2) / n),
        fit.contributions,
        fit.influence,
        problem.ridge,
        bandwidths,
        nonfinite,
        jnp.any(problem.q != problem.q[:1]),
        jax.lax.stop_gradient(fit.rounding),
        approximation,
    )


def cross_validated_ridge(
    predictions: ArrayLike,
    targets: ArrayLike,
    ridges: ArrayLike,
    *,
    prediction_kernel: KernelLike = simplex_kernel(),
    similarity: ArrayLike | None = None,
    bandwidth: ArrayLike | None = None,
) -> tuple[Scalar, Float[Array, " r"]]:
    """The ridge with the least leave-one-out error of predicting labels.

    Regresses the labels on the predictions, the operator that CKCE compares with the model. The
    chosen ridge depends on the model: compare models at one common ridge.

    Args:
        predictions: Class probabilities, [n, m].
        targets: Classes 0, .., m - 1, [n].
        ridges: Ridges to try, [r].
        prediction_kernel: As in `ckce`.
        similarity: As in `ckce`.
        bandwidth: As in `ckce`.

    Returns:
        The ridge, [], and all errors, [r].

    Raises:
        ValueError: Shapes, probabilities or classes are wrong; the message names the argument.
        TypeError: An argument is of the wrong type; the message names it.

    Cost: about 9 n^3 operations.

    Source: Moskvichev and Sejdinovic, Section 2.3, which mentions it after Gruenewaelder et al.
    (2012); not used in the paper.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> logits = jax.random.normal(jax.random.key(0), (60, 3))
        >>> targets = jax.random.categorical(jax.random.key(1), logits)
        >>> p, ridges = jax.nn.softmax(logits), jnp.array([0.01, 0.1, 1.0])
        >>> ridge, errors = jaxcal.ckce.cross_validated_ridge(p, targets, ridges)
        >>> bool(ridge == ridges[jnp.argmin(errors)])
        True
    """
    problem = checked_problem(predictions, targets, prediction_kernel, similarity, None, bandwidth)
    return _validated(problem, ridges_at(ridges, problem.q.dtype))


@jax.jit
def _validated(problem: Problem, ridges: Array) -> tuple[Scalar, Array]:
    kernel, _ = kernels.fill(problem.kernel, problem.q, problem.bandwidth)
    gram = grams.square_gram(kernel, problem.q)
    labels = residuals(jnp.zeros_like(problem.q), problem.labels, problem.root)
    errors = solve.left_out_errors(gram, labels, ridges)
    return ridges[jnp.argmin(errors)], errors


def null_mean(
    predictions: ArrayLike,
    *,
    prediction_kernel: KernelLike = simplex_kernel(),
    similarity: ArrayLike | None = None,
    ridge: Ridge = None,
    bandwidth: ArrayLike | None = None,
) -> Scalar:
    r"""The exact mean of CKCE where labels are drawn from these predictions.

    :math:`\sum_i [A^{-1} K A^{-1}]_{ii} (1 - \|q_i\|^2)`, at most of the order n^(-1/2) at the
    default ridge: what a perfectly calibrated model scores on average.

    Args:
        predictions: Class probabilities, [n, m].
        prediction_kernel: As in `ckce`.
        similarity: As in `ckce`.
        ridge: As in `ckce`.
        bandwidth: As in `ckce`.

    Returns:
        The mean, [].

    Raises:
        ValueError: Shapes or probabilities are wrong; the message names the argument.
        TypeError: An argument is of the wrong type; the message names it.

    Cost: 7/3 n^3 multiplications.

    Example:
        >>> import jax, jaxcal
        >>> predictions = jax.nn.softmax(jax.random.normal(jax.random.key(0), (60, 3)))
        >>> bool(jaxcal.ckce.null_mean(predictions) > 0)
        True
    """
    predictions = checks.probabilities(predictions, binary=True)
    zeros = jnp.zeros(len(predictions), jnp.int32)
    problem = checked_problem(predictions, zeros, prediction_kernel, similarity, ridge, bandwidth)
    return _null_mean(problem)


@jax.jit
def _null_mean(problem: Problem) -> Scalar:
    def one(problem: Problem) -> Scalar:
        kernel, _ = kernels.fill(problem.kernel, problem.q, problem.bandwidth)
        w = solve.null_weights(grams.square_gram(kernel, problem.q), problem.ridge)
        return jnp.sum(jnp.diagonal(w) * noise(problem.q, problem.root))

    return one_at_a_time(one)(problem)
