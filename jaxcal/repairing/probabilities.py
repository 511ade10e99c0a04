"""Repair of class probabilities by a temperature, and of label probabilities by recalibration."""

from functools import partial
from typing import Any, ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxcal.dce import recalibrate
from jaxcal.dce.recalibration import Recalibration
from jaxcal.measures.temperature import (
    TemperatureFit,
    as_distribution,
    most_likely,
    with_temperature,
)
from jaxcal.read import checks
from jaxcal.read.families import Classes
from jaxcal.read.observations import copies
from jaxcal.repairing.certificate import ENERGY, NATS, about_gains, certificate, folds_of, say_gain
from jaxcal.results import Result, Sentences, recorded, sentences
from jaxcal.typing import ArrayLike, Key, Scalar, Vector

SMALLEST = 1e-9  # least temperature; it replaces 0, at which a search may end


class ProbabilityRepair(Result):
    """A map that repairs probabilities, and its gain on pairs that it was not fitted to.

    Attributes:
        gain: Mean gain in score, [], in ``unit``; each observation is changed by the map that was
            fitted without its fold.
        low, high, p_value: As in `jaxcal.repairing.result.Repair`.
        gains: Gain of each observation, [n]; NaN for observations that repeat another one.
        fitted: The map of all pairs: a `jaxcal.measures.TemperatureFit` for class probabilities, a
            `jaxcal.dce.Recalibration` for probabilities of a label.
        unit: "nats" of the log score, or "energy score", which for a label is (p - y)^2.
        n_folds: Number of folds.
        in_order: Whether folds are blocks of rows, and limits allow for dependent neighbours.
        level: Limits have confidence 1 - level.
    """

    gain: Scalar
    low: Scalar
    high: Scalar
    p_value: Scalar
    gains: Vector
    fitted: TemperatureFit | Recalibration
    unit: str = eqx.field(static=True)
    n_folds: int = eqx.field(static=True)
    in_order: bool = eqx.field(static=True)
    level: float = eqx.field(static=True)

    _scalar: ClassVar[str] = "gain"
    _long: ClassVar[tuple[str, ...]] = ("gains", "fitted")

    def predictions(self, predictions: ArrayLike) -> Array:
        """Return the repaired probabilities of t new predictions, [t, m] or [t]."""
        if isinstance(self.fitted, Recalibration):
            return self.fitted(predictions)
        return _warmed(checks.probabilities(predictions), self.fitted.temperature)

    def _sentences(self) -> Sentences:
        said = [(text, True) for text in self.fitted.warnings()]
        said += sentences({"repeated-rows": np.sum(np.isnan(self.gains))})
        return [*said, *about_gains(self.gains, self.in_order)]

    def _lines(self) -> list[str]:
        return [*say_gain(self), *(f"  {line}" for line in self.fitted._lines())]


@recorded
def of_classes(
    key: Key, predictions: ArrayLike, targets: ArrayLike, folds: int, in_order: bool, level: float
) -> ProbabilityRepair:
    """Repair class probabilities [n, m] by a temperature, with a cross-fitted gain in nats."""
    p = checks.probabilities(predictions)
    n, m = p.shape
    ys = checks.labels(targets, n, m)
    fit, gains, fold = _temperatures(None if in_order else key, p, ys, folds)
    return _certified(gains, fold, fit, NATS, folds, in_order, level)


@partial(jax.jit, static_argnames="folds")
def _temperatures(
    key: Key | None, p: Float[Array, "n m"], ys: Int[Array, " n"], folds: int
) -> tuple[TemperatureFit, Float[Array, "k n"], Int[Array, " n"]]:
    """Return the fit to all pairs; the gains of n pairs, [k + 1, n], by fits without fold 0, 1, ..,
    k - 1 and, last, by the fit to all pairs; and the fold of each pair, [n]."""
    fold, again = folds_of(key, len(p), folds), copies(ys, Classes(p))
    floor = jnp.finfo(p.dtype).tiny  # as in the fit

    def score(t: Array | float) -> Vector:
        at = jnp.take_along_axis(_warmed(p, t), ys[:, None], axis=1)[:, 0]
        return jnp.log(jnp.maximum(at, floor))

    def without(number: Array) -> tuple[TemperatureFit, Vector]:
        fit = most_likely(*as_distribution(p, ys), (~again & (fold != number)).astype(p.dtype))
        return fit, score(fit.temperature)

    fits, scores = jax.lax.map(without, jnp.arange(folds + 1))
    gains = jnp.where(again, jnp.nan, scores - score(1.0)[None])
    return jax.tree.map(lambda leaf: leaf[-1], fits), gains, fold


@recorded
def of_labels(
    key: Key, predictions: ArrayLike, targets: ArrayLike, folds: int, in_order: bool, level: float
) -> ProbabilityRepair:
    """Repair label probabilities p [n] by `recalibrate`, with a cross-fitted gain in (p - y)^2."""
    p = checks.unit(predictions, "predictions")
    ys = checks.unit(checks.features(targets, "targets"), "targets", "labels").astype(p.dtype)
    keys = jax.random.split(key)
    fold = folds_of(None if in_order else keys[0], len(p), folds)
    again = copies(ys, Classes(jnp.stack([1 - p, p], axis=1)))
    weights = [(~again & (fold != number)).astype(p.dtype) for number in range(folds + 1)]
    fits = [recalibrate(keys[1], p, ys, weights=weight, level=level) for weight in weights]
    new = jnp.stack([fit(p) for fit in fits])
    gains = jnp.where(again, jnp.nan, (p - ys)[None] ** 2 - (new - ys[None]) ** 2)
    return _certified(gains, fold, fits[-1], ENERGY, folds, in_order, level)


def _certified(
    gains: Float[Array, "k n"], fold: Int[Array, " n"], fitted: Any, unit: str, *rest: Any
) -> ProbabilityRepair:
    gain, low, high, p, each = certificate(gains, fold, rest[2], rest[1])
    return ProbabilityRepair(gain, low, high, p, each, fitted, unit, *rest)


def _warmed(p: Float[Array, "n m"], t: Array | float) -> Float[Array, "n m"]:
    usable = jnp.clip(jnp.asarray(t, p.dtype), SMALLEST, 1 / SMALLEST)
    return with_temperature(p, usable)
