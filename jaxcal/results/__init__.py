"""Results of tests and estimates: pytrees of arrays that print as a short report."""

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
from jaxcal.results.report import confidence, count_verdicts, in_words, too_few, too_few_draws
from jaxcal.results.result import JudgedResult, Result, Sentences, TestResult, load
from jaxcal.results.saved import in_one_order, recorded, replacing, rows_in_one_order
