r"""Quadrature rules for continuous distributions of one number, by their inverse distribution
functions: :math:`E f(Y) = \int f(F^{-1}(\Phi(z)))\,\phi(z)\,dz` by the trapezoidal rule in z.

The error falls exponentially in the number of nodes for smooth f, whatever the density looks like
at the ends of its support. Families whose inverse is no elementary function have a map of their own
and their density instead: Student t distributions ``sinh(x)``, gamma distributions the exponential
and beta distributions the logistic function of a grid that grows sparse where they have a tail.
Transforms act on the nodes, mixtures have the nodes of their components.
Source: Trefethen and Weideman (2014).
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.nn import sigmoid, softplus
from jax.scipy.special import digamma
from jaxtyping import Array

from jaxcal.models.families import Base, Nodes
from jaxcal.typing import PredictionsLike

SIZE = 64  # as many nodes as draws where these are made
LEAST = 16  # nodes of a component
ENDS = 5.0  # of z
OUTSIDE = 1e-6  # probability beyond the ends, of Student t distributions nearly


class Rules(NamedTuple):
    """A rule, and one of twice as many nodes to compare it with."""

    coarse: Nodes
    fine: Nodes


def line_rules(predictions: PredictionsLike) -> Rules | None:
    """Rules for n predictions; None for vectors and where no inverse distribution function is."""
    batch = getattr(predictions, "batch_shape", ())
    event = getattr(predictions, "event_shape", (0,))
    if len(batch) != 1 or event not in ((), (1,)):
        return None
    try:
        parts = weighted_parts(predictions)
        size = max(LEAST, math.ceil(SIZE / sum(weights.shape[1] for _, weights in parts)))
        both = [_of_parts(part, weights, 2 * size - 1) for part, weights in parts]
    except (NotImplementedError, ImportError, AttributeError):
        return None
    rules = []
    for step in (2, 1):
        points = jnp.concatenate([_flat(nodes[::step]) for nodes, _ in both], axis=1)
        weights = jnp.concatenate([_flat(w[::step]) for _, w in both], axis=1)
        weights = weights / jnp.sum(weights, axis=1, keepdims=True)
        rules.append(Nodes(points[..., None], weights))
    return Rules(*rules)


def weighted_parts(predictions: Any) -> list[tuple[Base, Array]]:
    """The components with their weights [n, k]: a distribution of shape [n, k], or several."""
    n = predictions.batch_shape[0]
    if not hasattr(predictions, "mixing_distribution"):
        return [(predictions, jnp.ones((n, 1)))]
    probabilities = predictions.mixing_distribution.probs
    weights = jnp.broadcast_to(probabilities, (n, probabilities.shape[-1]))
    if hasattr(predictions, "component_distributions"):
        split = jnp.split(weights, weights.shape[1], axis=1)
        return list(zip(predictions.component_distributions, split, strict=True))
    return [(predictions.component_distribution, weights)]


def _of_parts(part: Base, weights: Array, size: int) -> tuple[Array, Array]:
    """Nodes and weights [size, n, k]."""
    base, transforms = part, []
    while hasattr(base, "base_dist"):
        transforms = [*getattr(base, "transforms", ()), *transforms]
        base = base.base_dist
    if base.support.is_discrete or any(t.domain.event_dim for t in transforms):
        raise NotImplementedError(
            "no rule for counts, nor for transforms of several numbers at once"
        )
    family = next((above.__name__ for above in type(base).__mro__ if above.__name__ in RULES), None)
    at, ends = (_inverse, ENDS) if family is None else (RULES[family], 1.0)
    both = jax.vmap(lambda z: at(base, z))(jnp.linspace(-ends, ends, size))
    nodes, w = both
    for transform in transforms:
        nodes = jax.vmap(transform)(nodes)
    shape = (size, *part.batch_shape, *part.event_shape)
    nodes, w = (jnp.broadcast_to(_of_rank(a, len(shape)), shape) for a in (nodes, w))
    nodes, w = (a.reshape(size, -1, weights.shape[1]) for a in (nodes, w))
    w = w / jnp.sum(w, axis=0, keepdims=True) * weights[None]
    return jnp.broadcast_to(nodes, w.shape), w


def _of_rank(array: Array, rank: int) -> Array:
    """[q, ...] with axes of length 1 after the first."""
    return jnp.expand_dims(array, range(1, 1 + rank - array.ndim))


def _flat(array: Array) -> Array:
    """[q, n, k] as [n, q k]."""
    return jnp.moveaxis(array, 1, 0).reshape(array.shape[1], -1)


def _inverse(base: Base, z: Array) -> tuple[Array, Array]:
    return jnp.asarray(base.icdf(jax.scipy.stats.norm.cdf(z))), jnp.exp(-(z**2) / 2)


def _student(base: Base, z: Array) -> tuple[Array, Array]:
    # the probability beyond a is about (a / df^1/2)^-df
    end = jnp.arcsinh(jnp.sqrt(base.df) * 10 ** jnp.minimum(6 / base.df, 15))
    y = jnp.sinh(end * z)
    w = end * jnp.cosh(end * z) * jnp.exp(-(base.df + 1) / 2 * jnp.log1p(y**2 / base.df))
    return base.loc + base.scale * y, w


def _gamma(base: Base, z: Array) -> tuple[Array, Array]:
    a = base.concentration
    low = _sparse_inverse(digamma(a) - 5 * jnp.maximum(a, 1) ** -0.5 - 12 / a)
    high = jnp.log(a + 6 * jnp.sqrt(a) + 14)
    x = low + (high - low) * (z + 1) / 2
    t = x - _sparse(-x)
    w = (high - low) * (1 + _slope(-x)) * jnp.exp(a * (t - jnp.log(a)) - jnp.exp(t) + a)
    return jnp.exp(t) / base.rate, w


def _beta(base: Base, z: Array) -> tuple[Array, Array]:
    a, b = base.concentration1, base.concentration0
    middle = digamma(a) - digamma(b)
    spread = 5 * jnp.sqrt(1 / jnp.maximum(a, 1) + 1 / jnp.maximum(b, 1))
    low = _sparse_inverse(middle - spread - 12 / a)
    high = -_sparse_inverse(-middle - spread - 12 / b)
    x = low + (high - low) * (z + 1) / 2
    t = x - _sparse(-x) + _sparse(x)
    log_density = a * (softplus(-middle) - softplus(-t)) + b * (softplus(middle) - softplus(t))
    return sigmoid(t), (high - low) * (1 + _slope(-x) + _slope(x)) * jnp.exp(log_density)


def _sparse(x: Array) -> Array:
    """How far beyond x the nodes lie, on the far side of one tail."""
    return softplus(x) ** 2 / 10


def _slope(x: Array) -> Array:
    return softplus(x) * sigmoid(x) / 5


def _sparse_inverse(t: Array) -> Array:
    """x of ``x - _sparse(-x)`` at or below t."""
    return jnp.where(t < 0, 5 - 5 * jnp.sqrt(1 - 0.4 * jnp.minimum(t, 0)), t)


RULES = {"StudentT": _student, "Gamma": _gamma, "Beta": _beta}
