"""Averages over quantiles at random are unbiased for those of the density, to the stated error."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions.transforms import AffineTransform, PowerTransform
from optimized import optimized
from scipy import stats

from jaxcal.kernels import IMQ, Gaussian, Laplace
from jaxcal.kernels.means.dispatch import kernel_means
from jaxcal.kernels.means.waves import Wave
from jaxcal.nulls import Wild
from jaxcal.read import Standardized, Units
from jaxcal.read.sampling import stratified
from jaxcal.skce import skce_test

A, B = np.array([-1.0, 0.5, 2.0]), np.array([0.5, 1.0, 3.0])
SHARES = np.array([[0.3, 0.7], [0.5, 0.5], [1.0, 0.0]])
MIXING = dist.Categorical(probs=jnp.asarray(SHARES))
FAMILIES = {  # with scipy's densities
    "Uniform": (dist.Uniform(A, A + B), lambda y: stats.uniform.pdf(y, A, B)),
    "Gumbel": (dist.Gumbel(A, B), lambda y: stats.gumbel_r.pdf(y, A, B)),
    "LogNormal": (dist.LogNormal(A, 0.7), lambda y: stats.lognorm.pdf(y, 0.7, 0, np.exp(A))),
    "Cauchy": (dist.Cauchy(A, B), lambda y: stats.cauchy.pdf(y, A, B)),
    "StudentT": (dist.StudentT(3 * B, A, 2.0), lambda y: stats.t.pdf(y, 3 * B, A, 2.0)),
    "Gamma": (dist.Gamma(1 + A**2, B), lambda y: stats.gamma.pdf(y, 1 + A**2, scale=1 / B)),
    "Beta": (dist.Beta(1 + A**2, 3.0), lambda y: stats.beta.pdf(y, 1 + A**2, 3.0)),
    "a transform": (
        dist.TransformedDistribution(
            dist.Gamma(2 + A**2, B), [PowerTransform(-1.0), AffineTransform(A, -2.0)]
        ),
        lambda y: stats.invgamma.pdf((A - y) / 2, 2 + A**2, scale=B) / 2,
    ),
    "a vector": (
        dist.Logistic(A[:, None], B[:, None]).to_event(1),
        lambda y: stats.logistic.pdf(y, A, B),
    ),
    "of one family": (
        dist.MixtureSameFamily(MIXING, dist.Gumbel(np.stack([A, A + 4], 1), 1.0)),
        lambda y: mixed(stats.gumbel_r.pdf(y, A), stats.gumbel_r.pdf(y, A + 4)),
    ),
    "of two families": (
        dist.MixtureGeneral(MIXING, [dist.Normal(A, B), dist.Laplace(A + 1, B)]),
        lambda y: mixed(stats.norm.pdf(y, A, B), stats.laplace.pdf(y, A + 1, B)),
    ),
}


def mixed(one, other):
    return SHARES[:, 0] * one + SHARES[:, 1] * other


YS = jnp.array([[-2.0], [0.7], [9.0]])
# panels that end at every edge and kink, and grow to both sides of 0
GROWN = np.concatenate(
    [[0], np.geomspace(1e-6, 0.25, 30), np.arange(0.5, 12, 0.25), np.geomspace(12, 1e9, 60)]
)
ENDS = np.unique(np.concatenate([-GROWN, GROWN]))
X, W = np.polynomial.legendre.leggauss(16)
MIDDLES, HALVES = (ENDS[1:] + ENDS[:-1])[:, None] / 2, np.diff(ENDS)[:, None] / 2
POINTS, LENGTHS = (MIDDLES + HALVES * X).ravel(), (HALVES * W).ravel()


ROUTE = "64 random quantiles of each prediction"


def error_of(means):
    error = means.error
    assert error is not None
    return float(error)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_averages_are_integrals_of_the_density(name, key):
    predictions, density = FAMILIES[name]
    with np.errstate(over="ignore"):
        p = density(POINTS[:, None]).T * LENGTHS
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-8)
    first = p @ np.exp(-((POINTS[:, None] - np.asarray(YS)[:, 0]) ** 2) / (2 * 1.5**2))
    second = p @ np.exp(-((POINTS[:, None] - POINTS) ** 2) / (2 * 1.5**2)) @ p.T
    means = kernel_means(Gaussian(1.5), predictions, key=key)
    assert means.route == ROUTE
    error = error_of(means)
    assert error < 0.02
    off = ~np.eye(3, dtype=bool)
    for value, wanted, times in [
        (means.first(means.features, YS), first, 1),
        (means.second(means.features, means.features)[off], second[off], 2),
        (means.own(means.features), np.diag(second), 2),
    ]:
        np.testing.assert_allclose(value, wanted, rtol=0, atol=times * (4 * error + 0.002))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Cauchy", "Gamma"])  # by quantiles, and by neighbours
def test_averages_are_unbiased_and_the_stated_error_is_theirs(name):
    predictions, density = FAMILIES[name]
    p = density(POINTS[:, None]).T * LENGTHS
    first = p @ np.exp(-((POINTS[:, None] - np.asarray(YS)[:, 0]) ** 2) / (2 * 1.5**2))
    second = p @ np.exp(-((POINTS[:, None] - POINTS) ** 2) / (2 * 1.5**2)) @ p.T

    @optimized
    @jax.vmap
    def averages(key):
        means = kernel_means(Gaussian(1.5), predictions, key=key)
        pairs = means.second(means.features, means.features)
        return means.first(means.features, YS), pairs[0, 1:], means.own(means.features), means.error

    *values, error = averages(jax.random.split(jax.random.key(3), 400))
    for value, wanted in zip(values, (first, second[0, 1:], np.diag(second)), strict=True):
        standard_error = np.std(value, axis=0) / 400**0.5
        assert np.all(np.abs(np.mean(value, axis=0) - wanted) < 4.5 * standard_error + 1e-9)
    stated = np.sqrt(np.mean(error**2))
    seen = np.std(values[0], axis=0)  # at three targets, some of them far from all predictions
    assert stated / 2 < np.max(seen) < 2 * stated


def test_units_change_nothing(key):
    predictions = dist.Gumbel(A, B)
    units = Units(jnp.array([1.0]), jnp.array([2.0]))
    plain = kernel_means(IMQ(1.5), predictions, key=key)
    seen = kernel_means(IMQ(0.75), Standardized(predictions, units, ()), key=key)
    np.testing.assert_allclose(seen.own(seen.features), plain.own(plain.features), atol=1e-12)
    np.testing.assert_allclose(error_of(seen), error_of(plain), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [Laplace(1.0), Wave()])
def test_any_kernel_is_averaged_and_a_key_is_needed(kernel, key):
    means = kernel_means(kernel, dist.Gumbel(A, B), key=key)
    assert means.route == ROUTE
    draws = dist.Gumbel(A, B).sample(key, (50_000,))
    values = jax.vmap(jax.vmap(lambda z: kernel(z[None], YS[1])))(draws)
    error = np.std(values, axis=0) / 50_000**0.5
    gap = means.first(means.features, YS[1:2])[:, 0] - np.mean(values, axis=0)
    assert np.all(np.abs(gap) < 4.5 * (error + 0.01))
    with pytest.raises(TypeError, match="give a key"):
        kernel_means(kernel, dist.Gumbel(A, B))


@pytest.mark.slow
def test_every_way_states_its_error(key):
    assert kernel_means(Gaussian(1.0), dist.Normal(A, B)).error == 0
    assert kernel_means(IMQ(1.0), dist.Normal(A, B)).error == 1e-7
    assert kernel_means(IMQ(1.0), dist.Poisson(B)).error == 1e-6
    assert 0 < error_of(kernel_means(IMQ(1.0), dist.Gumbel(A, B), key=key)) < 0.01
    assert kernel_means(IMQ(1.0), dist.Gumbel(A, B), key=key, n_samples=9).error is None


@pytest.mark.slow
def test_points_have_the_type_of_the_predictions_and_are_finite(key):
    for make, count in ((dist.Cauchy, 2), (dist.Weibull, 2), (dist.Poisson, 1)):
        parameters = (jnp.ones(1000, jnp.float32),) * count
        points = stratified(key, make(*parameters)).points
        assert points.dtype == jnp.float32
        assert bool(jnp.all(jnp.isfinite(points)))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["Cauchy", "LogNormal"])
def test_heavy_tails_keep_the_level(family):
    n, sets = 24, 200
    make = getattr(dist, family)

    def p_value(key):
        data_key, test_key = jax.random.split(key)
        predictions = make(jnp.linspace(-1, 1, n), 1.0)
        ys = predictions.sample(data_key)
        return skce_test(test_key, predictions, ys, null=Wild(99)).p_value

    every = optimized(partial(jax.lax.map, p_value))
    p = every(jax.random.split(jax.random.key(7), sets))
    low, high = stats.binom.interval(0.9999, sets, 0.05)
    assert low <= int(jnp.sum(p <= 0.05)) <= high
