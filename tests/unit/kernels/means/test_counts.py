"""Averages over counts are the sums of scipy's probabilities, for any kernel."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats

from jaxcal.kernels import Gaussian, Laplace
from jaxcal.kernels.means import particles
from jaxcal.kernels.means.dispatch import kernel_means
from jaxcal.kernels.means.waves import Wave
from jaxcal.nulls import Wild
from jaxcal.read import OwnUnits, Standardized, Units
from jaxcal.read.sampling import lattice_size
from jaxcal.skce import skce_test

close = partial(np.testing.assert_allclose, rtol=0, atol=4e-9)
A, B = np.array([0.3, 2.0, 40.0]), np.array([0.2, 0.5, 0.7])
FAMILIES = {  # with scipy's probabilities
    "Poisson": (dist.Poisson(A), scipy.stats.poisson(A)),
    "Binomial": (dist.Binomial(9, probs=B), scipy.stats.binom(9, B)),
    "BetaBinomial": (dist.BetaBinomial(A, 2.0, 9), scipy.stats.betabinom(9, A, 2.0)),
    "NegativeBinomial2": (
        dist.NegativeBinomial2(A / 10, 3.0),
        scipy.stats.nbinom(3.0, 3.0 / (3.0 + A / 10)),
    ),
    "Geometric": (dist.Geometric(probs=B), scipy.stats.geom(B, loc=-1)),
    "a vector": (dist.Poisson(A[:, None]).to_event(1), scipy.stats.poisson(A)),
}
YS = jnp.array([[0.0], [3.0], [41.5]])


def probabilities(frozen):
    return frozen.pmf(np.arange(400)[:, None]).T


def laplace(gap):
    return np.exp(-np.abs(gap) / 1.7)


def averages(p):
    """Over both predictions and targets, from probabilities [n, m]."""
    values = np.arange(p.shape[1])
    first = p @ laplace(values[:, None] - np.asarray(YS)[:, 0])
    return first, p @ laplace(values[:, None] - values) @ p.T


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_averages_are_finite_sums(name):
    predictions, frozen = FAMILIES[name]
    first, second = averages(probabilities(frozen))
    means = kernel_means(Laplace(1.7), predictions)
    assert means.route == "sums over counts, error below 1e-06"
    error = particles.COUNTS_ERROR if name in ("BetaBinomial", "NegativeBinomial2") else 4e-9
    close(means.first(means.features, YS), first, atol=error)
    close(means.second(means.features, means.features), second, atol=error)
    close(means.own(means.features), np.diag(second), atol=error)


def test_characteristic_functions_of_counts():
    w = np.array([0.0, 0.7, -3.0])
    wanted = np.exp(A[:, None] * (np.exp(1j * w) - 1))
    for wave, part in [(Wave(), np.real(wanted)), (Wave(sine=True), np.imag(wanted))]:
        means = kernel_means(wave, dist.Poisson(A))
        close(means.first(means.features, jnp.asarray(w)[:, None]), part)


def test_mixtures_of_counts_and_excess_zeros():
    w = np.array([[0.3, 0.7], [0.5, 0.5], [1.0, 0.0]])
    parts = dist.Poisson(np.stack([A, A + 1], axis=1))
    mixed = dist.MixtureSameFamily(dist.Categorical(probs=jnp.asarray(w)), parts)
    one, other = (probabilities(scipy.stats.poisson(a)) for a in (A, A + 1))
    zeros = np.eye(400)[:1]
    for predictions, p in [
        (mixed, w[:, :1] * one + w[:, 1:] * other),
        (dist.ZeroInflatedPoisson(B, rate=A), B[:, None] * zeros + (1 - B)[:, None] * one),
    ]:
        means = kernel_means(Laplace(1.7), predictions)
        first, second = averages(p)
        close(means.first(means.features, YS), first)
        close(means.second(means.features, means.features), second)


def test_units_common_to_all_and_of_each():
    predictions, kernel = dist.Poisson(A), Laplace(1.7)
    plain = kernel_means(kernel, predictions)
    units = Units(jnp.array([1.0]), jnp.array([2.0]))
    seen = kernel_means(Laplace(1.7 / 2), Standardized(predictions, units, ()))
    for one, other in [
        (seen.first(seen.features, units.points(YS)), plain.first(plain.features, YS)),
        (seen.own(seen.features), plain.own(plain.features)),
    ]:
        np.testing.assert_allclose(one, other, atol=1e-12)
    own_units = OwnUnits(units, jnp.zeros((3, 1)), 3 * jnp.ones((3, 1, 1)))
    each = kernel_means(Laplace(1.7 / 6), Standardized(predictions, own_units, ()))
    np.testing.assert_allclose(each.own(each.features), plain.own(plain.features), atol=1e-12)


@pytest.mark.slow
def test_as_many_counts_as_the_tails_need():
    assert [lattice_size(dist.Poisson(jnp.array([0.1, r]))) for r in (1, 40)] == [64, 128]
    assert lattice_size(dist.Poisson(jnp.array([jnp.nan, 1.0]), validate_args=False)) == 64
    for none in [
        dist.Poisson(jnp.array([1e5])),
        dist.DiscreteUniform(-3, jnp.array([3])),
        dist.Poisson(jnp.ones((3, 2))).to_event(1),
        dist.Normal(jnp.zeros(3), 1.0),
    ]:
        assert lattice_size(none) is None
    uneven = dist.BetaBinomial(0.01, jnp.array([0.01]), 20000)  # all of it at the two ends
    for kernel, drawn in [(Laplace(1.0), dist.Poisson(jnp.array([1e5]))), (Gaussian(1.0), uneven)]:
        with pytest.raises(TypeError, match="give a key"):
            kernel_means(kernel, drawn)


@pytest.mark.slow
def test_thousands_of_counts_are_taken_at_random(key):
    rate = 1e4 + 300 * jax.random.normal(key, (40,))
    k = np.arange(8000, 12000)
    p = scipy.stats.poisson(np.asarray(rate)).pmf(k[:, None]).T
    means = kernel_means(Gaussian(100.0), dist.Poisson(rate), key=key)
    at = np.argmax(p[0])
    wanted = p @ np.exp(-(((k - k[at]) / 100) ** 2) / 2)
    first = means.first(means.features, jnp.asarray(k[at : at + 1], float)[:, None])[:, 0]
    close(first, wanted, atol=4 * float(means.error))
    assert float(means.error) < 0.02
    ys = jax.random.poisson(jax.random.key(1), rate)
    good = skce_test(key, dist.Poisson(rate), ys, null=Wild(99))
    assert good.route == means.route == "64 random quantiles of each prediction"
    assert good.p_value > 0.01
    assert skce_test(key, dist.Poisson(1.05 * rate), ys, null=Wild(99)).p_value == 0.01


def test_too_few_counts_are_no_number():
    means = kernel_means(Gaussian(1.0), dist.Poisson(A), n_counts=20)
    assert np.isnan(means.own(means.features)).tolist() == [False, False, True]
    with pytest.raises(ValueError, match="n_counts"):
        kernel_means(Gaussian(1.0), dist.Poisson(A), n_counts=0)


def test_traced_counts_are_sampled_unless_their_number_is_static(key):
    def averaged(rate, n_counts):
        means = kernel_means(Gaussian(1.0), dist.Poisson(rate), key=key, n_counts=n_counts)
        return means.own(means.features), jnp.zeros(len(means.route))

    exact = kernel_means(Gaussian(1.0), dist.Poisson(jnp.asarray(A)))
    value, route = jax.jit(averaged, static_argnums=1)(A, 128)
    close(value, exact.own(exact.features))
    assert route.size == len(exact.route)
    value, route = jax.eval_shape(partial(averaged, n_counts=None), jnp.asarray(A))
    assert route.size == len("64 random quantiles of each prediction")


@pytest.mark.slow
def test_tests_of_counts_sum_and_keep_their_verdicts(key):
    rate = jnp.exp(jax.random.normal(key, (40,)))
    ys = jax.random.poisson(jax.random.key(1), rate)
    good = skce_test(key, dist.Poisson(rate), ys, null=Wild(99))
    assert good.route == "sums over counts, error below 1e-06"
    assert good.p_value > 0.01
    assert skce_test(key, dist.Poisson(3 * rate + 1), ys, null=Wild(99)).p_value == 0.01
    missing = skce_test(
        key, dist.Poisson(rate.at[3].set(jnp.nan), validate_args=False), ys, null=Wild(99)
    )
    assert "nonfinite-predictions" in " ".join(missing.warnings())
