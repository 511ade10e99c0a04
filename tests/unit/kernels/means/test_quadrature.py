"""Averages on the line keep their stated error whatever the ratios of scales and bandwidth."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats
from optimized import optimized
from reference import quadrature

from jaxcal.kernels import IMQ, Gaussian, L1Laplace, Laplace, Matern52, RationalQuadratic
from jaxcal.kernels.means import mixtures
from jaxcal.kernels.means.dispatch import KernelMeans, kernel_means
from jaxcal.kernels.points import Product
from jaxcal.read.families import Laplaces, distribution_of
from jaxcal.skce import skce_test

SCALES = np.array([1e-3, 0.1, 1.0, 1.01, 10.0, 1e3])
GAPS = np.array([0.0, 1e-3, 0.5, 10.0, 3e3])
OFFSET = 7.0  # nothing is centred at 0

X, W = np.polynomial.legendre.leggauss(20)


def gaussian(r):
    return np.exp(-(r**2) / 2)


def imq(beta):
    return lambda r: (1 + r**2) ** -beta


def matern(r):
    return (1 + 5**0.5 * r + 5 * r**2 / 3) * np.exp(-(5**0.5) * r)


def laplaces(b, c):
    """The density of the difference of Laplace variables of scales b and c (0: a point)."""
    if c == 0:
        return lambda x: np.exp(-x / b) / (2 * b)
    if b == c:
        return lambda x: (1 + x / b) * np.exp(-x / b) / (4 * b)
    return lambda x: (b * np.exp(-x / b) - c * np.exp(-x / c)) / (2 * (b**2 - c**2))


def normals(b, c):
    return lambda x: scipy.stats.norm.pdf(x, 0, np.hypot(b, c))


def integral(density, shape, z, b, c):
    """E shape(abs(X - z)) over panels that grow from 0 and from z by a fifth a step."""
    grown = np.geomspace(1e-4 * min(b, c or b, 1), 60 * max(b, c), 130)
    ends = np.unique(np.concatenate([[0, z], grown, z + grown, z - grown[grown < z]]))
    low, high = ends[:-1, None], ends[1:, None]
    x, w = (low + high) / 2 + (high - low) / 2 * X, (high - low) / 2 * W
    return np.sum(w * density(x) * (shape(abs(x - z)) + shape(x + z)))


@cache
def wanted(density, shape):
    """First averages [s, g] and second averages [g, s, s]."""

    def over(b, c):
        return [integral(density(b, c), shape, z, b, c) for z in GAPS]

    first = np.array([over(b, 0) for b in SCALES])
    return first, np.array([[over(b, c) for c in SCALES] for b in SCALES]).transpose(2, 0, 1)


def means_of(kernel, predictions):
    """By quadrature for Laplace predictions and products, where the library draws quantiles."""
    distribution = distribution_of(predictions)
    if isinstance(distribution, Laplaces):
        return KernelMeans(kernel, *quadrature.radial_over_laplaces(kernel, distribution))
    if isinstance(kernel, Product):
        return KernelMeans(kernel, *quadrature.radial_over_normals(kernel, distribution))
    return kernel_means(kernel, predictions)


def computed(kernel, family, dtype):
    kernel = jax.tree.map(lambda leaf: leaf.astype(dtype), kernel)
    scales = jnp.asarray(SCALES, dtype)

    @jax.jit
    def averages(gap):
        rows = means_of(kernel, family(jnp.full_like(scales, OFFSET), scales))
        cols = means_of(kernel, family(jnp.full_like(scales, OFFSET) + gap, scales))
        ys = (OFFSET + gap)[None, None]
        return rows.first(rows.features, ys)[:, 0], rows.second(rows.features, cols.features)

    pairs = [averages(jnp.asarray(gap, dtype)) for gap in GAPS]
    first, second = (np.stack([np.asarray(p[k], float) for p in pairs]) for k in (0, 1))
    return first.T, second


CASES = [
    (Gaussian(1.0), dist.Laplace, laplaces, gaussian, quadrature.ERROR),
    (IMQ(1.0), dist.Laplace, laplaces, imq(0.5), 1e-9),
    (IMQ([1.0], beta=0.1), dist.Laplace, laplaces, imq(0.1), 1e-9),
    (RationalQuadratic(0.5**0.5), dist.Laplace, laplaces, imq(1.0), 1e-9),
    (Matern52(1.0), dist.Laplace, laplaces, matern, 1e-9),
    (
        Matern52(1.0) * IMQ(1.0) + 2.0 * IMQ(1.0, beta=2.0),
        dist.Laplace,
        laplaces,
        lambda r: matern(r) * imq(0.5)(r) + 2 * imq(2.0)(r),
        3e-9,
    ),
    (
        Gaussian(1.0) * Laplace(1.0),
        dist.Normal,
        normals,
        lambda r: gaussian(r) * np.exp(-r),
        quadrature.ERROR,
    ),
    (IMQ(1.0), dist.Normal, normals, imq(0.5), mixtures.ERROR),
    (IMQ(1.0, beta=0.1), dist.Normal, normals, imq(0.1), mixtures.ERROR),
    (Matern52(1.0), dist.Normal, normals, matern, mixtures.ERROR),
    (Laplace(1.0), dist.Normal, normals, lambda r: np.exp(-r), mixtures.ERROR),
]


@pytest.mark.parametrize("case", CASES, ids=lambda c: f"{c[0]}-{c[1].__name__}"[:60])
def test_averages_are_the_integrals_at_every_ratio(case):
    kernel, family, density, shape, error = case
    first, second = wanted(density, shape)
    for dtype, slack in ((np.float64, 0), (np.float32, 5e-7)):
        one, two = computed(kernel, family, dtype)
        # float32 rounds the gap itself, which these kernels follow with slopes up to 3
        slack = slack * (1 + OFFSET)
        assert np.max(abs(one - first)) < error + slack
        assert np.max(abs(two - second)) < error + slack


@pytest.mark.parametrize("beta", [0.1, 0.25, 0.5, 1.0, 2.5, 20.0])
def test_scale_mixtures_match_kernels_up_to_1e7_bandwidths(beta):
    """So every average of it has that error too, in any dimension."""
    s, weights = mixtures.gamma_rule(beta)
    u = np.concatenate([[0], np.geomspace(1e-6, 1e14, 500)])
    assert np.max(abs(np.exp(-u[:, None] * s) @ weights - (1 + u) ** -beta)) < 1e-7
    t = np.sqrt(u)[:, None]
    if beta in (0.5, 2.5):
        exact = np.exp(-t) if beta == 0.5 else matern(t / 1.0)
        assert np.max(abs(np.exp(-beta * t**2 / (2 * s)) @ weights - exact[:, 0])) < 1e-7


@pytest.mark.slow
def test_point_masses_and_gradients_where_predictions_coincide():
    ys = jnp.array([[0.4], [1.3]])
    kernel = Matern52(0.7) * IMQ(1.0)
    loc, nothing = jnp.array([0.4, 1.0]), jnp.zeros(2)
    for family in (dist.Laplace, dist.Normal):
        means = means_of(kernel, family(loc, nothing, validate_args=False))
        exact = jax.vmap(lambda a: jax.vmap(lambda b: kernel(a, b))(ys))(loc[:, None])
        np.testing.assert_allclose(means.first(means.features, ys), exact, atol=1e-6)
        np.testing.assert_allclose(means.own(means.features), jnp.ones(2), atol=1e-6)

        @partial(jax.jit, static_argnames="family")
        def total(loc, scale, family=family):
            means = means_of(kernel, family(loc, scale))
            first = means.first(means.features, ys)
            return jnp.sum(first) + jnp.sum(jnp.sin(means.second(means.features, means.features)))

        if family is dist.Normal:
            continue  # the same rule
        same = (jnp.array([0.4, 0.4]), jnp.array([0.5, 0.5]))
        jax.test_util.check_grads(total, same, order=1, modes=["rev"], atol=1e-4, rtol=1e-4)
        gone = jnp.array([0.4, jnp.nan])
        means = means_of(kernel, family(gone, jnp.ones(2), validate_args=False))
        assert jnp.all(jnp.isnan(means.first(means.features, ys)[1]))


@pytest.mark.slow
def test_the_result_says_which_way_its_averages_were_taken():
    key, n = jax.random.key(0), 12
    ys = jax.random.normal(key, (n,))
    law = dist.Laplace(jnp.zeros(n), jnp.linspace(0.5, 1, n))
    result = skce_test(key, law, ys, target_kernel=IMQ())
    assert result.route == "64 random quantiles of each prediction"
    assert f"averages   {result.route}, standard error" in repr(result)
    assert kernel_means(L1Laplace(1.0), law).route == "closed form"
    drawn = kernel_means(L1Laplace(1.0), law, key=key, n_samples=4)
    assert drawn.route == "draws of each prediction"
    means = kernel_means(IMQ(1.0) + Gaussian(1.0), dist.Normal(jnp.zeros(2), 1.0))
    assert means.route == "a mixture of Gaussian kernels, error below 1e-07"


@pytest.mark.slow
def test_narrow_and_wide_laplace_predictions_keep_the_level():
    """40 % of scales 10, the rest 0.1: fixed Gauss-Laguerre nodes rejected all of such data."""
    n, sets = 60, 100
    scale = jnp.where(jnp.arange(1.0 * n) < 0.4 * n, 10.0, 0.1)

    def p_value(key):
        data_key, test_key = jax.random.split(key)
        ys = scale * jax.random.laplace(data_key, (n,))
        law = dist.Laplace(jnp.zeros(n), scale)
        return skce_test(test_key, law, ys, target_kernel=Matern52(0.1)).p_value

    every = optimized(partial(jax.lax.map, p_value))
    p = every(jax.random.split(jax.random.key(5), sets))
    low, high = scipy.stats.binom.interval(0.9999, sets, 0.05)
    assert low <= int(jnp.sum(p <= 0.05)) <= high
