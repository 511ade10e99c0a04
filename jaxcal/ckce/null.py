r"""An exact p-value of calibration: labels drawn again from the predictions.

If the model is calibrated, labels given the predictions are independent draws from them, so CKCE of
redrawn labels has the distribution of CKCE itself, for every n, ridge and kernel.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxcal import checks
from jaxcal.batching import one_at_a_time
from jaxcal.ckce import kernels, solve
from jaxcal.ckce.estimator import Problem, checked_problem
from jaxcal.ckce.kernels import simplex_kernel
from jaxcal.ckce.residuals import residuals
from jaxcal.ckce.ridge import Ridge
from jaxcal.kernels import grams
from jaxcal.nulls.contract import p_value
from jaxcal.results import TestResult, recorded
from jaxcal.typing import ArrayLike, KernelLike, Key, KeyLike


@recorded
def ckce_test(
    key: KeyLike,
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    n_draws: int = 500,
    prediction_kernel: KernelLike = simplex_kernel(),
    similarity: ArrayLike | None = None,
    ridge: Ridge = None,
    bandwidth: ArrayLike | None = None,
    level: float = 0.05,
) -> TestResult:
    r"""Test that class probabilities are calibrated, by CKCE and redrawn labels.

    The level is kept exactly, for every n, where observations are independent given the
    predictions.

    Args:
        key: Random key: typed, legacy or an integer seed.
        predictions: Class probabilities, [n, m].
        targets: Classes 0, .., m - 1, [n].
        n_draws: Number of draws of the null.
        prediction_kernel: As in `ckce`.
        similarity: As in `ckce`.
        ridge: As in `ckce`.
        bandwidth: As in `ckce`.
        level: Probability of rejecting a calibrated model; it decides ``result.verdict``.

    Returns:
        `jaxcal.TestResult`. ``statistic`` and ``biased`` are CKCE; ``estimate`` leaves out the
        products of observations with themselves, :math:`\sum_{i \ne j} W_{ij} D_{ij}` with
        W = A^-1 K A^-1, so that its mean is 0 under calibration, and contributions sum to it.
        ``standard_error`` is that of CKCE where the model is clearly not calibrated.

    Raises:
        ValueError: Shapes, probabilities or classes are wrong; the message names the argument.
        TypeError: An argument is of the wrong type; the message names it.

    Cost: 7/3 n^3 + n_draws n^2 m multiplications.

    Source: The paper has no test; this one is ours.

    Example:
        >>> import jax, jaxcal
        >>> logits = jax.random.normal(jax.random.key(0), (100, 3))
        >>> targets = jax.random.categorical(jax.random.key(1), logits)
        >>> jaxcal.ckce.ckce_test(2, jax.nn.softmax(3 * logits), targets).verdict
        'rejected'
    """
    key = checks.key(key)
    level, n_draws = checks.level(level), checks.integer(n_draws, "n_draws")
    problem = checked_problem(predictions, targets, prediction_kernel, similarity, ridge, bandwidth)
    return _test(key, problem, n_draws=n_draws).at_level(level, lambda n: 1 / (n_draws + 1))


@partial(jax.jit, static_argnames="n_draws")
def _test(key: Key, problem: Problem, *, n_draws: int) -> TestResult:
    def one(key: Key, problem: Problem) -> TestResult:
        kernel, bandwidths = kernels.fill(problem.kernel, problem.q, problem.bandwidth)
        gram = grams.square_gram(kernel, problem.q)
        w = solve.null_weights(gram, problem.ridge)
        left = residuals(problem.q, problem.labels, problem.root)
        fit = solve.fit(gram, left, problem.ridge)

        def again(key: Key) -> Array:
            drawn = jax.random.categorical(key, jnp.log(problem.q), axis=1)
            left = residuals(problem.q, drawn, problem.root)
            return jnp.sum(left * (w @ left))

        with jax.default_matmul_precision("highest"):
            samples = jax.lax.map(again, jax.random.split(key, n_draws))
            rows = jnp.sum(left * (w @ left), axis=1)
        parts = rows - jnp.diagonal(w) * jnp.sum(left**2, axis=1)
        biased = jnp.sum(rows)
        return TestResult.of(
            {
                "nonfinite-predictions": jnp.sum(~jnp.isfinite(problem.q)),
                "identical-predictions": jnp.all(problem.q == problem.q[:1]),
            },
            estimate=jnp.sum(parts),
            biased=biased,
            standard_error=jnp.sqrt(jnp.mean(fit.influence**2) / parts.size),
            statistic=biased,
            p_value=p_value(biased[None], samples[None])[0],
            null_samples=samples,
            bandwidths=bandwidths | {"ridge": problem.ridge},
            contributions=parts,
            coordinates=None,
            test="CKCE test",
            null="Redrawn labels",
        )

    return one_at_a_time(one)(key, problem)
