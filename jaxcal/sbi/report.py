"""The results of checking a posterior: the verdict on each question, and both together."""

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar

import equinox as eqx
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from jaxcal.coverage import Coverage
from jaxcal.results import Result, Sentences, TestResult, tells
from jaxcal.results.report import about_coordinates
from jaxcal.sbi.diagnosis import Diagnosis
from jaxcal.sbi.ranks import DRAWS, PosteriorRanks
from jaxcal.sbi.report_text import (
    GIVEN_X,
    LABELS,
    QUESTIONS,
    SIGHT,
    SOURCES,
    least_p_value,
    sentences,
    table,
)
from jaxcal.typing import Contents

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class PosteriorResult(Result):
    """The outcome of one test of a posterior, and its diagnosis.

    Attributes:
        test: The `jaxcal.TestResult`.
        diagnosis: Which parameter, and which way: a `Diagnosis`.
        features: [n, q] observations or summaries, in the order of the contributions.
        question: "calibrated" or "conditional".
        names: One a parameter.
        notes: Sentences on what was done to the parameters, and on what may be wrong with the
            pairs.

    Example:
        >>> import jax
        >>> from jaxcal import sbi
        >>> thetas, noise = jax.random.normal(jax.random.key(0), (2, 60, 1))
        >>> def log_prob(theta, x):  # the exact posterior is N(x / 2, 1 / 2)
        ...     return -((theta - x / 2 + 2) ** 2).sum()
        >>> result = sbi.kccsd_test(1, log_prob, thetas, thetas + noise, names=["rate"])
        >>> result.findings()[0][:15]
        'rate is too low'
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
        told = about_coordinates(self.diagnosis.shift, self.diagnosis.marginal_spread)
        said = dict.fromkeys((*self.notes, *self.test.warnings(), *told))
        return [(text, True) for text in said]

    def _contents(self) -> Contents:
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
        rows = table(self.diagnosis, self.names, self.test.level)
        lines = self._batch_lines() + [f"  {line}" for line in rows]
        return lines + [f"  finding: {text}" for text in self.findings()]

    def _batch_lines(self) -> list[str]:
        # the table of parameters below stands for that of coordinates
        head, *rest = repr(replace(self.test, coordinates=None)).split("\n")
        lines = [head, f"  question   {QUESTIONS[self.question]}"]
        return lines + [line for line in rest if not line.startswith(("  warning", "  explained"))]


class PosteriorReport(Result):
    """Both questions about one posterior on the same pairs, and in words what is off.

    Attributes:
        calibration: `PosteriorResult` on whether the posterior is calibrated: of all moments of its
            log densities, or of its scores where these are all it offers.
        conditional: `PosteriorResult` on whether it is right given x.
        coverage: A `jaxcal.coverage.Coverage` that was passed in, or None.
        ranks: `PosteriorRanks` among draws or exchangeable candidates, or None.

    Example:
        >>> import jax, numpyro.distributions as dist
        >>> from jaxcal import sbi
        >>> prior = dist.Normal(jax.numpy.zeros(2), 1.0).to_event(1)
        >>> thetas = prior.sample(jax.random.key(0), (100,))
        >>> xs = thetas + jax.random.normal(jax.random.key(1), (100, 2))
        >>> def log_prob(theta, x):  # twice as narrow as the exact posterior, N(x / 2, 1 / 2)
        ...     return -4 * ((theta - x / 2) ** 2).sum()
        >>> report = sbi.check_posterior(2, log_prob, thetas, xs, prior=prior)
        >>> print(report)
        verdict: ...
    """

    _scalar: ClassVar[str] = "p_value"
    _mark: ClassVar[str] = "note"

    calibration: PosteriorResult
    conditional: PosteriorResult
    coverage: Coverage | None
    ranks: PosteriorRanks | None = None

    @property
    def level(self) -> float:
        """The level of the verdict, and of what is said to be off."""
        return self.calibration.test.level

    @property
    def names(self) -> tuple[str, ...]:
        """Of the parameters."""
        return self.calibration.names

    def p_values(self) -> Contents:
        """What the verdict is made of: a p-value for each thing that was asked, by name."""
        named = {"moments" if self._of_densities else "scores": self.calibration.p_value}
        if self.ranks is not None:
            if self.ranks.exchangeability is not None:
                named["candidates"] = self.ranks.exchangeability.p_value
            named["ranks"] = self.ranks.uniformity
        if self.coverage is not None:
            named["coverage"] = self.coverage.p_uniform
        witnesses = jnp.asarray(least_p_value(self.diagnosis()))
        return named | {"given x": self.conditional.p_value, "witnesses": witnesses}

    @property
    def p_value(self) -> Array:
        """Of all together, by Bonferroni's correction, []; NaN where there is no p-value."""
        p = jnp.stack(list(self.p_values().values()))
        return jnp.minimum(1.0, p.shape[0] * jnp.nanmin(p, axis=0))

    def verdict(self) -> str:
        """One sentence from all p-values, with Bonferroni's correction at the level of the tests:
        something is not right, no evidence is seen, or "cannot tell" and why."""
        p = {name: float(value) for name, value in self.p_values().items()}
        passes = {name: not value <= self.level / len(p) for name, value in p.items()}
        if all(passes.values()) and (why := self._reasons()):
            return "cannot tell: " + "; ".join(why)
        right, simple = passes.pop("given x"), passes.pop("witnesses")
        failed = [name for name, fine in passes.items() if not fine]
        if failed in (["coverage"], ["ranks"]):
            which = failed[0]
            what = {
                "coverage": "highest-density regions do not hold their share of parameters",
                "ranks": "parameters do not stand evenly among what could be in their places",
            }[which]
            seen = " and moments" * ("moments" in p)
            return f"not calibrated: {what} ({which}, p = {p[which]:.2g})" + (
                f", although the scores{seen} of these pairs do not show it" if right else ""
            )
        if failed:
            return "not calibrated, so not the posterior given x either"
        if not right:
            return (
                "calibrated as far as can be seen, but not the posterior given x: it leaves out "
                "information in x, or errors of different x cancel"
            )
        if not simple:
            return (
                "not right: one kind of error is clear (see what is off), although the tests that "
                "look for all kinds do not show it"
            )
        return "no evidence against the posterior (which is not proof of it)"

    def findings(self) -> list[str]:
        """What is off, in words: parameter, direction and size; correlation; weights; where in x.

        Nothing where no p-value rejects at the level of the verdict, so that of a right posterior
        something is said with at most that probability. Each kind of error has a share of the
        level, and Holm's correction inside.
        """
        if not float(self.p_value) <= self.level:
            return []
        kinds = 4 + self._of_densities
        said = sentences(
            self.diagnosis(),
            self.names,
            self.level / kinds,
            by_draws=self.ranks is not None and self.ranks.source == DRAWS,
        )
        return said + self._about_weights(self.level / kinds, shifted=bool(said))

    def diagnosis(self) -> Diagnosis:
        """The best that is known of each kind of error.

        Shift, spread and trends along x from ranks among draws, where there are draws: these tell a
        parameter by itself whatever the shape of the posterior. Else from scores, which do so for
        Gaussian posteriors. Correlations from scores.
        """
        by_scores, given_x = self.calibration.diagnosis, self.conditional.diagnosis
        if self.ranks is not None and self.ranks.source == DRAWS:
            return replace(self.ranks.diagnosis, correlation=by_scores.correlation)
        return replace(
            by_scores,
            shift_trend=given_x.shift_trend,
            spread_trend=given_x.spread_trend,
            strongest=given_x.strongest,
            thirds=given_x.thirds,
        )

    def _sentences(self) -> Sentences:
        said = self.calibration.warnings() + self.conditional.warnings()
        if self.ranks is not None and self.ranks.exchangeability is not None:
            said += self.ranks.exchangeability.warnings()
        return [(text, True) for text in dict.fromkeys(said)]

    def _contents(self) -> Contents:
        parts = {name: getattr(self, name) for name in ("ranks", "coverage")}
        return {
            "verdict": self.verdict(),
            "p_value": self.p_value,
            "p_values": self.p_values(),
            "findings": self.findings(),
            "calibration": self.calibration.to_dict(),
            "conditional": self.conditional.to_dict(),
            **{name: v if v is None else v.to_dict() for name, v in parts.items()},
        }

    def _figure(self) -> "Figure":
        return import_module("jaxcal.plots").posterior_figure(self)

    @property
    def _of_densities(self) -> bool:
        return self.calibration.test.parts is not None

    def _reasons(self) -> list[str]:
        """Why there is no verdict."""
        judged: list[Any] = [self.calibration.test, self.conditional.test]
        if self.ranks is not None and self.ranks.exchangeability is not None:
            judged.append(self.ranks.exchangeability)
        why = {each.reason: None for each in judged if each.verdict == "cannot tell"}
        for name in ("coverage", "ranks"):
            if np.isnan(float(self.p_values().get(name, 0.0))) and not (why and name == "ranks"):
                why[f"the p-value of the {name} is not a number"] = None
        return list(why)

    def _about_weights(self, level: float, *, shifted: bool) -> list[str]:
        """A sentence on where the mass lies, if no parameter is off by itself."""
        parts = self.calibration.test.parts
        if parts is None or shifted:
            return []
        each = zip(parts.names, np.asarray(parts.p_values), strict=True)
        weights = [value for name, value in each if name.endswith("weights")]
        if not weights or not min(weights) <= level:
            return []
        none = "; no parameter is off by itself" * tells(self.diagnosis().shift)
        p = f"(p = {min(weights):.2g})"
        return [f"the mass lies elsewhere, as with wrong weights of modes {p}{none}"]

    def _lines(self) -> list[str]:
        n, d = self.calibration.contributions.shape[0], len(self.names)
        lines = [f"verdict: {self.verdict()}"]
        total = float(self.p_value)
        lines.append(f"  n = {n} pairs, d = {d}; p = {total:.2g} over all that was asked")
        p = {name: float(value) for name, value in self.p_values().items()}
        for question in ("calibrated", "conditional"):
            lines += ["", QUESTIONS[question]]
            asked = [name for name in p if (name in GIVEN_X) == (question == "conditional")]
            lines += [
                f"  {LABELS[name]:26} p = {p[name]:<8.2g} {self._how(name)}" for name in asked
            ]
        lines += [
            "",
            f"what is off (said of a right posterior in at most {100 * self.level:g} % of checks)",
        ]
        lines += [f"  - {text}" for text in self.findings() or [self._unnamed(total)]]
        lines += ["", *table(self.diagnosis(), self.names, self.level)]
        lines += ["", "what this can see"] + [f"  {SIGHT[name]}" for name in p]
        if self.coverage is not None:
            lines += ["", repr(self.coverage)]
        return lines

    def _unnamed(self, p: float) -> str:
        """What stands in the place of findings where there are none."""
        if p <= self.level:
            what = "no parameter by itself" if tells(self.diagnosis().shift) else "no parameter"
            return f"{what}: see what is strongest in each p-value above"
        return "nothing that can be named"

    def _how(self, name: str) -> str:
        """What stands behind a p-value, in a few words."""
        if name == "moments" and self.calibration.test.parts is not None:
            parts = self.calibration.test.parts
            out = [n for n, o in zip(parts.names, np.asarray(parts.left_out), strict=True) if o]
            strongest = f"strongest: {parts.names[int(parts.winner)]}"
            return strongest + (f"; left out: {', '.join(out)}" if out else "")
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
