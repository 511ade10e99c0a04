"""A kernel of the user has the rights of those of the library: bandwidth, algebra, fast path."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from jaxcal import Draws, kccsd_test, ucme_test
from jaxcal.divergences import MMD
from jaxcal.kernels import IMQ, Gaussian, Kernel, Radial, points
from jaxcal.kernels.algebra import Profile
from jaxcal.skce import skce_test

N = 12


class Bell(Radial):
    """A Gaussian written by a user, who says nothing of its smoothness."""

    def shape(self, u):
        return jnp.exp(-u / 2)


class Plain:
    """Without equinox, without a base class: two attributes and a call."""

    bandwidth = None

    def shape(self, u):
        return jnp.exp(-u / 2)

    def __call__(self, x, y):
        raise AssertionError("pairs go through the profile")


class Duck(eqx.Module):
    """A pytree without a base class."""

    bandwidth: jax.Array | None = None

    def shape(self, u):
        return jnp.exp(-u / 2)

    def __call__(self, x, y):
        return self.shape(jnp.sum((x - y) ** 2 / self.bandwidth**2))


def bell(u):
    return jnp.exp(-u / 2)


USERS = {"class": Bell(), "plain": Plain(), "duck": Duck(), "function": Profile(function=bell)}


@pytest.fixture(scope="module")
def data():
    mean_key, noise_key = jax.random.split(jax.random.key(0))
    mean = jax.random.normal(mean_key, (N, 2))
    ys = mean + jax.random.normal(noise_key, (N, 2))
    return dist.Normal(mean, 1.0).to_event(1), ys, mean


def numbers(result):
    return [result.estimate, result.p_value, *result.bandwidths.values()]


def results(kernel, data, key):
    predictions, ys, mean = data
    kernels = {"target_kernel": kernel, "prediction_kernel": kernel}
    draws = Draws(mean[:, None] + ys[None, :8])
    return [kccsd_test(key, predictions, ys, **kernels), skce_test(key, draws, ys, **kernels)]


@pytest.fixture(scope="module")
def of_the_library(data):
    return results(Gaussian(), data, jax.random.key(1))


@pytest.mark.slow
@pytest.mark.parametrize("name", USERS)
def test_it_gives_what_the_kernel_of_the_library_gives(name, data, of_the_library):
    ours = results(USERS[name], data, jax.random.key(1))
    for result, wanted in zip(ours, of_the_library, strict=True):
        assert result.bandwidths.keys() == {"target", "prediction"}
        np.testing.assert_allclose(numbers(result), numbers(wanted), rtol=1e-10)


@pytest.mark.parametrize("name", USERS)
def test_it_is_added_multiplied_and_scaled(name):
    mine = USERS[name]
    for ours, wanted in (
        (2.0 * (IMQ(0.7) + mine), 2.0 * (IMQ(0.7) + Gaussian(1.3))),
        (IMQ(0.7) * mine, IMQ(0.7) * Gaussian(1.3)),
    ):
        assert points.needs_bandwidth(ours)
        ready = points.with_bandwidth(ours, jnp.asarray(1.3))
        r2 = jnp.asarray([0.0, 0.4, 3.0])
        np.testing.assert_allclose(points.profile(ready)(r2), points.profile(wanted)(r2))


def test_from_the_left_too():
    assert points.profile(points.with_bandwidth(bell_sum(), jnp.asarray(1.0))) is not None
    assert float((Bell(1.0) * 3.0)(jnp.zeros(2), jnp.zeros(2))) == 3.0


def bell_sum():
    return Duck() + Bell()  # a kernel without algebra of its own, on the left


@pytest.mark.slow
def test_in_mmd_and_at_locations(data, key):
    predictions, ys, _ = data
    ours, wanted = (
        numbers(kccsd_test(key, predictions, ys, divergence=MMD(kernel, n_samples=8)))
        + numbers(ucme_test(key, predictions, ys, prediction_kernel=kernel))
        for kernel in (Bell(), Gaussian())
    )
    np.testing.assert_allclose(ours, wanted, rtol=1e-10)


class Kinked(Radial):
    def shape(self, u):
        return jnp.exp(-jnp.sqrt(u + 1e-30))


class Honest(Kinked):
    smooth = False


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [Kinked(), Honest()])
def test_one_that_is_not_smooth_is_refused_where_that_matters(kernel, data, key):
    predictions, ys, _ = data
    with pytest.raises(ValueError, match="target_kernel: a Stein test differentiates it twice"):
        kccsd_test(key, predictions, ys, target_kernel=kernel)
    assert jnp.isfinite(kccsd_test(key, predictions, ys, prediction_kernel=kernel).p_value)


class OfPairs(Kernel):
    """No profile: evaluated pair by pair."""

    smooth = True

    def __call__(self, x, y):
        return jnp.exp(x[0] * y[0] / 10)


@pytest.mark.slow
def test_one_of_pairs_is_a_kernel_too(data, key):
    predictions, ys, _ = data
    assert points.profile(OfPairs()) is None
    assert jnp.isfinite(kccsd_test(key, predictions, ys, target_kernel=OfPairs()).p_value)
    assert jnp.isfinite(kccsd_test(key, predictions, ys, target_kernel=2 * OfPairs()).p_value)
