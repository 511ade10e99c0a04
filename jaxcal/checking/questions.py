"""What can be asked of predictions: the function that answers, and what it can and cannot see."""

from collections.abc import Callable
from typing import Any, NamedTuple

from jaxcal.calibration import kccsd_test
from jaxcal.coverage import coverage
from jaxcal.dce import distance_from_calibration
from jaxcal.measures import confidences, reliability
from jaxcal.moment_tests import calibration_test
from jaxcal.nulls import DependentWild, Null
from jaxcal.results import Result
from jaxcal.sbi import check_draws, check_posterior
from jaxcal.skce import skce_test
from jaxcal.skce.observations import observations
from jaxcal.skce.specification import default_null
from jaxcal.squared_ce import Bins, calibration_error
from jaxcal.typing import Key


class Asked(NamedTuple):
    """Of whom a question is asked: predictions of any kind, their targets, and how to judge."""

    predictions: Any
    targets: Any
    null: Null
    level: float


class Question(NamedTuple):
    """A test or an estimate by name, its call, and one sentence on its sight."""

    name: str
    ask: Callable[[Key, Asked], Result]
    sight: str

    def in_words(self) -> str:
        """The sentence that goes with the name."""
        return f"{self.name}: sees {self.sight}."


def _calibration_test(key: Key, asked: Asked) -> Result:
    return calibration_test(
        key, asked.predictions, asked.targets, null=asked.null, level=asked.level
    )


def _kccsd_test(key: Key, asked: Asked) -> Result:
    return kccsd_test(key, asked.predictions, asked.targets, null=asked.null, level=asked.level)


def _skce_test(key: Key, asked: Asked) -> Result:
    null = asked.null
    if not isinstance(null, DependentWild):
        null = default_null(*observations(asked.predictions, asked.targets), null)
    return skce_test(key, asked.predictions, asked.targets, null=null, level=asked.level)


def _distance(key: Key, asked: Asked) -> Result:
    return distance_from_calibration(key, asked.predictions, asked.targets, level=asked.level)


def _calibration_error(key: Key, asked: Asked) -> Result:
    return calibration_error(
        key, asked.predictions, asked.targets, estimators=[Bins()], level=asked.level
    )


def _reliability(key: Key, asked: Asked) -> Result:
    return reliability(*confidences(asked.predictions, asked.targets))


def _ranks(key: Key, asked: Asked) -> Result:
    return check_draws(key, asked.predictions.samples, asked.targets, level=asked.level)


def _coverage(key: Key, asked: Asked) -> Result:
    return coverage(asked.predictions, level=asked.level)


def _posterior(key: Key, asked: Asked) -> Result:
    return check_posterior(key, asked.predictions, null=asked.null, level=asked.level)


MOMENTS = Question(
    "calibration_test",
    _calibration_test,
    "shift, spread, correlation, weights of modes and smooth errors of shape; hardly errors whose "
    "sign changes from one prediction to another, nor fine structure inside of a mode",
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
    _distance,
    "errors that change smoothly with the predicted probability, and how far the predictions are "
    "from calibrated ones; hardly errors that change sign between probabilities nearly alike",
)
RELIABILITY = Question(
    "reliability",
    _reliability,
    "the same in bins, for the eye; no verdict",
)
ERROR = Question(
    "calibration_error",
    _calibration_error,
    "how often the most probable class is right, against what its probability says; nothing about "
    "the other classes, and no verdict",
)
RANKS = Question(
    "ranks among draws",
    _ranks,
    "shift and spread of each coordinate by itself; no correlation, and nothing that cancels over "
    "predictions",
)
COVERAGE = Question(
    "coverage",
    _coverage,
    "whether highest-density regions hold their share of the targets; hardly a shift, and nothing "
    "that cancels over predictions",
)
POSTERIOR = Question(
    "sbi.check_posterior",
    _posterior,
    "what its report lists in the section 'what this can see'",
)
