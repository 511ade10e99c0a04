"""h(i, j) of the kernel calibration error against its definition, written down pair by pair."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy.integrate import quad

from jaxcal.divergences import TotalVariation, Wasserstein
from jaxcal.kernels import Constant, Delta, Gaussian
from jaxcal.kernels.means.dispatch import kernel_means
from jaxcal.read.families import Classes
from jaxcal.statistics.skce import KernelResidual, Observed
from jaxcal.statistics.weighted import Weighted, WeightedFeatures

LENGTH, SPREAD = 0.8, 1.3  # of the kernels on targets and on predictions
MEAN = np.array([0.0, 0.4, -1.0])
SCALE = np.array([0.5, 1.0, 2.0])
YS = np.array([0.3, -0.2, 1.5])


def k(x, y):
    return np.exp(-((x - y) ** 2) / (2 * LENGTH**2))


def density(i, z):
    return np.exp(-(((z - MEAN[i]) / SCALE[i]) ** 2) / 2) / (SCALE[i] * np.sqrt(2 * np.pi))


def average(f, i):
    return quad(lambda z: density(i, z) * f(z), -25, 25, points=[MEAN[i]], limit=200)[0]


def by_definition(i, j):
    divergence = (MEAN[i] - MEAN[j]) ** 2 + (SCALE[i] - SCALE[j]) ** 2
    across = average(lambda z: k(z, YS[j]), i) + average(lambda z: k(YS[i], z), j)
    between = average(lambda z: average(lambda w: k(z, w), j), i)
    return np.exp(-divergence / (2 * SPREAD**2)) * (k(YS[i], YS[j]) - across + between)


@pytest.fixture(scope="module")
def normals():
    law = dist.Normal(jnp.asarray(MEAN)[:, None], jnp.asarray(SCALE)[:, None]).to_event(1)
    means = kernel_means(Gaussian(LENGTH), law)
    divergence = Wasserstein()
    described = divergence.features(jax.random.key(0), law, None)
    observed = Observed(jnp.asarray(YS)[:, None], means.features)
    pairwise = Weighted(Gaussian(SPREAD), divergence, KernelResidual(means.empty()))
    return pairwise, WeightedFeatures(described, observed)


@pytest.mark.slow
def test_normals_are_those_of_the_definition_by_quadrature(normals):
    pairwise, features = normals
    wanted = np.array([[by_definition(i, j) for j in range(3)] for i in range(3)])
    np.testing.assert_allclose(pairwise.block(features, features)[0], wanted, atol=1e-9)
    np.testing.assert_allclose(pairwise.diagonal(features)[0], np.diag(wanted), atol=1e-9)


def test_blocks_and_their_transposes_are_parts_of_the_matrix(normals):
    pairwise, features = normals
    whole = pairwise.block(features, features)[0]
    rows, cols = (
        jax.tree.map(lambda leaf, s=s: leaf[s], features) for s in (slice(2), slice(1, 3))
    )
    np.testing.assert_allclose(pairwise.block(rows, cols)[0], whole[:2, 1:], atol=1e-12)
    np.testing.assert_allclose(whole, whole.T, atol=1e-12)


@pytest.mark.slow
def test_given_a_prediction_its_own_targets_average_to_zero(normals):
    pairwise, features = normals
    z, weights = np.polynomial.hermite_e.hermegauss(60)
    drawn = MEAN[0] + SCALE[0] * z

    def with_target(y):
        observed = features.residual
        moved = observed._replace(ys=observed.ys.at[0, 0].set(y))
        return pairwise.block(features._replace(residual=moved), features)[0][0, 1:]

    h = jax.vmap(with_target)(jnp.asarray(drawn))
    np.testing.assert_allclose(weights @ h / weights.sum(), 0, atol=1e-10)


def classes():
    p = jnp.asarray([[0.2, 0.5, 0.3], [0.6, 0.1, 0.3], [1.0, 0.0, 0.0], [0.2, 0.5, 0.3]])
    return p, jnp.asarray([1, 2, 0, 0])


def test_classes_are_those_of_the_definition_by_enumeration():
    p, ys = classes()
    law = Classes(p)
    divergence = TotalVariation()
    means = kernel_means(Delta(), law)
    described = divergence.features(jax.random.key(0), p, None)
    pairwise = Weighted(Gaussian(SPREAD), divergence, KernelResidual(means.empty()))
    features = WeightedFeatures(described, Observed(ys, means.features))
    wanted = np.zeros((4, 4))
    for i, j in itertools.product(range(4), repeat=2):
        same = sum(
            (float(a == ys[i]) - p[i, a]) * (float(b == ys[j]) - p[j, b]) * float(a == b)
            for a, b in itertools.product(range(3), repeat=2)
        )
        tv = 0.5 * np.abs(p[i] - p[j]).sum()
        wanted[i, j] = np.exp(-(tv**2) / (2 * SPREAD**2)) * same
    np.testing.assert_allclose(pairwise.block(features, features)[0], wanted, atol=1e-12)
    np.testing.assert_allclose(pairwise.diagonal(features)[0], np.diag(wanted), atol=1e-12)


def test_without_a_prediction_kernel_the_sum_is_a_squared_norm(normals):
    pairwise, features = normals
    plain = Weighted(Constant(), pairwise.divergence, pairwise.statistic)
    h = plain.block(features, features)[0]
    assert np.linalg.eigvalsh(h)[0] > -1e-12
    assert float(jnp.sum(h)) >= 0


@pytest.mark.slow
def test_looped_coordinates_match_vectorized_ones():
    rng = np.random.default_rng(0)
    means, scales, ys = rng.normal(size=(5, 20)), rng.uniform(0.5, 2, (5, 20)), rng.normal(size=20)

    def factors(d):
        law = dist.Normal(jnp.asarray(means[:, d]), jnp.asarray(scales[:, d])).to_event(1)
        result = kernel_means(Gaussian(3.0), law)
        one = result.first(result.features, jnp.asarray(ys[None, d]))
        return one, result.second(result.features, result.features), result.own(result.features)

    whole = factors(slice(None))
    parts = [factors(slice(0, 10)), factors(slice(10, 20))]
    for value, left, right in zip(whole, *parts, strict=True):
        np.testing.assert_allclose(value, left * right, rtol=1e-12)
