"""Results of `check_posterior`: one per test, and a report with a verdict from all tests."""

from dataclasses import replace
from importlib import import_module
from typing import Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxcal.coverage import Coverage
from jaxcal.results import JudgedResult, Result, Sentences, TestResult, tells, too_few_draws
from jaxcal.results.notes import codes
from jaxcal.results.report import about_coordinates
from jaxcal.sbi.diagnosis import Diagnosis
from jaxcal.sbi.discrete import DiscreteParameter
from jaxcal.sbi.ranks import PosteriorRanks
from jaxcal.sbi.report_text import (
    DRAWS,
    GIVEN_X,
    LABELS,
    QUESTIONS,
    SIGHT,
    SOURCES,
    exchanges,
    excluded,
    least_p_value,
    sentences,
    table,
)
from jaxcal.sbi.suspicions import PairNotes, in_sentences
from jaxcal.typing import Contents, Figure

KINDS = 5  # kinds of errors: shifts, spreads, correlations, tails, trends in x


class PosteriorResult(Result):
    """Result of one test of a posterior, with a diagnosis of the posterior's errors.

    Attributes:
        test: The `jaxcal.TestResult`.
        diagnosis: `Diagnosis` from scores: errors of each parameter, and their direction.
        by_ranks: `Diagnosis` from the ranks of theta that `calibration_test` computes. None for the
            test of calibration, and if there are no log densities.
        features: [n, q] observations or their summaries; row i belongs to ``contributions[i]``.
        question: "calibrated", or "conditional" for the test given x.
        names: Names of the parameters.
        notes: Notes on the pairs, as in `ScoredPairs`.
    """

    __test__ = False
    _scalar: ClassVar[str] = "p_value"
    _mark: ClassVar[str] = "note"

    test: TestResult
    diagnosis: Diagnosis
    by_ranks: Diagnosis | None
    features: Array
    question: str = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    notes: dict[str, Any] = eqx.field(static=True, converter=PairNotes)

    @property
    def p_value(self) -> Array:
        """P-value of the test, []."""
        return self.test.p_value

    @property
    def contributions(self) -> Array:
        """Contribution of each pair to the estimate, [n]."""
        return self.test.contributions

    def _sentences(self) -> Sentences:
        said = dict.fromkeys((*in_sentences(self.notes), *self.test.warnings()))
        if self.test.ranks is None:
            of = self.diagnosis
            said |= dict.fromkeys(about_coordinates(of.shift, of.marginal_spread))
        return [(text, True) for text in said]

    def _contents(self) -> Contents:
        return {
            "question": self.question,
            "names": self.names,
            "test": self.test.to_dict(),
            "diagnosis": self.diagnosis,
        }

    def findings(self) -> list[str]:
        """Return sentences on significant errors of parameters and in regions of x.

        Each of the 5 kinds of error is tested at level ``test.level`` / 5, with Holm's correction.
        """
        of, level = self.told(), self.test.level / KINDS
        return sentences(of, self.names, level, by_ranks=of is self.by_ranks)

    def told(self) -> Diagnosis:
        """Return the diagnosis to report: ``diagnosis`` if ``by_ranks`` is None; ``diagnosis`` with
        tails from ``by_ranks`` for Gaussian posteriors; otherwise ``by_ranks``."""
        if self.by_ranks is None:
            return self.diagnosis
        if tells(self.diagnosis.shift):
            return replace(self.diagnosis, tails=self.by_ranks.tails)
        return self.by_ranks

    def _lines(self) -> list[str]:
        rows, said = table(self.told(), self.names, self.test.level), self.findings()
        lines = self._batch_lines() + [f"  {line}" for line in rows]
        if said and self.test.verdict == "not rejected":
            verdict = f"  verdict    not rejected by this test at level {self.test.level:g}, but "
            verdict += "one kind of error is clear (see the findings)"
            lines = [verdict if line.startswith("  verdict ") else line for line in lines]
        return lines + [f"  finding: {text}" for text in said]

    def _batch_lines(self) -> list[str]:
        # `_lines` prints a table of parameters instead of the coordinates of the test
        head, *rest = repr(replace(self.test, coordinates=None)).split("\n")
        lines = [head, f"  question   {QUESTIONS[self.question]}"]
        return lines + [line for line in rest if not line.startswith(("  warning", "  explained"))]


class PosteriorReport(JudgedResult):
    """Results of all tests of one posterior on the same pairs; it prints the errors in words.

    Attributes:
        calibration: `PosteriorResult` of the test of calibration: `calibration_test`, or
            `kccsd_test` if there are no log densities.
        conditional: `PosteriorResult` of the test of whether the posterior is right given x.
        coverage: The `jaxcal.coverage.Coverage` that was passed in, or None.
        ranks: `PosteriorRanks` among draws or exchangeable candidates, or None.
        exchanged: Change of the total log density if parameters j < k swap their values, [d, d].
            All are -infinity if `calibration_test` has p <= .01 after the swap of largest change.
            None without log densities, for 1 parameter and for more than 10.
        discrete: One `DiscreteParameter` per discrete parameter, with tests given all others. The
            other fields then concern the continuous parameters given the discrete ones.
    """

    _scalar: ClassVar[str] = "p_value"
    _mark: ClassVar[str] = "note"

    calibration: PosteriorResult
    conditional: PosteriorResult
    coverage: Coverage | None
    ranks: PosteriorRanks | None = None
    exchanged: Array | None = None
    discrete: tuple[DiscreteParameter, ...] = ()

    @property
    def level(self) -> float:
        """Level of the verdict and of the findings."""
        return self.calibration.test.level

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the parameters."""
        return self.calibration.names

    def p_values(self) -> Contents:
        """Return a dict of the p-values that determine the verdict, by name of the test: "moments"
        (or "scores"), "given x", "witnesses"; and if such tests were run, "candidates", "ranks",
        "coverage", "discrete". Values are arrays []; 1 for a test that "cannot tell"."""
        named = {"moments" if self._of_densities else "scores": self.calibration.test.p_counted}
        if self.ranks is not None:
            if self.ranks.exchangeability is not None:
                named["candidates"] = self.ranks.exchangeability.p_counted
            named["ranks"] = self.ranks.uniformity
        if self.coverage is not None:
            named["coverage"] = self.coverage.p_uniform
        witnesses = jnp.asarray(least_p_value(self.diagnosis()))
        given_x = self.conditional.test.p_counted
        if self.ranks is not None and self.ranks.moments is not None:  # of draws, with x as inputs
            given_x = jnp.minimum(1.0, 2 * jnp.minimum(given_x, self.ranks.moments.p_counted))
        named |= {"given x": given_x, "witnesses": witnesses}
        if self.discrete:
            p = jnp.stack([parameter.p_value for parameter in self.discrete])
            named["discrete"] = jnp.minimum(1.0, len(p) * jnp.min(p, axis=0))
        return named

    @property
    def p_value(self) -> Array:
        """Combined p-value [] (Bonferroni, valid for dependent tests); NaN only if all are NaN."""
        p = jnp.stack(list(self.p_values().values()))
        return jnp.minimum(1.0, p.shape[0] * jnp.nanmin(p, axis=0))

    @property
    def conclusion(self) -> str:
        """The verdict as a sentence: what is wrong; or that there is no evidence against the
        posterior; or "cannot tell" with the reasons."""
        if self.verdict == "cannot tell":
            return f"cannot tell: {self.reason}"
        p = {name: np.asarray(value) for name, value in self.p_values().items()}
        # rounded as in `p_value`, so that both agree
        passes = {name: not len(p) * v <= np.asarray(self.level, v.dtype) for name, v in p.items()}
        right, simple = passes.pop("given x"), passes.pop("witnesses")
        probable = passes.pop("discrete", True)
        failed = [name for name, fine in passes.items() if not fine]
        if failed in (["coverage"], ["ranks"]):
            which = failed[0]
            what = {
                "coverage": "highest-density regions do not hold their share of parameters",
                "ranks": "ranks of parameters are not uniform among exchangeable candidates",
            }[which]
            tested = " and moments" * ("moments" in p)
            return f"not calibrated: {what} ({which}, p = {p[which]:.2g})" + (
                f", although the scores{tested} of these pairs do not show it" if right else ""
            )
        if failed:
            return "not calibrated, so not the posterior given x either"
        if not right:
            return (
                "no evidence of miscalibration, but not the posterior given x: it leaves out "
                "information in x, or its errors cancel over x"
            )
        if not probable:
            return (
                "not the posterior given x: the probabilities of discrete parameters are wrong, "
                "given x and the others"
            )
        if not simple:
            return (
                "not right: one kind of error is clear (see what is off), although the tests "
                "of all kinds together do not detect it"
            )
        return "no evidence against the posterior (which is not proof of it)"

    def findings(self) -> list[str]:
        """Return sentences on significant errors of parameters, pairs and regions of x.

        The list is empty if ``p_value`` > ``level``. Each of K kinds of error is tested at level
        ``level`` / K, with Holm's correction: a right posterior gets sentences with probability at
        most ``level``.
        """
        if not float(self.p_value) <= self.level:
            return []
        kinds = KINDS + self._of_densities + (self.exchanged is not None) + len(self.discrete)
        said = exchanges(self.exchanged, self.names, self.level / kinds)
        by_ranks = self._by_ranks() is not None
        said += sentences(self.diagnosis(), self.names, self.level / kinds, by_ranks=by_ranks)
        if not said and self.conditional.test.table is not None:  # no parameter is wrong by itself
            said += self.conditional.test.table.sentences(self.level / kinds)
        for parameter in self.discrete:
            said += parameter.findings(self.level / kinds)
        return said + excluded(self._excluded, len(self.calibration.contributions))

    def diagnosis(self) -> Diagnosis:
        """Return one diagnosis, with the most accurate available estimates of each kind of error.

        Shift, spread and trends are from ranks among draws if there are draws. Otherwise they are
        from scores for Gaussian posteriors, and from ``conditional.by_ranks`` for others.
        Correlations are from scores for Gaussian posteriors, and from ``conditional.by_ranks`` for
        others. Tails are from ``conditional.by_ranks``. Without log densities, correlations
        and tails are from draws if there are at least 4.
        """
        by_scores, given_x = self.calibration.diagnosis, self.conditional.diagnosis
        by_ranks, of_points = self._by_ranks(), self.conditional.by_ranks
        correlation, tails = by_scores.correlation, None
        if of_points is not None:
            correlation = correlation if tells(correlation) else of_points.correlation
            tails = of_points.tails
        elif by_ranks is not None and by_ranks.tails is not None:
            correlation, tails = by_ranks.correlation, by_ranks.tails
        if by_ranks is not None:
            return replace(by_ranks, correlation=correlation, tails=tails)
        return replace(
            by_scores,
            correlation=correlation,
            tails=tails,
            shift_trend=given_x.shift_trend,
            spread_trend=given_x.spread_trend,
            strongest=given_x.strongest,
            thirds=given_x.thirds,
        )

    def _by_ranks(self) -> Diagnosis | None:
        """Return the diagnosis from ranks that `diagnosis` uses; None if it uses scores."""
        if self.ranks is not None and self.ranks.source == DRAWS:
            return self.ranks.diagnosis
        told = self.conditional.told()
        return told if told is self.conditional.by_ranks else None

    def _sentences(self) -> Sentences:
        said = self.calibration.warnings() + self.conditional.warnings()
        ranked = [] if self.ranks is None else [self.ranks, self.ranks.exchangeability]
        said += [text for part in ranked if part is not None for text in part.warnings()]
        said += [text for parameter in self.discrete for text in parameter.warnings()]
        # both tests may report one code with different counts: keep the first
        once = {" ".join(codes([text])) or text: text for text in reversed(said)}
        return [(text, True) for text in reversed(once.values())]

    def _contents(self) -> Contents:
        parts = {name: getattr(self, name) for name in ("ranks", "coverage")}
        return {
            "verdict": self.verdict,
            "conclusion": self.conclusion,
            "reason": self.reason,
            "p_value": self.p_value,
            "p_values": self.p_values(),
            "findings": self.findings(),
            "calibration": self.calibration.to_dict(),
            "conditional": self.conditional.to_dict(),
            **{name: v if v is None else v.to_dict() for name, v in parts.items()},
            "discrete": [parameter.to_dict() for parameter in self.discrete],
        }

    def figure(self) -> "Figure":
        """Return a figure of four panels.

        (a) Ranks of each parameter with the band of a correct posterior; without ranks, null draws
        of the test of calibration. (b) Coverage of highest-density regions; if not computed, null
        draws of the test given x. (c) Shift, spread and correlation, with limits. (d) The strongest
        error along a feature of x; if not estimated, contributions to the test given x.
        """
        return import_module("jaxcal.plots.sbi").posterior_figure(self)

    @property
    def _of_densities(self) -> bool:
        return self.calibration.test.parts is not None

    @property
    def _excluded(self) -> int:
        """Number of pairs with almost no posterior density at theta; 0 without log densities."""
        notes = self.calibration.test.notes
        codes = ("impossible-targets", "improbable-targets")
        return sum(int(notes[code]) for code in codes) if self._of_densities else 0

    def _reasons(self) -> list[str]:
        """Return the reason of each test that gives no verdict; [] if there is none."""
        p, asked = self.p_values(), (self.calibration.test, self.conditional.test)
        ranked = () if self.ranks is None else (self.ranks.exchangeability, self.ranks.moments)
        others = [one for one in ranked if one is not None]
        others += [parameter.calibrated for parameter in self.discrete]
        whys = [test.reason or too_few_draws(test, len(p)) for test in asked]
        why = {text: None for text in (*whys, *(one.reason for one in others)) if text}
        for name in ("coverage", "ranks"):
            if np.isnan(float(p.get(name, 0.0))) and not (why and name == "ranks"):
                why[f"the p-value of the {name} is not a number"] = None
        return list(why)

    def _no_verdict(self) -> Sentences:
        why = self._reasons()
        return [("; ".join(why), bool(why) and not float(self.p_value) <= self.level)]

    def _lines(self) -> list[str]:
        n, d = self.calibration.contributions.shape[0], len(self.names)
        lines = [f"verdict: {self.conclusion}"]
        total = float(self.p_value)
        lines.append(f"  n = {n} pairs, d = {d}; combined p = {total:.2g} (all tests below)")
        p = {name: float(value) for name, value in self.p_values().items()}
        for question in ("calibrated", "conditional"):
            lines += ["", QUESTIONS[question]]
            asked = [name for name in p if (name in GIVEN_X) == (question == "conditional")]
            lines += [
                f"  {LABELS[name]:26} p = {p[name]:<8.2g} {self._how(name)}" for name in asked
            ]
        lines += [
            "",
            f"what is off (expected false-positive rate: at most {100 * self.level:g} %)",
        ]
        lines += [f"  - {text}" for text in self.findings() or [self._unnamed(total)]]
        lines += ["", *table(self.diagnosis(), self.names, self.level)]
        for parameter in self.discrete:
            lines += ["", *parameter._lines()]
        lines += ["", "what these tests detect"] + [f"  {SIGHT[name]}" for name in p]
        if self.coverage is not None:
            lines += ["", repr(self.coverage)]
        return lines

    def _unnamed(self, p: float) -> str:
        """Return the text that replaces an empty list of findings, for a combined p-value ``p``."""
        if p <= self.level:
            what = "no parameter by itself" if tells(self.diagnosis().shift) else "no parameter"
            return f"{what}: see the strongest part of each test above"
        d = self.diagnosis()
        shown = (d.shift, d.marginal_spread) if tells(d.shift) else (d.bias, d.spread)
        printed = [float(value) for value in self.p_values().values()]
        printed += [float(np.min(np.asarray(of.p_adjusted))) for of in shown if of is not None]
        if p > self.level >= np.nanmin(printed):
            return (
                f"nothing that can be named: p-values up to {self.level:g} here are not "
                f"significant after correction for the number of tests"
            )
        return "nothing that can be named"

    def _how(self, name: str) -> str:
        """Return a remark on the test ``name``, such as its strongest part; "" if there is none."""
        if name == "moments" and self.calibration.test.parts is not None:
            parts = self.calibration.test.parts
            if self._excluded:
                return "a parameter lies where its posterior has almost no density"
            return f"strongest: {parts.names[int(parts.winner)]}"
        if name == "candidates" and self.ranks is not None:
            result = self.ranks.exchangeability
            assert result is not None
            whose = f"{self.ranks.size} {SOURCES[self.ranks.source]}"
            informative = np.any(np.isfinite(np.asarray(result.part_statistics)))
            return f"strongest: {result.strongest}; {whose}" if informative else whose
        if name == "ranks" and self.ranks is not None:
            each = zip(self.ranks.statistics, np.asarray(self.ranks.p_values), strict=True)
            return "by itself: " + ", ".join(f"{what} {value:.2g}" for what, value in each)
        return ""
