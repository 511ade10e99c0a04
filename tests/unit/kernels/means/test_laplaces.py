"""Laplace predictions against quadrature, the printed branches and the published numbers."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import jax.test_util
import numpy as np
import numpyro.distributions as dist
import pytest
from scipy import integrate

from jaxcal.kernels import L1Laplace, Laplace
from jaxcal.kernels.means.closed_forms import first_average, second_average
from jaxcal.kernels.means.dispatch import kernel_means

close = partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12)
first_average, second_average = jax.jit(first_average), jax.jit(second_average)


def first(z, b, g):
    return float(first_average(jnp.asarray(z), jnp.asarray(1 / b), jnp.asarray(g)))


def second(z, b, c, g):
    args = (jnp.asarray(value, float) for value in (z, 1 / b, 1 / c, g))
    return float(second_average(*args))


@pytest.mark.parametrize(
    ("b", "c", "g", "z", "wanted"),
    [
        (1.3, 0.6, 0.7, 0.9, 0.4264930005),
        (2, 2, 0.5, 1.1, 0.3571679920),
        (1.3, 1.3, 0.7, 0.9, 0.3713277962),
        (2, 0.8, 0.5, 1.1, 0.4244105598),
    ],
)
def test_the_published_numbers(b, c, g, z, wanted):
    assert abs(second(z, b, c, g) - wanted) < 1e-10
    assert abs(second(z, c, b, g) - wanted) < 1e-10


def density(b):
    return lambda x: np.exp(-abs(x) / b) / (2 * b)


def integral(f, kinks):
    ends = sorted([-60, *kinks, 60])
    parts = itertools.pairwise(ends)
    return sum(integrate.quad(f, a, b, epsabs=1e-14, epsrel=1e-13, limit=200)[0] for a, b in parts)


@pytest.mark.parametrize("z", [0.0, 0.3, 4.0])
@pytest.mark.parametrize("b", [0.2, 1.0, 1 + 1e-6, 1.9])
def test_the_first_average_is_the_integral(z, b):
    wanted = integral(lambda x: density(b)(x) * np.exp(-abs(x - z)), [0, z])
    close(first(z, b, 1.0), wanted)


@pytest.mark.parametrize("z", [0.0, 0.3, 4.0])
@pytest.mark.parametrize(
    ("b", "c"),
    [(0.2, 1.7), (1, 1), (1, 1 + 1e-6), (1 - 1e-6, 1 + 1e-7), (1 + 1e-3, 0.4), (0.4, 0.4), (3, 1)],
)
def test_the_second_average_is_the_integral(z, b, c):
    def over_c(x):  # the printed first average, where it does not lose digits
        u = abs(x - z)
        if abs(c - 1) < 1e-5:
            return integral(lambda t: density(c)(t) * np.exp(-abs(x - z - t)), [0, x - z])
        return (c * np.exp(-u / c) - np.exp(-u)) / (c**2 - 1)

    wanted = integral(lambda x: density(b)(x) * over_c(x), [0, z])
    close(second(z, b, c, 1.0), wanted, rtol=1e-9)


def printed(z, b, c, g):
    """The generic branch as printed, for rates that differ."""
    p, q = b**2 * g**2 - 1, c**2 * g**2 - 1
    return (
        g * b**3 * np.exp(-z / b) / (p * (b**2 - c**2))
        + g * c**3 * np.exp(-z / c) / (q * (c**2 - b**2))
        + np.exp(-g * z) / (p * q)
    )


def test_the_printed_branch_and_continuity_across_all_others():
    close(second(0.9, 1.3, 0.6, 0.7), printed(0.9, 1.3, 0.6, 0.7))
    for z in (0.0, 0.7, 5.0):
        for eps in (1e-3, 1e-5, 1e-8):
            # three scales that coincide, pairs that do, and their neighbours
            triple = np.exp(-z) * (3 + 3 * z + z**2) / 8
            assert abs(second(z, 1 + eps, 1 - eps, 1.0) - triple) < 2 * eps
            assert abs(second(z, 2 + eps, 2.0, 1.0) - second(z, 2.0, 2.0, 1.0)) < 2 * eps
            assert abs(second(z, 1 + eps, 2.0, 1.0) - second(z, 1.0, 2.0, 1.0)) < 2 * eps
            assert abs(first(z, 1 + eps, 1.0) - np.exp(-z) * (1 + z) / 2) < 2 * eps


@pytest.mark.slow
def test_gradients_are_right_for_equal_scales_and_locations():
    ys = jnp.array([[0.4], [1.3]])

    def total(loc, scale, bandwidth):
        means = kernel_means(L1Laplace(bandwidth), dist.Laplace(loc, scale))
        between = means.second(means.features, means.features)
        return jnp.sum(jnp.sin(means.first(means.features, ys))) + jnp.sum(jnp.cos(between))

    same = (jnp.array([0.4, 0.4]), jnp.array([0.8, 0.8]), jnp.array(0.8))
    gradients = jax.grad(total, argnums=(0, 1, 2))(*same)
    assert all(bool(jnp.all(jnp.isfinite(g))) for g in gradients)
    jax.test_util.check_grads(total, same, order=1, modes=["rev"], atol=1e-5, rtol=1e-5)


def test_coordinates_multiply_and_1d_is_the_radial_kernel():
    rng = np.random.default_rng(0)
    loc, scale = rng.normal(size=(3, 4)), rng.uniform(0.2, 2, size=(3, 4))
    lengths, ys = np.array([0.5, 1.0, 2.0, 0.8]), jnp.asarray(rng.normal(size=(5, 4)))
    whole = kernel_means(L1Laplace(lengths), dist.Laplace(loc, scale).to_event(1))
    parts = [
        kernel_means(Laplace(lengths[q]), dist.Laplace(loc[:, q], scale[:, q])) for q in range(4)
    ]
    close(
        whole.first(whole.features, ys),
        np.prod([p.first(p.features, ys[:, q : q + 1]) for q, p in enumerate(parts)], axis=0),
    )
    close(
        whole.second(whole.features, whole.features),
        np.prod([p.second(p.features, p.features) for p in parts], axis=0),
    )


def test_a_point_mass_is_the_kernel_at_its_point():
    means = kernel_means(
        L1Laplace(0.7), dist.Laplace(jnp.array([0.3, 1.0]), jnp.zeros(2), validate_args=False)
    )
    ys = jnp.array([[0.5], [0.3]])
    close(means.first(means.features, ys)[0], np.exp(-np.array([0.2, 0.0]) / 0.7))
    close(means.second(means.features, means.features)[0], np.exp(-np.array([0.0, 0.7]) / 0.7))
