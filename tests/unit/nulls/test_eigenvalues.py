"""The limit distribution from eigenvalues: its inversion, its sketch, and the error it states."""

import itertools
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
import scipy.stats

from jaxcal.engine.quadratic import quadratic_sums
from jaxcal.fit import testing
from jaxcal.nulls import Eigenvalues, Wild
from jaxcal.nulls.limits import tail

run = jax.jit(tail)


@pytest.mark.parametrize("k", [1, 5, 500])
@pytest.mark.parametrize("q", [0.99, 0.5, 0.05, 1e-8, 1e-200])
def test_equal_weights_are_a_chi_square(k, q):
    x = scipy.stats.chi2.isf(q, k)
    weights, scale = (np.arange(500) < k).astype(float), 7.0
    exact = float(run(jnp.asarray(scale * x), scale * weights).log_p)
    np.testing.assert_allclose(exact, np.log(q), rtol=1e-9, atol=1e-9)
    single = run(jnp.float32(scale * x), np.float32(scale) * weights.astype(np.float32))
    np.testing.assert_allclose(float(single.log_p), np.log(q), rtol=1e-5, atol=2e-4)


def imhof(x, weights, degrees):
    """Imhof (1961), eq. 3.2."""

    def integrand(u):
        theta = np.sum(degrees * np.arctan(weights * u)) / 2 - x * u / 2
        log_rho = np.sum(degrees * np.log1p((weights * u) ** 2)) / 4
        return np.sin(theta) / u * np.exp(-log_rho)

    edges = np.concatenate([[0], np.geomspace(1e-3, 1e4, 200)])
    pieces = [
        scipy.integrate.quad(integrand, a, b, limit=500)[0] for a, b in itertools.pairwise(edges)
    ]
    return 0.5 + sum(pieces) / np.pi


@pytest.mark.parametrize("x", [0.3, 2.0, 6.0, 15.0])
def test_unequal_weights_follow_imhof(x):
    weights, degrees = np.array([1.0, 0.5, 0.2, 0.02]), np.array([1.0, 1.0, 3.5, 40.0])
    padded = np.pad(weights, (0, 496)), np.pad(degrees, (0, 496), constant_values=1)
    result = run(jnp.asarray(x), *padded)
    np.testing.assert_allclose(result.p, imhof(x, weights, degrees), atol=1e-6)
    step = 1e-5
    for k in range(4):
        up, down = (
            run(jnp.asarray(x), padded[0] * np.exp(sign * step * (np.arange(500) == k)), padded[1])
            for sign in (1, -1)
        )
        slope = (up.log_p - down.log_p) / (2 * step)
        np.testing.assert_allclose(result.slopes[k], slope, atol=1e-5)


@pytest.mark.parametrize("degrees", [1e3, 5e4, 1e6, 1e9])
@pytest.mark.parametrize("x", [3.0, 5.0, 9.0])
def test_a_small_weight_of_many_degrees_is_nearly_its_mean(degrees, x):
    """As in the spectrum of a linear-time test, without the diagonal, of n = degrees."""
    weights = np.zeros(500)
    weights[:20] = 0.5 ** np.arange(20)
    weights[20], mean = 3 / degrees, 3.0
    result = run(jnp.asarray(x + mean), weights, np.where(weights == weights[20], degrees, 1.0))
    # a normal variable of this variance in the place of it, by Gauss-Hermite quadrature
    nodes, shares = np.polynomial.hermite_e.hermegauss(9)
    points = x - (2 * degrees) ** 0.5 * weights[20] * nodes
    few = np.where(weights == weights[20], 0, weights)
    values = [float(run(jnp.asarray(point), few, np.ones(500)).p) for point in points]
    wanted = shares @ np.asarray(values) / shares.sum()
    np.testing.assert_allclose(float(result.p), wanted, rtol=1e-3)


@pytest.mark.slow
def test_the_scale_of_the_weights_cancels_in_loops_too():
    """A compiler may divide by a loop's constant through its reciprocal, and pass 1."""
    weights = jnp.linspace(0.1, 1, 20, dtype=jnp.float32)

    @jax.jit
    def every(scales):
        return jax.lax.map(lambda s: tail(s * 9.0, s * weights).p, scales)

    p = every(jnp.linspace(0.3, 3, 300, dtype=jnp.float32))
    np.testing.assert_allclose(p, p[0], rtol=1e-4)
    np.testing.assert_allclose(
        p[0], run(jnp.asarray(9.0), jnp.asarray(weights, float)).p, rtol=1e-4
    )


@pytest.mark.slow
def test_what_is_nearly_certain_has_a_p_value():
    weights = jnp.maximum(0.3 ** jnp.arange(64.0), 1e-4).astype(jnp.float32)
    p = jax.jit(lambda xs: jax.lax.map(lambda x: tail(x, weights).p, xs))
    np.testing.assert_allclose(p(jnp.geomspace(1e-8, 5e-3, 500, dtype=jnp.float32)), 1, atol=1e-3)


def test_no_weights_and_bad_numbers_give_no_p_value():
    ones = np.ones(500)
    assert np.isnan(run(jnp.asarray(1.0), 0 * ones).p)
    assert np.isnan(run(jnp.asarray(jnp.nan), ones).p)
    assert np.isnan(run(jnp.asarray(1.0), np.where(np.arange(500) == 3, np.nan, ones)).p)
    assert run(jnp.asarray(-1.0), ones).p == 1


class Radial:
    """h = exp(-|x - y|^2 / (2 l^2)), centred; a spectrum that falls off fast."""

    channels = 1

    def __init__(self, length):
        self.length = length

    def block(self, rows, cols):
        gaps = jnp.sum((rows[:, None] - cols[None]) ** 2, -1)
        return jnp.exp(-gaps / (2 * self.length**2))[None]

    def diagonal(self, features):
        return jnp.ones((1, features.shape[0]))


@pytest.mark.parametrize(("n", "tile"), [(12, 512), (100, 32), (300, 128)])
def test_the_sketch_has_the_largest_eigenvalues(n, tile):
    xs = jax.random.normal(jax.random.key(n), (n, 1))
    sketch = jax.random.normal(jax.random.key(0), (n, min(n, 40)))
    walk = partial(quadratic_sums, Radial(1.0), tile=tile)
    sums = jax.jit(lambda xs, sketch: walk(xs, jnp.zeros((n, 0)), sketch=sketch))(xs, sketch)
    exact = np.linalg.eigvalsh(Radial(1.0).block(xs, xs)[0])[-10:] - 1
    assert sums.eigenvalues is not None
    values = sums.eigenvalues[0, -10:]  # below 0 they are no weights, and may be missing
    np.testing.assert_allclose(*np.maximum((values, exact), 0), rtol=1e-6, atol=1e-9 * n)


@pytest.mark.slow
@pytest.mark.parametrize("length", [1.0, 0.2, 0.02])
def test_the_p_value_matches_the_full_spectrum_within_its_error(length):
    """A spectrum that the sketch holds, one that it holds in part, and one that it hardly sees."""
    n = 300
    xs = jax.random.normal(jax.random.key(2), (n, 2))
    h = np.asarray(Radial(length).block(xs, xs)[0])
    values = np.linalg.eigvalsh(h - np.eye(n)) / n  # of both signs, with sum 0
    total = (h.sum() - n) / (n * (n - 1))

    @partial(jax.jit, static_argnames="columns")
    def outcome(shift, columns):
        """With a statistic of any size, by moving the sum over pairs."""
        null = Eigenvalues(columns)
        needs = null.needs(jax.random.key(1), xs)
        sums = quadratic_sums(
            Radial(length), xs, jnp.zeros((n, 0)), squares=True, sketch=needs.sketch
        )
        moved = testing.nulls.Sums.of(sums, jnp.zeros((n, 0)))
        return null.outcome(moved._replace(means=moved.means + shift))

    for size in (0.0, 2.0, 4.0):  # of the statistic, in standard deviations
        x = size * np.sqrt(2 * np.sum(values**2))
        exact = imhof(x / values[-1], values / values[-1], np.ones(n))
        result = outcome(x / (n - 1) - total, 64)
        assert abs(result.p_value[0] - exact) <= result.p_error[0] + 1e-9
        if length == 1.0:
            np.testing.assert_allclose(result.p_value[0], exact, rtol=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("length", [1.0, 0.1])
def test_the_p_value_agrees_with_draws_of_signs(length):
    """A length of 0.1 leaves most of H on its diagonal, which is no part of the statistic."""
    xs = jax.random.normal(jax.random.key(3), (200, 2))
    signs = jax.random.rademacher(jax.random.key(4), (200, 1), xs.dtype)

    class Signed(Radial):  # h has mean zero by a sign
        def block(self, rows, cols):
            signs = rows[:, :1] @ cols[:, :1].T
            return signs[None] * super().block(rows[:, 1:], cols[:, 1:])

    xs = jnp.concatenate([signs, xs], axis=1)
    weights = jnp.zeros((200, 0))

    @eqx.filter_jit  # keeps the counts, which are no arrays
    def walk(xs):
        needs = Eigenvalues(64).needs(jax.random.key(0), xs)
        sums = quadratic_sums(Signed(length), xs, weights, squares=True, sketch=needs.sketch)
        draws = testing.apply(Wild(4000), jax.random.key(1), Signed(length), xs)[0].samples[0]
        return testing.nulls.Sums.of(sums, weights), draws

    @eqx.filter_jit
    def outcome_of(sums, moved):
        outcome = Eigenvalues(64).outcome(sums._replace(means=moved[None, None]))
        assert outcome.p_error is not None
        return outcome.p_value[0], outcome.p_error[0]

    sums, draws = walk(xs)
    draws = np.asarray(draws)
    for size in (-1.0, 0.0, 1.0, 2.0, 3.0):  # of the statistic, in standard deviations
        moved = size * np.std(draws)
        p, error = map(float, outcome_of(sums, jnp.asarray(moved)))
        share = float(np.mean(draws >= moved))
        assert abs(p - share) < error + 4.5 * np.sqrt(p * (1 - p) / 4000)
