"""Figures show the numbers of the result, and say so where there are none."""

import io
import subprocess
import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import jaxcal
from jaxcal import plots

N = 60


@pytest.fixture(scope="module")
def result():
    """Predictions N(x, I), of which the first coordinate is off by one."""
    x_key, noise_key, node_key = jax.random.split(jax.random.key(1), 3)
    xs = jax.random.normal(x_key, (N, 2))
    ys = xs + jax.random.normal(noise_key, (N, 2)) + jnp.array([[1.0, 0.0]])
    nodes = jax.random.normal(node_key, (5, 2))
    scores = jaxcal.Scores(xs - ys, xs[:, None] - nodes[None], nodes)
    return jaxcal.kccsd_test(jax.random.key(2), scores, ys, coordinates=True)


def without_numbers(result):
    broken = jax.tree.map(
        lambda a: jnp.full_like(a, jnp.nan) if jnp.issubdtype(a.dtype, jnp.floating) else a, result
    )
    return broken


@pytest.mark.slow
def test_the_histogram_holds_every_draw_and_the_statistic(result):
    ax = plots.null_histogram(result)
    assert sum(bar.get_height() for bar in ax.patches) == result.null_samples.size
    threshold, observed = ax.lines
    assert observed.get_xdata()[0] == pytest.approx(float(result.statistic))
    assert threshold.get_xdata()[0] == pytest.approx(np.quantile(result.null_samples, 0.95))
    assert "KCCSD" in ax.get_xlabel()
    assert "number" in ax.get_ylabel()
    assert any("p = " in text.get_text() for text in ax.get_legend().get_texts())


@pytest.mark.slow
def test_contributions_average_to_the_estimate_in_any_order(result):
    x = np.random.default_rng(0).permutation(N).astype(float)
    ax = plots.contributions(result, x, label="temperature (°C)")
    _, points, mean, estimate = ax.lines
    assert np.all(np.diff(points.get_xdata()) > 0)
    assert np.mean(points.get_ydata()) == pytest.approx(float(result.estimate))
    first = int(np.argmin(x))
    assert points.get_ydata()[0] == pytest.approx(N * float(result.contributions[first]))
    around = points.get_ydata()[27:33]  # N // 10 neighbours of the point 30
    assert mean.get_ydata()[30] == pytest.approx(np.mean(around))
    assert estimate.get_ydata()[0] == pytest.approx(float(result.estimate))
    assert ax.get_xlabel() == "temperature (°C)"


@pytest.mark.slow
def test_no_line_is_labelled_estimate_unless_it_is_the_average():
    x = np.random.default_rng(0).normal(size=N)
    predictions = dist.Normal(jnp.asarray(x), 1.0)
    tested = jaxcal.calibration_test(0, predictions, jnp.asarray(x + 0.8))
    apart = float(jnp.sum(tested.contributions) - tested.estimate)
    assert abs(apart) > 0.1 * abs(float(tested.estimate))
    assert plots.contributions(tested).get_xlabel() == "observation, in the order given"
    for ax in (plots.contributions(tested, x), plots.contributions(tested, x, bins=5)):
        assert ax.get_xlabel() == "x"
        shown = ax.get_legend_handles_labels()[1]
        assert shown
        assert "estimate" not in shown
        assert "log evidence" in ax.get_ylabel()


@pytest.mark.slow
def test_contributions_over_dates_are_labelled_as_dates(result):
    ax = plots.contributions(result, np.datetime64("2015-01-01") + np.arange(N), label="day")
    ax.figure.savefig(io.BytesIO())
    assert any("Feb" in tick.get_text() for tick in ax.get_xticklabels())


@pytest.mark.parametrize(
    ("lost", "bins"), [(np.nan, None), (np.nan, 5), (np.datetime64("NaT"), None)]
)
def test_contributions_over_missing_values_are_refused(result, lost, bins):
    with pytest.raises(ValueError, match="x: wanted finite numbers or dates, got NaN"):
        plots.contributions(result, np.full(N, lost), bins=bins)


def test_an_extreme_observation_outside_the_figure_is_counted(result):
    parts = result.contributions.at[3].set(100.0)
    ax = plots.contributions(eqx.tree_at(lambda r: r.contributions, result, parts))
    assert ax.get_ylim()[1] < N * 100
    assert any("1 outside" in text.get_text() for text in ax.get_legend().get_texts())


def test_coordinates_show_shift_spread_and_pairs_with_limits(result):
    split = result.coordinates
    assert split.marginal_spread is not None
    ax = plots.coordinates(result, ["tmax", "tmin"])
    labels = [tick.get_text() for tick in ax.get_yticklabels()]
    shown = {"o": split.marginal_mean, "s": split.marginal_spread, "D": split.correlation}
    shown = {m: part for m, part in shown.items() if np.all(np.isfinite(part.estimate))}
    expected = {
        "o": ["shift of tmax", "shift of tmin"],
        "s": ["spread of tmax", "spread of tmin"],
        "D": ["tmax with tmin"],
    }
    assert labels == [label for marker in shown for label in expected[marker]]
    rows = [line for line in ax.lines if len(line.get_ydata()) == 2 and line.get_marker() == "None"]
    dots = [line for line in ax.lines if line.get_marker() in "osD" and len(line.get_ydata())]
    for marker, part in shown.items():
        factor = 1 / np.log(2) if marker == "s" else 1
        sizes = [dot.get_xdata()[0] for dot in dots if dot.get_marker() == marker]
        np.testing.assert_allclose(sizes, factor * np.asarray(part.estimate))
    low, high = split.marginal_mean.low, split.marginal_mean.high
    np.testing.assert_allclose(rows[0].get_xdata(), [low[0], high[0]])
    adjusted = [float(p) for part in shown.values() for p in part.p_adjusted]
    assert [text.get_text() for text in ax.texts] == [f"p = {p:.2g}" for p in adjusted]
    assert [dot.get_markerfacecolor() for dot in dots] == [
        "black" if p <= result.level else "white" for p in adjusted
    ]
    legend = [text.get_text() for text in ax.get_legend().get_texts()]
    assert any("too high" in text for text in legend)


def test_coordinates_without_covariances_are_given_the_others(result):
    split = result.coordinates._replace(marginal_mean=None)
    given_others = eqx.tree_at(lambda r: r.coordinates, result, split)
    ax = plots.coordinates(given_others, ["tmax", "tmin"])
    assert "given the other coordinates" in ax.get_xlabel()
    widths = [bar.get_width() for bar in ax.patches]
    np.testing.assert_allclose(widths, result.coordinates.estimate)
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["tmax", "tmin"]
    assert [text.get_text() for text in ax.texts] == [
        f"p = {float(p):.2g}" for p in result.coordinates.p_adjusted
    ]
    shades = [bar.get_facecolor()[0] for bar in ax.patches]
    assert shades[0] < shades[1], "the coordinate that is off is darker"


@pytest.mark.parametrize(
    "draw", [plots.null_histogram, plots.contributions, plots.coordinates], ids=lambda f: f.__name__
)
def test_a_result_that_is_not_a_number_says_so(result, draw):
    ax = draw(without_numbers(result))
    assert any("no verdict" in text.get_text() for text in ax.texts)
    ax.figure.savefig(io.BytesIO())


def test_a_null_without_draws_says_so(result):
    empty = eqx.tree_at(lambda r: r.null_samples, result, jnp.zeros(0))
    assert any("formula" in text.get_text() for text in plots.null_histogram(empty).texts)


def test_figures_go_where_they_are_told(result):
    from matplotlib.figure import Figure

    axes = Figure().subplots(1, 3)
    assert plots.null_histogram(result, ax=axes[0]) is axes[0]
    assert plots.contributions(result, ax=axes[1]) is axes[1]
    assert plots.coordinates(result, ax=axes[2]) is axes[2]


def test_pyplot_saves_the_new_figure_and_few_stay_open(result):
    import matplotlib.pyplot as plt

    before, picture = set(plt.get_fignums()), io.BytesIO()
    ax = plots.null_histogram(result)
    assert plt.gca() is ax
    plt.savefig(picture, format="rgba")
    assert len(set(picture.getvalue())) > 2
    for _ in range(30):
        plots.contributions(result)
    assert len(set(plt.get_fignums()) - before) <= 10
    ax.figure.savefig(io.BytesIO())  # forgotten by pyplot, and whole


def test_wrong_arguments_are_named(result):
    with pytest.raises(ValueError, match=r"x: wanted one value per observation, shape \(60,\)"):
        plots.contributions(result, np.arange(3))
    with pytest.raises(ValueError, match="names: wanted 2, one per coordinate, got 1"):
        plots.coordinates(result, ["tmax"])
    whole = eqx.tree_at(lambda r: r.coordinates, result, None)
    with pytest.raises(ValueError, match="coordinates=True"):
        plots.coordinates(whole)
    batch = jax.tree.map(lambda a: jnp.stack([a, a]), result)
    with pytest.raises(ValueError, match="a figure shows one result"):
        plots.null_histogram(batch)


@pytest.mark.slow
def test_importing_jaxcal_and_its_plots_stays_light():
    code = (
        "import sys, jaxcal, jaxcal.plots; "
        "print([m for m in ('matplotlib', 'numpyro', 'optax') if m in sys.modules])"
    )
    process = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == "[]"
