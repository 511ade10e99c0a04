"""What is said of a posterior: the question, the verdict, and where it is off."""

from dataclasses import replace
from typing import Any, ClassVar

import equinox as eqx
import numpy as np
from jaxtyping import Array

from jaxcal.results import Result, Sentences, TestResult, confidence
from jaxcal.sbi.diagnosis import Diagnosis

QUESTIONS = {
    "calibrated": "calibrated? Among pairs that get the same posterior, are parameters draws from "
    "it? (The prior passes; it fails the other question.)",
    "conditional": "right for each x? Given x, is the parameter a draw from the posterior? (The "
    "prior fails.)",
}


class PosteriorResult(Result):
    """The outcome of one test of a posterior, and its diagnosis.

    ``test``: the `jaxcal.TestResult`. ``diagnosis``: which parameter, and which way.
    ``features`` [n, q]: observations or summaries, in the order of the contributions.
    ``question``: "calibrated" or "conditional". ``notes``: sentences on what was done to the
    parameters, and on what may be wrong with the pairs.
    """

    __test__ = False
    _scalar: ClassVar[str] = "p_value"
    _mark: ClassVar[str] = "note"

    test: TestResult
    diagnosis: Diagnosis
    features: Array
    question: str = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    notes: tuple[str, ...] = eqx.field(static=True)

    @property
    def p_value(self) -> Array:
        """The p-value of the test, []."""
        return self.test.p_value

    @property
    def contributions(self) -> Array:
        """Each pair's share of the estimate, [n]."""
        return self.test.contributions

    def _sentences(self) -> Sentences:
        return [(text, True) for text in (*self.notes, *self.test.warnings())]

    def _contents(self) -> dict[str, Any]:
        return {
            "question": self.question,
            "names": self.names,
            "test": self.test.to_dict(),
            "diagnosis": self.diagnosis,
        }

    def findings(self) -> list[str]:
        """Sentences on parameters and regions of x whose witnesses are significant after Holm, at
        the level of the test."""
        return sentences(self.diagnosis, self.names, self.test.level)

    def _lines(self) -> list[str]:
        lines = self._batch_lines()
        lines += _table(self)
        return lines + [f"  finding: {text}" for text in self.findings()]

    def _batch_lines(self) -> list[str]:
        # the table of parameters below stands for that of coordinates
        head, *rest = repr(replace(self.test, coordinates=None)).split("\n")
        lines = [head, f"  question   {QUESTIONS[self.question]}"]
        return lines + [line for line in rest if not line.startswith("  warning")]


class PosteriorReport(Result):
    """Both questions about one posterior, on the same pairs and scores; and its coverage.

    ``calibration``, ``conditional``: a `PosteriorResult` each. ``coverage``: how often
    highest-density regions of each level hold the parameter, where draws were given.
    """

    _scalar: ClassVar[str] = "p_value"

    calibration: PosteriorResult
    conditional: PosteriorResult
    coverage: Any

    def verdict(self) -> str:
        """One sentence from all p-values, with Bonferroni's correction at the level of the tests:
        something is not right, no evidence is seen, or "cannot tell" and why.

        Where none rejects, the findings, significant at that level in either result, are named.
        """
        tests = (self.calibration.test, self.conditional.test)
        why = {test.reason: None for test in tests if test.verdict == "cannot tell"}
        p, levels = [float(test.p_value) for test in tests], [test.level for test in tests]
        covered = getattr(self.coverage, "p_uniform", None)
        if covered is not None:
            p, levels = [*p, float(covered)], [*levels, min(levels)]
            if np.isnan(float(covered)):
                why["the p-value of the coverage is not a number"] = None
        if why:
            return "cannot tell: " + "; ".join(why)
        passes = (value > level / len(p) for value, level in zip(p, levels, strict=True))
        calibrated, right, *coverage_passes = passes
        if not calibrated:
            return "not calibrated, so not the posterior given x either"
        if not all(coverage_passes):
            return (
                f"not calibrated: highest-density regions do not hold their share of parameters "
                f"(coverage, p = {p[2]:.2g})"
                + (", although the scores of these pairs do not show it" if right else "")
            )
        if not right:
            return (
                "calibrated as far as can be seen, but not the posterior given x: it leaves out "
                "information in x, or errors of different x cancel"
            )
        if self.calibration.findings() + self.conditional.findings():
            return (
                "the kernel tests see no evidence against the posterior, but simple witnesses do: "
                "see the findings"
            )
        return "no evidence against the posterior (which is not proof of it)"

    @property
    def p_value(self) -> Array:
        """The p-value of the first question, []."""
        return self.calibration.p_value

    def _sentences(self) -> Sentences:
        texts = self.calibration.warnings() + self.conditional.warnings()
        return [(text, True) for text in dict.fromkeys(texts)]

    def _contents(self) -> dict[str, Any]:
        coverage = self.coverage
        return {
            "verdict": self.verdict(),
            "calibration": self.calibration.to_dict(),
            "conditional": self.conditional.to_dict(),
            "coverage": coverage.to_dict() if isinstance(coverage, Result) else coverage,
        }

    def __repr__(self) -> str:
        if self.traced or self.batch_shape:
            return super().__repr__()
        parts = [f"verdict: {self.verdict()}", repr(self.calibration), repr(self.conditional)]
        return "\n\n".join(parts + ([repr(self.coverage)] if self.coverage is not None else []))


def _table(result: PosteriorResult) -> list[str]:
    """A line a parameter: its shift by itself; then mean and spread given the others."""
    d = result.diagnosis
    wide = max(9, *(len(name) for name in result.names))
    shift, others, ratio = (
        f"too high by ({confidence(result.test.level)})",
        "given the others: too high by",
        f"claimed / actual sd ({confidence(result.test.level)})",
    )
    head = f"  {'parameter':{wide}}"
    lines = [f"  {name:{wide}}" for name in result.names]
    if d.shift is not None:
        head += f"  {shift:>25}   p (Holm)"
        columns = zip(*map(np.asarray, d.shift), strict=True)
        lines = [
            line + f"  {high:+6.2f} sd ({least:+6.2f} to {most:+6.2f})   {p:8.3g}"
            for line, (high, _, _, p, least, most) in zip(lines, columns, strict=True)
        ]
    head += f"   {others}   p (Holm)   {ratio}   p (Holm)"
    columns = (d.bias.estimate, d.bias.p_adjusted, _ratios(d), d.spread.p_adjusted)
    return [head] + [
        line + f"   {high:+{len(others) - 3}.2f} sd   {p:8.3g}   {r:>{len(ratio)}}   {q:8.3g}"
        for line, high, p, r, q in zip(lines, *(np.asarray(c) for c in columns), strict=True)
    ]


def _ratios(d: Diagnosis) -> list[str]:
    """Claimed over actual standard deviation of each parameter, as far as the pairs know it."""
    ratios, (lows, highs) = np.asarray(d.sd_ratio()), np.asarray(d.sd_ratio_interval())
    return [
        f"{ratio:.2f} ({low:.2f} to {high:.2f})"
        if np.isfinite(high)
        else ("not a number" if np.isnan(low) else f"above {low:.2f}")
        for ratio, low, high in zip(ratios, lows, highs, strict=True)
    ]


def _untold(d: Diagnosis, k: int) -> bool:
    """Whether the spread of a parameter by itself is not to be had."""
    return d.marginal_spread is None or bool(np.isnan(np.asarray(d.marginal_spread.p_value)[k]))


def _by_themselves(d: Diagnosis, names: tuple[str, ...], level: float) -> list[str]:
    """Spreads of parameters by themselves, and correlations of pairs."""
    said: list[str] = []
    if d.marginal_spread is not None:
        spread = d.marginal_spread
        for k, name in enumerate(names):
            if float(spread.p_adjusted[k]) <= level:
                ratio, low, high = (
                    float(np.exp(part[k])) for part in (spread.estimate, spread.low, spread.high)
                )
                word = "underconfident (too wide)" if ratio > 1 else "overconfident (too narrow)"
                said.append(
                    f"{name} is {word} by itself: claimed / actual sd {ratio:.2f} ({low:.2f} to "
                    f"{high:.2f})"
                )
    if d.correlation is not None:
        pairs, i, j = d.correlation, *np.triu_indices(len(names), 1)
        for k, (first, second) in enumerate(zip(i, j, strict=True)):
            if float(pairs.p_adjusted[k]) <= level:
                size, low, high = (float(p[k]) for p in (pairs.estimate, pairs.low, pairs.high))
                said.append(
                    f"the correlation of {names[first]} and {names[second]} is claimed too high by "
                    f"{size:+.2f} ({low:+.2f} to {high:+.2f})"
                )
    return said


def sentences(d: Diagnosis, names: tuple[str, ...], level: float) -> list[str]:
    """What is significant after Holm at the level, in words."""
    said: list[str] = []
    ratio = np.asarray(d.sd_ratio())
    high, condition = (d.bias, " given the other parameters") if d.shift is None else (d.shift, "")
    for k, name in enumerate(names):
        if float(high.p_adjusted[k]) <= level:
            mean, low, most = (float(part[k]) for part in (high.estimate, high.low, high.high))
            side = "high" if mean > 0 else "low"
            low, most = (low, most) if mean > 0 else (-most, -low)
            said.append(
                f"{name} is too {side}{condition} by {abs(mean):.2f} sd ({low:.2f} to {most:.2f})"
            )
        if _untold(d, k) and float(d.spread.p_adjusted[k]) <= level:
            mean = float(d.spread.estimate[k])
            word = "underconfident (too wide)" if mean > 0 else "overconfident (too narrow)"
            if mean < -20:
                more = "; a few pairs far outside their posteriors dominate"
            else:
                more = f": claimed / actual sd about {ratio[k]:.2f}" if ratio[k] > 0 else ""
            said.append(f"{name} is {word} given the other parameters{more}")
    said += _by_themselves(d, names, level)
    if d.shift_trend is None or d.spread_trend is None or d.thirds is None:
        return said
    trends = [float(np.min(np.asarray(t.p_adjusted))) for t in (d.shift_trend, d.spread_trend)]
    if min(trends) <= level and d.strongest is not None:
        k, j = (int(i) for i in np.asarray(d.strongest))
        shift, spread = np.asarray(d.thirds)
        actual = ", ".join(f"{b:+.2f}" for b in shift)
        shares = ", ".join(f"{1 - s:.2f}" for s in spread)
        said.append(
            f"errors change with x[{j}], most in {names[k]}: in its lowest, middle and highest "
            f"third too high{condition} by {actual} sd, actual / claimed variance given the other "
            f"parameters {shares}"
        )
    return said
