"""A test fitted to data gives the features of those data, of others, and of a second sample."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from reference.transport import Bures, MixtureWasserstein

from jaxcal import Draws, Scores, divergences
from jaxcal.fit.options import stein_specification
from jaxcal.fit.specification import range_over_iqr
from jaxcal.read.families import Classes
from jaxcal.skce.calibration import mean_specification
from jaxcal.statistics.weighted import Weighted

N = 12
# a common offset, which costs nothing, and units that are not those of the test
DIVERGENCES = {
    "Fisher": divergences.Fisher(),
    "KernelFisher": divergences.KernelFisher(),
    "GaussianFisher": divergences.GaussianFisher(),
    "GaussianKernelFisher": divergences.GaussianKernelFisher(),
    "Wasserstein": divergences.Wasserstein(),
    "MMD": divergences.MMD(),
    "MMD of targets": divergences.MMD(of_targets=True),
    "Bures": Bures(),
    "MixtureWasserstein": MixtureWasserstein(),
}


def normals(key, n=N):
    mean_key, width_key, noise_key = jax.random.split(key, 3)
    mean = 40 + 3 * jax.random.normal(mean_key, (n, 2))
    deviation = jnp.exp(0.3 * jax.random.normal(width_key, (n, 2)))
    ys = mean + deviation * jax.random.normal(noise_key, (n, 2))
    return mean, deviation, ys


@pytest.mark.slow
@pytest.mark.parametrize("name", DIVERGENCES)
def test_a_part_of_the_data_has_its_part_of_the_features(name, key):
    """The statistic between two halves is that block of the whole: nothing is fitted again."""
    mean, deviation, ys = normals(key)
    keys = jax.random.split(key)

    def predictions(rows):
        return dist.Normal(mean[rows], deviation[rows]).to_event(1)

    @jax.jit
    def both():
        spec = stein_specification(ys, divergence=DIVERGENCES[name], precondition="diagonal")
        prepared, featured = spec.fit(keys, predictions(slice(None)), ys)
        first, second = (
            prepared.features(keys, predictions(rows), ys[rows]).features
            for rows in (slice(None, 5), slice(5, None))
        )
        whole = prepared.pairwise.block(featured.features, featured.features)
        return whole[:, :5, 5:], prepared.pairwise.block(first, second)

    whole, block = both()
    np.testing.assert_allclose(block, whole, rtol=1e-9, atol=1e-12)


@eqx.filter_jit
def fit(spec, *data):
    return spec.fit(*data)


@eqx.filter_jit
def features_of(prepared, *data, **inputs):
    return prepared.features(*data, **inputs)


LAWS = {
    "normals": lambda mean, deviation: dist.Normal(mean, deviation).to_event(1),
    "mixtures": lambda mean, deviation: dist.MixtureSameFamily(
        dist.Categorical(jnp.full((mean.shape[0], 2), 0.5)),
        dist.Normal(
            mean[:, None] + jnp.asarray([0.0, 2.0])[None, :, None], deviation[:, None]
        ).to_event(1),
    ),
    "draws": lambda mean, deviation: Draws(
        mean[:, None] + deviation[:, None] * jnp.cos(2 * jnp.arange(8.0))[None, :, None]
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
def test_kernel_means_of_a_part_are_a_part_of_the_kernel_means(law, key):
    mean, deviation, ys = normals(key)
    keys = jax.random.split(key)

    @jax.jit
    def both():
        whole, checked, spec = mean_specification(LAWS[law](mean, deviation), ys)
        prepared, featured = spec.fit(keys, whole, checked)
        part = prepared.features(keys, LAWS[law](mean[:5], deviation[:5]), ys[:5]).features
        rest = prepared.features(keys, LAWS[law](mean[5:], deviation[5:]), ys[5:]).features
        assert isinstance(prepared.pairwise, Weighted)
        block = prepared.pairwise.block
        return block(featured.features, featured.features)[:, :5, 5:], block(part, rest)

    whole, block = both()
    np.testing.assert_allclose(block, whole, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_classes_of_a_second_sample(key):
    p = jax.nn.softmax(jax.random.normal(key, (N, 3)))
    ys = jnp.arange(N) % 3
    keys = jax.random.split(key)
    predictions, ys, spec = mean_specification(p, ys)
    prepared, featured = fit(spec, keys, predictions, ys)
    part = features_of(prepared, keys, Classes(p[:5]), ys[:5]).features
    whole = prepared.pairwise.block(featured.features, featured.features)
    block = prepared.pairwise.block(part, featured.features)
    np.testing.assert_allclose(block, whole[:, :5], rtol=1e-12)


@pytest.mark.slow
def test_new_data_keep_the_units_and_bandwidths_of_the_fit(key):
    mean, deviation, ys = normals(key)
    keys = jax.random.split(key)
    spec = stein_specification(ys)
    prepared, _ = fit(spec, keys, dist.Normal(mean, deviation).to_event(1), ys)
    far = features_of(prepared, keys, dist.Normal(mean + 900, deviation).to_event(1), ys + 900)
    scale = jnp.std(ys, axis=0, keepdims=True)
    wanted = (ys + 900 - jnp.mean(ys, axis=0, keepdims=True)) / scale
    stein = far.features.residual
    np.testing.assert_allclose(stein.ys, wanted, rtol=1e-9)
    np.testing.assert_allclose(stein.scores, (mean - ys) / deviation**2 * scale, rtol=1e-9)


def test_inputs_of_other_observations_are_asked_for(key):
    mean, deviation, ys = normals(key)
    keys = jax.random.split(key)
    predictions = dist.Normal(mean, deviation).to_event(1)
    spec = stein_specification(ys, divergence=divergences.Vectors(mean))
    prepared, featured = fit(spec, keys, predictions, ys)
    with pytest.raises(ValueError, match=r"vectors: .* shape \[n, q\]"):
        features_of(prepared, keys, predictions, ys)
    again = features_of(prepared, keys, predictions, ys, vectors=mean).features
    np.testing.assert_allclose(again.predictions, featured.features.predictions, rtol=1e-12)


def test_scores_without_nodes_for_a_distance_of_scores(key):
    _, _, ys = normals(key)
    with pytest.raises(ValueError, match=r"Scores\.at_nodes is missing"):
        stein_specification(ys).fit(jax.random.split(key), Scores(-ys), ys)


@pytest.mark.slow
def test_a_common_offset_of_scores_costs_no_digits(key):
    """Scores of predictions far from all base points differ little from each other."""
    mean, deviation, ys = normals(key)
    far = ys.astype(jnp.float32) + 3000, mean.astype(jnp.float32) + 3000
    predictions = dist.Normal(far[1], deviation.astype(jnp.float32)).to_event(1)
    wanted = dist.Normal(mean + 3000, deviation).to_event(1)
    blocks = []
    for one, at in ((predictions, far[0]), (wanted, ys + 3000)):
        options = {"standardize": False, "divergence": divergences.Wasserstein()}
        spec = stein_specification(at, **options)
        prepared, featured = fit(spec, jax.random.split(key), one, at)
        blocks.append(prepared.pairwise.block(featured.features, featured.features))
    error = jnp.max(jnp.abs(blocks[0].astype(jnp.float64) - blocks[1]))
    assert error < 2e-3 * jnp.max(jnp.abs(blocks[1]))


@pytest.mark.slow
def test_scores_of_a_second_sample_use_the_fitted_base_points(key):
    mean, deviation, ys = normals(key)
    keys, nodes = jax.random.split(key), ys[:4]

    def scores(nodes, rows=slice(None)):
        m, v, y = mean[rows], deviation[rows] ** 2, ys[rows]
        return Scores((m - y) / v, (m[:, None] - nodes[None]) / v[:, None], nodes)

    prepared, featured = fit(stein_specification(ys), keys, scores(nodes), ys)
    part = features_of(prepared, keys, scores(nodes, slice(5)), ys[:5]).features
    np.testing.assert_allclose(part.predictions, featured.features.predictions[:5], rtol=1e-9)
    for other in (nodes + 1, nodes[:3]):
        with pytest.raises(ValueError, match=r"Scores\.nodes: .* base points of the fit"):
            prepared.features(keys, scores(other), ys)


@pytest.mark.parametrize("n", [3, 12, 101])
def test_reach_is_the_range_in_ranges_of_the_middle_half(n):
    ys = np.random.default_rng(n).standard_cauchy((n, 2))
    low, high = np.sort(ys, axis=0)[[n // 4, n - 1 - n // 4]]
    wanted = np.max(np.ptp(ys, axis=0) / (high - low))
    np.testing.assert_allclose(range_over_iqr(jnp.asarray(ys)), wanted, rtol=1e-12)


def test_reach_where_most_targets_agree():
    ys = np.zeros((40, 1))
    assert range_over_iqr(jnp.asarray(ys)) == 0
    ys[:8, 0] = 1  # the middle 7/8 is the first that does not agree
    assert range_over_iqr(jnp.asarray(ys)) == 1
    ys[0] = 1e6
    assert range_over_iqr(jnp.asarray(ys)) == 1e6
