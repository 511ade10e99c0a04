"""Rejection curves show the rates they are given, with intervals that equal a table and scipy's."""

import io

import numpy as np
import pytest
import scipy.stats

from jaxcal.plots.comparisons import STYLES, interval, rejections

X = [64, 128, 256, 512]


def series(ax, k):
    """Positions, rates, and the lower and upper ends of the intervals of series k."""
    line, _, (bars,) = ax.containers[k]
    ends = np.asarray([[segment[0, 1], segment[1, 1]] for segment in bars.get_segments()])
    return line.get_xdata(), line.get_ydata(), ends[:, 0], ends[:, 1]


@pytest.mark.parametrize("coverage", [0.5, 0.95])
def test_intervals_are_those_of_clopper_and_pearson(coverage):
    counts = np.asarray([0, 1, 5, 39, 40])
    low, high = interval(counts, 40, coverage)
    for k, a, b in zip(counts, low, high, strict=True):
        ci = scipy.stats.binomtest(int(k), 40).proportion_ci(coverage, method="exact")
        np.testing.assert_allclose([a, b], [ci.low, ci.high], atol=1e-12)


def test_intervals_hold_the_rate_as_often_as_they_say():
    for rate in (0.01, 0.05, 0.3, 0.9):
        counts = np.arange(61)
        low, high = interval(counts, 60, 0.9)
        weights = scipy.stats.binom.pmf(counts, 60, rate)
        assert np.sum(weights[(low <= rate) & (rate <= high)]) >= 0.9


def test_p_values_become_rates_and_nan_does_not_reject():
    p = np.full((4, 50), 0.5)
    p[1, :10], p[2, :25], p[3, :] = 0.05, 0.01, np.nan
    ax = rejections(X[:4], {"a": p}, label="n")
    at, rates, low, high = series(ax, 0)
    np.testing.assert_allclose(rates, [0, 0.2, 0.5, 0])
    np.testing.assert_allclose(at, X, rtol=0.05)
    wanted = interval(50 * rates, 50, 0.95)
    np.testing.assert_allclose([low, high], wanted, atol=1e-12)
    assert ax.get_xscale() == "log"
    assert ax.get_ylabel() == "rejection rate at level 0.05"
    ax.figure.savefig(io.BytesIO())


def of_counts(counts, trials):
    """P-values of which the first ``counts`` of each row reject."""
    return np.where(np.arange(trials) < np.asarray(counts)[:, None], 0.01, 0.9)


def test_settings_in_any_order():
    ax = rejections([1.0, 0.0, 0.5], {"a": of_counts([9, 1, 4], 10)}, label="shift")
    at, rates, _, _ = series(ax, 0)
    np.testing.assert_allclose(at, [0, 0.5, 1])
    np.testing.assert_allclose(rates, [0.1, 0.4, 0.9])
    assert ax.get_xscale() == "linear"
    assert ax.get_xlabel() == "shift"


def test_series_differ_without_colours_and_stay_apart():
    names = {f"test {k}": of_counts([10, 20, 30, 40], 100) for k in range(6)}
    ax = rejections(X, names)
    starts = [series(ax, k)[0][0] for k in range(6)]
    assert len(set(starts)) == 6
    assert [text.get_text() for text in ax.get_legend().get_texts()] == list(names)
    for k, one in enumerate(STYLES):
        for other in STYLES[:k]:
            assert sum(a != b for a, b in zip(one, other, strict=True)) >= 2


def test_wrong_arguments_are_named():
    with pytest.raises(ValueError, match=r"p_values\['a'\]: .* shape \(4, trials\), got \(3, 5\)"):
        rejections(X, {"a": np.ones((3, 5))})
    with pytest.raises(ValueError, match="from 0 to 1"):
        rejections(X, {"a": np.full((4, 5), 2.0)})
    good = {"a": np.ones((4, 5))}
    with pytest.raises(ValueError, match="at least one series"):
        rejections(X, {})
    with pytest.raises(ValueError, match="level"):
        rejections(X, good, level=5.0)
    with pytest.raises(ValueError, match="coverage"):
        rejections(X, good, coverage=95.0)
    with pytest.raises(ValueError, match="x: wanted the settings as one row"):
        rejections([X], good)
