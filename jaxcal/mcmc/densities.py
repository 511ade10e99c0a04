"""Log density of each prediction at its own point."""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Shaped

from jaxcal.read import Unnormalized, checks
from jaxcal.read.scores import is_distribution, on_whole_space
from jaxcal.typing import PredictionsLike


def log_densities(
    predictions: PredictionsLike, ys: Shaped[Array, "n *event"]
) -> Float[Array, " n"]:
    """Return the log density of each prediction at its own point, up to a constant per prediction.

    For a `jaxcal.Unnormalized` or a numpyro distribution with batch shape [n] or []. Not finite
    where the density is 0 or NaN.
    """
    checks.of_jax(predictions)
    ys = checks.numbers(ys, "ys")
    _one_each(predictions, ys)
    if isinstance(predictions, Unnormalized):
        density = jax.vmap(predictions.log_density, in_axes=(predictions.in_axes, 0))
        return density(predictions.params, ys)
    if is_distribution(predictions):
        return getattr(predictions, "log_prob")(ys)  # noqa: B009
    raise TypeError(
        f"predictions: cannot get log densities from {type(predictions).__name__}. Pass a numpyro "
        f"distribution with batch shape [n] or jaxcal.Unnormalized(log_density, params)"
    )


def _one_each(predictions: PredictionsLike, ys: Array) -> None:
    if isinstance(predictions, Unnormalized) and predictions.in_axes == 0:
        batch = {jnp.shape(leaf)[:1] for leaf in jax.tree.leaves(predictions.params)}
    else:
        batch = {tuple(getattr(predictions, "batch_shape", ()))}
    if ys.size == 0 or any(size not in ((), ys.shape[:1]) for size in batch):
        raise ValueError(f"ys: wanted one target a prediction, got shape {ys.shape}")


def layout(
    predictions: Any, event_shape: int | tuple[int, ...] | None
) -> tuple[int, tuple[int, ...]]:
    """Return the number of predictions and the shape of one target, checked for consistency.

    ValueError or TypeError explain what was expected.
    """
    checks.of_jax(predictions)
    if event_shape is not None:
        sides = event_shape if isinstance(event_shape, tuple | list) else (event_shape,)
        event_shape = tuple(checks.integer(side, "event_shape") for side in sides)
    if is_distribution(predictions):
        batch, event = tuple(predictions.batch_shape), tuple(predictions.event_shape)
        if len(batch) != 1:
            raise ValueError(
                f"predictions: wanted a distribution with batch shape [n], got {batch}"
                + ("; .to_event(1) makes the last batch axis an event" if len(batch) > 1 else "")
            )
        if event_shape is not None and tuple(event_shape) != event:
            raise ValueError(f"event_shape: got {event_shape} for targets of shape {event}")
        if not on_whole_space(predictions):
            raise ValueError(
                f"predictions: {type(predictions).__name__} lives on {predictions.support}, and "
                f"MCMC here walks all of space; numpyro distributions can be sampled directly, or "
                f"transform the target to the whole line first"
            )
        return batch[0], event
    if not isinstance(predictions, Unnormalized):
        raise TypeError(
            f"predictions: MCMC needs log densities, which {type(predictions).__name__} does not "
            f"give; pass a numpyro distribution with batch shape [n] or "
            f"jaxcal.Unnormalized(log_density, params)"
        )
    if event_shape is None:
        raise ValueError(
            "event_shape: an unnormalized density does not say what its targets look like; pass "
            "event_shape=d for vectors of length d, or () for numbers"
        )
    count = jax.vmap(lambda params: 0.0, in_axes=(predictions.in_axes,))
    return jax.eval_shape(count, predictions.params).shape[0], tuple(event_shape)
