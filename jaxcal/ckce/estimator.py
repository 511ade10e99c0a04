r"""Compute CKCE, the conditional kernel calibration error, and test calibration by it.

A model is calibrated if the distribution of the label given the prediction is the prediction. CKCE
is the squared Hilbert-Schmidt norm of the difference of the conditional mean operators of these two
distributions. Unlike ECE and SKCE, CKCE is not an average over the distribution of predictions.
"""

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxcal.ckce import any_predictions, kernels, solvers
from jaxcal.ckce.any_predictions import are_classes
from jaxcal.ckce.inputs import Ridge, checked, class_root, residuals, ridge_at, unmerged
from jaxcal.ckce.kernels import simplex_kernel
from jaxcal.ckce.results import CKCE
from jaxcal.ckce.solvers import Exact, Fit, Solver
from jaxcal.engine import one_at_a_time
from jaxcal.kernels import grams, points
from jaxcal.kernels.points import Gaussian
from jaxcal.nulls.contract import p_value
from jaxcal.read import checks, convert
from jaxcal.read.families import Classes
from jaxcal.read.observations import n_repeated
from jaxcal.results import TestResult, recorded
from jaxcal.typing import ArrayLike, KernelLike, Key, KeyLike, Points, PredictionsLike, Scalar


class Problem(NamedTuple):
    """Checked arguments of CKCE; ``root`` is None for the identity, see `class_root`."""

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
    target_kernel: ArrayLike | None,
    ridge: Ridge,
    bandwidth: ArrayLike | None,
) -> Problem:
    """Return the checked arguments; an error names the argument that is wrong."""
    q, labels = checked(predictions, targets)
    kernel = kernels.points.as_kernel(prediction_kernel, "prediction_kernel")
    kernels.check_bandwidth(kernel, q.shape[1])
    if bandwidth is not None:
        bandwidth = convert.number(bandwidth, "bandwidth", above=0).astype(q.dtype)
    return Problem(
        q,
        labels,
        kernel,
        class_root(target_kernel, q.shape[1], q.dtype),
        ridge_at(ridge, q.shape[0], q.dtype),
        bandwidth,
    )


@recorded
def ckce(
    predictions: PredictionsLike,
    targets: ArrayLike,
    *,
    key: KeyLike | None = None,
    given: ArrayLike | None = None,
    given_kernel: KernelLike = Gaussian(),
    solver: Solver = Exact(),
    prediction_kernel: KernelLike | None = None,
    target_kernel: ArrayLike | None = None,
    ridge: Ridge = None,
    bandwidth: ArrayLike | None = None,
) -> CKCE:
    r"""Return the conditional kernel calibration error (CKCE) of any predictions.

    The estimate is :math:`Tr(A^{-1} D A^{-1} K)`, the squared norm of the ridge regression of
    residuals on predictions. K is the Gram matrix of the predictions, A = K + n ridge I, and D has
    the inner products of the residuals (:math:`e_y - q` for class probabilities). For a calibrated
    model it converges to 0; at finite n label noise adds :math:`\sum_i [A^{-1} K A^{-1}]_{ii} (1 -
    \|q_i\|^2)` on average (for classes, without ``target_kernel``). The ridge shrinks errors in
    directions in which predictions vary little. Compare values only at equal n, ridge and kernel.
    Differentiable, also at equal predictions; the median distance is differentiated too.

    Args:
        predictions: Class probabilities q [n, m], or any other predictions that `jaxcal.compare`
            takes, with the residuals described there.
        targets: Classes 0, .., m - 1, [n]; or values, [n] or [n, d].
        key: Random key, required for predictions other than class probabilities.
        given: Further variables to condition on, [n] or [n, a]: the kernel on predictions is
            multiplied by ``given_kernel``. ValueError, outside of jit, if whole numbers that differ
            become equal in the float type of the predictions. For group numbers and the kernel
            `Equal`, the sum of the ``contributions`` of the n_g members of a group is the CKCE of
            this group with ridge ``ridge`` n / n_g. (`LowRank`, ``given``, ``target_kernel``: for
            class probabilities only.)
        given_kernel: Kernel on ``given``; an unset bandwidth is set to the median distance.
        solver: `Exact`, or `LowRank` for more than about 10,000 observations.
        prediction_kernel: As in `jaxcal.compare`.
        target_kernel: Gram matrix of the classes, [m, m]; by default the identity.
        ridge: A number, a function of n, or None for n^(-1/4). For class probabilities, several
            numbers [r] give results with a leading axis r; values do not increase with the ridge.
        bandwidth: Bandwidth of kernels without one; by default the median distance of these
            predictions. To compare models, set one number for all, or use `jaxcal.compare`.

    Returns:
        `CKCE`.

    Cost: n^3 / 3 + O(n^2 m) multiplications and memory n^2 with `Exact`, for each ridge; 10/3 n^3
    for other predictions than class probabilities.

    Source: Moskvichev and Sejdinovic, All Models Are Miscalibrated, But Some Less So, Sections 3.1
    and, for ``given``, 3.3. The residuals of densities known up to a constant are ours.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> logits = jax.random.normal(jax.random.key(0), (100, 3))
        >>> targets = jax.random.categorical(jax.random.key(1), logits)
        >>> good, sharp = jax.nn.softmax(logits), jax.nn.softmax(3 * logits)
        >>> first, second = (jaxcal.ckce.ckce(p, targets, bandwidth=0.5) for p in (good, sharp))
        >>> bool(first.estimate < second.estimate)
        True
    """
    checks.instance(solver, Solver, "solver", "jaxcal.ckce.LowRank(256)")
    key = None if key is None else convert.key(key)
    if not are_classes([predictions]):
        for name, asked in (
            ("given", given is not None),
            ("solver", not isinstance(solver, Exact)),
            ("target_kernel", target_kernel is not None),
        ):
            if asked:
                raise ValueError(f"{name}: an option for class probabilities alone")
        if key is None:
            raise ValueError("key: wanted a random key, as this kind of predictions is sampled")
        return any_predictions.ckce(key, predictions, targets, prediction_kernel, ridge, bandwidth)
    kernel = simplex_kernel() if prediction_kernel is None else prediction_kernel
    problem = checked_problem(predictions, targets, kernel, target_kernel, 1, bandwidth)
    n, dtype = problem.q.shape[0], problem.q.dtype
    strength = ridge_at(ridge, n, dtype, several=True)
    condition = None
    if given is not None:
        variables = unmerged(given, n, dtype)
        condition = variables, points.as_kernel(given_kernel, "given_kernel")
    return _ckce(problem._replace(ridge=strength), solver, condition)


@eqx.filter_jit
def _ckce(problem: Problem, solver: Solver, condition: tuple[Points, KernelLike] | None) -> CKCE:
    def one(ridge: Scalar) -> CKCE:
        return one_at_a_time(_solved)(problem._replace(ridge=ridge), solver, condition)

    return jax.lax.map(one, problem.ridge) if problem.ridge.ndim else one(problem.ridge)


def _solved(problem: Problem, solver: Solver, condition: tuple[Points, KernelLike] | None) -> CKCE:
    kernel, bandwidths = kernels.fill(problem.kernel, problem.q, problem.bandwidth)
    residual = residuals(problem.q, problem.labels, problem.root)
    kernel, rows, widths = kernels.conditioned(kernel, problem.q, condition)
    fit = solver(kernel, rows, residual, problem.ridge)
    if not isinstance(fit, Fit):
        raise TypeError(
            f"solver: wanted a jaxcal.ckce.solvers.Fit for kernel, predictions, residuals and "
            f"ridge, got {convert.say(fit)}"
        )
    return CKCE.of(
        fit,
        problem.ridge,
        bandwidths | widths,
        nonfinite=jnp.sum(~jnp.isfinite(problem.q)),
        identical=jnp.all(problem.q == problem.q[:1]),
    )


@recorded
def ckce_test(
    key: KeyLike,
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    n_draws: int = 500,
    prediction_kernel: KernelLike = simplex_kernel(),
    target_kernel: ArrayLike | None = None,
    ridge: Ridge = None,
    bandwidth: ArrayLike | None = None,
    level: float = 0.05,
) -> TestResult:
    r"""Test that class probabilities are calibrated, by CKCE and redrawn labels.

    The level is exact for every n if observations are independent given the predictions.

    Args:
        key: Random key: typed, legacy or an integer seed.
        predictions: Class probabilities, [n, m].
        targets: Classes 0, .., m - 1, [n].
        n_draws: Number of times that labels are drawn from the predictions.
        prediction_kernel: As in `ckce`.
        target_kernel: As in `ckce`.
        ridge: As in `ckce`.
        bandwidth: As in `ckce`.
        level: Probability of rejecting a calibrated model; it determines ``result.verdict``.

    Returns:
        `jaxcal.TestResult`. ``statistic`` and ``biased`` are CKCE. ``estimate`` leaves out the
        products of observations with themselves: it is :math:`\sum_{i \ne j} W_{ij} D_{ij}` with
        W = A^-1 K A^-1 (see `ckce`), has mean 0 under calibration, and is the sum of
        ``contributions``.
        ``standard_error`` is the standard error of CKCE for a clearly miscalibrated model.

    Cost: 7/3 n^3 + n_draws n^2 m multiplications.

    Source: The paper has no test; this one is ours.

    Example:
        >>> import jax, jaxcal
        >>> logits = jax.random.normal(jax.random.key(0), (100, 3))
        >>> targets = jax.random.categorical(jax.random.key(1), logits)
        >>> jaxcal.ckce.ckce_test(2, jax.nn.softmax(3 * logits), targets).verdict
        'rejected'
    """
    key = convert.key(key)
    level, n_draws = checks.level(level), convert.integer(n_draws, "n_draws")
    problem = checked_problem(
        predictions, targets, prediction_kernel, target_kernel, ridge, bandwidth
    )
    return _test(key, problem, n_draws=n_draws).at_level(level, lambda n: 1 / (n_draws + 1))


@partial(jax.jit, static_argnames="n_draws")
def _test(key: Key, problem: Problem, *, n_draws: int) -> TestResult:
    def one(key: Key, problem: Problem) -> TestResult:
        kernel, bandwidths = kernels.fill(problem.kernel, problem.q, problem.bandwidth)
        gram = grams.square_gram(kernel, problem.q)
        w = solvers.null_weights(gram, problem.ridge)
        observed = residuals(problem.q, problem.labels, problem.root)
        fit = solvers.fit(gram, observed, problem.ridge)

        def again(key: Key) -> Array:
            drawn = jax.random.categorical(key, jnp.log(problem.q), axis=1)
            redrawn = residuals(problem.q, drawn, problem.root)
            return jnp.sum(redrawn * (w @ redrawn))

        samples = jax.lax.map(again, jax.random.split(key, n_draws))
        rows = jnp.sum(observed * (w @ observed), axis=1)
        parts = rows - jnp.diagonal(w) * jnp.sum(observed**2, axis=1)
        biased = jnp.sum(rows)
        return TestResult.of(
            {
                "nonfinite-predictions": jnp.sum(~jnp.isfinite(problem.q)),
                "identical-predictions": jnp.all(problem.q == problem.q[:1]),
                "repeated-rows": n_repeated(problem.labels, Classes(problem.q)),
            },
            estimate=jnp.sum(parts),
            biased=biased,
            standard_error=jnp.sqrt(jnp.mean(fit.influence**2) / parts.size),
            statistic=biased,
            p_value=p_value(biased[None], samples[None], ties=True)[0],
            null_samples=samples,
            bandwidths=bandwidths | {"ridge": problem.ridge},
            contributions=parts,
            coordinates=None,
            test="CKCE test",
            null="Redrawn labels",
        )

    return one_at_a_time(one)(key, problem)
