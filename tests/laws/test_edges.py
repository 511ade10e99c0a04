"""Densities with an edge: where one is seen, and what the tests then leave out or refuse."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from jaxcal import Unnormalized, calibration_test, kccsd_test, kcsd_test, ksd_test
from jaxcal.moments.stein import edges
from jaxcal.nulls import Wild

N = 50
QUICK = Wild(99)


def exponential(rate, y):
    return jnp.where(y > 0, -rate * y, -jnp.inf)


def no_number(rate, y):
    """Gamma(3), without a word on y < 0, where log(y) is NaN."""
    return 2 * jnp.log(y) - rate * y


def uniform(center, y):
    return jnp.where(jnp.abs(y - center) < 1.5, 0 * y, -jnp.inf)


def half_line(rate, key):
    return jax.random.exponential(key, rate.shape) / rate


@pytest.mark.parametrize(
    ("model", "draw", "seen", "abrupt"),
    [
        (Unnormalized(exponential, jnp.ones(N)), dist.Exponential(1.0), True, True),
        (Unnormalized(no_number, jnp.ones(N)), dist.Gamma(3.0), True, False),
        (dist.Gamma(jnp.full(N, 1.5), 1.0), dist.Gamma(1.5), True, True),
        (dist.LogNormal(jnp.zeros(N), 1.0), dist.LogNormal(0.0), True, False),
        (Unnormalized(uniform, jnp.zeros(N)), dist.Uniform(-1.5, 1.5), True, True),
        (Unnormalized(lambda _, y: -jnp.abs(y), jnp.zeros(N)), dist.Laplace(0.0), False, False),
        (dist.Normal(jnp.zeros(N), 1.0), dist.Normal(0.0), False, False),
    ],
    ids=["exponential", "gamma 3", "gamma 1.5", "log-normal", "uniform", "Laplace", "normal"],
)
def test_an_edge_is_seen_at_moved_targets_with_every_key(model, draw, seen, abrupt, key):
    run = jax.jit(jax.vmap(edges, in_axes=(0, None, None)))
    of_keys = run(jax.random.split(key, 20), model, draw.sample(key, (N,)))
    np.testing.assert_array_equal(of_keys.seen, seen)
    np.testing.assert_array_equal(of_keys.abrupt, abrupt)


@pytest.mark.slow
def test_no_key_misses_the_edge_of_a_density(key):
    """Scores are not right beside an edge: they are left out whatever the key."""
    rate = jnp.exp(0.5 * jax.random.normal(key, (N,)))
    targets = half_line(rate, jax.random.key(1))

    def run(key):
        predictions = Unnormalized(exponential, rate)
        return calibration_test(key, predictions, targets, null=QUICK)

    results = jax.jit(lambda keys: jax.lax.map(run, keys))(jax.random.split(key, 12))
    assert np.all(results.notes["density-with-edge"])
    assert float(jnp.min(results.p_value)) > 0.01
    assert any("density-with-edge" in text for text in results.warnings())


@pytest.mark.slow
def test_a_uniform_density_that_is_too_wide_is_found(key):
    """Its log densities are all equal, or there are none: ranks of coordinates tell."""
    center = jax.random.normal(key, (200,))
    noise = jax.random.uniform(jax.random.key(1), (200,), minval=-1.5, maxval=1.5)
    predictions = Unnormalized(uniform, center)
    right = calibration_test(key, predictions, center + noise, null=QUICK)
    wide = calibration_test(key, predictions, center + 0.6 * noise, null=QUICK)
    assert right.verdict == "not rejected"
    assert wide.verdict == "rejected"


@pytest.mark.slow
def test_stein_tests_give_no_verdict_beside_an_abrupt_edge(key):
    rate = jnp.exp(0.5 * jax.random.normal(key, (N,)))
    targets = half_line(rate, jax.random.key(1))
    predictions = Unnormalized(exponential, rate)
    assert kcsd_test(key, predictions, targets, rate, null=QUICK).verdict == "cannot tell"
    for result in (
        kccsd_test(key, predictions, targets, null=QUICK),
        ksd_test(key, dist.Exponential(1.0), rate * targets, null=QUICK),
    ):
        assert result.verdict == "cannot tell"
        assert "a density ends where it is not 0" in result.reason
        assert any("abrupt-edge" in text for text in result.warnings())
    smooth = ksd_test(key, dist.Gamma(3.0), dist.Gamma(3.0).sample(key, (N,)), null=QUICK)
    assert smooth.verdict == "not rejected"
    assert not any("edge" in text for text in smooth.warnings())


@pytest.mark.slow
def test_edges_leave_gradients_alone(key):
    targets = half_line(jnp.ones(N), key)

    def statistic(rate):
        return kcsd_test(key, Unnormalized(exponential, rate), targets, targets).statistic

    assert np.all(np.isfinite(jax.grad(statistic)(jnp.ones(N))))
