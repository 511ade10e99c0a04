"""Each measure against its definition: programs, brute force, quadrature, Monte Carlo."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from distance_laws import LAWS
from reference import constructions, distances, sketches
from reference.lower_distance import chain_program, lower_distance, violations
from reference.partitions import upper_distance
from reference.smece import smece

from jaxcal import dce, measures
from jaxcal.dce.intervals import boxcars
from jaxcal.dce.smooth import denoise
from jaxcal.kernels import Laplace

SIZE = 40


def sample(seed, n=SIZE, power=2.0):
    rng = np.random.default_rng(seed)
    v = rng.random(n) if seed % 2 else rng.integers(0, 17, n) / 16
    return v, (rng.random(n) < v**power).astype(float), rng.random(n)


smooth = jax.jit(lambda v, y, w: dce.smooth_ce(v, y, weights=w))
laplace = jax.jit(lambda v, y, w, ell: dce.kernel_ce(v, y, weights=w, bandwidth=ell))


@pytest.mark.parametrize("seed", range(12))
def test_smooth_ce_is_its_linear_program_and_proves_it(seed):
    v, y, w = sample(seed)
    smoothed = smooth(v, y, w)
    wanted = distances.smooth_ce_linear_program(v, y, weights=w)
    assert float(smoothed.value) == pytest.approx(wanted, abs=1e-9)
    assert float(smoothed.upper) == pytest.approx(wanted, abs=1e-9)
    order, witness = np.argsort(v), np.asarray(smoothed.witness)
    assert np.all(np.abs(witness) <= 1)
    assert np.all(np.abs(np.diff(witness[order])) <= np.diff(v[order]) + 1e-14)
    assert np.sum(w / w.sum() * (y - v) * witness) == pytest.approx(wanted, abs=1e-9)


def test_denoising_is_the_least_of_all_step_functions():
    """Brute force: an optimal step function takes values among 0 and the F_i. None of them is
    better than a monotone one while the widths add up to no more than 2."""
    rng = np.random.default_rng(3)
    solve = jax.jit(denoise)
    for case in range(40):
        f, g = rng.normal(size=5), rng.exponential(size=5)
        g[-1] = 0
        g *= (1 if case % 2 else 2) / g.sum()
        levels = np.unique(np.append(f, 0))
        a = np.array(list(itertools.product(levels, repeat=4)))
        a = np.concatenate([np.zeros((len(a), 1)), a, np.full((len(a), 1), f[-1])], axis=1)
        costs = np.abs(np.diff(a, axis=1)).sum(axis=1) + np.abs(f[:-1] - a[:, 1:-1]) @ g[:-1]
        values = np.asarray(solve(jnp.asarray(f), jnp.asarray(g)))
        path = np.concatenate([[0], values])
        assert np.all(np.diff(path) * np.sign(f[-1]) >= 0)
        cost = np.abs(np.diff(path)).sum() + np.abs(f[:-1] - values[:-1]) @ g[:-1]
        assert cost == pytest.approx(costs.min(), abs=1e-12)


@pytest.mark.slow
def test_smooth_ce_has_the_gradient_of_finite_differences():
    v, y, w = sample(1)
    value = jax.jit(lambda v, w: dce.smooth_ce(v, y, weights=w).value)
    slopes = jax.jit(jax.grad(lambda v, w: dce.smooth_ce(v, y, weights=w).value, (0, 1)))(v, w)
    for argument, slope in enumerate(slopes):
        for i in range(0, SIZE, 7):
            step = np.eye(SIZE)[i] * 1e-7
            up, down = ([v, w], [v, w])
            up[argument], down[argument] = up[argument] + step, down[argument] - step
            change = (float(value(*up)) - float(value(*down))) / 2e-7
            assert float(slope[i]) == pytest.approx(change, abs=2e-8)


def test_the_lattice_is_within_its_bound_and_exact_on_its_grid():
    v, y, w = sample(2)
    exact = float(smooth(v, y, w).value)
    on_grid = distances.smooth_ce_grid(v, y, weights=w, cells=16)
    moved = distances.smooth_ce_grid(sample(1)[0], y, weights=w, cells=64)
    assert float(on_grid.value) == pytest.approx(exact, abs=1e-12)
    other = float(smooth(sample(1)[0], y, w).value)
    assert abs(float(moved.value) - other) <= float(moved.error)


@pytest.mark.slow
@pytest.mark.parametrize("ell", [1.0, 0.01])
def test_kernel_ce_is_the_sum_over_pairs(ell):
    v, y, w = sample(4)
    rho = w / w.sum() * (y - v)
    k = np.exp(-np.abs(v[:, None] - v) / ell)
    error = laplace(v, y, w, ell)
    square = rho @ k @ rho
    assert float(error.squared) == pytest.approx(square, abs=1e-14)
    np.testing.assert_allclose(error.witness, k @ rho / square**0.5, atol=1e-12)
    at = np.linspace(0, 1, 31)
    wanted = np.exp(-np.abs(at[:, None] - v) / ell) @ rho / square**0.5
    got = distances.laplace_witness(v, y, at, weights=w, bandwidth=ell)
    np.testing.assert_allclose(got, wanted, atol=1e-12)


def test_the_u_statistic_leaves_out_the_diagonal():
    v, y, _ = sample(5)
    r = y - v
    h = r[:, None] * r * np.exp(-np.abs(v[:, None] - v))
    error = laplace(v, y, np.ones(SIZE), 1.0)
    wanted = (h.sum() - np.trace(h)) / (SIZE * (SIZE - 1))
    assert float(error.unbiased) == pytest.approx(wanted, abs=1e-14)
    _, over_pairs = distances.kernel_ce_of_pairs(v, y, Laplace(1.0))
    assert float(over_pairs) == pytest.approx(wanted, abs=1e-14)


def test_kernel_ce_has_the_gradient_of_finite_differences():
    v, y, w = sample(1)
    value = jax.jit(lambda v: dce.kernel_ce(v, y, weights=w).squared)
    slope = jax.jit(jax.grad(lambda v: dce.kernel_ce(v, y, weights=w).squared))(v)
    for i in range(0, SIZE, 7):
        step = np.eye(SIZE)[i] * 1e-6
        change = (float(value(v + step)) - float(value(v - step))) / 2e-6
        assert float(slope[i]) == pytest.approx(change, abs=1e-9)


@pytest.mark.slow
def test_estimators_by_chance_agree_with_the_exact_square(key):
    v, y, w = sample(6)
    for ell in (1.0, 0.2):
        exact = float(laplace(v, y, w, ell).squared)
        for estimate, options in [
            (sketches.pair_sample, {"n_pairs": 20000}),
            (sketches.random_features, {"n_draws": 3000}),
            (sketches.random_bins, {"n_draws": 3000}),
        ]:
            result = estimate(key, v, y, weights=w, bandwidth=ell, **options)
            assert abs(float(result.value) - exact) < 4 * float(result.standard_error)
            if estimate is not sketches.pair_sample:
                assert np.all((result.draws >= 0) & (result.draws <= 1))


@pytest.mark.slow
def test_random_intervals_agree_with_random_shifts(key):
    v, y, w = sample(7)
    for width in (0.3, 1.7):
        exact = float(sketches.random_interval_ce(v, y, weights=w, width=width))
        mean, error = sketches.sampled_interval_ce(key, v, y, weights=w, width=width, n_shifts=3000)
        assert abs(float(mean) - exact) < 4 * float(error)


WIDTHS = np.array([1.0, 0.5, 0.3, 1.7, 0.01, 1e-9, 1e7])
walk = jax.jit(boxcars)


@pytest.mark.parametrize("seed", range(4))
def test_the_walk_along_two_lists_is_the_sorted_definition(seed):
    """Ties (even seeds), windows wider than all and narrower than any gap."""
    v, y, w = sample(seed)
    order = np.argsort(v)
    v, rho = v[order], (w / w.sum() * (y - v))[order]
    f = np.concatenate([[0], np.cumsum(rho)])
    for width, value in zip(WIDTHS, walk(v, rho, WIDTHS), strict=True):
        t = np.sort(np.concatenate([v - width, v]))
        middle = (t[1:] + t[:-1]) / 2
        inside = f[np.searchsorted(v, middle + width)] - f[np.searchsorted(v, middle)]
        wanted = np.abs(inside) @ np.diff(t) / width
        assert float(value) == pytest.approx(wanted, abs=1e-8 if width == 1e-9 else 1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("n", [12, 100, 300])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_widths_far_below_the_spacing_of_numbers_lose_nothing(dtype, n):
    """Against the definition in extended precision; below the least gap it is the ECE."""
    rng = np.random.default_rng(n)
    v = np.sort(rng.random(n).astype(dtype))
    v[1::3] = v[::3][: v[1::3].size]  # ties
    y = (rng.random(n) < v).astype(dtype)
    widths = np.array([1e-30, 1e-12, 1e-8, 1e-3, 1.0, 1e2], dtype)
    rho = (y - v) / dtype(n)
    f = np.concatenate([[0], np.cumsum(rho.astype(np.longdouble))])
    least = np.diff(np.unique(v)).min()
    error = float(dce.unbinned_ece(v, y))
    for width, value in zip(widths, walk(v, rho, widths), strict=True):
        if width < least:
            assert float(value) == pytest.approx(error, rel=1e-5)
            continue
        long = v.astype(np.longdouble)
        t = np.sort(np.concatenate([long - width, long]))
        middle = (t[1:] + t[:-1]) / 2
        inside = f[np.searchsorted(long, middle + width)] - f[np.searchsorted(long, middle)]
        wanted = float(np.abs(inside) @ np.diff(t) / width)
        assert float(value) == pytest.approx(wanted, rel=2e-5, abs=1e-7)
    assert sum(widths < least) >= 3
    assert float(sketches.random_interval_ce(v, y, width=1e-8)) == pytest.approx(error, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("n", [12, 100, 300])
def test_the_population_value_has_no_room_below_the_least_gap(n):
    """All predictions .175 too high, on five atoms: every interval measure is at least the bias."""
    v = (0.5 + np.arange(n) % 5 / 16).astype(np.float32)
    y = v - np.float32(0.175)
    population = dce.surrogate_interval_ce(v, y, accuracy=None)
    assert float(population.value) == pytest.approx(0.175, rel=1e-5)
    bracket = dce.distance_from_calibration(0, v, y, accuracy=1e-9, n_draws=2).bracket
    assert 0.1749 <= float(bracket.low) <= float(bracket.high) <= 0.1751
    assert min(map(float, bracket.upper.values())) >= 0.1749


def test_slopes_of_narrow_random_intervals_match_the_error():
    v, y, w = sample(1)
    narrow = jax.jit(jax.grad(lambda v: sketches.random_interval_ce(v, y, weights=w, width=1e-12)))
    exact = jax.jit(jax.grad(lambda v: dce.unbinned_ece(v, y, weights=w)))
    np.testing.assert_allclose(narrow(v), exact(v), atol=1e-6)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda v, y: dce.surrogate_interval_ce(v, y, accuracy=0), "accuracy"),
        (lambda v, y: dce.surrogate_interval_ce(v, y, accuracy=float("nan")), "accuracy"),
        (lambda v, y: dce.surrogate_interval_ce(v, y, accuracy=100.0), "accuracy"),
        (
            lambda v, y: dce.distance_from_calibration(jax.random.key(0), v, y, accuracy=0),
            "accuracy",
        ),
        (lambda v, y: sketches.random_interval_ce(v, y, width=0.0), "width"),
        (lambda v, y: sketches.random_interval_ce(v, y, width=float("inf")), "width"),
        (lambda v, y: sketches.sampled_interval_ce(jax.random.key(0), v, y, width=0.0), "width"),
        (lambda v, y: sketches.sampled_interval_ce(jax.random.key(0), v, y, width=1e-9), "width"),
    ],
)
def test_widths_and_accuracies_out_of_range_are_refused_by_name(call, name):
    v, y, _ = sample(1)
    with pytest.raises(ValueError, match=f"^{name}"):
        call(v, y)


@pytest.mark.slow
def test_gradients_of_random_intervals_match_finite_differences():
    v, y, w = sample(1)

    def value(v, width):
        return sketches.random_interval_ce(v, y, weights=w, width=width)

    slope, by_width = jax.jit(jax.grad(value, (0, 1)))(v, 0.2)
    run = jax.jit(value)
    for i in range(0, SIZE, 7):
        step = np.eye(SIZE)[i] * 1e-7
        change = (float(run(v + step, 0.2)) - float(run(v - step, 0.2))) / 2e-7
        assert float(slope[i]) == pytest.approx(change, abs=2e-8)
    change = (float(run(v, 0.2 + 1e-7)) - float(run(v, 0.2 - 1e-7))) / 2e-7
    assert float(by_width) == pytest.approx(change, abs=1e-7)


def test_the_witness_is_the_middle_of_all_that_attain_the_error():
    """No error: 0. No mean residual: as far above 0 as below. Otherwise it touches 1 or -1."""
    v, y, w = sample(1)
    assert np.all(np.asarray(smooth(v, v, w).witness) == 0)
    balanced = np.array([0.25, 0.5, 0.5, 0.75]), np.array([1.0, 0.75, 0.25, 0.0])
    smoothed = smooth(*(np.tile(x, SIZE // 4) for x in (*balanced, np.ones(4))))
    assert smoothed.witness.max() == -smoothed.witness.min() > 0
    mean = np.sum(w / w.sum() * (y - v))
    touched = np.asarray(smooth(v, y, w).witness) * np.sign(mean)
    assert touched.max() == 1


def test_interval_ce_is_the_best_of_all_runs():
    for v, y, w in LAWS[:20]:
        places = np.unique(v[w > 0])
        least = np.inf
        for cuts in itertools.product([0, 1], repeat=len(places) - 1):
            run = np.concatenate([[0], np.cumsum(cuts)]).astype(int)
            cost = 0.0
            for j in range(run[-1] + 1):
                values = places[run == j]
                inside = (v >= values[0]) & (v <= values[-1]) & (w > 0)
                cost += abs(np.sum((w * (y - v))[inside]))
                cost += np.sum(w[inside]) * (values[-1] - values[0])
            least = min(least, cost)
        error = dce.interval_ce(v, y, weights=w)
        assert float(error.value) == pytest.approx(least, abs=1e-12)
        kappa = np.asarray(error.recalibrated)
        assert np.sum(w * np.abs(v - kappa)) <= least + 1e-12
        for j in np.unique(error.bins):
            inside = np.asarray(error.bins) == j
            assert np.sum((w * (y - kappa))[inside]) == pytest.approx(0, abs=1e-12)


def test_binned_ece_counts_the_ends_and_uses_the_edges_given():
    v, y = np.array([0.0, 0.2, 0.5, 1.0]), np.array([1.0, 0.0, 1.0, 0.0])
    error = dce.binned_ece(v, y, edges=[0.0, 0.3, 1.0])
    np.testing.assert_allclose(error.mass, [0.5, 0.5])
    np.testing.assert_allclose(error.residual, [0.8 / 4, -0.5 / 4])
    assert float(error.value) == pytest.approx(1.3 / 4)
    assert float(error.width) == pytest.approx(0.5)
    shifted = dce.binned_ece(v, y, edges=2, shift=0.8)
    np.testing.assert_allclose(shifted.edges, [0, 0.4, 0.9, 1])
    np.testing.assert_allclose(shifted.mass, [0.5, 0.25, 0.25])
    assert float(error.bound) >= upper_distance(v, y).value - 1e-12


def test_a_shift_of_edges_that_are_given_is_refused():
    v, y, edges = np.array([0.2, 0.7]), np.array([0, 1]), jnp.asarray([0.0, 0.3, 1.0])
    for run in (dce.binned_ece, jax.jit(dce.binned_ece)):
        with pytest.raises(ValueError, match=r"shift: is one of equal bins.* number of bins"):
            run(v, y, edges=edges, shift=0.5)
    plain, zero = (dce.binned_ece(v, y, edges=edges, **o) for o in ({}, {"shift": jnp.zeros(())}))
    assert plain.value == zero.value


def test_weighted_ce_recovers_ece_and_the_mean():
    v, y, w = sample(8)
    rho = w / w.sum() * (y - v)
    one = distances.weighted_ce(v, y, [jnp.ones_like], weights=w)
    assert float(one.value) == pytest.approx(abs(rho.sum()))
    signs = {x: np.sign(rho[v == x].sum()) for x in np.unique(v)}
    best = distances.weighted_ce(
        v, y, [lambda v: jnp.asarray([signs[float(x)] for x in v])], weights=w
    )
    assert float(best.value) == pytest.approx(float(dce.unbinned_ece(v, y, weights=w)))


def test_smece_is_the_integral_of_the_reflected_gaussian():
    v, y, w = sample(9)
    rho = w / w.sum() * (y - v)
    t = (np.arange(20000) + 0.5) / 20000
    error = smece(v, y, weights=w)
    for width in (0.1, 0.4, float(error.width)):
        images = np.arange(-4, 5) * 2
        density = sum(
            np.exp(-((t[:, None] - s * v - m) ** 2) / (2 * width**2))
            for s in (1, -1)
            for m in images
        )
        wanted = np.mean(np.abs(density @ rho)) / (width * (2 * np.pi) ** 0.5)
        got = smece(v, y, weights=w, width=width)
        assert float(got.value) == pytest.approx(wanted, abs=float(got.error) + 1e-7)
    assert float(error.value) == pytest.approx(float(error.width), abs=1e-12)
    assert float(error.value) == pytest.approx(wanted, abs=float(error.error) + 1e-7)


@pytest.mark.slow
def test_smece_has_the_gradient_of_finite_differences():
    """Errors of both signs, so that the width matters and moves with the predictions."""
    v, y = constructions.tempered_sample(jax.random.key(0), SIZE, 4.0)
    v = jnp.clip(v, 0.01, 0.99)
    value = jax.jit(lambda v: smece(v, y, cells=512).value)
    slope = jax.jit(jax.grad(lambda v: smece(v, y, cells=512).value))(v)
    fixed = smece(v, y, cells=512).width
    gradient = jax.jit(jax.grad(lambda v: smece(v, y, cells=512, width=fixed).value))(v)
    assert np.max(np.abs(slope - gradient)) > 1e-3
    for i in (0, 11, 30):
        step = np.eye(SIZE)[i] * 1e-6
        change = (float(value(v + step)) - float(value(v - step))) / 2e-6
        assert float(slope[i]) == pytest.approx(change, abs=1e-6)


def test_the_worst_violation_between_knots_matches_a_fine_grid():
    rng = np.random.default_rng(5)
    for _ in range(500):
        u = np.array([0.5 * rng.random(), 1 - 0.4 * rng.random()])
        wide = u[1] - u[0]
        a, b = rng.uniform(-0.5, 0.5, 2), rng.uniform(-0.5, 0.5, 2)
        a[1], b[1] = a[0] + wide * rng.uniform(-1, 1), b[0] + wide * rng.uniform(-1, 1)
        x = np.linspace(*u, 4001)
        c = (1 - x) * np.maximum(a[0] - (x - u[0]), a[1] - (u[1] - x))
        c += x * np.maximum(b[0] - (x - u[0]), b[1] - (u[1] - x))
        # ends are places of the program, where it holds already
        inner = max(0.0, c.max())
        result = max(violations(u, a, b)[0], 0.0)
        ends = max(0.0, (1 - u[0]) * a[0] + u[0] * b[0], (1 - u[1]) * a[1] + u[1] * b[1])
        assert max(result, ends) == pytest.approx(inner, abs=3e-4 * wide)


def test_the_lower_distance_is_certified_by_its_coupling():
    for v, y, w in [*LAWS[:10], sample(1), sample(2)]:
        w = w / w.sum()
        distance = lower_distance(v, y, weights=w, tol=1e-8)
        assert distance.high - distance.low < 3e-8
        c = distance.coupling
        for u in np.unique(c.u):
            here = c.u == u
            assert np.sum(c.mass[here] * (c.y[here] - u)) == pytest.approx(0, abs=1e-9)
        for x in np.unique(v[w > 0]):
            for label in (0, 1):
                mass = np.sum(w[v == x] * (y[v == x] if label else 1 - y[v == x]))
                carried = np.sum(c.mass[(c.v == x) & (c.y == label)])
                assert carried == pytest.approx(mass, abs=1e-9)
        assert np.all(np.abs(np.diff(distance.on_zero)) <= np.diff(distance.places) + 1e-9)
        assert np.all(np.abs(np.diff(distance.on_one)) <= np.diff(distance.places) + 1e-9)


def test_a_grid_widens_the_certificate_of_the_lower_distance():
    v, y, w = sample(1)
    exact = lower_distance(v, y, weights=w, tol=1e-8)
    rough = lower_distance(v, y, weights=w, cells=20)
    assert rough.low <= exact.value <= rough.high
    assert rough.high - rough.low <= 2 * rough.moved + 1e-5


def test_the_lower_program_agrees_with_the_published_grid_values():
    v, y, w = constructions.quadratic_barrier(0.1).domain.distribution()
    for cells, wanted in [(5, 0.04), (10, 1 / 30), (20, 1 / 30), (25, 0.0336)]:
        grid = (np.arange(cells + 1) / cells).round(12)
        value = chain_program(grid, *masses(grid, v, y, w)).value
        assert value == pytest.approx(wanted, abs=1e-9)


def masses(grid, v, y, w):
    at = np.searchsorted(grid, np.round(v, 12))
    return [np.bincount(at, m, grid.size) for m in (w * (1 - y), w * y)]


def test_true_distances_of_lifts_are_the_two_distances():
    for v, y, w in LAWS[:12]:
        low = lower_distance(v, y, weights=w, tol=1e-9)
        lifted = distances.lift_lower(low.coupling)
        if lifted.f.size <= 9:
            distance = distances.true_distance(lifted)
            assert distance.value == pytest.approx(low.value, abs=1e-7)
        upper = upper_distance(v, y, weights=w)
        assert upper.exact
        assert distances.true_distance(
            distances.lift_upper(v, y, weights=w)
        ).value == pytest.approx(upper.value)
        assert np.sum(w * np.abs(v - upper.g)) == pytest.approx(upper.value)


def test_the_best_partition_is_calibrated_and_powers_are_ordered():
    domain = constructions.intervals_apart(0.1).domain
    by_power = [distances.true_distance(domain, power=p) for p in (1.0, 2.0, 3.0)]
    assert by_power[0].value <= by_power[1].value <= by_power[2].value
    after = distances.Domain(domain.mass, by_power[0].g, domain.f_star)
    assert distances.is_calibrated(after)
    assert not distances.is_calibrated(domain)
    assert by_power[0].groups[0] == by_power[0].groups[2] != by_power[0].groups[1]


def test_many_predictions_get_a_bound_on_the_upper_distance():
    v, y, w = sample(2)
    distance = upper_distance(v, y, weights=w)
    assert not distance.exact
    assert distance.value <= float(dce.interval_ce(v, y, weights=w).value) + 1e-12
    assert distance.value >= lower_distance(v, y, weights=w).low
    w = w / w.sum()
    assert np.sum(w * np.abs(v - distance.g)) == pytest.approx(distance.value)
    for j in np.unique(distance.groups):
        inside = distance.groups == j
        assert np.sum((w * (y - distance.g))[inside]) == pytest.approx(0, abs=1e-12)


@pytest.mark.slow
def test_a_million_observations_lose_no_digits():
    """Groups of half a million: their sums in float32, one by one, were wrong by .7 %."""
    rng = np.random.default_rng(0)
    n = 1_000_000
    v = np.tile(np.float32([0.25, 0.75]), n // 2)
    y = rng.random(n) < v
    rates = [y[::2].mean(), y[1::2].mean()]
    error = np.mean(np.abs(np.tile(rates, n // 2) - v))
    with jax.enable_x64(False):
        binned = dce.binned_ece(v, y)
        repair = dce.recalibrate(0, v, y)
        assert np.all(
            np.isnan(jax.jit(lambda at, to=repair: to(at))(jnp.array([np.nan, -0.1, 1.7])))
        )
        estimates = [dce.unbinned_ece(v, y), binned.value, repair.value]
        of_rates = repair(jnp.asarray(v[:2]))
        np.testing.assert_allclose(jnp.sum(binned.mass), 1, rtol=1e-6)
        np.testing.assert_allclose(measures.reliability(v, y).ece, error, rtol=1e-3)
    np.testing.assert_allclose(estimates, error, rtol=1e-3)
    np.testing.assert_allclose(of_rates, rates, atol=1e-5)
