"""Recalibration by groups: a map of predictions, and what is left of the distance after it."""

from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array

from jaxcal import checks
from jaxcal.dce.bounds import Bracket
from jaxcal.dce.bracket import dce_bracket
from jaxcal.dce.groups import Groups, label_free_groups, moved
from jaxcal.dce.predictions import Ordered, binary, ordered
from jaxcal.results import Result, recorded
from jaxcal.typing import ArrayLike, Key, KeyLike, Scalar, Vector


class Recalibration(Result):
    """A map of predictions to the mean labels of their groups; call it on new predictions.

    Attributes:
        value: Mean distance that the map moves the data, [].
        groups: Groups of predictions and their mean labels, from all observations.
        predictions: Recalibrated predictions of the data, each by groups of the other folds, [n].
        before: Bracket of the distance of the data.
        after: Bracket of the distance of ``predictions``.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> truth = jnp.linspace(0.05, 0.95, 400)
        >>> targets = jax.random.bernoulli(jax.random.key(0), truth)
        >>> repair = jaxcal.dce.recalibrate(1, jnp.clip(2 * truth - 0.5, 0, 1), targets)
        >>> bool(repair(jnp.array([0.0]))[0] > 0.05)  # 0 was too low
        True
    """

    value: Scalar
    groups: Groups
    predictions: Vector
    before: Bracket
    after: Bracket

    def __call__(self, predictions: ArrayLike) -> Array:
        """Recalibrated predictions of new inputs.

        Args:
            predictions: Probabilities of label 1, [t].

        Returns:
            Mean labels of their groups, [t].
        """
        v = checks.floats(predictions, "predictions")
        v = checks.unit(v, "predictions", "probabilities (are these logits or percentages?)")
        return _apply(self.groups, v)

    def _lines(self) -> list[str]:
        count = int(self.groups.group.max()) + 1
        ends = [f"{float(b.low):.4g} to {float(b.high):.4g}" for b in (self.before, self.after)]
        return [
            f"recalibration by {count} groups, n = {self.predictions.shape[-1]}",
            f"  mean change       {float(self.value):.4g}",
            f"  distance before   {ends[0]}",
            f"  distance after    {ends[1]}   (each prediction by groups of other folds)",
        ]


@recorded
def recalibrate(
    key: KeyLike,
    predictions: ArrayLike,
    targets: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    folds: int = 5,
) -> Recalibration:
    """Recalibrate predictions by the mean labels of groups that were chosen without labels.

    The distance after repair is that of cross-fitted predictions: each is the mean label of its
    group in the other folds, so the noise of the mean labels counts.

    Args:
        key: Random key: typed, legacy or an integer seed, which assigns folds.
        predictions: Probabilities of label 1, [n].
        targets: Labels 0 or 1, or means of such, [n].
        weights: Weights of the observations, [n], >= 0.
        folds: Number of folds, from 2 to n.

    Returns:
        `Recalibration`, a callable.

    Raises:
        ValueError: Shapes or values are wrong; the message names the argument.
        TypeError: An argument is of the wrong type; the message names it.

    Cost: one sort, O(n folds), and two brackets without linear programs.

    Source: Blasiok et al. (2023), Lemma 4.7: mean labels of a partition are calibrated.

    Example:
        >>> import jax, jax.numpy as jnp, jaxcal
        >>> truth = jnp.linspace(0.05, 0.95, 400)
        >>> targets = jax.random.bernoulli(jax.random.key(0), truth)
        >>> repair = jaxcal.dce.recalibrate(1, jnp.clip(2 * truth - 0.5, 0, 1), targets)
        >>> bool(repair.after.high < repair.before.high)
        True
    """
    key = checks.key(key)
    folds = checks.integer(folds, "folds", least=2)
    data = binary(predictions, targets, weights)
    if folds > data.v.size:
        raise ValueError(f"folds: wanted at most one an observation, {data.v.size}, got {folds}")
    ascending = ordered(data)
    groups = _fit(ascending)
    repaired = ascending.back(_cross_fitted(key, ascending, folds))
    brackets = [dce_bracket(v, data.y, weights=data.w, solve=False) for v in (data.v, repaired)]
    change = moved(groups, ascending)
    return Recalibration(change, groups, repaired, *brackets)


_fit = jax.jit(label_free_groups)


@jax.jit
def _apply(groups: Groups, v: Array) -> Array:
    return groups.rate[groups.of(v)]


@partial(jax.jit, static_argnames="folds")
def _cross_fitted(key: Key, data: Ordered, folds: int) -> Vector:
    """Mean labels of the groups of other folds, in ascending order of the predictions."""
    fold = jax.random.permutation(key, jnp.arange(data.v.size) % folds)

    def without(one: Array) -> Vector:
        rest = data._replace(w=jnp.where(fold == one, 0, data.w))
        fitted = label_free_groups(rest)
        return fitted.rate[fitted.of(data.v)]

    by_fold = jax.lax.map(without, jnp.arange(folds))
    return by_fold[fold, jnp.arange(data.v.size)]
