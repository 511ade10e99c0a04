r"""Estimate the calibration error from every row; tune estimators and compare them on test rows.

Tuning and comparison are Algorithm 1 of Gruber and Bach (2025), Sec. 3.2.2: the hyperparameters and
the estimator of the lowest mean validation risk are chosen; test rows affect no choice. The final
function is the mean of the folds' functions h, without a refit.
"""

from collections.abc import Sequence
from textwrap import shorten
from typing import Any, ClassVar, Literal, TypeAlias

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np

from jaxcal.read import checks, convert
from jaxcal.read.families import Classes
from jaxcal.read.observations import n_repeated
from jaxcal.results import Interval, Result, Sentences, confidence, recorded, sentences
from jaxcal.results.notes import memory
from jaxcal.squared_ce import reductions, splits
from jaxcal.squared_ce.binning import Bins
from jaxcal.squared_ce.functions import Estimator, Estimators, Setting
from jaxcal.squared_ce.kde import KernelDensity
from jaxcal.squared_ce.kernel_ridge import KernelRidge
from jaxcal.squared_ce.leave_one_out import (
    LeaveOneOut,
    RiskDifference,
    compare_risks,
    leave_one_out,
)
from jaxcal.squared_ce.reductions import Reduced
from jaxcal.squared_ce.tuning import Tuned, in_numpy, join, tune
from jaxcal.typing import ArrayLike, Contents, Folds, KeyLike

WORDS = {"kkr": "matrix kernel ridge", "ukkr": "kernel ridge", "kde": "kernel density"}


class Report(Result):
    """The calibration error from every row and, if requested, estimators compared by risk.

    Quote ``error`` and ``interval``. ``best`` is the tuned estimator of the lowest validation risk;
    its estimate is from the test rows, which did not affect that choice.

    Attributes:
        notion: Notion of calibration.
        estimators: Requested estimators after tuning, as `Tuned`, by name.
        selected: Name of the estimator with the lowest mean validation risk; "" if none was tuned.
        brier: Brier score of the test rows.
        n_tuning: Number of rows for tuning.
        n_test: Number of test rows.
        n_folds: Number of folds.
        notes: Possible problems: dict from the code of a warning to a number, flag or indices.
        every_row: Result of `leave_one_out`, the estimate from every row.
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
        """Estimated calibration error, from every row by `leave_one_out`."""
        return self.every_row.error

    @property
    def interval(self) -> Interval:
        """Interval of the calibration error, from every row by `leave_one_out`.

        Simulated coverage at nominal 95 %: 94 to 100 % for eight populations of confidences with 60
        to 10,000 rows; 41 to 100 % for three with steps or fast waves; 89 to 99 % for nineteen
        populations of vectors with 300 rows. Errors are understated if no combination of the
        functions of `leave_one_out` fits them (experiments/squared_ce_intervals).
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
        """Test on the test rows whether the first of two estimators has the lower risk.

        Use it for statements about estimators, not to choose the estimate to quote: the validation
        rows determine that. The p-value assumes a normal distribution, but risks are skewed. For
        two functions of equal risk (scalar data, error .18) and one direction of the test, 8 % of
        2000 data sets were rejected at level 5 % and n = 150, 7 % at 500 and 2000, 5 % at 8000.

        Args:
            first: Name of an estimator.
            second: Name of another one.

        Returns:
            The ``difference`` [] of risks, first minus second, its ``standard_error`` [] by the
            jackknife, a one-sided ``p_value`` [], small if the first risk is lower, and a two-sided
            ``interval`` of the difference. ValueError if a name is unknown.
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
                raise ValueError(f"{key}: wanted one of {names}, got {convert.say(name)}")
        return [self.estimators[name] for name in (first, second)]

    def table(self) -> list[Contents]:
        """Return one dict per estimator, lowest validation risk first, for a data frame.

        Keys: "estimator" (name); "rmse" and "rmse_se" (`Tuned.rmse`); "error", with the ends "low"
        and "high" of its interval; "squared"; "one_step_squared" and "lower_bound" (of the error),
        None unless h is a product of residuals; "settings" (text of the chosen hyperparameters);
        "edge" (text of the names of hyperparameters at an end of their grid).
        """
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
        what = "probabilities" if self.notion == "canonical" else "probability"
        followed = f"  of what {self.every_row.functions} smooth functions of the {what} follow"
        lines.append(f"{followed}: errors in steps and waves are understated")
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
    """Return a description of an estimator with its name, such as "kernel ridge (ukkr)"."""
    short, *rank = name.split(" ", 1)
    if short not in WORDS:
        return name
    return f"{WORDS[short]}, {name}" if rank else f"{WORDS[short]} ({name})"


def _setting(setting: Setting) -> str:
    texts = (f"{name} {v if isinstance(v, str) else f'{v:.3g}'}" for name, v in setting.items())
    return ", ".join(texts)


FEWEST = 30  # least number of test observations for a normal interval
SCALAR_RANK, VECTOR_RANK = 64, 512  # low ranks, used for more observations than the next numbers
EXACT_SCALAR, EXACT_VECTOR = 1024, 4096

Asked: TypeAlias = Estimators | Literal["paper"]


def default_estimators(problem: Reduced) -> list[Estimator]:
    """Return the estimators of the paper: 15 bins, tuned bins, kde, kkr and ukkr.

    The canonical notion has no bins, and its kernel ridges have rank 512 if n > 4096. For other
    notions they have rank 64 if n > 1024, which exceeds the numerical rank of the kernel (< 20).
    """
    scalar, n = problem.inputs.shape[-1] == 1, problem.n
    if scalar:
        rank = SCALAR_RANK if n > EXACT_SCALAR else None
    else:
        rank = VECTOR_RANK if n > EXACT_VECTOR else None
    ridges = [KernelRidge(rank=rank, kronecker=kronecker) for kronecker in (True, False)]
    kernels = [KernelDensity(), *ridges]
    return [Bins(15), Bins(), *kernels] if scalar else kernels


@recorded
def calibration_error(
    key: KeyLike,
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    notion: str = "top-label",
    estimators: Asked = (),
    folds: Folds = 5,
    test: ArrayLike = 0.2,
    level: float = 0.05,
    keep: bool = False,
) -> Report:
    """Estimate the calibration error of a classifier from every row; compare estimators by risk.

    Quote ``error`` and ``interval`` of the report. `jaxcal.squared_ce.leave_one_out` computes them
    from a comparison of each row with a fit to all others, without tuning. The interval is valid
    for calibrated predictions too. If ``estimators`` are requested, they are tuned and compared by
    risk. The lowest mean validation risk selects the hyperparameters and the estimator ``best``;
    test rows affect no choice. The final function of an estimator is the mean of the folds'
    functions, without a refit. All computations are in float64, whatever the setting of JAX, as
    small ridges need it. Random splits depend on the values of the rows, not on their order.

    Use ``error`` and ``interval`` for the size of the error, ``best`` and ``compare`` for
    statements about estimators, ``notion="canonical"`` for few classes and many rows, and
    `jaxcal.skce_test` to test calibration. The bins of a reliability diagram show where the error
    occurs, but their squared error is positive for calibrated predictions too.

    Args:
        key: Random key: typed, legacy or an integer seed.
        predictions: Class probabilities (after a softmax, rows of sum 1), [n, m]; or, for two
            classes, the probabilities of class 1, [n]. The rows must not be training data.
        targets: Classes 0, .., m - 1, [n].
        notion: "canonical", "top-label", "binary" (two classes; uses the probability of class 1) or
            "class-wise" (the sum over classes of squared scalar errors, each tuned separately).
        estimators: List of estimators to tune and compare, by default none; or "paper" for those of
            the paper: 15 bins, tuned bins (neither for the canonical notion), kernel density, and
            two kernel ridges.
        folds: Number of contiguous folds of the shuffled rows (1 for a single validation set of a
            fifth). Or a splitter with ``split(X, y)`` as in scikit-learn, or pairs (training rows,
            validation rows): indices among the rows for tuning, in the order of the data.
        test: Rows on which tuned estimators are evaluated: a share of all rows, drawn by the key;
            or indices or a mask [n] of rows.
        level: Intervals have confidence 1 - ``level``.
        keep: Whether ``functions`` of each `Tuned` keeps the functions of the folds.

    Returns:
        `Report`.

    Cost: that of `jaxcal.squared_ce.leave_one_out`. Estimators add, per fold, one factorisation for
    all ridges of kkr and ukkr, O(n^3) or O(n rank^2), and O(n_train n_valid m) per bandwidth of
    kde; memory O(folds n^2) or O(folds n rank). Compiling the estimators of the paper takes about
    10 seconds of processor time.

    Source: Gruber and Bach (2025), Sec. 3.2.2 and Algorithm 1.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> logits = jax.random.normal(jax.random.key(0), (100, 3))
        >>> targets = jax.random.categorical(jax.random.key(1), logits)
        >>> predictions = jax.nn.softmax(3 * logits)  # overconfident
        >>> report = jaxcal.calibration_error(2, predictions, targets)
        >>> bool(report.error <= report.interval.high)
        True
        >>> bins = [jaxcal.squared_ce.Bins((5, 10, 15)), jaxcal.squared_ce.Bins(20)]
        >>> report = jaxcal.calibration_error(2, predictions, targets, estimators=bins)
        >>> report.selected in report.estimators
        True
    """
    key, level, keep = convert.key(key), checks.level(level), convert.flag(keep, "keep")
    with jax.enable_x64(True):
        p = checks.probabilities(predictions, "predictions", binary=True)
        reduced = reductions.reduce(p, targets, notion)
        problem = jax.tree.map(lambda leaf: jnp.asarray(leaf, jnp.float64), reduced)
        classes = np.asarray(checks.labels(targets, p.shape[0], p.shape[1], "targets"))
        rows, outcomes = (
            np.moveaxis(np.asarray(part), -2, 0).reshape(problem.n, -1)
            for part in (problem.inputs, problem.outcomes)
        )
        tuning, tested = splits.hold_out(key, test, rows, outcomes, classes)
        tuning = tuning if splits.is_number(folds) else np.sort(tuning)
        opt, final = problem.take(tuning), problem.take(tested)
        pairs = splits.folds(folds, rows[tuning], classes[tuning])
        largest = opt.take(max((train for train, _ in pairs), key=len))
        if isinstance(estimators, str) and estimators == "paper":
            estimators = default_estimators(largest)
        chosen = _named(estimators)
        parts = [
            tune(one, last, pairs, chosen, keep)
            for one, last in zip(opt.problems(), final.problems(), strict=True)
            if chosen
        ]
        # two probability vectors have |p - q|^2 <= 2, and so have sums over classes
        most = 2.0 if problem.notion in ("canonical", "class-wise") else 1.0
        tuned = {
            name: join(name, [part[name] for part in parts], level, keep, most) for name in chosen
        }
        risks = {name: np.nan_to_num(each.risk, nan=np.inf) for name, each in tuned.items()}
        every_row = leave_one_out(problem, level=level)
        notes = _notes(problem, classes, tuning, pairs, len(tested) if chosen else None)
        if every_row.interval.low > 0:
            gaps = np.moveaxis(np.asarray(problem.residuals), -2, 0).reshape(problem.n, -1)
            notes["dependent-rows"] = memory(gaps, classes[:, None])
        notes["repeated-rows"] = int(n_repeated(jnp.asarray(classes), Classes(p)))
        return Report(
            notion=problem.notion,
            estimators=tuned,
            selected=min(risks, key=lambda name: risks[name], default=""),
            brier=float(jnp.sum(final.brier)),
            n_tuning=len(tuning),
            n_test=len(tested),
            n_folds=len(pairs),
            notes=notes,
            every_row=every_row,
        )


def _notes(
    problem: Reduced,
    targets: np.ndarray,
    tuning: np.ndarray,
    pairs: list[splits.Split],
    tested: int | None,
) -> dict[str, Any]:
    """Return the notes of a report: a dict from the code of a warning to a count, a flag or
    indices of classes or folds. ``tested``: number of test rows; None without estimators."""
    inputs = np.asarray(problem.inputs)
    d = inputs.shape[-1] if inputs.ndim == 2 else inputs.shape[0]
    classes = np.unique(targets)
    of_all = problem.notion in ("canonical", "class-wise")
    lacking = [np.unique(targets[tuning][train]).size < classes.size for train, _ in pairs]
    touches = np.any((inputs == 0) | (inputs == 1), axis=-1)
    return {
        "unseen-classes": np.setdiff1d(np.arange(d), classes) if of_all else np.arange(0),
        "incomplete-folds": np.flatnonzero(lacking if tested is not None else []),
        "few-observations": tested if tested is not None and tested < FEWEST else 0,
        "saturated-probabilities": np.sum(touches if inputs.ndim == 2 else np.any(touches, axis=0)),
        "identical-predictions": bool(np.all(inputs == inputs[..., :1, :])),
    }


def _named(estimators: Estimators | str) -> dict[str, Estimator]:
    if not isinstance(estimators, Sequence) or isinstance(estimators, str):
        raise TypeError(
            f'estimators: wanted "paper" or a list such as [Bins(15)], got '
            f"{convert.say(estimators)}"
        )
    by_name: dict[str, Estimator] = {}
    for estimator in estimators:
        checks.instance(estimator, Estimator, "estimators", "Bins(15), with name, grid and fit")
        if estimator.name in by_name:
            raise ValueError(
                f"estimators: two are called {estimator.name!r}; try several settings in ONE grid"
            )
        by_name[estimator.name] = estimator
    return by_name
