"""Distances between class probabilities against scipy, their memory, and their median."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.spatial.distance as sp

from jaxcal.divergences import Euclidean, TotalVariation
from jaxcal.divergences.vectors import class_probabilities, gram_block
from jaxcal.kernels import Gaussian, Laplace
from jaxcal.kernels.bandwidths import median_heuristic
from jaxcal.read import checks

METRICS = {"tv": (TotalVariation(), "cityblock", 0.5), "l2": (Euclidean(), "euclidean", 1.0)}
each = pytest.mark.parametrize("name", METRICS)
median = jax.jit(lambda divergence, ps: median_heuristic(divergence, ps)[0])


def rows(n, m, concentration=0.3, seed=0):
    return jnp.asarray(np.random.default_rng(seed).dirichlet(np.full(m, concentration), n))


def scipy_distances(name, ps):
    _, metric, scale = METRICS[name]
    return scale * sp.pdist(np.asarray(ps), metric)


@each
@pytest.mark.parametrize("m", [2, 10, 16, 17, 50])
def test_distances_are_those_of_scipy(name, m, key):
    divergence, _, _ = METRICS[name]
    ps = rows(9, m)
    there, back = (divergence.features(key, value, None) for value in (ps, ps[::-1]))
    values = jnp.sqrt(jax.jit(divergence.squared_distances)(there, there))
    np.testing.assert_allclose(values, sp.squareform(scipy_distances(name, ps)), atol=2e-8)
    np.testing.assert_array_equal(divergence.vectors(there), ps)
    paired = jnp.sqrt(divergence.paired(there, back))
    np.testing.assert_allclose(paired, values[jnp.arange(9), jnp.arange(9)[::-1]], atol=2e-8)
    if m <= 16 or name == "tv":
        assert np.all(np.diag(values) == 0)


def test_distributions_over_classes_are_their_probabilities():
    ps = rows(4, 3)
    for value in (
        dist.Categorical(probs=ps),
        dist.Categorical(logits=jnp.log(ps) + 2.0),
        np.asarray(ps),
        ps.tolist(),
    ):
        np.testing.assert_allclose(class_probabilities(value), ps, rtol=1e-12)
    p = ps[:, 0]
    for value in (dist.Bernoulli(probs=p), dist.Bernoulli(logits=jnp.log(p / (1 - p)))):
        np.testing.assert_allclose(class_probabilities(value), jnp.stack([1 - p, p], 1), rtol=1e-12)
    one = dist.Bernoulli(0.25).expand([3])
    np.testing.assert_allclose(class_probabilities(one), [[0.75, 0.25]] * 3)
    np.testing.assert_allclose(
        class_probabilities(dist.Categorical(ps[0]).expand([2])), ps[jnp.zeros(2, int)]
    )

    class Own(dist.CategoricalProbs):
        pass

    np.testing.assert_allclose(checks.probabilities(Own(ps)), ps)


@pytest.mark.parametrize(
    ("values", "error", "message"),
    [
        (dist.Categorical(jnp.ones(3) / 3), ValueError, "batch shape \\[n\\]"),
        (dist.Categorical(jnp.ones((2, 2, 3)) / 3), ValueError, "shape \\(2, 2, 3\\)"),
        (dist.Normal(jnp.zeros(3), 1.0), TypeError, "over classes.*got Normal"),
        (jnp.ones((3, 2)), ValueError, "does not sum to 1"),
        (jnp.asarray([[1.5, -0.5]]), ValueError, "negative"),
        (jnp.ones(3), ValueError, "shape \\[n, m\\]"),
        (jnp.ones((3, 2), jnp.float16), TypeError, "float16"),
        (jnp.asarray([[jnp.nan, 1.0]]), ValueError, "NaN"),
    ],
)
def test_what_is_no_probability_is_refused(values, error, message):
    with pytest.raises(error, match=message):
        class_probabilities(values)


@each
def test_kernels_are_positive_definite_with_finite_gradients(name):
    divergence, _, _ = METRICS[name]
    ps = jnp.concatenate([rows(20, 4), rows(20, 4)])

    def total(ps):
        return jnp.sum(gram_block(Laplace(0.5), divergence, ps, ps))

    gram = gram_block(Laplace(0.5), divergence, ps, ps)
    assert jnp.linalg.eigvalsh(gram)[0] > -1e-12
    assert jnp.all(jnp.isfinite(jax.grad(total)(ps)))


@each
def test_gradients_match_differences_also_for_many_classes(name):
    divergence, _, _ = METRICS[name]
    ps = rows(3, 35, 1.0)
    qs = rows(3, 35, 1.0, seed=1)

    def total(ps):
        return jnp.sum(gram_block(Gaussian(0.5), divergence, ps, qs))

    step = jnp.zeros_like(ps).at[1, 20].set(1e-6)
    values = jax.jit(jax.grad(total))(ps)[1, 20]
    wanted = (total(ps + step) - total(ps - step)) / 2e-6
    np.testing.assert_allclose(values, wanted, rtol=1e-5)


def test_total_variation_needs_no_array_over_pairs_and_classes():
    r, m = 128, 1000
    one = jax.ShapeDtypeStruct((r, m), jnp.float64)
    program = jax.jit(TotalVariation().squared_distances).lower(one, one).compile()
    blocks = program.memory_analysis().temp_size_in_bytes / (8 * r * r)
    assert blocks < 3 * m / r + 8  # copies of the rows, and some blocks; not m blocks


@each
@pytest.mark.parametrize("n", [2, 5, 100, 301, 512])
def test_the_median_is_that_of_scipy(name, n):
    ps = rows(n, 5, 0.1, seed=n)
    result = median(METRICS[name][0], ps)
    np.testing.assert_allclose(result, np.median(scipy_distances(name, ps)), rtol=1e-13)


@each
@pytest.mark.parametrize(
    "counts", [(6, 5, 4), (12, 2, 1), (8, 7), (14, 1), (15, 0), (5, 4, 4, 2), (11, 2, 1, 1)]
)
def test_the_median_is_that_of_positive_distances(name, counts):
    corners = np.repeat(np.eye(4)[: len(counts)], counts, axis=0)
    corners[:, :2] *= np.asarray([0.9, 0.6])
    corners[:, 3] = 1 - corners[:, :3].sum(axis=1)
    between = scipy_distances(name, corners)
    positive = between[between > 0]
    wanted = np.median(positive) if positive.size else 1.0
    np.testing.assert_allclose(median(METRICS[name][0], jnp.asarray(corners)), wanted)


@pytest.mark.slow
def test_the_median_in_32_bits_is_that_of_the_same_distances():
    ps = rows(200, 6, 0.05).astype(jnp.float32)
    with jax.enable_x64(False):
        result = median(TotalVariation(), ps)
        squared = TotalVariation().squared_distances(ps, ps)
    wanted = np.median(np.sqrt(np.asarray(squared)[np.triu_indices(200, 1)]))
    assert result.dtype == jnp.float32
    np.testing.assert_allclose(result, wanted, rtol=1e-6)


def test_the_median_refuses_and_reports():
    with pytest.raises(ValueError, match="at least 2 predictions, got n=1"):
        median_heuristic(TotalVariation(), rows(1, 3))
    assert jnp.isnan(median(TotalVariation(), rows(40, 5).at[3, 1].set(jnp.nan)))
