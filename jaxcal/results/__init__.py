"""Results of tests and estimates: pytrees of arrays that print as a short report."""

from jaxcal.results.base import JudgedResult, Result, Sentences, load
from jaxcal.results.notes import Notes, counted, sentences
from jaxcal.results.parts import (
    FEW,
    Coordinates,
    Estimate,
    Interval,
    Means,
    Parts,
    Table,
    largest_share,
    plain,
    tells,
)
from jaxcal.results.result import TestResult
from jaxcal.results.saved import recorded, replacing
from jaxcal.results.verdicts import (
    confidence,
    count_verdicts,
    first_that_holds,
    in_words,
    judge,
    too_few,
)

__all__ = [
    "FEW",
    "Coordinates",
    "Estimate",
    "Interval",
    "JudgedResult",
    "Means",
    "Notes",
    "Parts",
    "Result",
    "Sentences",
    "Table",
    "TestResult",
    "confidence",
    "count_verdicts",
    "counted",
    "first_that_holds",
    "in_words",
    "judge",
    "largest_share",
    "load",
    "plain",
    "recorded",
    "replacing",
    "sentences",
    "tells",
    "too_few",
]


def __dir__() -> list[str]:
    return sorted(__all__)
