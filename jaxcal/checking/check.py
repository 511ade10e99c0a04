"""The one call: plan, ask, report."""

from typing import Any

import jax
import numpy as np
from jax.core import Tracer

from jaxcal.checking.plan import CLASS_PROBABILITIES, Asked, Plan, check_inputs, plan
from jaxcal.checking.report import CheckReport
from jaxcal.nulls import DependentWild, HadamardWild
from jaxcal.read import checks
from jaxcal.repairing import repair
from jaxcal.results import recorded
from jaxcal.typing import ArrayLike, Key, KeyLike, PredictionsLike

LEAST_PAIRS = 10  # of a repair by 5 folds


@recorded
def check(
    key: KeyLike,
    predictions: Any,
    targets: Any = None,
    *,
    inputs: ArrayLike | None = None,
    level: float = 0.05,
    dependent: bool = False,
) -> CheckReport:
    """Check predictions by the tests that fit them; say why these, the verdict and its limits.

    What the predictions are decides. Log densities: `calibration_test`. Scores: `kccsd_test`.
    Distributions: `calibration_test` and `skce_test`. Class probabilities: `skce_test`, with the
    size of the `calibration_error`. Probabilities of one of two classes:
    `distance_from_calibration`. Draws: `skce_test` and ranks. Simulated pairs of a posterior:
    `sbi.check_posterior`. The p-values of several tests are adjusted by Holm, so the verdict on a
    calibrated model is "rejected" with probability ``level`` at most.

    Args:
        key: Random key: typed, legacy or an integer.
        predictions: `Unnormalized`, `Scores`, `Draws`, `LogDensities`, a numpyro distribution with
            batch shape [n], class probabilities [n, m], probabilities [n] of class 1, draws
            [n, m, ...] as an array, or what `jaxcal.sbi.score_pairs` returns.
        targets: [n, ...] observed targets; integers 0..m - 1 for classes. None for what holds its
            own: `LogDensities` and scored pairs.
        inputs: What predictions are functions of, or numbers that errors may vary with, [n] or
            [n, q], for `calibration_test`; None for predictions that it does not take.
        level: Level of the verdict.
        dependent: Whether observations are in the order of time and may depend on each other.

    Returns:
        `CheckReport`: prints what was asked and found; ``to_html(path)`` writes it with figures.
        It ends with what `jaxcal.repair` would gain, of three classes and more, or the call that
        tells.

    Raises:
        ValueError: Shapes or values are wrong, naming the argument.
        TypeError: No test takes such predictions.

    Cost: that of the tests, at most two.

    Source: Holm (1979) for several tests; the tests name theirs.

    Example:
        >>> import jax, jaxcal
        >>> logits = jax.random.normal(jax.random.key(0), (200, 3))
        >>> labels = jax.random.categorical(jax.random.key(1), logits)
        >>> report = jaxcal.check(2, jax.nn.softmax(3 * logits), labels)  # too sure
        >>> report.kind, report.names, report.verdict
        ('class probabilities', ('skce_test',), 'rejected')
    """
    key, level = checks.key(key), checks.level(level)
    dependent = checks.flag(dependent, "dependent")
    chosen = plan(predictions, targets, dependent=dependent)
    if inputs is not None:
        check_inputs(chosen)
    return carried_out(key, chosen, targets, inputs=inputs, level=level, dependent=dependent)


def carried_out(
    key: Key,
    chosen: Plan,
    targets: ArrayLike | None,
    *,
    inputs: ArrayLike | None = None,
    level: float,
    dependent: bool,
) -> CheckReport:
    """The tests and estimates of a plan. Inside of jit and vmap estimates are left out."""
    null = DependentWild() if dependent else HadamardWild()
    traced = any(
        isinstance(leaf, Tracer) for leaf in jax.tree.leaves((key, chosen.predictions, targets))
    )
    asked = Asked(chosen.predictions, targets, null, level, inputs)
    questions = chosen.tests if traced else (*chosen.tests, *chosen.estimates)
    keys = jax.random.split(key, len(questions))
    answers = [question.ask(one, asked) for one, question in zip(keys, questions, strict=True)]
    k, n = len(chosen.tests), _count(chosen.predictions, targets)
    gain: Any = None
    # of classes it costs less than the tests, of densities a third of a minute for the first
    if chosen.kind == CLASS_PROBABILITIES and chosen.repair and not traced and n >= LEAST_PAIRS:
        own_key = jax.random.fold_in(key, len(questions))
        gain = repair(own_key, asked.predictions, asked.targets, level=level)
    return CheckReport.of(
        kind=chosen.kind,
        why=chosen.why,
        names=tuple(question.name for question in chosen.tests),
        tests=tuple(answers[:k]),
        estimates=tuple(answers[k:]),
        sight=tuple(question.in_words() for question in questions),
        repair=chosen.repair,
        unit=chosen.unit,
        gain=gain,
        n=n,
        level=level,
        dependent=dependent,
    )


def _count(predictions: PredictionsLike, targets: ArrayLike | None) -> int:
    """The number of observations."""
    if targets is None:
        name = "thetas" if hasattr(predictions, "thetas") else "at_targets"
        return int(np.shape(getattr(predictions, name))[0])
    return int(np.shape(targets)[0])
