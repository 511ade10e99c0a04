"""`jaxcal.check`: select tests, run them, and report one verdict with its limits."""

import html
import textwrap
from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from jaxcal.checking.plan import CLASS_PROBABILITIES, Asked, Plan, check_inputs, plan
from jaxcal.coverage import massart
from jaxcal.nulls import DependentWild, HadamardWild
from jaxcal.nulls.contract import holm
from jaxcal.read import checks, convert
from jaxcal.repairing.certificate import NATS, gain_in_words
from jaxcal.repairing.probabilities import ProbabilityRepair
from jaxcal.repairing.repair import repair
from jaxcal.results import (
    JudgedResult,
    Result,
    Sentences,
    in_words,
    recorded,
    too_few,
    too_few_draws,
)
from jaxcal.results.report import image, page, shown
from jaxcal.squared_ce.pipeline import Report
from jaxcal.typing import ArrayLike, Contents, Figure, Key, KeyLike, PredictionsLike

LIMITS = (
    "Calibrated predictions need not be sharp or useful: compare scores as well.",
    "Targets are compared with their predictions: errors that cancel among equal predictions are "
    "seen only along inputs, where these are given (inputs=, kcsd_test).",
)


class CheckReport(JudgedResult):
    """Results of the tests of a check, with one verdict.

    Attributes:
        tests: Results of the k tests.
        p_values: P-values of the tests, [k].
        p_adjusted: P-values after Holm's correction, [k]; NaN for a test without a p-value.
        p_value: Least of ``p_adjusted``, which gives the verdict, []; NaN if no test has a p-value.
        estimates: Results without a p-value, such as a calibration error; no part of the verdict.
        kind: Kind of the predictions, in words.
        why: Reasons for these tests.
        names: Names of the tests.
        sight: For each test and estimate, a sentence on errors that it detects or hardly detects.
        n: Number of observations.
        level: Level of the verdict.
        dependent: Whether the tests allow for dependence between observations.
        repair: Python call, as text, that repairs predictions of this kind, or "".
        unit: Unit of the gain by the repair.
        gain: Result of the repair, if this report computed it, or None.
    """

    _rows: ClassVar[tuple[str, ...]] = ("names", "p_values", "p_adjusted")
    _long: ClassVar[tuple[str, ...]] = ("sight", "unit", "gain")

    tests: tuple[Result, ...]
    p_values: Float[Array, " k"]
    p_adjusted: Float[Array, " k"]
    p_value: Float[Array, ""]
    estimates: tuple[Result, ...]
    kind: str = eqx.field(static=True)
    why: str = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    sight: tuple[str, ...] = eqx.field(static=True)
    n: int = eqx.field(static=True)
    level: float = eqx.field(static=True, default=0.05)
    dependent: bool = eqx.field(static=True, default=False)
    repair: str = eqx.field(static=True, default="")
    unit: str = eqx.field(static=True, default=NATS)
    gain: ProbabilityRepair | None = None

    @classmethod
    def of(cls, *, tests: tuple[Result, ...], **fields: Any) -> "CheckReport":
        """Return the report on k tests; Holm's correction counts those with a NaN p-value, too."""
        p = jnp.stack([_p_value(test) for test in tests])
        adjusted = jnp.where(jnp.isnan(p), jnp.nan, holm(jnp.where(jnp.isnan(p), 1, p)))
        return cls(
            tests=tests, p_values=p, p_adjusted=adjusted, p_value=jnp.nanmin(adjusted), **fields
        )

    def _page(self) -> str:
        """Return the HTML page: verdict, reasons, limits, and each result with its figure."""
        title, results = f"Check of {self.kind}", (*self.tests, *self.estimates)
        texts = [text for one in results for text in one.warnings()]
        rows = [
            [name, f"{float(p):.3g}", f"{float(q):.3g}"]
            for name, p, q in zip(self.names, self.p_values, self.p_adjusted, strict=True)
        ]
        parts = [
            _tag("h1", title),
            f'<p class="verdict">{html.escape(_sentence(self.verdict_in_words()))}</p>',
            _tag("p", f"n = {self.n} observations; p = {float(self.p_value):.3g}."),
            *([_tag("h2", "Before you rely on it"), _list(texts)] if texts else []),
            _tag("h2", "Why these tests"),
            _tag("p", _sentence(f"the predictions are {self.kind}: {self.why}")),
            _table(["test", "p-value", "p-value (Holm)"], rows),
            _tag("p", _sentence(f"the p-value of the verdict is {self.correction()}")),
            _tag("h2", "What this can and cannot see"),
            _list(self.limits()),
            _tag("h2", "Results"),
            *(_section(result) for result in results),
            _tag("h2", "What to do next"),
            _list(_actions(self)),
            _tag("h2", "How it was made"),
            _table(["", ""], _sources(self), head=False),
        ]
        return page(title, "\n".join(parts))

    def _no_verdict(self) -> Sentences:
        """Return reasons why tests have no verdict, such as too few draws for Holm's correction.
        Each has a flag, which is False if another test rejects: the report then has a verdict."""
        whys = [np.asarray(_reason(test)) for test in self.tests]
        adjusted = np.asarray(self.p_adjusted)
        decided = np.zeros(self.batch_shape, bool)
        for place, why in enumerate(whys):
            decided |= (why == "") & (adjusted[..., place] <= self.level)
        few = [too_few_draws(test, len(whys)) for test in self.tests]
        whys = [np.where(why == "", text, why) for why, text in zip(whys, few, strict=True)]
        return [
            (f"{name}: {text}", ~decided & (why == text))
            for name, why in zip(self.names, whys, strict=True)
            for text in np.unique(why)
            if text
        ]

    def _contents(self) -> Contents:
        return super()._contents() | {
            "tests": [test.to_dict() for test in self.tests],
            "estimates": [estimate.to_dict() for estimate in self.estimates],
            "limits": self.limits(),
            "repair": self.repair_in_words(),
        }

    def figure(self) -> "Figure | None":
        return self.tests[0].figure()

    def limits(self) -> list[str]:
        """Return sentences on the errors that this check can and cannot detect."""
        return [*self.sight, *LIMITS]

    def verdict_in_words(self) -> str:
        """Return the verdict in words, or why there is none."""
        return in_words(self)

    def repair_in_words(self) -> str:
        """Return the gain by a repair, or the call that computes it; "" without a repair."""
        if self.gain is None:
            return self.repair and f"what a repair would gain, in {self.unit}: {self.repair}"
        what = gain_in_words(self.gain)
        return f"a repair would gain {what}: {self.repair}"

    def correction(self) -> str:
        """Return how the verdict follows from the tests."""
        if len(self.tests) == 1:
            return "that of the one test"
        return (
            f"over {len(self.tests)} tests by Holm's correction: all together reject a calibrated "
            f"model with probability {self.level:g} at most; below each is judged by itself"
        )

    def _lines(self) -> list[str]:
        lines = [
            f"check of {self.kind}, n = {self.n}",
            f"  verdict    {self.verdict_in_words()}",
            *_filled(f"  p-value    {float(self.p_value):.3g}   ({self.correction()})", 13),
            *_filled(f"  why these  {self.why}", 13),
            "",
        ]
        for result in (*self.tests, *self.estimates):
            lines += [*repr(result).split("\n"), ""]
        limits = [line for text in self.limits() for line in _filled(f"  {text}", 4)]
        last = _filled(self.repair_in_words(), 4)
        return [*lines, "what this can and cannot see", *limits, *last]


def _filled(text: str, indent: int) -> list[str]:
    return textwrap.wrap(text, 100, subsequent_indent=" " * indent)


def _p_value(result: Any) -> Any:
    """Return the p-value of a result; for `coverage`, the p-value of "ranks are uniform"."""
    return jnp.asarray(result.p_value if hasattr(result, "p_value") else result.p_uniform)


def _reason(result: Any) -> Any:
    if isinstance(result, JudgedResult):
        return result.reason
    largest = jnp.asarray(result.draws / (result.draws + 1))  # gap of `coverage`
    least = partial(massart, largest, sides=2)
    few = too_few("of Massart", lambda n: float(least(n)), result.n, result.level)
    return np.where(np.isnan(_p_value(result)), "its p-value is not a number", few)


def _list(texts: list[str]) -> str:
    return "<ul>" + "".join(_tag("li", text) for text in texts) + "</ul>"


def _actions(report: CheckReport) -> list[str]:
    """Return what to do after this verdict: its reason, a repair, or more observations."""
    if report.verdict == "cannot tell":
        return [f"Remove the reason and check again: {report.reason}."]
    if report.verdict == "not rejected":
        return ["Check with more observations to detect smaller errors."]
    steps = ["Repair the predictions on one half of the pairs, and check them on the other half."]
    if report.repair:
        after = "its result prints the gain and the tests before and after the repair"
        steps.append(_sentence(f"{report.repair_in_words()}; {after}"))
    return steps


def _sources(report: Any) -> list[list[str]]:
    """Return rows [name, value]: versions, and the call of the check or of its first test."""
    recorded = dict((report if report.provenance["function"] else report.tests[0]).provenance)
    recorded |= recorded.pop("options") or {}
    return [[name, str(value)] for name, value in recorded.items()]


def _section(result: Result) -> str:
    # the figure of a calibration error compares several estimators, but a check fits one
    drawing = None if isinstance(result, Report) else result.figure()
    picture = "" if drawing is None else f"<p>{image(drawing, dpi=110, alt=shown(result))}</p>"
    return f"{picture}<pre>{html.escape(repr(result))}</pre>"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _tag(name: str, text: str) -> str:
    return f"<{name}>{html.escape(text)}</{name}>"


def _table(heads: list[str], rows: list[list[str]], *, head: bool = True) -> str:
    top = "<tr>" + "".join(_tag("th", text) for text in heads) + "</tr>" if head else ""
    body = ["<tr>" + "".join(_tag("td", cell) for cell in row) + "</tr>" for row in rows]
    return f"<table>{top}{''.join(body)}</table>"


LEAST_PAIRS = 10  # least number of observations for a repair with 5 folds


@recorded
def check(
    key: KeyLike,
    predictions: Any,
    targets: Any = None,
    *,
    inputs: ArrayLike | None = None,
    level: float = 0.05,
    dependent: bool = False,
) -> CheckReport:
    """Check predictions by suitable tests; report the reasons, the verdict and its limits.

    The tests depend on the kind of predictions. Log densities: `calibration_test`. Scores:
    `kccsd_test`. Distributions and draws: `calibration_test` and `skce_test`. Class probabilities:
    `skce_test`, and an estimate of the `calibration_error`. Probabilities of one of two classes:
    `distance_from_calibration`. `LogDensities`: `coverage`. Simulated pairs of a posterior:
    `sbi.check_posterior`. P-values of several tests are adjusted by Holm's method: a calibrated
    model is rejected with probability at most ``level``.

    Args:
        key: Random key: typed, legacy or an integer.
        predictions: `Unnormalized`, `Scores`, `Draws`, `LogDensities`, a numpyro distribution with
            batch shape [n], class probabilities [n, m], probabilities [n] of class 1, draws
            [n, m, ...] as an array, or what `jaxcal.sbi.score_pairs` returns.
        targets: Observed targets, [n, ...]; integers 0, .., m - 1 for classes. None for
            `LogDensities` and scored pairs, which include their targets.
        inputs: Inputs of the model, or other numbers with which errors may vary, [n] or [n, q];
            for `calibration_test` only.
        level: Level of the verdict.
        dependent: Whether observations are in temporal order and may be dependent.

    Returns:
        `CheckReport`, which prints a report; ``to_html(path)`` writes it with figures. If
        the predictions can be repaired, the last line is a call of `jaxcal.repair`. With three or
        more classes and enough observations, this line also states the gain.

    Raises:
        ValueError: Shapes or values are wrong; the message names the argument.
        TypeError: No test accepts such predictions.

    Cost: that of one or two tests.

    Source: Holm (1979) for the correction; each test names its own source.

    Example:
        >>> import jax, jaxcal
        >>> logits = jax.random.normal(jax.random.key(0), (200, 3))
        >>> labels = jax.random.categorical(jax.random.key(1), logits)
        >>> report = jaxcal.check(2, jax.nn.softmax(3 * logits), labels)  # too sure
        >>> report.kind, report.names, report.verdict
        ('class probabilities', ('skce_test',), 'rejected')
    """
    key, level = convert.key(key), checks.level(level)
    dependent = convert.flag(dependent, "dependent")
    chosen = plan(predictions, targets, dependent=dependent)
    if inputs is not None:
        check_inputs(chosen)
    return carried_out(key, chosen, targets, inputs=inputs, level=level, dependent=dependent)


def carried_out(
    key: Key,
    chosen: Plan,
    targets: ArrayLike | None,
    *,
    inputs: ArrayLike | None = None,
    level: float,
    dependent: bool,
) -> CheckReport:
    """Return the report on the tests of a plan, and outside of jit and vmap also its estimates."""
    null = DependentWild() if dependent else HadamardWild()
    traced = any(
        isinstance(leaf, Tracer) for leaf in jax.tree.leaves((key, chosen.predictions, targets))
    )
    asked = Asked(chosen.predictions, targets, null, level, inputs)
    questions = chosen.tests if traced else (*chosen.tests, *chosen.estimates)
    keys = jax.random.split(key, len(questions))
    answers = [question.ask(one, asked) for one, question in zip(keys, questions, strict=True)]
    k, n = len(chosen.tests), _count(chosen.predictions, targets)
    gain: Any = None
    # for classes a repair costs less than the tests; for densities it takes 20 s to compile
    if chosen.kind == CLASS_PROBABILITIES and chosen.repair and not traced and n >= LEAST_PAIRS:
        repair_key = jax.random.fold_in(key, len(questions))
        gain = repair(repair_key, asked.predictions, asked.targets, level=level)
    return CheckReport.of(
        kind=chosen.kind,
        why=chosen.why,
        names=tuple(question.name for question in chosen.tests),
        tests=tuple(answers[:k]),
        estimates=tuple(answers[k:]),
        sight=tuple(question.in_words() for question in questions),
        repair=chosen.repair,
        unit=chosen.unit,
        gain=gain,
        n=n,
        level=level,
        dependent=dependent,
    )


def _count(predictions: PredictionsLike, targets: ArrayLike | None) -> int:
    if targets is None:
        name = "thetas" if hasattr(predictions, "thetas") else "at_targets"
        return int(np.shape(getattr(predictions, name))[0])
    return int(np.shape(targets)[0])
