"""Notes of a result: a dict from warning codes to numbers, and the sentence of each code.

Code that detects a problem adds one entry to the dict. `TABLE` defines the sentence of each code
and how the numbers of a batch are combined; `REASONS` has the codes that prevent a verdict. A
printed sentence ends with its code in brackets; `warnings.md` explains the codes.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from importlib import resources
from typing import Any, NamedTuple, TypeAlias

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool

from jaxcal.numerics import CORRELATED, apart
from jaxcal.results.parts import FEW

Notes: TypeAlias = dict[str, Array]  # counts, shares or flags, of shape []


LOST = 1.0  # no verdict if the rounding error is a larger multiple of the null's scale h(i, i) / n


class Note(NamedTuple):
    """Warning of one code. `counted` puts a number into ``sentence``. The warning applies if the
    number is larger than ``above``. ``together`` combines the numbers of a batch."""

    sentence: str
    above: float = 0
    together: Callable[[np.ndarray], Any] = np.sum


def counted(sentence: str, number: Any, *others: Any) -> str:
    """Return ``sentence`` with ``number`` and ``others`` in place of ``{}`` and, depending on
    ``number``, one of ``{singular|plural}``."""
    one = "," not in number if isinstance(number, str) else number == 1
    text = re.sub(r"\{([^|}]*)\|([^|}]*)\}", r"\1" if one else r"\2", sentence)
    return text.format(number, *others)


def _largest(values: np.ndarray) -> float:
    return float(np.max(values, initial=0.0))


def _named(values: np.ndarray) -> str:
    return ", ".join(str(value) for value in np.unique(values))


TABLE = {
    "nonfinite-targets": Note(
        "{} target {value is|values are} NaN or infinite, so the p-value is NaN: remove or repair "
        "{that observation|those observations}"
    ),
    "nonfinite-scores": Note(
        "{} score {value|values} at the targets {is|are} NaN or infinite, so the p-value is NaN: "
        "does the density reach all targets, and is it differentiable?"
    ),
    "nonfinite-predictions": Note(
        "{} {value that describes|values that describe} the predictions {is|are} NaN or infinite, "
        "so the result is NaN: look for parameters that are not finite, and where scores are "
        "compared for base points at which a density is 0"
    ),
    "identical-predictions": Note(
        "all predictions compared are identical, so this asks only whether the targets follow that "
        "one distribution"
    ),
    "identical-targets": Note(
        "all targets compared are identical: their spread sets the scale, so the result says "
        "nothing"
    ),
    "constant-coordinates": Note(
        "{} target {coordinate has|coordinates have} no spread and {was|were} not rescaled"
    ),
    "constant-inputs": Note(
        "{} {column|columns} of inputs {is|are} constant, or {varies|vary} by less than the float "
        "type resolves, and {is|are} not used: of large numbers, such as dates, subtract the mean"
    ),
    "clamped-scales": Note(
        "the scale of {} {prediction|predictions}, by which {its|their} targets are whitened or "
        "scores preconditioned, could not be estimated and was clamped: the mean stays 0 under "
        "calibration, power may be lost"
    ),
    "centres-astray": Note(
        "the steps to a mode of the density did not converge for {} {prediction|predictions}: the "
        "mean stays 0 under calibration, power may be lost: take more steps, or base points nearer "
        "to the predictions"
    ),
    "overflow": Note(
        "the statistic or its null is not finite although all inputs are, so the p-value is NaN: "
        "an overflow (rescale, or use float64), or blocks without spread"
    ),
    "rounding": Note(
        "rounding, or what the approximation leaves out, may have moved the estimate by up to "
        "{:.0%}: take a larger ridge or rank, or float64",
        above=0.1,
        together=_largest,
    ),
    "ridge-below-rounding": Note(
        "CKCE is not finite although the predictions are: the ridge is below rounding, take a "
        "larger one or float64"
    ),
    "far-targets": Note(
        "the target range is {:.2g} times the interquartile range: a few targets set the scale of "
        "all (outliers, or a placeholder for missing values?)",
        together=_largest,
    ),
    "unsettled-chains": Note(
        "the chains behind the draws of {:.0%} of the predictions have not settled (R-hat, "
        "divergences): the test can reject calibrated models; make more steps, or use kccsd_test",
        above=FEW,
        together=_largest,
    ),
    "small-residuals": Note(
        "predictions are so precise beside the bandwidth of the target kernel that rounding may "
        "decide: use skce_test with whiten=jaxcal.whitening.Moments(), which takes each target in "
        "units of its own prediction, or float64",
        above=LOST,
    ),
    "correlated-draws": Note(
        "successive draws of a prediction have correlation {:.2g}, as those of a chain have, so "
        "only some of them are used (under jit all): pass more steps, thinned to independent draws",
        above=CORRELATED,
        together=_largest,
    ),
    "dependent-rows": Note(
        "what neighbouring rows contribute has correlation {:.2g}: if rows are in the order of "
        "time or place, levels and intervals are not assured: tests with "
        "null=jaxcal.nulls.DependentWild() allow for it; if rows are sorted by targets, this is no "
        "sign of dependence",
        above=0.25,
        together=_largest,
    ),
    "one-observation-decides": Note(
        "one observation carries {:.0%} of the absolute contributions, and the result depends "
        "mainly on it: an outlier, or heavy tails",
        above=0.25,
        together=_largest,
    ),
    "repeated-rows": Note(
        "{} {observation repeats|observations repeat} another exactly, in target and prediction, "
        "or in a target that several predictions share: they are not independent, p-values are too "
        "small and intervals too narrow: keep one of each"
    ),
    "impossible-targets": Note(
        "{} {target lies where its|targets lie where their} own prediction has density 0, which "
        "calibration excludes"
    ),
    "improbable-targets": Note(
        "{} {target lies|targets lie} so far in the tail of {its|their} own prediction that, if "
        "all predictions are right, the probability of any such target is 1e-6"
    ),
    "density-with-edge": Note(
        "a density is 0 somewhere: moments that need densities without edges, such as scores, are "
        "left out"
    ),
    "endless-densities": Note(
        "{} {density falls|densities fall} so slowly far out that {its|their} integral is "
        "infinite: {it|they} cannot be normalized: is a sign reversed, does a term or an edge lack?"
    ),
    "abrupt-edge": Note(
        "a density ends where it is not 0: the Stein identity fails there, and the p-value cannot "
        "be trusted: take calibration_test or SKCE, or transform the targets to the whole line"
    ),
    "far-points": Note(
        "{:.0%} of each rank is random, as the points drawn near the predictions rarely meet their "
        "mass: the level holds, but power is low",
        above=0.5,
        together=_largest,
    ),
    "coarse-logs": Note(
        "log densities are so large that rounding hides differences below {:.2g} (about 1 per "
        "standard deviation): ranks are rough; leave constants out, or use float64",
        above=0.05,
        together=_largest,
    ),
    "coarse-targets": Note(
        "targets are so large that the distance of neighbouring numbers of their type matters "
        "beside the claimed deviations: rounding alone may reject calibrated predictions: subtract "
        "a common number from targets and predictions before they are rounded, or use float64"
    ),
    "whole-targets": Note(
        "targets are whole numbers, whose distance matters beside the claimed deviations, but "
        "densities and scores here are those of continuous targets: right predictions of counts "
        "are rejected: pass a numpyro distribution of counts or jaxcal.Draws to calibration_test, "
        "or take skce_test"
    ),
    "rough-density": Note(
        "a density is not twice differentiable (a network of ReLU?): the moment, which takes "
        "second derivatives, is left out"
    ),
    "rare-targets": Note(
        "rare targets decide the statistic, and the predictions expect fewer than ten of them: if "
        "few occur, residuals have one sign, and random signs or limits reject calibrated models: "
        "use null=jaxcal.nulls.Redrawn()"
    ),
    "dependent-observations": Note(
        "serial dependence leaves fewer than ten independent blocks of observations: the level is "
        "not assured, and power is low"
    ),
    "season": Note(
        "errors have a season of {} observations, which autocorrelated signs do not reproduce: "
        "calibrated models are rejected too often",
        together=lambda lags: _named(lags[lags > 0]),
    ),
    "collinear-features": Note(
        "the features at the test locations are nearly collinear, and the test rejects too often: "
        "take fewer locations, or ones farther apart"
    ),
    "many-locations": Note(
        "there are few observations for so many test locations, and the level may not be kept: "
        "take fewer locations or, for independent observations, null=jaxcal.nulls.Wild()"
    ),
    "reversed-sign": Note(
        "scores point away from the middle of the targets: the mean of s (y - median) is positive, "
        "but negative under every right density: is the sign of the log density reversed, as for "
        "an energy or a loss?"
    ),
    "skewed-moment": Note(
        "values of the moment are skewed, and their sum has the opposite sign: right predictions "
        "may be rejected up to five times as often as at level .01, and twice as often as at .05: "
        "use null=jaxcal.nulls.Redrawn() if predictions can be sampled"
    ),
    "few-observations": Note(
        "{} {observation is|observations are} too few for the interval, whose coverage was "
        "measured with more"
    ),
    "one-class": Note("all labels are equal: the data hold one class"),
    "unseen-classes": Note(
        "no label belongs to the {class|classes} {}: {it|they} cannot be evaluated",
        -1,
        _named,
    ),
    "uneven-weights": Note("the effective number of weighted observations is {:.0f}"),
    "bounds-contradict": Note(
        "the bounds from below and from above contradict each other by more than rounding, so "
        "there is no bracket"
    ),
    "incomplete-folds": Note(
        "the training rows of the {fold|folds} {} lack a class that other rows have; a stratified "
        "splitter avoids that",
        -1,
        _named,
    ),
    "saturated-probabilities": Note(
        "{} {observation has|observations have} a probability of exactly 0 or 1; if a softmax in "
        "float32 computed {it|them}, repeat it in float64"
    ),
    "edge-of-grid": Note(
        "the chosen hyperparameter is at an end of what was tried ({} {time|times}); values past "
        "it may lower the risk and change the estimate"
    ),
    "nonfinite-h": Note(
        "h is not finite at {} validation and test {observation|observations}; estimates leave "
        "{it|them} out, and risks are compared on the observations where every estimator is finite"
    ),
    "negative-error": Note("the mean of h is {:.3g} below 0, so the error is given as 0"),
    "error-too-large": Note(
        "the mean of h is {:.3g}, more than a squared error can be: too few observations for this "
        "estimator; the error is given as the largest that is possible"
    ),
    "low-rank": Note(
        "the low rank leaves out {:.2g} of the kernel's trace; a higher rank may change the "
        "estimate",
        above=1e-3,
    ),
}

# reasons for no verdict; the first that applies is reported
REASONS = {
    "nonfinite-targets": "target values are NaN or infinite",
    "abrupt-edge": "a density ends where it is not 0 (the identity that the test rests on fails "
    "there: take calibration_test, or transform the targets to the whole line)",
    "nonfinite-scores": "score values at the targets are NaN or infinite",
    "nonfinite-predictions": "values that describe the predictions are NaN or infinite",
    "identical-targets": "all targets are identical and their spread sets the scale",
    "silent": "the test has nothing to compare (densities that are flat, or that lack what it asks "
    "for: see the warnings)",
    "overflow": "the statistic or its null is not finite",
    "far-targets": "a few targets lie so far out that the others lose their digits",
    "coarse-logs": "log densities are so large that rounding hides differences between points",
    "small-residuals": "predictions are so precise beside the kernel that rounding may decide",
    "rare-targets": "targets that the predictions call rare decide the statistic, and fewer than "
    "ten of them are expected (the null needs more of both signs)",
    "season": "season of {} (errors depend on those so many before, which the null does not allow "
    "for)",
}
NOT_FINITE = ("nonfinite-targets", "nonfinite-scores", "nonfinite-predictions")


def sentences(notes: Mapping[str, Any]) -> list[tuple[str, bool]]:
    """Return for each code in ``notes`` its sentence, and if it applies anywhere in a batch."""
    listed = []
    for code, (sentence, above, together) in TABLE.items():
        if code in notes:
            numbers = np.asarray(notes[code])
            text = counted(sentence, together(numbers))
            listed.append((f"{text} [{code}]", bool(np.any(numbers > above))))
    return listed


def all_finite(notes: Notes) -> Bool[Array, ""]:
    """Return False if ``notes`` report targets, scores or predictions that are not finite."""
    none = jnp.zeros((), int)
    return sum((notes.get(code, none) for code in NOT_FINITE), none) == 0


CODE = re.compile(r" \[([a-z0-9]+(?:-[a-z0-9]+)*)\]$")


def codes(sentences: Iterable[str]) -> list[str]:
    """Return the distinct codes at the ends of sentences."""
    matches = [CODE.search(text) for text in sentences]
    return list(dict.fromkeys(match[1] for match in matches if match))


def pointer(sentences: Iterable[str]) -> list[str]:
    """Return a list of one line that says where codes are explained; [] if there are no codes."""
    listed = codes(sentences)
    return [f"  explained: python -m jaxcal explain {' '.join(listed)}"] if listed else []


def explanations() -> dict[str, str]:
    """Return the explanation of each code in `warnings.md`, by code."""
    text = resources.files("jaxcal.results").joinpath("warnings.md").read_text(encoding="utf-8")
    parts = re.split(r"^(#+) (.+)\n", text, flags=re.MULTILINE)[1:]
    sections = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    return {head: body.strip() for depth, head, body in sections if depth == "###"}


def memory(rows: Any, order: Any = None) -> Any:
    """Return the lag-one correlation [..] of rows [.., n, p], or 0 if it is below 3 standard
    errors. It is also 0 if a column of ``order`` [n, q], such as the targets, is sorted, since
    sorting explains the correlation. The result is a NumPy array if ``rows`` is."""
    gaps = rows - rows.mean(-2, keepdims=True)
    size = abs(gaps).max((-2, -1), keepdims=True)
    gaps = gaps / (size + (size == 0).astype(gaps.dtype))  # so that squares do not overflow
    lag = (gaps[..., 1:, :] * gaps[..., :-1, :]).sum((-2, -1)) / (gaps**2).sum((-2, -1)).clip(1)
    shown = lag > 3 / gaps.shape[-2] ** 0.5
    if order is not None:
        up, down = (order[1:] >= order[:-1]).all(0), (order[1:] <= order[:-1]).all(0)
        shown = shown & ~(up | down).any()
    return lag * shown.astype(gaps.dtype)


def of_a_chain(whose: str, lag: float) -> tuple[str, bool]:
    """Return the sentence on correlation ``lag`` of successive draws, and whether it applies."""
    text = (
        f"successive draws of {whose} have correlation {lag:.2g}, as those of a chain have, so "
        f"only one of {apart(lag)} is used (under jit all): pass more steps, thinned to "
        f"independent draws"
    )
    return f"{text} [correlated-draws]", bool(lag > CORRELATED)
