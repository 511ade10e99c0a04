"""Landed points, entries, evidence: identities by other means, names, and what users may bring."""

from dataclasses import replace
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
import scipy.integrate
import scipy.stats
from scipy.special import logsumexp

import jaxcal
from jaxcal import Unnormalized, calibration_test, nulls, plots
from jaxcal.entries import calibration, evidence, moments
from jaxcal.entries import ranks as standing
from jaxcal.entries import table as tables
from jaxcal.entries.evidence import PARTS, PENALTY, learned, varying
from jaxcal.entries.landed import landed, located
from jaxcal.entries.moments import Group
from jaxcal.entries.ranks import Seen
from jaxcal.read import Standardized, Units
from jaxcal.results import Table
from jaxcal.streaming import StreamedTest

N = 200
QUICK = nulls.Wild(199)
COMPARISONS = np.less, np.equal
NO_PAIRS = np.zeros((300, 2, 0))

# one program each, as inside every test of the library
expected_products = eqx.filter_jit(standing.expected_products)
ranked = eqx.filter_jit(standing.ranked)
table = eqx.filter_jit(tables.table)


def normal(params, y):
    center, inverse = params
    return -jnp.sum((inverse @ (y - center)) ** 2) / 2


def skewed(params, y):
    """Correlated log gamma numbers."""
    center, inverse = params
    z = inverse @ (y - center)
    return jnp.sum(2 * z - jnp.exp(z))


@eqx.filter_jit
def forecasts(key, n=N, *, spread=1.0, shift=(0.0, 0.0), shrinkage=0.0, trend=0.0, rho=0.5):
    """Gaussians of correlation .5, whose errors are in claimed deviations."""
    x_key, noise_key = jax.random.split(key)
    x = jax.random.normal(x_key, (n, 2))
    root = jnp.linalg.cholesky(jnp.asarray([[1.0, 0.5], [0.5, 1.0]]))
    actual = jnp.linalg.cholesky(jnp.asarray([[1.0, rho], [rho, 1.0]]))
    noise = jax.random.normal(noise_key, (n, 2)) @ actual.T
    inverse = jnp.broadcast_to(jnp.linalg.inv(root), (n, 2, 2))
    ys = x * (1 + shrinkage) + jnp.asarray([shift]) + spread * jnp.exp(trend * x[:, :1]) * noise
    return Unnormalized(normal, (x, inverse)), ys


@eqx.filter_jit
def near(key, predictions, ys):
    units = Units.of(ys)
    return landed(key, Standardized(predictions, units, ys.shape[1:]), units.points(ys), ys)


@pytest.mark.slow
@pytest.mark.parametrize("off", [0.0, 2.0])
def test_ranks_are_uniform_wherever_the_points_lie(off, key):
    """Two modes, far apart or one: landed on one of them, and the weights make up for it."""
    n = 4000
    x = jax.random.normal(key, (n, 1))
    side = jnp.where(jax.random.uniform(jax.random.key(1), (n, 1)) < 0.3, off, -off)
    ys = x + side + 0.5 * jax.random.normal(jax.random.key(2), (n, 1))

    def modes(x, y):
        up, down = (-(((y[0] - x[0] - s * off) / 0.5) ** 2) / 2 for s in (1, -1))
        return jnp.logaddexp(jnp.log(0.3) + up, jnp.log(0.7) + down)

    points = near(key, Unnormalized(modes, x), ys)
    np.testing.assert_allclose(jnp.sum(points.weights, axis=1), 1, rtol=1e-5)
    ranks = ranked(key, points)
    for u in (ranks.density, ranks.coordinates[:, 0], ranks.resolved[:, 0]):
        assert scipy.stats.kstest(np.asarray(u), "uniform").pvalue > 1e-3


@pytest.mark.slow
def test_a_right_coordinate_has_right_ranks_beside_a_wrong_one(key):
    """Coordinate 0 is claimed to lie above x, so that half of the targets have no weight: their
    ranks in coordinate 1, which is right, are 0 or 1 too often, as if it were too narrow."""
    n = 8000
    x, noise = jax.random.normal(key, (2, n, 2))

    def claimed(x, y):
        return -jnp.sum((y - x) ** 2) / 2 - jnp.where(y[0] < x[0], 40.0, 0.0)

    ranks = ranked(key, near(key, Unnormalized(claimed, x), x + noise))
    error = (2 / n) ** 0.5
    assert float(jnp.var(ranks.normal[:, 1])) > 1 + 5 * error
    assert float(jnp.var(standing.normal(ranks.resolved)[:, 1])) < 1 + 3 * error
    assert scipy.stats.kstest(np.asarray(ranks.resolved[:, 1]), "uniform").pvalue > 1e-3


@pytest.mark.slow
def test_no_prediction_is_landed_on_with_a_look_at_its_target(key):
    """Targets in another order have the same units, and all but the targets stays as it is."""
    predictions, ys = forecasts(key, 50)
    points, others = near(key, predictions, ys), near(key, predictions, ys[::-1])
    np.testing.assert_allclose(points.points[:, 1:], others.points[:, 1:], rtol=1e-6)
    for claim, other in zip(points.claims, others.claims, strict=True):
        np.testing.assert_allclose(claim, other, rtol=1e-6)


def test_blocks_of_observations_give_the_shapes_and_law_of_one(key, monkeypatch):
    """Of 103 observations the last block of 10 overlaps; shared parameters are not cut."""
    monkeypatch.setattr(standing, "BLOCK", 10)
    predictions, ys = forecasts(key, 103)

    def shared(params, y):
        scale, (center, inverse) = params
        return scale * normal((center, inverse), y)

    both = Unnormalized(shared, (jnp.ones(()), predictions.params), in_axes=(None, 0))
    units = Units.of(ys)
    seen = standing.seen(key, Standardized(both, units, (2,)), units.points(ys), ys)
    np.testing.assert_allclose(seen.centers, units.points(predictions.params[0]), atol=1e-3)
    assert scipy.stats.kstest(np.asarray(seen.ranks.coordinates[:, 0]), "uniform").pvalue > 1e-3
    result = calibration_test(0, both, ys, null=QUICK)
    assert np.isfinite(result.p_value)
    assert result.ranks.shape == (103, 3)


def gap(center, y):
    return -((y - center) ** 2) / 2


@pytest.mark.slow
def test_one_coordinate_has_no_pairs_in_blocks_either(key, monkeypatch):
    monkeypatch.setattr(standing, "BLOCK", 10)
    centers, noise = jax.random.normal(key, (2, 23))
    units = Units.of((centers + noise)[:, None])
    one = Standardized(Unnormalized(gap, centers), units, ())
    data = one, units.points((centers + noise)[:, None]), centers + noise
    assert jax.eval_shape(standing.seen, key, *data).ranks.products.shape == (23, 0)
    keys = jax.random.split(key, 23)
    blocks = jax.jit(lambda *data: standing.seen(*data))(keys, *data)
    monkeypatch.setattr(standing, "BLOCK", 100)
    whole = jax.jit(lambda *data: standing.seen(*data))(keys, *data)
    np.testing.assert_allclose(blocks.ranks.coordinates, whole.ranks.coordinates, rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("density", [normal, skewed])
def test_moments_have_mean_zero_and_variance_one(density, key):
    n = 20_000
    predictions, ys = forecasts(key, n)
    if density is skewed:
        center, inverse = predictions.params
        z = jnp.log(jax.random.gamma(jax.random.key(3), 2.0, (n, 2)))
        ys = center + jnp.einsum("nij,nj->ni", jnp.linalg.inv(inverse), z)
        predictions = Unnormalized(skewed, predictions.params)
    points = near(key, predictions, ys)

    @eqx.filter_jit
    def groups(points):
        seen = Seen.of(key, points)
        frame = moments.Frame.of(seen, None)
        return moments.groups(frame, seen, None, jnp.zeros((), bool), None)

    for group in groups(points):
        for block in group.blocks:
            mean, error = np.mean(block, axis=0), np.std(block, axis=0) / n**0.5
            assert np.all(np.abs(mean) <= 4.5 * error), group.name
    ranks = ranked(key, points)
    assert scipy.stats.kstest(np.asarray(ranks.normal[:, 0]), "norm").pvalue > 1e-3
    assert float(jnp.var(moments.cosines(ranks.coordinates, 3))) == pytest.approx(1, abs=0.05)


@eqx.filter_jit
def log_evidence(groups, sums=None):
    """Of 60 observations, at the sums of entries that were observed or at others."""
    entries = evidence.Entries.of(groups, jnp.ones(60, bool))
    sums = entries.sums(jnp.zeros((60, 0))) if sums is None else sums
    return evidence.log_evidence(sums, entries.correlations, groups)


def test_evidence_is_that_of_the_gaussian_integral(key):
    """log N(z; 0, R + tau^2 I) - log N(z; 0, R), for a block and for single entries."""
    values = jax.random.normal(key, (60, 5)).at[:, 1].multiply(3.0)
    values = values.at[:, 2].add(values[:, 1])
    groups = [Group("a", 0.7, [values[:, :3], values[:, 3:4]]), Group("b", 0.3, [values[:, 4:]])]
    got = log_evidence(groups)[:, 0]
    v = np.asarray(values, float)
    sizes = np.sqrt(np.sum(v**2, axis=0))
    z, r = np.sum(v, axis=0) / sizes, v.T @ v / np.outer(sizes, sizes)

    def log_density(z, covariance):
        return scipy.stats.multivariate_normal(np.zeros(len(z)), covariance).logpdf(z)

    def ratio(at):
        shrunk = 0.98 * r[np.ix_(at, at)] + 0.02 * np.eye(len(at))
        return log_density(z[at], shrunk + 8 * np.eye(len(at))) - log_density(z[at], shrunk)

    alone = [ratio([k]) for k in range(5)]
    block = np.logaddexp(ratio([0, 1, 2]), logsumexp(alone[:3]) - np.log(3)) - np.log(2)
    first = np.logaddexp(block, alone[3]) - np.log(2) + np.log(0.7)
    np.testing.assert_allclose(got, [first, alone[4] + np.log(0.3)], rtol=1e-4)
    groups = [groups[0]._replace(alone=values[:, 4:]), Group("b", 0.3, [values[:, 2:3]])]
    got = log_evidence(groups)[:, 0]
    first = np.logaddexp(first, alone[4] + np.log(0.7)) - np.log(2)
    np.testing.assert_allclose(got, [first, alone[2] + np.log(0.3)], rtol=1e-4)


@pytest.mark.slow
def test_an_ignored_statistic_is_found_among_many_inputs():
    """The right posterior of two equal statistics passes; that of one is calibrated, and wrong."""
    n, q, b = 120, 20, 40
    theta_key, x_key = jax.random.split(jax.random.key(0))
    thetas = jax.random.normal(theta_key, (b, n, 1))
    xs = jax.random.normal(x_key, (b, n, q)).at[:, :, :2].add(thetas)

    @jax.jit
    def p_values(centers, variance):
        def one(data):
            center, theta, x = data
            predictions = Unnormalized(normal, (center, jnp.full((n, 1, 1), variance**-0.5)))
            return calibration_test(1, predictions, theta, inputs=x, null=QUICK).p_value

        return jax.lax.map(one, (centers, thetas, xs))

    right = p_values(xs[:, :, :2].sum(axis=2, keepdims=True) / 3, 1 / 3)
    ignores = p_values(xs[:, :, :1] / 2, 1 / 2)
    assert int(jnp.sum(right <= 0.05)) <= scipy.stats.binom.ppf(0.9999, b, 0.05)
    assert int(jnp.sum(ignores <= 0.05)) >= 0.5 * b


@pytest.mark.slow
@pytest.mark.parametrize(("n", "least"), [(30, 0.6), (100, 0.9)])
def test_ranks_of_a_statistic_are_uniform_and_say_what_it_asks(n, least):
    """The prior is calibrated; the rank of the log likelihood of x says that it ignores x."""
    b = 200
    thetas, noise = jax.random.normal(jax.random.key(3), (2, b, n, 1))
    xs = thetas + noise

    def log_likelihood(theta, x):
        return -jnp.sum((theta - x) ** 2) / 2

    @jax.jit
    def tested(centers, variance):
        def one(data):
            center, theta, x = data
            predictions = Unnormalized(normal, (center, jnp.full((n, 1, 1), variance**-0.5)))
            result = calibration_test(
                1, predictions, theta, inputs=x, statistics=log_likelihood, null=QUICK
            )
            return result.p_value, result.parts.p_values, result.ranks

        return jax.lax.map(one, (centers, thetas, xs))

    p, parts, ranks = tested(xs / 2, 1 / 2)
    assert ranks.shape == (b, n, 3)  # log density, coordinate, statistic
    assert scipy.stats.kstest(np.asarray(ranks[:, :, 2]).ravel(), "uniform").pvalue > 1e-3
    for each in (p, parts[:, -2]):
        assert scipy.stats.binom.ppf(1e-4, b, 0.05) <= int(jnp.sum(each <= 0.05))
        assert int(jnp.sum(each <= 0.05)) <= scipy.stats.binom.ppf(0.9999, b, 0.05)
    _, parts, ranks = tested(jnp.zeros_like(xs), 1.0)
    assert float(jnp.mean(parts[:, -2] <= 0.05)) > least
    assert scipy.stats.kstest(np.asarray(ranks[:, :, 1]).ravel(), "uniform").pvalue > 1e-3


@pytest.mark.slow
def test_statistics_are_in_target_units_and_nan_sorts_first(as_users_run_it):
    n = 60
    ys = 1000 + 5 * jax.random.normal(jax.random.key(0), (n, 2))
    centers = jnp.full((n, 2), 1000.0)
    predictions = Unnormalized(normal, (centers, jnp.tile(0.2 * jnp.eye(2), (n, 1, 1))))

    def both(y):
        return jnp.stack([y[0], jnp.sqrt(y[1] - 1000)])

    result = calibration_test(1, predictions, ys, statistics=both, null=QUICK)
    assert result.parts.names[-2] == "statistics"
    assert result.ranks.shape == (n, 5)
    # up to ties with the target itself, which each rank breaks by itself
    np.testing.assert_allclose(result.ranks[:, 3], result.ranks[:, 1], atol=0.05)
    above = np.asarray(ys[:, 1]) > 1000
    np.testing.assert_allclose(result.ranks[above, 4], result.ranks[above, 2], atol=0.05)
    assert np.isfinite(np.asarray(result.ranks)).all()
    with pytest.raises(TypeError, match=r"statistics: wanted a function of a target \(and"):
        calibration_test(1, predictions, ys, statistics=3)
    with pytest.raises(TypeError, match=r"statistics: wanted an array of numbers .* got a tuple"):
        calibration_test(1, predictions, ys, statistics=lambda y: (y, y))
    with pytest.raises(TypeError, match=r"statistics: fails for a target .* of shape .2,.: "):
        calibration_test(1, predictions, ys, statistics=lambda y, x: y)


FAULTS = {
    "shift": {"shift": (0.4, 0.0)},
    "spread": {"spread": 1.35},
    "correlation": {"rho": -0.2},
    "shift trend": {"shrinkage": 0.5},
    "spread trend": {"trend": 0.25},
    "": {},
}


@pytest.fixture(scope="module")
def results():
    run = jax.jit(lambda predictions, ys: calibration_test(1, predictions, ys, null=QUICK))
    return {name: run(*forecasts(jax.random.key(5), **fault)) for name, fault in FAULTS.items()}


@pytest.mark.slow
def test_the_strongest_alternative_names_the_fault(results):
    for name, result in results.items():
        assert np.isfinite(result.p_value)
        together: Any = logsumexp(np.asarray(result.parts.statistics))
        assert float(result.statistic) == pytest.approx(float(together), rel=1e-5)
        if name:
            assert result.verdict == "rejected"
            assert result.parts.names[int(result.parts.winner)] == name
        else:
            assert result.verdict == "not rejected"


def test_the_table_says_what_is_off_and_where(results):
    said = {name: result.table.sentences() for name, result in results.items()}
    assert said["shift"][0].startswith("shift of 0: claimed too low by 0.")
    assert all(text.startswith("shift of 0") for text in said["shift"])
    assert {text.partition(":")[0] for text in said["spread"]} == {"spread of 0", "spread of 1"}
    assert "times too narrow" in said["spread"][0]
    assert "for each deviation of its claimed centre" in said["shift trend"][0]
    assert any("spread of 0" in text and "centre" in text for text in said["spread trend"])
    assert said[""] == []
    assert said["correlation"][0].startswith("correlation of 0 and 1: claimed too high by 0.")
    assert len(said["correlation"]) == 1
    report = repr(results["shift"])
    assert said["shift"][0] in report
    frame = results["shift"].table.to_frame()
    assert frame.loc[("shift of 0", "everywhere"), "effect"] == pytest.approx(-0.4, abs=0.15)
    assert frame.shape == (21, 5)


def test_the_table_is_that_of_least_squares(key):
    """The slope of a shift and its error, from NumPy's normal equations and HC0."""
    nu, f = np.asarray(jax.random.normal(key, (2, 300, 1)), float)
    f = (f - f.mean()) / f.std()
    nu = nu + 0.3 * f
    features, kept = jnp.asarray(f)[None], jnp.ones(300, bool)
    got = table(
        jnp.asarray(nu), jnp.asarray(nu), features, kept, 0.05, ("a",), ("all", "f"), NO_PAIRS
    )
    x = np.stack([np.ones(300), f[:, 0]], axis=1)
    slope, *_ = np.linalg.lstsq(x, nu[:, 0], rcond=None)
    left = nu[:, 0] - x @ slope
    error = np.sqrt(np.sum((f[:, 0] * left) ** 2)) / np.sum(f**2)
    assert float(got.effect[0, 1]) == pytest.approx(-slope[1], rel=1e-4)
    reach = scipy.stats.t.ppf(0.975, 298) * error
    plain = np.std(left) / np.std(f) / np.sqrt(300)
    reach = reach * max(1, plain / error) * np.sqrt(300 / 298)
    assert float(got.high[0, 1] - got.low[0, 1]) == pytest.approx(2 * reach, rel=1e-2)
    assert float(got.effect[1, 0]) == pytest.approx(-np.log(np.std(left, ddof=2)), abs=1e-3)


@pytest.mark.slow
@pytest.mark.parametrize("alike", [0.0, 3.0], ids=["uncorrelated", "correlated"])
def test_average_spreads_allow_for_regressed_trends(alike, key):
    """12 trends of 40 observations. Divided by n - 1, mean effects were .17 and .05."""

    def of_set(key):
        keys = jax.random.split(key, 3)
        scores = jax.random.normal(keys[0], (40, 1))
        along = jax.random.normal(keys[1], (12, 40, 1))
        along += alike * jax.random.normal(keys[2], (1, 40, 1))
        along = (along - along.mean(1, keepdims=True)) / along.std(1, keepdims=True)
        rest = jnp.ones(40, bool), 0.05, ("y",), ("",) * 13, jnp.zeros((40, 2, 0))
        of = tables.table(scores, scores, along, *rest)
        cells = jnp.stack([of.effect, of.low, of.high])[:, 1, 0]
        return cells, tables.table_sums(scores, along, rest[0])

    of_sets = jax.jit(lambda keys: jax.lax.map(of_set, keys, batch_size=100))
    cells, sums = of_sets(jax.random.split(key, 600))
    effect, low, high = np.asarray(cells).T
    error = np.std(effect) / 600**0.5
    assert abs(np.mean(effect) - 0.015) < 4 * error  # half the bias of a log variance
    assert np.mean((low > 0) | (high < 0)) <= scipy.stats.binom.ppf(0.9999, 600, 0.05) / 600
    two = [np.stack([part[0], part[0]]) for part in map(np.asarray, sums)]
    streamed = tables.summed_table(*two, 0.05, ("y",), ("",) * 13)
    np.testing.assert_allclose(streamed.effect[1, 0], effect[0], rtol=1e-4)


@pytest.mark.slow
def test_p_values_of_the_table_need_resolved_scores_to_agree(key):
    """Every twentieth score is far out, as beside a wrong coordinate: sizes and limits show it."""
    nu = jax.random.normal(key, (300, 1))
    far = nu.at[::20].set(jnp.where(nu[::20] > 0, 5.0, -5.0))
    rest = jnp.zeros((0, 300, 1)), jnp.ones(300, bool), 0.05, ("a",), ("all",), NO_PAIRS
    shown, alone = table(far, nu, *rest), table(far, far, *rest)
    np.testing.assert_allclose(shown.effect, alone.effect)
    np.testing.assert_allclose(shown.high, alone.high)
    assert float(alone.p_value[1, 0]) < 1e-3
    np.testing.assert_allclose(shown.p_value[1], table(nu, nu, *rest).p_value[1])


@pytest.mark.parametrize("edge", [1e-9, 0.15])
def test_expected_products_of_scores_are_those_of_drawn_ranks(edge, key):
    """Two of eight points are equal in the first coordinate."""
    points = np.array(jax.random.normal(key, (8, 2)))
    points[3, 0] = points[5, 0]
    w = np.exp(1.5 * points[:, 1] - points[:, 0])
    w /= w.sum()
    got = expected_products(
        jnp.asarray(w)[None], jnp.asarray(points)[None], jnp.full((1, 1, 1), edge)
    )
    rng = np.random.default_rng(0)
    target = rng.choice(8, size=400_000, p=w)
    scores = []
    for z in points.T:
        low, width = ((w[None] * compare(z[None], z[:, None])).sum(1) for compare in COMPARISONS)
        rank = low[target] + rng.random(len(target)) * width[target]
        again = edge * rng.random(len(target))
        rank = np.where(rank < edge, again, np.where(rank > 1 - edge, 1 - again, rank))
        scores.append(scipy.stats.norm.ppf(rank))
    products = scores[0] * scores[1]
    error = products.std() / len(target) ** 0.5
    assert float(got[0, 0, 0, 1]) == pytest.approx(products.mean(), abs=4 * error)


@pytest.mark.slow
def test_correlations_and_tails_whatever_shift_and_spread_are(key):
    """Claimed correlations are .6; tails are those of a Gaussian. Errors by NumPy's corrcoef, and
    of tails by the mean absolute score over its deviation."""
    rng, n = np.random.default_rng(4), 20_000
    noise = rng.normal(size=(n, 2))
    heavy = rng.standard_t(5, size=n)
    expected = jnp.full((n, 2, 1), 0.6)
    for actual in (0.6, 0.0, -0.3):
        nu = np.stack([noise[:, 0], actual * noise[:, 0] + (1 - actual**2) ** 0.5 * noise[:, 1]], 1)
        nu = jnp.asarray(nu * [1.0, 1.7] + [0.0, 0.8])
        of = table(
            nu, nu, jnp.zeros((0, n, 2)), jnp.ones(n, bool), 0.05, ("a", "b"), ("all",), expected
        )
        assert of.rows[4:] == ("correlation of a and b", "tails of a", "tails of b")
        wanted = 0.6 - np.corrcoef(nu.T)[0, 1]
        assert float(of.effect[4, 0]) == pytest.approx(wanted, abs=1e-3)
        assert bool(of.p_value[4, 0] < 1e-6) == (actual != 0.6)
        assert np.all(np.asarray(of.p_value[5:, 0]) > 1e-3)
    nu = jnp.asarray(3 * heavy + 1)[:, None]
    rest = jnp.zeros((0, n, 1)), jnp.ones(n, bool), 0.05, ("a",), ("all",), jnp.zeros((n, 2, 0))
    of = table(nu, nu, *rest)
    size = np.abs(heavy - heavy.mean()).mean() / heavy.std() / (2 / np.pi) ** 0.5
    assert float(of.effect[2, 0]) == pytest.approx(np.log(size), abs=1e-3)
    assert {text.split()[0] for text in of.sentences()} == {"shift", "spread"}  # not beside these
    standard = (nu - nu.mean()) / nu.std()
    cells, effect = jnp.full((7, 2), 1e-6), jnp.asarray([[0.8, 0.0], *[[0.1, 0.0]] * 6])
    adjusted = jnp.asarray([[1e-6, 1]] + [[1.0, 1]] * 3 + [[1e-6, np.nan]] * 3)
    rows = ("shift of a", "shift of b", "spread of a", "spread of b", "correlation of a and b")
    of = Table(
        (*rows, "tails of a", "tails of b"),
        ("everywhere", "centre"),
        effect,
        *[cells] * 3,
        adjusted,
    )
    assert [text[:10] for text in of.sentences()] == ["shift of a", "tails of b"]
    near = replace(of, effect=effect / 2).sentences()  # a shift of .4 changes no correlation
    assert [text[:10] for text in near] == ["shift of a", "correlatio", "tails of b"]
    (said,) = table(standard, standard, *rest).sentences()
    assert said.startswith("tails of a: claimed too light: mean |error| / deviation is 0.")


@pytest.mark.slow
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_spreads_of_distributions_are_those_of_many_draws(factor, key):
    """Among 96 draws twice the claimed width looks like 1.67 times it; trends likewise."""
    keys = jax.random.split(key)
    x = jax.random.normal(keys[0], (2000, 1))
    width = factor * jnp.exp(0.1 * x)
    ys = x + width * jax.random.normal(keys[1], (2000, 1))
    predictions = dist.Independent(dist.Normal(x, 1.0), 1)
    test = StreamedTest.calibration(0, predictions, ys, n_draws=19)
    streamed = test.result(test.update(test.empty(), predictions, ys)).table
    for of in (calibration_test(0, predictions, ys, null=QUICK).table, streamed):
        assert float(of.low[1, 0]) < -np.log(factor) < float(of.high[1, 0])
        assert float(of.low[1, 1]) < -0.1 < float(of.high[1, 1])


@pytest.mark.slow
@pytest.mark.parametrize("m", [20, 200])
def test_draws_tell_what_is_off(m, key):
    """Too narrow by a third, b too high by half a deviation, and .6 correlated where 0 is drawn."""
    keys, n = jax.random.split(key, 3), 1000
    x = jax.random.normal(keys[0], (n, 2))
    root = jnp.linalg.cholesky(jnp.asarray([[1.0, 0.6], [0.6, 1.0]]))
    ys = x + 1.5 * jax.random.normal(keys[1], (n, 2)) @ root.T - jnp.asarray([[0.0, 0.5]])
    draws = x[:, None] + jax.random.normal(keys[2], (n, m, 2))
    result = calibration_test(0, jaxcal.Draws(draws), ys, names=["a", "b"], null=QUICK)
    table = result.table
    cells = np.stack([table.effect, table.low, table.high], axis=2)[:, 0]
    of = dict(zip(table.rows, cells, strict=True))
    assert result.verdict == "rejected"
    assert of["spread of a"][1] < -np.log(1.5) < of["spread of a"][2]
    assert of["spread of b"][1] < -np.log(1.5) < of["spread of b"][2]
    assert of["shift of b"][1] < 0.5 < of["shift of b"][2]
    assert of["correlation of a and b"][1] < -0.6 < of["correlation of a and b"][2]
    assert of["shift of a"][1] < 0 < of["shift of a"][2]


@pytest.mark.slow
def test_a_target_deep_among_draws_is_no_news_to_ellipsoids(key):
    """The rank of the depth is uniform for any law, and small for targets that lie too far out."""
    keys = jax.random.split(key, 2)
    skew = jnp.exp(jax.random.normal(keys[0], (400, 41, 3)))
    for factor, far in ((1.0, False), (2.0, True)):
        targets = skew[:, 0] * factor
        result = calibration_test(0, jaxcal.Draws(skew[:, 1:]), targets, null=QUICK)
        p = scipy.stats.kstest(np.asarray(result.ranks[:, 0]), "uniform").pvalue
        assert (p < 1e-3) == far
        assert (result.verdict == "rejected") == far


@pytest.mark.slow
@pytest.mark.parametrize(("m", "d"), [(4, 1), (10, 2), (30, 5)])
def test_level_among_few_draws(m, d, key):
    """Skewed draws at n = 40: 99.99 % of right tests lie in the band."""

    @jax.jit
    def p_value(key):
        draw_key, test_key = jax.random.split(key)
        draws = jnp.exp(jax.random.normal(draw_key, (40, m + 1, d)))
        return calibration_test(
            test_key, jaxcal.Draws(draws[:, 1:]), draws[:, 0], null=QUICK
        ).p_value

    p = np.asarray([p_value(k) for k in jax.random.split(key, 400)])
    low, high = scipy.stats.binom.interval(0.9999, 400, 0.05)
    assert low <= np.sum(p <= 0.05) <= high


@pytest.mark.slow
def test_draws_that_cannot_be_ranked_are_said(key):
    ys, draws = jnp.zeros(40) + jax.random.normal(key, (40,)), jax.random.normal(key, (40, 30))
    with pytest.raises(ValueError, match="at least 4 draws"):
        calibration_test(0, jaxcal.Draws(draws[:, :3]), ys)
    with pytest.raises(TypeError, match="log densities"):
        StreamedTest.calibration(0, jaxcal.Draws(draws), ys)
    missing = calibration_test(0, jaxcal.Draws(draws.at[3, 4].set(jnp.nan)), ys)
    assert missing.verdict == "cannot tell"
    assert "1 value that describes the predictions is NaN" in str(missing)
    chain = calibration_test(0, jaxcal.Draws(jnp.repeat(draws, 5, axis=1)), ys)
    assert "[correlated-draws]" in str(chain)
    assert np.all(np.isfinite(chain.table.effect[:, 0]))
    short = jaxcal.Draws(jnp.repeat(draws[:, :2], 3, axis=1))
    with pytest.raises(ValueError, match="fewer than 4 of each prediction are independent"):
        calibration_test(0, short, ys)
    checked = jaxcal.check(0, short, ys)
    assert [one.test for one in checked.tests] == ["SKCE test"]
    assert "left out: too few draws are independent" in str(checked).replace("\n            ", "")
    point = calibration_test(0, jaxcal.Draws(jnp.zeros((40, 30))), ys)
    assert point.verdict == "rejected"


@pytest.mark.slow
def test_a_correlation_is_that_claimed_minus_that_of_the_scores():
    """White's form, by NumPy, where each prediction claims a correlation of its own."""
    rng, n = np.random.default_rng(5), 500
    rho = rng.uniform(-0.9, 0.9, n)
    z = rng.normal(size=(n, 2))
    z[:, 1] = rho * z[:, 0] + (1 - rho**2) ** 0.5 * z[:, 1]
    z = (z - z.mean(0)) / z.std(0, ddof=1)
    rest = jnp.zeros((0, n, 2)), jnp.ones(n, bool), 0.05, ("a", "b"), ("all",)
    expected = jnp.broadcast_to(jnp.asarray(rho)[:, None, None], (n, 2, 1))
    of = table(jnp.asarray(z), jnp.asarray(z), *rest, expected)
    each = rho * (z**2).mean(1) - z.prod(1)
    np.testing.assert_allclose(float(of.effect[4, 0]), each.mean(), rtol=1e-6)
    error = each.std(ddof=1) / n**0.5
    reach = scipy.stats.t.ppf(0.975, n - 2) * error
    np.testing.assert_allclose(float(of.high[4, 0] - of.low[4, 0]), 2 * reach, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("density", [normal, skewed])
def test_correlations_and_tails_keep_their_level(density, key):
    """And their effects have mean 0, of Gaussian and log gamma predictions that are correlated."""
    n, sets = 100, 400

    def one(key):
        keys = jax.random.split(key)
        predictions, ys = forecasts(keys[0], n)
        if density is skewed:
            center, inverse = predictions.params
            z = jnp.log(jax.random.gamma(keys[1], 2.0, (n, 2)))
            ys = center + jnp.einsum("nij,nj->ni", jnp.linalg.inv(inverse), z)
            predictions = Unnormalized(skewed, predictions.params)
        ranks = Seen.of(keys[1], near(keys[1], predictions, ys)).ranks
        scores = ranks.normal, standing.normal(ranks.resolved)
        rest = jnp.zeros((0, n, 2)), jnp.ones(n, bool), 0.05, ("a", "b"), ("all",)
        of = table(*scores, *rest, ranks.expected)
        return of.effect[4:, 0], of.p_value[4:, 0]

    effects, p = jax.lax.map(one, jax.random.split(key, sets), batch_size=20)
    mean, error = effects.mean(axis=0), effects.std(axis=0) / sets**0.5
    assert np.all(np.abs(mean) <= 4 * error + 0.01)  # the deviation of few scores is biased
    for level in (0.05, 0.01):
        most = scipy.stats.binom.ppf(0.9999, sets, level)
        assert np.all(np.sum(np.asarray(p) <= level, axis=0) <= most)


@pytest.mark.slow
def test_pictures_show_the_evidence_and_the_table(results):
    for name in ("spread trend", ""):
        result = results[name]
        ax = plots.parts(result)
        assert [label.get_text() for label in ax.get_yticklabels()] == list(result.parts.names)
        black = ax.patches[int(result.parts.winner)].get_facecolor()[:3] == (0, 0, 0)
        assert black == (result.verdict == "rejected")
        ax = plots.table(result)
        assert [label.get_text() for label in ax.get_yticklabels()] == list(result.table.rows)
    every = results["spread trend"].table
    many = jax.tree.map(lambda leaf: jnp.concatenate([0 * leaf + 1] * 9 + [leaf]), every)
    rows = tuple(map(str, range(len(many.effect))))
    result = replace(results["spread trend"], table=replace(many, rows=rows))
    shown = [label.get_text() for label in plots.table(result).get_yticklabels()]
    assert len(shown) == 24
    assert set(shown) >= set(rows[-len(every.rows) :])


@pytest.mark.slow
def test_errors_along_an_input_need_it(key):
    """A shift of .5 sin(3 x) of an input that the predictions do not show."""
    x = jax.random.uniform(key, (400,), minval=-1, maxval=1)
    centers, noise = jax.random.normal(jax.random.key(1), (2, 400, 1))
    ys = centers + 0.6 * x[:, None] + noise
    predictions = Unnormalized(lambda c, y: -jnp.sum((y - c) ** 2) / 2, centers)
    without = calibration_test(0, predictions, ys)
    result: Any = calibration_test(0, predictions, ys, inputs=x, names=["b"])
    assert without.verdict == "not rejected"
    assert result.verdict == "rejected"
    assert result.table.sentences()[0].startswith("shift of b: claimed too low by")
    assert "for each deviation of input 0" in result.table.sentences()[0]


@pytest.mark.slow
def test_a_distribution_is_sampled_and_counts_have_ties(key):
    rate = jnp.exp(0.5 * jax.random.normal(key, (N,))) + 1
    ys = jax.random.poisson(jax.random.key(1), rate).astype(float)
    right = calibration_test(0, dist.Poisson(rate), ys)
    wrong: Any = calibration_test(0, dist.Poisson(1.4 * rate), ys)
    assert right.verdict == "not rejected"
    assert wrong.verdict == "rejected"
    assert wrong.table.sentences()[0].startswith("shift of 0: claimed too high")


def students(df, mean, deviation):
    mixing = dist.Categorical(jnp.full((len(mean), 2), 0.5))
    parts = dist.StudentT(*(jnp.stack([x, x], axis=1) for x in (df, mean, deviation)))
    return dist.MixtureSameFamily(mixing, parts)


HEAVY = {
    "t": (dist.StudentT, [1.5, 5.0]),
    "mixture": (students, [1.5, 5.0]),
    "Cauchy": (lambda df, mean, deviation: dist.Cauchy(mean, deviation), [1.0]),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", HEAVY)
def test_infinite_moments_are_estimated_and_finite_ones_known(name, key):
    family, df = HEAVY[name]
    df, n = jnp.tile(jnp.asarray(df), 40 // len(df)), 40
    mean, deviation = 10 * jax.random.normal(key, (n,)), jnp.exp(jnp.linspace(-2.0, 2.0, n))
    predictions = family(df, mean, deviation)
    units = Units.of(mean[:, None])
    inner = Standardized(predictions, units, ())
    center, scale, reliable = eqx.filter_jit(located)(key, inner, n, 1, mean.dtype)
    center, scale = units.original(center)[:, 0], units.scale * scale[:, 0, 0]
    assert np.mean(np.asarray(reliable)) > 0.9
    np.testing.assert_array_less(jnp.abs(center - mean), 2 * deviation)
    assert np.all((scale > 0.5 * deviation) & (scale < 30 * deviation))
    finite = df > 2
    np.testing.assert_allclose(center[finite], mean[finite], atol=1e-9)
    np.testing.assert_allclose(scale[finite], deviation[finite] * (5 / 3) ** 0.5, rtol=1e-9)
    near = eqx.filter_jit(landed)(key, inner, units.points(mean[:, None]), mean)
    correlation = np.corrcoef(jnp.log(near.scales[:, 0, 0]), jnp.log(deviation))[0, 1]
    assert correlation > 0.7


@pytest.mark.slow
@pytest.mark.parametrize("wide", [False, True])
def test_right_counts_are_not_called_impossible(wide, key):
    """A count is no whole number any more after a change of units and back, with density 0."""
    with jax.enable_x64(wide):
        p = jax.random.uniform(key, (300,), minval=0.2, maxval=0.8)
        for predictions in (dist.Poisson(5 * p), dist.BernoulliProbs(p), dist.Binomial(7, p)):
            ys = predictions.sample(jax.random.key(1)).astype(float)
            result = calibration_test(0, predictions, ys, null=QUICK)
            assert int(result.notes["impossible-targets"]) == 0
            assert float(result.p_value) > 1e-3
            impossible = calibration_test(0, predictions, ys.at[0].set(0.5), null=QUICK)
            assert int(impossible.notes["impossible-targets"]) == 1


@pytest.mark.slow
def test_densities_that_say_nothing_get_no_verdict(key):
    """Flat ones, a value so far out that others lose their digits, and logs without digits."""
    forecast, ys = jax.tree.map(lambda x: x.astype(jnp.float32), forecasts(key, 60))

    def density(params, y):  # one program
        weight, constant, of_normal = params
        return weight * normal(of_normal, y) + constant

    def of(weight, constant):
        both = jnp.full((2, 60), jnp.asarray([[weight], [constant]]), jnp.float32)
        return Unnormalized(density, (*both, forecast.params))

    flat, coarse, predictions = of(0, 0), of(1, 1e7), of(1, 0)
    result = calibration_test(0, flat, ys, null=QUICK)
    assert result.verdict == "cannot tell"
    assert not any("overflow" in text for text in result.warnings())
    assert any("60 densities fall so slowly" in text for text in result.warnings())
    result = calibration_test(0, predictions, ys.at[0, 0].set(1e8), null=QUICK)
    assert result.verdict == "cannot tell"
    assert "far out" in result.reason
    result = calibration_test(0, coarse, ys, null=QUICK)
    assert any("coarse-logs" in text for text in result.warnings())
    assert result.verdict == "cannot tell"
    assert "rounding hides" in result.reason
    right = calibration_test(0, predictions, ys, null=QUICK)
    assert not any("coarse-logs" in text or "slowly" in text for text in right.warnings())


@pytest.mark.slow
def test_targets_that_are_coarse_beside_their_claims_are_said(key):
    """Numbers of float32 near 4.6 million, as coordinates of a map have, are .5 apart."""
    east, noise = jax.random.normal(key, (2, 200))
    far = float(np.float32(4.65e6))

    def said(width, at=far, outlier=None):
        centers = (at + 1000 * east.astype(jnp.float32)).astype(jnp.float32)
        ys = centers + width * noise.astype(jnp.float32)
        ys = ys if outlier is None else ys.at[0].set(outlier)
        predictions = dist.Normal(centers, jnp.full_like(ys, width))
        draws = centers[:, None] + width * jax.random.normal(key, (200, 8), jnp.float32)
        results = (
            calibration_test(0, predictions, ys, null=QUICK),
            jaxcal.kccsd_test(0, predictions, ys),
            calibration_test(0, jaxcal.Draws(draws), ys, null=QUICK),
        )
        return [bool(result.notes.get("coarse-targets", False)) for result in results]

    assert said(0.3) == [True, True, False]  # draws are rounded as their targets are
    assert said(5.0) == said(0.3, at=0.0) == said(5.0, at=0.0, outlier=1e9) == [False] * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("log_density", "finite"),
    [
        (lambda c, y: -jnp.sum(jnp.log1p((y - c) ** 2)), True),  # Cauchy
        (lambda c, y: -0.4 * jnp.log1p(jnp.sum((y - c) ** 2)), False),
        (lambda c, y: jnp.sum((y - c) ** 2) / 2, False),
        (lambda c, y: y[0] - c[0] - (y[1] - c[1]) ** 2, False),
        (lambda c, y: jnp.where(jnp.all(y > 0), -jnp.sum(y), -jnp.inf), True),
    ],
)
def test_densities_without_a_finite_integral_are_found(log_density, finite, key):
    centers, noise = jax.random.normal(key, (2, 20, 2))
    endless = near(key, Unnormalized(log_density, centers), jnp.abs(centers + noise)).endless
    assert not np.any(endless) if finite else np.mean(endless) >= 0.5


@pytest.mark.slow
@pytest.mark.parametrize("away", [12.0, 1e5])
def test_one_target_far_in_the_tail_rejects_by_itself(away, key):
    predictions, ys = forecasts(key, 60)
    result = calibration_test(0, predictions, ys.at[0, 0].add(away), null=QUICK)
    assert int(result.notes["improbable-targets"]) == 1
    assert result.verdict == "rejected"
    right = calibration_test(0, predictions, ys, null=QUICK)
    assert int(right.notes["improbable-targets"]) == 0


def test_learned_entries_are_ridge_regressions_on_earlier_parts(key):
    """By least squares with one more row for each penalty; the last part is left out."""
    a, b, c = jax.random.split(key, 3)
    n, r = 60, 3
    features, moments_of = jax.random.normal(a, (n, r)), jax.random.normal(b, (n, 2))
    part = jax.random.randint(c, (n,), 0, PARTS + 1)
    got = np.asarray(learned(features, moments_of, part))[:, 0]
    x, t, part = (np.asarray(array) for array in (features, moments_of, part))
    x = x - x.mean(axis=0)
    ones, penalties = np.ones((n, 1)), np.diag([1.0, *[PENALTY**0.5] * r])
    wanted = np.zeros(n)
    for k in range(1, PARTS):
        before, now = part < k, part == k
        rows = np.concatenate([np.concatenate([ones, x], axis=1)[before], penalties])
        slopes = np.linalg.lstsq(rows, np.concatenate([t[before], np.zeros((r + 1, 2))]))[0]
        wanted[now] = np.sum(x[now] @ slopes[1:] * t[now], axis=1)
    np.testing.assert_allclose(got, wanted, rtol=1e-8, atol=1e-12)
    assert np.all(got[(part == 0) | (part == PARTS)] == 0)


def test_evidence_of_a_positive_shift_is_a_half_normal_integral(key):
    entry = jax.random.normal(key, (60, 1)) + 0.2
    groups = [Group("a", 1.0, [jnp.ones((60, 1))]), Group("b", 0.3, [entry], positive=True)]
    sums = jnp.asarray([[0.0, 0.0, 0.0], [-1.5, 0.0, 2.5]])
    got = log_evidence(groups, sums)[1]
    for z, value in zip(np.asarray(sums[1]), got, strict=True):

        def integrand(shift, z=z):
            prior = 2 * scipy.stats.norm.pdf(shift, scale=evidence.TAU2**0.5)
            return prior * np.exp(shift * z - shift**2 / 2)

        ratio = scipy.integrate.quad(integrand, 0, 40)[0]
        assert float(value) == pytest.approx(np.log(0.3 * ratio), abs=0.02)  # R has a ridge


@pytest.mark.slow
def test_an_interaction_outside_the_listed_features_is_learned(key):
    """A shift by the sign of x_1 x_2 at n = 1,000; found in .97 of 200 data sets by the study."""
    named, rejected = 0, 0
    for each in jax.random.split(key, 8):
        predictions, ys = forecasts(each, 1000)
        x, _ = predictions.params
        shifted = ys + 0.3 * jnp.sign(x[:, :1] * x[:, 1:])
        result = calibration_test(0, predictions, shifted, null=QUICK)
        assert result.parts is not None
        named += result.parts.names[int(result.parts.winner)] == "varying"
        rejected += calibration_test(0, predictions, ys, null=QUICK).verdict == "rejected"
    assert named >= 6
    assert rejected <= 2


@pytest.mark.slow
def test_nothing_is_learned_from_observations_that_are_left_out(key):
    """Ranks of density 0 or NaN belong to them; what they are must not matter to others."""
    predictions, ys = forecasts(key, 60)
    kept = jnp.arange(60) != 7

    @jax.jit
    def entries(points):
        seen = Seen.of(key, points)
        frame = moments.Frame.of(seen, None)
        lost = seen.ranks._replace(density=seen.ranks.density.at[7].set(jnp.nan))
        return [
            varying(key, frame, seen._replace(ranks=ranks), None, kept).blocks
            for ranks in (seen.ranks, lost)
        ]

    (entry,), (of_lost,) = entries(near(key, predictions, ys))
    np.testing.assert_array_equal(entry, of_lost)
    assert entry[7] == 0
    assert np.sum(np.asarray(entry) != 0) > 30


@pytest.mark.slow
@pytest.mark.parametrize("where", ["everywhere", "at one target", "beyond"])
def test_a_density_that_is_nan_at_a_target_gives_no_verdict(key, where):
    """As of a failed network; NaN away from the targets is a density of 0."""
    centers, noise = jax.random.normal(key, (2, 60))
    bad = {"everywhere": noise < jnp.inf, "at one target": noise == noise[7], "beyond": noise > 9}

    def log_density(row, y):
        center, nan = row
        return jnp.where(nan | (jnp.abs(y - center) > 9), jnp.nan, -((y - center) ** 2) / 2)

    predictions = Unnormalized(log_density, (centers, bad[where]))
    result = calibration_test(0, predictions, centers + noise)
    assert (result.verdict == "cannot tell") == (where != "beyond")
    assert int(result.notes["nonfinite-scores"]) == int(jnp.sum(bad[where]))
    assert int(result.notes["impossible-targets"]) == 0


@pytest.mark.slow
def test_nothing_is_learned_from_neighbours_in_time(key):
    predictions, ys = forecasts(key, 100)
    result = calibration_test(0, predictions, ys, null=nulls.DependentWild(199))
    assert result.parts is not None
    assert "varying" not in result.parts.names


@pytest.mark.slow
def test_contributions_are_changes_of_the_statistic(key):
    """Signs of one observation turned by a little, by finite differences of the evidence."""
    predictions, ys = forecasts(key, 50, shift=(0.3, 0.0))
    result = calibration_test(0, predictions, ys, null=QUICK)
    points = near(jax.random.key(7), predictions, ys)

    def total(weights, points):
        seen = Seen.of(key, points)
        frame = moments.Frame.of(seen, None)
        groups = moments.groups(frame, seen, None, jnp.zeros((), bool), None)
        entries = evidence.Entries.of(groups, jnp.ones(50, bool))
        sums = (entries.values * weights[:, None]).sum(axis=0)[:, None]
        each = evidence.log_evidence(sums, entries.correlations, groups)
        return jax.nn.logsumexp(each)

    slopes = jax.jit(jax.grad(total))(jnp.ones(50), points)
    assert result.contributions.shape == (50,)
    # of the order of the slopes of the statistic, drawn with other points
    ratio = float(jnp.sum(result.contributions) / jnp.sum(slopes))
    assert 0.4 < ratio < 2.5


@pytest.mark.slow
def test_shifts_that_shrink_are_seen_where_a_density_ends(key):
    """An unnormalized density on [0, inf) whose claimed mean follows the truth too weakly."""
    x = jax.random.normal(key, (400,))
    ys = jnp.exp(0.6 * x) * jax.random.gamma(jax.random.key(1), 3.0, (400,))

    def log_density(params, y):
        x = params
        rate = jnp.exp(-0.3 * x)
        inside = jnp.where(y > 0, 2 * jnp.log(jnp.where(y > 0, y, 1.0)) - rate * y, -jnp.inf)
        return inside

    result: Any = calibration_test(0, Unnormalized(log_density, x), ys)
    assert result.verdict == "rejected"
    trend = result.parts.names.index("shift trend")
    assert float(result.parts.p_values[trend]) < 0.01


@pytest.mark.slow
def test_level_in_small_data_sets(key):
    """Skewed correlated predictions at n = 30: 99.99 % of right tests lie in the band."""

    def p_value(key):
        keys = jax.random.split(key, 3)
        predictions, _ = forecasts(keys[0], 30)
        center, inverse = predictions.params
        z = jnp.log(jax.random.gamma(keys[1], 2.0, (30, 2)))
        ys = center + jnp.einsum("nij,nj->ni", jnp.linalg.inv(inverse), z)
        return calibration_test(keys[2], Unnormalized(skewed, predictions.params), ys, null=QUICK)

    run = jax.jit(lambda key: p_value(key).p_value)
    p = np.asarray([run(k) for k in jax.random.split(key, 400)])
    low, high = scipy.stats.binom.interval(0.9999, 400, 0.05)
    assert low <= np.sum(p <= 0.05) <= high


@pytest.mark.slow
def test_batches_of_models_give_the_numbers_of_each(key):
    predictions, ys = forecasts(key, 40)
    keys = jax.random.split(key, 3)
    targets = jnp.stack([ys, ys + 0.3, 1.5 * ys])

    def run(key, ys):
        return calibration_test(key, predictions, ys, null=nulls.Wild(39)).p_value

    together = jax.jit(jax.vmap(run))(keys, targets)
    each = [jax.jit(run)(k, ys) for k, ys in zip(keys, targets, strict=True)]
    np.testing.assert_array_equal(together, each)


@pytest.mark.slow
def test_many_columns_become_their_leading_components(key):
    """Of 300 columns two carry nearly all: 200 random combinations keep what they span."""
    leading = jax.random.normal(key, (100, 2))
    loadings, rest = jax.random.normal(jax.random.key(1), (2, 300, 300))
    for q in (30, 300):
        columns = 3 * leading @ loadings[:2, :q] + 0.1 * rest[:100, :q]
        kept = moments.Few.of(columns)(columns)
        assert kept.shape == (100, moments.MOST)
        left = leading - kept @ jnp.linalg.lstsq(kept, leading)[0]
        assert float(jnp.var(left) / jnp.var(leading)) < 0.02


@pytest.mark.slow
@pytest.mark.usefixtures("programs_stay")
def test_a_data_frame_names_the_inputs_of_table_and_repair(key):
    predictions, ys = forecasts(key, 60)
    frame = pd.DataFrame(np.asarray(jax.random.normal(key, (60, 2))), columns=["age", "weight"])
    test: Any = calibration_test(0, predictions, ys, inputs=frame)
    assert test.table.columns[3:] == ("age", "weight")
    programs = calibration._unjudged.alone._cache_size()
    unnamed: Any = calibration_test(0, predictions, ys, inputs=frame.to_numpy(), names=["a", "b"])
    assert unnamed.table.columns[3:] == ("input 0", "input 1")
    rows = "shift of a", "spread of a", "correlation of a and b", "tails of b"
    assert unnamed.table.rows[::2] == rows
    assert calibration._unjudged.alone._cache_size() == programs  # other names are no other program
    stream = StreamedTest.calibration(0, predictions, ys, frame, n_draws=9)
    streamed: Any = stream.result(stream.run([(predictions, ys, frame)]))
    assert streamed.table.columns == test.table.columns
    repaired: Any = jaxcal.repair(0, predictions, ys, inputs=frame, folds=2)
    assert repaired.names[1] == ("age", "weight")
    turned = frame[["weight", "age"]]
    with pytest.raises(ValueError, match=r"inputs: wanted the columns \('age', 'weight'\)"):
        repaired.predictions(predictions, turned)
    with pytest.raises(ValueError, match="batch 0: inputs: wanted the columns"):
        stream.run([(predictions, ys, turned)])


@pytest.mark.slow
def test_bad_input_is_said(key):
    predictions, ys = forecasts(key, 40)
    no_densities: Any = np.ones(40)
    frame = pd.DataFrame({"hour": range(40), "station": pd.Categorical([10, 20] * 20)})
    for error, words, call in [
        (TypeError, "log densities", lambda: calibration_test(0, no_densities, ys)),
        (TypeError, "null: Eigenvalues draws", lambda: run(null=nulls.Eigenvalues())),
        (ValueError, "inputs: wanted n=40", lambda: run(inputs=np.ones(39))),
        (ValueError, "inputs: .* NaN", lambda: run(inputs=np.full((40, 2), np.nan))),
        (TypeError, "inputs: .*columns of 0 and 1", lambda: run(inputs=["a", "b"] * 20)),
        (TypeError, "inputs: .*columns of 0 and 1", lambda: run(inputs=frame)),
        (ValueError, "names: .*2", lambda: run(names=["a"])),
    ]:  # fmt: skip

        def run(**options):
            return calibration_test(0, predictions, ys, **options)

        with pytest.raises(error, match=words):
            call()
    constant: Any = calibration_test(0, predictions, ys, inputs=np.ones((40, 2)))
    assert np.isfinite(constant.p_value)
    assert "2 columns of inputs are constant" in " ".join(constant.warnings())
    assert np.all(np.isnan(constant.table.effect[:, 3:]))
    lost = calibration_test(0, predictions, ys.at[3, 0].set(jnp.nan), inputs=np.ones((40, 2)))
    assert lost.verdict == "cannot tell"
    with pytest.raises(ValueError, match="no parts"):
        plots.parts(jaxcal.kccsd_test(0, predictions, ys))
    with pytest.raises(ValueError, match="no table"):
        plots.table(jaxcal.kccsd_test(0, predictions, ys))


def test_statistics_see_draws_as_they_are():
    """After a change of units and back 0 was 6e-8, and right counts were rejected (p = .002)."""
    with jax.enable_x64(False):
        rates, draw = jax.random.split(jax.random.key(6))
        predictions = dist.Poisson(jnp.exp(0.5 * jax.random.normal(rates, (400,))))
        ys = predictions.sample(draw)
        result = calibration_test(6, predictions, ys, statistics=lambda y: jnp.sign(y))
    assert result.parts.p_values[result.parts.names.index("statistics")] > 0.01
