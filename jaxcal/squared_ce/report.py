"""Report of a calibration error: the estimate from every row, and each tuned estimator."""

from textwrap import shorten
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxcal.read import checks
from jaxcal.results import Interval, Result, Sentences, confidence, sentences
from jaxcal.squared_ce.functions import Setting
from jaxcal.squared_ce.leave_one_out import LeaveOneOut, RiskDifference, compare_risks
from jaxcal.squared_ce.tuning import Tuned, in_numpy
from jaxcal.typing import Contents

WORDS = {"kkr": "matrix kernel ridge", "ukkr": "kernel ridge", "kde": "kernel density"}


class Report(Result):
    """The calibration error from every row and, if requested, estimators compared by risk.

    Quote ``error`` and ``interval``. ``best`` is the tuned estimator of the lowest validation risk,
    with its estimate on the test rows, which had no part in that choice.

    Attributes:
        notion: Notion of calibration.
        estimators: Requested `Tuned` estimators, by name.
        selected: Name of the one with the lowest mean validation risk, or "".
        brier: Brier score of the test rows.
        n_tuning: Number of rows for tuning.
        n_test: Number of test rows.
        n_folds: Number of folds.
        notes: Possible problems, by the codes of warnings; classes and folds by number.
        every_row: The estimate from every row.
    """

    _plots: ClassVar[tuple[str, ...]] = ("comparisons.calibration_errors",)
    _scalar: ClassVar[str] = "brier"

    notion: str = eqx.field(static=True)
    estimators: dict[str, Tuned]
    selected: str = eqx.field(static=True)
    brier: float
    n_tuning: int
    n_test: int
    n_folds: int
    notes: dict[str, Any]
    every_row: LeaveOneOut

    @property
    def error(self) -> float:
        """The calibration error, from every row."""
        return self.every_row.error

    @property
    def interval(self) -> Interval:
        """Interval of the calibration error, from every row.

        Coverage, nominal 95 %: 94 to 100 % for eight populations of confidences, with 60 to 10,000
        rows, and 89 to 99 % for nineteen populations of vectors with 300 rows: errors that no
        combination of its functions makes are missed (experiments/squared_ce_intervals).
        """
        return self.every_row.interval

    @property
    def best(self) -> Tuned:
        """The selected estimator; ValueError if none was tuned."""
        if not self.estimators:
            raise ValueError(
                "estimators: none was tuned, only error and interval are known; ask for some, such "
                'as estimators="paper"'
            )
        return self.estimators[self.selected]

    def compare(self, first: str, second: str) -> RiskDifference:
        """Test on the test observations whether the first ensemble has the lower risk.

        For statements about estimators. Do not use it to choose the estimate to quote: validation
        rows determine that choice. The p-value is from a normal distribution, but risks are skewed.
        For two functions of equal risk, scalar data with an error of .18 and nominal 5 %, the worse
        tail had 8 % at n = 150, 7 % at n = 500 and 2000 and 5 % at n = 8000 (2000 data sets each).

        Args:
            first: Name of an estimator.
            second: Name of another one.

        Returns:
            The ``difference`` [] of risks, first minus second, its ``standard_error`` [] by the
            jackknife, a one-sided ``p_value`` [], small if the first is lower, and a two-sided
            ``interval``.
        """
        rows = [each.test_rows for each in self._both(first, second)]
        both = np.isfinite(rows[0]) & np.isfinite(rows[1])
        level = self.best.level
        with jax.enable_x64(True):
            difference = compare_risks(
                jnp.asarray(rows[0][both]), jnp.asarray(rows[1][both]), level
            )
            return in_numpy(difference)

    def _both(self, first: str, second: str) -> list[Tuned]:
        for key, name in (("first", first), ("second", second)):
            if not isinstance(name, str) or name not in self.estimators:
                names = ", ".join(self.estimators)
                raise ValueError(f"{key}: wanted one of {names}, got {checks.say(name)}")
        return [self.estimators[name] for name in (first, second)]

    def table(self) -> list[Contents]:
        """Return one row per estimator, lowest validation risk first, for a data frame."""
        rows = []
        for tuned in sorted(
            self.estimators.values(), key=lambda each: np.nan_to_num(each.risk, nan=np.inf)
        ):
            rmse, rmse_error = tuned.rmse
            one_step = tuned.one_step
            bound = None
            if one_step is not None:
                bound = float(np.sqrt(np.clip(float(one_step.lower_bound), 0, tuned.largest)))
            rows.append(
                {
                    "estimator": tuned.name,
                    "rmse": rmse,
                    "rmse_se": rmse_error,
                    "error": tuned.error,
                    "low": float(tuned.interval.low),
                    "high": float(tuned.interval.high),
                    "squared": tuned.squared,
                    "one_step_squared": None if one_step is None else float(one_step.squared),
                    "lower_bound": bound,
                    "settings": "; ".join(sorted({_setting(s) for s in tuned.settings})),
                    "edge": ", ".join(sorted({name for names in tuned.edges for name in names})),
                }
            )
        return rows

    def _sentences(self) -> Sentences:
        of_each = [
            (f"{name}: {text}", holds)
            for name, tuned in self.estimators.items()
            for text, holds in sentences(tuned.notes)
        ]
        return [*sentences(self.notes), *of_each]

    def _contents(self) -> Contents:
        each = {name: tuned.to_dict() for name, tuned in self.estimators.items()}
        return super()._contents() | {"estimators": each}

    def _lines(self) -> list[str]:
        lines = [f"{self.notion} calibration error"]
        n, (low, high) = self.n_tuning + self.n_test, map(float, self.interval[:2])
        lines += [
            f"  error {self.error:.4f}, every one of {n} rows tested by a fit to the others",
            f"  {confidence(self.interval.level)} interval {low:.4f} to {high:.4f}",
        ]
        if self.notion == "canonical":
            count = self.every_row.functions
            lines.append(f"  of what {count} functions of the probabilities follow: no sharp waves")
        if not self.estimators:
            return lines
        best, width = self.best, max(len(words(name)) for name in self.estimators)
        lines += [
            f"estimators, tuned on {self.n_tuning} rows in {self.n_folds} folds, estimated on the "
            f"other {self.n_test}",
            f"  lowest validation risk: {words(best.name)}, error {best.error:.4f}",
            f"  {'estimator':{width}s} 100 sqrt(risk)        error   at least   chosen",
        ]
        for row in self.table():
            bound = "       -" if row["lower_bound"] is None else f"{row['lower_bound']:8.4f}"
            name = words(row["estimator"])
            lines.append(
                f"  {name:{width}s} {row['rmse']:8.3f} ± {row['rmse_se']:5.3f}   "
                f"{row['error']:8.4f}   {bound}   {shorten(row['settings'], 40, placeholder='...')}"
                + (f" (edge: {row['edge']})" if row["edge"] else "")
            )
        return lines


def words(name: str) -> str:
    """Return a description of an estimator, with its key in ``estimators``."""
    short, *rank = name.split(" ", 1)
    if short not in WORDS:
        return name
    return f"{WORDS[short]}, {name}" if rank else f"{WORDS[short]} ({name})"


def _setting(setting: Setting) -> str:
    texts = (f"{name} {v if isinstance(v, str) else f'{v:.3g}'}" for name, v in setting.items())
    return ", ".join(texts)
