"""Jumps between modes by a mixture fitted to each prediction."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import jaxcal
from jaxcal.candidates import Chains, exchangeability_test
from jaxcal.candidates.proposals import Mixtures, fitted

APART = jnp.asarray([3.0, 0.0])
NODES = jnp.asarray(np.random.default_rng(5).normal(scale=3.5, size=(128, 2)))


def modes(center, y):
    """Two standard normal modes, six apart, of weights .7 and .3."""
    upper, lower = (-jnp.sum((y - center - side * APART) ** 2) / 2 for side in (1, -1))
    return jnp.logaddexp(upper + jnp.log(0.7), lower + jnp.log(0.3))


def targets(seed, n, weight):
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(n, 2))
    sides = np.where(rng.random((n, 1)) < weight, 1.0, -1.0)
    return jnp.asarray(centers), jnp.asarray(
        centers + sides * np.asarray(APART) + rng.normal(size=(n, 2))
    )


@pytest.fixture(scope="module")
def mixtures():
    centers, _ = targets(0, 40, 0.7)
    logs = jax.vmap(jax.vmap(modes, in_axes=(None, 0)))
    return centers, jax.jit(lambda key: fitted(key, lambda at: logs(centers, at), NODES, 40))(
        jax.random.key(1)
    )


def test_density_of_a_mixture_is_that_of_its_gaussians():
    rng = np.random.default_rng(2)
    centers, points = rng.normal(size=(2, 3, 2)), rng.normal(size=(2, 4, 2))
    roots = np.tril(rng.normal(size=(2, 2, 2))) + 2 * np.eye(2)
    weights = rng.dirichlet(np.ones(3), 2)
    mixtures = Mixtures(*map(jnp.asarray, (centers, np.log(weights), roots)))
    of_us = mixtures.log_density(jnp.asarray(points))
    for i in range(2):
        each = [
            w * scipy.stats.multivariate_normal(c, roots[i] @ roots[i].T).pdf(points[i])
            for w, c in zip(weights[i], centers[i], strict=True)
        ]
        np.testing.assert_allclose(np.exp(of_us[i]), sum(each), rtol=1e-10)


@pytest.mark.slow
def test_draws_of_a_mixture_follow_its_density(mixtures):
    _, mixture = mixtures
    points = mixture.sample(jax.random.key(3), 2000)
    inside = jnp.mean(points[:, :, 0] < mixture.centers[:, :1, 0], axis=1, dtype=points.dtype)
    # the same share by the normal distribution functions of its components
    gaps = (mixture.centers[:, :1, 0] - mixture.centers[:, :, 0]) / mixture.roots[:, :1, 0]
    exact = jnp.sum(jnp.exp(mixture.log_weights) * jax.scipy.stats.norm.cdf(gaps), axis=1)
    z = (inside - exact) / jnp.sqrt(exact * (1 - exact) / 2000)
    assert float(jnp.max(jnp.abs(z))) < 5
    assert scipy.stats.kstest(np.asarray(z), "norm").pvalue > 1e-3


def test_mixture_holds_both_modes_by_their_weights(mixtures):
    centers, mixture = mixtures
    upper = mixture.centers[:, :, 0] > centers[:, :1]
    shares = jnp.sum(jnp.where(upper, jnp.exp(mixture.log_weights), 0), axis=1)
    assert abs(float(jnp.mean(shares)) - 0.7) < 5 * float(jnp.std(shares)) / 40**0.5
    assert float(jnp.min(shares)) > 0.4
    assert float(jnp.max(shares)) < 0.95


@pytest.mark.slow
@pytest.mark.parametrize("broken", ["nowhere", "nan", "one point"])
def test_mixture_is_defined_where_densities_are_not(broken):
    def logs(at):
        first = {"nowhere": -jnp.inf, "nan": jnp.nan, "one point": -jnp.inf}[broken]
        values = jnp.full(at.shape[:2], first)
        return values.at[:, 0].set(0.0) if broken == "one point" else values

    mixture = fitted(jax.random.key(0), logs, NODES, 2)
    assert all(bool(jnp.all(~jnp.isnan(leaf))) for leaf in jax.tree.leaves(mixture))
    assert bool(jnp.all(jnp.isfinite(mixture.log_density(NODES[None, :3].repeat(2, 0)))))


@pytest.mark.slow
@pytest.mark.parametrize("unit", [1e-30, 1e-21, 1e-12, 1e21, 1e30])
def test_mixtures_are_alike_in_all_units(unit):
    unit, nodes = jnp.float32(unit), NODES.astype(jnp.float32)

    def mixture(unit):
        def logs(points):
            return -jnp.sum((points / unit - 3) ** 2, axis=2) / 2

        return fitted(jax.random.key(0), logs, unit * nodes, 2)

    one, other = mixture(jnp.float32(1)), mixture(unit)
    np.testing.assert_allclose(other.centers / unit, one.centers, atol=1e-3)
    np.testing.assert_allclose(other.roots / unit, one.roots, atol=1e-4)
    points = jnp.stack([nodes, nodes])
    ordinary = one.log_density(points) - 2 * jnp.log(unit)
    np.testing.assert_allclose(other.log_density(unit * points), ordinary, atol=0.02, rtol=1e-3)


@pytest.mark.slow
def test_jumps_find_wrong_weights_of_modes_and_keep_the_level():
    sets, n = 100, 50

    def p(seed, weight, nodes):
        centers, ys = targets(seed, n * sets, weight)
        data = centers.reshape(sets, n, 2), ys.reshape(sets, n, 2)

        def one(key, centers, ys):
            predictions = jaxcal.Unnormalized(modes, centers)
            proposal = Chains(n_candidates=9, n_steps=6, nodes=nodes)
            return exchangeability_test(
                key, predictions, ys, proposal=proposal, n_resamples=99, base_measure=NODES[:10]
            ).p_value

        keys = jax.random.split(jax.random.key(seed), sets)
        return np.asarray(
            jax.jit(lambda *rows: jax.lax.map(lambda row: one(*row), rows))(keys, *data)
        )

    right, wrong = (np.sum(p(7, weight, NODES) <= 0.05) for weight in (0.7, 0.45))
    low, high = scipy.stats.binom.interval(0.9999, sets, 0.05)
    assert low <= right <= high
    assert wrong > 0.6 * sets
    assert np.sum(p(7, 0.45, None) <= 0.05) < 0.3 * sets


def test_nodes_of_another_shape_are_named():
    with pytest.raises(ValueError, match="nodes: wanted shape"):
        Chains(nodes=jnp.zeros(5))
    centers, ys = targets(0, 12, 0.7)
    proposal = Chains(nodes=jnp.zeros((9, 3)))
    with pytest.raises(ValueError, match="nodes: wanted at least 4 of shape"):
        exchangeability_test(0, jaxcal.Unnormalized(modes, centers), ys, proposal=proposal)
