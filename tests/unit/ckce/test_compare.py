"""Comparing models: the value, the intervals, the level of the test, and the report."""

import itertools
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import problems
import pytest
import scipy.spatial
import scipy.stats
from reference import synthetic

from jaxcal import ckce as package
from jaxcal.ckce import ckce, class_comparison, errors, expansion, kernels
from jaxcal.ckce.class_comparison import pooled
from jaxcal.ckce.errors import value_interval
from jaxcal.ckce.expansion import Noise, by_features, by_products
from jaxcal.ckce.inputs import residuals
from jaxcal.ckce.results import Comparison
from jaxcal.ckce.solvers import low_rank
from jaxcal.kernels import Gaussian, grams
from jaxcal.kernels.grams import NystroemFeatures

compare = partial(package.compare, measure="ckce")
N = 200
TRUTH, Y = (jnp.asarray(a) for a in problems.drawn(0, N))
MODELS = {
    "over": jnp.asarray(problems.tempered(np.asarray(TRUTH), 0.4)),
    "true": TRUTH,
    "again": TRUTH,
    "under": jnp.asarray(problems.tempered(np.asarray(TRUTH), 3.0)),
}
KEY = jax.random.key(2)


@pytest.fixture(scope="module")
def compared():
    return compare(KEY, MODELS, Y, n_draws=199, rank=100)


@pytest.mark.slow
def test_values_are_those_of_the_exact_estimator(compared):
    gamma = float(compared.bandwidths[0])
    np.testing.assert_allclose(gamma, pooled(jnp.stack(list(MODELS.values()))))
    for i, q in enumerate(MODELS.values()):
        exact = ckce(q, Y, bandwidth=gamma).estimate
        np.testing.assert_allclose(compared.estimate[i], exact, rtol=1e-4)
        k = problems.simplex_gram(q, q, gamma)
        w = problems.weights(k, N**-0.25)
        r = problems.one_hot(Y) - np.asarray(q)
        off = np.sum(w * (r @ r.T)) - np.diag(w) @ np.sum(r**2, axis=1)
        np.testing.assert_allclose(compared.corrected[i], max(off, 0), rtol=1e-3, atol=1e-7)


def numpy_expansion(q, y, gamma, ridge):
    """Both influence functions from the Gram matrix, written down again in NumPy."""
    n = len(q)
    k, r = problems.simplex_gram(q, q, gamma), problems.one_hot(y) - np.asarray(q)
    inverse = np.linalg.inv(k + n * ridge * np.eye(n))
    w, b = inverse @ k @ inverse, inverse @ r
    center = np.eye(n) - 1 / n
    second = center @ (w * (n * ridge * b @ (n * ridge * b).T)) @ center
    first = 2 * n * ridge * np.sum((k @ inverse @ b) * b, axis=1) - 2 * np.diag(second)
    alone = np.diag(second)
    return first - first.mean(), second - np.diag(alone), alone


def of_features(features, q, left, *, ridge, draws=3):
    """The error without noise from outside, every observation counted."""
    noise = Noise(jnp.zeros(left.shape), lambda key: left)
    keys = (jax.random.key(0), jax.random.key(1))
    return by_features(keys, features, q, left, noise, ridge, jnp.ones(len(q)), draws)[0]


def of_products(gram, left, *, ridge, draws=3):
    keys = (jax.random.key(0), jax.random.key(1))
    return by_products(keys, gram, left @ left.T, ridge, draws)


@pytest.mark.slow
def test_both_ways_to_the_expansion_are_the_equation():
    q, y, gamma, ridge = MODELS["over"][:60], Y[:60], 0.4, 0.3
    first, second, _ = numpy_expansion(q, y, gamma, ridge)
    kernel, ridge = kernels.simplex_kernel(gamma), jnp.asarray(ridge)
    features = NystroemFeatures.at(kernel, q[:40], jnp.ones(40, bool))
    left = residuals(q, y)
    ways = [
        of_features(features, q, left, ridge=ridge),
        of_products(grams.square_gram(kernel, q), left, ridge=ridge),
    ]
    v = jax.random.rademacher(jax.random.key(1), (3, 60), q.dtype)
    np.testing.assert_allclose(ways[1].terms, np.sum((v @ second) * v, axis=1), rtol=1e-6)
    for way, close in zip(ways, (1e-4, 1e-9), strict=True):
        np.testing.assert_allclose(way.slope, ways[1].slope, rtol=1e-3)
        np.testing.assert_allclose(way.first, first, atol=close * np.abs(first).max())
        np.testing.assert_allclose(way.second, second, atol=close * np.abs(second).max())


def test_the_p_value_of_one_model_is_that_of_all_labels():
    rng = np.random.default_rng(0)
    p = rng.uniform(0.1, 0.6, 10)
    q, y = np.stack([1 - p, p], axis=1), (rng.uniform(size=10) < 0.8).astype(int)
    w = problems.weights(problems.simplex_gram(q, q, 0.4), 10**-0.25)
    w = w - np.diag(np.diag(w))
    labels = np.asarray(list(itertools.product((0, 1), repeat=10)))
    chances = np.prod(np.where(labels, p, 1 - p), axis=1)
    values = np.einsum("ai,ij,aj->a", labels - p, w, labels - p)  # half of those of both classes
    exact = np.sum(chances[values >= (y - p) @ w @ (y - p) - 1e-12])
    p = compare(0, [q, q], y, n_draws=1999, bandwidth=0.4).p_calibrated[0]
    low, high = scipy.stats.binom.interval(0.9999, 1999, exact)
    assert low <= 2000 * float(p) - 1 <= high


def test_the_first_influence_is_the_derivative_in_the_weights():
    q, y, n = np.asarray(MODELS["over"][:60]), np.asarray(Y[:60]), 60
    k, r = problems.simplex_gram(q, q, 0.4), problems.one_hot(y) - q

    def value(weights):
        root = np.sqrt(weights)[:, None]
        b = np.linalg.solve(root * k * root.T + 0.3 * np.eye(n), root * r)
        return np.sum(b * (root * k * root.T @ b))

    even = np.full(n, 1 / n)
    slopes = [
        (value(even + 1e-5 * np.eye(n)[i]) - value(even - 1e-5 * np.eye(n)[i])) / 2e-5
        for i in range(n)
    ]
    first, _, alone = numpy_expansion(q, y, 0.4, 0.3)
    # `first` leaves the observation itself out, the derivative does not
    plain = first + 2 * (alone - np.mean(alone))
    np.testing.assert_allclose(plain * n, slopes - np.mean(slopes), rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_blocks_of_observations_add_up(monkeypatch):
    q, y = MODELS["over"], Y
    kernel, ridge = kernels.simplex_kernel(0.4), jnp.asarray(0.3)
    features, left = NystroemFeatures.at(kernel, q[:40], jnp.ones(40, bool)), residuals(q, y)
    alone = of_features(features, q, left, ridge=ridge, draws=400)
    for module in (errors, expansion):
        monkeypatch.setattr(module, "BLOCKS", 64)
    monkeypatch.setattr(expansion, "REDRAWN", 0)
    blocks = [
        of_features(features, q, left, ridge=ridge, draws=400),
        of_products((f := features(q)) @ f.T, left, ridge=ridge, draws=400),
    ]
    # the blocks that the second way made, from what single observations say
    key = jax.random.split(jax.random.key(0), 3)[0]
    place = jax.random.permutation(key, jnp.arange(N) % 64)
    summed = np.zeros((64, N))
    summed[np.asarray(place), np.arange(N)] = 1
    for part in blocks:
        np.testing.assert_allclose(part.value, alone.value, rtol=1e-8)
        np.testing.assert_allclose(part.estimate, alone.estimate, rtol=1e-8)
        assert 0.5 < float(part.slope / alone.slope) < 2
        np.testing.assert_allclose(jnp.sum(part.first), 0, atol=1e-12)
        # the spread of both terms is that of single observations, but for chance
        for a, b in ((part.first, alone.first), (part.second, alone.second)):
            assert 0.5 < float(jnp.sum(a**2) / jnp.sum(b**2)) < 2
        assert 0.5 < float(jnp.std(part.terms) / jnp.std(alone.terms)) < 2
    w = problems.weights((f := np.asarray(features(q))) @ f.T, 0.3)
    products = w * np.asarray(left @ left.T)  # the residuals that are drawn are these
    wanted = np.sqrt(2 * np.sum((products - np.diag(np.diag(products))) ** 2))
    for part in blocks:
        assert 0.5 < float(jnp.std(part.null)) / wanted < 2
    off = summed @ np.asarray(alone.second) @ summed.T
    np.testing.assert_allclose(
        blocks[1].second, off - np.diag(np.diag(off)), atol=2e-2 * np.abs(off).max()
    )


def test_the_interval_holds_what_the_draws_do_not_contradict():
    """Ends by halving, one true value at a time, against the quantiles of roots."""
    rng = np.random.default_rng(0)
    terms, normal = 0.2 * (rng.chisquare(1, (999, 2)) - 1), rng.normal(size=999)
    for value in (-0.15, 0.1, 0.7, 3.0):
        whole = jnp.asarray(value), jnp.asarray(0.3)
        low, high = value_interval(*whole, jnp.asarray(terms), jnp.asarray(normal), 0.05)

        def above(true, k, value=value):
            return np.mean(true + np.sqrt(0.3 * true) * normal + terms[:, k] >= value)

        grid = np.linspace(0, 12, 6001)
        inside = [t for t in grid if any(0.025 < above(t, k) < 0.975 for k in (0, 1))]
        inside = inside or [0.0]
        np.testing.assert_allclose([low, high], [inside[0], inside[-1]], atol=0.02 + 0.02 * high)


@pytest.mark.slow
def test_long_work_shows_a_bar_and_changes_nothing(monkeypatch, capsys, compared):
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(class_comparison, "LONG", 0)
    counted = compare(KEY, MODELS, Y, n_draws=199, rank=100)
    bar = capsys.readouterr().err
    assert "0/4" in bar
    assert "model/s" in bar
    for a, b in zip(jax.tree.leaves(counted), jax.tree.leaves(compared), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
    compare(KEY, MODELS["over"], Y, groups=np.arange(N) % 2, n_draws=19, rank=20)
    assert "group/s" in capsys.readouterr().err
    stack = jnp.stack(list(MODELS.values()))
    jax.jit(lambda q: compare(KEY, q, Y, n_draws=19, rank=20).corrected)(stack)
    assert capsys.readouterr().err == ""


@pytest.mark.slow
def test_the_report_ranks_and_warns(compared):
    assert set(compared.ranking()[:2]) == {"true", "again"}
    text = repr(compared)
    assert "comparable only at equal n, ridge and kernel" in text
    assert "no difference shown" in text
    assert "may be the best: " in text
    assert "worse: " in text
    assert compared.best() == [name for name in compared.ranking() if name in compared.best()]
    assert {"true", "again"} <= set(compared.best())
    assert len(compared.table()) == 6
    for row in compared.table():
        i, j = (compared.names.index(row[side]) for side in ("better", "worse"))
        assert row["difference"] == float(compared.differences.estimate[i, j]) <= 0
        assert row["shown"] == (float(compared.differences.p_adjusted[i, j]) <= compared.level)
        outside = not row["low"] <= 0 <= row["high"]
        assert outside == row["shown"]
        assert not row["shown"] or row["worse"] not in compared.best()
    assert compared.warnings() == []
    assert re.search(r"over +class \d: says .* overconfident \(p = ", text)
    fields = compared.to_dict()
    assert fields["names"] == list(MODELS)
    comparison = compare(KEY, MODELS, Y, n_draws=9, rank=20, bandwidth="own")
    assert any("a bandwidth of its own" in text for text in comparison.warnings())
    assert any("cannot give p-values below 0.1" in text for text in comparison.warnings())
    rough = compare(KEY, MODELS, Y, n_draws=99, rank=3)
    assert any("take a larger rank" in text for text in rough.warnings())


@pytest.mark.slow
def test_differences_are_antisymmetric_and_identical_models_tie(compared):
    d = compared.differences
    np.testing.assert_allclose(d.estimate, -d.estimate.T, atol=1e-15)
    np.testing.assert_allclose(d.low, -d.high.T, atol=1e-12)
    assert bool(jnp.all(d.p_adjusted >= d.p_value))
    i, j = 1, 2
    assert float(d.p_value[i, j]) == float(d.p_adjusted[i, j]) == 1
    assert float(d.estimate[i, j]) == 0
    assert float(d.p_adjusted[1, 3]) <= 0.05
    assert bool(jnp.all(jnp.diagonal(d.p_value) == 1))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_model_without_spread_moves_no_bandwidth(dtype):
    rng = np.random.default_rng(0)
    q, noise = rng.dirichlet(np.ones(3), 100), rng.uniform(-1, 1, (7, 100))
    alone = np.median(scipy.spatial.distance.pdist(q))
    for partners in (1, 7):
        for spread in (0.0, 1e-12, 1e-6, 1e-3, 1e-2, 1e-1):
            flat = 0.4 + spread * noise[:partners]
            models = [q, *(np.stack([p, 0.9 - p, np.full(100, 0.1)], 1) for p in flat)]
            width = float(pooled(jnp.asarray(np.stack(models), dtype)))
            medians = [np.median(scipy.spatial.distance.pdist(a)) for a in models]
            wanted = np.sum(np.square(medians)) / np.sum(medians)
            rounding = 1e-5 if dtype == np.float32 else 1e-9
            assert abs(width / wanted - 1) < rounding
            # half of a distance is at most 2 spread, and each partner pulls by less than its own
            assert alone - 2 * partners * spread - rounding < width < alone + rounding
    assert pooled(jnp.full((2, 100, 3), 1 / 3, dtype)) == 1


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32])
def test_a_valid_model_has_its_own_value_beside_the_base_rate(dtype):
    p = np.random.default_rng(1).uniform(size=100)
    y = np.random.default_rng(2).uniform(size=100) < p
    q = np.stack([1 - p, p], 1).astype(dtype)
    rate = np.broadcast_to(np.asarray([1 - y.mean(), y.mean()], dtype), (100, 2))
    both = compare(KEY, {"model": q, "rate": rate}, y.astype(int), n_draws=19, rank=20)
    width = np.median(scipy.spatial.distance.pdist(q.astype(float)))
    np.testing.assert_allclose(both.bandwidths, width, rtol=1e-5)
    exact = ckce(q.astype(np.float64), y.astype(int), bandwidth=width).estimate
    np.testing.assert_allclose(both.estimate[0], exact, rtol=1e-3)
    assert np.all(np.isfinite(both.corrected))


@pytest.mark.slow
def test_a_model_without_a_value_is_never_best_and_says_why():
    stack = jnp.stack([TRUTH, MODELS["over"], MODELS["under"]])

    @jax.jit
    def compared(models):
        return compare(KEY, models, Y, n_draws=99, rank=20, bandwidth=0.4)

    whole = compared(stack)
    comparison = compared(stack.at[1, 3, 0].set(jnp.nan))
    assert comparison.ranking()[-1] == "model 1"
    np.testing.assert_array_equal(jnp.isnan(comparison.corrected), [False, True, False])
    np.testing.assert_array_equal(comparison.may_be_best, [True, False, False])
    assert ["1 of its predictions" in text for text in comparison.warnings()] == [True]
    assert "model 1   not a number" in repr(comparison)
    assert repr(comparison).count("p = nan, cannot tell") == 2
    # and the others lose nothing: their adjustment is that of the two of them
    two = compare(KEY, stack[jnp.asarray([0, 2])], Y, n_draws=99, rank=20, bandwidth=0.4)
    np.testing.assert_allclose(
        comparison.differences.p_adjusted[0, 2], two.differences.p_adjusted[0, 1]
    )
    assert bool(jnp.all(jnp.isfinite(whole.corrected)))

    broken = compare(KEY, stack, Y, n_draws=9, rank=20, prediction_kernel=not_below)
    counts = [re.findall(r"(\d+) values of the kernel", text) for text in broken.warnings()[1:]]
    assert [int(count) > 0 for (count,) in counts] == [True, True]
    np.testing.assert_array_equal(jnp.isnan(broken.corrected), [True, True, False])
    np.testing.assert_array_equal(broken.may_be_best, [False, False, True])


def not_below(p, q):
    """No number where a probability is below .001: of the two models that are more confident."""
    return jnp.where(jnp.minimum(jnp.min(p), jnp.min(q)) < 1e-3, jnp.nan, p @ q)


def mirrored(key):
    """Two models, wrong on opposite halves of the inputs: equally far from calibration."""
    x_key, y_key = jax.random.split(key)
    p = jax.random.uniform(x_key, (80,))
    y = jax.random.bernoulli(y_key, p).astype(int)
    pull = 0.55
    a = jnp.where(p > 0.5, p + pull * (1 - p), p)
    b = jnp.where(p < 0.5, p - pull * p, p)
    return jnp.stack([synthetic.binary(a), synthetic.binary(b)]), y


@pytest.mark.slow
def test_a_group_has_the_value_it_has_alone():
    groups = np.arange(N) % 3 // 2
    options = {"n_draws": 99, "rank": 100, "bandwidth": 0.4}
    both = compare(KEY, MODELS["over"], Y, groups=groups, **options)
    ridge = float(both.ridge)
    assert ridge == pytest.approx((N // 2) ** -0.25)
    for g in range(2):
        q, y = MODELS["over"][groups == g], Y[groups == g]
        alone = ckce(q, y, bandwidth=0.4, ridge=ridge)
        np.testing.assert_allclose(both.estimate[g], alone.estimate, rtol=1e-4)
        w = problems.weights(problems.simplex_gram(q, q, 0.4), ridge)
        r = problems.one_hot(y) - np.asarray(q)
        off = np.sum(w * (r @ r.T)) - np.diag(w) @ np.sum(r**2, axis=1)
        np.testing.assert_allclose(both.corrected[g], off, rtol=1e-3)
        np.testing.assert_allclose(both.skill["Brier"][g], np.mean(np.sum(r**2, axis=1)))
    assert "CKCE of 2 groups" in str(both)
    with pytest.raises(ValueError, match="at least 3 observations of each"):
        compare(KEY, TRUTH, Y, groups=np.arange(N) // (N - 1))
    with pytest.raises(ValueError, match="at least 2 groups"):
        compare(KEY, TRUTH, Y, groups=np.zeros(N, int))
    named = compare(KEY, MODELS["over"], Y, groups=np.where(groups == 0, "a", "b"), **options)
    assert named.names == ("a", "b")
    np.testing.assert_allclose(named.corrected, both.corrected)
    with pytest.raises(ValueError, match="groups: wanted text or integers"):
        compare(KEY, TRUTH, Y, groups=np.linspace(0, 1, N))


@pytest.mark.slow
def test_the_level_between_two_equally_wrong_models():
    trials = 200

    def one(key):
        data_key, test_key = jax.random.split(key)
        models, y = mirrored(data_key)
        comparison = compare(test_key, models, y, n_draws=99, rank=20, bandwidth=0.4)
        low, high = comparison.differences.low[0, 1], comparison.differences.high[0, 1]
        return comparison.differences.p_value[0, 1], (low <= 0) & (high >= 0), comparison.corrected

    p, covered, values = jax.jit(lambda keys: jax.lax.map(one, keys))(
        jax.random.split(jax.random.key(5), trials)
    )
    _, high = scipy.stats.binom.interval(0.9999, trials, 0.05)
    assert int(jnp.sum(p <= 0.05)) <= high
    assert int(jnp.sum(~covered)) <= high
    # both really are wrong, and the two are equal on average
    gap = values[:, 0] - values[:, 1]
    assert abs(gap.mean()) < 4 * gap.std() / trials**0.5
    assert float(values.mean()) > 0.005


@pytest.mark.slow
def test_the_power_against_a_calibrated_model():
    def one(key):
        q_key, y_key, test_key = jax.random.split(key, 3)
        truth = problems.flat(q_key, 150, 3)
        y = synthetic.labels(y_key, truth)
        models = jnp.stack([truth, synthetic.temperature(truth, 0.3)])
        comparison = compare(test_key, models, y, n_draws=99, rank=30)
        return comparison.differences.p_adjusted[0, 1], comparison.differences.estimate[0, 1]

    p, gap = jax.jit(lambda keys: jax.lax.map(one, keys))(jax.random.split(KEY, 60))
    assert int(jnp.sum((p <= 0.05) & (gap < 0))) > 45


@pytest.mark.slow
def test_inside_jit_and_by_vmap():
    stack = jnp.stack(list(MODELS.values()))[:2]

    def gap(key, models):
        comparison = compare(key, models, Y, n_draws=19, rank=10)
        assert isinstance(comparison, Comparison)
        assert "traced" in repr(comparison)
        return comparison.differences.estimate

    both = jax.jit(jax.vmap(gap))(jax.random.split(KEY, 2), jnp.stack([stack, stack[::-1]]))
    np.testing.assert_allclose(both[0, 0, 1], both[1, 1, 0], rtol=1e-9)


@pytest.mark.slow
def test_bad_input_is_named():
    with pytest.raises(ValueError, match="at least 2 models"):
        compare(KEY, {"one": TRUTH}, Y)
    with pytest.raises(ValueError, match=r"models\[b\]: row 0 holds a negative"):
        compare(KEY, {"a": TRUTH, "b": -TRUTH}, Y)
    with pytest.raises(ValueError, match="all models must predict the same observations"):
        compare(KEY, {"a": TRUTH, "b": TRUTH[1:]}, Y)
    with pytest.raises(ValueError, match="bandwidth: wanted 'pooled'"):
        compare(KEY, MODELS, Y, bandwidth="median")
    with pytest.raises(ValueError, match="level: wanted"):
        compare(KEY, MODELS, Y, level=95.0)
    with pytest.raises(TypeError, match="models: wanted a mapping"):
        compare(KEY, TRUTH, Y)
    with pytest.raises(ValueError, match="n_draws: wanted"):
        compare(KEY, MODELS, Y, n_draws=0)


def two_models(**options):
    p = jax.random.uniform(jax.random.key(0), (300,))
    ys = jax.random.bernoulli(jax.random.key(1), p).astype(int)
    good = jnp.stack([1 - p, p], axis=1)
    return package.compare(0, {"good": good, "bad": good[:, ::-1]}, ys, **options)


@pytest.mark.slow
def test_the_table_agrees_with_the_ranking_at_the_least_p():
    """In float64 the p-value 1 / 1000 of float32 was above the level .001: "no difference"."""
    with jax.enable_x64(False):
        result = two_models(level=0.001)
    assert result.best() == ["good"]
    assert [row["shown"] for row in result.table()] == [True]


@pytest.mark.slow
def test_draws_too_few_for_the_level_are_said():
    assert "[too-few-draws]" in str(two_models(level=0.0005))
    assert "[too-few-draws]" not in str(two_models(level=0.001))


@pytest.mark.slow
def test_candidates_of_a_low_rank_cover_all_values():
    """Their numbers exceed 32 bits: a third of the values had none."""
    with jax.enable_x64(False):
        x = jnp.linspace(0, 1, 1_500_000)[:, None]
        chosen = low_rank(Gaussian(0.02), x, 64).landmarks[:, 0]
    assert float(jnp.max(jnp.diff(jnp.sort(chosen)))) < 0.1


def test_targets_that_are_nan_are_not_called_predictions():
    targets = jnp.zeros(20).at[3].set(jnp.nan)
    result = compare(0, [dist.Normal(jnp.arange(20.0), 1.0)] * 2, targets, n_draws=19)
    assert "1 of its predictions or targets are NaN" in str(result.warnings())
