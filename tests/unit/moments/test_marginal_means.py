"""Moments have mean zero under the prediction; a coordinate is not accused of what another does."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.special
import scipy.stats
from optimized import optimized
from quick import quick_first
from reference.nulls import Gamma

import jaxcal
from jaxcal.moments import attribution
from jaxcal.read import Draws, Scores

COV = np.array([[1.0, 0.8], [0.8, 1.0]])
PRECISION = np.linalg.inv(COV)


def density(center, y):
    return -(y - center) @ jnp.asarray(PRECISION, y.dtype) @ (y - center) / 2


def shifted_first(key, n, shift):
    """Predictions with correlation .8 that lie too high in coordinate 0; their centers, targets."""
    x, noise = jax.random.normal(key, (2, n, 2))
    ys = x + noise @ jnp.linalg.cholesky(jnp.asarray(COV)).T
    return x + shift * jnp.asarray([[1.0, 0.0]]), ys


@pytest.mark.slow
@pytest.mark.parametrize("n", quick_first([64, 300], [64]))
def test_a_right_coordinate_correlated_with_a_wrong_one_passes(n):
    """1,000 data sets; coordinate 0 is off by four standard errors, up or down."""
    shift = 4 / n**0.5

    def one(key, side):
        centers, ys = shifted_first(key, n, side * shift)
        predictions = jaxcal.Unnormalized(density, centers)
        split = jaxcal.kccsd_test(key, predictions, ys, null=Gamma(), coordinates=True).coordinates
        return split.marginal_mean, split.p_adjusted

    keys = jax.random.split(jax.random.key(1), 1000)
    sides = jnp.where(jnp.arange(1000) % 2 == 0, 1.0, -1.0)
    compiled = optimized if n > 100 else jax.jit  # few observations run faster than they compile
    every = compiled(lambda *a: jax.lax.map(lambda b: one(*b), a, batch_size=50))
    values, given_the_other = every(keys, sides)
    low, high = scipy.stats.binom.interval(0.999, 1000, 0.05)
    accused = values.p_adjusted <= 0.05
    assert low <= int(jnp.sum(accused[:, 1])) <= high
    # z = 4 against 2.24 at worst: found in 96 %
    assert int(jnp.sum(accused[:, 0])) >= scipy.stats.binom.ppf(0.0005, 1000, 0.96)
    wrong = accused[:, 0] & (jnp.sign(values.estimate[:, 0]) != sides)
    assert not bool(jnp.any(wrong))
    truth = jnp.stack([sides * shift, jnp.zeros(1000)], axis=1)
    covered = jnp.sum((values.low <= truth) & (truth <= values.high), axis=0)
    low, high = scipy.stats.binom.interval(0.999, 1000, 0.95)
    assert np.all((low <= np.asarray(covered)) & (np.asarray(covered) <= high))
    # what the question given the other coordinate makes of it
    assert int(jnp.sum(given_the_other[:, 1] <= 0.05)) > 300


def skewed(center, y):
    """Of L z about the centre, z independent standardized log Gamma(2), L L' = COV."""
    z = jnp.asarray(np.linalg.inv(np.linalg.cholesky(COV)), y.dtype) @ (y - center)
    x = float(scipy.special.digamma(2.0)) + float(scipy.special.polygamma(1, 2.0)) ** 0.5 * z
    return jnp.sum(2 * x - jnp.exp(x))


def skewed_data(key, n, shift):
    """Claims of that density whose coordinate 0 alone lies too high; their centers, targets."""
    center_key, noise_key = jax.random.split(key)
    centers = 2 * jax.random.normal(center_key, (n, 2))
    z = jnp.log(jax.random.gamma(noise_key, 2.0, (n, 2))) - scipy.special.digamma(2.0)
    z = z / scipy.special.polygamma(1, 2.0) ** 0.5
    ys = centers + z @ jnp.linalg.cholesky(jnp.asarray(COV)).T
    return centers + shift * jnp.asarray([[1.0, 0.0]]), ys


@pytest.mark.slow
def test_no_coordinate_is_named_where_scores_are_not_linear(key):
    """The mean of the innocent one's moment is far from 0 in nearly every data set like this."""
    centers, ys = skewed_data(key, 200, 0.5)
    predictions = jaxcal.Unnormalized(skewed, centers)
    result = jaxcal.kccsd_test(key, predictions, ys, null=Gamma(), coordinates=True)
    split = result.coordinates
    assert split.marginal_mean.p_adjusted[1] < 0.01  # valid: something is off
    assert np.all(np.isfinite(split.marginal_mean.p_value))
    assert np.all(np.isnan(split.marginal_mean.low))
    assert np.all(np.isnan(split.marginal_mean.high))
    for means in (split.marginal_spread, split.correlation):
        assert np.all(np.isnan(means.p_value))
    assert "too high by" not in str(result)
    assert "given the others" in str(result)
    assert any("exact for Gaussian predictions" in text for text in result.warnings())
    ax = jaxcal.plots.coordinates(result)
    assert "given the other coordinates" in ax.get_xlabel()
    assert "too high by" not in result._repr_html_()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
@pytest.mark.parametrize(
    ("name", "form", "linear"),
    [
        ("gaussian", density, True),
        ("skewed", skewed, False),
        ("nearly", lambda c, y: density(c, y) + 0.05 * jnp.sin(jnp.sum(y - c)), False),
    ],
)
def test_whether_claims_are_gaussian_is_found_from_the_scores(key, dtype, name, form, linear):
    """For float32 too, and far from 0: what rounding adds is far below what counts."""
    centers, ys = shifted_first(key, 100, 0.5)
    centers, ys = (jnp.asarray(a + 50, dtype) for a in (centers, ys))
    score = jax.vmap(jax.grad(form, argnums=1))
    nodes = 50 + 3 * jax.random.normal(key, (10, 2), dtype)

    @jax.jit
    def claims(centers, ys):
        at_nodes = jax.vmap(lambda z: score(centers, jnp.broadcast_to(z, ys.shape)), out_axes=1)
        return attribution.claims(None, nodes, at_nodes(nodes), ys, score(centers, ys))

    told = claims(centers, ys)
    assert bool(told.exact) == bool(told.gaussian) == linear


@pytest.mark.slow
def test_known_means_tell_a_shift_for_every_shape(key):
    """Student's t of (claimed mean - target) / claimed deviation, whatever the score."""
    rng = np.random.default_rng(2)
    n, sides = 60, rng.choice([-1.0, 1.0], size=(60, 1))
    centers = 3 * rng.normal(size=(n, 2))
    ys = jnp.asarray(centers + 1.5 * sides + rng.normal(size=(n, 2)) + [0.8, 0])
    means = jnp.stack([centers + 1.5, centers - 1.5], axis=1)
    mixing = dist.Categorical(jnp.full((n, 2), 0.5))
    modes = dist.MixtureSameFamily(mixing, dist.Normal(means, 1.0).to_event(1))
    cases = [
        (modes, centers, 3.25**0.5),
        (dist.StudentT(5.0, centers, 2.0).to_event(1), centers, 2 * (5 / 3) ** 0.5),
    ]
    for predictions, middle, deviation in cases:
        result = jaxcal.kccsd_test(key, predictions, ys, null=Gamma(), coordinates=True)
        shift = result.coordinates.marginal_mean
        wanted = scipy.stats.ttest_1samp((middle - np.asarray(ys)) / deviation, 0)
        np.testing.assert_allclose(shift.p_value, wanted.pvalue, rtol=1e-6)
        np.testing.assert_allclose(shift.low, wanted.confidence_interval().low, rtol=1e-4)
        assert np.all(np.isnan(result.coordinates.marginal_spread.p_value))
        assert "too high by" in str(result)
        assert "claimed / actual sd" not in str(result)
        assert any("only shifts are told" in text for text in result.warnings())


@pytest.mark.slow
def test_means_that_are_not_finite_name_nobody(key):
    ys = jax.random.normal(key, (30, 2))
    cauchy = dist.StudentT(1.5, jnp.zeros((30, 2)), 1.0).to_event(1)
    result = jaxcal.kccsd_test(key, cauchy, ys, null=Gamma(), coordinates=True)
    assert not jaxcal.results.tells(result.coordinates.marginal_mean)
    assert "too high by" not in str(result)


@pytest.mark.slow
def test_every_route_to_a_gaussian_covariance_gives_the_same(key):
    centers, ys = shifted_first(key, 40, 0.3)
    nodes = jax.random.normal(jax.random.key(7), (4, 2))

    def scores_at(points):
        return (centers[:, None] - points) @ PRECISION

    routes = [
        dist.MultivariateNormal(centers, COV),
        jaxcal.Unnormalized(density, centers),
        Scores(scores_at(ys[:, None])[:, 0], scores_at(nodes[None]), nodes),
    ]
    wanted = ((np.asarray(centers) - np.asarray(ys)) / np.sqrt(np.diag(COV))).mean(axis=0)
    for predictions in routes:
        result = jaxcal.kccsd_test(key, predictions, ys, coordinates=True, null=Gamma())
        means = result.coordinates.marginal_mean
        np.testing.assert_allclose(means.estimate, wanted, rtol=1e-8)
        t = scipy.stats.ttest_1samp(np.asarray(centers) - np.asarray(ys), 0)
        np.testing.assert_allclose(means.p_value, t.pvalue, rtol=1e-8)
        np.testing.assert_allclose(means.low, t.confidence_interval().low, rtol=1e-5)
        assert not any("by itself" in text for text in result.warnings())
    assert "too high by" in str(result)
    assert "given the others" in str(result)


@pytest.mark.slow
def test_a_single_density_has_marginal_means_too(key):
    _, ys = shifted_first(key, 40, 0.0)
    model = dist.MultivariateNormal(jnp.asarray([0.5, 0.0]), COV)
    split = jaxcal.ksd_test(key, model, ys, coordinates=True, null=Gamma()).coordinates
    np.testing.assert_allclose(
        split.marginal_mean.estimate, [0.5, 0] - np.asarray(ys).mean(axis=0), rtol=1e-8
    )


@pytest.mark.slow
@pytest.mark.parametrize("nodes", [None, np.zeros((2, 2))], ids=["no base points", "too few"])
def test_without_a_covariance_nothing_is_guessed(key, nodes):
    at_nodes = None if nodes is None else np.ones((12, 2, 2))
    ys = np.random.default_rng(0).normal(size=(12, 2))
    vectors = jaxcal.divergences.Vectors(jnp.asarray(ys))
    result = jaxcal.kccsd_test(
        key, Scores(-ys, at_nodes, nodes), ys, divergence=vectors, coordinates=True, null=Gamma()
    )
    assert result.coordinates.marginal_mean is None
    assert any("not available" in text and "Scores.nodes" in text for text in result.warnings())
    assert "too high by" not in str(result)
    assert result.to_dict()["coordinates"]["marginal_mean"] is None


@pytest.mark.slow
def test_non_gaussian_predictions_share_one_covariance():
    """A shift of all predictions is found with its size, two modes or a density that ends."""
    rng = np.random.default_rng(5)
    n, nodes = 4000, jnp.asarray(rng.normal(size=(10, 2)) * 3)
    centers = jnp.asarray(rng.normal(size=(n, 2)))
    ys = centers + rng.normal(size=(n, 2)) @ np.linalg.cholesky(COV).T
    ys = ys + 2.0 * rng.choice([-1, 1], size=(n, 1)) * np.asarray([1.0, -1.0])

    def two_modes(center, y):
        apart = jnp.asarray([2.0, -2.0])
        return jnp.logaddexp(density(center + apart, y), density(center - apart, y))

    score = jax.vmap(jax.grad(two_modes, argnums=1))
    shift = np.asarray([0.05, 0.0])
    scores = score(centers + shift[None], ys)
    at_nodes = jnp.stack([score(centers, jnp.broadcast_to(z, (n, 2))) for z in nodes], axis=1)
    fit = jax.jit(lambda *a: attribution.covariances_of(None, *a))
    covariances = np.asarray(fit(nodes, at_nodes.at[0, 0].set(jnp.nan), scores))
    shared = np.linalg.inv(np.asarray(scores.T @ scores) / n)
    assert np.isclose(covariances, shared, rtol=1e-9).all((1, 2)).mean() > 0.5
    means = attribution.means(attribution.shifts(scores, jnp.asarray(covariances)))
    deviations = np.sqrt(np.diagonal(np.linalg.inv(np.asarray(scores.T @ scores) / n)))
    common = attribution.means(
        attribution.shifts(scores, jnp.linalg.inv(scores.T @ scores / n)[None])
    )
    error = np.asarray(common.standard_error) * deviations
    assert np.all(np.abs(common.estimate * deviations - shift) < 4 * error + 0.01)
    assert np.all(np.isfinite(means.estimate))


@pytest.mark.parametrize("variance", [0.2, 1.0, 30.0])
def test_the_mean_is_zero_for_any_matrix_and_shape(variance):
    """Quadrature over a skewed density of two modes."""
    grid = np.linspace(-12, 12, 4001)
    logs = np.logaddexp(-((grid + 1) ** 2), -((grid - 3) ** 2) / 4)
    score = np.gradient(logs, grid, edge_order=2)
    weights = np.exp(logs) / np.exp(logs).sum()
    t = attribution.shifts(jnp.asarray(score[:, None]), jnp.full((1, 1), variance))
    assert abs(float(weights @ np.asarray(t)[:, 0])) < 1e-4 * variance**0.5


def test_covariances_of_known_distributions_match_their_draws(key):
    """Within five standard errors of 20,000 draws."""
    rng = np.random.default_rng(3)
    centers, widths = rng.normal(size=(2, 3, 2, 2)), 0.5 + rng.uniform(size=(2, 3, 2, 2))
    mixing = dist.Categorical(jnp.asarray(rng.dirichlet(np.ones(2), size=3)))
    cases = [
        dist.Normal(centers[0, :, 0], widths[0, :, 0]).to_event(1),
        dist.MultivariateNormal(centers[0, :, 0], COV),
        dist.Laplace(centers[0, :, 0], widths[0, :, 0]).to_event(1),
        dist.MixtureSameFamily(mixing, dist.Normal(centers[0], widths[0]).to_event(1)),
        dist.MixtureSameFamily(mixing, dist.Laplace(centers[1], widths[1]).to_event(1)),
    ]
    for predictions in cases:
        draws = np.asarray(predictions.sample(key, (20_000,)))
        gaps = draws - draws.mean(axis=0)
        products = gaps[..., :, None] * gaps[..., None, :]
        error = products.std(axis=0) / 20_000**0.5
        covariances = attribution.covariances_of(predictions, None, None, jnp.zeros((3, 2)))
        assert np.all(np.abs(products.mean(axis=0) - covariances) < 5 * error)
    none = attribution.covariances_of(Draws(jnp.zeros((3, 4, 2))), None, None, jnp.zeros((3, 2)))
    assert none is None


def test_quantiles_of_student_are_those_of_scipy():
    degrees = np.array([1, 1.5, 2, 4, 11, 29, 30, 99, 299, 1e5])
    for probability in (0.95, 0.975, 0.995, 0.9995, 0.99995):
        for dtype in (np.float64, np.float32):
            # of the rounded probability, on which the quantile depends strongly
            wanted = scipy.stats.t.ppf(float(dtype(probability)), degrees)
            quantile = jax.jit(attribution.student_quantile)
            got = quantile(dtype(probability), jnp.asarray(degrees, dtype))
            rtol = 1e-5 if dtype == np.float64 else 2e-5
            np.testing.assert_allclose(got, wanted, rtol=rtol)
    one = jnp.asarray([jnp.nan, 5.0])
    assert np.isnan(attribution.student_quantile(0.975, one)).tolist() == [True, False]
