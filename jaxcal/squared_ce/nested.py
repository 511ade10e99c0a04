"""Every observation is a test observation once: Algorithm 1 inside an outer cross-validation."""

from typing import Any, ClassVar

import equinox as eqx
import jax
import numpy as np

from jaxcal import checks
from jaxcal.results import Interval, Result, Sentences, confidence, recorded
from jaxcal.squared_ce import splits
from jaxcal.squared_ce.estimators import Estimators
from jaxcal.squared_ce.intervals import root
from jaxcal.squared_ce.pipeline import calibration_error
from jaxcal.squared_ce.report import Report
from jaxcal.squared_ce.tuned import together
from jaxcal.typing import ArrayLike, Contents, Folds, KeyLike


class Nested(Result):
    """One `Report` an outer fold. ``contributions`` [n]: h(p, p) of each observation under the
    estimator selected without it, in the order of the data; NaN where it was never tested.
    ``terms`` [n]: its one-step term, likewise."""

    _scalar: ClassVar[str] = "squared"

    reports: list[Report]
    contributions: np.ndarray
    terms: np.ndarray
    level: float = eqx.field(static=True)

    @property
    def squared(self) -> float:
        """The signed mean over all tested observations."""
        return float(np.nanmean(self.contributions))

    @property
    def error(self) -> float:
        """Its root, the mean being held within what is possible."""
        return float(np.sqrt(np.clip(self.squared, 0, self.reports[0].best.largest)))

    @property
    def interval(self) -> Interval:
        """For the calibration error, ends as in `Report.interval`; folds share training data, so
        it is somewhat too short. NaN ends where no estimator has one."""
        quoted = together([report.quoted for report in self.reports])
        if quoted is None:
            return Interval(np.nan, np.nan, self.level)  # pyright: ignore[reportArgumentType]
        each = [
            together([report.estimators[name] for report in self.reports])
            for name in self.reports[0].estimators
        ]
        highest = max((one.interval.high for one in (quoted, *each) if one is not None), key=float)
        return root(quoted.interval._replace(high=highest), self.reports[0].best.largest)

    def _contents(self) -> Contents:
        return {
            "squared": self.squared,
            "error": self.error,
            "interval": self.interval,
            "reports": [report.to_dict() for report in self.reports],
        }

    def _sentences(self) -> Sentences:
        texts = dict.fromkeys(text for report in self.reports for text in report.warnings())
        return [(text, True) for text in texts]

    def _lines(self) -> list[str]:
        low, high = self.interval[:2]
        chosen = [report.selected for report in self.reports]
        names = ", ".join(f"{name} in {chosen.count(name)}" for name in dict.fromkeys(chosen))
        return [
            f"{self.reports[0].notion} calibration error over {len(self.reports)} outer folds",
            f"  error {self.error:.4f}",
            f"  {confidence(self.level)} interval {float(low):.4f} to {float(high):.4f}, one step",
            f"  selected: {names}",
        ]


@recorded
def nested_calibration_error(
    key: KeyLike,
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    outer: Folds = 5,
    estimators: Estimators | None = None,
    level: float = 0.05,
    **options: Any,
) -> Nested:
    """Estimate the calibration error once an outer fold, so that every row is tested on.

    `calibration_error` is run with the validation rows of each outer fold as its test rows.

    Args:
        key: Random key: typed, legacy or an integer seed.
        predictions: As in `calibration_error`.
        targets: As in `calibration_error`.
        outer: A number of folds of the shuffled rows, a splitter, or pairs of rows.
        estimators: As in `calibration_error`.
        level: As in `calibration_error`.
        **options: ``notion``, ``folds``, ``keep`` and ``extend`` of `calibration_error`.

    Returns:
        A result with ``error``, ``squared`` and ``interval`` over all tested rows, and
        ``reports``, one an outer fold.

    Raises:
        ValueError: Shapes, probabilities, labels or splits are wrong; the message names them.
        TypeError: An argument is of the wrong type; the message names it.

    Cost: that of `calibration_error` an outer fold.

    Source: Gruber and Bach (2025), Algorithm 1.

    Example:
        >>> import jax, jaxcal
        >>> logits = jax.random.normal(jax.random.key(0), (60, 3))
        >>> targets = jax.random.categorical(jax.random.key(1), logits)
        >>> predictions, bins = jax.nn.softmax(logits), jaxcal.squared_ce.Bins((2, 4))
        >>> result = jaxcal.squared_ce.nested_calibration_error(
        ...     2, predictions, targets, outer=2, estimators=[bins], folds=2
        ... )
        >>> len(result.reports)
        2
    """
    shuffle_key, *_ = keys = jax.random.split(checks.key(key))
    p = np.asarray(checks.probabilities(predictions, "predictions", binary=True))
    n, m = p.shape
    y = np.asarray(checks.labels(targets, n, m, "targets"))
    # rows of a splitter are the user's own
    whole = isinstance(outer, (int, np.integer))
    order = splits.shuffled(shuffle_key, p, y) if whole else np.arange(len(p))
    contributions, terms = np.full((2, len(p)), np.nan)
    reports = []
    for number, (_, tested) in enumerate(splits.folds(outer, p[order], y[order])):
        rows = order[tested]
        report = calibration_error(
            jax.random.fold_in(keys[1], number),
            predictions,
            targets,
            estimators=estimators,
            level=level,
            test=rows,
            **options,
        )
        contributions[rows] = report.best.contributions
        if report.quoted.terms is not None:
            terms[rows] = report.quoted.terms
        reports.append(report)
    return Nested(reports, contributions, terms, level)
