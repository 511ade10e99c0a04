"""Replace predictions by points: draws, random quantiles, or counts 0, 1, .. with weights."""

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, Float

from jaxcal.numerics import at_least, at_most, full_precision
from jaxcal.read import convert
from jaxcal.read.families import Lattice, Stratified, bare
from jaxcal.read.predictions import Draws, Standardized, in_units_of_data
from jaxcal.typing import Key, KeyLike, PredictionsLike

TRUNCATED = ("LeftTruncatedDistribution", "TwoSidedTruncatedDistribution")  # of symmetric bases


def value_if_any(method: Callable[..., Array], *arguments: Any) -> Array | None:
    """Return ``method(*arguments)``, or None if it is not implemented or a package is missing."""
    try:
        return method(*arguments)
    except (NotImplementedError, ImportError):
        return None


def cdf(distribution: Any, values: Array) -> Array:
    """Return the cdf of a distribution of numbers, in [0, 1]. Beyond some supports numpyro's is
    not, and for truncation above the centre it is a difference of numbers near 1: there upper tails
    are subtracted."""
    at = distribution.cdf(values)
    if type(distribution).__name__ in TRUNCATED:
        base, low = distribution.base_dist, distribution.low
        ends = values, low, getattr(distribution, "high", jnp.inf)
        above, of_low, of_high = (base.cdf(2 * base.loc - end) for end in ends)
        at = jnp.where(low < base.loc, at, (of_low - above) / (of_low - of_high))
    return at_most(at_least(at, 0), 1)


def sample(key: Key, distribution: Any, shape: tuple[int, ...], name: str) -> Array:
    """Return draws [*shape, ...], or raise a TypeError about ``name`` if there is no sampler."""
    draws = value_if_any(distribution.sample, key, shape)
    if draws is None:
        raise TypeError(
            f"{name}: {type(distribution).__name__} has no sampler, and draws are needed"
        )
    return draws


@full_precision
def draws(key: KeyLike, predictions: PredictionsLike, m: int) -> Float[Array, "n m *event"]:
    """Return m draws from each prediction, [n, m, ...event]; TypeError without a sampler.

    For distributions of numbers the shape is [n, m, 1]. `Draws` give their first m draws
    (ValueError if there are fewer).
    """
    m = convert.integer(m, "m")
    if isinstance(predictions, Standardized):
        raw = draws(key, predictions.predictions, m)
        return predictions.units.points(raw.reshape(*raw.shape[:2], -1))
    if isinstance(predictions, Draws):
        if (available := predictions.samples.shape[1]) < m:
            raise ValueError(
                f"m: asked for {m} draws of each prediction, but Draws holds {available}"
            )
        return predictions.samples[:, :m]
    distribution: Any = predictions
    if hasattr(distribution, "sample") and hasattr(distribution, "batch_shape"):
        samples = jnp.moveaxis(sample(convert.key(key), distribution, (m,), "predictions"), 0, 1)
        if not jnp.issubdtype(samples.dtype, jnp.floating):
            samples = samples.astype(float)  # kernels on targets take counts as floats
        return samples if distribution.event_shape else samples[..., None]
    raise TypeError(
        f"predictions: {type(predictions).__name__} has no sampler: draws from them are "
        f"needed; pass a numpyro distribution or Draws, or use Fisher(), which needs scores"
    )


def check_n_samples(n_samples: object) -> None:
    """Raise ValueError unless ``n_samples`` is None or a positive integer."""
    if n_samples is not None:
        convert.integer(n_samples, "n_samples")


def check_batch(predictions: PredictionsLike) -> None:
    """Raise ValueError for a single distribution without batch axis."""
    if getattr(in_units_of_data(predictions), "batch_shape", None) == ():
        raise ValueError(
            "predictions: this divergence wants one distribution per observation, batch shape [n], "
            "got batch shape (): use .expand([n])"
        )


def drawn(key: Key, predictions: PredictionsLike, n_samples: int | None) -> Float[Array, "n m d"]:
    """Return ``n_samples`` draws per prediction. None: all of `Draws`, TypeError for others."""
    original = in_units_of_data(predictions)
    if n_samples is None and not isinstance(original, Draws):
        raise TypeError(
            f"n_samples: say how many draws of each prediction to take, since "
            f"{type(original).__name__} does not come with its own"
        )
    check_batch(original)
    samples = draws(key, predictions, original.samples.shape[1] if n_samples is None else n_samples)
    samples = in_type_of(predictions, samples)
    return samples.reshape(*samples.shape[:2], -1)


def in_type_of(predictions: PredictionsLike, samples: Array) -> Array:
    """Return draws in the float type of the parameters; some samplers use the widest type."""
    kinds = [jnp.result_type(leaf) for leaf in jax.tree.leaves(predictions)]
    floating = [kind for kind in kinds if jnp.issubdtype(kind, jnp.floating)]
    if not floating and jnp.issubdtype(samples.dtype, jnp.floating):
        return samples
    return samples.astype(jnp.result_type(*floating) if floating else float)


STRATA = 32
NEIGHBOURS = 16


def stratified(key: Key, predictions: PredictionsLike) -> Stratified | None:
    """Return two sets of `STRATA` random quantiles of n one-dimensional distributions, in the units
    of the data; None for other predictions. Continuous ones need an ``icdf`` (inverse distribution
    function) or a sampler, discrete ones a sampler; TypeError if it is missing."""
    batch: Any = getattr(predictions, "batch_shape", ())
    event = getattr(predictions, "event_shape", (0,))
    if len(batch) != 1 or event not in ((), (1,)) or not hasattr(predictions, "sample"):
        return None
    base = bare(predictions)
    # an icdf of counts may return values between them
    counts = getattr(getattr(base, "support", None), "is_discrete", True)
    points = None if counts else _of_quantiles(key, base, (*batch, *event))
    if points is None:
        points = _of_neighbours(key, predictions)
    points = in_type_of(predictions, points).reshape(2 * STRATA, *batch, 1)
    return Stratified(jnp.moveaxis(points, 0, 1))


def _of_quantiles(key: Key, base: Any, shape: tuple[int, ...]) -> Array | None:
    """Return two random quantiles per stratum, [2, STRATA, *shape]; None without ``icdf``."""
    u = jax.random.uniform(key, (2, STRATA, *shape))
    stratum = jnp.arange(STRATA, dtype=u.dtype).reshape(STRATA, *(1,) * len(shape))
    limits = jnp.finfo(u.dtype)
    u = jnp.clip((stratum[None] + u) / STRATA, limits.tiny, 1 - limits.eps)
    quantiles = value_if_any(base.icdf, u) if hasattr(base, "icdf") else None
    return None if quantiles is None else jnp.broadcast_to(quantiles, u.shape)


def _of_neighbours(key: Key, predictions: Any) -> Array:
    draw_key, pick_key = jax.random.split(key)
    draws = sample(draw_key, predictions, (2, STRATA * NEIGHBOURS), "predictions")
    draws = jnp.sort(draws, axis=1).reshape(2, STRATA, NEIGHBOURS, *draws.shape[2:])
    one = jax.random.randint(pick_key, (2, STRATA, 1, *draws.shape[3:]), 0, NEIGHBOURS)
    return jnp.take_along_axis(draws, one, axis=2)[:, :, 0]


SIZES = (64, 128, 256, 512, 1024, 2048)
LARGEST = 2**27  # largest number of probabilities in memory
OMITTED = 1e-9  # largest probability that a lattice may leave out of a prediction


def is_count(predictions: Any) -> bool:
    """Return whether predictions are distributions of integers with batch shape [n]."""
    support = getattr(predictions, "support", None)
    discrete = getattr(support, "is_discrete", False) and hasattr(predictions, "log_prob")
    return discrete and len(predictions.batch_shape) == 1 and predictions.event_shape in ((), (1,))


def lattice_size(predictions: PredictionsLike) -> int | None:
    """Return the first m in `SIZES` such that 0, .., m - 1 have nearly all mass of each prediction.

    m, .., 2 m - 1 have a mass of at most `OMITTED`, and 0, .., 2 m - 1 a mass of 1 up to
    `rounding`. None if no m suffices, or if predictions are not counts or are traced.
    """
    if not is_count(predictions):
        return None
    if any(isinstance(leaf, Tracer) for leaf in jax.tree.leaves(predictions)):
        return None
    for size in SIZES:
        if predictions.batch_shape[0] * size > LARGEST:  # pyright: ignore
            return None
        p = np.asarray(_probabilities(predictions, 2 * size), float)
        p = p[np.isfinite(p).all(axis=1)]  # others are reported later
        tails, totals = p[:, size:].sum(axis=1), p.sum(axis=1)
        if np.all(tails <= OMITTED) and np.all(abs(totals - 1) <= rounding()):
            return size
    return None


def rounding() -> float:
    """Return the accepted error of a sum of probabilities, in JAX's default float type."""
    return 1e-6 if jnp.result_type(float) == jnp.float64 else 1e-3


def lattice(predictions: PredictionsLike, size: int) -> Lattice:
    """Return probabilities of 0, .., size - 1, normalized; NaN for rows whose sum is not near 1."""
    p = _probabilities(predictions, size)
    total = jnp.sum(p, axis=1, keepdims=True)
    weights = jnp.where(jnp.abs(total - 1) <= rounding(), p / total, jnp.nan)
    return Lattice(jnp.arange(size, dtype=p.dtype)[:, None], weights)


def _probabilities(predictions: Any, size: int) -> Float[Array, "n m"]:
    base = bare(predictions)  # without masks, which hide probabilities
    shape = (size, *predictions.batch_shape, *predictions.event_shape)
    values = jnp.arange(size, dtype=float).reshape(size, *(1,) * (len(shape) - 1))
    values = jnp.broadcast_to(values, shape)
    with warnings.catch_warnings():  # values outside the support correctly have probability 0
        warnings.simplefilter("ignore")
        p = jnp.where(base.support(values), jnp.exp(base.log_prob(values.astype(int))), 0)
    return p.reshape(size, -1).T
