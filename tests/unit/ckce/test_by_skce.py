"""Comparing models by SKCE: values, influence functions, draws, and what the number bounds."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import problems
import pytest
import scipy.stats

import jaxcal
from jaxcal.ckce.expansion import Noise, by_features, by_products
from jaxcal.kernels import Gaussian
from jaxcal.kernels.grams import NystroemFeatures
from jaxcal.skce import skce

compare = partial(jaxcal.compare, 0, n_draws=99, measure="skce")
N = 60
TRUTH, Y = problems.drawn(0, N)
MODELS = {"true": TRUTH, "over": problems.tempered(TRUTH, 0.3)}
SIMILARITY = np.array([[1, 0.5, 0], [0.5, 1, 0.2], [0, 0.2, 1]])


def gram(q, gamma):
    gaps = np.sum((q[:, None] - q[None]) ** 2, axis=-1)
    return np.exp(-gaps / (2 * gamma**2))


@pytest.mark.slow
@pytest.mark.parametrize("similarity", [None, SIMILARITY])
def test_values_are_those_of_skce(similarity):
    result = compare(MODELS, Y, target_kernel=similarity)
    kernel = Gaussian(float(result.bandwidths[0]))
    for i, q in enumerate(MODELS.values()):
        alone = skce(0, q, Y, prediction_kernel=kernel, target_kernel=similarity)
        np.testing.assert_allclose(result.corrected[i], max(alone.unbiased, 0), atol=1e-12)
        np.testing.assert_allclose(result.estimate[i], alone.biased, atol=1e-12)
    groups = np.arange(N) >= 20
    of_groups = compare(MODELS["over"], Y, groups=groups, target_kernel=similarity, bandwidth=0.5)
    for g in range(2):
        alone = skce(
            0,
            MODELS["over"][groups == g],
            Y[groups == g],
            prediction_kernel=Gaussian(0.5),
            target_kernel=similarity,
        )
        np.testing.assert_allclose(of_groups.corrected[g], alone.unbiased, atol=1e-12)


def test_distributions_have_the_values_of_skce():
    x = np.random.default_rng(0).normal(size=N)
    y = x + np.random.default_rng(1).normal(size=N)
    models = {"wide": dist.Normal(x, 2.0), "biased": dist.Normal(x + 1, 1.0)}
    result = compare(models, y)
    kernel = Gaussian(float(result.bandwidths[0]))
    for i, model in enumerate(models.values()):
        alone = skce(0, model, y, prediction_kernel=kernel, target_kernel=Gaussian())
        np.testing.assert_allclose(result.corrected[i], alone.unbiased, atol=1e-12)
        np.testing.assert_allclose(result.estimate[i], alone.biased, atol=1e-12)


@pytest.mark.slow
def test_almost_equal_predictions_look_better_and_are_reported():
    logits = np.random.default_rng(0).normal(size=(2000, 3))
    labels = jax.random.categorical(jax.random.key(1), jnp.asarray(logits))
    models = {"sharp": jax.nn.softmax(logits / 0.3), "flat": jax.nn.softmax(logits / 4)}
    by_probability, by_skce = (
        jaxcal.compare(0, models, labels, measure=measure, n_draws=19)
        for measure in ("probability", "skce")
    )
    assert 0.8 < float(by_probability.error[1] / by_probability.error[0]) < 1.2
    assert float(by_skce.error[1] / by_skce.error[0]) < 0.4
    assert "so it looks better" in str(by_skce)


@pytest.mark.slow
def test_both_ways_to_the_expansion_are_the_equation():
    q, r = MODELS["over"], problems.one_hot(Y) - MODELS["over"]
    products = gram(q, 0.5) * (r @ r.T)
    center = np.eye(N) - 1 / N
    second = center @ products @ center / (N * (N - 1))
    # without the observation itself in the mean
    first = 2 * products.mean(axis=1) / N - 2 * np.diag(second)
    value = (products.sum() - np.trace(products)) / (N * (N - 1))
    features = NystroemFeatures.at(Gaussian(0.5), jnp.asarray(q), jnp.ones(N, bool))
    keys, left = (jax.random.key(0), jax.random.key(1)), jnp.asarray(r)
    noise = Noise(jnp.zeros((N, 3)), lambda key: left)
    ways = (
        by_features(keys, features, jnp.asarray(q), left, noise, None, jnp.ones(N), 3)[0],
        by_products(keys, jnp.asarray(gram(q, 0.5)), left @ left.T, None, 3),
    )
    for way in ways:
        np.testing.assert_allclose(way.value, value, rtol=1e-6)
        np.testing.assert_allclose(way.first, first - first.mean(), atol=1e-8)
        np.testing.assert_allclose(way.second, second - np.diag(np.diag(second)), atol=1e-8)


def test_the_p_value_of_one_model_is_that_of_all_labels():
    rng = np.random.default_rng(0)
    p = rng.uniform(0.1, 0.6, 10)
    q, y = np.stack([1 - p, p], axis=1), (rng.uniform(size=10) < 0.8).astype(int)
    k = gram(q, 0.4) - np.eye(10)
    labels = np.asarray(list(itertools.product((0, 1), repeat=10)))
    chances = np.prod(np.where(labels, p, 1 - p), axis=1)
    values = np.einsum("ai,ij,aj->a", labels - p, k, labels - p)
    exact = np.sum(chances[values >= (y - p) @ k @ (y - p) - 1e-12])
    result = jaxcal.compare(0, [q, q], y, n_draws=1999, bandwidth=0.4, measure="skce")
    low, high = scipy.stats.binom.interval(0.9999, 1999, exact)
    assert low <= 2000 * float(result.p_calibrated[0]) - 1 <= high


def test_the_root_of_half_is_at_most_the_error_of_probabilities():
    """Labels in the exact frequencies, which differ from the predictions by a known function."""
    p = np.repeat(np.linspace(0.1, 0.9, 9), 100)
    q = np.stack([1 - p, p], axis=1)
    for true in (p - 0.1, 0.5 + 0.6 * (p - 0.5)):
        y = np.concatenate([np.arange(100) < round(100 * a) for a in true[::100]]).astype(int)
        result = compare([q, q], y, bandwidth=1.0)
        error = (true - p)[::100]
        exact = 2 * error @ gram(q[::100], 1.0) @ error / 81
        # label noise changes it by less than an observation's share
        np.testing.assert_allclose(result.corrected[0], exact, atol=0.5 / 900)
        assert result.corrected[0] / 2 < np.mean((p - true) ** 2)
    assert "root of half" in str(result)


@pytest.mark.slow
def test_its_options_are_its_own():
    with pytest.raises(
        ValueError, match='ridge: an option of measure="ckce", not of measure="skce"'
    ):
        compare(MODELS, Y, ridge=0.1)
    assert compare(MODELS, Y, rank=3).left_out[0] > 0
    assert compare(MODELS, Y, prediction_kernel=Gaussian(0.3)).bandwidths[0] == 1
