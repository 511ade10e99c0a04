"""Draws and log densities that come from other libraries, for coverage and ranks."""

from functools import partial
from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
import scipy.stats

import jaxcal
from jaxcal import LogDensities, Unnormalized, sbi
from jaxcal.candidates import exchangeability_test
from jaxcal.candidates.exchangeability import uniformity
from jaxcal.coverage import coverage
from jaxcal.entries.saturation import FACTORS, SHIFTS, Directions, tables
from jaxcal.results import in_one_order
from jaxcal.sbi.adapters import as_draws, paired
from jaxcal.sbi.ranks import diagnosed, rank_draws, ranks_among_draws
from jaxcal.streaming import StreamedTest

N, M, D = 40, 9, 2
KEY = jax.random.key(0)


def log_prob(theta, x):
    return -jnp.sum((theta - x) ** 2) / 2


@pytest.fixture(scope="module")
def drawn():
    thetas, xs = jax.random.normal(KEY, (2, N, D))
    return thetas, xs, xs[:, None] + jax.random.normal(jax.random.key(1), (N, M, D))


def test_coverage_is_the_same_from_precomputed_log_densities(drawn):
    thetas, xs, draws = drawn
    posteriors = sbi.predictions(log_prob, xs)
    wanted = coverage(posteriors, thetas, draws)
    here = -jnp.sum((thetas - xs) ** 2, axis=1) / 2
    there = -jnp.sum((draws - xs[:, None]) ** 2, axis=2) / 2
    result = coverage(LogDensities(here, there), level=0.1)
    np.testing.assert_array_equal(result.counts, wanted.counts)
    np.testing.assert_allclose(result.observed, wanted.observed, rtol=1e-12)
    assert float(result.p_uniform) == pytest.approx(float(wanted.p_uniform), rel=1e-12)
    assert (result.level, result.draws) == (0.1, M)
    unknown = coverage(LogDensities(here.at[3].set(jnp.nan), there))
    assert np.isnan(float(unknown.p_uniform))


@pytest.mark.parametrize(
    ("here", "there", "message"),
    [
        (np.ones((N, 1)), np.ones((N, M)), "wanted at_targets"),
        (np.ones(N), np.ones((M, N)), "wanted at_targets"),
        (np.ones(N), np.ones((N, 0)), "at least 1 draw"),
    ],
)
def test_log_densities_of_other_shapes_are_named(here, there, message):
    with pytest.raises(ValueError, match=message):
        coverage(LogDensities(here, there))
    with pytest.raises(TypeError, match="already those at targets and draws"):
        coverage(LogDensities(np.ones(N), np.ones((N, M))), np.ones(N))


@pytest.mark.slow
def test_predictions_are_over_the_parameters_as_they_are(drawn):
    thetas, xs, _ = drawn
    assert isinstance(sbi.predictions(log_prob, xs), Unnormalized)
    of_x = sbi.predictions(lambda xs: dist.Normal(xs, 1.0).to_event(1), xs)
    np.testing.assert_allclose(
        of_x.log_prob(thetas)[0], log_prob(thetas[0], xs[0]) - np.log(2 * np.pi)
    )
    with pytest.raises(TypeError, match="Scores has no log densities"):
        sbi.predictions(sbi.score_pairs(KEY, log_prob, *drawn[:2]).scores, xs)
    result = exchangeability_test(KEY, sbi.predictions(log_prob, xs), xs + 0.1)
    assert 0 < float(result.p_value) <= 1


def test_draws_of_bayesflow_and_arrays_are_one_array(drawn):
    _, _, draws = drawn
    np.testing.assert_array_equal(as_draws(draws), draws)
    np.testing.assert_array_equal(as_draws(draws[:, :, 0])[..., 0], draws[:, :, 0])
    sampled = {"a": np.asarray(draws[:, :, :1]), "b": np.asarray(draws[:, :, 1])}
    np.testing.assert_array_equal(as_draws(sampled), draws)
    swapped = paired(sampled, np.ones((N, D)), names=["b", "a"])[0]
    np.testing.assert_array_equal(swapped, draws[:, :, ::-1])
    for junk, error, message in (
        ({"a": np.ones((3, 4)), "b": np.ones((3, 5))}, ValueError, "the same n and m"),
        (np.ones(3), ValueError, r"shape \[n, m, d\]"),
        ({}, ValueError, "no variable"),
        ({"a": np.zeros((3, 0))}, ValueError, "at least one number"),
        ("draws", TypeError, "draws"),
        (None, TypeError, "draws"),
    ):
        with pytest.raises(error, match=message):
            as_draws(junk)


@pytest.mark.slow
def test_lists_of_dicts_and_frames_of_columns_are_one_array(drawn):
    import pandas as pd

    _, _, draws = drawn
    each = [{"a": one[:, 0], "b": one[:, 1:]} for one in np.asarray(draws)]
    np.testing.assert_array_equal(as_draws(each), draws)
    swapped = paired(tuple(each), np.ones((N, D)), ["b", "a"])[0]
    np.testing.assert_array_equal(swapped, draws[:, :, ::-1])
    frames = [pd.DataFrame(np.asarray(one), columns=["a", "b"]) for one in draws]
    np.testing.assert_array_equal(as_draws(frames), draws)
    thetas = {"b": np.zeros(N), "a": np.ones(N)}
    assert sbi.check_draws(0, frames, thetas).statistics == ("distance", "b", "a")
    short = [*each[:-1], {name: column[1:] for name, column in each[-1].items()}]
    for junk, message in (
        (short, r"the shape of 'a' is \(9,\) in one .*stack them to \[n, m, d\]"),
        ([*each[:-1], {"a": np.ones(M)}], "the same columns"),
        ([*each[:-1], np.ones((M, D))], "the same columns"),
    ):
        with pytest.raises(ValueError, match=message):
            as_draws(junk)


@pytest.mark.slow
def test_draws_of_bayesflow_are_ranked_by_variable():
    """Its samples and targets are dicts of [n, m, k] and [n, k]."""
    keys = jax.random.split(KEY, 3)
    targets = {"a": jax.random.normal(keys[1], (60, 1)), "b": jax.random.normal(keys[0], (60, 2))}
    draws = jax.random.normal(keys[2], (60, 19, 3))
    result = sbi.check_draws(5, {"a": draws[:, :, :1] + 1.0, "b": draws[:, :, 1:]}, targets)
    assert result.statistics == ("distance", "a", "b[0]", "b[1]")
    assert result.p_values[1] < 1e-6 < 0.01 < min(result.p_values[2:])


@pytest.mark.optional("xarray")
def test_ranks_are_a_tree_of_xarray_as_arviz_draws_them():
    """One variable for each statistic; of arviz 1 the plot itself."""
    draws = jax.random.normal(KEY, (50, 9, 2))
    result = sbi.check_draws(0, draws, draws[:, 0], names=["a", "b"])
    group = result.to_datatree()["prior_sbc"]
    assert list(group.data_vars) == ["distance", "a", "b"]
    assert dict(group.sizes) == {"chain": 1, "draw": 50}
    np.testing.assert_array_equal(group["b"].values[0], result.ranks[:, 2])
    if find_spec("arviz_plots"):
        import arviz_plots

        panels = arviz_plots.plot_ecdf_pit(result.to_datatree(), backend="none")
        assert list(panels.viz["ecdf_lines"].data_vars) == ["distance", "a", "b"]


@pytest.mark.optional("arviz")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_chains_of_arviz_are_thinned_to_independent_draws():
    """An autoregression of 4 x 500 steps with lag-one correlation 0.9 is worth 105 draws."""
    import arviz

    rng = np.random.default_rng(0)
    data = []
    for i in range(6):
        steps = rng.normal(size=(4, 500, D)) * np.sqrt(1 - 0.9**2)
        chain = np.empty_like(steps)
        chain[:, 0] = rng.normal(size=(4, D))
        for t in range(1, 500):
            chain[:, t] = 0.9 * chain[:, t - 1] + steps[:, t]
        groups = {"posterior": {"a": chain[..., 0] + i, "b": chain[..., 1:]}}
        is_old = arviz.__version__.startswith("0.")  # since arviz 1 it is a tree of xarray
        data.append(arviz.from_dict(**groups) if is_old else arviz.from_dict(groups))
    draws = np.asarray(as_draws(data))
    assert draws.shape[0] == 6
    assert draws.shape[2] == D
    assert 2000 * 0.1 / 1.9 / 2 < draws.shape[1] < 2000 * 0.1 / 1.9 * 1.6
    centered = draws[:, :, 0] - np.arange(6)[:, None]
    lag = np.mean(centered[:, 1:] * centered[:, :-1]) / np.mean(centered**2)
    assert abs(lag) < 0.35  # of neighbours, 0.9 in the chain
    one = f"got one {type(data[0]).__name__}, which is about one observation"
    with pytest.raises(TypeError, match=one):
        as_draws(data[0])
    with pytest.raises(TypeError, match=one):
        sbi.check_draws(0, data[0], {"a": np.zeros(6), "b": np.zeros(6)})


@pytest.mark.slow
def test_draws_alone_are_ranked(drawn):
    """Exact draws pass, shifted ones are found in their parameter; other shapes are named."""
    keys = jax.random.split(KEY, 2)
    thetas = jax.random.normal(keys[0], (200, D))
    draws = jax.random.normal(keys[1], (200, 20, D))
    right = sbi.check_draws(0, {"a": draws[..., 0], "b": draws[..., 1]}, thetas, names="ab")
    assert right.statistics == ("distance", "a", "b")
    assert float(right.p_value) > 0.01
    off = sbi.check_draws(
        0, draws + jnp.asarray([0.0, 1.0])[None, None], thetas * 1.0, thetas[:, :1]
    )
    assert float(off.p_values[2]) < 1e-6 < 0.01 < float(off.p_values[1])
    with pytest.raises(ValueError, match="transpose the first two axes"):
        sbi.check_draws(0, jnp.swapaxes(draws, 0, 1), thetas)
    with pytest.raises(ValueError, match="m >= 2 draws"):
        sbi.check_draws(0, draws[:, :1], thetas)


@pytest.mark.slow
@pytest.mark.parametrize("m", [9, 99])
@pytest.mark.parametrize("factor", [0.5, 1.0, 2.0])
def test_normal_scores_of_ranks_are_blurred_as_simulated(m, factor):
    """Against 200,000 ranks; the standard error of a deviation is below its size over 400."""
    random = np.random.default_rng(m)
    below = random.binomial(m, scipy.stats.norm.cdf(factor * random.normal(size=200_000)))
    scores = scipy.stats.norm.ppf((below + random.random(len(below))) / (m + 1))
    wanted = np.exp(np.interp(np.log(factor), FACTORS, tables(m)["log"][len(SHIFTS) // 2]))
    np.testing.assert_allclose(np.std(scores), wanted, rtol=0.01)


@pytest.mark.parametrize(("m", "factor"), [(10, 0.7), (10, 1.5), (49, 1.0)])
def test_effects_by_ranks_look_smaller_as_simulated(m, factor):
    random = np.random.default_rng(m)
    targets, u = factor * random.normal(size=100_000), random.random(100_000)

    def scores(shift):
        below = random.binomial(m, scipy.stats.norm.cdf(targets + shift))
        return scipy.stats.norm.ppf((below + u) / (m + 1))

    plain, (up, down) = scores(0), (np.mean(scores(shift)) for shift in (0.25, -0.25))
    at = jnp.zeros(1), jnp.log(jnp.asarray([factor]))
    assert abs((up - down) / 0.5 - float(Directions.at(*at, m).shift_rise[0])) < 0.025
    wanted = np.interp(np.log(factor), FACTORS, tables(m)["agreement"])
    assert abs(np.corrcoef(targets, plain)[0, 1] - wanted) < 0.005


@pytest.mark.slow
def test_a_shift_by_ranks_among_few_draws_is_corrected():
    m, random = 6, np.random.default_rng(0)
    below = random.binomial(m, scipy.stats.norm.cdf(random.normal(size=4000) + 0.5))
    ranks = jnp.asarray((below + random.random(4000)) / (m + 1))[:, None]
    shift = diagnosed(jax.random.key(0), ranks, None, 0.05, m).shift
    plain = diagnosed(jax.random.key(0), ranks, None, 0.05, None).shift
    assert shift.low[0] < -0.5 < shift.high[0]  # claimed too low
    assert plain.low[0] > -0.5
    np.testing.assert_allclose(shift.p_value, plain.p_value)
    np.testing.assert_allclose(
        shift.estimate / shift.standard_error, plain.estimate / plain.standard_error, rtol=0.1
    )


@partial(jax.jit, static_argnames=("n", "m"))
def limits_of_spreads(keys, factor, n, m):
    def one(key):
        keys = jax.random.split(key, 4)
        x = jax.random.normal(keys[0], (n, 1))
        thetas = x + factor * jax.random.normal(keys[1], (n, 1))
        draws = x[:, None] + jax.random.normal(keys[2], (n, m, 1))
        diagnosis = rank_draws(keys[3], draws, thetas, None, ("a",), level=0.05).diagnosis
        return diagnosis.marginal_spread.low[0], diagnosis.marginal_spread.high[0]

    return jax.lax.map(one, keys, batch_size=20)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "m"), [(200, 20), (50, 100)])
@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_limits_of_a_spread_hold_it_also_among_few_draws(factor, n, m, key):
    """Among 19 draws twice the claimed width looks like 1.47 times it."""
    sets = 200
    low, high = limits_of_spreads(jax.random.split(key, sets), factor, n, m)
    covered = (low <= -np.log(factor)) & (-np.log(factor) <= high)
    assert int(jnp.sum(covered)) >= scipy.stats.binom.ppf(0.001, sets, 0.95)


@pytest.mark.slow
@pytest.mark.parametrize("n", [50, 200])
def test_a_right_parameter_is_not_named_beside_a_wrong_one(n, key):
    """Posteriors of correlation .8; the draws of "a" are half as wide as they should be."""
    sets, root = 400, jnp.asarray([[1.0, 0.0], [0.8, 0.6]])

    def one(key):
        keys = jax.random.split(key, 4)
        x = jax.random.normal(keys[0], (n, 2))
        thetas = x + jax.random.normal(keys[1], (n, 2)) @ root.T
        noise = jax.random.normal(keys[2], (n, 20, 2)) @ root.T
        draws = x[:, None] + noise * jnp.asarray([[[0.5, 1.0]]])
        d = rank_draws(keys[3], draws, thetas, None, ("a", "b"), level=0.05).diagnosis
        return jnp.minimum(d.shift.p_adjusted, d.marginal_spread.p_adjusted)

    named = jax.lax.map(one, jax.random.split(key, sets), batch_size=20) <= 0.05
    assert int(jnp.sum(named[:, 0])) > 0.95 * sets
    # Holm's correction is for each of the two kinds
    assert int(jnp.sum(named[:, 1])) <= scipy.stats.binom.ppf(0.999, sets, 0.1)


@pytest.mark.slow
def test_ranks_of_draws_say_what_is_off():
    random = np.random.default_rng(1)
    x = random.normal(size=(300, 2))
    draws = x[:, None] + random.normal(size=(300, 20, 2))
    result = sbi.check_draws(0, draws, x + random.normal(size=(300, 2)) * [2.0, 1.0])
    lines = str(result).splitlines()
    assert lines[-1].startswith("  - theta_1 is overconfident (too narrow) by itself")
    assert "theta_2 is" not in str(result)
    right = sbi.check_draws(0, draws, x + random.normal(size=(300, 2)))
    assert not any(line.startswith("  - ") for line in str(right).splitlines())


@pytest.mark.slow
def test_ranks_of_mixed_parameters_keep_their_level():
    """Of k in 0, 1, 2 and t ~ N(0, 1) with x ~ N(k + t, 1) exact draws; then with k left alone."""
    n, m, repeats = 60, 19, 300
    rng = np.random.default_rng(0)
    k, t, noise = rng.integers(0, 3, (repeats, n)), *rng.normal(size=(2, repeats, n))
    x = k + t + noise
    weights = np.exp(-((x[..., None] - np.arange(3)) ** 2) / 4)
    below = np.cumsum(weights, axis=-1) / np.sum(weights, axis=-1, keepdims=True)
    picks = np.sum(rng.random((repeats, n, m, 1)) > below[:, :, None], axis=-1)
    ts = (x[..., None] - picks + np.sqrt(2) * rng.normal(size=picks.shape)) / 2
    wrong = rng.choice(3, size=picks.shape, p=[0.2, 0.3, 0.5])

    @jax.jit
    def p_value(key, k, t, picks, ts):
        thetas, draws = jnp.stack([k, t], axis=1), jnp.stack([picks, ts], axis=2)
        return rank_draws(key, draws, thetas, None, ("k", "t"), level=0.05).p_values[1]

    k, picks, wrong = (counts.astype(float) for counts in (k, picks, wrong))
    keys = jax.random.split(KEY, repeats)
    right = [p_value(*row) for row in zip(keys, k, t, picks, ts, strict=True)]
    assert np.sum(np.asarray(right) <= 0.05) <= scipy.stats.binom.ppf(0.9999, repeats, 0.05)
    few = [p_value(*row) for row in zip(keys[:20], k, t, wrong, ts, strict=False)]
    assert np.mean(np.asarray(few) <= 0.05) > 0.5
    assert sbi.check_draws(0, wrong[0][..., None], k[0]).statistics == ("distance", "theta_1")


@pytest.mark.slow
def test_draws_and_parameters_are_aligned_by_name():
    """The deviation of "wide" is 10, that of "narrow" 1: judged against the other both fail."""
    keys = jax.random.split(jax.random.key(3), 2)
    scale = jnp.asarray([10.0, 1.0])
    thetas = jax.random.normal(keys[0], (200, 2)) * scale[None]
    wide, narrow = jnp.moveaxis(jax.random.normal(keys[1], (200, 20, 2)) * scale[None, None], 2, 0)
    swapped = {"narrow": narrow, "wide": wide}
    named = {"wide": thetas[:, 0], "narrow": thetas[:, 1]}
    by_dict = sbi.check_draws(0, swapped, named)
    assert by_dict.statistics == ("distance", "wide", "narrow")
    assert float(by_dict.p_value) > 0.01
    by_names = sbi.check_draws(0, swapped, thetas, names=["wide", "narrow"])
    np.testing.assert_array_equal(by_names.ranks, by_dict.ranks)
    shifted = named | {"narrow": named["narrow"] + 3}
    reordered = sbi.check_draws(0, swapped, shifted, names=["narrow", "wide"])
    assert reordered.statistics == ("distance", "narrow", "wide")
    assert float(reordered.p_values[1]) < 1e-6 < 0.01 < float(reordered.p_values[2])
    relabelled = sbi.check_draws(0, swapped, named, names=["broad", "slim"])
    assert relabelled.statistics[1:] == ("broad", "slim")
    np.testing.assert_array_equal(relabelled.ranks, by_dict.ranks)
    of_vector = sbi.check_draws(0, {"both": jnp.stack([wide, narrow], 2)}, {"both": thetas})
    assert of_vector.statistics[1:] == ("both[0]", "both[1]")
    np.testing.assert_array_equal(of_vector.ranks, by_dict.ranks)
    exchanged = {"narrow": thetas, "wide": thetas[:, 0]}  # three columns, as the draws have
    for draws, values, names, message in (
        (swapped, thetas, None, "nothing says which column of thetas is which"),
        (swapped, thetas, ["wide", "slim"], "use the same names for both"),
        (swapped, {"wide": thetas[:, 0], "slim": thetas[:, 1]}, None, "use the same names"),
        (jnp.stack([wide, narrow], 2), named, None, "the draws have no names"),
        ({"narrow": narrow, "wide": jnp.stack([wide] * 2, 2)}, exchanged, None, "its draws have 1"),
    ):
        with pytest.raises(ValueError, match=message):
            sbi.check_draws(0, draws, values, names=names)
    posterior = dist.Normal(jnp.zeros((200, 2)), scale).to_event(1)
    options = {"prior": dist.Normal(jnp.zeros(2), scale).to_event(1), "chains": None}
    report = sbi.check_posterior(
        0, posterior, thetas, thetas, draws=swapped, names=["wide", "narrow"], **options
    )
    assert float(report.ranks.uniformity) > 0.01
    with pytest.raises(ValueError, match="use the same names for both"):
        sbi.check_posterior(0, posterior, thetas, thetas, draws=swapped, **options)


@pytest.mark.slow
def test_errors_along_x_are_printed_and_counted():
    """A network that learned nothing: draws of the prior have uniform ranks, not given x."""
    thetas, noise = jax.random.normal(jax.random.key(0), (2, 200, 1))
    draws = jax.random.normal(jax.random.key(1), (200, 50, 1))
    blind = sbi.check_draws(0, draws, thetas, thetas + 0.5 * noise)
    assert float(blind.uniformity) > 0.05
    assert float(blind.trend) < 1e-10
    assert float(blind.p_value) == pytest.approx(3 * float(blind.trend))
    assert "strongest: theta_1 along x[0]" in repr(blind)
    without = sbi.check_draws(0, draws, thetas)
    assert without.trend is None
    assert float(without.uniformity) == float(blind.uniformity)
    least = min(float(without.uniformity), float(without.moments.p_value))
    assert float(without.p_value) == min(1, 2 * least)
    two = sbi.check_draws(0, draws[:, :3], thetas, level=0.2)
    assert "80 % band" in two.figure().axes[0].get_legend_handles_labels()[1]
    assert two.moments is None
    assert float(two.p_value) == float(two.uniformity)


@pytest.mark.slow
@pytest.mark.parametrize(("n", "d", "q"), [(30, 2, 3), (100, 2, 3), (100, 1, 50)])
def test_trends_along_x_keep_their_level(n, d, q):
    """Of 1,000 right posteriors; a skewed and a heavy-tailed x among the features."""

    @jax.jit
    def p_value(key):
        keys = jax.random.split(key, 4)
        xs = jax.random.normal(keys[0], (n, q))
        xs = xs.at[:, 0].set(jnp.exp(2 * xs[:, 0]))
        thetas, draws = jax.random.normal(keys[1], (n, d)), jax.random.normal(keys[2], (n, 50, d))
        names = tuple("ab"[:d])
        return rank_draws(keys[3], draws, thetas, xs, names, level=0.05).trend

    p = np.asarray(jax.lax.map(p_value, jax.random.split(jax.random.key(n + q), 1000)))
    _, high = scipy.stats.binom.interval(0.9999, 1000, 0.05)
    assert np.sum(p <= 0.05) <= high  # Holm may be conservative
    assert np.all(p > 0)


def test_columns_of_a_frame_are_names_of_a_vector():
    frame = pd.DataFrame(np.zeros((30, 2)), columns=["a", "b"])
    vector = np.zeros((30, 20, 2))
    for thetas in (frame, {"theta": frame}):
        assert [*paired({"theta": vector}, thetas, frame.columns)[2]] == ["a", "b"]


def test_rows_of_draws_of_each_observation_have_their_own_order():
    frames = [pd.DataFrame({"a": np.arange(50.0)}).sample(frac=1, random_state=k) for k in (0, 1)]
    assert paired(frames, np.zeros((2, 1)), None)[0].shape == (2, 50, 1)
    in_one_order({"draws": frames, "thetas": pd.DataFrame({"a": np.zeros(2)})})


@pytest.mark.slow
def test_draws_of_large_parameters_keep_their_differences():
    """As times in seconds: float32 has steps of 128 there."""
    rng, n, far = np.random.default_rng(0), 100, 1.1e9
    thetas = rng.uniform(-0.1, 0.1, (n, 1))
    x = thetas[:, None] + 0.001 * rng.normal(size=(n, 1, 1))
    draws = x + 0.001 * rng.normal(size=(n, 3, 1))

    def p(draws, off):
        return float(sbi.check_draws(0, draws + off, thetas + off).p_values[1])

    with jax.enable_x64(False):
        assert p(draws + 0.005, far) < 0.01
        right = p(draws, far)
        assert right > 0.05
        assert right == pytest.approx(p(draws, 0.0), rel=1e-3)


@pytest.mark.slow
def test_the_order_of_draws_changes_no_verdict():
    """Sorted draws: half of them is not a sample, nor are all but the last."""
    random = np.random.default_rng(3)
    x = random.normal(size=(200, 1))
    draws, thetas = x + random.normal(size=(200, 40)), x[:, 0] + random.normal(size=200)
    for order in (np.sort(draws, axis=1), -np.sort(-draws, axis=1)):
        assert float(jaxcal.skce_test(0, jaxcal.Draws(order), thetas).p_value) > 0.05
        assert float(jaxcal.ucme_test(0, jaxcal.Draws(order), thetas).p_value) > 0.05
        result = sbi.check_draws(0, order, thetas)
        assert float(result.p_value) > 0.05
        assert not result.warnings()
    beside = np.stack([np.sort(draws, axis=1), draws[:, ::-1]], axis=2)
    mixed = np.asarray(jaxcal.Draws(beside).unsorted().samples)
    assert not np.array_equal(mixed, beside)
    np.testing.assert_array_equal(np.sort(mixed, axis=1)[..., 0], beside[..., 0])
    pairs = {tuple(pair) for pair in beside[7]}
    assert {tuple(pair) for pair in mixed[7]} == pairs
    same = jaxcal.Draws(draws)
    assert same.unsorted() is same
    np.testing.assert_array_equal(jax.jit(lambda d: d.unsorted().samples)(same), draws)


def test_sorted_rows_of_a_right_posterior_are_not_rejected():
    """The draw of a neighbour as reference point depended on theta: p was below .006."""
    random = np.random.default_rng(0)
    thetas = np.sort(random.normal(size=(400, 1)), axis=0)
    xs = thetas + random.normal(size=(400, 1))
    draws = xs[:, None] / 2 + 0.5**0.5 * random.normal(size=(400, 100, 1))
    ranked = jax.vmap(ranks_among_draws, in_axes=(0, None, None))
    distances = ranked(jax.random.split(KEY, 5), jnp.asarray(draws), jnp.asarray(thetas))[..., 0]
    assert np.median(jax.vmap(uniformity)(distances)) > 0.05


@pytest.mark.slow
def test_chains_that_are_not_thinned_are_said(key):
    n, m, memory = 100, 60, 0.8
    steps = jax.random.normal(key, (m, n, 2))

    def step(state, noise):
        state = memory * state + (1 - memory**2) ** 0.5 * noise
        return state, state

    chains = jax.lax.scan(step, steps[0], steps)[1].swapaxes(0, 1)
    lag = float(jaxcal.Draws(chains).correlation())
    assert abs(lag - memory) < 0.03
    thetas = jax.random.normal(jax.random.fold_in(key, 1), (n, 2))
    result = sbi.check_draws(0, chains, thetas)
    assert "correlated-draws" in result.warnings()[0]
    step = int(np.ceil(np.log(0.1) / np.log(lag)))
    assert result.size + 1 == len(range(0, m, step))
    independent = jax.random.normal(key, (n, m, 2))
    assert float(jaxcal.Draws(independent).correlation()) == 0
    assert not sbi.check_draws(0, independent, thetas).warnings()
    same = jnp.where(jnp.arange(n)[:, None, None] < 60, thetas[:, None], independent)
    assert float(jaxcal.Draws(same).correlation()) == 0  # the rounding of a mean is no chain
    models = {"a": jaxcal.Draws(chains), "b": jaxcal.Draws(independent)}
    said = "".join(jaxcal.compare(0, models, thetas).warnings())
    assert "draws of a have" in said
    assert "draws of b have" not in said
    with pytest.raises(ValueError, match=r"models\[a\]: successive draws .*: thin them first"):
        StreamedTest.comparison(0, models, thetas)


@pytest.mark.slow
def test_columns_of_parameters_are_those_of_the_names(key):
    frame = pd.DataFrame(np.random.default_rng(0).normal(size=(60, 2)), columns=["b", "a"])
    calls = {
        "check_draws": lambda names: sbi.check_draws(key, np.zeros((60, 9, 2)), frame, names=names),
        "score_pairs": lambda names: sbi.score_pairs(
            key, lambda theta, x: -jnp.sum((theta - x) ** 2), frame, frame.to_numpy(), names=names
        ),
    }
    for call in calls.values():
        call(["b", "a"])
        with pytest.raises(ValueError, match="thetas: wanted the columns of names in their order"):
            call(["a", "b"])
