"""Kernel means of normal predictions against quadrature, Monte Carlo and the published numbers."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import numpyro.distributions as dist
import pytest
from quick import quick_first
from scipy import integrate, stats

from jaxcal.kernels import IMQ, Gaussian, Laplace, Matern52, RationalQuadratic
from jaxcal.kernels.means.closed_forms import Full, FullNormals
from jaxcal.kernels.means.dispatch import kernel_means
from jaxcal.read import Standardized, Units

close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-11)


def profile(kernel):
    """The kernel of a distance r, in NumPy, from its definition."""
    length = float(kernel.bandwidth)
    return {
        Gaussian: lambda r: np.exp(-((r / length) ** 2) / 2),
        IMQ: lambda r: (1 + (r / length) ** 2) ** -getattr(kernel, "beta", 0),
        RationalQuadratic: lambda r: (
            (1 + (r / length) ** 2 / (2 * getattr(kernel, "alpha", 1)))
            ** -getattr(kernel, "alpha", 1)
        ),
        Matern52: lambda r: (
            (1 + 5**0.5 * r / length + 5 * r**2 / (3 * length**2)) * np.exp(-(5**0.5) * r / length)
        ),
        Laplace: lambda r: np.exp(-r / length),
    }[type(kernel)]


def average(shape, shift, deviation):
    """E shape(abs(X)), X ~ N(shift, deviation^2), by adaptive quadrature."""
    ends = [0, *(shift + deviation * np.array([-9, -3, 0, 3, 9]))]
    ends = sorted(ends)
    f = lambda x: shape(abs(x)) * stats.norm.pdf(x, shift, deviation)  # noqa: E731
    parts = itertools.pairwise(ends)
    return sum(integrate.quad(f, a, b, epsabs=1e-14, epsrel=1e-12)[0] for a, b in parts)


KERNELS = [
    (Gaussian(0.7), 1e-12),
    (IMQ(0.7), 1e-9),
    (IMQ(2.0, beta=1.5), 1e-9),
    (RationalQuadratic(0.4), 1e-9),
    (RationalQuadratic(1.3, alpha=0.5), 1e-9),
    (Matern52(0.9), 1e-9),
    (Laplace(0.8), 1e-7),
]


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "error"), KERNELS, ids=lambda k: type(k).__name__)
def test_means_in_one_dimension_are_the_integrals(kernel, error):
    mean, deviation = np.array([0.0, 1.5, -4.0]), np.array([1.0, 0.3, 2.5])
    ys = np.array([[0.4], [-3.0]])
    means = kernel_means(kernel, dist.Normal(mean, deviation))
    first = means.first(means.features, jnp.asarray(ys))
    second = means.second(means.features, means.features)
    shape = profile(kernel)
    for i in range(3):
        for j in range(2):
            wanted = average(shape, mean[i] - ys[j, 0], deviation[i])
            assert abs(first[i, j] - wanted) < error
        for j in range(3):
            wanted = average(shape, mean[i] - mean[j], np.hypot(deviation[i], deviation[j]))
            assert abs(second[i, j] - wanted) < error
    close(means.own(means.features), jnp.diag(second))
    close(means.gram(jnp.asarray(ys), jnp.asarray(ys)), shape(abs(ys - ys.T)), rtol=1e-7)


def random_covariances(n, d, seed=0):
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(n, d, d))
    return roots @ np.swapaxes(roots, 1, 2) / d + 0.1 * np.eye(d)


@pytest.mark.parametrize(
    "kernel",
    [
        Gaussian([0.7, 1.5, 1.0]),
        pytest.param(Gaussian(0.9), marks=pytest.mark.slow),
        IMQ(1.2),
    ],
)
def test_means_of_full_covariances_are_those_of_many_draws(kernel):
    n, m = 3, 200_000
    rng = np.random.default_rng(1)
    mean, cov = rng.normal(size=(n, 3)), random_covariances(n, 3)
    law = dist.MultivariateNormal(mean, covariance_matrix=cov)
    means = kernel_means(kernel, law)
    y = rng.normal(size=(2, 3))
    first, second = (
        means.first(means.features, jnp.asarray(y)),
        means.second(means.features, means.features),
    )
    draws = np.stack(
        [rng.multivariate_normal(*p, size=(2, m)) for p in zip(mean, cov, strict=True)]
    )
    lengths = np.asarray(kernel.bandwidth)
    shape = (
        (lambda u: np.exp(-u / 2)) if isinstance(kernel, Gaussian) else lambda u: (1 + u) ** -0.5
    )

    def near(value, samples):
        assert abs(value - samples.mean()) < 4.5 * samples.std() / m**0.5

    for i in range(n):
        for j in range(2):
            near(first[i, j], shape(np.sum(((draws[i, 0] - y[j]) / lengths) ** 2, -1)))
        for j in range(n):
            near(second[i, j], shape(np.sum(((draws[i, 0] - draws[j, 1]) / lengths) ** 2, -1)))


@pytest.mark.slow
@pytest.mark.parametrize("d", quick_first([1, 3, 20], [3]))
@pytest.mark.parametrize("kernel", [Gaussian(0.9), Matern52(0.9)])
def test_diagonal_and_full_covariances_agree(d, kernel):
    rng = np.random.default_rng(2)
    mean, scale = rng.normal(size=(4, d)), rng.uniform(0.1, 2, size=(4, d))
    ys = jnp.asarray(rng.normal(size=(5, d)))
    one = kernel_means(kernel, dist.Normal(mean, scale).to_event(1))
    cov = np.eye(d) * scale[:, :, None] ** 2
    other = kernel_means(kernel, dist.MultivariateNormal(mean, covariance_matrix=cov))
    close(one.first(one.features, ys), other.first(other.features, ys))
    second = one.second(one.features, one.features)
    close(second, other.second(other.features, other.features))
    close(one.own(one.features), jnp.diag(second))
    close(other.own(other.features), jnp.diag(second))


@pytest.mark.slow
def test_the_published_multivariate_numbers():
    means = kernel_means(
        Gaussian(1.0),
        dist.MultivariateNormal(
            jnp.array([[0.0, 1.0], [0.5, -0.5]]),
            covariance_matrix=jnp.array([[[2, 0.5], [0.5, 1]], [[1, -0.3], [-0.3, 0.8]]]),
        ),
    )
    second = means.second(means.features, means.features)
    first = means.first(means.features, jnp.array([[0.3, 0.2]]))
    np.testing.assert_allclose(second[0, 1], 0.1912456307, atol=1e-10)
    np.testing.assert_allclose(first[0, 0], 0.3402487918, atol=1e-10)


@pytest.mark.slow
def test_point_masses_are_kernels_at_their_points():
    mean = jnp.array([0.3, -1.0])
    ys = jnp.array([[0.5], [2.0]])
    for kernel in (Gaussian(0.7), IMQ(0.7), Matern52(0.7)):
        means = kernel_means(kernel, dist.Normal(mean, jnp.zeros(2), validate_args=False))
        at = jax.vmap(lambda a, k=kernel: jax.vmap(lambda b: k(a, b))(ys))(mean[:, None])
        close(means.first(means.features, ys), at, atol=1e-8)
        close(means.own(means.features), jnp.ones(2), atol=1e-9)


def test_units_change_predictions_as_they_change_the_kernel():
    rng = np.random.default_rng(3)
    law = dist.MultivariateNormal(
        rng.normal(size=(3, 2)), covariance_matrix=random_covariances(3, 2)
    )
    units = Units(jnp.array([1.0, -2.0]), jnp.array([0.5, 3.0]))
    ys = jnp.asarray(rng.normal(size=(4, 2)))
    plain = kernel_means(Gaussian(jnp.array([0.6, 0.9]) * units.scale), law)
    changed = kernel_means(Gaussian([0.6, 0.9]), Standardized(law, units, (2,)))
    close(plain.first(plain.features, ys), changed.first(changed.features, units.points(ys)))
    close(
        plain.second(plain.features, plain.features),
        changed.second(changed.features, changed.features),
    )


@pytest.mark.slow
@pytest.mark.parametrize("far", [0.0, 3.0])
def test_single_precision_keeps_its_digits(far):
    rng = np.random.default_rng(4)
    mean, scale = far + rng.normal(size=(20, 5)), rng.uniform(0.3, 2, size=(20, 5))
    ys = far + rng.normal(size=(20, 5))
    parts = []
    for dtype in (np.float32, np.float64):
        law = dist.Normal(mean.astype(dtype), scale.astype(dtype)).to_event(1)
        means = kernel_means(Gaussian(jnp.asarray(2.0, dtype)), law)
        first = means.first(means.features, jnp.asarray(ys, dtype))
        second = means.second(means.features, means.features)
        assert first.dtype == second.dtype == dtype
        parts.append((first, second))
    (first, second), (first64, second64) = parts
    np.testing.assert_allclose(first, first64, atol=2e-6)
    np.testing.assert_allclose(second, second64, atol=2e-7)


@pytest.mark.slow
def test_gradients_match_differences_also_for_equal_predictions():
    ys = jnp.array([[0.2], [0.2]])

    def total(mean, scale):
        means = kernel_means(IMQ(0.8), dist.Normal(mean, scale))
        first = means.first(means.features, ys)
        return jnp.sum(first) + jnp.sum(jnp.sin(means.second(means.features, means.features)))

    at = (jnp.array([0.2, 0.2]), jnp.array([0.5, 0.5]))
    jax.test_util.check_grads(total, at, order=1, modes=["rev"], atol=1e-5, rtol=1e-5)


@pytest.mark.slow
def test_normals_of_low_rank_agree_with_draws_from_their_factors():
    """Oracle: loc + W e + D^1/2 e' by NumPy, 200,000 draws, within 4.5 standard errors."""
    rng = np.random.default_rng(0)
    loc, factor, diagonal = rng.normal(size=(2, 3)), rng.normal(size=(2, 3, 1)), rng.random((2, 3))
    predictions = dist.LowRankMultivariateNormal(
        jnp.asarray(loc), jnp.asarray(factor), jnp.asarray(diagonal)
    )
    means = kernel_means(Gaussian(1.5), predictions)
    assert means.route == "closed form"
    point = np.array([[0.3, -0.2, 0.5]])
    noise = rng.normal(size=(200_000, 1)), rng.normal(size=(200_000, 3))
    averages = means.first(means.features, jnp.asarray(point))[:, 0]
    for k, average in enumerate(np.asarray(averages)):
        draws = loc[k] + noise[0] @ factor[k].T + noise[1] * diagonal[k] ** 0.5
        values = np.exp(-np.sum((draws - point) ** 2, axis=1) / (2 * 1.5**2))
        assert abs(average - values.mean()) < 4.5 * values.std() / 200_000**0.5


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
