"""Posteriors whose faults are known: two Gaussian modes in two dimensions, right or not."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Array

import jaxcal

SLOPE = jnp.asarray([[1.0, 0.3], [0.0, 0.8]])
APART = jnp.asarray([1.5, 0.0])  # half the way from one mode to the other
SD = 0.5

FAULTS = {
    "correct": "none",
    "shifted": "both modes 0.15 standard deviations too high in both parameters",
    "overdispersed": "standard deviations 1.15 times too large",
    "underdispersed": "standard deviations 0.87 times too small",
    "one mode moved": "the upper mode alone 0.3 standard deviations too high in theta_1",
    "mode weights": "weights 0.65 and 0.35 instead of halves",
    "wrong for some x": "0.6 standard deviations too high where x_1 > 1 (16 % of the x)",
    "prior": "the prior, whatever x",
}


class Mixture(NamedTuple):
    """Two Gaussians a posterior: means [n, 2, 2], factors [n, 2, 2, 2], logs of weights [n, 2]."""

    mean: Array
    chol: Array
    log_weight: Array


def log_density(p: Mixture, theta: Array) -> Array:
    def one(mean: Array, chol: Array) -> Array:
        z = jax.scipy.linalg.solve_triangular(chol, theta - mean, lower=True)
        return -jnp.sum(z**2) / 2 - jnp.sum(jnp.log(jnp.diagonal(chol)))

    return jax.scipy.special.logsumexp(jax.vmap(one)(p.mean, p.chol) + p.log_weight)


def exact(xs: Array) -> Mixture:
    center = xs @ SLOPE.T
    mean = jnp.stack([center + APART, center - APART], axis=1)
    n = len(xs)
    return Mixture(
        mean, jnp.broadcast_to(SD * jnp.eye(2), (n, 2, 2, 2)), jnp.full((n, 2), jnp.log(0.5))
    )


def prior(n: int) -> Mixture:
    chol = jnp.linalg.cholesky(SLOPE @ SLOPE.T + SD**2 * jnp.eye(2))
    mean = jnp.broadcast_to(jnp.stack([APART, -APART]), (n, 2, 2))
    return Mixture(mean, jnp.broadcast_to(chol, (n, 2, 2, 2)), jnp.full((n, 2), jnp.log(0.5)))


def faulty(fault: str, xs: Array) -> Mixture:
    """The posteriors that are tested."""
    p = exact(xs)
    if fault == "correct":
        return p
    if fault == "shifted":
        return p._replace(mean=p.mean + 0.15 * SD)
    if fault == "overdispersed":
        return p._replace(chol=1.15 * p.chol)
    if fault == "underdispersed":
        return p._replace(chol=0.87 * p.chol)
    if fault == "one mode moved":
        return p._replace(mean=p.mean.at[:, 0, 0].add(0.3 * SD))
    if fault == "mode weights":
        return p._replace(log_weight=p.log_weight + jnp.log(jnp.asarray([1.3, 0.7])))
    if fault == "wrong for some x":
        return p._replace(mean=p.mean + jnp.where(xs[:, 0] > 1, 0.6 * SD, 0.0)[:, None, None])
    if fault == "prior":
        return prior(len(xs))
    raise ValueError(f"no such fault: {fault}")


def numbered(fault: Array, xs: Array) -> Mixture:
    return jax.lax.switch(fault, [partial(faulty, name) for name in FAULTS], xs)


def draw(key: Array, p: Mixture, m: int) -> Array:
    """m draws from each of n posteriors, [n, m, 2]."""
    half_key, noise_key = jax.random.split(key)
    n = len(p.mean)
    half = jax.random.categorical(half_key, p.log_weight[:, None], shape=(n, m))
    z = jax.random.normal(noise_key, (n, m, 2))
    rows = jnp.arange(n)[:, None]
    return p.mean[rows, half] + jnp.einsum("nmij,nmj->nmi", p.chol[rows, half], z)


class DataSet(NamedTuple):
    xs: Array  # [n, 2]
    thetas: Array  # [n, 2]
    posterior: Mixture
    nodes: Array  # [m, 2], draws of the prior
    key: Array


def data_set(key: Array, fault: Array, n: int) -> DataSet:
    """n pairs and the posteriors with the fault of this number, so that one program serves all."""
    keys = jax.random.split(key, 4)
    xs = jax.random.normal(keys[0], (n, 2))
    thetas = draw(keys[1], exact(xs), 1)[:, 0]
    nodes = draw(keys[2], prior(10), 1)[:, 0]
    return DataSet(xs, thetas, numbered(fault, xs), nodes, keys[3])


def unnormalized(p: Mixture) -> jaxcal.Unnormalized:
    return jaxcal.Unnormalized(log_density, p)
