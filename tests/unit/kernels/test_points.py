"""Kernels against their formulas, and the laws of their algebra."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from jaxcal.kernels import (
    IMQ,
    Constant,
    Gaussian,
    Laplace,
    Matern52,
    PowerExponential,
    RationalQuadratic,
    points,
)

FORMULAS = {
    "gaussian": (lambda b: Gaussian(b), oracles.gaussian),
    "imq half": (lambda b: IMQ(b), oracles.imq(0.5)),
    "imq 1.3": (lambda b: IMQ(b, beta=1.3), oracles.imq(1.3)),
    "rational quadratic": (lambda b: RationalQuadratic(b), oracles.rational_quadratic(1.0)),
    "rational quadratic 2.5": (
        lambda b: RationalQuadratic(b, alpha=2.5),
        oracles.rational_quadratic(2.5),
    ),
    "matern": (lambda b: Matern52(b), oracles.matern52),
    "laplace": (lambda b: Laplace(b), oracles.laplace),
}
LENGTHS = [0.7, [0.4, 1.0, 2.5]]

vectors = arrays(np.float64, 3, elements=st.floats(-3, 3))


def call(kernel, x, y):
    return float(evaluate(kernel, jnp.asarray(x), jnp.asarray(y)))


@eqx.filter_jit
def evaluate(kernel, x, y):
    return kernel(x, y)


@pytest.mark.slow
@pytest.mark.parametrize("length", LENGTHS, ids=["one length", "lengths"])
@pytest.mark.parametrize(("make", "formula"), FORMULAS.values(), ids=FORMULAS.keys())
def test_kernel_is_its_formula(make, formula, length):
    kernel = make(length)

    @given(x=vectors, y=vectors)
    def holds(x, y):
        wanted = formula(np.sum(((x - y) / np.asarray(length)) ** 2))[0]
        np.testing.assert_allclose(call(kernel, x, y), wanted, rtol=1e-12)
        np.testing.assert_allclose(call(kernel, x, x), 1.0, rtol=1e-15)

    holds()


def test_constant_is_one():
    assert call(Constant(), np.zeros(3), np.ones(3)) == 1.0


K1, K2, K3 = Gaussian(0.7), IMQ([0.5, 1.0, 2.0], beta=0.8), Matern52(1.3)
MIXED = {
    "k1 * k2 + k3": (K1 * K2 + K3, lambda a, b, c: a * b + c),
    "k1 + k2 * k3": (K1 + K2 * K3, lambda a, b, c: a + b * c),
    "(k1 + k2) * k3": ((K1 + K2) * K3, lambda a, b, c: (a + b) * c),
    "k1 * (k2 + k3)": (K1 * (K2 + K3), lambda a, b, c: a * (b + c)),
    "2 k1 * 3 k2 + 0.5 k3": (2.0 * K1 * (3.0 * K2) + 0.5 * K3, lambda a, b, c: 6 * a * b + c / 2),
    "2 (k1 + k2 k3)": (2.0 * (K1 + K2 * K3), lambda a, b, c: 2 * (a + b * c)),
    "k1 * k2 * k3": (K1 * K2 * K3, lambda a, b, c: a * b * c),
    "k1 + k2 + k3 + 1": (K1 + K2 + K3 + Constant(), lambda a, b, c: a + b + c + 1),
}


@pytest.mark.parametrize(("kernel", "law"), MIXED.values(), ids=MIXED.keys())
def test_algebra_of_kernels(kernel, law):
    @given(x=vectors, y=vectors)
    def holds(x, y):
        parts = [call(k, x, y) for k in (K1, K2, K3)]
        np.testing.assert_allclose(call(kernel, x, y), law(*parts), rtol=1e-12)

    holds()


@pytest.mark.parametrize(
    "kernel",
    [
        *(make(0.7) for make, _ in FORMULAS.values()),
        Constant(),
        Gaussian(0.5) * IMQ(2.0) + Matern52(1.0),
        Gaussian(0.5) + IMQ(2.0) * (Laplace(1.0) + Constant()),
        3.0 * (Gaussian(0.5) + 0.1 * RationalQuadratic(2.0)) * Matern52(0.4),
    ],
    ids=lambda kernel: type(kernel).__name__,
)
def test_the_profile_is_the_kernel_of_the_squared_distance(kernel):
    rng = np.random.default_rng(1)
    for x, y in rng.normal(size=(5, 2, 3)):
        r2 = jnp.asarray(np.sum((x - y) ** 2))
        np.testing.assert_allclose(
            float(points.profile(kernel)(r2)), call(kernel, x, y), rtol=1e-13
        )


def test_no_profile_where_there_is_none():
    def own(x, y):
        return jnp.dot(x, y)

    wide = Gaussian([1.0, 2.0])
    for kernel in (wide, own, Gaussian(1.0) + wide, IMQ(1.0) * own, 2.0 * wide, Gaussian()):
        assert points.profile(kernel) is None


@pytest.mark.parametrize("length", LENGTHS, ids=["one length", "lengths"])
@pytest.mark.parametrize("kind", ["gaussian", "imq 1.3", "rational quadratic 2.5", "matern"])
def test_derivatives_at_and_away_from_coincidence(kind, length):
    make, formula = FORMULAS[kind]
    kernel = make(length)

    @jax.jit
    def derivatives(x, y):
        k_xy = jax.jacfwd(jax.grad(kernel, argnums=0), argnums=1)(x, y)
        return kernel(x, y), *jax.grad(kernel, argnums=(0, 1))(x, y), k_xy

    rng = np.random.default_rng(2)
    x = rng.normal(size=3)
    for y in (x, x + 1e-9, x + np.array([0.3, 0, 0]), rng.normal(size=3)):
        wanted = oracles.kernel_with_derivatives(formula, np.asarray(length), x, y)
        got = derivatives(jnp.asarray(x), jnp.asarray(y))
        for a, b in zip(got, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-7)


def test_matern_derivatives_at_coincidence_in_numbers():
    # -5/6 and 25/12 in u: the mixed derivative at x = y is 5 / (3 l^2) on the diagonal
    kernel = Matern52(0.5)
    x = jnp.asarray([0.2, -1.0])
    np.testing.assert_array_equal(jax.grad(kernel)(x, x), np.zeros(2))
    mixed = jax.jacfwd(jax.grad(kernel, argnums=0), argnums=1)(x, x)
    np.testing.assert_allclose(mixed, 5 / 3 / 0.25 * np.eye(2), rtol=1e-14)


def test_the_power_2_is_the_gaussian_kernel_with_its_derivatives():
    x = jnp.asarray([0.2, -1.0])
    for y in (x, x + 1e-9, x + 0.7):
        one, other = (
            jax.jacfwd(jax.grad(kernel, argnums=0), argnums=1)(x, y)
            for kernel in (PowerExponential(2**0.5, power=2.0), Gaussian(1.0))
        )
        np.testing.assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("kernel", [Laplace(1.0), Matern52(1.0)], ids=["laplace", "matern"])
def test_gradient_is_finite_where_points_coincide(kernel):
    x = jnp.ones(2)
    assert np.all(np.isfinite(jax.grad(kernel)(x, x)))


@pytest.mark.parametrize(
    "value", [0, 0.0, -1.0, np.inf, np.nan, [1.0, 0.0], [1.0, -2.0], np.array([np.inf, 1.0])]
)
@pytest.mark.parametrize("kind", [Gaussian, IMQ, RationalQuadratic, Matern52, Laplace])
def test_bandwidths_must_be_positive_and_finite(kind, value):
    with pytest.raises(ValueError, match="positive and finite"):
        kind(value)


def test_bandwidths_must_be_scalars_or_vectors():
    with pytest.raises(ValueError, match="one length per dimension"):
        Gaussian(np.ones((2, 2)))


def test_a_scale_must_be_positive():
    with pytest.raises(ValueError, match="positive"):
        -1.0 * Gaussian(1.0)


@pytest.mark.parametrize("value", [0.0, -0.5, float("inf"), float("nan")])
def test_exponents_must_be_positive(value):
    # (1 + u)^(1/2) and its kin are not positive definite
    with pytest.raises(ValueError, match="beta"):
        IMQ(1.0, beta=value)
    with pytest.raises(ValueError, match="alpha"):
        RationalQuadratic(1.0, alpha=value)


def test_a_kernel_without_bandwidth_says_so():
    with pytest.raises(ValueError, match="no bandwidth"):
        Gaussian()(jnp.zeros(2), jnp.ones(2))


def test_open_bandwidths_are_filled_and_given_ones_stay():
    kernel = Gaussian() * IMQ(0.3, beta=0.7) + 2.0 * Matern52()
    assert points.needs_bandwidth(kernel)
    filled = points.with_bandwidth(kernel, jnp.asarray(1.7))
    assert not points.needs_bandwidth(filled)
    wanted = Gaussian(1.7) * IMQ(0.3, beta=0.7) + 2.0 * Matern52(1.7)
    x, y = np.zeros(3), np.array([1.0, 0.2, -0.4])
    assert call(filled, x, y) == call(wanted, x, y)


def test_smoothness_is_known():
    assert points.smoothness(Gaussian(1.0) * Matern52(1.0) + 2.0 * IMQ(1.0))
    for kernel in (Laplace(1.0), Gaussian(1.0) + Laplace(1.0), 2.0 * (IMQ(1.0) * Laplace(1.0))):
        assert not points.smoothness(kernel)


def test_gram_is_the_kernel_of_every_pair():
    rng = np.random.default_rng(3)
    xs, ys = rng.normal(size=(4, 3)), rng.normal(size=(5, 3))
    got = points.gram(K2, jnp.asarray(xs), jnp.asarray(ys))
    wanted = [[call(K2, x, y) for y in ys] for x in xs]
    np.testing.assert_allclose(got, wanted, rtol=1e-13)


@given(xs=arrays(np.float64, (4, 3), elements=st.floats(-1e3, 1e3)))
def test_squared_distances(xs):
    gaps = xs[:, None] - xs[None]
    got = np.asarray(points.squared_distances(jnp.asarray(xs), jnp.asarray(xs)))
    np.testing.assert_allclose(got, np.sum(gaps**2, -1), atol=1e-13 * max(1, np.sum(xs**2)))
    assert np.all(got >= 0)


def test_a_new_bandwidth_does_not_retrace():
    traces = []

    @jax.jit
    def value(kernel, x):
        traces.append(1)
        return kernel(x, -x)

    for b in (0.5, 1.0, 1):
        value(Gaussian(b), jnp.ones(2))
    assert len(traces) == 1
    # arrays carry a type of their own, which makes another program
    for b in (np.float64(2.0), jnp.asarray(3.0)):
        value(Gaussian(b), jnp.ones(2))
    assert len(traces) == 2


def test_kernels_keep_the_type_of_the_points():
    x = jnp.ones(2, jnp.float32)
    for kernel in (Gaussian(1), Gaussian(0.5), 2 * IMQ(1.0), 0.5 * Matern52(3)):
        assert kernel(x, -x).dtype == jnp.float32
    for length in ([0.5, 2.0], np.float64(2.0), jnp.float64(2.0)):
        for kernel in (
            Gaussian(length),
            points.L1Laplace(length),
            points.Scaled(np.float64(2.0), IMQ(length)),
        ):
            assert kernel(x, -x).dtype == jnp.float32
