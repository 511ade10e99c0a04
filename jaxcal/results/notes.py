"""What was noticed about data and fit: on a result a dict of code -> number, here the sentences.

A code stands in brackets at the end of its sentence, and `warnings.md` says what to do about it.
Whoever notices something adds one entry to the dict; the table has its sentence, how numbers of a
batch go together, and, where a result has no verdict because of it, why.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from jaxcal.results.parts import FEW

Notes: TypeAlias = dict[str, Array]  # counts, shares or flags, of shape []


class Note(NamedTuple):
    """``sentence``: of the warning, with the number in braces.
    ``above``: the note holds where its number is larger. ``together``: the number of a batch."""

    sentence: str
    above: float = 0
    together: Callable[[np.ndarray], Any] = np.sum


def _largest(values: np.ndarray) -> float:
    return float(np.max(values, initial=0.0))


TABLE = {
    "nonfinite-targets": Note(
        "{} target values are NaN or infinite, so the p-value is NaN: remove or repair those "
        "observations"
    ),
    "nonfinite-scores": Note(
        "{} score values at the targets are NaN or infinite, so the p-value is NaN: does the "
        "density reach all targets, and is it differentiable?"
    ),
    "nonfinite-predictions": Note(
        "{} values that describe the predictions are NaN or infinite, so the p-value is NaN: look "
        "for parameters that are not finite, and where scores are compared for base points at "
        "which a density is 0"
    ),
    "identical-predictions": Note(
        "all predictions compared are identical, so this asks only whether the targets follow that "
        "one distribution"
    ),
    "identical-targets": Note(
        "all targets compared are identical: their spread sets the scale, so the result says "
        "nothing"
    ),
    "constant-coordinates": Note("{} target coordinates have no spread and were not rescaled"),
    "clamped-scales": Note(
        "the scale of {} predictions, in which they are brought into units of their own, was not "
        "to be had from them and was clamped: the mean stays 0 under calibration, power may be lost"
    ),
    "centres-astray": Note(
        "{} predictions have their centre away from a summit of their density, which the steps did "
        "not reach: the mean stays 0 under calibration, power may be lost: take more steps, or "
        "base points nearer to the predictions"
    ),
    "overflow": Note(
        "the statistic or its null is not finite although everything that came in is, so the "
        "p-value is NaN: an overflow (rescale, or use float64), or blocks without spread"
    ),
    "far-targets": Note(
        "the targets reach {:.2g} times as far as their middle half: a few set the scale of all "
        "(outliers, or a placeholder for what is missing?)",
        together=_largest,
    ),
    "unsettled-chains": Note(
        "the chains behind the draws of {:.0%} of the predictions have not settled (R-hat, "
        "divergences): the test can reject calibrated models; make more steps, or use kccsd_test",
        above=FEW,
        together=_largest,
    ),
    "one-observation-decides": Note(
        "one observation carries {:.0%} of the absolute contributions, and the result hangs on it: "
        "an outlier, or heavy tails",
        above=0.25,
        together=_largest,
    ),
    "repeated-rows": Note(
        "{} observations repeat another exactly, in target and prediction: they are not "
        "independent, and p-values are too small: keep one of each"
    ),
    "impossible-targets": Note(
        "{} targets lie where their own prediction has density 0, which calibration excludes"
    ),
    "density-with-edge": Note(
        "a density is 0 somewhere: parts that are right only where densities reach everywhere are "
        "left out (Balance and Exchangeable need no gradient and no transform)"
    ),
    "abrupt-edge": Note(
        "a density ends where it is not 0: the Stein identity fails there, and the p-value cannot "
        "be trusted: take calibration_test or SKCE, or transform the targets to the whole line"
    ),
    "rough-density": Note(
        "a density is not twice differentiable (a network of ReLU?): curvature is left out"
    ),
    "rare-targets": Note(
        "the targets that decide the statistic are rare, and the predictions expect fewer than ten "
        "of them: where few come, residuals share one sign, and a null of signs or limits rejects "
        "calibrated models: use null=jaxcal.nulls.Redrawn()"
    ),
    "dependent-observations": Note(
        "observations depend on each other over so long that fewer than ten independent stretches "
        "are left: the level is not assured, and little can be found"
    ),
    "season": Note(
        "errors return after {} observations, which signs that stay the same for a while do not "
        "imitate: calibrated models are rejected too often",
        together=lambda lags: ", ".join(str(lag) for lag in np.unique(lags) if lag > 0),
    ),
    "collinear-features": Note(
        "the features at the test locations are nearly collinear, and the test rejects too often: "
        "take fewer locations, or ones farther apart"
    ),
    "many-locations": Note(
        "there are few observations for so many test locations, and the level may not be kept: "
        "take fewer locations, or the null Signs()"
    ),
    "reversed-sign": Note(
        "scores point away from the middle of the targets: s (y - median) has a positive mean over "
        "the targets, which is negative under every right density: is the sign of the log density "
        "reversed, as that of an energy or a loss?"
    ),
}

# why there is no verdict, the first that holds
REASONS = {
    "nonfinite-targets": "target values are NaN or infinite",
    "abrupt-edge": "a density ends where it is not 0 (the identity that the test rests on fails "
    "there: take calibration_test, or transform the targets to the whole line)",
    "nonfinite-scores": "score values at the targets are NaN or infinite",
    "nonfinite-predictions": "values that describe the predictions are NaN or infinite",
    "identical-targets": "all targets are identical and their spread sets the scale",
    "silent": "no part of the statistic has anything to say (densities that are flat, or that lack "
    "what it asks for: see the warnings)",
    "overflow": "the statistic or its null is not finite",
    "far-targets": "a few targets lie so far out that the others lose their digits",
    "rare-targets": "targets that the predictions call rare decide the statistic, and fewer than "
    "ten of them are expected (the null needs more of both signs)",
    "season": "season of {} (errors depend on those so many before, which the null does not allow "
    "for)",
}
NOT_FINITE = ("nonfinite-targets", "nonfinite-scores", "nonfinite-predictions")


def sentences(notes: Notes) -> list[tuple[str, bool]]:
    """Every sentence about data and fit, and whether it holds somewhere in a batch."""
    said = []
    for code, (sentence, above, together) in TABLE.items():
        if code in notes:
            numbers = np.asarray(notes[code])
            text = sentence.format(together(numbers))
            said.append((f"{text} [{code}]", bool(np.any(numbers > above))))
    return said


def all_finite(notes: Notes) -> Bool[Array, ""]:
    """Whether all that came in is finite: if not, all numbers of a result are NaN."""
    none = jnp.zeros((), int)
    return sum((notes.get(code, none) for code in NOT_FINITE), none) == 0
