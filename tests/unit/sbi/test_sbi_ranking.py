"""Many JAX posteriors on the same pairs: one program, each as if tested alone, and their order."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import jaxcal
from jaxcal import sbi

KEY = jax.random.key(0)
PRIOR = dist.Normal(jnp.zeros(2), 1.0).to_event(1)
TRACES = []


class Gaussian(eqx.Module):
    """N(slope x, 1/2), the posterior of theta ~ N(0, I), x ~ N(theta, I) at slope 1/2."""

    slope: jax.Array

    def __call__(self, theta, x):
        TRACES.append(1)
        return -jnp.sum((theta - self.slope * x) ** 2)


def pairs(n):
    thetas, noise = jax.random.normal(jax.random.key(1), (2, n, 2))
    return thetas, thetas + noise


@pytest.mark.slow
def test_models_are_ordered_by_error_and_tested_separately():
    thetas, xs = pairs(200)
    slopes = jnp.asarray([0.9, 0.5, 0.7, 0.1])
    ranking = sbi.rank_posteriors(KEY, Gaussian(slopes), thetas, xs, prior=PRIOR)
    assert ranking.order()[0] == 1
    assert ranking.order()[1] == 2
    assert ranking.verdict[1] == "not rejected"
    assert set(ranking.verdict[[0, 3]]) == {"rejected"}
    test_key = jax.random.fold_in(KEY, 1)
    for k in (0, 2):
        scores = jaxcal.Scores(-2 * (thetas - slopes[k] * xs))
        alone = jaxcal.kcsd_test(test_key, scores, thetas, xs, null=jaxcal.nulls.HadamardWild())
        assert float(ranking.estimates[k]) == pytest.approx(float(alone.estimate), rel=1e-9)
        assert float(ranking.tests.p_value[k]) == float(alone.p_value)
    text = repr(ranking)
    assert text.splitlines()[1].split()[:2] == ["model", "1"]
    assert "not rejected" in text


@pytest.mark.slow
def test_the_report_has_the_warnings_of_the_models_shown():
    """Counts are those of one model, not sums over models; a warning of some names them."""
    thetas, xs = (jnp.tile(rows, (4, 1)) for rows in pairs(20))
    ranking = sbi.rank_posteriors(KEY, Gaussian(jnp.asarray([0.5, 0.7])), thetas, xs, prior=PRIOR)
    assert "  note: 60 observations repeat another exactly" in repr(ranking)
    assert repr(ranking).endswith("explained: python -m jaxcal explain repeated-rows")
    share = jnp.asarray([0.0, 0.4])
    one = eqx.tree_at(lambda r: r.tests.notes["one-observation-decides"], ranking, share)
    assert "  note (model 1): one observation carries 40% of" in repr(one)


@pytest.mark.slow
def test_more_models_than_draws_allow_give_no_verdict():
    """M models by Holm's method: the smallest p-value is M / (1 + draws). All are shifted."""
    thetas, xs = pairs(100)
    options = {"prior": PRIOR, "null": jaxcal.nulls.Wild(40)}
    two, three = (
        sbi.rank_posteriors(KEY, Gaussian(jnp.full(m, 3.0)), thetas, xs, **options) for m in (2, 3)
    )
    np.testing.assert_allclose(three.tests.p_value, 1 / 41)
    assert set(two.verdict) == {"rejected"}
    assert set(three.verdict) == {"cannot tell"}
    assert "with them, 60 would do [too-few-draws]" in repr(three)
    # what a test by itself says against a verdict holds in the ranking, too
    one = eqx.tree_at(lambda r: r.tests.notes["nonfinite-targets"], two, jnp.asarray([1, 0]))
    assert list(one.verdict) == ["cannot tell", "rejected"]


@pytest.mark.slow
def test_parameters_with_bounds_are_freed_for_every_model():
    thetas, xs = pairs(60)
    inside = jax.nn.sigmoid(thetas)
    ranking = sbi.rank_posteriors(KEY, Gaussian(jnp.asarray([0.5, 0.7])), inside, xs, bounds=(0, 1))
    scored = sbi.score_pairs(
        jax.random.fold_in(KEY, 0), Gaussian(jnp.asarray(0.7)), inside, xs, bounds=(0, 1), n_nodes=1
    )
    alone = jaxcal.kcsd_test(
        jax.random.fold_in(KEY, 1),
        jaxcal.Scores(scored.scores.at_targets), scored.thetas, scored.features,
    )  # fmt: skip
    assert float(ranking.estimates[1]) == pytest.approx(float(alone.estimate), rel=1e-9)
    assert ranking.notes == {"bounded-parameters": 2, "no-prior": 1}


@pytest.mark.slow
def test_a_thousand_models_of_256_pairs_are_one_program():
    thetas, xs = pairs(256)
    slopes = jnp.linspace(0.1, 0.9, 1000)
    sbi.rank_posteriors(KEY, Gaussian(slopes), thetas, xs, prior=PRIOR)
    before = len(TRACES)
    ranking = sbi.rank_posteriors(7, Gaussian(slopes[::-1]), thetas, xs, prior=PRIOR)
    assert len(TRACES) == before  # new weights and a new key compile nothing
    estimates = np.asarray(ranking.estimates)
    assert estimates.shape == (1000,)
    best = 0.9 - 0.8 * ranking.order()[0] / 999
    assert 0.4 < best < 0.6
    # the error is a quadratic form of the scores, so a quadratic of the slope
    fitted = np.polyval(np.polyfit(slopes[::-1], estimates, 2), slopes[::-1])
    np.testing.assert_allclose(fitted, estimates, atol=1e-6 * np.abs(estimates).max())


class Flow(eqx.Module):
    """Called as flowjax's, of the same family as `Gaussian`."""

    slope: jax.Array

    def log_prob(self, theta, condition):
        return -jnp.sum((theta - self.slope * condition) ** 2)


def test_flows_are_ranked_by_their_log_densities():
    ranked = sbi.rank_posteriors(KEY, Flow(jnp.asarray([0.5, 0.9])), *pairs(60), prior=PRIOR)
    assert ranked.order() == [0, 1]


def test_models_that_do_not_stack_are_named():
    thetas, xs = pairs(60)
    with pytest.raises(ValueError, match="one leading axis of models"):
        sbi.rank_posteriors(KEY, Gaussian(jnp.asarray(0.5)), thetas, xs, prior=PRIOR)
    with pytest.raises(TypeError, match="wanted a network whose arrays"):
        sbi.rank_posteriors(KEY, lambda theta, x: theta, thetas, xs, prior=PRIOR)
    with pytest.raises(ValueError, match="names: wanted 2, one per model"):
        sbi.rank_posteriors(
            KEY, Gaussian(jnp.ones(2)), thetas, xs, prior=PRIOR, names=["a", "b", "c"]
        )
