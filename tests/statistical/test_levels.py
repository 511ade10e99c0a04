"""One word: every level is the test's, .05 unless told, and limits have confidence 1 - level."""

import importlib
import inspect
import pkgutil
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats

import jaxcal
from jaxcal import ckce, dce, kccsd_test, plots, sbi, skce, squared_ce
from jaxcal.coverage import coverage
from jaxcal.fit import testing
from jaxcal.measures import quantile_calibration
from jaxcal.nulls import DependentWild, Wild
from jaxcal.plots.comparisons import calibration_errors
from jaxcal.plots.reliability import bracket
from jaxcal.plots.reliability import coverage as coverage_plot
from jaxcal.results import Means, confidence
from jaxcal.squared_ce.leave_one_out import compare_risks, one_step

KEY = jax.random.key(0)
RNG = np.random.default_rng(0)
N = 100
LEVELS = (0.05, 0.2)
X = RNG.normal(size=(N, 2))
YS = X + RNG.normal(size=(N, 2))
MODEL = dist.Normal(X, 1.0).to_event(1)
P = RNG.dirichlet(np.ones(3), N)
LABELS = RNG.integers(0, 3, N)
NAMES = ("jaxcal", *(f"jaxcal.{info.name}" for info in pkgutil.iter_modules(jaxcal.__path__)))


def public():
    """Every public function and class, and every method of theirs, by name."""
    for module in map(importlib.import_module, sorted(set(NAMES) - {"jaxcal.__main__"})):
        for name in getattr(module, "__all__", ()):
            value = getattr(module, name)
            if callable(value):
                yield f"{module.__name__}.{name}", value
            if inspect.isclass(value) and value.__module__.startswith("jaxcal"):
                methods = inspect.getmembers(value, inspect.isfunction)
                yield from ((f"{name}.{each}", call) for each, call in methods if each[0] != "_")


def test_every_level_is_that_of_a_test():
    defaults = {}
    for name, value in public():
        try:
            parameters = inspect.signature(value).parameters
        except (TypeError, ValueError):
            continue
        if "level" in parameters:
            defaults[name] = parameters["level"].default
    assert {"jaxcal.kccsd_test", "jaxcal.sbi.check_posterior", "StreamedTest.result"} < set(
        defaults
    )
    needed = inspect.Parameter.empty  # in the parts of a result, which no user makes
    assert {name for name, value in defaults.items() if value not in (0.05, needed)} == set()


def by_student(means: Means, level, n=N):
    estimate, error = np.asarray(means.estimate), np.asarray(means.standard_error)
    wanted = scipy.stats.t.interval(1 - level, n - 1, estimate, error)
    np.testing.assert_allclose([means.low, means.high], wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_limits_hold_what_a_test_of_the_level_does_not_reject(level):
    result = kccsd_test(KEY, MODEL, YS, null=Wild(39), coordinates=True, level=level)
    means = result.coordinates.marginal_mean
    by_student(means, level)
    inside = (means.low <= 0) & (means.high >= 0)
    np.testing.assert_array_equal(inside, means.p_value > level)
    assert f"too high by ({confidence(level)} limits)" in str(result)
    assert result.to_dict()["coordinates"]["marginal_mean"]["low"] == np.asarray(means.low).tolist()
    ax = plots.coordinates(result)
    assert f"{confidence(level)} limits" in ax.get_xlabel()
    assert f"p <= {level:g}" in ax.get_xlabel()
    filled = [p <= level for p in np.asarray(means.p_adjusted)]
    shifts = [line for line in ax.lines if line.get_marker() == "o" and len(line.get_xdata())]
    dots = [line.get_markerfacecolor() == "black" for line in shifts]
    assert dots == filled
    dashed = plots.null_histogram(result).lines[0]
    assert dashed.get_label() == f"{confidence(level)} quantile"
    np.testing.assert_allclose(dashed.get_xdata(), np.quantile(result.null_samples, 1 - level))


@pytest.mark.usefixtures("programs_stay")
@pytest.mark.slow
def test_limits_of_a_series_follow_the_level():
    program = testing.unjudged.alone
    how = {"null": DependentWild(39), "coordinates": True}
    first = kccsd_test(KEY, MODEL, YS, **how).coordinates.marginal_mean
    before = program._cache_size()
    second = kccsd_test(KEY, MODEL, YS, **how, level=0.2).coordinates.marginal_mean
    assert program._cache_size() == before  # one program for all levels
    np.testing.assert_allclose(first.estimate, second.estimate)
    assert np.all(second.high - second.low < 0.8 * (first.high - first.low))


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_the_level_of_a_report_is_everywhere_in_it(level):
    at = X[:10]  # base points
    exact = jaxcal.Scores(X - YS, X[:, None] - at[None], at)
    pairs = sbi.score_pairs(0, exact, YS, X)
    shares = coverage(MODEL, YS, X[:, None] + RNG.normal(size=(N, 9, 2)), level=level)
    examined = sbi.check_posterior(0, pairs, null=Wild(39), level=level, coverage=shares)
    for part in (examined.calibration, examined.conditional):
        assert part.test.level == level
        by_student(part.diagnosis.spread, level)
        by_student(part.diagnosis.bias, level)
    by_student(jax.tree.map(jnp.ravel, examined.conditional.diagnosis.shift_trend), level)
    assert repr(examined).count(f"({confidence(level)})") == 2  # columns of the table
    assert f"'level': {level}" in str(examined.to_dict())
    wanted = scipy.stats.binom.interval(1 - level, N, np.asarray(shares.levels))
    np.testing.assert_allclose(shares.band(), np.array(wanted) / N)
    for ax in (coverage_plot(shares), examined.figure().axes[1]):
        assert any(confidence(level) in text.get_text() for text in ax.get_legend().get_texts())


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_intervals_of_estimates_have_the_confidence(level):
    z = scipy.stats.norm.ppf(1 - level / 2)
    values = jnp.asarray(YS[:, 0])
    error = np.std(YS[:, 0], ddof=1) / N**0.5
    interval = one_step(values, level).interval
    np.testing.assert_allclose(np.subtract(interval.high, interval.low), 2 * z * error, rtol=1e-6)
    assert interval.level == level
    risks = compare_risks(values, jnp.asarray(YS[:, 1]), level)
    half = z * risks.standard_error
    np.testing.assert_allclose(risks.interval.high, risks.difference + half, rtol=1e-6)
    blocks = skce.block_estimates(KEY, MODEL, YS, size=4)
    interval = skce.skce_interval(blocks, level=level)
    np.testing.assert_allclose(
        interval.high - interval.low, 2 * z * blocks.standard_error, rtol=1e-6
    )
    t = scipy.stats.t.ppf(1 - level, len(blocks.blocks) - 1)
    sided = blocks.estimate - t * blocks.standard_error
    np.testing.assert_allclose(blocks.lower_bound(level), max(sided, 0), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_reports_print_the_confidence_of_their_intervals(level):
    models = {"a": P, "b": np.full((N, 3), 1 / 3)}
    compared = ckce.compare(KEY, models, LABELS, n_draws=99, rank=16, level=level, measure="ckce")
    assert f"{confidence(level)} interval" in str(compared)
    p = float(compared.differences.p_adjusted[0, 1])
    assert ("better" in str(compared)) == (p <= level)
    ax = plots.comparison(compared)
    assert f"{confidence(level)} intervals" in ax.get_title()
    for p in (0.01, 0.1, 0.3):
        pairs = compared.differences._replace(p_adjusted=jnp.asarray([[1, p], [p, 1]]))
        shade = plots.differences(replace(compared, differences=pairs)).images[0].get_array()
        assert (float(np.max(shade)) > 0) == (p <= level)
    report = squared_ce.calibration_error(
        KEY, P, LABELS, estimators=[squared_ce.Bins(5)], folds=2, level=level
    )
    assert f"{confidence(level)} interval" in str(report)
    low, high = report.best.one_step.interval[:2]
    z = scipy.stats.norm.ppf(1 - level / 2)
    np.testing.assert_allclose(high - low, 2 * z * report.best.one_step.standard_error, rtol=1e-9)
    texts = calibration_errors(report).get_legend().get_texts()
    assert any(f"{confidence(level)} interval" in text.get_text() for text in texts)
    far = dce.distance_from_calibration(KEY, P[:, 0], LABELS == 0, n_draws=20, level=level)
    assert far.interval.level == far.level == level
    assert f"   ({confidence(level)})" in str(far)
    ends = bracket(far).get_legend().get_texts()
    assert f"population, {confidence(level)}" in [text.get_text() for text in ends]
    curve = quantile_calibration(dist.Normal(X[:, 0], 1.0), YS[:, 0], level=level)
    texts = coverage_plot(curve).get_legend().get_texts()
    assert any(confidence(level) in text.get_text() for text in texts)


@pytest.mark.slow
def test_a_wider_level_means_a_shorter_interval():
    models = {"a": P, "b": np.full((N, 3), 1 / 3)}
    sizes = []
    for level in LEVELS:
        compared = ckce.compare(
            KEY, models, LABELS, n_draws=99, rank=16, level=level, measure="ckce"
        )
        far = dce.distance_from_calibration(KEY, P[:, 0], LABELS == 0, n_draws=20, level=level)
        sizes.append([compared.high[0] - compared.low[0], far.interval.high - far.interval.low])
    assert np.all(np.diff(np.asarray(sizes), axis=0) < 0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: kccsd_test(KEY, MODEL, YS, level=0.95),
        lambda: ckce.compare(KEY, [P, P], LABELS, level=0.95),
        lambda: squared_ce.calibration_error(KEY, P, LABELS, level=0.95),
        lambda: skce.skce_interval(skce.block_estimates(KEY, MODEL, YS), level=0.95),
        lambda: sbi.check_posterior(0, None, level=0.95),
        lambda: coverage(MODEL, YS, YS[:, None], level=0.95),
        lambda: dce.distance_from_calibration(KEY, P[:, 0], LABELS == 0, level=0.95),
    ],
)
def test_a_confidence_is_not_taken_for_a_level(call):
    with pytest.raises(ValueError, match=r"below 1/2, got 0\.95; limits and intervals have conf"):
        call()
