r"""Predictions and labels whose miscalibration is known: temperatures, Dirichlet, a shift."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtr, ndtri
from jaxtyping import Array, Float, Int

from jaxcal.read import convert
from jaxcal.typing import KeyLike, Vector

Probabilities = Float[Array, "n m"]


def temperature(q: Float[Array, "*n m"], t: Any) -> Float[Array, "*n m"]:
    r"""``softmax(log q / t)``, proportional to :math:`q^{1/t}`: t > 1 softens, 0 < t < 1 sharpens.

    Entries of 0 stay 0. Raises ValueError unless t > 0 where that can be seen.
    Source: Moskvichev and Sejdinovic, App. C.1, where t < 0 is misprinted for sharpening, and
    App. C.2, whose clr(f / t) would do nothing: clr does not see scale.
    """
    if isinstance(t, (int, float)) and not 0 < t < float("inf"):
        raise ValueError(f"t: wanted a positive, finite temperature, got {t}")
    return _temperature(q, t)


@jax.jit
def _temperature(q: Float[Array, "*n m"], t: Any) -> Float[Array, "*n m"]:
    positive = q > 0
    logs = jnp.where(positive, jnp.log(jnp.where(positive, q, 1)) / t, -jnp.inf)
    return jax.nn.softmax(logs, axis=-1)


def recalibration(q: Float[Array, "*n m"], t: Any) -> Float[Array, "*n m"]:
    """P(Y | prediction q) where q is the truth at temperature ``t``: the inverse temperature."""
    return temperature(q, 1 / t)


@partial(jax.jit, static_argnames=("n", "m"))
def dirichlet(key: KeyLike, n: int, m: int, concentration: Any = 1.0) -> Probabilities:
    """n draws from Dir(a, .., a) on m classes, made in logarithms: small a gives no NaN."""
    gammas = jax.random.loggamma(convert.key(key), jnp.full((n, m), concentration))
    return jax.nn.softmax(gammas, axis=1)


@jax.jit
def labels(key: KeyLike, q: Probabilities) -> Int[Array, " n"]:
    """One class drawn from each row."""
    return jax.random.categorical(convert.key(key), jnp.log(q), axis=1)


def marginal(n: int, m: int) -> Probabilities:
    """The same uniform prediction n times: calibrated where classes are balanced, and useless."""
    return jnp.full((n, m), 1 / m)


def binary(p: Float[Array, " n"]) -> Float[Array, "n 2"]:
    """Probabilities of class 1 as rows (1 - p, p)."""
    return jnp.stack([1 - p, p], axis=-1)


@partial(jax.jit, static_argnames="n")
def truncated_normal(key: KeyLike, n: int, location: Any, scale: float = 0.25) -> Vector:
    """n draws from N(location, scale^2) cut to [-1, 1]."""
    low, high = ((end - location) / scale for end in (-1.0, 1.0))
    # from the side where the normal has its mass, so that no digits are lost in a tail
    flip = jnp.where(jnp.asarray(location) > 0, -1.0, 1.0)
    a, b = jnp.where(flip > 0, low, -high), jnp.where(flip > 0, high, -low)
    uniform = jax.random.uniform(convert.key(key), (n,))
    z = ndtri(ndtr(a) + uniform * (ndtr(b) - ndtr(a)))
    return jnp.clip(location + scale * flip * z, -1, 1)


@partial(jax.jit, static_argnames="n")
def covariate_shift(
    key: KeyLike, n: int, location: Any
) -> tuple[Float[Array, "n 2"], Int[Array, " n"], Vector]:
    """Predictions sigmoid(5 x) of labels with probability sigmoid(x), and the inputs x.

    x is a normal with standard deviation 0.25 around ``location``, cut to [-1, 1]: the inputs
    move, P(Y | prediction) does not. Source: Section 5.2.1.
    """
    input_key, label_key = jax.random.split(convert.key(key))
    x = truncated_normal(input_key, n, location)
    ys = jax.random.bernoulli(label_key, jax.nn.sigmoid(x)).astype(jnp.int32)
    return binary(jax.nn.sigmoid(5 * x)), ys, x
