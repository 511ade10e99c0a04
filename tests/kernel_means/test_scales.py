"""Averages over multivariate Student t predictions, to the stated error."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import integrate, special, stats

from jaxcal.kernel_means import kernel_means
from jaxcal.kernel_means.normals import Full, FullNormals
from jaxcal.kernels import IMQ, Gaussian
from jaxcal.models import Standardized, Units

N, D = 3, 2
RNG = np.random.default_rng(0)
TRIL = np.tril(RNG.normal(size=(N, D, D))) / 2
TRIL[:, range(D), range(D)] = 0.2 + np.abs(TRIL[:, range(D), range(D)])
CENTERS, YS = RNG.normal(size=(N, D)), jnp.asarray(RNG.normal(size=(4, D)))
DF = np.array([3.0, 5.0, 40.0])
PREDICTIONS = dist.MultivariateStudentT(jnp.asarray(DF), jnp.asarray(CENTERS), jnp.asarray(TRIL))


def error_of(means):
    error = means.error
    assert error is not None
    return float(error)


def test_averages_over_student_t_vectors_are_integrals_over_the_scale():
    """By adaptive quadrature over the precision, which is Gamma; twice for two predictions."""
    means = kernel_means(Gaussian(1.0), PREDICTIONS)
    assert means.route == "quadrature over the scale"
    error = error_of(means)
    assert error < 1e-4
    sigma = TRIL @ np.swapaxes(TRIL, -1, -2)

    def normal(gap, cov):
        whole = np.eye(D) + cov
        exponent = gap @ np.linalg.solve(whole, gap)
        return np.exp(-exponent / 2) / np.sqrt(np.linalg.det(whole))

    def expected(function, df):
        ends = np.log(stats.chi2(df).ppf([1e-12, 1 - 1e-12]))

        peak = df / 2 * np.log(2) + special.gammaln(df / 2)

        def integrand(x):
            return function(df / np.exp(x)) * np.exp(df * x / 2 - np.exp(x) / 2 - peak)

        return integrate.quad(integrand, *ends, epsabs=1e-7, epsrel=1e-7)[0]

    def first(i, y):
        return expected(lambda t: normal(CENTERS[i] - y, t * sigma[i]), DF[i])

    def second(i, j):
        gap = CENTERS[i] - CENTERS[j]

        def of_scale(t):
            return expected(lambda u: normal(gap, t * sigma[i] + u * sigma[j]), DF[j])

        return expected(of_scale, DF[i])

    wanted = [[first(i, y) for y in np.asarray(YS)] for i in range(N)]
    np.testing.assert_allclose(means.first(means.features, YS), wanted, rtol=0, atol=error)
    pairs = means.second(means.features, means.features)
    assert float(pairs[0, 1]) == pytest.approx(second(0, 1), abs=2 * error)
    np.testing.assert_allclose(means.own(means.features), jnp.diag(pairs), atol=1e-12)


def test_averages_over_cauchy_vectors_agree_with_draws():
    predictions = dist.MultivariateStudentT(jnp.ones(N), PREDICTIONS.loc, PREDICTIONS.scale_tril)
    means = kernel_means(Gaussian(1.0), predictions)
    draws = predictions.sample(jax.random.key(0), (100_000,))
    values = jnp.exp(-jnp.sum((draws[:, :, None] - YS[None, None]) ** 2, -1) / 2)
    gaps = jnp.abs(means.first(means.features, YS) - jnp.mean(values, 0))
    assert bool(jnp.all(gaps < error_of(means) + 4.5 * jnp.std(values, 0) / 100_000**0.5))


def test_units_and_sums_go_through_and_other_kernels_are_left_to_draws():
    units = Units(jnp.array([1.0, -1.0]), jnp.array([2.0, 0.5]))
    inside = Standardized(PREDICTIONS, units, (D,))
    means = kernel_means(Gaussian(jnp.array([0.5, 2.0])) + Gaussian(3.0), inside)
    plain = kernel_means(Gaussian(jnp.array([1.0, 1.0])), PREDICTIONS)
    wide = kernel_means(Gaussian(jnp.array([6.0, 1.5])), PREDICTIONS)
    np.testing.assert_allclose(
        means.first(means.features, units.points(YS)),
        plain.first(plain.features, YS) + wide.first(wide.features, YS),
        atol=1e-12,
    )
    assert means.route == "quadrature over the scale"
    assert kernel_means(IMQ(1.0), PREDICTIONS, key=0).route == "draws of each prediction"
    many = dist.MultivariateStudentT(3.0, jnp.zeros((N, 5)), jnp.eye(5))
    assert kernel_means(Gaussian(1.0), many, key=0).route == "draws of each prediction"


@pytest.mark.parametrize("d", [1, 2, 4])
def test_a_small_matrix_factored_by_hand_is_that_of_the_library(d):
    rng = np.random.default_rng(d)
    roots = rng.normal(size=(2, d, d))
    covs = jnp.asarray(roots @ np.swapaxes(roots, 1, 2))
    mean = jnp.asarray(rng.normal(size=(2, d)))
    p, q = (FullNormals(mean[i], covs[i], jnp.zeros(d * d), jnp.zeros(())) for i in (0, 1))
    squares = jnp.asarray(rng.uniform(0.5, 2, d))
    whole = np.diag(np.asarray(squares)) + np.asarray(covs[0] + covs[1])
    gap = np.asarray(mean[0] - mean[1])
    wanted = np.exp(-gap @ np.linalg.solve(whole, gap) / 2)
    wanted *= np.sqrt(np.prod(np.asarray(squares)) / np.linalg.det(whole))
    assert float(Full(squares)._pair(p, q)) == pytest.approx(wanted, rel=1e-12)
