"""Closed forms of predictions, as named tuples of arrays, from distributions of any library.

Every leaf has a leading axis n; points are vectors [d]. To add a distribution, register a function
with the decorator `distribution`. Functions are looked up by the class name of the distribution, so
no library of distributions is imported here.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, PyTree

from jaxcal.read.predictions import OwnUnits, Standardized, Units, along_last, in_units_of_data
from jaxcal.typing import Distribution, PredictionsLike


class Normals(NamedTuple):
    """Normal predictions: ``mean`` [n, d]; ``cov``: covariances [n, d, d], or variances [n, d]."""

    mean: Float[Array, "*n d"]
    cov: Float[Array, "*nd d"]


class Laplaces(NamedTuple):
    """Laplace predictions: coordinates of density ``exp(-abs(y - loc) / scale) / (2 scale)``."""

    loc: Float[Array, "*n d"]
    scale: Float[Array, "*n d"]


class Mixtures(NamedTuple):
    """Mixtures of k components: ``weights`` [n, k]; ``parts``: closed form of all components."""

    weights: Float[Array, "n k"]
    parts: PyTree


class Classes(NamedTuple):
    """Predictions of the classes 0, .., m - 1 by ``probabilities`` [n, m]."""

    probabilities: Float[Array, "n m"]


class Particles(NamedTuple):
    """Predictions known only by m independent draws from each, ``points`` [n, m, d]."""

    points: Float[Array, "n m d"]


class Stratified(Particles):
    """Draws [n, m, 1]: two independent sets of m / 2, one draw per quantile stratum in each."""


class Nodes(NamedTuple):
    """A quadrature rule for each prediction, with ``points`` [n, m, d] and ``weights`` [n, m]."""

    points: Float[Array, "n m d"]
    weights: Float[Array, "n m"]


class Lattice(NamedTuple):
    """Discrete predictions on common ``points`` [m, d], with probabilities ``weights`` [n, m]."""

    points: Float[Array, "m d"]
    weights: Float[Array, "n m"]


Base: TypeAlias = Any  # a numpyro distribution of the class that its reader expects
Reader: TypeAlias = Callable[[Base, PyTree], PyTree]  # of a distribution without and with wrappers
_DISTRIBUTIONS: dict[str, Reader] = {}
_LOOKED_UP: set[str] = set()  # names that compiled programs may have used
UNCHANGED = ("Independent", "ExpandedDistribution", "MaskedDistribution")  # wrappers without effect
# distributions whose mean or variance is infinite, or not computed, for some parameters
HEAVY = ("StudentT", "MultivariateStudentT", "Cauchy", "HalfCauchy", "Pareto", "InverseGamma")
HEAVY += ("Levy", "Dagum", "BetaPrime", "LowerTruncatedPowerLaw", "BetaNegativeBinomial")


def distribution(*names: str) -> Callable[[Reader], Reader]:
    """Return a decorator that registers a reader of distributions by their class name.

    Args:
        *names: Names of classes of distributions.

    Returns:
        A decorator of a function ``read(base, whole)``: ``whole`` is a distribution with the right
        batch and event shape, ``base`` the same distribution without its wrappers. The function
        returns a closed form with leading axis n (normals, Laplace distributions, mixtures,
        classes, draws or nodes of a quadrature rule), or None.

    Example:
        >>> import jax.numpy as jnp, jaxcal
        >>> from jaxcal.read.families import Normals, distribution, distribution_of
        >>> class Spike:
        ...     loc = jnp.zeros((5, 2))
        >>> @distribution("Spike")
        ... def read(base, whole):
        ...     return Normals(base.loc, 0.01 * jnp.ones_like(base.loc))
        >>> distribution_of(Spike()).mean.shape
        (5, 2)
    """

    def add(read: Reader) -> Reader:
        _DISTRIBUTIONS.update(dict.fromkeys(names, read))
        if not _LOOKED_UP.isdisjoint(names):
            jax.clear_caches()  # compiled programs contain earlier registrations
        return read

    return add


def distribution_of(predictions: PredictionsLike) -> PyTree:
    """Return the closed form of n predictions, or None if they can only be sampled.

    A closed form is a named tuple of arrays with leading axis n, such as `Normals` or `Mixtures`,
    from the reader that is registered for the class of the predictions.
    """
    if isinstance(predictions, Standardized):
        closed_form = distribution_of(predictions.predictions)
        return None if closed_form is None else _in_units(closed_form, predictions.units)
    if isinstance(predictions, (Normals, Laplaces, Mixtures, Classes, Particles, Nodes, Lattice)):
        return predictions
    base = bare(predictions)
    _LOOKED_UP.add(type(base).__name__)
    read = _DISTRIBUTIONS.get(type(base).__name__)
    return None if read is None else read(base, predictions)


def bare(predictions: Any) -> Any:
    """Return the distribution without those outer wrappers that `UNCHANGED` names."""
    while type(predictions).__name__ in UNCHANGED:
        predictions = predictions.base_dist
    return predictions


def transforms_of(distribution: Any) -> list[Any]:
    """Return the transforms of a transformed distribution, those of a composition one by one."""
    return [part for one in distribution.transforms for part in getattr(one, "parts", [one])]


def gaussian_moments(predictions: PredictionsLike) -> Normals:
    """Return mean [n, d] and variances [n, d] or covariances [n, d, d] of Gaussian predictions.

    TypeError for others. Further batch axes are kept: components [n, k] of mixtures have means
    [n, k, d].
    """
    closed_form = distribution_of(predictions)
    if isinstance(closed_form, Normals):
        return closed_form
    original = in_units_of_data(predictions)
    raise TypeError(
        f"this distance has a closed form for numpyro Normal and MultivariateNormal predictions "
        f"only, got {type(original).__name__}: use Fisher() for densities known up to their "
        f"constant, or a distance from draws"
    )


def mean_and_covariance(distribution: Distribution) -> Normals | None:
    """Return mean [n, d] and covariance [n, d, d] of normals, Laplaces and mixtures, else None."""
    match distribution:
        case Normals():
            return full(distribution)
        case Laplaces(loc, scale):
            return full(Normals(loc, 2 * scale**2))
        case Mixtures(weights, parts):
            inside = mean_and_covariance(parts)
            if inside is None:
                return None
            mean = jnp.sum(weights[..., None] * inside.mean, axis=1)
            gaps = inside.mean - mean[:, None]
            total = inside.cov + gaps[..., :, None] * gaps[..., None, :]
            return Normals(mean, jnp.sum(weights[..., None, None] * total, axis=1))
    return None


def offered_moments(predictions: Any) -> Normals | None:
    """Return means [n, d] and covariances [n, d, d] of n predictions, or None if unknown.

    They come from closed forms. For scalar distributions and ``Independent`` products of them they
    may come from numpyro's ``mean`` and ``variance``. None for angles (``VonMises``).
    """
    if isinstance(predictions, Standardized):
        moments = offered_moments(predictions.predictions)
        return None if moments is None else _in_units(moments, predictions.units)
    if type(getattr(bare(predictions), "support", None)).__name__.strip("_").lower() == "circular":
        return None  # their means are directions
    closed_form = mean_and_covariance(distribution_of(predictions))
    if closed_form is not None or getattr(bare(predictions), "event_shape", None) != ():
        return closed_form
    try:
        mean, variance = predictions.mean, predictions.variance
    except (AttributeError, NotImplementedError):
        return None
    return full(Normals(_whole(mean, predictions), _whole(variance, predictions)))


def heavy_tailed(predictions: Any) -> bool:
    """Return whether means or variances may be infinite, by the class names of the predictions and
    of their components, since values of parameters are not available under jit."""
    whole = in_units_of_data(predictions)
    parts = [getattr(whole, name, None) for name in ("base_dist", "component_distribution")]
    parts += getattr(whole, "component_distributions", ())
    inside = any(heavy_tailed(part) for part in parts if part is not None)
    return type(whole).__name__ in HEAVY or inside


def _in_own_units(distribution: PyTree, own_units: OwnUnits) -> PyTree:
    """Return the closed form of ``own_units.of_common(T)`` for T ~ ``distribution``, or None."""
    match distribution:
        case Normals():
            mean, cov = full(distribution)
            extra = range(1, mean.ndim - 1)  # axes of components
            inverse = jnp.linalg.inv(own_units.scale)
            inverse = jnp.expand_dims(inverse, extra)
            return Normals(own_units.of_common(mean), inverse @ cov @ jnp.swapaxes(inverse, -1, -2))
        case Laplaces(loc, spread) if loc.shape[-1] == 1:
            scale = jnp.expand_dims(own_units.scale[:, 0], range(1, loc.ndim - 1))
            return Laplaces(own_units.of_common(loc), spread / scale)
        case Lattice(points, weights):
            each = jnp.broadcast_to(points, (*weights.shape, points.shape[-1]))
            return Nodes(own_units.of_common(each), weights)
    return None


def _in_units(distribution: PyTree, units: Units | OwnUnits) -> PyTree:
    """Return the closed form of Y ~ ``distribution``, in ``units``, or None."""
    scale = units.scale
    match distribution:
        case Mixtures(weights, parts):
            inner = _in_units(parts, units)
            return None if inner is None else Mixtures(weights, inner)
        case Particles(points):
            return type(distribution)(units.points(points))
        case Nodes(points, weights):
            return Nodes(units.points(points), weights)
        case _ if isinstance(units, OwnUnits):
            return _in_own_units(_in_units(distribution, units.units), units)
        case Normals(mean, cov):
            units_of_cov = along_last(scale, cov)
            across = jnp.swapaxes(units_of_cov, -1, -2) if cov.ndim > mean.ndim else units_of_cov
            return Normals(units.points(mean), cov / (across * units_of_cov))
        case Laplaces(loc, spread):
            return Laplaces(units.points(loc), spread / along_last(scale, spread))
        case Lattice(points, weights):
            return Lattice(units.points(points), weights)
    return None


def _spread(scale: Array) -> Array:
    return jnp.where(scale < 0, jnp.nan, scale)


def _whole(array: Array | np.ndarray | float, whole: PyTree) -> Array:
    """Return a parameter broadcast to the shapes of ``whole``, with one event axis: [*batch, d]."""
    of_each = jnp.broadcast_to(array, (*whole.batch_shape, *whole.event_shape))
    return of_each.reshape(*whole.batch_shape, math.prod(whole.event_shape))


@distribution("Normal")
def _normal(base: Base, whole: PyTree) -> Normals:
    return Normals(_whole(base.loc, whole), _spread(_whole(base.scale, whole)) ** 2)


@distribution("MultivariateNormal")
@distribution("LowRankMultivariateNormal")
def _multivariate_normal(base: Base, whole: PyTree) -> Normals | None:
    if len(whole.event_shape) != 1:
        return None
    mean = _whole(base.loc, whole)
    return Normals(mean, jnp.broadcast_to(base.covariance_matrix, (*mean.shape, mean.shape[-1])))


@distribution("Laplace")
def _laplace(base: Base, whole: PyTree) -> Laplaces:
    return Laplaces(_whole(base.loc, whole), _spread(_whole(base.scale, whole)))


def _mixing(base: Base, whole: PyTree) -> Array | None:
    """Return the weights [n, k] of a mixture, or None if the mixture is inside a wrapper."""
    if base is not whole:
        return None
    probabilities = base.mixing_distribution.probs
    return jnp.broadcast_to(probabilities, (*whole.batch_shape, probabilities.shape[-1]))


@distribution("MixtureSameFamily")
def _mixture(base: Base, whole: PyTree) -> Mixtures | None:
    weights, components = _mixing(base, whole), base.component_distribution
    if weights is None:
        return None
    if tuple(components.batch_shape) != weights.shape:  # components common to all predictions
        components = components.expand(weights.shape)
    parts = distribution_of(components)
    return None if parts is None else Mixtures(weights, parts)


@distribution("MixtureGeneral")
def _general_mixture(base: Base, whole: PyTree) -> Mixtures | None:
    weights = _mixing(base, whole)
    parts = [distribution_of(part) for part in base.component_distributions]
    if weights is None or any(part is None for part in parts):
        return None
    if len({type(part) for part in parts}) != 1:
        return None
    if isinstance(parts[0], Normals) and len({part.cov.ndim for part in parts}) > 1:
        parts = [full(part) for part in parts]
    shapes = [[leaf.shape for leaf in jax.tree.leaves(part)] for part in parts]
    if any(shape != shapes[0] for shape in shapes):
        return None
    return Mixtures(weights, jax.tree.map(lambda *leaves: jnp.stack(leaves, axis=1), *parts))


@distribution("TransformedDistribution")
def _affine(base: Base, whole: PyTree) -> PyTree | None:
    """Return the affinely transformed closed form of ``base``; None for other transforms."""
    if any(type(transform).__name__ != "AffineTransform" for transform in base.transforms):
        return None
    inner = base.base_dist
    shape = (whole.batch_shape, whole.event_shape)
    if (inner.batch_shape, inner.event_shape) == shape:  # readers of mixtures need base is whole
        closed_form = distribution_of(inner)
    else:
        single = bare(inner)
        read = _DISTRIBUTIONS.get(type(single).__name__)
        closed_form = None if read is None else read(single, whole)
    for transform in base.transforms:
        if closed_form is not None:
            loc, scale = _whole(transform.loc, whole), _whole(transform.scale, whole)
            closed_form = _stretched(closed_form, loc, scale)
    return closed_form


def _stretched(distribution: PyTree, loc: Array, scale: Array) -> PyTree | None:
    """Return the closed form of loc + scale Y for Y ~ ``distribution``; None if there is none."""
    match distribution:
        case Normals(mean, cov) if cov.ndim == mean.ndim:
            return Normals(loc + scale * mean, scale**2 * cov)
        case Normals(mean, cov):
            return Normals(loc + scale * mean, scale[..., None] * cov * scale[..., None, :])
        case Laplaces(center, spread):
            return Laplaces(loc + scale * center, jnp.abs(scale) * spread)
        case Mixtures(weights, parts):
            inner = _stretched(parts, loc[:, None], scale[:, None])
            return None if inner is None else Mixtures(weights, inner)
    return None


def full(normals: Normals) -> Normals:
    """Return the normals with ``cov`` [n, d, d], made diagonal from variances [n, d]."""
    mean, cov = normals
    if cov.ndim > mean.ndim:
        return normals
    eye = jnp.eye(cov.shape[-1], dtype=cov.dtype)
    return Normals(mean, cov[..., None] * jnp.expand_dims(eye, range(cov.ndim - 1)))


@distribution("CategoricalProbs", "CategoricalLogits", "OrderedLogistic")
def _categorical(base: Base, whole: PyTree) -> Classes | None:
    probabilities = base.probs
    if whole.event_shape:
        return None
    return Classes(jnp.broadcast_to(probabilities, (*whole.batch_shape, probabilities.shape[-1])))


@distribution("BernoulliProbs", "BernoulliLogits")
def _bernoulli(base: Base, whole: PyTree) -> Classes | None:
    if whole.event_shape:
        return None
    p = jnp.broadcast_to(base.probs, whole.batch_shape)
    return Classes(jnp.stack([1 - p, p], axis=-1))
