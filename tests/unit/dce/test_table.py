"""Tables of cells: what is taken from them is that of all observations, within stated bounds."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from reference.smece import smece

from jaxcal import dce
from jaxcal.dce import Table
from jaxcal.dce.population import population_bounds
from jaxcal.dce.predictions import binary, ordered


def forecasts(kind, n=20_000):
    """Predictions and labels; "follows" has labels that follow the place within a cell."""
    random = np.random.default_rng(5)
    if kind == "rare":
        p = random.beta(0.3, 60, n)
        return p, (random.random(n) < p**0.9).astype(int)
    p = random.beta(0.8, 0.8, n)
    if kind == "follows":
        return p, (p * 8 % 1 > 0.5).astype(int)
    return p, (random.random(n) < p**1.3).astype(int)


CELLS = {"smooth": 8192, "rare": 8192, "follows": 8}


@pytest.fixture(params=CELLS)
def data(request):
    p, y = forecasts(request.param)
    return p, y, Table.of(p, y, cells=CELLS[request.param])


@pytest.mark.slow
def test_measures_of_a_table_match_data_within_its_bounds(data):
    p, y, table = data
    cells = table.counts.size
    place = np.minimum((p * cells).astype(int), cells - 1)
    mean = table.means["predictions"][place]
    moved, residuals = np.mean(np.abs(p - mean)), np.mean(np.abs(p - mean) * np.abs(y - p))
    assert moved <= table.moved
    assert residuals <= table.moved_residuals <= table.moved + 1e-15
    of, bound = table.means, table.moved_residuals
    assert table.n == p.size

    def gap(measure, **options):
        whole, part = measure(p, y, **options), measure(**of, **options)
        return abs(float(getattr(whole, "value", whole)) - float(getattr(part, "value", part)))

    assert gap(dce.smooth_ce) <= bound
    assert gap(lambda *a, **k: dce.kernel_ce(*a, **k).value ** 2) <= 2 * bound
    assert gap(dce.binned_ece, edges=8) <= 1e-12
    width = float(smece(p, y).width)
    assert gap(smece) <= 0.8 / width * bound + float(smece(p, y).error) * 2
    assert gap(dce.surrogate_interval_ce) <= 2 * 2**8 * bound
    whole, part = dce.lower_distance(p, y, cells=64), dce.lower_distance(**of, cells=64)
    assert part.low <= whole.high + table.moved
    assert whole.low <= part.high + table.moved
    # the bounds are reached within a factor where labels follow the place in a cell
    if cells == 8:
        assert gap(dce.smooth_ce) >= table.moved_residuals / 4


@pytest.mark.slow
def test_tests_of_a_table_are_those_of_the_observations():
    p, y = forecasts("smooth", 9000)
    table = Table.of(p, y)
    test = functools.partial(dce.distance_from_calibration, test="interval")
    whole, part = test(3, p, y, n_draws=39), test(3, **table.groups, n_draws=39)
    assert (part.n, part.null) == (p.size, "redraw")
    np.testing.assert_allclose(part.statistic, whole.statistic, rtol=1e-10)
    assert float(part.p_value) == float(whole.p_value)
    whole = dce.distance_from_calibration(3, p, y, n_draws=39)
    part = dce.distance_from_calibration(3, **table.groups, n_draws=39)
    for name in ("low", "high"):
        assert abs(float(getattr(whole.bracket, name) - getattr(part.bracket, name))) < table.moved
    assert float(part.p_value) == float(whole.p_value)
    assert part.n == p.size
    np.testing.assert_allclose(part.population.radius, whole.population.radius, rtol=1e-3)
    np.testing.assert_allclose(part.interval.high, whole.interval.high, rtol=1e-3)
    assert float(part.effective) == pytest.approx(p.size)
    assert str(part).startswith(f"distance from calibration, n = {p.size}")
    assert not part.warnings()


@pytest.mark.slow
def test_the_interval_of_groups_matches_labels_over_random_folds(key):
    p, y = forecasts("smooth", 2000)
    p = np.round(p, 2)
    v, of = np.unique(p, return_inverse=True)
    each = ordered(binary(p, y))
    part = ordered(binary(v, np.bincount(of, y), None, np.bincount(of)))

    def bounds(data):
        ends = jax.lax.map(lambda k: population_bounds(k, data, 0.05), jax.random.split(key, 50))
        return ends.low, ends.high

    (low, high), (of_low, of_high) = bounds(each), bounds(part)
    np.testing.assert_allclose(of_high, high, rtol=1e-9)
    error = jnp.sqrt((jnp.var(low) + jnp.var(of_low)) / 50)
    assert abs(float(jnp.mean(low) - jnp.mean(of_low))) < 4 * float(error)
    assert float(jnp.std(low)) > 0
    assert 0.6 < float(jnp.std(of_low) / jnp.std(low)) < 1.7


@pytest.mark.slow
def test_signs_of_groups_are_signs_of_their_labels(key):
    """The draws of both are of one distribution: mean and variance by their standard errors."""
    p, y = np.round(forecasts("smooth", 400)[0], 1), forecasts("smooth", 400)[1]
    v, of = np.unique(p, return_inverse=True)
    groups = {"predictions": v, "targets": np.bincount(of, y), "counts": np.bincount(of)}
    test = functools.partial(dce.distance_from_calibration, test="interval", null="signs")
    each = test(key, p, y, n_draws=1000).null_samples
    part = test(key, **groups, n_draws=1000).null_samples
    error = jnp.sqrt((jnp.var(each) + jnp.var(part)) / 1000)
    assert abs(float(jnp.mean(each) - jnp.mean(part))) < 4 * float(error)
    assert 0.8 < float(jnp.std(part) / jnp.std(each)) < 1.25


def test_tables_add_up_in_any_order_to_grouped_sums():
    p, y = forecasts("smooth", 5000)
    whole = Table.of(p, y)
    for parts in (range(4), (2, 0, 3, 1)):
        merged = functools.reduce(Table.merge, [Table.of(p[k::4], y[k::4]) for k in parts])
        np.testing.assert_array_equal(merged.counts, whole.counts)
        np.testing.assert_allclose(merged.predictions, whole.predictions, rtol=1e-14)
        np.testing.assert_array_equal(merged.targets, whole.targets)
    # SELECT COUNT(*), SUM(p), SUM(y) GROUP BY FLOOR(p * 8192)
    _, group = np.unique(np.floor(p * 8192), return_inverse=True)
    sums = np.bincount(group), np.bincount(group, p), np.bincount(group, y)
    grouped = Table.grouped(*sums)
    np.testing.assert_array_equal(grouped.counts, whole.counts)
    np.testing.assert_allclose(grouped.predictions, whole.predictions, rtol=1e-12)
    np.testing.assert_allclose(grouped.targets, whole.targets, rtol=1e-12)
    assert Table.of([], []).merge(whole).n == whole.n
    assert Table.of([], []).moved == 0
    assert Table.of([0.25, 0.25], [0, 1]).moved == 0  # equal predictions at an edge


@pytest.mark.parametrize("cells", [10, 100, 8192])
def test_groups_of_equal_predictions_are_in_their_cells(cells):
    """Sums of ten numbers .3 and the product .29 * 100 are below the edge that they are at."""
    p = np.repeat(np.arange(101) / 100, 10)
    groups = np.full(101, 10), [sum(p[10 * k : 10 * k + 10]) for k in range(101)], np.full(101, 3)
    whole, grouped = (
        Table.of(p, np.tile([1] * 3 + [0] * 7, 101), cells=cells),
        Table.grouped(*groups, cells=cells),
    )
    np.testing.assert_array_equal(grouped.counts, whole.counts)
    many = Table.grouped([10**12], [10**12 * 0.29999], [10**11], cells=10)
    assert many.counts.argmax() == 2  # rounding of large sums has a limit
    if cells == 100:
        assert whole.counts.tolist() == [10] * 99 + [20]


def test_a_table_is_saved_and_read(tmp_path):
    p, y = forecasts("smooth", 1000)
    table = Table.of(p, y, cells=64)
    table.save(tmp_path / "table.npz")
    again = Table.load(tmp_path / "table.npz")
    for name in ("counts", "predictions", "targets"):
        np.testing.assert_array_equal(getattr(again, name), getattr(table, name))
    assert str(again) == str(table)
    assert "n = 1000" in str(table)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: Table.of([0.5, 1.5], [0, 1]), "predictions: wanted numbers from 0 to 1, row 1"),
        (lambda: Table.of([0.5, np.nan], [0, 1]), "predictions: wanted finite"),
        (lambda: Table.of([0.5], [0, 1]), "targets: wanted one label"),
        (lambda: Table.of([[0.5]], [[1]]), "predictions: wanted one number"),
        (lambda: Table.of([0.5], [1], cells=0), "cells"),
        (lambda: Table.grouped([1.5], [0.5], [1]), "counts: wanted whole"),
        (lambda: Table.grouped([2], [2.5], [1]), "predictions: the sum of group 0 is 2.5, of 2"),
        (lambda: Table.grouped([2], [0.5], [3]), "targets: the sum of group 0 is 3"),
        (lambda: Table.grouped([2, 1], [0.5], [1]), "predictions: wanted one sum per group"),
        (lambda: Table.of([0.5], [1]).merge(Table.of([0.5], [1], cells=4)), "other: a table of 4"),
        (lambda: jax.jit(lambda p: Table.of(p, [1]).counts)(jnp.ones(1)), "predictions: a table"),
    ],
)
def test_what_is_no_table_is_refused_by_name(call, said):
    with pytest.raises(ValueError, match=said):
        call()


def test_other_things_are_no_tables():
    with pytest.raises(TypeError, match="predictions: wanted an array of numbers, got strings"):
        Table.of(["a"], [1])
    with pytest.raises(TypeError, match="predictions: wanted real numbers, got complex128"):
        Table.of(np.array([0.5j]), [0])
    with pytest.raises(TypeError, match="other: wanted a Table"):
        Table.of([0.5], [1]).merge(3)


def test_reliability_of_billions_of_forecasts():
    table = Table.grouped([4e9, 3e9], [4e8, 2.4e9], [8e8, 2.4e9])
    with jax.enable_x64(False):
        result = table.reliability(bins=2)
    np.testing.assert_array_equal(result.count, [4 * 10**9, 3 * 10**9])
    np.testing.assert_allclose(result.ece, 4 / 7 * 0.1, rtol=1e-6)
    assert "n = 7000000000" in str(result)
