"""The lower distance of fixed shape: its program against SciPy's, its ends against the exact."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from distance_laws import LAWS
from reference.lower_distance import chain_program
from reference.partitions import upper_distance

from jaxcal import dce
from jaxcal.dce.interior_point import ChainProgram, solve_chain
from jaxcal.dce.population import label_free_groups, moved
from jaxcal.dce.predictions import binary, ordered

SOLVE = jax.jit(solve_chain)
coarse = partial(dce.lower_distance, cells=64)
BOUNDS = jax.jit(coarse)
M = 33


@pytest.mark.parametrize("kind", ["even", "dense", "one label", "calibrated"])
def test_the_interior_point_program_is_the_linear_program(kind):
    rng = np.random.default_rng(3)
    u = np.linspace(0, 1, M)
    if kind == "dense":
        u = np.concatenate([[0], 1e-5 * np.arange(1, M - 1), [1]])
    p0, p1 = rng.random(M), rng.random(M)
    if kind == "one label":
        p0 = 0 * p0
    if kind == "calibrated":
        p0, p1 = 1 - u, u
    p0, p1 = p0 / (p0 + p1).sum(), p1 / (p0 + p1).sum()
    masses = np.stack([p0, p1], axis=1)
    solution = SOLVE(ChainProgram(*map(jnp.asarray, (u, np.diff(u), masses))))
    a, b = np.asarray(solution.a), np.asarray(solution.b)
    assert p0 @ a + p1 @ b == pytest.approx(chain_program(u, p0, p1).value, abs=1e-9)
    for f in (a, b):
        assert np.all(np.abs(np.diff(f)) <= np.diff(u) + 1e-12)
    assert np.max((1 - u) * a + u * b) <= 1e-12


@pytest.mark.slow
def test_the_ends_of_fixed_shape_hold_the_exact_lower_distance(measured):
    for (v, y, w), wanted in zip(LAWS, measured, strict=True):
        ends = BOUNDS(v, y, weights=w)
        assert float(ends.low) <= wanted["lower"] + 1e-7
        assert float(ends.high) >= wanted["lower"] - 1e-7
        assert float(ends.low) >= wanted["lower"] - 1e-3


@pytest.mark.slow
def test_a_finer_grid_gives_the_lower_distance_itself(measured):
    fine = jax.jit(dce.lower_distance)
    for (v, y, w), wanted in zip(LAWS, measured, strict=True):
        ends = fine(v, y, weights=w)
        assert float(ends.low) <= wanted["lower"] + 1e-7
        assert float(ends.high) >= wanted["lower"] - 1e-7
        assert float(ends.high - ends.low) <= 3e-6


@pytest.mark.slow
def test_the_ends_meet_for_predictions_about_a_few_centres():
    """They were .06 apart where the masses of the coupling were not those of the data."""
    rng = np.random.default_rng(0)
    v, y = np.empty((2, 100, 60))
    for k in range(100):
        centres, width = rng.random(rng.integers(1, 6)), 10 ** rng.uniform(-4, -1)
        v[k] = np.clip(rng.choice(centres, 60) + width * rng.normal(size=60), 0, 1)
        y[k] = rng.random(60) < v[k] ** rng.uniform(0.2, 4)
    for dtype, apart in ((np.float64, 5e-4), (np.float32, 1e-2)):
        ends = jax.jit(jax.vmap(coarse))(v.astype(dtype), y.astype(dtype))
        assert float(jnp.min(ends.high - ends.low)) >= 0
        assert float(jnp.max(ends.high - ends.low)) < apart


@pytest.mark.slow
@pytest.mark.parametrize("n", [12, 100, 300])
def test_groups_without_labels_bound_the_upper_distance(n):
    rng = np.random.default_rng(n)
    v = rng.integers(0, 7, n) / 8
    y = (rng.random(n) < v**2).astype(float)
    data = ordered(binary(v, y))
    groups = label_free_groups(data)
    other = label_free_groups(ordered(binary(v, 1 - y)))
    np.testing.assert_array_equal(groups.group, other.group)
    assert float(moved(groups, data)) >= upper_distance(v, y).value - 1e-12
