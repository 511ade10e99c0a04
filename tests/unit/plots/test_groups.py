"""Contributions in groups of observations are the estimate, taken apart."""

import io

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest

import jaxcal
from jaxcal.plots import contributions
from jaxcal.plots.canvas import mean_parts
from jaxcal.plots.results import along

N = 120


@pytest.fixture(scope="module")
def tested():
    """Predictions N(x, 1), wrong by 2 where x > 0.5; the result and inputs."""
    x_key, noise_key, node_key = jax.random.split(jax.random.key(1), 3)
    xs = jax.random.uniform(x_key, (N, 1), minval=-1)
    ys = xs + jax.random.normal(noise_key, (N, 1)) + jnp.where(xs > 0.5, 2.0, 0.0)
    nodes = jax.random.normal(node_key, (5, 1))
    scores = jaxcal.Scores(xs - ys, xs[:, None] - nodes[None], nodes)
    result = jaxcal.kccsd_test(jax.random.key(2), scores, ys, null=jaxcal.nulls.Wild(50))
    return result, np.asarray(xs[:, 0])


def drawn(ax):
    line = ax.containers[-1][0]
    return line.get_xdata(), line.get_ydata()


@pytest.mark.slow
def test_bins_hold_equally_many_and_average_to_the_estimate(tested):
    result, xs = tested
    ax = contributions(result, xs, bins=6, label="dose (mg)")
    at, means = drawn(ax)
    assert np.all(np.diff(at) > 0)
    assert np.mean(means) == pytest.approx(float(result.estimate))  # 20 in every bin
    assert np.argmax(means) >= 4, "the fault is at large inputs"
    assert ax.get_xlabel() == "dose (mg)"
    ax.figure.savefig(io.BytesIO())


def test_bars_are_two_standard_errors(tested):
    result, xs = tested
    ax = contributions(result, xs, bins=6)
    _, _, bars = ax.containers[-1]
    segments = next(b for b in bars if np.ptp(b.get_segments()[0][:, 1]) > 0).get_segments()
    parts = N * np.asarray(result.contributions)[np.argsort(xs)][:20]
    error = np.std(parts, ddof=1) / 20**0.5
    assert np.ptp(segments[0][:, 1]) == pytest.approx(4 * error)


def test_text_makes_one_bar_a_group(tested):
    result, xs = tested
    where = np.where(xs > 0.5, "late", "early")
    ax = contributions(result, where, label="half")
    _, means = drawn(ax)
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["early", "late"]
    parts = N * np.asarray(result.contributions)
    np.testing.assert_allclose(means, [parts[where == g].mean() for g in ("early", "late")])


def test_means_weighted_by_numbers_are_the_estimate(tested):
    result, xs = tested
    groups = (xs > 0.2).astype(int)
    means, errors = mean_parts(N * np.asarray(result.contributions), groups, 3)
    total = np.nansum(means * np.bincount(groups, minlength=3)) / N
    assert total == pytest.approx(float(result.estimate))
    assert np.isnan(means[2])
    assert np.isnan(errors[2])


@pytest.mark.parametrize("x", [np.zeros(N), np.arange(N) % 2, np.repeat([0.0, 1.0], [N - 1, 1])])
def test_few_different_values_make_few_bins(tested, x):
    for bins in (1, 10, 1000):
        ax = contributions(tested[0], x, bins=bins)
        assert len(drawn(ax)[0]) <= max(1, len(np.unique(x)))


def test_a_result_that_is_not_a_number_says_so(tested):
    result, xs = tested
    broken = eqx.tree_at(lambda r: r.contributions, result, jnp.full(N, jnp.nan))
    assert any("no verdict" in text.get_text() for text in contributions(broken, xs, bins=10).texts)


def test_wrong_arguments_are_named(tested):
    result, xs = tested
    with pytest.raises(ValueError, match=r"x: wanted one value per observation, shape \(120,\)"):
        contributions(result, xs[:3], bins=10)
    with pytest.raises(ValueError, match="x: wanted finite numbers"):
        contributions(result, np.full(N, np.nan), bins=10)
    with pytest.raises(ValueError, match="x: wanted numbers or text with bins, got datetime64"):
        contributions(result, np.datetime64("2015-01-01") + np.arange(N), bins=10)
    with pytest.raises(ValueError, match="bins: wanted a whole number"):
        contributions(result, xs, bins=0)
    batch = jax.tree.map(lambda a: jnp.stack([a, a]), result)
    with pytest.raises(ValueError, match="a figure shows one result"):
        contributions(batch, xs, bins=10)


@pytest.mark.parametrize("form", [list, pd.Series, pd.Categorical, lambda x: np.array(x, object)])
def test_text_of_any_kind_makes_groups(form):
    assert along(form(["a", "b", "a"]), 3).tolist() == ["a", "b", "a"]
