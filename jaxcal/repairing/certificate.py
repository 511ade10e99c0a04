r"""Compute the gain of maps on pairs that they were not fitted to, with confidence limits.

For pair i of fold k(i), the map :math:`\theta_{k(i)}` is fitted to the K - 1 other folds. Let
:math:`g_i(\theta)` be the gain of pair i by a map, and G its expectation on new pairs. Let
:math:`S_k` be the gradients of the log likelihood summed over fold k, and A the inverse
information. To second order about the best map :math:`\theta^*`, the error of the mean gain is

.. math::
    \frac{1}{n} \sum_i [g_i(\theta_{k(i)}) - G(\theta_{k(i)})]
    = \frac{1}{n} \sum_i [g_i(\theta^*) - G(\theta^*)] + \frac{1}{n} \sum_{k \ne l} S_k^\top A S_l.

The second sum contains each pair of folds k, l twice, with equal products. Let L and Q be the sums
of squares of the terms of the first and of the second sum, and V = L + Q the sum of squares of the
gains. The variance is (L + 2 Q) / n^2 = (V + Q) / n^2. For correct predictions L = 0, and limits
from V / n^2 have coverage .84, not .95. Q is estimated from :math:`g_i(\theta) - g_i(\theta_l)`,
the effect of fold l, with :math:`\theta` the map fitted to all pairs.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from jaxcal.engine import LightJit, one_at_a_time
from jaxcal.moments.attribution import student_p_value, student_quantile
from jaxcal.nulls.resampling import dependence
from jaxcal.read import Standardized, Units
from jaxcal.read.observations import copies
from jaxcal.repairing.fit import (
    Features,
    Fitted,
    Frame,
    Parameters,
    densities_at,
    fit,
    log_likelihoods,
)
from jaxcal.repairing.move import Move
from jaxcal.results import Sentences, confidence
from jaxcal.results.notes import TABLE, memory
from jaxcal.typing import Key, Predictions, Scalar, Vector

FEWEST = 30  # smallest number of pairs with which the coverage of limits was measured
DECIDES = 0.5  # there is a warning if one pair has a larger share of the variance of the gains
NATS, ENERGY = "nats", "energy score"
UNITS = {NATS: "nats an observation", ENERGY: "of the energy score"}


def folds_of(key: Key | None, n: int, folds: int) -> Int[Array, " n"]:
    """Return the number of the fold, 0 to ``folds`` - 1, of each of n pairs: random or, if the key
    is None, in blocks of neighbouring pairs. Sizes of folds differ by at most 1."""
    if key is None:
        return jnp.arange(n) * folds // n
    return jax.random.permutation(key, jnp.arange(n) % folds)


@partial(LightJit, static_argnames="in_order")
def certificate(
    gains: Float[Array, "k n"],
    fold: Int[Array, " n"],
    level: Scalar | float,
    in_order: bool = False,
) -> tuple[Scalar, Scalar, Scalar, Scalar, Vector]:
    """Return mean gain, lower and upper limit, one-sided p-value, and the gain of each pair, [n],
    by the map fitted without its fold. If the mean is -inf, so are limits, and the p-value is 1.

    Args:
        gains: Gains of n pairs by the maps fitted without fold 0, 1, .. and, last, by the map of
            all pairs; NaN for pairs that are left out.
        fold: Fold of each pair.
        level: Limits have confidence 1 - level.
        in_order: Whether limits allow for dependence of neighbouring pairs.
    """
    held_out = gains[fold, jnp.arange(len(fold))]
    used = ~jnp.isnan(held_out)
    count = jnp.sum(used, dtype=gains.dtype)
    mean = jnp.nanmean(held_out)
    squares = jnp.nansum((held_out - mean) ** 2) * count / (count - 1)
    error = jnp.sqrt(squares + _shared(gains, fold, used)) / count
    if in_order:
        series = jnp.where(used, held_out, mean)
        error = error * jnp.sqrt(dependence(series[:, None]).inflation[0])
    reach = student_quantile(1 - level / 2, count - 1) * error
    two_sided = student_p_value(mean, error, count - 1)
    p = jnp.where(mean > 0, two_sided / 2, 1 - two_sided / 2)
    lost = mean == -jnp.inf  # a target where the repaired density is 0
    low, high = (jnp.where(lost, mean, mean + side * reach) for side in (-1, 1))
    return mean, low, high, jnp.where(lost, 1, p), held_out


def _shared(gains: Float[Array, "k n"], fold: Int[Array, " n"], used: Array) -> Scalar:
    """Return Q (see the module): the sum over folds l of squared effects on pairs outside fold l.

    The effect on a pair is its gain by the map of all pairs minus its gain by the map without fold
    l, centred over pairs. Q has a factor K / (K - 1), as the best map is unknown.
    """
    folds = len(gains) - 1
    moved = gains[-1:] - gains[:-1]
    others = used[None] & (fold[None] != jnp.arange(folds)[:, None]) & jnp.isfinite(moved)
    moved = jnp.where(others, moved, 0)
    counts = jnp.maximum(jnp.sum(others, axis=1, keepdims=True, dtype=gains.dtype), 1)
    middle = jnp.sum(moved, axis=1, keepdims=True) / counts
    squares = jnp.where(others, (moved - middle) ** 2, 0)
    return jnp.sum(squares) * folds / (folds - 1)


def about_gains(gains: Array, in_order: bool) -> Sentences:
    """Return three warnings on gains [.., n], each as a tuple: (sentence, whether it applies)."""
    values = np.asarray(gains, float)
    used = np.isfinite(values)
    n = int(np.min(np.sum(used, axis=-1)))
    values = np.where(used, values, 0)
    middle = np.sum(values, -1, keepdims=True) / np.maximum(np.sum(used, -1, keepdims=True), 1)
    gaps = np.where(used, values - middle, 0)
    total = np.sum(gaps**2, axis=-1)
    share = float(np.max(np.max(gaps**2, axis=-1) / np.where(total > 0, total, 1)))
    lag = float(np.max(memory(gaps[..., None])))
    dependent = (
        f"gains of neighbouring rows have correlation {lag:.2g}: if rows are in the order of time "
        f"or place, the gain is too large and its limits are too narrow: use in_order=True; if "
        f"rows are sorted by targets, put them in random order [dependent-rows]"
    )
    one = (
        f"one pair has {share:.0%} of the variance of the gains, so gain and limits depend mainly "
        f"on it: an outlier, heavy tails or few pairs [one-observation-decides]"
    )
    few = (
        f"{n} pairs are too few for the limits, which were measured with {FEWEST} or more "
        f"[few-observations]"
    )
    return [
        (dependent, lag > TABLE["dependent-rows"].above and not in_order),
        (one, share > DECIDES),
        (few, n < FEWEST),
    ]


def say_gain(repair: Any) -> list[str]:
    """Return two lines with n, folds, gain and limits of a `Repair` or `ProbabilityRepair`."""
    n, used = repair.gains.shape[-1], int(np.sum(~np.isnan(np.asarray(repair.gains))))
    n_pairs = f"{n}" if used == n else f"{n} ({used} used)"
    return [f"repair, n = {n_pairs}, {repair.n_folds} folds", f"  gain    {gain_in_words(repair)}"]


def gain_in_words(repair: Any) -> str:
    """Return a text with the gain, its unit, limits and p-value."""
    low, high = float(repair.low), float(repair.high)
    return (
        f"{float(repair.gain):.3g} {UNITS[repair.unit]}   ({confidence(repair.level)} limits "
        f"{low:.3g} to {high:.3g}, p = {float(repair.p_value):.2g})"
    )


class CrossFitted(NamedTuple):
    """Maps 0, .., k - 1, each fitted without the fold of its number, and map k of all pairs.

    ``parameters``: parameters of all maps, leaves [k + 1, ..]. ``fitted``: the fit to all pairs.
    ``features``: features with which maps vary. ``gains``: gain of each pair by each map, [k + 1,
    n]. ``fold``: fold of each pair, [n]. ``moves``: move of each prediction by the map fitted
    without its fold, in the units of the data. ``unmoved``: number of unchanged predictions, [].
    ``axes`` [d, d]: row k is the direction of coordinate k in the units of predictions, on average.
    """

    parameters: Parameters
    fitted: Fitted
    features: Features
    gains: Float[Array, "k n"]
    fold: Int[Array, " n"]
    moves: Move
    unmoved: Int[Array, ""]
    axes: Float[Array, "d d"]


@partial(LightJit, static_argnames=("folds", "n_samples"))
def cross_fitted(
    key: Key | None,
    predictions: Predictions,
    ys: Array,
    inputs: Float[Array, "n q"],
    folds: int,
    densities: Predictions | None = None,
    n_samples: int = 0,
) -> CrossFitted:
    """Fit one map to all pairs, and for each fold one map to the pairs of the other folds. Return
    these maps and their gains. Without a key, folds are blocks of neighbouring rows.

    Maps act in units of the centres and scales of ``predictions``. The likelihood is that of
    ``densities``, by default ``predictions``. ``n_samples``: draws per prediction; 0 for densities.
    """
    densities = predictions if densities is None else densities
    fitted = partial(_cross_fitted, folds, n_samples)
    return one_at_a_time(fitted)(key, (predictions, densities), ys, inputs)


def _cross_fitted(
    folds: int,
    n_samples: int,
    key: Key | None,
    both: tuple[Any, Any],
    ys: Array,
    inputs: Float[Array, "n q"],
) -> CrossFitted:
    n = len(ys)
    features, frame = Features.of(both[0], ys, inputs, n_samples)
    likelihoods = Standardized(both[1], features.units, ys.shape[1:])
    ts = features.units.points(ys.reshape(n, -1))
    old = densities_at(likelihoods, ts)
    usable = jnp.isfinite(old) & jnp.all(jnp.isfinite(ts), axis=1) & ~copies(ys, both[0])
    fold = folds_of(key, n, folds)

    def of_others(number: Int[Array, ""]) -> Fitted:
        return fit(frame, likelihoods, ts, usable & (fold != number))

    fits = jax.lax.map(of_others, jnp.arange(folds + 1))  # the last leaves no fold out

    def judged(parameters: Parameters) -> tuple[Vector, Move]:
        logs = log_likelihoods(parameters, frame, likelihoods, ts)
        gains = jnp.where(usable, logs - old, jnp.nan)
        return gains, in_data_units(parameters.moves(frame), features.units)

    gains, everywhere = jax.lax.map(judged, fits.parameters)
    moves = jax.tree.map(lambda leaf: leaf[fold, jnp.arange(n)], everywhere)
    of_all = jax.tree.map(lambda leaf: leaf[-1], fits)
    unmoved = jnp.sum(~frame.reliable)
    axes = _directions(frame)
    return CrossFitted(fits.parameters, of_all, features, gains, fold, moves, unmoved, axes)


def _directions(frame: Frame) -> Float[Array, "d d"]:
    """Return the mean over predictions of the rows of ``scale``, each divided by its length, which
    is the deviation of its coordinate; rows of the mean are divided by their lengths again."""
    rows = frame.scale / jnp.linalg.norm(frame.scale, axis=2, keepdims=True)
    mean = jnp.sum(jnp.where(frame.reliable[:, None, None], rows, 0), axis=0)
    length = jnp.linalg.norm(mean, axis=1, keepdims=True)
    return jnp.where(length > 0, mean / length, jnp.eye(len(mean), dtype=mean.dtype))


def in_data_units(move: Move, units: Units) -> Move:
    """Return moves of points in the units of the data, from moves of points in ``units``."""
    ratio = units.scale[:, None] / units.scale[None]
    return move._replace(
        center=units.original(move.center),
        forward=move.forward * ratio[None],
        inverse=move.inverse * ratio[None],
        shift=move.shift * units.scale[None],
    )
