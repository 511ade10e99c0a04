"""Validation of the observations of an SKCE test: predictions that match their targets."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array

from jaxcal.read import Draws, Scores, Unnormalized, checks
from jaxcal.read.convert import brought
from jaxcal.read.families import Classes, Mixtures, distribution_of
from jaxcal.read.scores import is_distribution
from jaxcal.typing import ArrayLike, PredictionsLike


def observations(predictions: Any, targets: ArrayLike, *, least: int = 2) -> tuple[Any, Array]:
    """Return class probabilities with classes, or predictions over vectors with float targets; at
    least ``least`` of them."""
    checks.of_jax(predictions)
    if isinstance(predictions, Classes):
        return _classes(predictions.probabilities, targets, "predictions", least)
    if isinstance(predictions, (jax.Array, list, tuple)) or brought(predictions):
        return _classes(predictions, targets, "predictions", least)
    if is_distribution(predictions):
        distribution = distribution_of(predictions)
        if isinstance(distribution, Classes):
            return _classes(distribution.probabilities, targets, "predictions", least)
        if distribution is None and _integers(targets):
            targets = jnp.asarray(checks.array(targets, "targets")).astype(float)
    ys = checks.targets(targets, least=least)
    n, event = ys.shape[0], ys.shape[1:]
    if isinstance(getattr(predictions, "draws", None), Draws):
        predictions = predictions.draws  # of an MCMC result
    if isinstance(predictions, Draws):
        samples = checks.floats(predictions.samples, "Draws.samples")
        if samples.ndim != ys.ndim + 1 or (samples.shape[0], *samples.shape[2:]) != (n, *event):
            raise ValueError(
                f"Draws.samples: wanted shape ({n}, m{''.join(f', {e}' for e in event)}), m draws "
                f"of each prediction, got {samples.shape}"
            )
        if samples.shape[1] < 4:
            raise ValueError(
                f"Draws.samples: wanted at least 4 draws of each prediction, half for the distance "
                f"between predictions and half for their means, got {samples.shape[1]}"
            )
        rhat = predictions.rhat
        if rhat is not None and (rhat := checks.floats(rhat, "Draws.rhat")).shape != (n,):
            raise ValueError(f"Draws.rhat: wanted shape ({n},), got {rhat.shape}")
        return Draws(samples, rhat).unsorted(), ys
    if isinstance(predictions, (Unnormalized, Scores)):
        raise TypeError(
            f"predictions: SKCE needs kernel means or draws, which {type(predictions).__name__} "
            f"does not give: use kccsd_test, or draw from the densities by jaxcal.mcmc.mcmc_draws "
            f"and pass what it returns"
        )
    if getattr(predictions, "batch_shape", None) == ():
        predictions = getattr(predictions, "expand")((n,))  # noqa: B009
    return checks.predictions(predictions, ys), ys


def _integers(targets: ArrayLike) -> bool:
    kind = checks.array(targets, "targets").dtype
    return jnp.issubdtype(kind, jnp.integer) or jnp.issubdtype(kind, jnp.bool_)


def _classes(
    predictions: PredictionsLike, targets: ArrayLike, name: str, least: int
) -> tuple[Classes, Array]:
    p = checks.floats(predictions, name)
    if p.ndim == 1:
        predictions = p = checks.probabilities(p, name, binary=True)
    if p.ndim == 2 and not _integers(targets):
        shape = np.shape(checks.array(targets, "targets"))
        remedy = (
            "of one-hot rows give targets.argmax(1)"
            if shape == p.shape
            else "of whole numbers give targets.astype(int)"
        )
        raise TypeError(
            f"targets: wanted integer classes 0, .., m - 1, since predictions are an array and so "
            f"class probabilities; got {checks.say(targets)}: {remedy}, or wrap predictions that "
            f"are draws as jaxcal.Draws(array)"
        )
    p = checks.probabilities(predictions, name)
    ys = checks.labels(targets, p.shape[0], p.shape[1])
    if len(ys) < least:
        raise ValueError(f"targets: wanted at least 2 observations, got shape {ys.shape}")
    return Classes(p), ys


def check_parameters(distribution: Any) -> None:
    """Raise ValueError for invalid parameters of a distribution, if values are concrete."""
    if isinstance(distribution, Mixtures):
        checks.probabilities(distribution.weights, "predictions: the weights of the mixture")


def finite_rows(value: object, n: int, name: str) -> Array:
    """Return `checks.rows`, or ValueError if one holds NaN or infinite values."""
    vectors = checks.rows(value, n, name)
    finite = jnp.all(jnp.isfinite(vectors), axis=0)
    if not isinstance(finite, Tracer) and not jnp.all(finite):
        raise ValueError(
            f"{name}: column {int(jnp.argmin(finite))} holds NaN or infinite values: leave these "
            f"observations out, or say what is missing by a column of 0 and 1"
        )
    return vectors


def densities(value: Any, ys: Array) -> Any:
    """Return `checks.predictions` that have log densities."""
    if not (isinstance(value, Unnormalized) or is_distribution(value)):
        raise TypeError(
            f"predictions: this needs log densities, which {type(value).__name__} does not give; "
            f"pass a jaxcal.Unnormalized or a numpyro distribution with batch shape [n]"
        )
    return checks.predictions(value, ys)
