"""Shift and spread along inputs: the band holds what it says, and shows what is there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.signal
import scipy.stats

import jaxcal
from jaxcal import plots
from jaxcal.plots.where import effects

N = 300


@pytest.fixture(scope="module")
def tested():
    """Gaussians that are too low by .8 where x_1 > .5, and too narrow where x_2 > 0."""
    x = jax.random.uniform(jax.random.key(0), (N, 2), minval=-1)
    centers, noise = jax.random.normal(jax.random.key(1), (2, N, 1))
    ys = centers + jnp.where(x[:, 1:] > 0, 1.8, 1.0) * noise + jnp.where(x[:, :1] > 0.5, 0.8, 0.0)
    predictions = jaxcal.Unnormalized(lambda c, y: -jnp.sum((y - c) ** 2) / 2, centers)
    result = jaxcal.calibration_test(2, predictions, ys, inputs=x, null=jaxcal.nulls.Wild(99))
    return result, np.asarray(x)


@pytest.mark.slow
def test_ranks_are_where_targets_stand(tested):
    ranks = np.asarray(tested[0].ranks)
    assert ranks.shape == (N, 2)
    assert np.all((ranks >= 0) & (ranks <= 1))


@pytest.mark.slow
def test_effects_show_where_predictions_are_off(tested):
    result, x = tested
    ax = plots.where(result, x[:, 0], label="$x_1$")
    at, shown = ax.containers[0][0].get_data()
    assert np.all(np.diff(at) > 0)
    assert np.all(np.asarray(shown)[np.asarray(at) > 0.6] < -0.3), "too low: below 0"
    assert ax.get_xlabel() == "$x_1$"
    ax = plots.where(result, x[:, 1], effect="spread", bins=2)
    shown = np.asarray(ax.containers[0][0].get_ydata())
    assert shown[1] - shown[0] == pytest.approx(-np.log(1.8), abs=0.25)


@pytest.mark.slow
def test_a_map_frames_the_cells_that_stand_out(tested):
    result, x = tested
    ax = plots.where(result, x, label=("a", "b"))
    assert len(ax.texts) == 9
    framed = [text.get_bbox_patch().get_edgecolor()[3] > 0 for text in ax.texts]
    assert framed[2] or framed[8], "where the first input is large"
    assert not any(framed[0::3] + framed[1::3])
    assert ax.get_xlabel().startswith("a (")
    assert ax.get_ylabel().startswith("b (")


def test_limits_hold_in_all_bins_together(key):
    """Of normal scores in 8 groups of about 30, in 2,000 data sets."""
    z = np.asarray(jax.random.normal(key, (2000, 240)), float)
    group = np.arange(240) % 8
    for effect in ("shift", "spread"):
        off = [effects(row, group, 8, effect, 0.05) for row in z]
        count = sum(np.any((part.low > 0) | (part.high < 0)) for part in off)
        low, high = scipy.stats.binom.interval(0.9999, 2000, 0.05)
        assert low * 0.9 <= count <= high  # Bonferroni's correction is below by a twentieth


@pytest.mark.slow
def test_few_values_and_bad_input(tested):
    result, x = tested
    for one in (np.zeros(N), np.arange(N) % 2, np.repeat([0.0, 1.0], [N - 1, 1])):
        for bins in (1, 7, 1000):
            plots.where(result, one, bins=bins)
    for words, options in [
        ("x: wanted", {"x": x[:-1]}),
        ("x: wanted finite", {"x": np.full(N, np.nan)}),
        ("effect", {"x": x, "effect": "tails"}),
        ("coordinate", {"x": x, "coordinate": 1}),
        ("bins", {"x": x, "bins": 0}),
        ("label", {"x": x, "label": ("a",)}),
    ]:
        with pytest.raises(ValueError, match=words):
            plots.where(result, **options)
    other = jaxcal.skce_test(0, np.full((20, 2), 0.5), np.arange(20) % 2)
    with pytest.raises(ValueError, match="no ranks"):
        plots.where(other, np.arange(20.0))


@pytest.mark.slow
@pytest.mark.parametrize("effect", ["shift", "spread"])
def test_limits_of_a_series_hold_the_truth_in_all_groups(effect):
    """Groups are stretches of time, of 100 normal scores of correlation .8."""
    noise = np.random.default_rng(0).normal(size=(40, 500))
    series = scipy.signal.lfilter([0.6], [1, -0.8], noise)[:, 200:]
    covered = {False: 0, True: 0}
    for z in series:
        for in_order in covered:
            of = effects(z, np.arange(300) // 100, 3, effect, 0.05, in_order)
            covered[in_order] += bool(np.all((of.low <= 0) & (of.high >= 0)))
    least = scipy.stats.binom.ppf(1e-3, 40, 0.92)
    assert covered[True] >= least > covered[False]
