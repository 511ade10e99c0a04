"""Comparisons in one pass: those in memory but for leverages, in any order, merged and resumed."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest

from jaxcal import Draws, Scores, Unnormalized, compare
from jaxcal.ckce.expansion import Noise
from jaxcal.ckce.probability import Probability, by_regression
from jaxcal.streaming import StreamedTest, StreamState
from jaxcal.streaming.comparison import ComparisonSums, _errors
from jaxcal.streaming.rows import Dealt

RANDOM = np.random.default_rng(0)
N, M = 3000, 3
TRUTH = RANDOM.dirichlet(np.full(M, 0.6), N)
LABELS = (RANDOM.random(N)[:, None] > np.cumsum(TRUTH, 1)[:, :-1]).sum(1)


def powered(power):
    values = TRUTH**power
    return values / values.sum(1, keepdims=True)


MODELS = {"true": TRUTH, "over": powered(1.4), "under": powered(0.7)}


def part(rows):
    return {name: q[rows] for name, q in MODELS.items()}, LABELS[rows]


def batches(size):
    return [part(slice(start, start + size)) for start in range(0, N, size)]


@pytest.fixture(scope="module")
def test():
    return StreamedTest.comparison(1, *part(slice(0, 50)), n_draws=199)


@pytest.fixture(scope="module")
def whole(test):
    return test.run(batches(700))


def same(one, other):
    assert (one.n, one.rows) == (other.n, other.rows)
    for name, total in one.sums.items():
        np.testing.assert_allclose(total, other.sums[name], rtol=1e-10, atol=1e-9, err_msg=name)


@pytest.mark.slow
def test_it_is_the_comparison_in_memory(test, whole):
    """Values but for leverages, which are 3 / 3,000 on average; the draws are others."""
    streamed, in_memory = test.result(whole, level=0.1), compare(1, MODELS, LABELS, level=0.1)
    for name in ("estimate", "corrected"):
        values = getattr(in_memory, name)
        np.testing.assert_allclose(getattr(streamed, name), values, rtol=M / N, atol=1e-7)
    gap = np.abs(streamed.corrected - in_memory.corrected)
    assert np.all(gap < 0.01 * (in_memory.high - in_memory.low))
    for name in ("low", "high"):
        values = getattr(in_memory, name)
        np.testing.assert_allclose(getattr(streamed, name), values, rtol=0.15, atol=1e-4)
    assert list(streamed.skill) == list(in_memory.skill)
    for name, values in in_memory.skill.items():
        np.testing.assert_allclose(streamed.skill[name], values, rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(streamed.says.said, in_memory.says.said, atol=1e-5)
    np.testing.assert_allclose(streamed.says.true, in_memory.says.true, atol=1e-5)
    assert (streamed.best(), streamed.ranking()) == (in_memory.best(), in_memory.ranking())
    assert (streamed.n, streamed.level, streamed.names) == (N, 0.1, tuple(MODELS))
    lines, wanted = str(streamed).splitlines(), str(in_memory).splitlines()
    assert [line.split()[:2] for line in lines[:3]] == [line.split()[:2] for line in wanted[:3]]


@pytest.mark.slow
@pytest.mark.parametrize(("classes", "weight"), [(10, 1.0), (30, 0.05)])
def test_leverages_move_values_by_under_5_percent_of_their_error(classes, weight):
    """Of these laws; of even predictions of 30 classes by a tenth (`experiments/compare`)."""
    random = np.random.default_rng(1)
    q = random.dirichlet(np.full(classes, weight), 1024) + 1e-12
    q = q / q.sum(1, keepdims=True)
    y = (random.random(1024)[:, None] > np.cumsum(q, 1)[:, :-1]).sum(1)
    models = {str(power): q**power / np.sum(q**power, 1, keepdims=True) for power in (1, 2, 0.6)}
    in_memory = compare(0, models, y, n_draws=199)
    test = StreamedTest.comparison(0, models, y, n_draws=199)
    streamed = test.result(test.update(test.empty(), models, y))
    error = (in_memory.high - in_memory.low) / 4
    assert np.all(np.abs(streamed.corrected - in_memory.corrected) < error / 20)


@pytest.mark.slow
def test_the_value_is_the_equation(test, whole):
    """By least squares of all rows, with the leverages' mean in the factor."""
    for q, value in zip(MODELS.values(), test.result(whole).corrected, strict=True):
        d = np.eye(M)[LABELS] - q
        f = np.linalg.qr(np.concatenate([np.ones((N, 1)), q[:, 1:]], axis=1))[0]
        alone = np.sum(np.sum(f**2, axis=1) * np.sum(d**2, axis=1))
        expected = (np.sum((f.T @ d) ** 2) - alone) / (2 * (N - M))
        np.testing.assert_allclose(value, max(expected, 0), rtol=1e-6, atol=1e-12)


def errors(fit, sums, n, n_draws):
    """Errors of what a stream has added up, and the keys of their draws."""
    keys = jax.random.key(3), jax.random.key(4)
    of_all = jax.tree.map(jnp.asarray, sums)
    added = jnp.asarray(1 - 1 / M), jnp.asarray(1 / M)
    return _errors(keys, of_all, jnp.asarray(float(n)), added, n_draws), keys


@pytest.mark.slow
def test_with_equal_leverages_it_is_the_expansion_in_memory():
    """Three predictions of 200 rows each: every row has the same leverage, and its own group."""
    n, key = 600, jax.random.key(5)
    q = np.repeat(RANDOM.dirichlet(np.ones(M), 3), 200, axis=0)
    y = RANDOM.integers(0, M, n)
    fit = ComparisonSums.of(key, {"a": q, "b": q}, y, 99)
    dealt = Dealt.of(np.asarray(jax.random.key_data(key)), 0, n, 0, 2)
    share = np.sqrt(4 / (n + 4))
    added = np.eye(M)[(dealt.uniforms[:, 1] * M).astype(int)] - 1 / M
    both, keys = errors(fit, fit.of_batch(({"a": q, "b": q}, y), 0, 0)[1], n, 99)
    streamed = jax.tree.map(lambda part: np.asarray(part[0]), both)
    d, weights = jnp.asarray(np.eye(M)[y] - q), jnp.ones(n)
    noise = Noise(jnp.asarray(share * added), lambda key: d)
    three = keys[1], keys[0], keys[1]
    in_memory = by_regression(three, jnp.asarray(q), weights, d, noise, 1 / M, M, 99)
    there = dealt.real[0]
    rows = dealt.places[0][there]
    close = partial(np.testing.assert_allclose, rtol=1e-8, atol=1e-14)
    close(streamed.value, in_memory.value)
    close(streamed.estimate, in_memory.estimate)
    close(streamed.first[there], in_memory.first[rows])
    close(streamed.second[np.ix_(there, there)], in_memory.second[np.ix_(rows, rows)])
    # without products of added residuals and others, which are 0 on average
    close(streamed.slope, in_memory.slope, rtol=2 * share * n**-0.5)


@pytest.mark.slow
def test_draws_of_a_calibrated_model_spread_as_those_in_memory(test, whole):
    streamed, keys = errors(test.fit, whole.sums, N, 1999)
    for k, q in enumerate(MODELS.values()):
        labels = jnp.asarray(LABELS)
        in_memory, _ = Probability(M)(*keys, jnp.asarray(q), jnp.ones(N), labels, 1999)
        np.testing.assert_allclose(np.std(streamed.null[k]), np.std(in_memory.null), rtol=0.15)


def test_a_result_has_the_type_of_its_caller(test, whole):
    with jax.enable_x64(False):
        result = test.result(whole)
    assert {leaf.dtype.itemsize for leaf in jax.tree.leaves(result)} <= {1, 4}


def test_no_order_share_or_size_changes_a_draw(test, whole):
    backward, parts = test.empty(), batches(450)
    for k in reversed(range(len(parts))):
        backward = test.update(backward, *parts[k], first=k * 450)
    same(backward, whole)
    shares = [test.run(parts[:3]), test.run(parts[3:], first=1350)]
    same(shares[1].merge(shares[0]), whole)
    results = [test.result(state, rows=N) for state in (whole, backward)]
    np.testing.assert_allclose(results[0].low, results[1].low, rtol=1e-6)
    np.testing.assert_allclose(results[0].p_calibrated, results[1].p_calibrated)
    with pytest.raises(ValueError, match="rows 1350 to 2999 of 3000 are missing"):
        test.result(shares[0], rows=N)


def test_a_pass_goes_on_in_the_middle_of_a_batch(test, whole, tmp_path):
    file = tmp_path / "state.npz"
    test.run(batches(500)[:3]).save(file)
    same(test.run(batches(400), state=StreamState.load(file)), whole)
    same(test.run(batches(400), checkpoint=file), whole)
    same(StreamState.load(file), whole)


def test_an_infinite_score_stays_so_where_a_pass_is_resumed(test):
    """inf * 0 is NaN: the row of p = 0 is among those that an earlier pass has processed."""
    models = MODELS | {"true": TRUTH.copy()}
    models["true"][1000] = np.where(np.arange(M) == LABELS[1000], 0, 1 / (M - 1))
    first = {name: q[:1024] for name, q in models.items()}, LABELS[:1024]
    state = test.run([(models, LABELS)], state=test.run([first]))
    assert state.n == N
    assert np.isinf(state.sums["scores"]).any()
    assert not np.isnan(state.sums["scores"]).any()


def test_groups_are_dealt_by_numbers(whole):
    """Each run of 1,024 rows gives every group one."""
    sizes = whole.sums["groups"][:, :, 0, 0]
    assert sizes.sum(1).tolist() == [N] * 3
    assert (sizes.min(), sizes.max()) == (2, 3)


def test_models_are_told_by_name_and_classes_by_column(test, whole):
    names = list(reversed(MODELS))
    frames = {name: pd.DataFrame(MODELS[name], columns=["0", "1", "2"]) for name in names}
    frames["true"] = frames["true"][["2", "0", "1"]]
    same(test.update(test.empty(), frames, LABELS), whole)


@pytest.mark.slow
def test_yes_and_no_need_one_number():
    models = {name: q[:, 0] for name, q in MODELS.items()}
    first = {name: p[:9] for name, p in models.items()}
    test = StreamedTest.comparison(0, first, LABELS[:9] == 0, n_draws=99)
    streamed = test.result(test.update(test.empty(), models, LABELS == 0))
    in_memory = compare(0, models, LABELS == 0, n_draws=99)
    np.testing.assert_allclose(streamed.corrected, in_memory.corrected, rtol=1e-3, atol=1e-7)


@pytest.mark.slow
def test_rare_labels_widen_intervals_as_in_memory():
    models, labels = {"a": np.full(N, 0.3), "b": np.full(N, 0.5)}, np.zeros(N, int)
    test = StreamedTest.comparison(0, {k: p[:9] for k, p in models.items()}, labels[:9], n_draws=99)
    results = test.result(test.update(test.empty(), models, labels)), compare(0, models, labels)
    for result in results:
        half = float(result.differences.high[0, 1] - result.differences.low[0, 1]) / 2
        assert half == pytest.approx(1.96 * 2 * 0.2 * 2**0.5 / N, rel=0.25)
        assert "all labels are equal" in str(result)


@pytest.mark.slow
def test_many_classes_have_the_components_of_the_first_sample():
    """Exact where all predictions lie in so few dimensions."""
    classes = 40
    q = RANDOM.dirichlet(np.ones(5), 2000) @ RANDOM.dirichlet(np.full(classes, 0.1), 5)
    y = (RANDOM.random(2000)[:, None] > np.cumsum(q, 1)[:, :-1]).sum(1)
    models = {"true": q, "flat": 0.8 * q + 0.2 / classes}
    first = {name: p[:200] for name, p in models.items()}
    test = StreamedTest.comparison(0, first, y[:200], n_draws=99)
    state = test.update(test.empty(), models, y)
    assert state.sums["groups"].shape == (2, 1024, 30, 30 + 3 * classes + 1)
    in_memory = compare(0, models, y, n_draws=99)
    np.testing.assert_allclose(test.result(state).corrected, in_memory.corrected, rtol=0.01)
    with pytest.raises(ValueError, match="of 40 classes needs at least 30 observations, got 29"):
        StreamedTest.comparison(0, {name: p[:29] for name, p in models.items()}, y[:29])


C = RANDOM.normal(size=(N, 2))
Y = C + RANDOM.normal(size=(N, 2)) * (1 + (RANDOM.random((N, 1)) < 0.2))
DRAWS = 1.3 * C[:, None] + RANDOM.normal(size=(N, 20, 2))


def log_density(center, y):
    return -jnp.sum((y - center) ** 2) / 2


def any_kind(rows):
    c = C[rows]
    return {
        "distribution": dist.Independent(dist.Normal(0.2 + c, 1.2), 1),
        "density": Unnormalized(log_density, jnp.asarray(c)),
        "draws": Draws(DRAWS[rows]),
    }, Y[rows]


@pytest.fixture(scope="module")
def test_of_any():
    return StreamedTest.comparison(0, *any_kind(slice(0, 200)), n_draws=199)


@pytest.fixture(scope="module")
def whole_of_any(test_of_any):
    return test_of_any.run(any_kind(slice(k, k + 1000)) for k in range(0, N, 1000))


@pytest.mark.slow
def test_of_any_predictions_it_is_the_comparison_in_memory(test_of_any, whole_of_any):
    """Points near predictions and ties are drawn anew: over five keys of `compare`, values vary by
    at most .33 of their standard error, so two of them differ by less than 2: four deviations."""
    streamed = test_of_any.result(whole_of_any)
    in_memory = compare(0, *any_kind(slice(0, N)), n_draws=199)
    error = (in_memory.high - in_memory.low) / 4
    assert np.all(np.abs(streamed.corrected - in_memory.corrected) < 2 * error)
    np.testing.assert_allclose(streamed.high - streamed.low, 4 * error, rtol=0.2)
    np.testing.assert_allclose(streamed.covered.inside, in_memory.covered.inside, atol=0.02)
    np.testing.assert_allclose(streamed.covered.below, in_memory.covered.below, atol=0.02)
    np.testing.assert_allclose(streamed.skill["log"], in_memory.skill["log"], rtol=1e-4)
    assert (streamed.best(), streamed.ranking()) == (in_memory.best(), in_memory.ranking())
    lines, wanted = str(streamed).splitlines(), str(in_memory).splitlines()
    assert [line.split()[:1] for line in lines[:8]] == [line.split()[:1] for line in wanted[:8]]


@pytest.mark.slow
def test_the_value_of_any_predictions_is_the_equation(test_of_any, whole_of_any):
    """Normal claims, whose ranks are those of their distribution function: least squares of what
    the ranks say on claimed centres, whose deviation is 1 without a unit."""
    center = 0.2 + C
    u = jax.scipy.stats.norm.cdf(Y, center, 1.2)
    d = (np.asarray(u)[:, :, None] <= np.arange(0.05, 1, 0.1)) - np.arange(0.05, 1, 0.1)
    d = d.reshape(N, -1) / np.sqrt(10)
    first = 0.2 + C[:200]
    x = np.clip((center - first.mean(0)) / first.std(0), -3, 3)
    f = np.linalg.qr(np.concatenate([np.ones((N, 1)), x], axis=1))[0]
    alone = np.sum(np.sum(f**2, axis=1) * np.sum(d**2, axis=1))
    expected = (np.sum((f.T @ d) ** 2) - alone) / (2 * (N - 3))
    value = test_of_any.result(whole_of_any).corrected[0]
    # ranks are those among weighted points, with noise of their own
    np.testing.assert_allclose(value, expected, rtol=0.1)


@pytest.mark.slow
def test_of_any_predictions_no_order_or_share_changes_a_draw(test_of_any):
    """Densities have points of their own for each row; other predictions draw for a batch."""
    parts = [any_kind(slice(k, k + 750)) for k in range(0, N, 750)]
    forward, backward = test_of_any.run(parts), test_of_any.empty()
    for k in reversed(range(4)):
        backward = test_of_any.update(backward, *parts[k], first=750 * k)
    same(backward, forward)
    other = test_of_any.run(any_kind(slice(k, k + 500)) for k in range(0, N, 500))
    for name, total in forward.sums.items():
        of_density = np.asarray(other.sums[name])[1]
        np.testing.assert_allclose(total[1], of_density, rtol=1e-6, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_a_model_that_is_not_finite_has_no_value(test_of_any):
    models, y = any_kind(slice(0, 1100))
    models["density"] = Unnormalized(log_density, jnp.asarray(C[:1100]).at[7].set(jnp.nan))
    result = test_of_any.result(test_of_any.update(test_of_any.empty(), models, y))
    assert np.isfinite(result.corrected).tolist() == [True, False, True]
    assert result.nonfinite_predictions.tolist() == [0, 1, 0]
    assert "left out of the others' ranking: 1 of its predictions or targets are" in str(result)


@pytest.mark.slow
def test_other_targets_than_those_of_the_fit_are_refused(test_of_any):
    models = {name: dist.Normal(C[:30, 0], 1.0) for name in test_of_any.fit.names}
    with pytest.raises(ValueError, match=r"first sample have shape \(2,\), those of the batch"):
        test_of_any.update(test_of_any.empty(), models, Y[:30, 0])
    scores = Scores(jnp.zeros((9, 2)), jnp.zeros((9, 2)))
    with pytest.raises(TypeError, match=r"models\[a\]: scores alone give no ranks"):
        StreamedTest.comparison(0, {"a": scores, "b": scores}, Y[:9])


def test_what_cannot_be_compared_is_said(test, whole):
    with pytest.raises(ValueError, match=r"at least 1024 observations, got 50: `jaxcal.compare`"):
        test.result(test.update(test.empty(), *part(slice(0, 50))))
    with pytest.raises(ValueError, match="models: wanted true, over, under, got true, other"):
        test.update(test.empty(), {"true": TRUTH, "other": TRUTH}, LABELS)
    with pytest.raises(ValueError, match="the first sample had 3 classes, the batch has 2"):
        test.update(test.empty(), {name: q[:, 0] for name, q in MODELS.items()}, LABELS > 0)
    with pytest.raises(ValueError, match="rows 0 to 49 are in both states"):
        test.update(test.update(test.empty(), *part(slice(0, 50))), *part(slice(0, 50)), first=0)
    with pytest.raises(ValueError, match="a state of another test"):
        StreamedTest.comparison(1, *part(slice(0, 50)), n_draws=99).result(whole)
