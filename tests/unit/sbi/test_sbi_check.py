"""Verdicts, directions and regions on posteriors whose faults are known; bad input in sentences."""

import inspect
import re
from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats
from reference.simulators import gaussian_linear_uniform

import jaxcal
from jaxcal import sbi
from jaxcal.entries import calibration
from jaxcal.read import Scores
from jaxcal.results import Means, Table, tells
from jaxcal.sbi.diagnosis import also_by, cross_fitted_means, diagnose
from jaxcal.sbi.posteriors import chunked_scores
from jaxcal.sbi.ranks import rank_draws
from jaxcal.sbi.report_text import sentences
from jaxcal.sbi.space import Space
from jaxcal.sbi.suspicions import exchange_evidence

N, D = 300, 2
PRIOR = dist.Normal(jnp.zeros(D), 1.0).to_event(1)


def of_each(value):
    return jnp.broadcast_to(jnp.asarray(value, float), D)


class Density(eqx.Module):
    """Of N(slope x, 1 / (2 precision)), and ``beyond`` where the first parameter is past ``edge``.

    A check is one program for all of them, as what they differ in are arrays.
    """

    slope: jax.Array = eqx.field(converter=of_each)
    precision: jax.Array = eqx.field(converter=of_each)
    columns: jax.Array = eqx.field(converter=jnp.asarray, default=(0, 1))
    edge: jax.Array = eqx.field(converter=jnp.asarray, default=np.inf)
    beyond: jax.Array = eqx.field(converter=jnp.asarray, default=0.0)

    def __call__(self, theta, x):
        inside = -jnp.sum(self.precision * (theta[self.columns] - self.slope * x) ** 2)
        return jnp.where(theta[0] < self.edge, inside, self.beyond)


log_prob = Density(0.5, 1.0)  # the posterior of theta ~ N(0, I), x ~ N(theta, I)
prior_log_prob = Density(0.0, 0.5)
# the gradient past the edge is 0, not NaN
said_to_be_nan = Density(0.5, 1.0, edge=1.5, beyond=np.nan)
impossible_outside = Density(0.5, 1.0, edge=1.5, beyond=-np.inf)
clipped_outside = Density(0.5, 1.0, edge=1.5, beyond=-1e6)


@pytest.fixture(scope="module")
def pairs():
    keys = jax.random.split(jax.random.key(5), 2)
    thetas = jax.random.normal(keys[0], (N, D))
    return thetas, thetas + jax.random.normal(keys[1], (N, D))


KEY = jax.random.key(11)


@pytest.fixture(scope="module")
def right(pairs):
    return sbi.check_posterior(KEY, log_prob, *pairs, prior=PRIOR, names=["a", "b"])


@pytest.mark.slow
def test_the_exact_posterior_passes_both_questions(right):
    assert right.conclusion.startswith("no evidence")
    assert not right.calibration.findings()
    assert right.warnings() == []
    text = repr(right)
    assert "Is it calibrated? Among pairs" in text
    assert "Is it right for each x?" in text
    assert right.to_dict()["calibration"]["question"] == "calibrated"


@pytest.mark.slow
def test_the_prior_is_calibrated_and_not_the_posterior(pairs):
    examined = sbi.check_posterior(KEY, prior_log_prob, *pairs, prior=PRIOR)
    assert float(examined.calibration.p_value) > 0.05
    assert float(examined.conditional.p_value) < 0.01
    assert "no evidence of miscalibration, but not the posterior given x" in repr(examined)
    # and it is too high where x is low: a trend along x, of the parameter's own feature
    k, j = np.asarray(examined.conditional.diagnosis.strongest)
    assert k == j
    shift = np.asarray(examined.conditional.diagnosis.thirds)[0]
    assert shift[0] > 0.3 > -0.3 > shift[2]
    assert any("errors change with x[" in text for text in examined.conditional.findings())


@pytest.mark.slow
def test_one_fit_answers_both_questions(pairs, monkeypatch):
    """Points near each prediction are drawn once; a fit has about 190 log densities per pair."""
    tests, fits, test, fit = [], [], calibration._unjudged, calibration.Fit.of
    monkeypatch.setattr(calibration, "_unjudged", lambda *a: tests.append(a) or test(*a))
    monkeypatch.setattr(calibration.Fit, "of", lambda *a: fits.append(a) or fit(*a))
    examined = sbi.check_posterior(KEY, prior_log_prob, *pairs, prior=PRIOR)
    assert examined.calibration.p_value > examined.conditional.p_value
    (((_, *asked),), _) = tests, fits.clear()
    jax.eval_shape(partial(inspect.unwrap(test), None), *asked)
    assert len(fits) == 1


@pytest.mark.slow
def test_the_test_is_that_of_the_library_on_the_same_scores(pairs):
    thetas, xs = pairs
    nodes = jax.random.normal(jax.random.key(1), (10, D))
    scores = Scores(xs - 2 * thetas, xs[:, None] - 2 * nodes[None], nodes)
    null = jaxcal.nulls.Wild()
    ours = sbi.check_posterior(KEY, scores, thetas, xs, null=null).calibration
    test_key = jax.random.split(jax.random.fold_in(KEY, 1))[0]
    wanted = jaxcal.kccsd_test(test_key, scores, thetas)
    assert float(ours.p_value) == float(wanted.p_value)
    assert float(ours.test.estimate) == pytest.approx(float(wanted.estimate), rel=1e-12)
    np.testing.assert_array_equal(ours.contributions, ours.test.contributions)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shift", "scale", "words"),
    [
        (0.5, 1.0, "b is too high"),
        (-0.5, 1.0, "b is too low"),
        (0, 0.6, "b is overconfident"),
        (0, 1.6, "b is underconfident"),
    ],
)
def test_directions_have_the_right_sign_and_size(shift, scale, words):
    """Only b is off: by ``shift`` of its spread, with ``scale`` times its spread."""
    keys = jax.random.split(jax.random.key(2), 3)
    n = 2000
    xs = jax.random.normal(keys[0], (n, 2))
    ys = xs + jax.random.normal(keys[1], (n, 2))
    error = jnp.asarray([0.0, shift])
    scores = -(ys - xs - error[None]) / jnp.asarray([[1.0, scale]]) ** 2
    covariances = jnp.broadcast_to(jnp.diag(jnp.asarray([1.0, scale]) ** 2), (n, 2, 2))
    diagnosis = diagnose(keys[2], ys, scores, xs, None, covariances=covariances)
    said = sentences(diagnosis, ("a", "b"), 0.05)
    assert len(said) == 1
    assert said[0].startswith(words)
    actual = shift / np.sqrt(1 + shift**2)
    assert float(diagnosis.bias.estimate[1]) == pytest.approx(actual, abs=0.1)
    assert float(diagnosis.shift.estimate[1]) == pytest.approx(shift / scale, abs=0.1)


@pytest.mark.slow
def test_a_shift_is_not_blamed_on_a_correlated_parameter():
    """Correlation .8, b too high by .2 of its deviation: the bias of a, given b, is negative."""
    keys = jax.random.split(jax.random.key(3), 3)
    n = 2000
    covariance = jnp.asarray([[1.0, 0.8], [0.8, 1.0]])
    xs, noise = jax.random.normal(jax.random.key(2), (2, n, 2))
    ys = xs + noise @ jnp.linalg.cholesky(covariance).T
    scores = (xs + jnp.asarray([[0.0, 0.2]]) - ys) @ jnp.linalg.inv(covariance)
    diagnosis = diagnose(keys[2], ys, scores, xs, None, covariances=covariance[None].repeat(n, 0))
    assert [text[:15] for text in sentences(diagnosis, ("a", "b"), 0.05)] == ["b is too high b"]
    assert float(diagnosis.bias.estimate[0]) < -0.1  # as named: given b
    assert float(diagnosis.bias.p_adjusted[0]) < 0.001
    low, high = np.asarray(diagnosis.shift.low), np.asarray(diagnosis.shift.high)
    assert np.all((low < [0, 0.2]) & (high > [0, 0.2]))


@pytest.mark.slow
def test_findings_of_witnesses_reach_the_verdict(right):
    def with_p(p):
        wrong = right.calibration.diagnosis.shift._replace(p_adjusted=jnp.asarray([p, 1.0]))
        return eqx.tree_at(lambda e: e.calibration.diagnosis.shift, right, wrong)

    # five p-values share the level, and five kinds of error that of the last
    off, fine = with_p(0.00196), with_p(0.0021)
    assert off.conclusion.startswith("not right: one kind of error is clear (see what is off)")
    assert float(off.p_value) == pytest.approx(0.049)
    assert off.findings()
    assert fine.conclusion == right.conclusion
    assert fine.findings() == []
    assert repr(off).count("p (Holm)") == 2
    uncorrected = "nothing that can be named: p-values up to 0.05 here are not significant"
    assert uncorrected in repr(fine)
    assert uncorrected not in repr(off)
    # five kinds of error share the level of what one test names, and its verdict does not hide it
    named, unnamed = with_p(0.0098).calibration, with_p(0.0102).calibration
    assert named.findings()
    assert "not rejected by this test at level 0.05, but one kind of error is clear" in repr(named)
    assert "no evidence" not in repr(named)
    assert unnamed.findings() == []
    assert "no evidence against calibration" in repr(unnamed)
    assert replace(named, test=replace(named.test, level=0.01)).findings() == []


def untold(report):
    """The same with scores that are not linear, as moments of other posteriors come, and without
    ranks, as where scores are all there is."""
    conditional = replace(
        report.conditional, by_ranks=None, test=replace(report.conditional.test, ranks=None)
    )
    calibration = replace(report.calibration, test=replace(report.calibration.test, ranks=None))
    report = replace(report, conditional=conditional, calibration=calibration)
    for part in ("calibration", "conditional"):
        report = eqx.tree_at(
            lambda e, part=part: [getattr(e, part).diagnosis.shift[k] for k in (4, 5)],
            report,
            replace=[jnp.full(2, jnp.nan)] * 2,
        )
    return report


@pytest.mark.slow
def test_no_parameter_is_named_from_scores_that_are_not_linear(right):
    """Whatever is significant: neither in findings, nor in the table, nor in the figure."""

    def off(means):
        return [m._replace(p_adjusted=jnp.zeros_like(m.p_adjusted)) for m in means]

    def witnesses(report):
        of = report.conditional.diagnosis
        return [report.calibration.diagnosis.bias, of.shift_trend, of.spread_trend]

    said = eqx.tree_at(witnesses, untold(right), replace_fn=lambda m: off([m])[0])
    of_scores, along_x = said.findings()
    assert of_scores.startswith("moments of the scores are wrong (p = 0); scores identify")
    assert re.fullmatch(r"errors change with x\[\d\]", along_x)
    assert "too high by" not in repr(said)
    assert "given the others: mean, p (Holm)" in repr(said)
    assert any("exact for Gaussian" in text for text in said.warnings())
    figure = said.figure()
    assert any("of Gaussian posteriors only" in text.get_text() for text in figure.axes[2].texts)
    assert "errors change along it" in figure.axes[3].get_xlabel()


def test_one_parameter_far_in_a_tail_is_said_to_decide(pairs):
    thetas, xs = pairs
    report = sbi.check_posterior(KEY, log_prob, thetas.at[0, 0].add(12.0), xs, prior=PRIOR)
    assert "a parameter lies where its posterior has almost no density" in repr(report)
    assert report.conclusion.startswith("not calibrated")


@pytest.mark.slow
def test_ranks_name_parameters_of_any_shape(pairs):
    """Log gamma posteriors, of which "b" is too high by .6 deviations: from densities alone."""
    xs, _ = pairs
    thetas = xs + jnp.log(jax.random.gamma(jax.random.key(8), 2.0, (N, D)))

    def log_prob(theta, x):
        z = theta - x - jnp.asarray([0.0, 0.5])
        return jnp.sum(2 * z - jnp.exp(z))

    report = sbi.check_posterior(KEY, log_prob, thetas, xs, names=["a", "b"], chains=None)
    assert not tells(report.calibration.diagnosis.shift)
    assert any(text.startswith("b is too high by 0.") for text in report.findings())
    assert not any(text.startswith("a is") for text in report.findings())
    assert "b is too high by" in repr(report)
    assert not any("exact for Gaussian" in text for text in report.warnings())


def test_a_report_says_where_to_look_without_findings(right):
    rejected = eqx.tree_at(lambda e: e.calibration.test.p_value, right, jnp.asarray(1e-3))
    assert "no parameter by itself: see the strongest" in repr(rejected)
    assert "no parameter: see the strongest" in repr(untold(rejected))
    assert "nothing that can be named" in repr(right)


def test_a_test_without_a_verdict_rejects_nothing(right):
    """A p-value beside a reason counts as 1; another test still rejects by itself."""
    lost = eqx.tree_at(lambda e: e.calibration.test.p_value, right, jnp.asarray(1e-3))
    place = "nonfinite-targets"
    lost = eqx.tree_at(lambda e: e.calibration.test.notes[place], lost, jnp.asarray(1))
    assert lost.conclusion == f"cannot tell: {lost.calibration.test.reason}"
    assert float(lost.p_values()["moments"]) == 1
    assert lost.findings() == []
    both = eqx.tree_at(lambda e: e.conditional.test.p_value, lost, jnp.asarray(1e-3))
    assert both.verdict == "rejected"
    assert both.conclusion.startswith("no evidence of miscalibration, but not the posterior")
    # with five p-values, 1/501 is above each test's share of a level below 5/501
    strict = replace(right.calibration, test=replace(right.calibration.test, level=0.009))
    assert "of 5 tests together" in replace(right, calibration=strict).reason


def test_coverage_reaches_the_verdict(right):
    from jaxcal.coverage import Coverage

    def with_coverage(p):
        shown = Coverage(jnp.ones(1), jnp.ones(1), jnp.ones(10, int), p, p, jnp.asarray(0), 9)
        return replace(right, coverage=shown).conclusion

    assert with_coverage(jnp.asarray(0.008)).startswith("not calibrated: highest-density regions")
    assert "(coverage, p = 0.008), although" in with_coverage(jnp.asarray(0.008))
    assert with_coverage(jnp.asarray(0.009)) == right.conclusion  # six p-values share the level
    assert with_coverage(jnp.asarray(jnp.nan)).startswith(
        "cannot tell: the p-value of the coverage"
    )


@pytest.mark.slow
def test_what_is_asked_follows_from_what_the_posterior_offers(right, pairs):
    """Log densities alone: moments, and chains; scores: neither; draws: these instead of chains."""
    thetas, xs = pairs
    assert list(right.p_values()) == ["moments", "candidates", "ranks", "given x", "witnesses"]
    assert right.ranks.source == "chains"
    wanted = jaxcal.calibration_test(
        jax.random.split(jax.random.fold_in(KEY, 1))[0],
        jaxcal.Unnormalized(lambda x, theta: log_prob(theta, x), xs),
        thetas,
    )
    assert right.p_values()["moments"] == float(wanted.p_value)
    nodes = right_nodes(pairs)
    scores = Scores(xs - 2 * thetas, xs[:, None] - 2 * nodes[None], nodes)
    bare = sbi.check_posterior(KEY, scores, thetas, xs)
    assert list(bare.p_values()) == ["scores", "given x", "witnesses"]
    draws = xs[:, None] / 2 + jax.random.normal(KEY, (N, 30, D)) / np.sqrt(2)
    by_draws = sbi.check_posterior(KEY, scores, thetas, xs, draws=draws)
    assert list(by_draws.p_values()) == ["scores", "ranks", "given x", "witnesses"]
    assert by_draws.ranks.statistics == ("distance", "theta_1", "theta_2")
    assert by_draws.p_value > 0.05
    of_scores, of_draws = by_draws.conditional.p_value, by_draws.ranks.moments.p_value
    assert by_draws.p_values()["given x"] == min(1, 2 * min(of_scores, of_draws))
    silent = eqx.tree_at(lambda report: report.ranks.moments.p_value, by_draws, jnp.asarray(np.nan))
    assert silent.p_values()["given x"] == min(1, 2 * of_scores)
    off = sbi.check_posterior(KEY, scores, thetas, xs, draws=draws + 0.5)
    assert off.p_values()["ranks"] < 1e-6
    assert off.findings()[0].startswith("theta_1 is too high by")
    assert not by_draws.findings()
    noise = jax.random.normal(KEY, (N, 30, 1)) * np.sqrt(0.8) + jax.random.normal(
        jax.random.key(3), (N, 30, D)
    ) * np.sqrt(0.2)
    tied = sbi.check_posterior(KEY, scores, thetas, xs, draws=xs[:, None] / 2 + noise / np.sqrt(2))
    assert "correlation" in " ".join(tied.findings())
    with pytest.raises(ValueError, match=r"draws: wanted m >= 2 draws of each of the n=300"):
        sbi.check_posterior(KEY, scores, thetas, xs, draws=draws[:9])


def right_nodes(pairs):
    return sbi.score_pairs(jax.random.fold_in(KEY, 0), log_prob, *pairs, prior=PRIOR).scores.nodes


@pytest.mark.slow
def test_ranks_among_draws_are_those_of_the_normal_score(pairs):
    """Of 2,000 Gaussian posteriors too high by .3 sd and narrower by .7, from 199 draws each."""
    n, m = 2000, 199
    noise, draw_key = jax.random.split(jax.random.key(0))
    thetas = jax.random.normal(noise, (n, 2), float)
    draws = 0.7 * jax.random.normal(draw_key, (n, m, 2), float) + 0.3
    draws = draws.at[:, :, 1].set((draws[:, :, 1] - 0.3) / 0.7)
    ranks = rank_draws(KEY, draws, thetas, None, ("a", "b"), level=0.05)
    below = jnp.mean(
        draws[:, :-1] < thetas[:, None], axis=1, dtype=float
    )  # but for the randomized tie
    assert float(jnp.max(jnp.abs(ranks.ranks[:, 1:] - below))) < 1.01 / m
    shift, spread = ranks.diagnosis.shift, ranks.diagnosis.marginal_spread
    np.testing.assert_allclose(shift.estimate, [0.3 / 0.7, 0], atol=0.08)
    np.testing.assert_allclose(jnp.exp(spread.estimate), [0.7, 1], atol=0.05)
    assert float(ranks.p_values[2]) > 0.01
    assert float(ranks.p_values[1]) < 1e-6


def test_a_few_pairs_that_decide_are_named(pairs):
    """Posteriors a tenth as wide as they should be, for some x a hundredth."""

    def narrow(theta, x):
        width = jnp.where(x[1] > 2.5, 0.01, 0.1)
        return log_prob(theta, x) / width**2

    scored = sbi.score_pairs(KEY, narrow, *pairs, prior=PRIOR)
    (note,) = [note for note in scored.warnings() if "2 % of the pairs hold" in note]
    assert "theta_" not in note  # scores are large of all that depend on the one that is off


@pytest.mark.slow
def test_witnesses_keep_their_level_by_cross_fitting():
    keys = jax.random.split(jax.random.key(4), 200)

    def smallest(key):
        x_key, y_key, fold_key = jax.random.split(key, 3)
        xs = jax.random.normal(x_key, (100, 2))
        ys = xs + jax.random.normal(y_key, (100, 2))
        ones = jnp.broadcast_to(jnp.eye(2), (100, 2, 2))
        diagnosis = diagnose(fold_key, ys, xs - ys, xs, xs, covariances=ones)
        trends = jnp.minimum(
            jnp.min(diagnosis.shift_trend.p_adjusted), jnp.min(diagnosis.spread_trend.p_adjusted)
        )
        plain = jnp.minimum(
            jnp.min(diagnosis.shift.p_adjusted), jnp.min(diagnosis.spread.p_adjusted)
        )
        return jnp.stack([plain, trends])

    p = np.asarray(jax.jit(lambda keys: jax.lax.map(smallest, keys))(keys))
    _, high = scipy.stats.binom.interval(0.9999, 200, 0.05)
    assert np.all(np.sum(p <= 0.05, axis=0) <= high)  # Holm may be conservative
    assert np.all(p > 0)


@pytest.mark.slow
def test_a_regression_is_cross_fitted(pairs):
    thetas, xs = pairs
    fit = jax.jit(cross_fitted_means)
    centers = fit(KEY, xs, thetas)
    assert float(jnp.mean((centers - xs / 2) ** 2)) < 0.05  # of a posterior variance of 1/2
    moved = fit(KEY, xs, thetas.at[7].add(100.0))
    np.testing.assert_allclose(moved[7], centers[7], rtol=1e-9)
    assert not np.allclose(moved[8:20], centers[8:20])


def uniform_posterior(theta, x):
    return -5 * jnp.sum((theta - x) ** 2)  # x ~ N(theta, 0.1), theta ~ U(-1, 1)


@pytest.fixture(scope="module")
def in_a_box():
    return gaussian_linear_uniform(2).pairs(jax.random.key(8), 400)


@pytest.mark.slow
def test_a_bounded_prior_is_transformed_and_said(in_a_box):
    prior = dist.Uniform(-jnp.ones(2), 1.0).to_event(1)
    pairs = sbi.score_pairs(KEY, uniform_posterior, *in_a_box, prior=prior)
    assert float(jaxcal.kccsd_test(KEY, pairs.scores, pairs.thetas).p_value) > 0.05
    assert "2 parameters with bounds" in " ".join(pairs.warnings())
    nodes = prior.sample(KEY, (10,))
    by_hand = sbi.score_pairs(KEY, uniform_posterior, *in_a_box, prior=nodes, bounds=(-1, 1))
    assert float(jaxcal.kccsd_test(KEY, by_hand.scores, by_hand.thetas).p_value) > 0.05


@pytest.mark.parametrize("kind", ["distribution", "function", "sorted rows"])
def test_base_points_are_draws_of_the_prior(pairs, kind):
    prior = dist.Normal(jnp.asarray([3.0, -2.0]), 0.1).to_event(1)
    values = {
        "distribution": prior,
        "function": lambda key, m: prior.sample(key, (m,)),
        "sorted rows": jnp.sort(prior.sample(KEY, (1000,)), axis=0),
    }[kind]
    scores = sbi.score_pairs(KEY, log_prob, *pairs, prior=values, n_nodes=100).scores
    nodes = np.asarray(scores.nodes)
    assert np.all(np.abs(nodes.mean(axis=0) - [3, -2]) < 0.05)  # five standard errors
    assert np.all(np.abs(nodes.std(axis=0) - 0.1) < 0.04)
    wanted = np.asarray(pairs[1])[:, None] - 2 * nodes
    np.testing.assert_allclose(scores.at_nodes, wanted, rtol=1e-9)


@pytest.mark.slow
def test_pairs_given_up_take_their_observations_along(pairs):
    """Without a prior: some pairs become base points, the others keep their place and their x."""
    thetas, xs = pairs
    scored_pairs = sbi.score_pairs(KEY, log_prob, thetas, xs, n_nodes=20)
    given_up = np.flatnonzero(np.isin(thetas[:, 0], scored_pairs.scores.nodes[:, 0]))
    assert len(given_up) == 20
    assert given_up.max() > 20  # not the first
    thetas, xs = (np.delete(part, given_up, axis=0) for part in (thetas, xs))
    np.testing.assert_array_equal(scored_pairs.thetas, thetas)
    np.testing.assert_array_equal(scored_pairs.features, xs)
    np.testing.assert_allclose(scored_pairs.scores.at_targets, xs - 2 * thetas, rtol=1e-9)


@pytest.mark.slow
def test_pairs_with_bounds_are_those_of_the_freed_density(in_a_box):
    """At the parameters and at the base points: theta = tanh(u / 2)."""
    thetas, xs = (part[:20] for part in in_a_box)
    nodes = jnp.asarray([[0.3, -0.9], [0.0, 0.6]])
    scored_pairs = sbi.score_pairs(KEY, uniform_posterior, thetas, xs, prior=nodes, bounds=(-1, 1))

    def freed(u, x):
        return uniform_posterior(jnp.tanh(u / 2), x) + jnp.sum(jnp.log1p(-(jnp.tanh(u / 2) ** 2)))

    us, free_nodes = (jnp.log((1 + t) / (1 - t)) for t in (thetas, nodes))
    wanted = chunked_scores(freed, us, xs, free_nodes)
    np.testing.assert_allclose(scored_pairs.thetas, us, rtol=1e-9)
    np.testing.assert_allclose(scored_pairs.scores.nodes, free_nodes, rtol=1e-9)
    np.testing.assert_allclose(
        scored_pairs.scores.at_targets, wanted.at_targets, rtol=1e-8, atol=1e-8
    )
    np.testing.assert_allclose(scored_pairs.scores.at_nodes, wanted.at_nodes, rtol=1e-8, atol=1e-8)


@pytest.mark.slow
def test_an_unnoticed_bound_rejects_the_truth_and_is_suspected(in_a_box):
    pairs = sbi.score_pairs(KEY, uniform_posterior, *in_a_box)
    result = jaxcal.kccsd_test(KEY, pairs.scores, pairs.thetas)
    assert float(result.p_value) < 0.01  # the identity fails at the edge
    said = " ".join(pairs.warnings())
    assert "theta_1 fills an interval evenly" in said
    assert "bounds=(low, high)" in said
    assert result.contributions.shape == (390,)  # ten pairs became base points


def test_amounts_are_positive_whichever_way_something_is_off(right):
    """Shift and correlation of -.2, spread by 1/e: too low by, too narrow."""
    one = np.ones(2)
    below = Means(-0.2 * one, one, 0 * one, 0 * one, -0.5 * one, -0.1 * one)
    narrow = below._replace(estimate=-one, low=-1.5 * one, high=-0.5 * one)
    of = replace(right.diagnosis(), shift=below, marginal_spread=narrow, correlation=below)
    said = sentences(of, ("a", "b"), 0.05)
    assert said[0] == "a is too low by 0.20 sd (0.10 to 0.50)"
    assert said[-1] == "the correlation of a and b is claimed too low by 0.20 (0.10 to 0.50)"
    assert not any(re.search(r"(by|sd|to) \(?-", text) for text in said)
    # limits of another level than that of the sentence may hold 0
    cell = (jnp.full((1, 1), value) for value in (-0.2, -0.5, 0.1, 0.01, 0.01))
    (text,) = Table(("shift of a",), ("everywhere",), *cell).sentences()
    assert "too low by 0.2 sd (limits -0.1 to 0.5)" in text


@pytest.mark.slow
def test_trends_along_tied_features_ignore_the_order_of_rows():
    """Right where x[1] is 0, shifted by 1 where it is 1; x[0] is constant, rows are sorted."""
    ys = jnp.sort(jax.random.normal(jax.random.key(0), (N, 1)), axis=0)
    one = jnp.asarray(np.random.default_rng(1).integers(0, 2, (N, 1)), float)
    xs = jnp.concatenate([jnp.ones((N, 1)), one], axis=1)
    predictors, unit = jnp.zeros((N, 1)), jnp.ones((N, 1, 1))

    def diagnosis(shift):
        return diagnose(KEY, ys, shift - ys, predictors, xs, covariances=unit)

    same, off = diagnosis(0.0), diagnosis(one)
    assert float(same.shift_trend.p_value[0, 0]) == 1
    assert float(jnp.min(same.shift_trend.p_value)) > 0.01  # was 1e-50 along both
    assert np.isnan(off.thirds[0, 1])
    low, high = (jnp.mean((one - ys)[one == group]) for group in (0, 1))
    np.testing.assert_allclose(off.thirds[0, ::2], [low, high])
    (text,) = [said for said in sentences(off, ("a",), 0.05) if "errors change" in said]
    assert f"in its lowest and highest third claimed minus actual mean {low:+.2f}, " in text


def test_neither_tails_nor_correlations_are_named_beside_a_shift(right):
    """Of ranks: a shift of "a" changes its tails and, if large, its correlations; not "b"."""
    p, one = np.array([0.001, 0.9]), np.ones(2)
    shift = Means(0.8 * one, one, p, p, 0.5 * one, 1.1 * one)
    spread = Means(0 * one, one, one, one, -0.1 * one, 0.1 * one)
    tails = Means(0.2 * one, one, 0 * one, 0 * one, 0.1 * one, 0.3 * one)
    pair = Means(*(part[:1] for part in tails))
    of = replace(right.diagnosis(), marginal_spread=spread, correlation=pair, tails=tails)
    beside = sentences(replace(of, shift=shift), ("a", "b"), 0.05, by_ranks=True)
    assert [text[:15] for text in beside] == ["a is too high b", "the tails of b "]
    less = replace(of, shift=shift._replace(estimate=0.3 * one))
    beside = sentences(less, ("a", "b"), 0.05, by_ranks=True)
    assert [text[:15] for text in beside[1:]] == ["the correlation", "the tails of b "]
    none = shift._replace(p_adjusted=one)
    alone = sentences(replace(of, shift=none), ("a", "b"), 0.05, by_ranks=True)
    assert [text[:15] for text in alone] == [
        "the correlation",
        "the tails of a ",
        "the tails of b ",
    ]
    assert "claimed too heavy: its mean |error| / sd is 1.22 (1.11 to 1.35) times" in alone[1]


@pytest.mark.slow
def test_spreads_of_sampled_posteriors_are_those_of_many_draws():
    """Among 96 draws half the claimed width looks like .6 of it; the table says the same."""
    random = np.random.default_rng(0)
    x = random.normal(size=(1000, 1))
    thetas = x + 2 * random.normal(size=(1000, 1))
    report = sbi.check_posterior(0, lambda x: dist.Normal(x, 1.0).to_event(1), thetas, x)
    spread, table = report.conditional.by_ranks.marginal_spread, report.conditional.test.table
    assert float(spread.low[0]) < np.log(0.5) < float(spread.high[0])
    np.testing.assert_allclose(spread.estimate[0], table.effect[1, 0], atol=0.05)


def test_what_two_questions_count_differently_is_said_once(right):
    def counted(report):
        tests = (report.calibration.test, report.conditional.test)
        return [test.notes["improbable-targets"] for test in tests]

    report = eqx.tree_at(counted, right, [jnp.asarray(1), jnp.asarray(2)])
    (text,) = report.warnings()
    assert text.startswith("1 target lies so far in the tail of its own prediction")
    assert repr(report).count("improbable-targets]") == 1


def nan_outside(theta, x):
    return log_prob(theta, x) + jnp.sqrt(1.5 - theta[0])


def test_what_is_wrong_with_the_pairs_is_said(pairs):
    thetas, xs = pairs

    def said(posterior=log_prob, thetas=thetas, xs=xs):
        scored = sbi.score_pairs(KEY, posterior, thetas, xs, prior=PRIOR)
        return " ".join(scored.warnings())

    again = thetas.at[:20].set(thetas[20:40])
    assert "20 of 300 rows of thetas repeat another" in said(thetas=again)
    # whole pairs are for the tests to name; a chance repeat is nothing
    assert said(thetas=again, xs=xs.at[:20].set(xs[20:40])) == ""
    assert said(thetas=thetas.at[1].set(thetas[0])) == ""
    assert said() == ""


@pytest.mark.parametrize(
    "density", [nan_outside, said_to_be_nan, impossible_outside], ids=["root", "nan", "zero"]
)
def test_a_density_that_ends_inside_the_prior_gives_no_verdict(pairs, density):
    outside = int(jnp.sum(pairs[0][:, 0] >= 1.5))
    scored = sbi.score_pairs(KEY, density, *pairs, prior=PRIOR)
    at = np.asarray(scored.scores.at_targets)
    np.testing.assert_array_equal(np.isnan(at[:, 0]), np.asarray(pairs[0][:, 0] >= 1.5))
    assert scored.notes["nonfinite-scores"] == outside
    said = " ".join(scored.warnings())
    assert f"{outside} posteriors have a NaN or infinite score, or a density of 0 or NaN" in said
    assert "wherever the prior is?" in said
    nodes = jnp.asarray([[0.0, 0.0], [2.0, 0.0]])
    at_nodes = sbi.score_pairs(KEY, density, *pairs, prior=nodes).warnings()
    assert any("300 posteriors have NaN or infinite scores, or a density" in t for t in at_nodes)


@pytest.mark.slow
def test_nan_inside_the_prior_gives_no_verdict_density_0_rejects(pairs):
    lost = sbi.check_posterior(KEY, said_to_be_nan, *pairs, prior=PRIOR)
    assert np.isnan(lost.calibration.p_value)
    assert lost.conclusion.startswith("cannot tell: score values at the targets are NaN")
    impossible = sbi.check_posterior(KEY, impossible_outside, *pairs, prior=PRIOR)
    assert impossible.conclusion.startswith("not calibrated")
    assert impossible.findings() == []
    for report in (lost, impossible):
        assert any("density of 0 or NaN" in text for text in report.warnings())
        assert "p = nan" in repr(report)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"thetas": np.ones((N, D)), "xs": np.ones((N, D))}, "^thetas, xs: not allowed with"),
        ({"names": ["mass", "age"], "prior": None}, "^names: not allowed with"),
        ({"exclude_invalid_x": True}, "^exclude_invalid_x: not allowed with"),
    ],
)
def test_scored_pairs_are_checked_as_they_are(pairs, options, message):
    scored = sbi.score_pairs(KEY, log_prob, *pairs, prior=PRIOR)
    with pytest.raises(TypeError, match=message):
        sbi.check_posterior(KEY, scored, **options)


def test_a_null_for_series_is_refused(pairs):
    with pytest.raises(ValueError, match=r"diagnosis, ranks and coverage .* as independent"):
        sbi.check_posterior(KEY, log_prob, *pairs, prior=PRIOR, null=jaxcal.nulls.DependentWild())


def test_a_clipped_density_is_suspected(pairs):
    scored = sbi.score_pairs(KEY, clipped_outside, *pairs, prior=PRIOR)
    assert any("scores are exactly 0 in every parameter" in text for text in scored.warnings())


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"xs": 3}, ValueError, "one x for every theta, got 300 thetas and xs of shape"),
        ({"thetas": "nan"}, ValueError, "1 rows hold NaN"),
        ({"thetas": "whole"}, ValueError, "of theta_1, theta_2 are whole numbers; a discrete"),
        ({"thetas": "one whole", "names": ["a", "years"]}, ValueError, "of years are whole"),
        ({"prior": dist.Poisson(jnp.ones(2)).to_event(1)}, ValueError, "discrete"),
        ({"prior": PRIOR.expand([3])}, ValueError, r"draws of shape \[m, 2\]"),
        ({"names": ["a"]}, ValueError, "names: wanted 2, one per parameter, got 1"),
        ({"n_nodes": 0}, ValueError, "n_nodes"),
        ({"posterior": Scores(np.zeros((300, 2)))}, ValueError, "base points too"),
        (
            {"posterior": Scores(np.zeros((9, 2)), np.zeros((9, 5, 2)), np.zeros((5, 2)))},
            ValueError,
            r"Scores.at_targets: .*\(300, 2\)",
        ),
        ({"posterior": np.zeros((300, 2))}, TypeError, "wrap scores"),
        ({"posterior": lambda t, x: -((t - x) ** 2)}, ValueError, "wanted a single number"),
        ({"posterior": dist.Normal(jnp.zeros((300, 2)), 1.0)}, ValueError, r"\.to_event\(1\)"),
        ({"posterior": dist.Normal(jnp.zeros(300), 1.0)}, ValueError, r"event shape \(\)"),
        ({"prior": dist.Uniform(jnp.zeros(2), 1.0).to_event(1)}, ValueError, "on or beyond a"),
        ({"summaries": np.zeros((4, 1))}, ValueError, "summaries: wanted n=300 rows"),
    ],
)
def test_bad_input_is_answered_by_a_sentence(pairs, change, error, message):
    thetas, xs = pairs
    arguments = {"posterior": log_prob, "thetas": thetas, "xs": xs, "key": KEY, "prior": PRIOR}
    if change.get("thetas") == "nan":
        change = {"thetas": thetas.at[0, 0].set(jnp.nan)}
    elif change.get("thetas") == "whole":
        change = {"thetas": jnp.round(thetas * 5)}
    elif change.get("thetas") == "one whole":
        change |= {"thetas": thetas.at[:, 1].set(jnp.round(thetas[:, 1] * 5))}
    elif "xs" in change:
        change = {"xs": xs[:-1]}
    with pytest.raises(error, match=message):
        sbi.score_pairs(**(arguments | change))


@pytest.mark.slow
def test_the_figure_has_four_panels(right, pairs, tmp_path):
    from jaxcal.plots.sbi import directions

    thetas, xs = pairs
    draws = xs[:, None] / 2 + jax.random.normal(KEY, (N, 30, D)) / np.sqrt(2)
    predictions = jaxcal.Unnormalized(lambda x, theta: log_prob(theta, x), xs)
    from jaxcal.coverage import coverage

    shown = coverage(predictions, thetas, draws)
    for examined in (right, replace(right, coverage=shown), replace(right, ranks=None)):
        figure = examined.figure()
        assert [ax.get_title(loc="left") for ax in figure.axes] == list("abcd")
        figure.savefig(tmp_path / "figure.png")
    labels = [text.get_text() for text in directions(right).get_yticklabels()]
    assert labels == ["shift of a", "shift of b", "spread of a", "spread of b", "a with b"]


@pytest.mark.slow
def test_the_figure_shows_the_error_that_is_strongest(pairs):
    from jaxcal.plots.sbi import where

    wrong = Density(0.2, 1.0), Density(0.5, 2.0)  # shrunk, and too narrow
    shown = [where(sbi.check_posterior(KEY, density, *pairs, prior=PRIOR)) for density in wrong]
    effects = [ax.get_ylabel().partition(": ")[2] for ax in shown]
    assert effects == ["too high, claimed sd", "log(claimed / actual sd)"]
    middles = [np.asarray(ax.containers[0][0].get_ydata()) for ax in shown]
    assert middles[0][0] > 0.2 > -0.2 > middles[0][-1]
    assert np.all(middles[1] < 0)


@pytest.mark.slow
def test_ten_thousand_pairs_of_ten_parameters_are_few_programs():
    """The cost is that of one pass of the engine: flops of n^2 (b + m d), and little more."""
    n, d, m, b = 2000, 10, 10, 300
    from jaxcal.fit import testing
    from jaxcal.fit.options import stein_specification
    from jaxcal.nulls import Wild

    scores = Scores(jnp.zeros((n, d)), jnp.zeros((n, m, d)), jnp.zeros((m, d)))
    ys = jnp.zeros((n, d))
    lowered = testing.unjudged.program.lower(
        KEY, scores, ys, stein_specification(ys), Wild(b), 0.05, test="t", tile=512, mesh=None
    )
    flops = lowered.compile().cost_analysis()["flops"]
    assert flops < 40 * n**2 / 10 * (b + m * d)  # scans are counted once a body


def test_moments_of_gaussian_posteriors_come_from_their_scores():
    """In any units, and of any widths: the jackknife's limits know no error of a regression."""
    from jaxcal.sbi.check import _claims

    x_key, noise_key, node_key = jax.random.split(jax.random.key(5), 3)
    xs = jax.random.normal(x_key, (60, 2))
    size, widths = jnp.asarray([[3.0, 0.01]]), jnp.exp(xs[:, :1])
    inverse = jnp.asarray([[2.0, -0.6], [-0.6, 1.0]])
    centers = size * (xs + 2)

    def scores_at(points):
        gaps = (points - centers[:, None]) / (size * widths)[:, None]
        return -(gaps @ inverse) / (size * widths)[:, None]

    thetas = centers + size * jax.random.normal(noise_key, (60, 2))
    nodes = size * (2 + jax.random.normal(node_key, (10, 2)))
    among = jnp.broadcast_to(nodes, (60, 10, 2))
    claims = _claims(thetas, Scores(scores_at(thetas[:, None])[:, 0], scores_at(among), nodes))
    scale = (size * widths)[:, :, None] * (size * widths)[:, None]
    assert bool(claims.exact)
    np.testing.assert_allclose(claims.centers, centers, rtol=1e-6)
    np.testing.assert_allclose(claims.covariances, scale * jnp.linalg.inv(inverse)[None], rtol=1e-6)


V = np.asarray([0.25, 0.64])
two_noises = Density(1 / (1 + V), (1 + V) / (2 * V))  # of theta ~ N(0, I), x ~ N(theta, diag(V))
exchanged_parameters = Density(1 / (1 + V), (1 + V) / (2 * V), (1, 0))
too_narrow = Density(1 / (1 + V), 2 * (1 + V) / V)


def shifted(theta, x):
    return two_noises(theta - jnp.asarray([1.0, 0.0], theta.dtype), x)


def pairs_of_two_noises(key, *shape):
    thetas, noise = jax.random.normal(jax.random.key(key), (2, *shape, 2))
    return thetas, thetas + noise * jnp.broadcast_to(jnp.asarray([0.5, 0.8]), noise.shape)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("density", "named"),
    [(exchanged_parameters, True), (two_noises, False), (too_narrow, False)],
    ids=["exchanged", "right", "too narrow"],
)
def test_swapped_parameters_are_named(density, named):
    thetas, xs = pairs_of_two_noises(21, 100)
    report = sbi.check_posterior(
        KEY, density, thetas, xs, prior=PRIOR, names=["a", "b"], chains=None
    )
    said = [text.split(":")[0] for text in report.findings() if "swapped" in text]
    assert said == (["a and b may be swapped"] if named else [])
    gains = jax.vmap(density)(thetas[:, ::-1], xs) - jax.vmap(density)(thetas, xs)
    total = float(gains.sum()) if jnp.median(gains) > 0 else -np.inf
    assert float(report.exchanged[0, 1]) == pytest.approx(total)


# of theta ~ N(0, diag(9, .25)): with the two exchanged it is likelier, and still wrong
far_too_narrow_in_a = Density(0.0, [1 / 0.18, 0.5])


@pytest.mark.slow
def test_parameters_also_wrong_when_exchanged_are_not_swapped():
    thetas = jax.random.normal(jax.random.key(25), (100, 2)) * jnp.asarray([[3.0, 0.5]])
    xs = jax.random.normal(jax.random.key(26), (100, 2))
    gains = jax.vmap(far_too_narrow_in_a)(thetas[:, ::-1], xs)
    gains = gains - jax.vmap(far_too_narrow_in_a)(thetas, xs)
    assert jnp.median(gains) > 0
    assert float(gains.sum()) > 1000
    report = sbi.check_posterior(
        KEY, far_too_narrow_in_a, thetas, xs, prior=PRIOR, names=["a", "b"], chains=None
    )
    assert float(report.exchanged[0, 1]) == -np.inf
    assert report.conclusion.startswith("not calibrated")
    assert not [text for text in report.findings() if "swapped" in text]


def test_few_pairs_that_are_excluded_do_not_look_swapped():
    """A third of "a" has next to no density; there an exchange would raise it by 40, as b > 0."""
    thetas, noise = jax.random.normal(jax.random.key(24), (2, 100, 2))
    thetas = jnp.stack([thetas[:, 0] + 0.5, jnp.abs(thetas[:, 1])], axis=1)
    xs = thetas + noise * jnp.asarray([[0.5, 0.8]])

    def half(x, theta):
        return two_noises(theta, x) - jnp.where(theta[0] < 0, 40.0, 0.0)

    gains = jax.vmap(half)(xs, thetas[:, ::-1]) - jax.vmap(half)(xs, thetas)
    assert float(gains.sum()) > 100
    space = Space(jnp.full(2, -jnp.inf), jnp.full(2, jnp.inf))
    evidence = exchange_evidence(jaxcal.Unnormalized(half, xs), thetas, space)
    assert float(evidence[0, 1]) == -np.inf


@pytest.mark.slow
def test_findings_from_ranks_need_the_p_values_of_the_table(right):
    """Those of the table do not depend on whether another parameter is wrong."""
    table, diagnosis = right.conditional.test.table, right.conditional.diagnosis
    assert float(table.p_value[0, 0]) > 0.02
    certain = diagnosis.shift._replace(p_value=jnp.zeros(2), p_adjusted=jnp.zeros(2))
    raised = also_by(table, replace(diagnosis, shift=certain), 0.05).shift
    np.testing.assert_allclose(raised.p_value, table.p_value[:2, 0])
    assert float(raised.p_adjusted[0]) >= float(raised.p_value[0])
    assert also_by(table, replace(diagnosis, shift=None), 0.05).shift is None


def one_of_two_modes(theta, x):
    """Of theta ~ N(0, I), x = |theta| + .3 N(0, I): all but one of the four modes are left out."""
    inside = -jnp.sum(theta**2) / 2 - jnp.sum((jnp.abs(theta) - x) ** 2) / 0.18
    return inside - jnp.sum(jnp.where(theta < 0, 40.0, 0.0))


@pytest.mark.slow
def test_a_missing_mode_is_named():
    thetas, noise = jax.random.normal(jax.random.key(23), (2, 100, 2))
    xs = jnp.abs(thetas) + 0.3 * noise
    report = sbi.check_posterior(KEY, one_of_two_modes, thetas, xs, prior=PRIOR, chains=None)
    (said,) = [text for text in report.findings() if "a mode may be missing" in text]
    beyond = int(jnp.sum(jnp.any(thetas < -0.5, axis=1)))
    assert beyond <= int(said.split()[0]) <= int(jnp.sum(jnp.any(thetas < 0, axis=1)))


@pytest.mark.slow
@pytest.mark.parametrize(
    "density", [two_noises, too_narrow, shifted], ids=["right", "too narrow", "shifted"]
)
def test_few_pairs_rarely_look_swapped(density):
    """Of 400 data sets of 10 pairs, at most 5 % reach a ratio of 20."""
    thetas, xs = pairs_of_two_noises(22, 400, 10)
    batch = jax.vmap(jax.vmap(density))
    gains = jnp.sum(batch(thetas[..., ::-1], xs) - batch(thetas, xs), axis=1)
    assert int(jnp.sum(gains >= jnp.log(20.0))) <= 20
