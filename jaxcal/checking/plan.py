"""Which tests fit which predictions, and why."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxcal import checks
from jaxcal.checking import questions
from jaxcal.checking.questions import Question
from jaxcal.models import Draws, LogDensities, Scores, Unnormalized
from jaxcal.models.families import Classes, distribution_of
from jaxcal.sbi import ScoredPairs
from jaxcal.scores import is_distribution
from jaxcal.typing import ArrayLike, PredictionsLike


class Plan(NamedTuple):
    """A kind of predictions in words, the tests that fit it, why, and the predictions they take."""

    kind: str
    why: str
    tests: tuple[Question, ...]
    estimates: tuple[Question, ...]
    predictions: PredictionsLike


def plan(predictions: PredictionsLike, targets: ArrayLike, *, dependent: bool) -> Plan:
    """The tests that fit the predictions. TypeError where nothing does; ValueError where none of
    those that do allows for dependence and it is asked for."""
    checks.of_jax(predictions)
    chosen = _of_models(predictions) or _of_arrays(predictions, targets)
    return _for_series(chosen) if dependent else chosen


def _of_models(predictions: PredictionsLike) -> Plan | None:
    """Of predictions that say by their class what they are."""
    if isinstance(draws := getattr(predictions, "draws", None), Draws):
        predictions = draws  # what MCMC returns
    match predictions:
        case ScoredPairs():
            return Plan(
                "a posterior on simulated pairs",
                "posteriors are asked whether they are calibrated, and whether they are right "
                "given x; the p-values of all questions are corrected together inside",
                (questions.POSTERIOR,),
                (),
                predictions,
            )
        case Unnormalized():
            return Plan(
                "log densities up to their constants",
                "calibration_test needs no constants and no draws, and in a power study saw more "
                "faults than the scores alone",
                (questions.MOMENTS,),
                (),
                predictions,
            )
        case Scores():
            return Plan(
                "scores alone",
                "kccsd_test is the one that needs nothing but scores; log densities, if there are "
                "any, would let calibration_test see spread as well",
                (questions.SCORES,),
                (),
                predictions,
            )
        case LogDensities():
            return Plan(
                "log densities at targets and draws",
                "they give the ranks of targets among draws, which is coverage",
                (questions.COVERAGE,),
                (),
                predictions,
            )
        case Draws():
            return _draws(predictions)
    return None


def _of_arrays(predictions: PredictionsLike, targets: ArrayLike) -> Plan:
    """The plan for distributions and arrays: the type of the targets tells classes from draws."""
    observed = checks.array(targets, "targets")
    whole = any(jnp.issubdtype(observed.dtype, kind) for kind in (jnp.integer, jnp.bool_))
    if is_distribution(predictions):
        closed = distribution_of(predictions)
        if isinstance(closed, Classes):
            return _classes(closed.probabilities)
        tests = (questions.MEANS,) if whole else (questions.MOMENTS, questions.MEANS)
        return Plan(
            "distributions",
            "skce_test compares targets with the distributions' own averages"
            + (
                ""
                if whole
                else "; calibration_test sees spread and shape, where skce_test sees little"
            ),
            tests,
            (),
            predictions,
        )
    array = checks.floats(predictions, "predictions")
    if whole:
        return _classes(predictions)
    if array.ndim == observed.ndim + 1:
        return _draws(Draws(array))
    raise TypeError(
        "predictions: wanted log densities (jaxcal.Unnormalized), jaxcal.Scores, a numpyro "
        "distribution, class probabilities with integer targets, or draws with one axis more than "
        f"the targets, got {checks.say(predictions)} with targets {checks.say(targets)}"
    )


def _draws(predictions: Draws) -> Plan:
    return Plan(
        "draws",
        "skce_test takes averages over draws for those over predictions; ranks of the targets "
        "among the draws add the spread of each coordinate, at an exact level",
        (questions.MEANS, questions.RANKS),
        (),
        predictions,
    )


def _classes(probabilities: Any) -> Plan:
    rows = checks.probabilities(probabilities, binary=True)
    if rows.shape[1] == 2:
        # two probabilities of sum one are one; inside of jit rows of another sum get here
        whole = jnp.abs(jnp.sum(rows, axis=1) - 1) < 1e-3
        return Plan(
            "probabilities of one of two classes",
            "distance_from_calibration tests two classes and says how far the probabilities are "
            "from calibrated ones",
            (questions.DISTANCE,),
            (),
            jnp.where(whole, rows[:, 1], jnp.nan),
        )
    return Plan(
        "class probabilities",
        "skce_test asks about the probabilities of all classes at once, not of the largest alone; "
        "calibration_error says how large the error of the largest is",
        (questions.CLASSES,),
        (questions.ERROR, questions.RELIABILITY),
        rows,
    )


def _for_series(chosen: Plan) -> Plan:
    """The plan for dependent observations: without tests and estimates that assume independence."""
    if chosen.tests == (questions.DISTANCE,):
        chosen = chosen._replace(
            tests=(questions.CLASSES,), why="skce_test allows for dependence between observations"
        )
    able = (questions.MOMENTS, questions.SCORES, questions.MEANS, questions.CLASSES)
    kept = tuple(question for question in chosen.tests if question in able)
    if not kept:
        raise ValueError(f"dependent: no test of {chosen.kind} allows for dependence")
    left_out = [one.name for one in (*chosen.tests, *chosen.estimates) if one not in kept]
    said = f"; {' and '.join(left_out)} left out, as they take observations as independent"
    return chosen._replace(tests=kept, estimates=(), why=chosen.why + (said if left_out else ""))
