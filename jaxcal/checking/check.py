"""`jaxcal.check`: select tests, run them, report."""

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

LEAST_PAIRS = 10  # least number of observations for a repair with 5 folds


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
    """Check predictions by suitable tests; report the reasons, the verdict and its limits.

    The tests depend on the kind of predictions. Log densities: `calibration_test`. Scores:
    `kccsd_test`. Distributions: `calibration_test` and `skce_test`. Class probabilities:
    `skce_test`, with the size of the `calibration_error`. Probabilities of one of two classes:
    `distance_from_calibration`. Draws: `skce_test` and ranks. Simulated pairs of a posterior:
    `sbi.check_posterior`. P-values of several tests are adjusted by Holm's method: a calibrated
    model is rejected with probability at most ``level``.

    Args:
        key: Random key: typed, legacy or an integer.
        predictions: `Unnormalized`, `Scores`, `Draws`, `LogDensities`, a numpyro distribution with
            batch shape [n], class probabilities [n, m], probabilities [n] of class 1, draws
            [n, m, ...] as an array, or what `jaxcal.sbi.score_pairs` returns.
        targets: Observed targets, [n, ...]; integers 0, .., m - 1 for classes. None for
            `LogDensities` and scored pairs, which include their targets.
        inputs: Inputs of the model, or other numbers with which errors may vary, [n] or [n, q];
            for `calibration_test` only.
        level: Level of the verdict.
        dependent: Whether observations are in temporal order and may be dependent.

    Returns:
        `CheckReport`, which prints a report; ``to_html(path)`` writes it with figures. The last
        line is the gain by `jaxcal.repair`, for three or more classes, or the call that computes
        it.

    Raises:
        ValueError: Shapes or values are wrong; the message names the argument.
        TypeError: No test accepts such predictions.

    Cost: that of one or two tests.

    Source: Holm (1979) for the correction; each test names its own source.

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
    """Run the tests of a plan and, outside of jit and vmap, its estimates."""
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
    # for classes a repair costs less than the tests; for densities compiling it takes 20 s
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
    """Return the number of observations."""
    if targets is None:
        name = "thetas" if hasattr(predictions, "thetas") else "at_targets"
        return int(np.shape(getattr(predictions, name))[0])
    return int(np.shape(targets)[0])
