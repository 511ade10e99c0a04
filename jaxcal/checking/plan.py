"""Choose the tests and estimates for each kind of predictions, and say why."""

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from jaxcal.coverage import coverage
from jaxcal.dce import distance_from_calibration
from jaxcal.divergences import Vectors
from jaxcal.entries.calibration import LEAST_DRAWS, calibration_test
from jaxcal.measures import confidences, reliability
from jaxcal.nulls import DependentWild, Null
from jaxcal.read import Draws, LogDensities, Scores, Unnormalized, checks, convert
from jaxcal.read.families import Classes, distribution_of
from jaxcal.read.observations import observations
from jaxcal.read.scores import is_distribution, states_an_end
from jaxcal.repairing.certificate import ENERGY, NATS
from jaxcal.results import Result
from jaxcal.sbi import check_posterior
from jaxcal.sbi.pairs import ScoredPairs
from jaxcal.skce import skce_test
from jaxcal.skce.calibration import default_null
from jaxcal.squared_ce import Bins, calibration_error
from jaxcal.stein.calibration import kccsd_test
from jaxcal.typing import ArrayLike, Key, PredictionsLike

CLASS_PROBABILITIES = "class probabilities"
REPAIR = "jaxcal.repair(key, predictions, targets)"


class Asked(NamedTuple):
    """Arguments of every test: predictions, targets, null, level and inputs."""

    predictions: Any
    targets: Any
    null: Null
    level: float
    inputs: Any = None


class Question(NamedTuple):
    """A test or estimate: ``name``, call ``ask``, and a text ``sight`` on what it can detect."""

    name: str
    ask: Callable[[Key, Asked], Result]
    sight: str

    def in_words(self) -> str:
        return f"{self.name}: sees {self.sight}."


def _skce_test(key: Key, asked: Asked) -> Result:
    null = asked.null
    if not isinstance(null, DependentWild):
        null = default_null(*observations(asked.predictions, asked.targets), null)
    return skce_test(key, asked.predictions, asked.targets, null=null, level=asked.level)


def _kccsd_test(key: Key, asked: Asked, **options: Any) -> Result:
    shared = {"null": asked.null, "level": asked.level}
    return kccsd_test(key, asked.predictions, asked.targets, **shared, **options)


MOMENTS = Question(
    "calibration_test",
    lambda key, asked: calibration_test(
        key,
        asked.predictions,
        asked.targets,
        inputs=asked.inputs,
        null=asked.null,
        level=asked.level,
    ),
    "shift, spread, correlation, tails and weights of modes, and what of these grows with the "
    "centre or the width of a prediction or with an input; hardly errors of a few predictions "
    "alone, nor fine structure inside of a mode",
)
SCORES = Question(
    "kccsd_test",
    _kccsd_test,
    "shifts, and errors of shape that move the scores; hardly an error of spread, and no wrong "
    "weights of modes that lie apart",
)
MEANS = Question(
    "skce_test",
    _skce_test,
    "shifts and wrong correlations, and errors that change smoothly from one prediction to "
    "another; hardly spread where predictions are much narrower than the targets are spread out",
)
CLASSES = Question(
    "skce_test",
    _skce_test,
    "errors of any class that change smoothly with the predicted probabilities; hardly errors of "
    "few predictions, or that change sign between predictions that are nearly alike",
)
DISTANCE = Question(
    "distance_from_calibration",
    lambda key, asked: distance_from_calibration(
        key, asked.predictions, asked.targets, level=asked.level
    ),
    "errors that change smoothly with the predicted probability, and how far the predictions are "
    "from calibrated ones; hardly errors that change sign between probabilities nearly alike",
)
RELIABILITY = Question(
    "reliability",
    lambda key, asked: reliability(*confidences(asked.predictions, asked.targets)),
    "the same in bins, for the eye; no verdict",
)
ERROR = Question(
    "calibration_error",
    lambda key, asked: calibration_error(
        key, asked.predictions, asked.targets, estimators=[Bins()], level=asked.level
    ),
    "how often the most probable class is right, against what its probability says; nothing about "
    "the other classes, and no verdict",
)
COVERAGE = Question(
    "coverage",
    lambda key, asked: coverage(asked.predictions, level=asked.level),
    "whether highest-density regions hold their share of the targets; hardly a shift, and nothing "
    "that cancels over predictions",
)
POSTERIOR = Question(
    "sbi.check_posterior",
    lambda key, asked: check_posterior(key, asked.predictions, null=asked.null, level=asked.level),
    "what its report lists in the section 'what this can see'",
)


class Plan(NamedTuple):
    """The tests and estimates for ``predictions``, and, as texts: their ``kind``, reasons ``why``,
    the Python call of a ``repair`` or "", and the ``unit`` of the gain by this repair."""

    kind: str
    why: str
    tests: tuple[Question, ...]
    predictions: PredictionsLike
    estimates: tuple[Question, ...] = ()
    repair: str = ""
    unit: str = NATS


def plan(predictions: PredictionsLike, targets: ArrayLike, *, dependent: bool) -> Plan:
    """Return the plan for predictions. TypeError if no test accepts them, or if targets are passed
    for `LogDensities` or scored pairs; ValueError if ``dependent`` and no test allows for it."""
    checks.of_jax(predictions)
    if targets is not None and isinstance(predictions, (ScoredPairs, LogDensities)):
        raise TypeError("targets: wanted None: scored pairs and LogDensities include their targets")
    chosen = _of_models(predictions) or _of_arrays(predictions, targets)
    return _for_series(chosen) if dependent else chosen


def _of_models(predictions: PredictionsLike) -> Plan | None:
    if isinstance(draws := getattr(predictions, "draws", None), Draws):
        return _draws(draws, "predictions.draws")  # of the result of mcmc_draws
    match predictions:
        case ScoredPairs():
            return Plan(
                "a posterior on simulated pairs",
                "posteriors are asked whether they are calibrated, and whether they are right "
                "given x; the p-values of all questions are corrected together inside",
                (POSTERIOR,),
                predictions,
                repair="jaxcal.sbi.repair_posterior(key, posterior, thetas, xs)",
            )
        case Unnormalized():
            return Plan(
                "log densities up to their constants",
                "calibration_test needs no constants and no draws, and in a power study saw more "
                "faults than the scores alone",
                (MOMENTS,),
                predictions,
                repair=REPAIR,
            )
        case Scores():
            return Plan(
                "scores alone",
                "kccsd_test is the one that needs nothing but scores; log densities, if there are "
                "any, would let calibration_test see spread as well",
                (SCORES,),
                predictions,
            )
        case LogDensities():
            return Plan(
                "log densities at targets and draws",
                "they give the ranks of targets among draws, which is coverage",
                (COVERAGE,),
                predictions,
            )
        case Draws():
            return _draws(predictions)
    return None


def _of_arrays(predictions: PredictionsLike, targets: ArrayLike) -> Plan:
    """Return the plan for a distribution or array. An array holds class probabilities if targets
    are integers, else draws. TypeError if targets are floats and all rows of the array sum to 1."""
    observed = convert.array(targets, "targets")
    integers = any(jnp.issubdtype(observed.dtype, kind) for kind in (jnp.integer, jnp.bool_))
    if is_distribution(predictions):
        closed = distribution_of(predictions)
        if isinstance(closed, Classes):
            return _of_classes(predictions, closed.probabilities)
        return Plan(
            "distributions",
            "skce_test compares targets with the distributions' own averages; calibration_test "
            "sees spread and shape, where skce_test sees little",
            (MOMENTS, MEANS),
            predictions,
            repair="" if states_an_end(predictions) else REPAIR,
        )
    array = convert.floats(predictions, "predictions")
    if integers:
        return _classes(predictions)
    if array.ndim == observed.ndim + 1:
        if array.ndim == 2 and array.shape[1] > 1 and not isinstance(array, Tracer):
            rows = np.asarray(array)
            if np.all(rows >= 0) and np.all(np.abs(np.sum(rows, axis=1) - 1) < 1e-3):
                checks.labels(targets, *rows.shape)  # raises: these are classes as floats
        return _draws(Draws(array), "jaxcal.Draws(predictions)")
    raise TypeError(
        "predictions: wanted log densities (jaxcal.Unnormalized), jaxcal.Scores, a numpyro "
        "distribution, class probabilities with integer targets, or draws with one axis more than "
        f"the targets, got {convert.say(predictions)} with targets {convert.say(targets)}"
    )


def _draws(predictions: Draws, called: str = "predictions") -> Plan:
    """Return the plan for draws that users pass as the expression ``called``."""
    samples = convert.floats(predictions.samples, "Draws.samples")
    predictions, m = Draws(samples, predictions.rhat), samples.shape[1:2]
    few = m >= (LEAST_DRAWS,) and predictions.thinned()[0].samples.shape[1] < LEAST_DRAWS
    return Plan(
        "draws",
        "skce_test takes averages over draws for those over predictions; calibration_test ranks "
        "the targets among the draws, and sees spread and shape, where skce_test sees little"
        + " (left out: too few draws are independent)"
        * few,
        (MEANS,) if few else (MOMENTS, MEANS),
        predictions,
        repair=REPAIR.replace("predictions", called),
        unit=ENERGY,
    )


def _of_classes(predictions: Any, probabilities: Array) -> Plan:
    """Return the plan for a distribution of classes. Its repair takes its ``probs``, if they have
    one row per observation, and else is left out."""
    shape = np.shape(getattr(predictions, "probs", ()))
    repair = REPAIR.replace("predictions", "predictions.probs")
    return _classes(probabilities)._replace(
        repair=repair if shape[:1] == probabilities.shape[:1] else "",
        unit=ENERGY if len(shape) == 1 else NATS,
    )


def _classes(probabilities: Any) -> Plan:
    rows = checks.probabilities(probabilities, binary=True)
    if rows.shape[1] == 2:
        # only the second column is used; NaN where the two do not sum to 1, as jit cannot raise
        is_sum_one = jnp.abs(jnp.sum(rows, axis=1) - 1) < 1e-3
        return Plan(
            "probabilities of one of two classes",
            "distance_from_calibration tests two classes and says how far the probabilities are "
            "from calibrated ones",
            (DISTANCE,),
            jnp.where(is_sum_one, rows[:, 1], jnp.nan),
            repair=REPAIR,
            unit=ENERGY if convert.floats(probabilities, "predictions").ndim == 1 else NATS,
        )
    return Plan(
        CLASS_PROBABILITIES,
        "skce_test asks about the probabilities of all classes at once, not of the largest alone; "
        "calibration_error says how large the error of the largest is",
        (CLASSES,),
        rows,
        (ERROR, RELIABILITY),
        REPAIR,
    )


def check_inputs(chosen: Plan) -> None:
    """Raise ValueError if no test of the plan accepts inputs."""
    if MOMENTS not in chosen.tests:
        raise ValueError(
            f"inputs: {' and '.join(question.name for question in chosen.tests)} of {chosen.kind} "
            f"takes no inputs: calibration_test of log densities or distributions does"
        )


def by_features(chosen: Plan, features: ArrayLike) -> Plan:
    """Return a plan with only `kccsd_test`, which compares predictions by ``features`` [n, q]."""
    by = Vectors(features)
    return chosen._replace(tests=(SCORES._replace(ask=partial(_kccsd_test, divergence=by)),))


def _for_series(chosen: Plan) -> Plan:
    """Return the plan with only tests that allow for dependence; ValueError if there are none."""
    if chosen.tests == (DISTANCE,):
        chosen = chosen._replace(
            tests=(CLASSES,), why="skce_test allows for dependence between observations"
        )
    able = (MOMENTS, SCORES, MEANS, CLASSES)
    kept = tuple(question for question in chosen.tests if question in able)
    if not kept:
        raise ValueError(f"dependent: no test of {chosen.kind} allows for dependence")
    left_out = [one.name for one in (*chosen.tests, *chosen.estimates) if one not in kept]
    said = f"; {' and '.join(left_out)} left out, as they take observations as independent"
    # a repair assumes independent observations
    return chosen._replace(
        tests=kept, estimates=(), repair="", why=chosen.why + (said if left_out else "")
    )
