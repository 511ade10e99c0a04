"""Bounds, extremes and roots: values and slopes, and NaN where NaN came in, whatever the size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcal
from jaxcal import kernels, numerics

KEEP = {
    "at_least": lambda x: jnp.sum(numerics.at_least(x[:, None] * x, 0)),
    "at_most": lambda x: jnp.sum(jnp.exp(numerics.at_most(x[:, None] * x, 0.5))),
    "largest": lambda x: numerics.largest(jnp.abs(x[:, None] - x)),
    "smallest": lambda x: numerics.smallest(x[:, None] - x),
    "safe_sqrt": lambda x: jnp.sum(numerics.safe_sqrt(x[:, None] * x)),
    "safe_power": lambda x: jnp.sum(numerics.safe_power(x[:, None] * x, 0.7)),
    "squared_distances": lambda x: jnp.sum(
        jnp.exp(-kernels.points.squared_distances(x[:, None], x[:, None]))
    ),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [12, 60, 200, 300])
def test_nan_survives_the_fusion_with_a_sum(n, dtype):
    x = np.random.default_rng(n).normal(size=n).astype(dtype)
    run = jax.jit(lambda x: {name: function(x) for name, function in KEEP.items()})
    assert all(np.isfinite(value) for value in run(x).values())
    for place in (0, n // 2, n - 1):
        y = x.copy()
        y[place] = np.nan
        assert all(np.isnan(value) for value in run(y).values()), run(y)


def test_bounds_and_roots_are_those_of_numpy():
    x = jnp.array([-2.0, -0.0, 0.0, 0.3, 1.0, 7.0, np.inf, -np.inf])
    np.testing.assert_array_equal(numerics.at_least(x, 0.3), np.maximum(x, 0.3))
    np.testing.assert_array_equal(numerics.at_most(x, 0.3), np.minimum(x, 0.3))
    np.testing.assert_array_equal(numerics.safe_sqrt(x), np.sqrt(np.maximum(x, 0)))
    np.testing.assert_allclose(numerics.safe_power(x, 0.7), np.maximum(x, 0) ** 0.7, rtol=1e-14)
    assert numerics.largest(x) == np.inf
    assert numerics.smallest(x) == -np.inf
    assert np.isnan(numerics.at_most(x, jnp.nan)[0])
    assert np.isnan(numerics.at_least(x, jnp.nan)[0])
    table = jnp.array([[1.0, np.nan], [3.0, 2.0]])
    np.testing.assert_array_equal(numerics.largest(table, 1), [np.nan, 3])
    np.testing.assert_array_equal(numerics.smallest(table, 0), [1, np.nan])


def test_slopes_at_the_bound():
    assert jax.grad(numerics.safe_sqrt)(0.0) == 0
    assert jax.grad(numerics.safe_power)(0.0, 0.7) == 0
    assert jax.grad(numerics.at_least)(0.0, 0.0) == 1
    assert jax.grad(numerics.at_least)(-1.0, 0.0) == 0


NOT_SMOOTH = [kernels.Laplace(), kernels.Matern52(), kernels.PowerExponential(power=0.7)]


@pytest.mark.parametrize("kernel", NOT_SMOOTH, ids=lambda kernel: type(kernel).__name__)
@pytest.mark.parametrize("n", [12, 300])
def test_one_nan_input_gives_no_p_value(key, kernel, n):
    """The input's kernel values were 1 with every kernel whose root took NaN for 0."""
    ys = jax.random.normal(key, (n,))
    inputs = jnp.arange(n, dtype=float).at[n // 3].set(jnp.nan)
    scores = jaxcal.Scores(-3 * ys)
    result = jaxcal.kcsd_test(key, scores, ys, inputs, prediction_kernel=kernel)
    assert np.isnan(result.p_value)
    assert np.isnan(result.estimate)
    assert "so the p-value is NaN" in result.warnings()[0]


@pytest.mark.parametrize("n", [60, 300])
def test_one_nan_draw_gives_no_p_value(key, n):
    samples = jax.random.normal(key, (n, 20)).at[n // 3, 4].set(jnp.nan)
    result = jaxcal.skce_test(key, jaxcal.Draws(samples), jnp.linspace(-2, 2, n))
    assert np.isnan(result.p_value)
    assert np.isnan(result.estimate)
    assert "so the p-value is NaN" in result.warnings()[0]
