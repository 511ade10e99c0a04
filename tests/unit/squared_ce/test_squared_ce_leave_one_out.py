"""The squared error from every row: the fit without a row, the claimed noise, and the interval."""

import sys

import jax
import numpy as np
import pytest
import scipy.special
import scipy.stats

from jaxcal import squared_ce
from jaxcal.squared_ce import leave_one_out
from jaxcal.squared_ce.leave_one_out import (
    Moments,
    _estimate,
    _functions,
    _of_ranks,
    _of_vectors,
    accepted,
)

SETS = 400


def binary(c, y):
    with jax.enable_x64(True):
        return squared_ce.reduce(c, y, "binary")


@pytest.mark.parametrize("n", [12, 100, 300])
def test_each_row_is_tested_by_the_fit_to_all_others(n):
    rng = np.random.default_rng(n)
    c = rng.random(n)
    y = (rng.random(n) < c**2).astype(int)
    k = _functions(n, 1)
    basis = np.cos(np.pi * (np.argsort(np.argsort(c)) + 0.5)[:, None] / n * np.arange(k))
    total = 0.0
    for i in range(n):
        others = np.arange(n) != i
        fit, *_ = np.linalg.lstsq(basis[others], (c - y)[others])
        total += (c - y)[i] * (basis[i] @ fit)
    result = leave_one_out(binary(c, y))
    assert result.functions == k
    assert result.squared == pytest.approx(total / n, rel=1e-6, abs=1e-9)
    assert float(result.interval.low) <= result.error <= float(result.interval.high)


def test_vectors_are_tested_by_the_fit_to_all_others_too():
    """Twelve functions of three classes at n = 60, by least squares without a row.

    Rows that nearly decide their own fit count less.
    """
    rng = np.random.default_rng(3)
    n, m = 60, 3
    p = rng.dirichlet(np.ones(m), n)
    y = np.sum((0.7 * p + 0.3 * p[:, [1, 2, 0]]).cumsum(1) < rng.random((n, 1)), axis=1)
    residuals = p - np.eye(m)[y]
    total = 0.0
    places = (np.argsort(np.argsort(p, axis=0), axis=0) + 0.5) / n
    for j in range(m):
        powers = [p[:, j] ** t / np.sum(p**t, axis=1) for t in (0.25, 0.5, 2, 4)]
        products = [p[:, j] * p[:, other] for other in range(m) if other != j]
        basis = np.stack([*p.T, *powers, *products, *np.cos(np.pi * places.T)], axis=1)
        inverse = np.linalg.pinv(basis)
        for i in range(n):
            others = np.arange(n) != i
            fit, *_ = np.linalg.lstsq(basis[others], residuals[others, j])
            rest = 1 - basis[i] @ inverse[:, i]
            total += residuals[i, j] * (basis[i] @ fit) * min(rest / 0.5, 1)
    with jax.enable_x64(True):
        result = leave_one_out(squared_ce.reduce(p, y, "canonical"))
    assert result.squared == pytest.approx(total / n, rel=1e-5, abs=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("power", [1.0, 0.3])
def test_the_interval_of_vectors_keeps_its_coverage(power):
    """Of five classes, calibrated and as in the simulation of the paper."""
    rng = np.random.default_rng(7)

    def draw(n):
        q = np.maximum(rng.dirichlet(np.full(5, 0.3), n), 1e-12)
        p = q**power / np.sum(q**power, axis=1, keepdims=True)
        return p, q / q.sum(axis=1, keepdims=True)

    p, q = draw(10**5)
    truth, covered, sets = np.mean(np.sum((p - q) ** 2, axis=1)), 0, 100
    for _ in range(sets):
        p, q = draw(150)
        y = np.minimum(np.sum(q.cumsum(1) < rng.random((150, 1)), axis=1), 4)
        squared, moments = _estimate(p, p - np.eye(5)[y], _of_vectors(p))
        low, high = accepted(squared, moments, 0.05, 2.0)
        covered += low <= truth + 1e-12 and truth <= high + 1e-12
    assert covered >= scipy.stats.binom.ppf(0.001, sets, 0.95)


@pytest.mark.parametrize(("n", "m"), [(4, 3), (60, 40), (200, 2)])
def test_there_are_never_too_many_functions_of_vectors(n, m):
    p = np.random.default_rng(n).dirichlet(np.ones(m), n)
    q = _of_vectors(p)
    assert q.shape[2] <= max(n // 4, 1)
    assert np.all(np.isfinite(q))
    assert np.max(np.sum(q**2, axis=2)) <= 1 + 1e-9
    most = 2.0**0.5
    with jax.enable_x64(True):
        result = leave_one_out(squared_ce.reduce(p, np.arange(n) % m, "canonical"))
    assert 0 <= float(result.interval.low) <= float(result.interval.high) <= most


@pytest.mark.parametrize("notion", ["canonical", "class-wise"])
@pytest.mark.parametrize("limit", ["STORED", "ALTOGETHER"])
def test_overconfidence_is_seen_where_functions_are_few(notion, limit, monkeypatch):
    """The class means are right, so a constant shows nothing."""
    rng = np.random.default_rng(0)
    n, m = 400, 10
    q = scipy.special.softmax(2 * rng.normal(size=(n, m)), axis=1)
    p = q**3 / np.sum(q**3, axis=1, keepdims=True)
    y = np.minimum(np.sum(q.cumsum(1) < rng.random((n, 1)), axis=1), m - 1)
    with jax.enable_x64(True):
        problem = squared_ce.reduce(p, y, notion)
    module = sys.modules[_estimate.__module__]
    monkeypatch.setattr(module, limit, n * m if limit == "STORED" else 2 * m)
    result = leave_one_out(problem)
    assert result.functions == 2
    assert result.interval.low > 0.2
    assert result.error > 0.8 * np.mean(np.sum((p - q) ** 2, axis=1)) ** 0.5
    monkeypatch.setattr(module, "ALTOGETHER", 2 * m - 1)
    with pytest.raises(ValueError, match='wanted <= 9 classes, got 10: notion="top-label"'):
        leave_one_out(problem)


def test_class_wise_error_is_twice_the_binary_error():
    rng = np.random.default_rng(0)
    c = rng.random(80)
    y = (rng.random(80) < c**2).astype(int)
    with jax.enable_x64(True):
        both = squared_ce.reduce(np.stack([1 - c, c], axis=1), y, "class-wise")
    one, two = leave_one_out(binary(c, y)), leave_one_out(both)
    assert two.squared == pytest.approx(2 * one.squared, rel=1e-9)
    ends = np.array(one.interval[:2])
    np.testing.assert_allclose(two.interval[:2], ends * 2**0.5, rtol=1e-6)


@pytest.mark.parametrize("n", [60, pytest.param(200, marks=pytest.mark.slow)])
def test_moments_are_those_of_calibrated_data(n):
    """Mean 0; variance and skewness as claimed, by simulation, for two dependent classes too."""
    rng = np.random.default_rng(n)
    p = rng.dirichlet([1, 1, 1], n)[:, :2]
    q = np.stack([_of_ranks(c, _functions(n, 2)) for c in p.T], axis=1)
    *_, moments = _estimate(p, p, q)
    estimates = []
    for _ in range(4000):
        u = rng.random(n)
        o = np.stack([u < p[:, 0], (u >= p[:, 0]) & (u < p.sum(axis=1))], axis=1)
        estimates.append(_estimate(p, p - o, q)[0])
    scale = np.std(estimates)
    assert abs(np.mean(estimates)) < 4 * scale / 4000**0.5
    # what 1 / (1 - leverage) adds
    assert moments.noise == pytest.approx(scale**2, rel=0.15 + 8 / n)
    assert moments.noise3 > 0
    assert scipy.stats.skew(estimates) == pytest.approx(
        moments.noise3 / moments.noise**1.5, rel=0.25
    )


@pytest.mark.parametrize(
    ("draw", "rate"),
    [
        (lambda rng, n: rng.uniform(0.5, 1, n), lambda c: c),
        pytest.param(lambda rng, n: rng.beta(6, 1, n), lambda c: c**1.5, marks=pytest.mark.slow),
        pytest.param(lambda rng, n: rng.random(n), lambda c: c**2, marks=pytest.mark.slow),
    ],
)
def test_the_interval_holds_the_error_as_often_as_it_says(draw, rate):
    rng = np.random.default_rng(1)
    large = draw(rng, 10**6)
    truth = np.mean((large - rate(large)) ** 2)
    covered = 0
    for _ in range(SETS):
        c = draw(rng, 200)
        residuals = c - (rng.random(200) < rate(c))
        squared, moments = _estimate(
            c[:, None], residuals[:, None], _of_ranks(c, _functions(200, 1))[:, None]
        )
        low, high = accepted(squared, moments, 0.05, 1.0)
        covered += low <= truth + 1e-12 and truth <= high + 1e-12
    low, high = scipy.stats.binom.interval(0.999, SETS, 0.95)
    assert low <= covered <= high + 4


def test_far_from_zero_the_interval_is_the_normal_one():
    moments = Moments(noise=1e-8, slope=1e-8, rows=0.0, noise3=0.0, slope3=0.0)
    low, high = accepted(0.5, moments, 0.1, 1.0)
    half = scipy.stats.norm.ppf(0.95) * 1.5e-8**0.5
    np.testing.assert_allclose([low, high], [0.5 - half, 0.5 + half], atol=2e-3 * half)


def test_at_zero_the_test_is_one_sided():
    moments = Moments(noise=1e-6, slope=0.0, rows=0.0, noise3=0.0, slope3=0.0)
    for z, zero in [(1.6, True), (1.7, False)]:
        low, _ = accepted(z * 1e-3, moments, 0.05, 1.0)
        assert (low == 0) == zero


def test_ends_are_possible_errors():
    for y in (0, 1):
        result = leave_one_out(binary(np.full(20, 1 - y * 1.0), np.full(20, y)))
        assert result.error == pytest.approx(1)
        assert 0 <= float(result.interval.low) <= float(result.interval.high) <= 1


def exact(wrong, n):
    """Return the ends of the Clopper-Pearson interval of a rate, of confidence .95."""
    return scipy.stats.binomtest(wrong, n).proportion_ci(0.95, "exact")


@pytest.mark.parametrize("p", [1.0, 1 - 1e-7, 0.999])
@pytest.mark.parametrize("wrong", [0, 1, 2, 3, 4])
def test_few_wrong_of_certain_ones_do_not_shorten_intervals(p, wrong):
    n = 50
    interval = leave_one_out(binary(np.full(n, p), np.arange(n) >= wrong)).interval
    low, high = exact(wrong, n)
    assert float(interval.low) <= low + 3e-3
    assert high - 2e-3 <= float(interval.high) <= 2.2 * high


def test_labels_that_are_all_equal_have_a_variance():
    low, high = leave_one_out(binary(np.full(200, 0.9), np.ones(200, int))).interval[:2]
    assert low <= exact(200, 200).low - 0.9  # the rate may be lower than 1
    assert high >= 0.1
    low, high = leave_one_out(binary(np.ones(50), np.zeros(50, int))).interval[:2]
    assert 0.85 < low <= exact(50, 50).low + 2e-3
    assert high == pytest.approx(1)


@pytest.mark.parametrize("notion", ["binary", "class-wise", "canonical"])
def test_certain_predictions_hold_the_error_as_often_too(notion):
    """100 predictions of three classes are certain of 0, 100 of 1, of which 3 % err; exactly."""
    predicted = np.arange(200) % 2
    p = predicted * 1.0 if notion == "binary" else np.eye(3)[predicted]
    truth, covered = 0.03 * (0.5 if notion == "binary" else 1.0) ** 0.5, 0.0
    for wrong in range(12):
        y = np.where(np.arange(200) < 2 * wrong, 0, predicted)
        with jax.enable_x64(True):
            low, high = leave_one_out(squared_ce.reduce(p, y, notion)).interval[:2]
        covered += scipy.stats.binom.pmf(wrong, 100, 0.03) * (low <= truth <= high)
    assert covered >= 0.95


def test_errors_of_one_of_many_certain_classes_may_be_unseen():
    """Of 20 classes, 20 rows each, all right: one class may err in 10 % (.12 of data sets)."""
    p = np.eye(20)[np.arange(400) % 20]
    with jax.enable_x64(True):
        result = leave_one_out(squared_ce.reduce(p, np.arange(400) % 20, "canonical"))
    assert result.interval.high > 0.1 * (2 / 20) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["binary", "stratified"])
def test_no_estimate_however_low_has_an_interval_of_no_width(kind):
    """Of 100 calibrated rows: some estimates are below what noise of the claimed size allows."""
    rng = np.random.default_rng(0)
    for _ in range(100):
        p = rng.dirichlet([1, 1, 1], 400)
        y = np.sum(p.cumsum(1) < rng.random((400, 1)), axis=1)
        if kind == "binary":
            result = leave_one_out(binary(p[:100, 0], y[:100] == 0))
        else:
            kept = np.concatenate([np.flatnonzero(y == k)[: np.sum(y == k) // 4] for k in range(3)])
            with jax.enable_x64(True):
                result = leave_one_out(squared_ce.reduce(p[kept], y[kept], "class-wise"))
        assert float(result.interval.high) > 0.08


def test_bad_input():
    p = np.random.default_rng(3).dirichlet([1, 1, 1], 20)
    with pytest.raises(ValueError, match="problem: wanted at least 4 rows"):
        leave_one_out(binary(np.full(3, 0.5), np.array([0, 1, 1])))
    with pytest.raises(TypeError, match="problem"):
        leave_one_out(p)  # pyright: ignore[reportArgumentType]
