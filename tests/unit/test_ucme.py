"""UCME and the CME test: the equation, the paper's fixture, invariances, level, and refusals."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from reference.nulls import ChiSquared
from reference.regression import gaussian_forecasts

from jaxcal.divergences import TotalVariation, Vectors, Wasserstein
from jaxcal.kernels import Gaussian, Laplace
from jaxcal.kernels.points import Scaled
from jaxcal.nulls import BlockNormal, DependentWild, Eigenvalues, HadamardWild, Redrawn, Wild
from jaxcal.read import Draws
from jaxcal.ucme import F, hotelling, ucme, ucme_test

KERNEL = {
    "standardize": False,
    "target_kernel": Gaussian(1.0),
    "prediction_kernel": Laplace(1.0),
}
# the six points of the specification, and two locations
MU = jnp.asarray([0, 0.5, -1, 2, 1, 0.3])
SD = jnp.asarray([1, 0.5, 0.8, 1.2, 0.3, 0.7])
Y = jnp.asarray([0.2, -0.4, -1.5, 2.5, 1.1, 1])
AT = (dist.Normal(jnp.asarray([0.0, 1.0]), jnp.asarray([1.0, 0.5])), jnp.asarray([0.0, 1.0]))


def features_by_hand(mu, sd, y, at_mu, at_sd, at_y):
    """Z_ij one observation and location at a time, the inner expectation by quadrature."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(80)
    weights = weights / weights.sum()
    z = np.zeros((len(mu), len(at_mu)))
    for i in range(len(mu)):
        for j in range(len(at_mu)):
            near = np.exp(-np.hypot(mu[i] - at_mu[j], sd[i] - at_sd[j]))
            expected = weights @ np.exp(-((mu[i] + sd[i] * nodes - at_y[j]) ** 2) / 2)
            z[i, j] = near * (np.exp(-((y[i] - at_y[j]) ** 2) / 2) - expected)
    return z


def test_the_fixture_and_the_equation(key):
    estimate = ucme(key, dist.Normal(MU, SD), Y, locations=AT, **KERNEL)
    np.testing.assert_allclose(estimate.biased, 2.316035878e-4, rtol=1e-9)
    z = features_by_hand(*(np.asarray(a) for a in (MU, SD, Y, AT[0].loc, AT[0].scale, AT[1])))
    np.testing.assert_allclose(estimate.biased, np.mean(z.mean(0) ** 2), rtol=1e-10)
    gram = z @ z.T / 2
    np.testing.assert_allclose(estimate.unbiased, (gram.sum() - np.trace(gram)) / 30, rtol=1e-10)
    q = 6 * z.mean(0) @ np.linalg.solve(np.cov(z.T), z.mean(0))
    for null, p in ((ChiSquared(), 0.9380149053), (F(), 0.9507088860)):
        result = ucme_test(key, dist.Normal(MU, SD), Y, locations=AT, null=null, **KERNEL)
        np.testing.assert_allclose(result.statistic, 0.1279788791, rtol=1e-9)
        np.testing.assert_allclose(result.statistic, q, rtol=1e-9)
        np.testing.assert_allclose(result.p_value, p, rtol=1e-9)
        np.testing.assert_allclose(jnp.sum(result.contributions), result.estimate, rtol=1e-10)
        np.testing.assert_allclose(result.biased, estimate.biased, rtol=1e-12)


@pytest.mark.slow
@given(st.integers(0, 2**31))
def test_p_values_are_those_of_scipy(seed):
    rng = np.random.default_rng(seed)
    j = int(rng.integers(1, 12))
    n, q = j + int(rng.integers(1, 60)), float(rng.exponential(2 * j))
    np.testing.assert_allclose(
        ChiSquared()(jnp.asarray(q), n, j), scipy.stats.chi2.sf(q, j), rtol=1e-8
    )
    wanted = scipy.stats.f.sf((n - j) / (j * (n - 1)) * q, j, n - j)
    np.testing.assert_allclose(F()(jnp.asarray(q), n, j), wanted, rtol=1e-8)


@pytest.mark.parametrize("j", [1, 2, 5, 50])
@pytest.mark.parametrize("n", [1000, 10**4, 10**5, 10**6, 10**8])
def test_p_values_of_many_observations_in_float32(n, j):
    p = np.array([0.99, 0.5, 0.05, 0.01, 1e-4, 1e-8])
    q = (scipy.stats.f.isf(p, j, n - j) * j * (n - 1) / (n - j)).astype(np.float32)
    wanted = scipy.stats.f.sf((n - j) / (j * (n - 1)) * q.astype(float), j, n - j)
    np.testing.assert_allclose([F()(jnp.asarray(x), n, j) for x in q], wanted, rtol=2e-3)


@pytest.mark.slow
@given(st.integers(0, 2**31))
def test_hotelling_ignores_linear_mixing_of_locations(seed):
    rng = np.random.default_rng(seed)
    z = rng.normal(size=(12, 3)) * [1, 1e-4, 30] + [0.3, 0, 10]
    mixing = rng.normal(size=(3, 3)) + 3 * np.eye(3)
    values, condition = hotelling(jnp.asarray(z))
    wanted = 12 * z.mean(0) @ np.linalg.solve(np.cov(z.T), z.mean(0))
    np.testing.assert_allclose(values, wanted, rtol=1e-6)
    mixed = (z / [1, 1e-4, 30]) @ mixing  # of one size: what is mixed must be told apart again
    np.testing.assert_allclose(hotelling(jnp.asarray(mixed))[0], wanted, rtol=1e-6)
    np.testing.assert_allclose(condition, np.linalg.cond(np.corrcoef(z.T)), rtol=1e-6)


@pytest.mark.slow
def test_rescaling_the_kernel_and_moving_locations_about(key):
    predictions = dist.Normal(MU, SD)
    test = partial(ucme_test, key, predictions, Y, standardize=False, null=F())
    plain = test(locations=AT, **{k: v for k, v in KERNEL.items() if k != "standardize"})
    doubled = test(
        locations=AT, target_kernel=Gaussian(1.0), prediction_kernel=Scaled(3.0, Laplace(1.0))
    )
    np.testing.assert_allclose(doubled.statistic, plain.statistic, rtol=1e-9)
    np.testing.assert_allclose(doubled.biased, 9 * plain.biased, rtol=1e-9)  # as k^2
    turned = (dist.Normal(AT[0].loc[::-1], AT[0].scale[::-1]), AT[1][::-1])
    again = test(locations=turned, target_kernel=Gaussian(1.0), prediction_kernel=Laplace(1.0))
    np.testing.assert_allclose(again.statistic, plain.statistic, rtol=1e-9)


@pytest.mark.slow
def test_left_out_observations_are_the_locations(key):
    means, deviation, ys = gaussian_forecasts(key, 40, d=2, calibrated=False)
    predictions = dist.Normal(means, deviation).to_event(1)
    result = ucme_test(key, predictions, ys, n_locations=3, null=F(), **KERNEL)
    out = np.flatnonzero(result.contributions == 0)
    assert out.size == 3
    kept = np.setdiff1d(np.arange(40), out)
    same = ucme_test(
        key,
        dist.Normal(means[kept], deviation).to_event(1),
        ys[kept],
        locations=(dist.Normal(means[out], deviation).to_event(1), ys[out]),
        null=F(),
        **KERNEL,
    )
    np.testing.assert_allclose(result.statistic, same.statistic, rtol=1e-7)
    np.testing.assert_allclose(result.p_value, same.p_value, rtol=1e-7)
    other = ucme_test(jax.random.key(1), predictions, ys, n_locations=3, **KERNEL)
    assert other.p_value != result.p_value


def classes(key, n):
    logit_key, draw_key = jax.random.split(key)
    p = jax.nn.softmax(jax.random.normal(logit_key, (n, 3)))
    return p, jax.random.categorical(draw_key, jnp.log(p))


@pytest.mark.slow
def test_features_of_classes_are_the_equation(key):
    p, ys = classes(key, 30)
    at, at_y = p[:4], jnp.asarray([0, 1, 2, 0])
    estimate = ucme(
        key,
        p[4:],
        ys[4:],
        locations=(at, at_y),
        divergence=TotalVariation(),
        prediction_kernel=Laplace(0.5),
    )
    near = np.exp(-np.abs(p[4:, None] - at[None]).sum(-1))
    z = near * (jnp.asarray(ys[4:, None] == at_y[None], float) - p[4:][:, at_y])
    np.testing.assert_allclose(estimate.biased, np.mean(z.mean(0) ** 2), rtol=1e-10)
    result = ucme_test(key, dist.Categorical(p), ys, n_locations=3)
    assert 0 < result.p_value < 1


def mixtures(key, n, d):
    weights = jax.nn.softmax(jax.random.normal(key, (n, 2)))
    loc = jax.random.normal(jax.random.fold_in(key, 1), (n, 2, d) if d else (n, 2))
    parts = dist.Normal(loc, 0.5)
    return dist.MixtureSameFamily(dist.Categorical(weights), parts.to_event(1) if d else parts)


def full_normals(key, n):
    root = jax.random.normal(key, (n, 2, 2))
    return dist.MultivariateNormal(root[:, 0], root @ root.mT + jnp.eye(2)[None])


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(
            lambda key, n: dist.Laplace(jax.random.normal(key, (n,)), 0.7), marks=pytest.mark.slow
        ),
        pytest.param(full_normals, marks=pytest.mark.slow),
        pytest.param(partial(mixtures, d=0), marks=pytest.mark.slow),
        pytest.param(partial(mixtures, d=2), marks=pytest.mark.slow),
        lambda key, n: Draws(jax.random.normal(key, (n, 8, 1)) + 1),
    ],
    ids=["laplace", "full normals", "mixtures", "vector mixtures", "draws"],
)
def test_locations_of_every_kind_of_prediction(make, key):
    predictions, at = make(key, 20), make(jax.random.key(5), 2)
    is_kind = isinstance(predictions, Draws)
    ys, at_y = (p.samples[:, 0] + 0.1 if is_kind else p.sample(key) for p in (predictions, at))
    result = ucme_test(key, predictions, ys, locations=(at, at_y))
    assert jnp.isfinite(result.p_value)
    assert jnp.isfinite(ucme_test(key, predictions, ys, n_locations=2).p_value)


@partial(jax.jit, static_argnames=("n", "d"))
@partial(jax.vmap, in_axes=(0, None, None, None, None))
def p_values(key, calibrated, at, n, d):
    data_key, key = jax.random.split(key)
    means, deviation, ys = gaussian_forecasts(data_key, n, d=d, calibrated=calibrated)
    test = partial(ucme_test, key, dist.Normal(means, deviation).to_event(1), ys, **KERNEL)
    left_out = test(n_locations=3)
    at = (dist.Normal(at[0], deviation).to_event(1), at[1])
    result = test(locations=at)
    return {"left out": left_out.p_value, "given": result.p_value}


@pytest.mark.slow
def test_the_level_is_kept_and_a_shift_is_seen(key):
    sets = 400
    keys = jax.random.split(key, sets)
    places = (jax.random.uniform(key, (3, 10)), 0.1 * jax.random.normal(key, (3, 10)))
    calibrated = p_values(keys, True, places, 200, 10)
    shifted = p_values(keys, False, places, 200, 10)
    low, high = scipy.stats.binom.interval(0.9999, sets, 0.05)
    for name in calibrated:
        assert low <= int(jnp.sum(calibrated[name] <= 0.05)) <= high
        assert int(jnp.sum(shifted[name] <= 0.05)) > 0.95 * sets


def test_signs_are_those_of_observations(key):
    """By hand: the squares of observations are the same in all draws, so U and V order them alike.
    A pattern and its opposite are alike."""
    result = ucme_test(key, dist.Normal(MU, SD), Y, locations=AT, null=Wild(400), **KERNEL)
    z = features_by_hand(*(np.asarray(a) for a in (MU, SD, Y, AT[0].loc, AT[0].scale, AT[1])))
    patterns = np.stack(np.meshgrid(*[[-1, 1]] * 6), axis=-1).reshape(-1, 6)
    plug_in = np.mean((patterns @ z / 6) ** 2, axis=1)
    unbiased = (36 * plug_in - np.sum(z**2) / 2) / 30
    draws = np.asarray(result.null_samples)
    assert np.all(np.min(np.abs(draws[:, None] - unbiased), axis=1) < 1e-12)
    exact = np.mean(plug_in >= float(result.biased) * (1 - 1e-12))
    assert abs(float(result.p_value) - exact) < 4 * (0.25 / 400) ** 0.5
    np.testing.assert_array_equal(result.statistic, result.estimate)


@pytest.mark.slow
def test_four_observations_have_eight_patterns(key):
    few = ucme_test(key, dist.Normal(MU, SD), Y, n_locations=2, null=Wild(), **KERNEL)
    assert few.verdict == "cannot tell"
    assert few.warnings()


@pytest.mark.slow
def test_redrawn_targets_compare_plug_in_estimates(key):
    """Unbiased ones saw 46, not 60, of 400 models of classes that are too sure of themselves."""
    result = ucme_test(key, dist.Normal(MU, SD), Y, locations=AT, null=Redrawn(200), **KERNEL)
    plug_in = result.null_samples - result.estimate + result.biased
    assert float(jnp.min(plug_in)) >= 0
    exceeding = int(jnp.sum(plug_in >= result.biased))
    np.testing.assert_allclose(result.p_value, (1 + exceeding) / 201, rtol=1e-12)


def test_ties_of_redrawn_targets_count_if_one_target_decides():
    """The unbiased estimate is far smaller than the rounding of the biased one."""
    with jax.enable_x64(False):
        sure = jnp.array([5e-4, 1 - 1e-3, 5e-4])
        predictions = jnp.tile(sure, (20, 1)).at[0].set(sure[jnp.array([1, 0, 2])])
        labels = jnp.ones(20, int).at[0].set(0)
        options = {"locations": (predictions[:1], labels[:1]), "null": Redrawn(200)}
        for kernel in (Gaussian(0.25), Gaussian(0.255)):
            result = ucme_test(1, predictions, labels, prediction_kernel=kernel, **options)
            assert result.p_value > 0.5


@pytest.mark.slow
@pytest.mark.parametrize("null", [DependentWild(), Eigenvalues(), HadamardWild(), BlockNormal()])
def test_all_nulls_are_nulls_at_locations(null, key):
    center, noise = jax.random.normal(key, (2, 300))
    test = partial(ucme_test, key, dist.Normal(center, 1.0), null=null)
    right, wrong = test(center + noise), test(center + noise + 1)
    assert right.verdict == "not rejected"
    assert wrong.verdict == "rejected"
    np.testing.assert_allclose(jnp.sum(wrong.contributions), wrong.estimate, rtol=1e-9)


@pytest.mark.slow
def test_observations_left_stay_in_order_of_time(key):
    """Signs of rows in random order know no dependence: their draws spread as those of `Wild`."""
    center, noise = jax.random.normal(key, (2, 300))
    errors = jax.lax.scan(lambda e, x: (0.9 * e + 0.19**0.5 * x,) * 2, 0.0, noise)[1]
    test = partial(ucme_test, key, dist.Normal(center, 1.0), center + errors)
    spread = [float(jnp.std(test(null=null).null_samples)) for null in (DependentWild(), Wild())]
    assert spread[0] > 2 * spread[1]
    season = jnp.sin(jnp.arange(300.0) * (jnp.pi / 12)) + 0.3 * noise
    yearly = ucme_test(key, dist.Normal(center, 1.0), center + season, null=DependentWild())
    assert "season of 24" in str(yearly)


@partial(jax.jit, static_argnames="n")
@partial(jax.vmap, in_axes=(0, None))
def p_of_few(key, n):
    x_key, y_key, key = jax.random.split(key, 3)
    mean = jax.random.normal(x_key, (n,))
    ys = mean + 0.7 * jax.random.normal(y_key, (n,))
    test = partial(ucme_test, key, dist.Normal(mean, 0.7))
    signs = Wild()
    tests = {
        "signs": test(ys, null=signs),
        "f": test(ys, null=F()),
        "shifted": test(ys + 0.5, null=signs),
    }
    return {name: result.p_value for name, result in tests.items()}


@pytest.mark.slow
def test_signs_keep_their_level_where_f_does_not(key):
    sets = 1000
    p = p_of_few(jax.random.split(key, sets), 32)
    rejected = {name: int(jnp.sum(values <= 0.05)) for name, values in p.items()}
    low, high = scipy.stats.binom.interval(0.9999, sets, 0.05)
    assert low <= rejected["signs"] <= high < rejected["f"]
    assert rejected["shifted"] > 0.3 * sets


@pytest.mark.slow
def test_few_observations_and_collinear_features_are_told(key):
    means, deviation, ys = gaussian_forecasts(key, 24, calibrated=True)
    predictions = dist.Normal(means, deviation).to_event(1)
    few = ucme_test(key, predictions, ys, n_locations=10, null=F(), **KERNEL)
    said = " ".join(few.warnings())
    assert "few observations for so many test locations" in said
    assert "nearly collinear" in said
    assert few.to_dict()["notes"]["many-locations"]
    assert "CME test at 10 locations, n = 24" in repr(few)
    # two locations at one place: the covariance is singular
    twice = (dist.Normal(jnp.ones((2, 1)), 0.1).to_event(1), jnp.ones((2, 1)))
    singular = ucme_test(key, predictions, ys, locations=twice, null=F(), **KERNEL)
    assert jnp.isnan(singular.p_value)
    assert "nearly collinear" in " ".join(singular.warnings())
    # and one that no observation can see
    far = (dist.Normal(jnp.asarray([[0.5], [1e4]]), 0.1).to_event(1), jnp.asarray([[0.5], [1e4]]))
    assert jnp.isnan(ucme_test(key, predictions, ys, locations=far, null=F(), **KERNEL).p_value)
    # signs need no covariance, but something to see
    for places in (twice, far):
        told = ucme_test(key, predictions, ys, locations=places, **KERNEL)
        assert jnp.isfinite(told.p_value)
        assert told.warnings() == []
    nowhere = (dist.Normal(jnp.full((1, 1), 1e4), 0.1).to_event(1), jnp.full((1, 1), 1e4))
    assert ucme_test(key, predictions, ys, locations=nowhere, **KERNEL).verdict == "cannot tell"


@pytest.mark.slow
def test_a_target_far_out_is_told(key):
    loc, noise = jax.random.normal(key, (2, 60))
    result = ucme_test(key, dist.Normal(loc, 1.0), (loc + noise).at[3].set(1e6), n_locations=5)
    assert any("a few targets set the scale" in text for text in result.warnings())


@pytest.mark.slow
def test_a_calm_result_has_no_warnings(key):
    means, deviation, ys = gaussian_forecasts(key, 300, d=10, calibrated=True)
    result = ucme_test(key, dist.Normal(means, deviation).to_event(1), ys, n_locations=3)
    assert result.warnings() == []


@pytest.mark.slow
def test_refusals(key):
    predictions = dist.Normal(MU, SD)
    test = partial(ucme_test, key, predictions, Y)
    with pytest.raises(ValueError, match=r"F at 3 locations needs 4.*got 3 after 3 of n=6"):
        test(n_locations=3, null=F())
    with pytest.raises(ValueError, match=r"Wild at 5 locations needs 2.*got 1 after 5 of n=6"):
        test(n_locations=5, null=Wild())
    many = (dist.Normal(jnp.arange(6.0), 1.0), jnp.arange(6.0))
    with pytest.raises(ValueError, match=r"6 locations.*got 6: use fewer"):
        test(locations=many, null=ChiSquared())
    with pytest.raises(ValueError, match="leave none of n=6"):
        test(n_locations=6)
    for wrong in (0, True):
        with pytest.raises(ValueError, match="n_locations: wanted a whole number of at least 1"):
            test(n_locations=wrong)
    with pytest.raises(TypeError, match="test predictions, test targets"):
        test(locations=jnp.ones(3))
    with pytest.raises(ValueError, match=r"locations: test predictions: .* event shape \(1,\)"):
        test(locations=(AT[0], jnp.ones((2, 1))))
    with pytest.raises(ValueError, match=r"locations: test predictions: .* batch shape \(3,\)"):
        test(locations=(AT[0], jnp.ones(3)))
    with pytest.raises(TypeError, match="got Laplace beside Normal"):
        test(locations=(dist.Laplace(jnp.ones(2), 1.0), jnp.ones(2)))
    with pytest.raises(ValueError, match="Vectors hold no vectors of the locations"):
        test(locations=AT, divergence=Vectors(jnp.ones((6, 2))))
    with pytest.raises(TypeError, match="null"):
        test(null=F)
    p, ys = classes(key, 20)
    with pytest.raises(ValueError, match="locations: test predictions: row 0 does not sum to 1"):
        ucme_test(key, p, ys, locations=(jnp.ones((2, 3)), jnp.asarray([0, 1])))


@pytest.mark.slow
def test_one_location_two_observations_gradients_and_nan(key):
    one = (dist.Normal(jnp.zeros(1), 1.0), jnp.zeros(1))
    result = ucme_test(key, dist.Normal(MU[:2], SD[:2]), Y[:2], locations=one, **KERNEL)
    assert jnp.isfinite(result.p_value)

    def loss(mu):
        return ucme(
            key, dist.Normal(mu, SD), Y, locations=AT, divergence=Wasserstein(), **KERNEL
        ).biased

    slope = jax.grad(loss)(MU)
    step = jnp.zeros(6).at[3].set(1e-6)
    np.testing.assert_allclose(slope[3], (loss(MU + step) - loss(MU - step)) / 2e-6, rtol=1e-5)
    broken = ucme_test(key, dist.Normal(MU, SD), Y.at[2].set(jnp.nan), locations=AT, **KERNEL)
    assert jnp.isnan(broken.p_value)
    assert "1 target value is NaN" in " ".join(broken.warnings())


@pytest.mark.parametrize("labels", [[1, 2, 3, 1, 2], [0, 1, -1, 0, 1], [0.7, 1, 2, 0, 1]])
def test_labels_of_locations_are_checked(labels):
    """With labels from 1 on right predictions were rejected in 15 of 15 data sets."""
    p = jax.nn.softmax(jax.random.normal(jax.random.key(0), (50, 3)))
    with pytest.raises((TypeError, ValueError), match="locations: "):
        ucme(0, p, jnp.arange(50) % 3, locations=(p[:5], jnp.asarray(labels)))


def test_locations_may_be_all_that_predictions_may_be():
    """Probabilities of class 1 and one distribution for all locations were refused."""
    p, labels = jnp.linspace(0.1, 0.9, 20), jnp.arange(20) % 2
    both = jnp.stack([1 - p, p], axis=1)
    for model, ys, some, other in (
        (p, labels, p[:3], both[:3]),
        (dist.Normal(p, 1.0), p, dist.Normal(0.0, 1.0), dist.Normal(jnp.zeros(3), 1.0)),
    ):
        got, wanted = (ucme(0, model, ys, locations=(at, ys[:3])).biased for at in (some, other))
        np.testing.assert_allclose(got, wanted, rtol=1e-12)


def test_forecasts_of_points_that_are_right_are_not_rejected():
    """Rounding alone rejected equal draws at their targets in 15 of 15 data sets."""
    y = np.random.default_rng(0).normal(size=(300, 1)).astype(np.float32)
    result = ucme_test(0, Draws(np.repeat(y, 10, axis=1)), y[:, 0], null=Wild(99))
    assert result.verdict == "cannot tell"
    assert "[small-residuals]" in str(result)


@pytest.mark.slow
def test_the_order_of_draws_at_locations_does_not_matter():
    """Of sorted draws the lower half was compared: 1.84 times the estimate."""
    random = np.random.default_rng(0)
    centers = random.normal(size=100)
    draws = centers[:, None] + 0.3 * random.normal(size=(100, 1000))
    targets = centers + 0.5 + 0.3 * random.normal(size=100)
    biased = [
        float(ucme(0, Draws(draws), targets, locations=(Draws(at), targets[:5])).biased)
        for at in (draws[:5], np.sort(draws[:5], axis=1))
    ]
    assert biased[1] == pytest.approx(biased[0], rel=0.2)
