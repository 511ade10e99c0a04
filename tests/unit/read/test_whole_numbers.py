"""Counts and classes have no scores, and no continuous points near them."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import jaxcal
from jaxcal import RandomFeatures, Unnormalized, nulls
from jaxcal.candidates import Drawn, exchangeability_test
from jaxcal.read.observations import observations
from jaxcal.streaming import StreamedTest

N = 60
X = jax.random.normal(jax.random.key(0), (N,))
COUNTS = {
    "Poisson": dist.Poisson(jnp.exp(X)),
    "Bernoulli": dist.BernoulliLogits(X),
    "Geometric": dist.GeometricProbs(jax.nn.sigmoid(X)),
    "BetaBinomial": dist.BetaBinomial(jnp.exp(X), jnp.ones(N), 7),
    "ZeroInflated": dist.ZeroInflatedPoisson(jnp.full(N, 0.3), jnp.exp(X)),
    "Multinomial": dist.Multinomial(5, jax.nn.softmax(jnp.stack([X, -X], axis=1))),
}
BY_SCORES = {
    "kccsd_test": lambda p, y: jaxcal.kccsd_test(0, p, y),
    "kccsd": lambda p, y: jaxcal.kccsd(0, p, y),
    "kcsd_test": lambda p, y: jaxcal.kcsd_test(0, p, y, X),
    "ksd_test": lambda p, y: jaxcal.ksd_test(0, p, y),
    "exchangeability_test": lambda p, y: exchangeability_test(0, p, y),
    "streamed": lambda p, y: StreamedTest.kccsd(0, p, y, features=RandomFeatures(1, 10)),
}
QUICK = nulls.HadamardWild(n_draws=50)


@pytest.mark.parametrize("name", COUNTS)
@pytest.mark.parametrize("test", BY_SCORES)
def test_counts_have_no_scores(name, test):
    """A density of continuous targets that agrees at whole numbers has other moments."""
    predictions = COUNTS[name]
    ys = predictions.sample(jax.random.key(1)).astype(float)
    with pytest.raises(TypeError, match="predicts whole numbers, but this needs scores"):
        BY_SCORES[test](predictions, ys)


@pytest.mark.slow
def test_counts_among_draws_are_exchangeable():
    predictions = COUNTS["Poisson"]
    draws = jnp.moveaxis(predictions.sample(jax.random.key(1), (20,)), 0, 1).astype(float)
    result = exchangeability_test(0, predictions, draws[:, 0], proposal=Drawn(draws[:, 1:, None]))
    assert result.verdict == "not rejected"


@pytest.mark.slow
def test_densities_of_whole_numbers_are_said():
    """The logit of a yes is the slope of its log density, which then has no maximum."""

    def yes_or_no(logit, y):
        return logit * y

    def normal(center, y):
        return -0.5 * ((y - center) / 5) ** 2

    def said(log_density, params, ys):
        predictions = Unnormalized(log_density, params)
        by_ranks = jaxcal.calibration_test(0, predictions, ys, null=QUICK)
        results = by_ranks, jaxcal.kccsd_test(0, predictions, ys, null=QUICK)
        return [bool(result.notes["whole-targets"]) for result in results]

    ys = COUNTS["Bernoulli"].sample(jax.random.key(1)).astype(float)
    assert said(yes_or_no, X, ys) == [True, True]
    wide = 5 * jax.random.normal(jax.random.key(2), (N,)) + 20 * X
    assert said(normal, 20 * X, jnp.round(wide)) == [False, False]  # rounded, but wide
    assert said(normal, 0.2 * X, wide / 25) == [False, False]
    counted = jaxcal.calibration_test(0, COUNTS["Bernoulli"], ys, null=QUICK)
    assert "whole-targets" not in counted.notes  # its points are whole numbers, too


@pytest.mark.slow
def test_ordered_categories_are_classes():
    ordered = dist.OrderedLogistic(X, jnp.array([-1.0, 0.0, 1.0]))
    ys = ordered.sample(jax.random.key(1))
    whole = jaxcal.skce_test(0, ordered, ys)
    np.testing.assert_array_equal(whole.p_value, jaxcal.skce_test(0, ordered.probs, ys).p_value)
    assert jaxcal.check(0, ordered, ys).verdict in ("rejected", "not rejected")
    for test in (jaxcal.calibration_test, jaxcal.moment_test):
        with pytest.raises(TypeError, match="OrderedLogistic predicts classes: take skce_test"):
            test(0, ordered, ys)


def test_true_and_false_are_counts():
    _, read = observations(dist.Binomial(1, probs=jnp.full(3, 0.5)), [True, False, True])
    np.testing.assert_array_equal(read, [1.0, 0.0, 1.0])
