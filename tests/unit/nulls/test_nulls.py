"""Each null against its definition in NumPy: formulas, exact laws, and what is never a verdict."""

import itertools
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import oracles
import pytest
import scipy.signal
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from reference.nulls import BlockSquares, Bound, Gamma, Multinomial, Spectrum
from scipy.special import ndtr

import jaxcal
from jaxcal import nulls
from jaxcal.engine.quadratic import quadratic_sums
from jaxcal.fit import testing
from jaxcal.nulls import (
    BlockNormal,
    DependentWild,
    HadamardWild,
    Wild,
    contract,
    limits,
    resampling,
)
from jaxcal.numerics import independent_signs
from jaxcal.read import checks
from jaxcal.statistics.weighted import Inner
from jaxcal.ucme import F

dependence = jax.jit(resampling.dependence)
close = partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12)


class Products(eqx.Module):
    """h_c(i, j) = <phi_i^c, phi_j^c>, features [n, c, q]: positive semidefinite."""

    channels: int = eqx.field(static=True, default=1)

    def block(self, rows, cols):
        return jnp.einsum("icq,jcq->cij", rows, cols)

    def diagonal(self, features):
        return jnp.einsum("icq,icq->ci", features, features)


class Pairs(eqx.Module):
    """Channel c is 1 for the pair of observations (first[c], second[c]) and 0 elsewhere."""

    first: tuple[int, ...] = eqx.field(static=True)
    second: tuple[int, ...] = eqx.field(static=True)

    @property
    def channels(self):
        return len(self.first)

    def block(self, rows, cols):
        a, b = (jnp.asarray(x, float)[:, None, None] for x in (self.first, self.second))
        i, j = rows[None, :, None], cols[None, None, :]
        return (((i == a) & (j == b)) | ((i == b) & (j == a))).astype(float)

    def diagonal(self, features):
        return jnp.zeros((self.channels, features.shape[0]))


@eqx.filter_jit
def apply(null, key, pairwise, features, tile=512):
    return testing.apply(null, key, pairwise, features, tile=tile)[0]


def data(n=20, channels=1, q=3, shift=0.0, seed=0):
    phi = np.random.default_rng(seed).normal(size=(n, channels, q)) + shift
    return phi, np.einsum("icq,jcq->cij", phi, phi)


def rows(h):
    """The matrices behind the rows of an outcome: the sum, then the channels where several."""
    return [h.sum(0), *h] if len(h) > 1 else [h[0]]


ALL = [
    Wild(19), HadamardWild(19), DependentWild(19), Multinomial(19), Spectrum(19),
    Gamma(), BlockNormal(), Bound(50.0),
]  # fmt: skip
RESAMPLING = ALL[:5]
names = {"ids": lambda null: type(null).__name__}


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("null", [a for a in ALL if not isinstance(a, BlockNormal)], **names)
def test_estimates_and_contributions(null, channels, key):
    phi, h = data(channels=channels)
    got = apply(null, key, Products(channels), jnp.asarray(phi))
    close(got.estimate, [oracles.u_statistic(one) for one in rows(h)])
    close(got.biased, [oracles.v_statistic(one) for one in rows(h)])
    n = len(phi)
    close(
        got.contributions,
        [(one.sum(1) - np.diag(one)) / (n * (n - 1)) for one in rows(h)],
    )
    close(got.contributions.sum(1), got.estimate)
    assert got.p_value.shape == got.statistic.shape == got.estimate.shape


def skewed_sums(t):
    """Sums of h = t t', all in one tile."""
    return contract.Sums.of(quadratic_sums(Inner(), t, jnp.zeros((len(t), 0))), jnp.zeros((0, 0)))


@jax.jit
def plain_and_guarded(t):
    sums = skewed_sums(t)
    return [(each.unbiased, each.contributions) for each in (sums, sums.guarded())]


@pytest.mark.parametrize("n", [12, 100, 300])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("side", [-1, 1])
def test_a_sum_against_the_skewness_of_its_values_counts_less(n, size, side):
    """The formula written out for one number per observation in any unit; nothing happens where
    the sum lies on the long side."""
    t = np.random.default_rng(n).exponential(size=(n, 1)) ** 1.5
    t = size * (t - t.mean() + side * 2 * t.std() / n**0.5)
    (_, contributions), (unbiased, of_guarded) = plain_and_guarded(jnp.asarray(t))
    total, trace = np.sum(t), np.sum(t**2)
    skewness = -side * scipy.stats.skew(t[:, 0])
    factor = 1 + max(skewness, 0) ** 2 * min(total**2 / trace, 4) / n
    close(unbiased, [(total**2 / factor - trace) / (n * (n - 1))], rtol=1e-6)
    assert (factor == 1) == (side == 1)
    close(of_guarded, contributions)


@pytest.mark.parametrize("t", [np.zeros((20, 1)), np.ones((20, 1))], ids=["0", "1"])
def test_values_without_spread_have_no_skewness(t):
    plain, guarded = plain_and_guarded(jnp.asarray(t))
    close(guarded[0], plain[0])


def test_skewed_values_of_mean_0_are_rejected_at_the_level(key):
    """Squares of 64 normal numbers less 1: random signs alone reject too many (.07 and .03)."""
    t = jax.random.normal(key, (4000, 64, 1)) ** 2 - 1

    @jax.jit
    @jax.vmap
    def z(t):  # what a draw of random signs exceeds with 5 and 1 %, S^2 being V times chi-square
        sums = skewed_sums(t)
        trace = jnp.sum(sums.diagonal)
        return [64 * 63 * s.unbiased[0] / trace + 1 for s in (sums, sums.guarded())]

    plain, guarded = map(np.asarray, z(t))
    for p, low, high in ((0.05, 0.038, 0.064), (0.01, 0.005, 0.022)):
        quantile = scipy.stats.chi2.isf(p, 1)
        assert np.mean(plain >= quantile) > high
        assert low < np.mean(guarded >= quantile) < high


@pytest.mark.parametrize("null", RESAMPLING, **names)
def test_p_value_counts_the_observed_statistic(null, key):
    for shift in (0.0, 1.0):
        phi, _ = data(channels=2, shift=shift)
        got = apply(null, key, Products(2), jnp.asarray(phi))
        assert got.samples.shape == (3, 19)
        exceed = np.sum(np.asarray(got.samples) >= np.asarray(got.statistic)[:, None], axis=1)
        close(got.p_value, (1 + exceed) / 20)
    assert np.all(got.p_value == 1 / 20)  # the clear shift: as small as 19 draws can say


def test_p_value_in_numbers():
    got = contract.p_value(jnp.asarray([2.0, 5.0, 0.0]), jnp.asarray([[1.0, 2.0, 3.0]] * 3))
    close(got, [3 / 4, 1 / 4, 1.0])


@pytest.mark.parametrize(("n", "b"), [(1, 1), (9, 31), (2, 32), (3, 33), (5, 70)])
def test_signs_have_the_asked_shape_and_are_signs(n, b):
    w = np.asarray(independent_signs(jax.random.key(0), n, b, jnp.float32))
    assert w.shape == (n, b)
    assert w.dtype == np.float32
    assert set(np.unique(w)) <= {-1.0, 1.0}


def test_signs_are_independent(key):
    w = np.asarray(independent_signs(key, 12, 20_000, jnp.float64))
    moments = w @ w.T / w.shape[1]  # 66 correlations of standard error 1 / sqrt(20 000)
    assert np.abs(moments - np.eye(12)).max() < 5 / np.sqrt(20_000)
    assert np.abs(w.mean(1)).max() < 5 / np.sqrt(20_000)
    between = w[:, :64].T @ w[:, :64]  # draws of the same word: 64 columns of 12 signs
    assert np.abs(between - np.diag(np.diag(between))).mean() < 12**0.5


def test_wild_samples_are_the_dense_forms(key):
    phi, h = data(channels=2)
    got = apply(Wild(50), key, Products(2), jnp.asarray(phi), 7)
    w = np.asarray(independent_signs(key, 20, 50, jnp.float64))
    close(got.samples, [oracles.quadratic_forms(one, w) / (20 * 19) for one in rows(h)])
    close(got.statistic, got.estimate)


def counts_of(samples, values):
    """How often each distinct value of an exactly enumerated law was drawn, and its chance."""
    levels, chances = np.unique(np.round(values, 10), return_counts=True)
    where = np.searchsorted(levels, np.round(samples, 10) - 1e-9)
    close(levels[where], samples, atol=1e-8)  # nothing but values of the law
    return np.bincount(where, minlength=len(levels)), chances / chances.sum()


def test_law_of_the_wild_bootstrap_is_the_enumerated_one(key):
    phi, h = data(n=6)
    every = np.array(list(itertools.product([-1, 1], repeat=6))).T
    law = oracles.quadratic_forms(h[0], every) / 30
    for null in (Wild(20_000), DependentWild(20_000, flip=0.5)):
        got = apply(null, key, Products(), jnp.asarray(phi))
        seen, chance = counts_of(np.asarray(got.samples[0]), law)
        assert scipy.stats.chisquare(seen, chance * 20_000).pvalue > 1e-4


@pytest.mark.parametrize("flip", [0.05, 0.2, 0.5])
def test_signs_of_the_dependent_bootstrap_are_a_stationary_chain(flip, key):
    n, b = 30, 20_000
    first, lag = (0, 0, 0, 3, 11, 20), (1, 3, 10, 1, 5, 9)
    pairwise = Pairs(first, tuple(i + t for i, t in zip(first, lag, strict=True)))
    got = apply(DependentWild(b, flip), key, pairwise, jnp.arange(n, dtype=float))
    together = np.asarray(got.samples[1:]) * n * (n - 1) / 2  # w_i w_j of each draw
    close(np.abs(together), 1.0)
    wanted = (1 - 2 * flip) ** np.array(lag)
    assert np.abs(together.mean(1) - wanted).max() < 5 / np.sqrt(b)


def test_blocks_follow_the_dependence_of_the_data():
    """Against the formula with known autocorrelations, rho^k: (4 rho^2 n / (1 - rho^2)^2)^(1/3).

    With M = 60 lags the standard error of the long-run variance is sqrt(8 M / (3 n)) = .09 of it,
    and that of the sum weighted by lags about .25, of which the block has the power 2/3.
    """
    rng = np.random.default_rng(0)
    n = 20_000
    noise = rng.normal(size=n)
    for rho in (0.5, 0.8):
        series = scipy.signal.lfilter([(1 - rho**2) ** 0.5], [1, -rho], noise)
        report = dependence(jnp.asarray(np.stack([series, noise], axis=1)))
        wanted = (4 * rho**2 * n / (1 - rho**2) ** 2) ** (1 / 3)
        np.testing.assert_allclose(report.block[0], wanted, rtol=0.5)
        np.testing.assert_allclose(report.inflation[0], (1 + rho) / (1 - rho), rtol=0.27)
        assert report.block[1] < 3
        np.testing.assert_allclose(report.inflation[1], 1, atol=0.1)
    for short in (2, 3, 12):
        assert np.all(np.isfinite(dependence(jnp.asarray(noise[:short, None])).block))
    constant = dependence(jnp.ones((30, 1)))
    assert (float(constant.block[0]), float(constant.inflation[0])) == (0, 1)


@pytest.mark.parametrize("rho", [0.6, 0.9])
def test_stretches_are_twice_the_block_length(rho, key):
    """Stretches of 1 / (2 flip) = 2 block: neighbours have correlation 1 - 2 flip."""
    n, b = 400, 4000
    noise = np.random.default_rng(0).normal(size=n)
    series = jnp.asarray(scipy.signal.lfilter([1.0], [1, -rho], noise)[:, None])
    block = float(dependence(series).block[0])
    assert block > 2
    signs = DependentWild(b).needs(key, series).weights
    flips = np.mean(np.asarray(signs[1:] != signs[:-1]))
    error = np.sqrt(flips / (n * b))
    assert abs(flips - 0.5 / (2 * block)) < 5 * error


def test_small_series_flip_at_most_half_the_time(key):
    got = apply(DependentWild(2000), key, Pairs((0,), (1,)), jnp.arange(3, dtype=float))
    assert abs(np.mean(np.asarray(got.samples[0]) * 3)) < 5 / np.sqrt(2000)


@pytest.mark.parametrize("flip", [0.0, -0.1, 0.6, float("nan")])
def test_flip_is_a_probability_up_to_one_half(flip):
    with pytest.raises(ValueError, match="flip"):
        DependentWild(flip=flip)


def arcones_gine(h, drawn):
    """2/n sum_{i<j} of the doubly centred kernel at a resample, term by term."""
    n = len(h)
    total = 0.0
    for i, j in itertools.combinations(range(n), 2):
        a, b = drawn[i], drawn[j]
        total += h[a, b] - h[a].mean() - h[:, b].mean() + h.mean()
    return 2 / n * total


def test_multinomial_is_the_doubly_centred_bootstrap(key):
    phi, h = data(n=4)
    h = h[0]
    n, b = 4, 20_000
    every = np.array([arcones_gine(h, d) for d in itertools.product(range(n), repeat=n)])
    u, law = oracles.u_statistic(h), every / (n - 1)
    np.testing.assert_allclose(law.mean(), 0, atol=1e-12)  # exactly, over all 256 resamples
    got = apply(Multinomial(b), key, Products(), jnp.asarray(phi))
    close(got.statistic, [n / (n - 1) * u])
    seen, chance = counts_of(np.asarray(got.samples[0]), law)
    assert scipy.stats.chisquare(seen, chance * b).pvalue > 1e-4
    tail = np.mean(every >= n * u - 1e-12)
    assert abs(float(got.p_value[0]) - tail) < 5 * np.sqrt(tail * (1 - tail) / b) + 1 / b


@pytest.mark.parametrize("channels", [1, 2])
def test_multinomial_samples_average_to_zero(channels, key):
    phi, _ = data(channels=channels, seed=3)
    got = apply(Multinomial(20_000), key, Products(channels), jnp.asarray(phi), 7)
    samples = np.asarray(got.samples)
    error = samples.std(1) / np.sqrt(20_000)
    assert np.all(np.abs(samples.mean(1)) < 5 * error)


def test_spectrum_has_the_law_of_the_eigenvalues(key):
    phi, h = data(n=40, channels=2)
    got = apply(Spectrum(5000), key, Products(2), jnp.asarray(phi))
    rng = np.random.default_rng(8)
    for one, samples in zip(rows(h), np.asarray(got.samples), strict=True):
        values = np.linalg.eigvalsh(one / 40)
        simulated = (rng.chisquare(1, size=(20_000, 40)) - 1) @ values
        assert scipy.stats.ks_2samp(40 * samples, simulated).pvalue > 1e-4
        # its two moments: 0 and 2 sum of squared eigenvalues
        spread = np.sqrt(2 * np.sum(values**2))
        assert abs(np.mean(40 * samples)) < 5 * spread / np.sqrt(5000)
        close(np.std(40 * samples), spread, rtol=0.15)


@pytest.mark.parametrize("channels", [1, 2])
def test_gamma_is_the_fitted_gamma_law(channels, key):
    for shift in (0.0, 0.3):
        phi, h = data(n=30, channels=channels, shift=shift)
        got = apply(Gamma(), key, Products(channels), jnp.asarray(phi), 7)
        assert got.samples.shape == (len(rows(h)), 0)
        for k, one in enumerate(rows(h)):
            mean = np.trace(one) / 30
            off = one[~np.eye(30, dtype=bool)]
            variance = 2 * np.mean(off**2)
            statistic = 30 * oracles.v_statistic(one)
            close(got.statistic[k], statistic)
            law = scipy.stats.gamma(mean**2 / variance, scale=variance / mean)
            close(got.p_value[k], law.sf(statistic), rtol=1e-9)


@pytest.mark.parametrize("size", [2, 3, 10, None])
def test_block_normal_is_the_studentized_mean_of_blocks(size, key):
    n = 23
    phi, h = data(n=n, channels=2, shift=0.1)
    got = apply(BlockNormal(size), key, Products(2), jnp.asarray(phi))
    size = size or 4  # the integer part of the square root of 23
    m = n // size
    for k, one in enumerate(rows(h)):
        parts = [one[i * size : (i + 1) * size, i * size : (i + 1) * size] for i in range(m)]
        eta = np.array([oracles.u_statistic(part) for part in parts])
        statistic = np.sqrt(m) * eta.mean() / eta.std(ddof=1)
        close(got.estimate[k], eta.mean())
        close(got.biased[k], np.mean([oracles.v_statistic(part) for part in parts]))
        close(got.statistic[k], statistic)
        close(got.p_value[k], scipy.stats.t.sf(statistic, m - 1))
        close(got.standard_error[k], eta.std(ddof=1) / np.sqrt(m))
        close(got.contributions[k].sum(), eta.mean())
        assert np.all(got.contributions[k][m * size :] == 0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("degrees", [1, 2, 29, 30, 1000, 10**6])
def test_the_tail_of_student(degrees, dtype):
    t = np.array([-np.inf, -3, -0.5, 0, 0.5, 2, 5, 8, np.inf, np.nan])
    got = limits.student_tail(jnp.asarray(t, dtype), degrees)
    np.testing.assert_allclose(got, scipy.stats.t.sf(t, degrees), rtol=1e-3)


def test_two_blocks_keep_their_level(key):
    """With normal tails 9 % of right predictions are rejected at .05, and 7 % at .01."""
    phi = jax.random.normal(key, (1000, 20, 4, 1))
    p = jax.lax.map(lambda one: apply(BlockNormal(10), key, Products(), one).p_value[0], phi)
    assert jnp.mean(p <= 0.05) <= 0.06
    assert jnp.mean(p <= 0.01) <= 0.02


@pytest.mark.parametrize(("n", "size"), [(3, 2), (20, 11), (20, 20)])
def test_block_normal_needs_two_blocks(n, size, key):
    with pytest.raises(ValueError, match="two blocks"):
        BlockNormal(size).needs(key, jnp.asarray(data(n=n)[0]))


@pytest.mark.parametrize("size", [1, 0, -2])
def test_block_normal_needs_blocks_of_two(size, key):
    with pytest.raises(ValueError, match="size"):
        BlockNormal(size).needs(key, jnp.asarray(data()[0]))


def test_bound_is_hoeffdings(key):
    for shift in (0.0, 1.0):
        phi, h = data(n=21, shift=shift)
        got = apply(Bound(9.0), key, Products(), jnp.asarray(phi))
        # P(U >= u) <= exp(-2 floor(n/2) u^2 / (b - a)^2), values in [a, b] = [-9, 9]
        u = max(oracles.u_statistic(h[0]), 0)
        close(got.p_value[0], np.exp(-2 * 10 * u**2 / 18**2))


@pytest.mark.parametrize("largest", [0.0, -1.0, float("inf"), float("nan")])
def test_a_bound_is_positive_and_finite(largest):
    with pytest.raises(ValueError, match="largest"):
        Bound(largest)


@pytest.mark.parametrize("kind", [Wild, HadamardWild, DependentWild, Multinomial])
@pytest.mark.parametrize("b", [0, -1, 2.5, True, None])
def test_the_number_of_draws_is_a_positive_integer(kind, b):
    with pytest.raises(ValueError, match="n_draws"):
        kind(b)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("null", ALL, **names)
def test_what_is_not_finite_is_never_a_verdict(null, bad, key):
    phi, _ = data(n=20, q=1)
    phi[3] = bad
    got = apply(null, key, Products(), jnp.asarray(phi))
    assert np.all(np.isnan(got.p_value))


@pytest.mark.parametrize("null", [a for a in ALL if not isinstance(a, BlockNormal)], **names)
def test_two_observations_with_an_infinite_pair_give_no_verdict(null, key):
    # one pair: statistic and samples are infinite without ever being NaN
    got = apply(null, key, Products(), jnp.asarray([[[np.inf]], [[1.0]]]))
    assert np.all(np.isnan(got.p_value))


def test_blocks_without_spread_are_never_a_verdict(key):
    got = apply(BlockNormal(2), key, Products(), jnp.ones((20, 1, 1)))
    assert np.isnan(got.p_value[0])


@pytest.mark.slow
@pytest.mark.parametrize("shift", [0.0, 0.06])
def test_resampling_nulls_agree_on_large_data(shift, key):
    n, b = 400, 4000
    phi, h = data(n=n, q=4, shift=shift, seed=11)
    u = oracles.u_statistic(h[0])
    values = np.linalg.eigvalsh(h[0] / n)
    simulated = (np.random.default_rng(9).chisquare(1, size=(50_000, n)) - 1) @ values
    wanted = np.mean(simulated >= n * u)
    for null in (Wild(b), HadamardWild(b), DependentWild(b, flip=0.5), Multinomial(b), Spectrum(b)):
        got = float(apply(null, key, Products(), jnp.asarray(phi)).p_value[0])
        # Monte Carlo error of both, and 1 % for what n = 400 leaves of the limit
        assert abs(got - wanted) < 4 * np.sqrt(wanted * (1 - wanted) / b) + 0.01, type(null)


def test_a_key_decides_the_draws(key):
    phi = jnp.asarray(data()[0])
    for null in RESAMPLING:
        one, again = (apply(null, key, Products(), phi).samples for _ in range(2))
        other = apply(null, jax.random.key(1), Products(), phi).samples
        np.testing.assert_array_equal(one, again)
        assert not np.array_equal(one, other)


holm = jax.jit(contract.holm)


def test_holm_in_numbers():
    # .01 * 4, .02 * 3, .03 * 2, .5: running maxima .04, .06, .06, .5
    got = contract.holm(jnp.asarray([0.03, 0.01, 0.5, 0.02]))
    close(got, [0.06, 0.04, 0.5, 0.06])
    close(contract.holm(jnp.asarray([0.6, 0.7])), [1.0, 1.0])
    close(contract.holm(jnp.asarray([0.3])), [0.3])
    assert np.all(np.isnan(contract.holm(jnp.asarray([0.1, jnp.nan]))))


@given(p=st.lists(st.floats(0, 1), min_size=5, max_size=5))
def test_holm_is_the_step_down_rule(p):
    adjusted = np.asarray(holm(jnp.asarray(p)))
    for level in (0.01, 0.05, 0.3):
        order = np.argsort(p, kind="stable")
        rejected = np.zeros(len(p), bool)
        for step, i in enumerate(order):
            if p[i] * (len(p) - step) > level:
                break
            rejected[i] = True
        np.testing.assert_array_equal(adjusted <= level, rejected)


class Exponential(eqx.Module):
    """A null of a user's own: n V against an exponential distribution of the same mean."""

    def needs(self, key, features):
        return nulls.Needs()

    def outcome(self, sums):
        statistic = sums.n * sums.biased
        return sums.outcome(statistic, jnp.exp(-statistic / jnp.mean(sums.diagonal, axis=1)))

    def least_p_value(self, n):
        return float(np.exp(-n))  # n V is at most n times the mean of the diagonal


def test_a_null_from_outside_has_all_rights(key):
    phi, h = data(n=12, channels=2)
    got = apply(Exponential(), key, Products(2), jnp.asarray(phi))
    wanted = [np.exp(-12 * oracles.v_statistic(one) / np.mean(np.diag(one))) for one in rows(h)]
    close(got.p_value, wanted)
    ys = jax.random.normal(key, (12,))
    result = jaxcal.ksd_test(key, jaxcal.Scores(-ys), ys, null=Exponential())
    assert result.null == "Exponential"
    assert 0 < result.p_value < 1


def test_what_is_no_null_is_told_what_it_lacks():
    with pytest.raises(TypeError, match=r"null: .*F.* has no needs and no outcome"):
        checks.null(F())
    with pytest.raises(TypeError, match=r"null: .*Wild"):
        checks.null(Wild)


@pytest.mark.parametrize("n", [2, 3, 6, 12])
@pytest.mark.parametrize("null", [*ALL, BlockSquares(), BlockSquares(2)], **names)
def test_no_p_value_is_below_the_least(null, n, key):
    """h = 1 for all pairs is the strongest evidence there is; a bound is reached at itself."""
    if isinstance(null, BlockNormal):
        assert null.least_p_value(n) == 0
        return
    if isinstance(null, Multinomial):  # no bound, but the number of different resamples
        close(null.least_p_value(n), {2: 1 / 3, 3: 1 / 10}.get(n, 1 / 20))
        return
    null = Bound(1.0) if isinstance(null, Bound) else null
    null = type(null)(2000) if hasattr(null, "n_draws") else null
    least, p = null.least_p_value(n), apply(null, key, Products(), jnp.ones((n, 1, 1))).p_value[0]
    slack = 5 * np.sqrt(least * (1 - least) / 2000) if hasattr(null, "n_draws") else 1e-12
    assert p >= least - slack
    if isinstance(null, (Wild, BlockSquares, Bound, Spectrum)):  # and it is reached
        assert p <= least + slack


@pytest.mark.slow
@pytest.mark.parametrize(
    "test", [jaxcal.kccsd_test, jaxcal.skce_test, jaxcal.moment_test, jaxcal.calibration_test]
)
def test_block_lengths_follow_the_autocorrelation(test):
    """Forecasts that hardly change from day to day need no long stretches if errors are new."""
    slow = jnp.sin(jnp.arange(100) / 30)
    noise = jax.random.normal(jax.random.key(3), (100,))
    for center in (0 * slow, 30 * slow):
        result = test(0, dist.Normal(center, 1.0), center + noise, null=DependentWild(99))
        assert not result.notes["dependent-observations"]


@pytest.mark.slow
@pytest.mark.parametrize(
    "test", [jaxcal.kccsd_test, jaxcal.skce_test, jaxcal.moment_test, jaxcal.calibration_test]
)
def test_errors_that_return_after_a_season_give_no_verdict(test):
    """Forecasts may have seasons, and errors that depend on the last ones none."""
    n, day = 240, 3 * np.sin(2 * np.pi * np.arange(240) / 24)
    noise = np.random.default_rng(0).normal(size=n + 240)
    returning, last = (
        scipy.signal.lfilter([(1 - 0.8**2) ** 0.5], [1, *np.zeros(lag - 1), -0.8], noise)[-n:]
        for lag in (24, 1)
    )
    season, *none = (
        test(0, dist.Normal(day, 1.0), jnp.asarray(day + e), null=DependentWild(99))
        for e in (returning, last, noise[:n])
    )
    assert season.verdict == "cannot tell"
    assert season.reason.startswith("season of 24 (")
    assert any("[season]" in text for text in season.warnings())
    assert all(one.notes["season"] == 0 and one.verdict == "not rejected" for one in none)


@pytest.mark.parametrize(
    "kind", ["classes", "draws", pytest.param("no means", marks=pytest.mark.slow)]
)
def test_seasons_are_looked_for_in_errors_not_in_targets(kind):
    rng = np.random.default_rng(1)
    day, noise = np.sin(2 * np.pi * np.arange(480) / 24), rng.normal(size=480)
    for returns in (False, True):
        z = np.tile(noise[:24], 20) if returns else noise
        predictions, ys = dist.Cauchy(3 * day, 1.0), 3 * day + scipy.stats.cauchy.isf(ndtr(z))
        if kind == "classes":
            p = 0.5 + 0.4 * day
            predictions, ys = p, (ndtr(z) < p).astype(int)
        if kind == "draws":
            ys = 3 * day + z
            predictions = jaxcal.Draws(3 * day[:, None] + rng.normal(size=(480, 50)))
        result = jaxcal.skce_test(0, predictions, ys, null=DependentWild(99))
        assert int(result.notes["season"]) == 24 * returns


@pytest.mark.slow
def test_a_season_of_a_long_series_is_found_in_float32():
    """Beyond n = 46,340 the square of n is no 32-bit integer."""
    with jax.enable_x64(False):
        errors = jax.ShapeDtypeStruct((46_341, 1), jnp.float32)
        assert jax.eval_shape(resampling.season, errors).shape == ()
