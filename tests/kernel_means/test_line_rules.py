"""Averages over one number by its quantiles are those of its density, to the stated error."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions.transforms import AffineTransform, PowerTransform
from optimized import optimized
from scipy import stats

from jaxcal.kernel_means import kernel_means
from jaxcal.kernel_means.waves import Wave
from jaxcal.kernels import IMQ, Gaussian, Laplace
from jaxcal.models import Standardized, Units
from jaxcal.nulls import Wild
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


def error_of(means):
    error = means.error
    assert error is not None
    return float(error)


@pytest.mark.parametrize("name", FAMILIES)
def test_averages_are_integrals_of_the_density(name):
    predictions, density = FAMILIES[name]
    with np.errstate(over="ignore"):
        p = density(POINTS[:, None]).T * LENGTHS
    np.testing.assert_allclose(p.sum(1), 1, atol=1e-8)
    first = p @ np.exp(-((POINTS[:, None] - np.asarray(YS)[:, 0]) ** 2) / (2 * 1.5**2))
    second = p @ np.exp(-((POINTS[:, None] - POINTS) ** 2) / (2 * 1.5**2)) @ p.T
    means = kernel_means(Gaussian(1.5), predictions)
    assert means.route == "quadrature over the quantiles"
    error = error_of(means)
    assert error < 0.05
    for value, wanted, times in [
        (means.first(means.features, YS), first, 1),
        (means.second(means.features, means.features), second, 2),
        (means.own(means.features), np.diag(second), 2),
    ]:
        np.testing.assert_allclose(value, wanted, rtol=0, atol=times * error)


@pytest.mark.parametrize("family", ["Gamma", "Beta"])
def test_densities_that_are_infinite_at_an_end(family):
    a = np.array([0.2, 0.6])
    predictions = {"Gamma": dist.Gamma(a, 0.5), "Beta": dist.Beta(a, 0.4)}[family]
    frozen = {"Gamma": stats.gamma(a, scale=2.0), "Beta": stats.beta(a, 0.4)}[family]
    y = frozen.ppf((np.arange(100_000)[:, None] + 0.5) / 100_000)
    means = kernel_means(Gaussian(0.5), predictions)
    wanted = np.exp(-((y[:, :, None] - np.asarray(YS)[:, 0]) ** 2) / (2 * 0.5**2)).mean(0)
    first = means.first(means.features, YS)
    np.testing.assert_allclose(first, wanted, rtol=0, atol=error_of(means) + 1e-5)


def test_units_change_nothing():
    predictions = dist.Gumbel(A, B)
    units = Units(jnp.array([1.0]), jnp.array([2.0]))
    plain = kernel_means(IMQ(1.5), predictions)
    seen = kernel_means(IMQ(0.75), Standardized(predictions, units, ()))
    np.testing.assert_allclose(seen.own(seen.features), plain.own(plain.features), atol=1e-12)
    np.testing.assert_allclose(error_of(seen), error_of(plain), rtol=1e-2)


@pytest.mark.parametrize("kernel", [Laplace(1.0), Wave()])
def test_what_no_rule_is_for_is_drawn(kernel, key):
    means = kernel_means(kernel, dist.Gumbel(A, B), key=key)
    assert means.route == "draws of each prediction"
    assert means.error is None
    with pytest.raises(TypeError, match="give a key"):
        kernel_means(kernel, dist.Gumbel(A, B))


def test_every_way_states_its_error():
    assert kernel_means(Gaussian(1.0), dist.Normal(A, B)).error == 0
    assert kernel_means(IMQ(1.0), dist.Normal(A, B)).error == 1e-7
    assert kernel_means(IMQ(1.0), dist.Laplace(A, B)).error == 3e-7
    assert kernel_means(IMQ(1.0), dist.Poisson(B)).error == 1e-6


def test_a_kernel_too_narrow_for_the_rule_is_told(key):
    ys = jax.random.cauchy(key, (40,))
    predictions = dist.Cauchy(jnp.zeros(40), jnp.linspace(0.5, 2, 40))
    wide, narrow = (
        skce_test(
            key, predictions, ys, target_kernel=Gaussian(width), standardize=False, null=Wild(99)
        )
        for width in (jnp.asarray(3.0), jnp.asarray(0.03))
    )
    error = float(wide.diagnostics.averages_error)
    assert f"quadrature over the quantiles, error up to {error:.1g}\n" in repr(wide) + "\n"
    assert not wide.warnings()
    assert "[coarse-averages]" in " ".join(narrow.warnings())


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
