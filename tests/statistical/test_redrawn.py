"""The null that draws targets anew from the predictions, and where signs give no verdict."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats
from jax.sharding import Mesh
from reference.nulls import Bound

import jaxcal
from jaxcal import Draws, skce_test
from jaxcal.fit import redraws
from jaxcal.kernels import Linear, Matern52
from jaxcal.nulls import Eigenvalues, HadamardWild, Redrawn, Wild
from jaxcal.skce import skce
from jaxcal.ucme import F, ucme_test

RARE = jnp.linspace(0.001, 0.005, 300)
NONE = jnp.zeros(300, int)


@pytest.mark.parametrize("test", [skce_test, ucme_test])
def test_an_unexpected_event_that_did_not_occur_is_no_evidence(test):
    """P(no event) = .41, and no data set gives a smaller statistic."""
    result = test(0, RARE, NONE)
    assert result.verdict == "not rejected"
    # data sets with events may be as far off, by either test
    assert 501 * result.p_value > scipy.stats.binom.ppf(0.0001, 500, 0.4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("test", "null"),
    [
        (skce_test, Wild()),
        (skce_test, HadamardWild()),
        (skce_test, Eigenvalues()),
        (ucme_test, Wild()),
        (ucme_test, F()),
    ],
)
def test_where_rare_events_are_too_few_signs_give_no_verdict(test, null):
    result = test(0, RARE, NONE, null=null)
    assert result.verdict == "cannot tell"
    assert any("[rare-targets]" in text for text in result.warnings())
    often = test(0, jnp.linspace(0.05, 0.2, 300), NONE, null=null)  # 38 of them expected
    assert "[rare-targets]" not in "".join(often.warnings())
    if null not in (Eigenvalues(), F()):
        assert often.verdict == "rejected"


def test_a_null_that_holds_for_every_n_says_so():
    assert skce_test(0, RARE, NONE, null=Bound(2.0)).verdict == "not rejected"


@pytest.mark.slow
def test_counts_that_hardly_ever_come_give_no_verdict_by_signs():
    rates = jnp.linspace(0.001, 0.02, 100)
    ys = jnp.zeros(100).at[70].set(1.0)
    assert skce_test(0, dist.Poisson(rates), ys).verdict == "cannot tell"
    assert skce_test(0, dist.Poisson(100 * rates), ys).verdict == "rejected"


@pytest.mark.slow
def test_where_no_labels_could_be_rejected_there_is_no_verdict():
    result = skce_test(0, jnp.full(4, 0.5), jnp.ones(4, int))
    assert result.verdict == "cannot tell"
    assert "[too-few-observations]" in result.reason
    certain = jnp.array([[1.0, 0.0], [0.0, 1.0]] * 10)
    assert skce_test(0, certain, jnp.array([0, 1] * 10)).verdict == "cannot tell"
    assert skce_test(0, certain, jnp.array([1, 0] * 10)).verdict == "rejected"


@pytest.mark.slow
@pytest.mark.parametrize("null", [None, Redrawn(7)])
def test_the_default_follows_what_it_costs(null):
    p = jax.nn.softmax(jax.random.normal(jax.random.key(0), (70, 3)))
    x = jnp.linspace(-1, 1, 70)
    draws = Draws(jax.random.normal(jax.random.key(1), (40, 20)))
    test = partial(skce_test, 0) if null is None else partial(skce_test, 0, null=null)
    data = [
        (p, jnp.arange(70) % 3),
        (dist.Normal(x[:40], 1.0), x[:40] + 1),
        (dist.Normal(x, 1.0), x + 1),
        (draws, x[:40]),
    ]
    names = [jax.eval_shape(test, *of).null for of in data]
    assert names == ["Redrawn"] * (4 if null else 2) + ["Wild"] * (0 if null else 2)


@pytest.mark.slow
def test_quadrature_averages_are_computed_once_for_all_draws():
    x = jnp.linspace(-1, 1, 20)
    result = skce_test(0, dist.Laplace(x, 1.0), x, target_kernel=Matern52(1.0))
    assert result.null == "Wild"


def redrawn(key, n_draws, predictions, ys):
    """The data sets that a test with this key draws."""
    keys = jax.random.split(jax.random.split(key, 3)[2], n_draws)
    return [redraws.redraw(one, predictions, ys) for one in keys]


@pytest.mark.slow
@pytest.mark.parametrize("m", [2, 3])
@pytest.mark.parametrize("similar", [False, True])
def test_draws_of_classes_are_the_estimates_of_redrawn_labels(m, similar, key):
    """The forms of the kernel on predictions, against the estimate itself."""
    p = jax.nn.softmax(jax.random.normal(key, (25, m)))
    ys = jnp.arange(25) % m
    root = jax.random.normal(jax.random.key(9), (m, m))
    options = {"target_kernel": root @ root.T} if similar else {}
    result = skce_test(key, p, ys, null=Redrawn(4), **options)
    classes = jaxcal.read.families.Classes(p)
    sets = redrawn(key, 4, classes, ys)
    wanted = [skce(key, p, labels, **options).unbiased for _, labels in sets]
    np.testing.assert_allclose(result.null_samples, wanted, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(result.statistic, skce(key, p, ys, **options).unbiased)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["normal", "draws"])
def test_draws_as_predictions_have_separate_units_and_bandwidths(kind, key):
    x, noise = jax.random.normal(key, (2, 15))
    predictions = dist.Normal(x, 0.5)
    if kind == "draws":
        predictions = Draws(x[:, None] + jax.random.normal(jax.random.key(3), (15, 8)))
    ys = x + noise
    result = skce_test(key, predictions, ys, null=Redrawn(3))
    wanted = [skce(key, *one).unbiased for one in redrawn(key, 3, predictions, ys)]
    np.testing.assert_allclose(result.null_samples, wanted, rtol=1e-9, atol=1e-12)


def test_classes_are_drawn_with_their_probabilities(key):
    p = jnp.tile(jnp.array([[0.0, 0.7, 0.0, 0.3, 0.0]]), (4000, 1))
    counts = np.bincount(redraws._classes(key, p), minlength=5)
    assert counts[0] == counts[2] == counts[4] == 0
    low, high = scipy.stats.binom.interval(0.9999, 4000, 0.7)
    assert low < counts[1] < high


def test_a_target_changes_places_with_one_of_its_draws(key):
    draws = jnp.arange(1, 4, dtype=float)[None] * jnp.ones((3000, 1))
    ys = jnp.zeros(3000)
    again, drawn = redraws.redraw(key, Draws(draws), ys)
    together = np.sort(np.column_stack([again.samples, drawn]), axis=1)
    np.testing.assert_array_equal(together, np.tile(np.arange(4.0), (3000, 1)))
    low, high = scipy.stats.binom.interval(0.9999, 3000, 0.25)
    counts = np.bincount(np.asarray(drawn, int), minlength=4)
    assert np.all((low < counts) & (counts < high))


@pytest.mark.parametrize("m", [2, 3])
def test_the_variance_of_the_squares_is_that_over_all_labels(m, key):
    """Mean and variance of the sum of squares, by all m^3 labels of three predictions."""
    p = jax.nn.softmax(jax.random.normal(key, (3, m)))
    root = jax.random.normal(jax.random.key(9), (m, m))
    gram = root @ root.T
    moments = np.zeros(2)
    for labels in itertools.product(range(m), repeat=3):
        residuals = np.eye(m)[list(labels)] - p
        square = np.sum((residuals @ gram) * residuals)
        moments += np.prod(np.asarray(p)[range(3), labels]) * np.array([square, square**2])
    mean, variance = redraws._of_classes(p, gram).sum(axis=1)
    np.testing.assert_allclose([mean, variance + mean**2], moments)


def test_the_bound_is_the_expected_number_of_rare_events():
    for count, few in ((8, True), (12, False)):
        q = jnp.full(2000, count / 2000)
        result = skce_test(0, q, jnp.zeros(2000, int), null=Wild(9))
        assert bool(result.notes["rare-targets"]) == few


@pytest.mark.slow
def test_rare_targets_of_any_kernel_do_not_depend_on_row_order():
    """k(y, y) = y^2: a first row with the mean of its expectation in the place of all y^2 left a
    mean of 0 for the sum of squared residuals, and so no verdict."""
    keys = jax.random.split(jax.random.key(0))
    means = jax.random.uniform(keys[0], (200,)) + 1
    ys = dist.Gamma(50 * means, 50.0).sample(keys[1])
    z, centers = ((x - jnp.mean(ys)) / jnp.std(ys) for x in (ys, means))
    order = jnp.argsort(jnp.abs(z**2 - jnp.mean(centers**2)))
    for rows in (order, order[::-1]):
        predictions = dist.Gamma(50 * means[rows], 50.0)
        result = skce_test(1, predictions, ys[rows], target_kernel=Linear(), null=Wild(99))
        assert not result.notes["rare-targets"]


def test_what_cannot_be_sampled_is_refused():
    scores = jaxcal.Scores(jnp.zeros(9), jnp.zeros((9, 2)), jnp.ones(2))
    with pytest.raises(TypeError, match=r"null: Redrawn\(\) .*Scores has no sampler"):
        jaxcal.kccsd_test(0, scores, jnp.arange(9.0), null=Redrawn(9))


@pytest.mark.slow
def test_scores_of_distributions_may_be_redrawn_too(key):
    x, noise = jax.random.normal(key, (2, 30))
    result = jaxcal.kccsd_test(key, dist.Normal(x, 1.0), x + 1 + noise, null=Redrawn(99))
    assert result.verdict == "rejected"


@pytest.mark.slow
def test_programs_batches_and_devices_agree(key):
    p = jax.nn.softmax(jax.random.normal(key, (40, 3)))
    ys = jnp.arange(40) % 3
    run = partial(skce_test, null=Redrawn(20))
    plain = run(key, p, ys)
    batch = jax.jit(jax.vmap(run, (None, None, 0)))(key, p, jnp.stack([ys, 2 - ys]))
    mesh = run(key, p, ys, mesh=Mesh(np.array(jax.devices()[:1]), "i"), tile=16)
    for other in (batch.null_samples[0], mesh.null_samples):
        np.testing.assert_allclose(other, plain.null_samples, atol=1e-12)
    assert batch.p_value[0] == plain.p_value == mesh.p_value
    slope = jax.grad(lambda p: run(key, p, ys).estimate)(p)
    assert jnp.all(jnp.isfinite(slope))


def rejections(test, draw, null, sets, n):
    """How many calibrated data sets are rejected at .05."""

    def p_value(key):
        keys = jax.random.split(key, 3)
        predictions = draw(keys[0], n)
        ys = redraws.redraw(keys[1], predictions, jnp.zeros(n, int))[1]
        return test(keys[2], predictions.probabilities, ys, null=null).p_value

    keys = jax.random.split(jax.random.key(20261123), sets)
    return int(jnp.sum(jax.jit(lambda keys: jax.lax.map(p_value, keys))(keys) <= 0.05))


def rare(key, n):
    q = jax.random.uniform(key, (n,), minval=0.002, maxval=0.032)
    return jaxcal.read.families.Classes(jnp.stack([1 - q, q], axis=1))


@pytest.mark.slow
@pytest.mark.parametrize(("test", "n"), [(skce_test, 50), (ucme_test, 16)])
def test_rare_events_are_rejected_at_the_level(test, n):
    """Signs reject 177 of 400 and 336 of 400."""
    assert rejections(test, rare, Redrawn(99), 300, n) <= scipy.stats.binom.ppf(0.9999, 300, 0.05)
