"""Recalibrate predictions by mean labels of groups, and bound the error of the new predictions."""

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxcal.dce.distance import DistanceResult, distance_from_calibration
from jaxcal.dce.population import RUNS, Groups
from jaxcal.dce.predictions import Ordered, binary, ordered
from jaxcal.numerics import group_sums
from jaxcal.read import checks, convert
from jaxcal.results import Interval, Result, Sentences, confidence, in_words, recorded
from jaxcal.typing import ArrayLike, Key, KeyLike, Scalar

DRAWS = 1000  # draws of random errors of the mean labels


class Recalibration(Result):
    """Map from predictions to the mean labels of their groups, to be called on new predictions.

    Attributes:
        value: Mean absolute change of the predictions by the map, [].
        groups: Groups of predictions, chosen without labels, and their mean labels.
        before: Distance from calibration of the original predictions, with interval and verdict.
        after: Interval of the ECE of new predictions after the map, with confidence 1 - ``level``.
            This ECE is an upper bound of their distance from calibration. Only errors of the mean
            labels contribute, because all predictions of a group become equal.
        expected: Expectation of the ECE of new predictions after the map, [].
    """

    value: Scalar
    groups: Groups
    before: DistanceResult
    after: Interval
    expected: Scalar

    def __call__(self, predictions: ArrayLike) -> Array:
        """Return recalibrated predictions.

        Args:
            predictions: Probabilities of label 1, [t].

        Returns:
            Mean labels of their groups, [t].
        """
        v = convert.floats(predictions, "predictions")
        v = checks.unit(v, "predictions", "probabilities (are these logits or percentages?)")
        return _apply(self.groups, v)

    def _sentences(self) -> Sentences:
        if self.batch_shape:
            return []
        rejected = self.before.verdict == "rejected"
        shown = float(self.after.high) < float(self.before.interval.low)
        return [
            (
                "the data do not reject calibration, so there is nothing to repair; the map adds "
                f"an error of about {float(self.expected):.3g} [nothing-to-repair]",
                self.before.verdict == "not rejected",
            ),
            (
                "the error of the map may be as large as the distance before: whether new "
                "predictions gain is not shown [uncertain-repair]",
                rejected and not shown,
            ),
        ]

    def _lines(self) -> list[str]:
        count = int(self.groups.group.max()) + 1
        before, trust = self.before.interval, confidence(self.after.level)
        ends = [f"{float(b.low):.4g} to {float(b.high):.4g}" for b in (before, self.after)]
        return [
            f"recalibration by {count} groups, n = {self.before.predictions.shape[-1]}",
            f"  mean change       {float(self.value):.4g}",
            f"  before            {in_words(self.before)}",
            f"  distance before   {ends[0]}   (population, {trust})",
            f"  ECE after         {ends[1]}   (new predictions, {trust}; expected "
            f"{float(self.expected):.4g})",
        ]


@recorded
def recalibrate(
    key: KeyLike,
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    level: float = 0.05,
) -> Recalibration:
    r"""Recalibrate predictions by the mean labels of groups that are chosen without labels.

    The map replaces a prediction in group j by the mean label :math:`r_j` of :math:`n_j`
    observations. In the population the group has mean label :math:`r^*_j` and mass :math:`p_j`. On
    new predictions the ECE is :math:`\sum_j p_j |r_j - r^*_j|`. It is an upper bound of their
    distance from calibration. The expectation of the ECE is about :math:`\sum_j p_j \sqrt{2 r_j
    (1 - r_j) / (\pi n_j)}`. On the given data the ECE is 0, because their labels define the map.

    Args:
        key: Random key: typed, legacy or an integer seed.
        predictions: Probabilities of label 1, [n].
        targets: Labels 0 or 1, or means of labels, [n].
        weights: Weights of the observations, [n], >= 0.
        level: Level of the test of the original predictions; both intervals have confidence
            1 - ``level``.

    Returns:
        `Recalibration`, a callable. It warns if the test does not reject calibration
        (nothing-to-repair). It also warns if the test rejects, but the interval of the ECE after
        the map is not below the interval of the distance before (uncertain-repair).

    Cost: that of `jaxcal.distance_from_calibration`.

    Source: Blasiok et al. (2023), Lemma 4.7: mean labels of a partition are calibrated.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> truth = jnp.linspace(0.05, 0.95, 1000)
        >>> targets = jax.random.bernoulli(jax.random.key(0), truth)
        >>> repair = jaxcal.dce.recalibrate(1, truth**3, targets)
        >>> repair.before.verdict, bool(repair.after.high < repair.before.interval.low)
        ('rejected', True)
    """
    level = checks.level(level)
    test_key, noise_key = jax.random.split(convert.key(key))
    before = distance_from_calibration(test_key, predictions, targets, weights=weights, level=level)
    data = ordered(binary(predictions, targets, weights))
    groups = before.population.groups
    low, high, expected = _error_of_map(noise_key, groups, data, level)
    after = Interval(low, high, level)
    return Recalibration(before.population.moved, groups, before, after, expected)


@jax.jit
def _apply(groups: Groups, v: Array) -> Array:
    return jnp.where((v >= 0) & (v <= 1), groups.rate[groups.of(v)], jnp.nan)


@jax.jit
def _error_of_map(
    key: Key, groups: Groups, data: Ordered, level: float | Scalar
) -> tuple[Scalar, Scalar, Scalar]:
    r"""Return low and high end of an interval of the ECE in `recalibrate`, and the expected ECE.

    Errors of the mean labels of groups are drawn from normal distributions. For their variances,
    half a label 0 and half a label 1 are added to each group (Jeffreys), so that none is 0."""
    of = groups.group[groups.of(data.v)]
    weight = jnp.sum(data.w**2)  # mean weight, averaged over observations by weight

    def by_group(x: Array) -> Array:
        return group_sums(x, of, RUNS)

    mass = by_group(data.w)
    rate = (by_group(data.w * data.y) + weight / 2) / (mass + weight)
    squares = by_group((data.w * (data.y - rate[of])) ** 2)
    squares = squares + weight**2 * (rate**2 + (1 - rate) ** 2) / 2
    count = mass**2 / jnp.where(mass > 0, by_group(data.w**2), 1)  # equivalent number of labels
    variance = squares / (mass + weight) ** 2 * (count + 1) / jnp.maximum(count - 1, 1)
    share = mass * jnp.sqrt(variance)
    noise = jnp.abs(jax.random.normal(key, (DRAWS, RUNS), share.dtype)) @ share
    low, high = (jnp.quantile(noise, part) for part in (level / 2, 1 - level / 2))
    return low, high, jnp.sqrt(2 / jnp.pi) * jnp.sum(share)
