"""Maps that are fitted without the pairs on which they are judged."""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int

from jaxcal.engine import one_at_a_time
from jaxcal.read import Standardized, Units
from jaxcal.read.observations import copies
from jaxcal.repairing.certificate import folds_of
from jaxcal.repairing.features import Features
from jaxcal.repairing.fit import Fitted, Parameters, densities_at, fit, log_likelihoods
from jaxcal.repairing.move import Move
from jaxcal.typing import Key, Predictions, Vector


class CrossFitted(NamedTuple):
    """Maps fitted without fold 0, 1, .., k - 1 and, last, to all n pairs.

    ``parameters``: those of the k + 1 maps. ``fitted``: the last map. ``gains``: gain of each pair
    by each map, [k + 1, n]. ``fold``: fold of each pair, [n]. ``moves``: move of each pair by the
    map without its fold, in the units of the data. ``unmoved``: number of unchanged predictions,
    [].
    """

    parameters: Parameters
    fitted: Fitted
    features: Features
    gains: Float[Array, "k n"]
    fold: Int[Array, " n"]
    moves: Move
    unmoved: Int[Array, ""]


@partial(jax.jit, static_argnames=("folds", "n_draws"))
def cross_fitted(
    key: Key | None,
    predictions: Predictions,
    ys: Array,
    inputs: Float[Array, "n q"],
    folds: int,
    densities: Predictions | None = None,
    n_draws: int = 0,
) -> CrossFitted:
    """Fit maps without each fold and to all pairs, and apply them to each pair. Without a key,
    folds are blocks of neighbouring rows.

    ``densities`` of the targets for the likelihood are by default those of ``predictions``, whose
    centres and scales are the units of the maps. ``n_draws``: number of draws behind each, or 0.
    """
    densities = predictions if densities is None else densities
    fitted = partial(_cross_fitted, folds, n_draws)
    return one_at_a_time(fitted)(key, (predictions, densities), ys, inputs)


def _cross_fitted(
    folds: int,
    n_draws: int,
    key: Key | None,
    both: tuple[Any, Any],
    ys: Array,
    inputs: Float[Array, "n q"],
) -> CrossFitted:
    n = len(ys)
    features, frame = Features.of(both[0], ys, inputs, n_draws)
    seen = Standardized(both[1], features.units, ys.shape[1:])
    ts = features.units.points(ys.reshape(n, -1))
    old = densities_at(seen, ts)
    usable = jnp.isfinite(old) & jnp.all(jnp.isfinite(ts), axis=1) & ~copies(ys, both[0])
    fold = folds_of(key, n, folds)

    def of_others(number: Int[Array, ""]) -> Fitted:
        return fit(frame, seen, ts, usable & (fold != number))

    fits = jax.lax.map(of_others, jnp.arange(folds + 1))  # the last leaves no fold out

    def judged(parameters: Parameters) -> tuple[Vector, Move]:
        logs = log_likelihoods(parameters, frame, seen, ts)
        gains = jnp.where(usable, logs - old, jnp.nan)
        return gains, in_data_units(parameters.moves(frame), features.units)

    gains, everywhere = jax.lax.map(judged, fits.parameters)
    moves = jax.tree.map(lambda leaf: leaf[fold, jnp.arange(n)], everywhere)
    of_all = jax.tree.map(lambda leaf: leaf[-1], fits)
    unmoved = jnp.sum(~frame.reliable)
    return CrossFitted(fits.parameters, of_all, features, gains, fold, moves, unmoved)


def in_data_units(move: Move, units: Units) -> Move:
    """Convert moves of points in common units to moves of targets."""
    ratio = units.scale[:, None] / units.scale[None]
    return move._replace(
        center=units.original(move.center),
        forward=move.forward * ratio[None],
        inverse=move.inverse * ratio[None],
        shift=move.shift * units.scale[None],
    )
