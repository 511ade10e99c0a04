"""Kernels on sequences of tokens: brute force, eigenvalues, and the tests that use them."""

from collections import Counter

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import jaxcal
from jaxcal.kernels import Hamming, Spectrum, points

L = 7
TOKENS = np.random.default_rng(0).integers(-1, 3, (40, L))


def mismatches(x, y):
    return sum(a != b for a, b in zip(x, y, strict=True))


def runs(x, length):
    each = (tuple(x[i : i + length].tolist()) for i in range(len(x) - length + 1))
    return Counter(run for run in each if min(run) >= 0)


def cosine(x, y, length):
    a, b = runs(x, length), runs(y, length)
    norms = np.sqrt(sum(v**2 for v in a.values()) * sum(v**2 for v in b.values()))
    return sum(a[run] * b[run] for run in a) / norms if norms else 0.0


@pytest.mark.parametrize("tokens", [TOKENS, TOKENS.astype(np.float32), TOKENS.astype(float)])
def test_they_are_what_counting_gives(tokens):
    xs = jnp.asarray(tokens)
    got = points.gram(Hamming(0.4), xs, xs[:9])
    wanted = [[np.exp(-0.4 * mismatches(x, y)) for y in TOKENS[:9]] for x in TOKENS]
    np.testing.assert_allclose(got, wanted, rtol=1e-6)
    for length in (1, 2, 3):
        got = points.gram(Spectrum(length), xs, xs[:9])
        wanted = [[cosine(x, y, length) for y in TOKENS[:9]] for x in TOKENS]
        np.testing.assert_allclose(got, wanted, rtol=1e-6)
    assert got.dtype == (xs.dtype if jnp.issubdtype(xs.dtype, jnp.floating) else jnp.float64)


@pytest.mark.parametrize("kernel", [Hamming(0.05), Hamming(2.0), Spectrum(1), Spectrum(2)])
def test_they_are_positive_semidefinite(kernel):
    xs = jnp.asarray(TOKENS)
    assert np.linalg.eigvalsh(points.gram(kernel, xs, xs)).min() > -1e-12


def test_junk_is_named():
    with pytest.raises(ValueError, match="rate: wanted a positive number"):
        Hamming(0.0)
    with pytest.raises(ValueError, match="length: wanted a whole number"):
        Spectrum(0)
    with pytest.raises(ValueError, match="length: wanted runs no longer than the sequences, got 9"):
        Spectrum(9)(*jnp.asarray(TOKENS[:2]))


def markov(key, x, n_samples):
    """Sequences of 2 tokens that stay the same with probability x, [n, n_samples, L]."""
    first_key, stay_key = jax.random.split(key)
    shape = (len(x), n_samples)
    first = jax.random.bernoulli(first_key, 0.5, shape)[..., None].astype(float)
    moves = jax.random.bernoulli(stay_key, 1 - x[:, None, None], (*shape, L - 1)).astype(float)
    return jnp.concatenate([first, (first + jnp.cumsum(moves, axis=-1)) % 2], axis=-1)


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [Hamming(0.3), Spectrum(2)])
def test_acmmd_finds_models_that_ignore_their_input(kernel):
    """The right model of the dependence on x passes, that of its average does not."""
    n, b = 60, 100

    @jax.jit
    def p_values(ignores):
        def one(key):
            keys = jax.random.split(key, 4)
            x = jax.random.uniform(keys[0], (n,))
            draws = markov(keys[1], jnp.where(ignores, 0.5, x), 12)
            return jaxcal.skce_test(
                keys[2],
                jaxcal.Draws(draws),
                markov(keys[3], x, 1)[:, 0],
                divergence=jaxcal.divergences.Vectors(x[:, None]),
                target_kernel=kernel,
                standardize=False,
            ).p_value

        return jax.lax.map(one, jax.random.split(jax.random.key(0), b))

    assert int(jnp.sum(p_values(False) <= 0.05)) <= scipy.stats.binom.ppf(0.9999, b, 0.05)
    assert int(jnp.sum(p_values(True) <= 0.05)) >= 0.3 * b


@pytest.mark.slow
def test_tokens_are_compared_as_they_are():
    """Minus their means they were other tokens: an estimate of .0019 was .0004."""
    random = np.random.default_rng(0)
    n, m = 40, 8
    tokens, draws = (
        jnp.asarray(random.integers(0, 4, shape), float) for shape in ((n, 6), (n, m, 6))
    )
    kernel, flat = Spectrum(2), draws.reshape(-1, 6)
    gram = [np.asarray(points.gram(kernel, flat, other)) for other in (tokens, flat)]
    cross = gram[0].reshape(n, m, n).mean(axis=1)
    h = np.asarray(points.gram(kernel, tokens, tokens)) - cross - cross.T
    h += gram[1].reshape(n, m, n, m).mean(axis=(1, 3))
    estimate = jaxcal.skce.skce(
        0,
        jaxcal.Draws(draws),
        tokens,
        target_kernel=kernel,
        standardize=False,
        prediction_kernel=jaxcal.kernels.Constant(),
        divergence=jaxcal.divergences.Vectors(jnp.zeros((n, 1))),
    )
    np.testing.assert_allclose(estimate.unbiased, h[~np.eye(n, dtype=bool)].mean(), rtol=1e-3)
