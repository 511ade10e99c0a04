"""The order of nonnegative numbers by words of bits and places, against a stable sort."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import wasserstein_distance

from jaxcal import dce
from jaxcal.dce.lower import _carried
from jaxcal.dce.predictions import LEAST, ascending, host_order, order


def numbers(kind, n):
    rng = np.random.default_rng(n)
    x = rng.random(n)
    if kind == "ties":
        return np.round(x, 1)
    if kind == "last bits":
        return 0.5 + rng.permutation(n) * np.finfo(float).eps
    if kind == "last bits, and zeros":  # so that not all bits fit beside the place
        return np.where(x < 0.3, 0, 0.5 + rng.permutation(n) * np.finfo(float).eps)
    if kind == "many sizes":
        return np.where(x < 0.1, 0, np.exp(-700 * rng.random(n)))
    if kind == "zeros and NaN":
        return np.where(x < 0.2, -0.0, np.where(x < 0.4, 0.0, np.where(x < 0.5, np.nan, x)))
    return np.full(n, np.nan) if kind == "NaN" else x


KINDS = [
    "uniform",
    "ties",
    "last bits",
    "last bits, and zeros",
    "many sizes",
    "zeros and NaN",
    "NaN",
]


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 300, 70_001])
def test_the_order_by_words_is_that_of_a_stable_sort(kind, n, dtype):
    x = numbers(kind, n).astype(dtype)
    wanted = np.argsort(x, kind="stable")
    np.testing.assert_array_equal(host_order(x), wanted)
    assert host_order(x).dtype == np.int32


def test_compiled_programs_order_batches_and_have_no_slope():
    x = np.stack([numbers(kind, LEAST) for kind in KINDS])
    places = jax.jit(jax.vmap(order))(x)
    np.testing.assert_array_equal(places, np.argsort(x, kind="stable", axis=1))

    parts = np.arange(LEAST) / LEAST

    def second_moment(x):
        return jnp.sum(x[order(x)] * parts)

    slope = jax.jit(jax.grad(second_moment))(x[0])
    np.testing.assert_allclose(slope, parts[np.argsort(np.argsort(x[0]))])


def test_large_samples_have_the_same_measures_compiled_or_not():
    rng = np.random.default_rng(1)
    v = rng.random(LEAST)
    y = (rng.random(LEAST) < v**1.2).astype(float)
    compiled = jax.jit(dce.kernel_ce)(v, y)
    plain = dce.kernel_ce(v, y)
    np.testing.assert_allclose(compiled.squared, plain.squared, rtol=1e-12)
    np.testing.assert_allclose(compiled.witness, plain.witness, atol=1e-12)
    v[3] = np.nan
    assert np.isnan(float(jax.jit(dce.kernel_ce)(jnp.asarray(v), y).value))


@pytest.mark.slow
def test_transport_between_points_costs_the_wasserstein_distance():
    rng = np.random.default_rng(2)
    u = np.linspace(0, 1, 9)
    for label in (0, 1):
        v = np.sort(np.round(rng.random(300), 2))
        mass, target = rng.random(300), rng.random(9)
        total, over = mass.sum(), 0.3
        target *= (1 - over) * total / target.sum()
        places, targets, at, carried, in_all = map(jnp.asarray, (u, target, v, mass, total))
        cost = _carried(places, targets, at, carried, label, in_all)
        where, much = np.append(u, label), np.append(target, over * total)
        wanted = total * wasserstein_distance(v, where, mass, much)
        assert float(cost) == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("n", [12, 300, LEAST + 1])
def test_the_ece_sums_the_residuals_of_equal_predictions(n):
    """With and without ties, called and compiled, alone and by vmap."""
    rng = np.random.default_rng(n)
    y = (rng.random(n) < 0.4).astype(float)
    w = rng.random(n)
    different = (rng.permutation(n) + 0.5) / n
    both = np.stack([different, np.round(different, 1)])
    wanted = []
    for v in both:
        values, group = np.unique(v, return_inverse=True)
        sums = np.bincount(group, w * (y - v), values.size)
        wanted.append(np.abs(sums).sum() / w.sum())
    called = [float(dce.unbinned_ece(v, y, weights=w)) for v in both]
    np.testing.assert_allclose(called, wanted, rtol=1e-12)
    compiled = jax.jit(jax.vmap(lambda v: dce.unbinned_ece(v, y, weights=w)))
    np.testing.assert_allclose(compiled(both), wanted, rtol=1e-12)
    np.testing.assert_allclose(ascending(jnp.asarray(both[0])), np.sort(both[0]))
