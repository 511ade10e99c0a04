"""Bounds, extremes and roots: values and slopes, and NaN where NaN came in, whatever the size."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import jaxcal
from jaxcal import kernels, numerics
from jaxcal.fit.options import stein_specification
from jaxcal.numerics import eliminated
from jaxcal.read import Units

KEEP = {
    "at_least": lambda x: jnp.sum(numerics.at_least(x[:, None] * x[None], 0)),
    "at_most": lambda x: jnp.sum(jnp.exp(numerics.at_most(x[:, None] * x[None], 0.5))),
    "largest": lambda x: numerics.largest(jnp.abs(x[:, None] - x[None])),
    "smallest": lambda x: numerics.smallest(x[:, None] - x[None]),
    "safe_sqrt": lambda x: jnp.sum(numerics.safe_sqrt(x[:, None] * x[None])),
    "safe_power": lambda x: jnp.sum(numerics.safe_power(x[:, None] * x[None], 0.7)),
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


@pytest.mark.slow
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
    assert "so the result is NaN" in result.warnings()[0]


@pytest.mark.slow
@pytest.mark.parametrize("n", [60, 300])
def test_one_nan_draw_gives_no_p_value(key, n):
    samples = jax.random.normal(key, (n, 20)).at[n // 3, 4].set(jnp.nan)
    result = jaxcal.skce_test(key, jaxcal.Draws(samples), jnp.linspace(-2, 2, n))
    assert np.isnan(result.p_value)
    assert np.isnan(result.estimate)
    assert "so the result is NaN" in result.warnings()[0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_binary_size_loses_no_digit(dtype):
    x = jnp.asarray([0.75, 3.0, -1e-20, 1e19, 1e38, 0.0, jnp.inf, jnp.nan], dtype)
    size = numerics.binary_size(x)
    np.testing.assert_array_equal(size * (x / size), x)
    share = np.abs(np.asarray(x / size))[:5]
    assert np.all((share >= 0.5) & (share < 1))
    assert np.all(np.isin(np.log2(np.asarray(size, float)) % 1, 0))


@pytest.mark.slow
@pytest.mark.parametrize("size", [1e-20, 1e-3, 1e19])
def test_units_of_any_size_are_found(key, size):
    ys = jax.random.normal(key, (12, 2), "float32") + 3
    small, units = Units.of(ys), Units.of(ys * jnp.float32(size))
    np.testing.assert_allclose(units.scale, small.scale * np.float32(size), rtol=1e-5)
    np.testing.assert_allclose(units.points(ys * jnp.float32(size)), small.points(ys), atol=1e-5)


def _scaled_normal(params, y):
    mean, width = params
    return -(((y - mean) / width) ** 2) / 2


@pytest.mark.slow
def test_no_distance_of_scores_overflows():
    """float32 and widths from 1e-6 to 1e6: p was NaN in 289 of 300 calibrated data sets."""

    @jax.jit
    def p_values(keys):
        def one(key):
            a, b, c = jax.random.split(key, 3)
            widths = 10 ** jax.random.uniform(a, (50,), "float32", -6, 6)
            ys = widths * jax.random.normal(b, (50,), "float32")
            model = jaxcal.Unnormalized(_scaled_normal, (jnp.zeros_like(ys), widths))
            result = jaxcal.kccsd_test(c, model, ys, null=jaxcal.nulls.Wild(39))
            return result.p_value, result.bandwidths["prediction"]

        return jax.lax.map(one, keys)

    p, bandwidth = p_values(jax.random.split(jax.random.key(4), 60))
    assert np.all(np.isfinite(p))
    assert np.all(np.isfinite(bandwidth))
    assert np.sum(np.asarray(p) <= 0.05) <= scipy.stats.binom.ppf(0.9999, 60, 0.05)


def _exponential(x, y):
    return jnp.exp(-jnp.sum(jnp.abs(x - y)))


def _of_norm(x, y):
    return jnp.exp(-jnp.linalg.norm(x - y))


def _bell(x, y):
    return jnp.exp(-jnp.sum((x - y) ** 2) / 2)


def _narrow(x, y):
    return _bell(30 * x, 30 * y)


def _cubic(x, y):
    return (1 + jnp.sum(x * y)) ** 3


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_target_kernel_that_autodiff_sees_wrongly_is_refused(key, dtype):
    """exp(-|x - y|) is not twice differentiable at 0, and p was 1 whatever the data."""
    ys = 5 + 3 * jax.random.normal(key, (12, 2), dtype)
    for function in (_exponential, _of_norm):
        for kernel in (function, kernels.Gaussian() + function):
            with pytest.raises(ValueError, match=r"target_kernel: .* is it smooth there\?"):
                stein_specification(ys, target_kernel=kernel)
    for function in (_bell, _narrow, _cubic):
        for kernel in (function, 2.0 * kernels.points.as_kernel(function) + kernels.IMQ()):
            stein_specification(ys, target_kernel=kernel)


@pytest.mark.parametrize(("dtype", "error"), [(jnp.float32, 3e-7), (jnp.float64, 1e-14)])
def test_cosine_and_sine_of_turns(dtype, error):
    turns = jnp.concatenate([jnp.linspace(-3, 3, 4801), jnp.array([1e4 + 0.25, -777.5])])
    turns = turns.astype(dtype)
    exact = np.asarray(turns, np.float64)
    exact = 2 * np.pi * (exact - np.round(exact))
    cos, sin = numerics.cos_and_sin(turns)
    assert cos.dtype == sin.dtype == dtype
    np.testing.assert_allclose(cos, np.cos(exact), atol=error, rtol=0)
    np.testing.assert_allclose(sin, np.sin(exact), atol=error, rtol=0)
    slope = jax.vmap(jax.grad(lambda x: numerics.cos_and_sin(x)[1]))(turns)
    np.testing.assert_allclose(slope, 2 * np.pi * np.cos(exact), atol=30 * error, rtol=0)
    bad = jnp.array([jnp.nan, jnp.inf, -jnp.inf], dtype)
    assert np.all(np.isnan(numerics.cos_and_sin(bad)))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_in_order_is_a_sort_of_signs_zeros_infinities_and_nan(dtype):
    values = np.random.default_rng(0).normal(size=(3, 40))
    values[0, :6] = [np.nan, -np.inf, np.inf, 0.0, -0.0, -np.nan]
    ordered = numerics.in_order(jnp.asarray(values, dtype))
    np.testing.assert_array_equal(ordered, np.sort(values.astype(dtype), axis=-1))


@pytest.mark.parametrize("k", [5, 37, 48])  # rows one by one, then 16 at a time
def test_elimination_solves_as_numpy_does(key, k):
    root = np.asarray(jax.random.normal(key, (3, k, k)))
    matrices = root @ root.swapaxes(1, 2) + np.eye(k)
    vectors = np.asarray(jax.random.normal(jax.random.key(1), (3, k, 4)))
    forms, log_det, solutions = eliminated(jnp.asarray(matrices), jnp.asarray(vectors))
    wanted = np.einsum("mib,mij,mjb->mb", vectors, np.linalg.inv(matrices), vectors)
    np.testing.assert_allclose(forms, wanted, rtol=1e-9)
    np.testing.assert_allclose(log_det, np.linalg.slogdet(matrices)[1], rtol=1e-9)
    np.testing.assert_allclose(solutions, np.linalg.solve(matrices, vectors), rtol=1e-9)


@pytest.mark.parametrize(("n", "k"), [(0, 3), (5, 3), (1000, 7), (400_000, 7), (400_000, 1000)])
def test_sums_of_groups_lose_no_digits(n, k):
    """One float32 sum of 400,000 numbers .97 is wrong by a percent."""
    rng = np.random.default_rng(0)
    group, x = rng.integers(k, size=n) * (rng.random(n) < 0.5), np.full((n, 2), 0.97, np.float32)
    wanted = np.bincount(group, minlength=k)[:, None] * x[:1].astype(float) if n else 0
    result = numerics.group_sums(jnp.asarray(x), jnp.asarray(group), k)
    np.testing.assert_allclose(result, np.broadcast_to(wanted, (k, 2)), rtol=3e-6)


def test_numbers_of_python_are_counted_if_not_finite():
    tree = {"scale": float("nan"), "n": 3, "values": jnp.array([1.0, jnp.inf])}
    assert numerics.not_finite(tree) == 2
