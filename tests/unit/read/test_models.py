"""Units, moments and draws of predictions."""

from functools import partial

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxcal.read import Draws, Standardized, Units, Unnormalized, draws, gaussian_moments

close = partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12)
RNG = np.random.default_rng(0)
N, D = 6, 2
MEAN, DEVIATION = RNG.normal(size=(N, D)), RNG.uniform(0.5, 2, size=(N, D))
ROOT = np.tril(RNG.normal(size=(N, D, D)), -1) + np.diag([1.0, 0.6])


@given(scale=st.floats(1e-6, 1e6), shift=st.floats(-1e3, 1e3))
def test_units_standardize(scale, shift):
    ys = RNG.normal(size=(9, 2)) * scale + shift * scale
    ts = Units.of(jnp.asarray(ys)).points(jnp.asarray(ys))
    np.testing.assert_allclose(ts.mean(0), 0, atol=1e-9)
    np.testing.assert_allclose(ts.std(0), 1, rtol=1e-9)


@pytest.mark.parametrize("value", [0.0, 3.0, 0.1, 1e9, -1e-9])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_constant_coordinate_keeps_its_scale(value, dtype):
    ys = RNG.normal(size=(9, 2)).astype(dtype)
    ys[:, 1] = value
    units = Units.of(jnp.asarray(ys))
    assert float(units.scale[1]) == 1.0
    assert np.all(np.isfinite(units.points(jnp.asarray(ys))))


def test_unchanged_units_change_nothing():
    ys = jnp.asarray(RNG.normal(size=(4, 2)))
    units = Units.unchanged(ys)
    for got in (units.points(ys), units.original(ys), units.scores(ys)):
        np.testing.assert_array_equal(got, ys)


def test_moments_of_gaussian_predictions():
    mean, variance = gaussian_moments(dist.Normal(jnp.asarray(MEAN), DEVIATION).to_event(1))
    close(mean, MEAN)
    close(variance, DEVIATION**2)
    wide = dist.Normal(jnp.asarray(MEAN)[:, None], jnp.asarray(DEVIATION)[:, None]).to_event(
        2
    )  # events [1, d]
    close(gaussian_moments(wide)[0], MEAN)
    mean, variance = gaussian_moments(dist.Normal(jnp.asarray(MEAN[:, 0]), 2.0))
    close(mean, MEAN[:, :1])
    close(variance, np.full((N, 1), 4.0))
    root = jnp.asarray(ROOT)
    mean, covariance = gaussian_moments(dist.MultivariateNormal(jnp.asarray(MEAN), scale_tril=root))
    close(mean, MEAN)
    close(covariance, ROOT @ np.swapaxes(ROOT, 1, 2))
    mean, variance = gaussian_moments(dist.Normal(0.5, 2.0).expand((N,)))
    close(mean, np.full((N, 1), 0.5))


def test_moments_in_other_units():
    units = Units(jnp.asarray([1.0, -1.0]), jnp.asarray([2.0, 0.1]))
    scale = np.array([2.0, 0.1])
    normal = Standardized(dist.Normal(jnp.asarray(MEAN), DEVIATION).to_event(1), units, (D,))
    mean, variance = gaussian_moments(normal)
    close(mean, (MEAN - [1.0, -1.0]) / scale)
    close(variance, (DEVIATION / scale) ** 2)
    full = dist.MultivariateNormal(jnp.asarray(MEAN), scale_tril=jnp.asarray(ROOT))
    mean, covariance = gaussian_moments(Standardized(full, units, (D,)))
    root = ROOT / scale[:, None]
    close(covariance, root @ np.swapaxes(root, 1, 2))


@pytest.mark.parametrize(
    "other", [dist.StudentT(3.0, jnp.zeros(N)), dist.LogNormal(jnp.zeros(N), 1.0), Draws(MEAN)]
)
def test_other_predictions_have_no_such_moments(other):
    with pytest.raises(TypeError, match="closed form"):
        gaussian_moments(other)


def test_draws_have_the_law_of_the_prediction(key):
    m = 20_000
    got = np.asarray(draws(key, dist.Normal(jnp.asarray(MEAN), DEVIATION).to_event(1), m))
    assert got.shape == (N, m, D)
    assert np.all(np.abs(got.mean(1) - MEAN) < 5 * DEVIATION / m**0.5)
    np.testing.assert_allclose(got.std(1), DEVIATION, rtol=5 / (2 * m) ** 0.5)
    scalar = draws(key, dist.Normal(jnp.asarray(MEAN[:, 0]), 1.0), 7)
    assert scalar.shape == (N, 7, 1)


def test_draws_in_other_units(key):
    units = Units(jnp.asarray([1.0, -1.0]), jnp.asarray([2.0, 0.1]))
    normal = dist.Normal(jnp.asarray(MEAN), DEVIATION).to_event(1)
    raw = draws(key, normal, 3)
    close(
        draws(key, Standardized(normal, units, (D,)), 3),
        (raw - units.center[None, None]) / units.scale[None, None],
    )


def test_given_draws_are_used_in_order(key):
    samples = jnp.asarray(RNG.normal(size=(N, 5, D)))
    np.testing.assert_array_equal(draws(key, Draws(samples), 3), samples[:, :3])
    with pytest.raises(ValueError, match="asked for 6 draws"):
        draws(key, Draws(samples), 6)


@pytest.mark.parametrize("unit", [1e-30, 1e-21, 1e21, 1e30])
def test_correlation_of_draws_is_the_same_in_all_units(unit):
    steps = np.cumsum(RNG.normal(size=(9, 50, 2)), axis=1).astype(np.float32)
    wanted = Draws(jnp.asarray(steps)).correlation()
    assert wanted > 0.8
    units = jnp.asarray([unit, 1], jnp.float32)
    lag = Draws(jnp.asarray(steps) * units[None, None]).correlation()
    np.testing.assert_allclose(lag, wanted, rtol=1e-5)


def test_no_sampler_says_so(key):
    with pytest.raises(TypeError, match="no sampler"):
        draws(key, Unnormalized(lambda p, y: -(y**2), jnp.zeros(N)), 3)
