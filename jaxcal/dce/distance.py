"""Bound, test and report the distance from calibration of predicted probabilities of a label."""

from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxcal.dce.bracket import Bracket, bracket_of, measures_of
from jaxcal.dce.intervals import smallest_width
from jaxcal.dce.population import PopulationBounds, population_bounds
from jaxcal.dce.predictions import binary, ordered, squares
from jaxcal.dce.resampling import (
    Null,
    RandomIntervals,
    kernel_statistic,
    label_test,
    no_verdict,
    suitable_null,
)
from jaxcal.nulls.contract import holm
from jaxcal.read import checks, convert
from jaxcal.read.families import Classes
from jaxcal.read.observations import n_repeated
from jaxcal.results import (
    Interval,
    JudgedResult,
    Sentences,
    confidence,
    count_verdicts,
    in_words,
    recorded,
    sentences,
)
from jaxcal.results.notes import memory
from jaxcal.squared_ce.reductions import reduce
from jaxcal.typing import ArrayLike, Key, KeyLike, Scalar, Vector

TESTS = {"kernel": "", "interval": "surrogate interval error, "}  # names, and words in reports
SCALAR = ("top-label", "class-wise")  # notions with one probability per observation
MEASURED = 50  # least number of observations for which coverage was measured
SHOWN = 20  # largest number of members of a batch that its report lists


class DistanceResult(JudgedResult):
    """Distance from calibration of binary predictions, with an interval and a test.

    Attributes:
        bracket: Certified bounds of the true distance for these data.
        interval: Interval of the distance in the population, with confidence 1 - ``level``.
        measures: Measures of calibration by name, each []; "ECE" is the usual binned ECE.
        population: `PopulationBounds`: the same interval, and the terms that make up its high end.
        p_value: P-value of the hypothesis "calibrated", [].
        statistic: Statistic of the test, []: the squared Laplace kernel calibration error, or the
            surrogate interval error.
        null_samples: Draws of the statistic under calibration, [b].
        witness: Weights s_i in [-1, 1], [n], for which the mean of s_i (label - prediction) is the
            smooth calibration error (`smooth_ce`). s_i is higher where predictions are too low
            than where they are too high. Where the mean residual is small, s_i tells little.
        predictions: Probabilities of label 1, [n]; for "top-label" the largest of all classes.
        targets: Labels, or means of labels, [n]; for "top-label" whether that class is correct.
        weights: Weights of the observations, of sum 1, [n].
        null: How the null was drawn: "redraw" or "signs".
        test: Name of the test: "kernel" or "interval".
        level: Probability of rejecting calibrated predictions; it determines `verdict`.
        adjusted: For ``notion="class-wise"``, where all arrays have a leading axis of m classes:
            p-values adjusted by Holm's method, [m], which decide the verdicts; otherwise None.
        least_p_value: Smallest p-value that any labels could give, [], for at most ten
            observations; None for more.
        counts: For grouped data, the number of labels of each group, [n]; ``targets`` are then the
            means of these labels. Otherwise None.
    """

    _plots: ClassVar[tuple[str, ...]] = ("reliability.bracket", "reliability.with_witness")
    _long: ClassVar[tuple[str, ...]] = ("null_samples",)

    bracket: Bracket
    interval: Interval
    measures: dict[str, Scalar]
    population: PopulationBounds
    p_value: Scalar
    statistic: Scalar
    null_samples: Float[Array, " b"]
    witness: Vector
    predictions: Vector
    targets: Vector
    weights: Vector
    null: str = eqx.field(static=True)
    test: str = eqx.field(static=True, default="kernel")
    level: float = eqx.field(static=True, default=0.05)
    adjusted: Scalar | None = None
    least_p_value: Scalar | None = None
    counts: Vector | None = None

    @property
    def n(self) -> int:
        """Number of observations; for grouped data, number of labels."""
        if self.counts is None:
            return self.predictions.shape[-1]
        return round(float(np.sum(np.asarray(self.counts, np.float64))))

    @property
    def effective(self) -> Array:
        """Effective sample size, []: 1 / (sum of the squared weights of the labels)."""
        return 1 / jnp.sum(squares(self.weights, self.counts), axis=-1)

    @property
    def p_adjusted(self) -> Array:
        """P-values adjusted by Holm's method for all members of a batch, such as the classes for
        ``notion="class-wise"``, in the shape of ``p_value``; NaN where ``p_value`` is NaN."""
        return _adjusted(self.p_value) if self.adjusted is None else self.adjusted

    @property
    def _decides(self) -> Array:
        return self.p_value if self.adjusted is None else self.adjusted

    @property
    def notes(self) -> dict[str, Any]:
        """Return a dict from warning codes to numbers or flags; 0 or False means "no problem". For
        ``notion="class-wise"`` each value is the largest of all classes."""
        if self.batch_shape:
            members = range(len(self.p_value))
            every = [jax.tree.map(lambda leaf, k=k: leaf[k], self).notes for k in members]
            names = [name for notes in every for name in notes]
            return {name: max(notes.get(name, 0) for notes in every) for name in names}
        v, y, w = (np.asarray(a) for a in (self.predictions, self.targets, self.weights))
        if n_nonfinite := int(np.sum(~np.isfinite(v))):
            return {"nonfinite-predictions": n_nonfinite}
        n, effective = self.n, float(self.effective)
        v, y = v[w > 0], y[w > 0]
        classes = Classes(jnp.asarray(np.stack([1 - v, v], axis=1)))
        repeated = int(n_repeated(jnp.asarray(y), classes)) if self.counts is None else 0
        return {
            "few-observations": n if n < MEASURED else 0,
            "bounds-contradict": np.isnan(np.asarray(self.bracket.low)),
            "identical-predictions": n > 1 and np.unique(v).size == 1,
            "one-class": n > 1 and np.all(y == y[0]) and (self.counts is None or y[0] in (0, 1)),
            "uneven-weights": effective if effective < n / 2 else 0,
            "dependent-rows": self._memory(),
            "repeated-rows": repeated,
        }

    def _memory(self) -> Any:
        if self.counts is not None or not float(self._decides) <= self.level:
            return 0.0
        ys, predictions = np.asarray(self.targets), np.asarray(self.predictions)
        return memory((ys - predictions)[:, None], ys[:, None])

    def _no_verdict(self) -> Sentences:
        return no_verdict(self)

    def _sentences(self) -> Sentences:
        return [] if self.batch_shape and self.adjusted is None else sentences(self.notes)

    def _lines(self) -> list[str]:
        bracket, p = self.bracket, float(self.p_value)
        if np.isnan(p):
            return [f"distance from calibration: {in_words(self)}"]
        low, high = bracket.sources
        interval, trust = self.interval, confidence(self.level)
        how = {"redraw": "labels drawn again from the predictions", "signs": "random signs"}
        return [
            f"distance from calibration, n = {self.n}",
            f"  these data   {float(bracket.low):.4g} to {float(bracket.high):.4g}",
            f"               (low end: {low}; high end: {high})",
            f"  population   {float(interval.low):.4g} to {float(interval.high):.4g}   ({trust})",
            f"  p-value      {p:.4g}   ({TESTS[self.test]}{how[self.null]}, "
            f"{self.null_samples.shape[-1]} draws)"
            + ("" if self.adjusted is None else f", {float(self.adjusted):.4g} over all classes"),
            f"  verdict      {in_words(self)}",
            "  measures     "
            + ", ".join(f"{name} {float(value):.4g}" for name, value in self.measures.items()),
        ]

    def _batch_lines(self) -> list[str]:
        p = np.asarray(self.p_value)
        low, high = np.asarray(self.bracket.low), np.asarray(self.bracket.high)
        lines = [
            f"{p.size} distances from calibration, batch shape {p.shape}",
            f"  {count_verdicts(self)}",
            f"  low ends {np.nanmin(low):.4g} to {np.nanmax(low):.4g}, high ends "
            f"{np.nanmin(high):.4g} to {np.nanmax(high):.4g}",
        ]
        if p.ndim != 1:
            return lines
        lines.append(
            f"  {'':>5} {'these data':>19} {'population':>19} {'p-value':>8} {'adjusted':>8}"
        )
        adjusted, interval = np.asarray(self.p_adjusted), self.interval
        ends = [np.asarray(x) for x in (low, high, interval.low, interval.high)]
        for k in np.argsort(adjusted, kind="stable")[:SHOWN]:
            of_data, of_population = (f"{a[k]:.4f} to {b[k]:.4f}" for a, b in (ends[:2], ends[2:]))
            lines.append(
                f"  {k:>5} {of_data:>19} {of_population:>19} {p[k]:>8.3g} {adjusted[k]:>8.3g}"
            )
        if p.size > SHOWN:
            lines.append(f"  and {p.size - SHOWN} of larger adjusted p-values")
        return lines


def _adjusted(p_values: Array) -> Array:
    p = jnp.ravel(p_values)
    adjusted = jnp.where(jnp.isnan(p), jnp.nan, holm(jnp.where(jnp.isnan(p), 1, p)))
    return adjusted.reshape(p_values.shape)


@recorded
def distance_from_calibration(
    key: KeyLike,
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    level: float = 0.05,
    n_draws: int = 500,
    test: str = "kernel",
    null: Null | None = None,
    accuracy: float | int = 0.01,
    bins: int = 15,
    notion: str | None = None,
    counts: ArrayLike | None = None,
) -> DistanceResult:
    """Bound the distance from calibration of predicted probabilities of a binary label.

    Computes a certified bracket of the true distance for the data, a confidence interval of the
    true distance in the population, and a p-value of "calibrated", exact for independent labels 0
    or 1. The low end of the interval is a confidence bound of the lower distance. The high end is
    the mean of |prediction - mean label of its group|, plus a confidence radius; groups are chosen
    without labels. Under jit and vmap a coarser grid may make the lower bound of the bracket
    smaller, by up to 2e-3.

    Args:
        key: Random key: typed, legacy or an integer seed.
        predictions: Probabilities of label 1, [n]; with ``notion`` class probabilities [n, m].
        targets: Labels 0 or 1, or means of labels, [n]; with ``notion`` classes from 0, [n]; with
            ``counts`` numbers of labels 1, [n].
        weights: Weights w of the observations, [n], >= 0; the interval treats the triples
            (prediction, label, w) as independent random draws.
        level: Probability of rejecting calibrated predictions, which determines the verdict; the
            interval has confidence 1 - ``level``.
        n_draws: Number of draws of the statistic under calibration.
        test: Statistic of the p-value: "kernel" for the squared Laplace kernel calibration error,
            or "interval" for the surrogate interval error. The latter detects errors that change
            sign, such as overconfidence, far more often, and errors of one sign less often
            (`experiments/distance_tests`): choose before looking at the data.
        null: "redraw" draws labels from the predictions, which is exact for independent labels 0 or
            1; "signs" gives residuals random signs. None: "signs" if targets are means of labels,
            else "redraw". Under jit None is "redraw"; for means of labels the p-value is then NaN.
        accuracy: As in `jaxcal.dce.surrogate_interval_ce`, for the surrogate interval error.
        bins: Number of bins of the binned ECE.
        notion: For class probabilities: "top-label", or "class-wise" for a batch of m results,
            whose verdicts use `p_adjusted`.
        counts: Number of labels of each group of grouped data, [n] integers; ``targets`` is then
            the number of labels 1 of each group. Each label is an observation with the weight of
            its group, but time and memory depend on the number of groups only. Outside of jit only.
            `jaxcal.dce.Table` makes such groups from any number of observations.

    Returns:
        `DistanceResult`. Under jit, NaN in the data gives NaN everywhere.

    Cost: a sort of n observations, and O(m log m) for m different predictions (under jit m = n).
    The interval calibration error takes O(m^2) and is left out if m > 20,000. Each of ``n_draws``
    draws is of min(m, 8192) groups or, with weights, of n labels.

    Source: Blasiok et al. (2023), Theorems 6.2, 6.11, 7.3 and 8.5 and eq. 5, with sharper
    constants.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> truth = jnp.linspace(0.05, 0.95, 200)
        >>> targets = jax.random.bernoulli(jax.random.key(0), truth)
        >>> predictions = jnp.clip(2 * truth - 0.5, 0, 1)  # overconfident
        >>> result = jaxcal.distance_from_calibration(1, predictions, targets)
        >>> result.verdict, bool(result.bracket.low <= result.bracket.high)
        ('rejected', True)
    """
    key = convert.key(key)
    level = checks.level(level)
    n_draws = convert.integer(n_draws, "n_draws")
    convert.choice(test, "test", tuple(TESTS))
    if notion is not None:
        if counts is not None:
            raise ValueError("counts: groups are of labels 0 or 1, so without notion")
        convert.choice(notion, "notion", SCALAR)
        problem = reduce(predictions, targets, notion)
        predictions, targets = problem.inputs[..., 0], problem.outcomes[..., 0]
    if notion == "class-wise":
        one = partial(
            distance_from_calibration,
            weights=weights,
            level=level,
            n_draws=n_draws,
            test=test,
            null=null,
            accuracy=accuracy,
            bins=bins,
        )
        return _by_class(one, key, predictions, targets)
    data = binary(predictions, targets, weights, counts)
    null = suitable_null(null, data)
    ascending = ordered(data)
    measures, witness = measures_of(ascending, accuracy, bins)
    null_key, fold_key = jax.random.split(key)
    by_intervals = RandomIntervals(smallest_width(accuracy))
    outcome = label_test(
        null_key,
        ascending,
        statistic=kernel_statistic if test == "kernel" else by_intervals,
        equal=weights is None,
        n_draws=n_draws,
        null=null,
    )
    population = population_bounds(fold_key, ascending, level)
    return DistanceResult(
        bracket=bracket_of(measures, ascending.v.size),
        interval=Interval(population.low, population.high, level),
        measures=measures.by_name(),
        population=population,
        p_value=outcome.p_value,
        statistic=outcome.statistic,
        null_samples=outcome.null_samples,
        witness=witness,
        predictions=data.v,
        targets=data.y,
        weights=data.w,
        null=null,
        test=test,
        level=level,
        least_p_value=outcome.least,
        counts=data.labels,
    )


def _by_class(one: Any, key: Key, predictions: ArrayLike, targets: ArrayLike) -> DistanceResult:
    """Return a batch of results, one per class, with p-values adjusted for all classes.
    ``one(key, predictions, targets)``: result of a class. ``predictions``, ``targets``: [m, n]."""
    keys = jax.random.split(key, np.shape(predictions)[0])
    batch = jax.vmap(one)(keys, predictions, targets)
    adjusted = _adjusted(batch.p_value)
    return eqx.tree_at(lambda r: r.adjusted, batch, adjusted, is_leaf=lambda x: x is None)
