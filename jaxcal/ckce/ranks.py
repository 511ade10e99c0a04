r"""Errors in units of probability for predictions other than class probabilities.

Under calibration the rank r of a target among draws of its prediction is uniform given the
prediction: the event "y is at most the t-quantile" has the claimed probability t. The residuals are
:math:`1\{r \le t\} - t` at ten levels t for each coordinate. They are regressed on the claimed
centre and log scale, as in `jaxcal.ckce.probability`, so the error is again the root mean square
error of the probabilities of events, and models of different kinds are comparable. Ranks are those
of `jaxcal.entries`: from draws, or, for a log density without its constant, from weighted points;
both are exactly uniform under calibration.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from jaxcal.ckce.any_predictions import floating, log_scores
from jaxcal.ckce.errors import ADDED, Error, judged
from jaxcal.ckce.expansion import Noise
from jaxcal.ckce.inputs import standardized
from jaxcal.ckce.probability import by_regression, n_components
from jaxcal.ckce.results import Covered
from jaxcal.entries.moments import features_of
from jaxcal.entries.ranks import Ranked, seen
from jaxcal.read import Draws, Scores, Standardized, Units, Unnormalized, checks
from jaxcal.read.observations import n_repeated, observations
from jaxcal.results.notes import memory
from jaxcal.typing import ArrayLike, Contents, Key, PredictionsLike

LEVELS = np.arange(0.05, 1, 0.1)
CENTRAL = 0.9  # probability of the intervals whose coverage the report shows

# what events say of ranks, [n, p], and the levels of their ends, [p]
Events: TypeAlias = tuple[Float[Array, "n p"], Float[Array, " p"]]


def ready(
    names: tuple[str, ...], models: list[PredictionsLike], targets: ArrayLike, *, least: int = 3
) -> tuple[list[PredictionsLike], Array, list[Array]]:
    """Return checked models, at least ``least`` targets, and the correlation of each model's draws,
    which are thinned; an error names the model."""
    checked, ys, lags = [], jnp.zeros(0), []
    for name, model in zip(names, models, strict=True):
        try:
            if isinstance(model, Scores):
                raise TypeError(
                    "scores alone give no ranks of the targets, which errors in units of "
                    'probability need: pass the density, or take measure="ckce"'
                )
            if isinstance(model, Unnormalized):
                ys = checks.targets(targets, least=min(least, 2))
                model = checks.predictions(model, ys)
            else:
                model, ys = observations(model, targets, least=min(least, 2))
        except (TypeError, ValueError) as error:
            raise type(error)(f"models[{name}]: {error}") from None
        one, lag = model.thinned() if isinstance(model, Draws) else (model, jnp.zeros(()))
        checked.append(one)
        lags.append(lag)
    if len(ys) < least:
        raise ValueError(f"targets: comparing needs at least {least} observations, got n={len(ys)}")
    return checked, ys, lags


def compared(
    key: Key,
    names: tuple[str, ...],
    models: list[PredictionsLike],
    targets: ArrayLike,
    n_draws: int,
    level: float,
    given: ArrayLike | None,
) -> Contents:
    """Return the fields of a `Comparison` by ranks, with arguments as in `jaxcal.compare`."""
    models, ys, lags = ready(names, models, targets)
    errors_key, draws_key = jax.random.split(key)
    keys, z = (errors_key, draws_key), standardized(given, len(ys), floating(ys))
    each = [_error(keys, model, ys, z, n_draws) for model in models]
    errors, (hit, lower, memories) = jax.tree.map(lambda *leaves: jnp.stack(leaves), *each)
    covered = Covered(hit, lower, jnp.stack([lag.astype(hit.dtype) for lag in lags]))
    others = {"covered": covered, "skill": log_scores(models, ys), "n": len(ys)}
    others["repeated"] = n_repeated(ys, models[0])
    return judged(draws_key, errors, level, 1.0) | others | {"memory": memories}


@partial(jax.jit, static_argnames="n_draws")
def _error(
    keys: tuple[Key, Key], predictions: Any, ys: Array, variables: Array | None, n_draws: int
) -> tuple[Error, tuple[Array, Array, Array]]:
    ranks_key, deal_key, noise_key, null_key = jax.random.split(keys[0], 4)
    n = len(ys)
    raw = ys.reshape(n, -1)
    units = Units.of(raw)
    near = seen(ranks_key, Standardized(predictions, units, ys.shape[1:]), units.points(raw), ys)
    ranks = near.ranks.coordinates
    lost = ~jnp.all(jnp.isfinite(raw) & jnp.isfinite(ranks), axis=1)
    d = extrapolated(residuals, near.ranks)
    uniform, _ = residuals(jax.random.uniform(noise_key, ranks.shape, ranks.dtype))

    def signed(key: Key) -> Array:
        return jax.random.rademacher(key, (n, 1), dtype=d.dtype) * d

    further = [] if variables is None else [variables]
    features = jnp.concatenate([*features_of(near), *further], axis=1)
    rank = n_components(n, features.shape[1] + 1)
    # along the leading component of uniform ranks, to which most errors belong
    variance = 2 / (np.pi**2 * ranks.shape[1])
    noise = Noise(np.sqrt(ADDED / (n + ADDED)) * uniform, signed)
    ones = jnp.ones(n, d.dtype)
    keys_of_draws = (deal_key, null_key, keys[1])
    error = by_regression(keys_of_draws, features, ones, d, noise, variance, rank, n_draws)
    hit, lower = (jnp.mean(extrapolated(event, near.ranks), axis=0) for event in (inside, below))
    shares = jnp.clip(hit, 0, 1), jnp.clip(lower, 0, 1), memory(d, raw)
    return error._replace(nonfinite=jnp.sum(lost)), shares


def extrapolated(at: Callable[[Array], Events], ranks: Ranked) -> Float[Array, "n p"]:
    """Return what events say of ranks among infinitely many points, up to O(m^-2).

    Ranks among m points are blurred by O(1 / m), so that wrong predictions look less wrong: of 50
    draws by up to 13 % of the squared error, of 96 by 7 %. Halves are blurred twice as much, which
    tells how much, where they resolve the level of the event. All are uniform under calibration, so
    that the mean there stays as it is.
    """
    plain, levels = at(ranks.coordinates)
    halves = (at(ranks.halves[:, 0])[0] + at(ranks.halves[:, 1])[0]) / 2
    fine = jnp.minimum(levels, 1 - levels)[None] >= 2 * ranks.grain[:, None]
    return jnp.where(fine, 2 * plain - halves, plain)


def inside(ranks: Float[Array, "n d"]) -> Events:
    """Return 1 for ranks in the central interval, else 0."""
    d = ranks.shape[1]
    within = jnp.abs(ranks - 0.5) <= CENTRAL / 2
    return within.astype(ranks.dtype), jnp.full(d, (1 - CENTRAL) / 2, ranks.dtype)


def below(ranks: Float[Array, "n d"]) -> Events:
    """Return 1 for ranks below the median, else 0."""
    return (ranks < 0.5).astype(ranks.dtype), jnp.full(ranks.shape[1], 0.5, ranks.dtype)


def residuals(ranks: Float[Array, "n d"]) -> Events:
    """Return residuals of ranks at each level, scaled so that half the squared norm of their mean
    is the mean square error over levels and coordinates."""
    levels = jnp.asarray(LEVELS, ranks.dtype)[None, None]
    gaps = (ranks[:, :, None] <= levels).astype(ranks.dtype) - levels
    n, d = ranks.shape
    scale = np.sqrt(2 / (levels.size * d))
    return gaps.reshape(n, -1) * scale, jnp.tile(levels[0, 0], d)
