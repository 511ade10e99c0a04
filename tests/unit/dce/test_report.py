"""The bracket, its noise, invariances, bad input, and figures."""

import io
from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from quick import quick_first
from reference import constructions, distances, sample_sizes
from reference.constructions import tempered_population, tempered_sample
from reference.lower_distance import lower_distance

from jaxcal import dce
from jaxcal.dce.bracket import bracket_of as to_bracket
from jaxcal.dce.bracket import measures_of
from jaxcal.dce.population import label_free_groups, population_bounds, upper_mean
from jaxcal.dce.predictions import binary, ordered
from jaxcal.dce.recalibration import _error_of_map
from jaxcal.dce.resampling import drawable, kernel_statistic, resampling_test
from jaxcal.plots.reliability import bracket, with_witness
from jaxcal.results.notes import codes

N = 60
FEW = {"n_draws": 39}


@pytest.fixture(scope="module")
def data():
    return tempered_sample(jax.random.key(3), N, 3.0)


@pytest.fixture(scope="module")
def result(data):
    return dce.distance_from_calibration(jax.random.key(1), *data, **FEW)


@pytest.mark.slow
def test_the_report_says_how_far_and_why(result):
    text = str(result)
    for words in ("these data", "population", "p-value", "low end: ", "drawn again", "smooth"):
        assert words in text
    ends = result.bracket
    assert 0 < float(ends.low) <= float(ends.high) <= 1
    assert float(result.interval.low) <= float(ends.low)
    assert float(result.interval.high) >= float(ends.high)
    plain = result.to_dict()
    assert plain["null"] == "redraw"
    assert "null_samples" not in plain


@pytest.mark.slow
def test_the_ece_of_a_report_is_that_of_bins(result, data):
    """Where all predictions differ the plain one is the mean of |y - p|, of calibrated ones too."""
    ece = float(dce.binned_ece(*data, edges=15).value)
    assert float(result.measures["ECE"]) == pytest.approx(ece, rel=1e-6)
    assert f"ECE {ece:.4g}, " in str(result)
    plain = np.mean(np.abs(data[1] - data[0]))
    assert float(result.bracket.upper["unbinned ECE"]) == pytest.approx(plain, rel=1e-6)


def bracket_of(v, y, **options):
    result = dce.distance_from_calibration(jax.random.key(0), v, y, n_draws=2, **options)
    return result.bracket


@pytest.mark.slow
def test_the_bracket_holds_the_distance_of_every_domain():
    for make in (
        constructions.quadratic_barrier,
        constructions.intervals_apart,
        constructions.two_points,
    ):
        for domain in (make(0.1).domain, make(0.2).domain):
            v, y, w = domain.distribution()
            outcome = bracket_of(v, y, weights=w)
            true = distances.true_distance(domain).value
            assert float(outcome.low) - 1e-7 <= true <= float(outcome.high) + 1e-7
            assert all(float(x) <= true + 1e-7 for x in outcome.lower.values())
            assert all(float(x) >= true - 1e-7 for x in outcome.upper.values())


@pytest.mark.slow
def test_jit_and_vmap_give_the_bracket_from_a_coarser_grid(data):
    v, y = data
    outcome = jax.jit(bracket_of)(v, y)
    outside = bracket_of(v, y)
    exact = lower_distance(v, y)
    for result, apart in ((outcome, 3e-4), (outside, 1e-5)):
        assert exact.low - apart < float(result.lower["lower distance"]) <= exact.high
    assert float(outcome.low) == pytest.approx(float(outside.low), abs=3e-4)
    assert float(outcome.high) == pytest.approx(float(outside.high), abs=3e-4)


@pytest.mark.slow
def test_the_test_of_calibration_keeps_its_level_and_has_power():
    def p_value(key, beta):
        data_key, test_key = jax.random.split(key)
        v, y = tempered_sample(data_key, 40, beta)
        data = drawable(ordered(binary(v, y)), equal=True, null="redraw")
        return resampling_test(
            test_key, data, statistic=kernel_statistic, n_draws=39, null="redraw"
        ).p_value

    keys = jax.random.split(jax.random.key(5), 400)
    p = jax.jit(jax.vmap(p_value, (0, None)))(keys, 1.0)
    low, high = scipy.stats.binom.interval(0.9999, 400, 0.05)
    assert low <= int(jnp.sum(p <= 0.05)) <= high
    assert float(jnp.mean(jax.jit(jax.vmap(p_value, (0, None)))(keys, 5.0) <= 0.05)) > 0.5


@pytest.mark.parametrize(("n", "ones"), [(5, 0), (5, 2), (100, 0), (100, 3), (1000, 500)])
def test_the_bound_of_a_binary_mean_is_clopper_pearson(n, ones):
    x = jnp.zeros(1000).at[:ones].set(1)
    w = jnp.where(jnp.arange(1000) < n, 1 / n, 0)
    wanted = scipy.stats.beta.ppf(0.975, ones + 1, n - ones)
    assert float(UPPER(x, w, 0.025)) == pytest.approx(wanted, rel=5e-3)


def test_the_bound_of_a_mean_is_a_random_weight_quantile():
    """An independent oracle: weights uniform on the simplex, 100,000 draws; three decimals."""
    rng = np.random.default_rng(0)
    x = rng.uniform(-1, 0.5, 60)
    weights = rng.dirichlet(np.ones(61), 100_000)
    wanted = np.quantile(weights @ np.append(x, 1.0), 0.975)
    assert float(UPPER(jnp.asarray(x), jnp.full(60, 1 / 60), 0.025)) == pytest.approx(
        wanted, abs=2e-3
    )
    # unequal weights: normal for many, plus what was not seen, at most 2 / 61
    times = rng.integers(1, 4, 60)
    bound = float(UPPER(jnp.asarray(x), jnp.asarray(times / times.sum()), 0.025))
    spread = np.sum((times / times.sum()) ** 2 * (x - times @ x / times.sum()) ** 2) ** 0.5
    normal = times @ x / times.sum() + 1.96 * spread
    assert normal - 0.01 < bound < normal + 0.01 + 2 / 61


UPPER = jax.jit(upper_mean)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("rate", "distance"),
    [(lambda v: 10 * v, 0.009), (lambda v: 0.03 + 0 * v, 0.029)],
    ids=["ten times", "one rate"],
)
def test_the_population_interval_covers_with_rare_labels(rate, distance):
    """About one label 1 a data set of 100."""
    v = 0.002 * jax.random.uniform(jax.random.key(6), (100, 100))
    y = jax.random.bernoulli(jax.random.key(7), rate(v)).astype(v.dtype)
    ends = INTERVALS(jax.random.split(jax.random.key(8), 100), v, y)
    covered = (ends.low <= distance) & (distance <= ends.high)
    assert int(jnp.sum(covered)) >= scipy.stats.binom.ppf(0.0001, 100, 0.95)
    assert float(jnp.mean(ends.high)) < 8 * distance


@jax.jit
def INTERVALS(keys, v, y):
    return jax.vmap(lambda key, v, y: population_bounds(key, ordered(binary(v, y)), 0.05))(
        keys, v, y
    )


def test_joint_draws_of_labels_are_distributed_as_single_ones(key):
    """Two values, 40 observations: the mean of the statistic is sum w^2 v (1 - v) by hand."""
    v = np.repeat([0.2, 0.7], [25, 15])
    data = ordered(binary(v, np.zeros(40)))
    together = drawable(data, equal=True, null="redraw")
    assert together.v.size == 8  # padded
    np.testing.assert_allclose(np.asarray(together.labels[:2]), [25, 15])
    wanted = np.sum(v * (1 - v)) / 40**2  # of the diagonal; pairs have mean 0
    for drawn in (together, data):
        test = resampling_test(key, drawn, statistic=kernel_statistic, n_draws=2000, null="redraw")
        assert float(test.statistic) == pytest.approx(
            float(dce.kernel_ce(v, np.zeros(40)).squared), abs=1e-12
        )
        error = float(jnp.std(test.null_samples)) / 2000**0.5
        assert abs(float(jnp.mean(test.null_samples)) - wanted) < 4.5 * error


@pytest.mark.slow
def test_cells_without_labels_are_not_drawn():
    """What is drawn of a table of three cells does not grow with the number of empty ones."""
    rng = np.random.default_rng(0)
    p = rng.choice([0.2, 0.5, 0.7], 30)
    for cells in (10, 1000):
        table = dce.Table.of(p, rng.random(30) < p, cells=cells).groups
        data = ordered(binary(table["predictions"], table["targets"], None, table["counts"]))
        drawn = drawable(data, equal=True, null="redraw")
        np.testing.assert_allclose(drawn.v[:3], [0.2, 0.5, 0.7])
        np.testing.assert_array_equal(drawn.labels[:3], np.unique(p, return_counts=True)[1])
        assert drawn.v.size == 8  # padded
        assert float(kernel_statistic(drawn.v, drawn.rho)) == pytest.approx(
            float(kernel_statistic(data.v, data.rho)), rel=1e-9
        )


@pytest.mark.slow
def test_measures_of_merged_predictions_are_those_of_all(key):
    rng = np.random.default_rng(1)
    v, y = rng.integers(0, 11, 600) / 10, (rng.random(600) < 0.4).astype(float)
    merged = bracket_of(v, y)
    every = jax.jit(bracket_of)(v, y)
    for side in ("lower", "upper"):
        for name, value in getattr(merged, side).items():
            # the fixed program's places are quantiles, so its own error moves
            error = 1e-3 if "lower distance" in name else 1e-10
            assert float(value) == pytest.approx(float(getattr(every, side)[name]), abs=error)
    result = dce.distance_from_calibration(key, v, y, **FEW)
    np.testing.assert_allclose(result.witness, dce.smooth_ce(v, y).witness, atol=1e-12)


@pytest.mark.slow
def test_means_as_labels_need_random_signs(data, key):
    v, y = data
    with pytest.raises(ValueError, match="null='redraw' draws labels 0 or 1"):
        dce.distance_from_calibration(key, v, y / 2, null="redraw", **FEW)
    outcome = dce.distance_from_calibration(key, v, y * 0.98 + 0.01, **FEW)
    assert outcome.null == "signs"


def values(v, y, w):
    return jnp.stack(
        [
            dce.unbinned_ece(v, y, weights=w),
            dce.smooth_ce(v, y, weights=w).value,
            dce.kernel_ce(v, y, weights=w).value,
            dce.interval_ce(v, y, weights=w).value,
            dce.surrogate_interval_ce(v, y, weights=w).value,
        ]
    )


@pytest.mark.slow
def test_order_duplicates_flips_scale_and_padding_are_neutral():
    rng = np.random.default_rng(0)
    v = rng.integers(0, 9, 12) / 8
    y, w = (rng.random(12) < 0.5).astype(float), rng.random(12)
    run = jax.jit(values)
    double = [np.repeat(a, 2) for a in (v, y, w)]
    padded = [np.concatenate([a, b]) for a, b in zip((v, y, w), (v, 1 - y, 0 * w), strict=True)]
    order = rng.permutation(24)
    wanted = run(*double)
    for other in (
        padded,
        [a[order] for a in double],
        [double[0], double[1], 7 * double[2]],
        [1 - double[0], 1 - double[1], double[2]],
    ):
        np.testing.assert_allclose(run(*other), wanted, atol=1e-12)
    plain = dce.lower_distance(v, y, weights=w)
    flipped = dce.lower_distance(1 - v, 1 - y, weights=w)
    assert float(flipped.low) == pytest.approx(float(plain.low), abs=2e-6)
    # one by one on a batch
    batch = [np.stack([a, b]) for a, b in zip(double, padded, strict=True)]
    np.testing.assert_allclose(jax.vmap(run)(*batch), jnp.stack([wanted] * 2), atol=1e-12)


@pytest.mark.slow
def test_the_verdict_is_at_the_level_and_says_why_there_is_none(result, data):
    assert result.level == 0.05
    for p, level, verdict in [(0.03, 0.05, "rejected"), (0.03, 0.025, "not rejected")]:
        other = replace(result, p_value=jnp.asarray(p), level=level)
        assert other.verdict == other.to_dict()["verdict"] == verdict
        assert f"verdict      {verdict} at level {level:g}" in str(other)
    few = replace(result, level=0.01)  # of 39 draws
    assert (few.verdict, few.to_dict()["verdict"]) == ("cannot tell", "cannot tell")
    assert "too few draws for the level 0.01" in few.reason
    assert f"cannot tell: {few.reason}" in str(few)
    lost = replace(result, p_value=jnp.asarray(jnp.nan))
    assert lost.verdict == "cannot tell"
    assert "NaN" in lost.reason
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), result)
    batch = eqx.tree_at(lambda r: r.p_value, batch, jnp.array([0.03, 0.5, jnp.nan]))
    assert list(batch.verdict) == ["rejected", "not rejected", "cannot tell"]
    assert "at level 0.05: rejected in 1, not rejected in 1, cannot tell in 1" in str(batch)


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2])
def test_one_observation_and_equal_predictions(n, key):
    v, y = np.full(n, 0.3), np.ones(n)
    for value in values(v, y, np.ones(n)):
        assert float(value) == pytest.approx(0.7, abs=0.35)
    lower = dce.lower_distance(v, y)
    assert 0.7 - 1 / (2 * 512**2) <= float(lower.low) <= 0.7 <= float(lower.high) + 1e-9
    outcome = dce.distance_from_calibration(key, v, y, **FEW)
    assert any("too few" in text for text in outcome.warnings())
    assert any("all labels are equal" in text for text in outcome.warnings()) == (n > 1)


@pytest.mark.parametrize(
    ("p", "y", "options", "message"),
    [
        ([1.2, 0.1], [1, 0], {}, "predictions: wanted probabilities.*entry 0 is 1.2"),
        ([0.2, np.nan], [1, 0], {}, "predictions: .*entry 1 is nan"),
        ([0.2, 0.1], [1, 2], {}, "targets: wanted labels 0 or 1.*entry 1 is 2.0"),
        ([0.2, 0.1], [-1, 1], {}, "targets: wanted labels 0 or 1.*entry 0 is -1.0"),
        ([0.2, 0.1], [1, 0, 1], {}, r"targets: wanted one label per observation, \(2,\)"),
        ([0.2, 0.1], [1, 0], {"weights": [1.0]}, r"weights: wanted one per observation"),
        ([0.2, 0.1], [1, 0], {"weights": [-1.0, 2]}, r"weights: wanted finite numbers >= 0"),
        ([0.2, 0.1], [1, 0], {"weights": [0.0, 0]}, r"not all of them 0"),
        (np.zeros((3, 2)), [1, 0, 1], {}, "classes need notion= of distance_from"),
        (np.zeros(0), [], {}, "n >= 1"),
    ],
)
def test_wrong_values_are_named(p, y, options, message):
    with pytest.raises(ValueError, match=message):
        dce.smooth_ce(p, y, **options)


def test_wrong_types_are_named(key):
    with pytest.raises(TypeError, match="predictions: float16"):
        dce.unbinned_ece(np.zeros(3, np.float16), np.zeros(3))
    with pytest.raises(TypeError, match="targets: wanted an array of numbers, got strings"):
        dce.unbinned_ece(np.full(2, 0.5), ["a", "b"])
    with pytest.raises(TypeError, match="key"):
        dce.distance_from_calibration("seed", [0.5], [1])
    with pytest.raises(ValueError, match="level: "):
        dce.distance_from_calibration(key, [0.5], [1], level=95.0)
    with pytest.raises(ValueError, match=r"below 1/2, got 0\.95; limits and intervals have"):
        dce.distance_from_calibration(key, [0.5], [1], level=0.95)
    with pytest.raises(ValueError, match="bandwidth: wanted a positive number"):
        dce.kernel_ce([0.5], [1], bandwidth=0.0)


def test_not_a_number_inside_jit_is_not_a_number_outside():
    v = jnp.array([0.1, jnp.nan, 0.4])
    outcome = jax.jit(values)(v, jnp.array([0.0, 1.0, 1.0]), jnp.ones(3))
    assert np.all(np.isnan(outcome))
    out = jax.jit(values)(v.at[1].set(1.5), jnp.array([0.0, 1.0, 1.0]), jnp.ones(3))
    assert np.all(np.isnan(out))


def test_labels_may_be_lists_integers_or_booleans():
    wanted = float(dce.smooth_ce([0.2, 0.9], [0.0, 1.0]).value)
    for y in ([0, 1], [False, True], np.array([0, 1], np.uint8)):
        assert float(dce.smooth_ce([0.2, 0.9], y).value) == pytest.approx(wanted)


@pytest.mark.slow
def test_float32_stays_float32_and_close():
    v, y = (np.asarray(a, np.float32) for a in tempered_sample(jax.random.key(0), N, 2.0))
    for name in ("smooth_ce", "kernel_ce"):
        run = getattr(dce, name)
        single, double = run(v, y), run(v.astype(float), y.astype(float))
        assert single.value.dtype == jnp.float32
        assert float(single.value) == pytest.approx(float(double.value), abs=2e-6)


@pytest.mark.slow
def test_classes_reduce_to_one_against_the_rest():
    ps = np.array([[0.2, 0.5, 0.3], [0.6, 0.3, 0.1]])
    distance = partial(dce.distance_from_calibration, 0, ps, **FEW)
    top = distance([1, 2], notion="top-label")
    np.testing.assert_allclose(top.predictions, [0.5, 0.6])
    np.testing.assert_allclose(top.targets, [1, 0])
    each = distance([1, 2], notion="class-wise")
    np.testing.assert_allclose(each.predictions, ps.T)
    np.testing.assert_allclose(each.targets, [[0, 0], [1, 0], [0, 1]])
    assert codes(each.warnings()) == ["few-observations", "one-class"]  # no label of class 0
    assert "2 observations are too few" in str(each)
    with pytest.raises(ValueError, match="notion: wanted"):
        distance([1, 2], notion="canonical")
    with pytest.raises(ValueError, match="targets: classes 1"):
        distance([1, 3], notion="top-label")


@pytest.mark.slow
def test_the_distance_of_classes_comes_from_scalar_problems(data, key):
    """Two classes: each against the rest is the same problem read from both ends."""
    v, y = data
    ps, labels = np.stack([1 - v, v], axis=1), np.asarray(y, int)
    batch = dce.distance_from_calibration(key, ps, labels, notion="class-wise", **FEW)
    assert batch.p_value.shape == (2,)
    assert "2 distances from calibration, batch shape (2,)" in str(batch)
    alone = jax.jit(bracket_of)(v, y)
    np.testing.assert_allclose(batch.bracket.low, [float(alone.low)] * 2, atol=1e-12)
    np.testing.assert_allclose(batch.bracket.high, [float(alone.high)] * 2, atol=1e-12)
    np.testing.assert_allclose(batch.witness[0], -batch.witness[1], atol=1e-12)
    top = dce.distance_from_calibration(key, ps, labels, notion="top-label", **FEW)
    confidence, right = np.maximum(v, 1 - v), (v > 0.5) == (y == 1)
    wanted = float(dce.smooth_ce(confidence, right).value)
    assert float(top.measures["smooth"]) == pytest.approx(wanted, abs=1e-12)
    with pytest.raises(ValueError, match="groups are of labels 0 or 1"):
        dce.distance_from_calibration(key, ps, labels, notion="class-wise", counts=labels, **FEW)


@pytest.mark.slow
def test_verdicts_of_classes_keep_the_familywise_level(key):
    """Of eight classes one has its probability taken from another: p-values are adjusted."""
    ps = jax.random.dirichlet(key, jnp.full(8, 2.0), (200,))
    labels = jax.random.categorical(key, jnp.log(ps.at[:, 0].multiply(1.7)))
    batch = dce.distance_from_calibration(1, ps, labels, notion="class-wise", n_draws=199)
    p, adjusted = np.asarray(batch.p_value), np.asarray(batch.adjusted)
    assert np.any((p <= 0.05) & (adjusted > 0.05))
    assert list(batch.verdict) == list(np.where(adjusted <= 0.05, "rejected", "not rejected"))
    assert f"rejected in {np.sum(adjusted <= 0.05)}, not" in str(batch)
    one = jax.tree.map(lambda leaf: leaf[int(np.argmax((p <= 0.05) & (adjusted > 0.05)))], batch)
    assert (one.verdict, "over all classes" in str(one)) == ("not rejected", True)


def test_the_witness_of_a_result_attains_the_smooth_error(result, data):
    v, y = data
    attains = dce.smooth_ce(v, y)
    np.testing.assert_array_equal(result.witness, attains.witness)
    assert float(jnp.mean((y - v) * result.witness)) == pytest.approx(float(attains.value))


@pytest.mark.slow
@pytest.mark.parametrize("n", quick_first([12, 100, 300], [12, 300]))
def test_predictions_too_high_have_a_one_sided_witness(n, key):
    """The model says 1.8 times the rate; the figure shows the band below the middle only."""
    v = np.linspace(0.05, 0.5, n)
    y = v / 1.8  # mean labels: no noise
    outcome = dce.distance_from_calibration(key, v, y, n_draws=2)
    assert np.all(np.asarray(outcome.witness) <= 0)
    band = with_witness(outcome).collections[0].get_paths()[0].vertices
    assert band[:, 1].max() <= 0.5
    assert band[:, 1].min() < 0.5


@pytest.mark.slow
def test_sample_sizes_grow_as_the_theory_says():
    sizes = sample_sizes.sample_sizes(0.01)
    assert sizes.k == 8
    assert sizes.surrogate == pytest.approx(1e6 + 1e4 * np.log(20))
    radius = sample_sizes.kernel_radius(10_000)
    v, y, w = tempered_population(2.0, points=2000).distribution()
    truth = float(dce.kernel_ce(v, y, weights=w).value)
    drawn = tempered_sample(jax.random.key(2), 10_000, 2.0)
    assert abs(float(dce.kernel_ce(*drawn).value) - truth) < radius


def test_the_figure_of_bounds_labels_every_bound_once(result):
    ax = bracket(result)
    names = [text.get_text() for text in ax.get_yticklabels()]
    assert len(set(names)) == len(names)
    assert not set(names) & {"smooth calibration error", "kernel calibration error"}
    assert "2 s + 4 sqrt(s), s the smooth error" in names


@pytest.mark.slow
def test_bounds_that_contradict_each_other_make_no_bracket(result, data):
    """A fault on purpose: a lower bound above the upper ones."""
    v, y = data
    measured, _ = measures_of(ordered(binary(v, y)), 0.01, 15)
    broken = to_bracket(measured._replace(mean=measured.ece + 0.1), len(v))
    assert np.isnan(broken.low)
    assert np.isnan(broken.high)
    said = eqx.tree_at(lambda r: r.bracket, result, broken).warnings()
    assert any("contradict each other" in text for text in said)


@pytest.mark.parametrize("draw", [with_witness, bracket])
def test_figures_show_the_result_and_refuse_a_batch(result, draw):
    ax = draw(result)
    ax.figure.savefig(io.BytesIO())
    assert "calibrat" in ax.get_xlabel() + "".join(
        text.get_text() for text in ax.get_legend().get_texts()
    )
    batch = jax.tree.map(lambda a: jnp.stack([a, a]), result)
    with pytest.raises(ValueError, match="a figure shows one result"):
        draw(batch)


@pytest.mark.parametrize("kind", [bool, np.int64, np.float64])
def test_float64_labels_are_read_in_float32_without_a_warning(kind):
    with jax.enable_x64(False):
        reduced = dce.predictions.binary([0.2, 0.8], np.asarray([0, 1], kind))
    assert reduced.y.dtype == jnp.float32
    assert reduced.y.tolist() == [0, 1]


def test_a_batch_lists_its_members_with_adjusted_p_values(result):
    batch = jax.tree.map(lambda leaf: jnp.stack([leaf] * 3), result)
    batch = eqx.tree_at(lambda r: r.p_value, batch, jnp.array([0.03, 0.01, jnp.nan]))
    adjusted = np.asarray(batch.p_adjusted)
    np.testing.assert_allclose(adjusted[:2], [0.06, 0.03])  # Holm: 3 x .01, 2 x .03
    assert np.isnan(adjusted[2])
    lines = str(batch).splitlines()
    first, second = (next(k for k, s in enumerate(lines) if s.split()[:1] == [m]) for m in "10")
    assert first < second


@pytest.mark.slow
def test_recalibration_maps_predictions_and_repairs_new_ones():
    """Predictions 1.8 times the rate: labels are means, so groups know the rate."""
    rate = np.linspace(0.05, 0.5, 200)
    repair = dce.recalibrate(0, 1.8 * rate, rate)
    new = repair(np.array([0.18, 0.45, 0.72, 1.0]))
    np.testing.assert_allclose(new, [0.1, 0.25, 0.4, 0.5], atol=0.05)
    assert float(repair.after.high) < 0.05 < float(repair.before.interval.low)
    assert float(repair.value) == pytest.approx(0.8 * rate.mean(), abs=0.02)
    assert "ECE after" in str(repair)
    assert not repair.warnings()


@pytest.mark.slow
def test_the_error_of_a_map_is_that_of_its_mean_labels():
    """300 calibrated data sets, n = 100: few upper ends are below the ECE of the map."""
    grid = jnp.linspace(0.00025, 0.99975, 2000)

    def one(key):
        place, label, draw = jax.random.split(key, 3)
        v = jax.random.uniform(place, (100,))
        data = ordered(binary(v, jax.random.bernoulli(label, v)))
        groups = label_free_groups(data)
        run = groups.of(grid)
        error = jax.ops.segment_sum(groups.rate[run] - grid, groups.group[run], 128)
        return jnp.sum(jnp.abs(error)) / 2000, *_error_of_map(draw, groups, data, 0.05)

    truth, low, high, expected = map(
        np.asarray, jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(5), 300))
    )
    band = scipy.stats.binom.ppf(0.9999, 300, 0.05)
    assert np.sum(high < truth) <= band
    assert np.sum((truth < low) | (high < truth)) <= scipy.stats.binom.ppf(0.9999, 300, 0.1)
    assert expected.mean() == pytest.approx(truth.mean(), rel=0.1)


def test_recalibration_says_where_there_is_nothing_to_repair():
    rate = np.linspace(0.05, 0.95, 60)
    quiet = dce.recalibrate(0, rate, rate)
    assert any("[nothing-to-repair]" in text for text in quiet.warnings())
    rejected = replace(quiet, before=replace(quiet.before, p_value=jnp.asarray(0.001)))
    assert any("[uncertain-repair]" in text for text in rejected.warnings())
