"""Transforms, quantiles and losses against scipy, quadrature and closed forms."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
import scipy.optimize
import scipy.stats
from reference.mixtures import ensemble, mse

from jaxcal.measures import nll, pinball_loss, pit, quantile_calibration, quantiles
from jaxcal.measures.quantiles import LEVELS
from jaxcal.plots.reliability import coverage
from jaxcal.read import Draws

N, K = 7, 3
RNG = np.random.default_rng(11)
LOC, SCALE = RNG.normal(size=(N, K)), RNG.uniform(0.3, 2, size=(N, K))
WEIGHTS = RNG.dirichlet(np.ones(K), size=N)
YS = RNG.normal(size=N)
MIXTURE = dist.MixtureSameFamily(
    dist.Categorical(jnp.asarray(WEIGHTS)), dist.Normal(jnp.asarray(LOC), SCALE)
)
NORMAL = dist.Normal(jnp.asarray(LOC[:, 0]), SCALE[:, 0])


def roots(predictions, levels):
    """The quantiles, by one program."""
    return jax.jit(lambda predictions: quantiles(predictions, levels))(predictions)


def mixture_cdf(y, i):
    return WEIGHTS[i] @ scipy.stats.norm(LOC[i], SCALE[i]).cdf(y)


def mixture_quantile(tau, i):
    return scipy.optimize.brentq(lambda y: mixture_cdf(y, i) - tau, -20, 20, xtol=1e-14)


def test_transforms_are_those_of_scipy():
    np.testing.assert_allclose(pit(NORMAL, YS), scipy.stats.norm(LOC[:, 0], SCALE[:, 0]).cdf(YS))
    wanted = [mixture_cdf(y, i) for i, y in enumerate(YS)]
    np.testing.assert_allclose(pit(MIXTURE, YS), wanted)
    column = dist.Normal(jnp.asarray(LOC[:, :1]), SCALE[:, :1]).to_event(1)
    np.testing.assert_allclose(pit(column, YS[:, None]), pit(NORMAL, YS))
    shared = dist.Normal(0.5, 2.0).expand((N,))
    np.testing.assert_allclose(pit(shared, YS), scipy.stats.norm(0.5, 2).cdf(YS))


def test_quantiles_of_families_and_mixtures_are_roots():
    levels = np.array([1e-6, 0.05, 0.5, 0.95, 1 - 1e-6])
    for law, scipy_law in (
        (NORMAL, scipy.stats.norm(LOC[:, :1], SCALE[:, :1])),
        (
            dist.Laplace(jnp.asarray(LOC[:, 0]), SCALE[:, 0]),
            scipy.stats.laplace(LOC[:, :1], SCALE[:, :1]),
        ),
    ):
        np.testing.assert_allclose(roots(law, levels), scipy_law.ppf(levels), rtol=1e-9)
    values = np.asarray(roots(MIXTURE, levels))
    wanted = [[mixture_quantile(tau, i) for tau in levels] for i in range(N)]
    np.testing.assert_allclose(values, wanted, rtol=1e-9, atol=1e-9)
    general = dist.MixtureGeneral(
        dist.Categorical(jnp.asarray(WEIGHTS)),
        [dist.Normal(jnp.asarray(LOC[:, k]), SCALE[:, k]) for k in range(K)],
    )
    np.testing.assert_allclose(roots(general, levels), values, rtol=1e-12)
    shared = dist.Normal(0.5, 2.0).expand((N,))
    np.testing.assert_allclose(roots(shared, [0.3])[:, 0], scipy.stats.norm(0.5, 2).ppf(0.3))
    column = dist.Normal(jnp.asarray(LOC[:, :1]), SCALE[:, :1]).to_event(1)
    np.testing.assert_allclose(quantiles(column), quantiles(NORMAL))


def test_a_mixture_of_one_component_or_of_far_ones():
    one = ensemble([NORMAL])
    np.testing.assert_allclose(roots(one, LEVELS), roots(NORMAL, LEVELS), rtol=1e-12)
    far = dist.MixtureSameFamily(
        dist.Categorical(jnp.full((1, 2), 0.5)), dist.Normal(jnp.array([[-100.0, 100.0]]), 1.0)
    )
    np.testing.assert_allclose(roots(far, [0.25, 0.75]), [[-100, 100]], atol=1e-10)
    slope = jax.jit(
        jax.grad(
            lambda s: quantiles(
                dist.MixtureSameFamily(
                    dist.Categorical(jnp.full((1, 2), 0.5)),
                    dist.Normal(s * jnp.array([[-100.0, 100.0]]), 1.0),
                ),
                [0.5],
            ).sum()
        )
    )(1.0)
    assert np.isfinite(slope)


def test_quantiles_are_differentiable():
    @jax.jit
    def at(shift):
        parts = dist.Normal(jnp.asarray(LOC) + shift * jnp.arange(1.0 * K)[None], SCALE)
        return quantiles(
            dist.MixtureSameFamily(dist.Categorical(jnp.asarray(WEIGHTS)), parts), [0.1, 0.7]
        )

    step = 1e-5
    wanted = (at(step) - at(-step)) / (2 * step)
    np.testing.assert_allclose(jax.jit(jax.jacobian(at))(0.0), wanted, rtol=1e-6)


def test_calibrated_shares_and_the_level_of_the_p_value():
    sets, n = 2000, 50

    @jax.jit
    @jax.vmap
    def p(ys):
        return quantile_calibration(dist.Normal(jnp.zeros(n), 1.0), ys).p_value

    rejected = int(np.sum(np.asarray(p(jnp.asarray(RNG.normal(size=(sets, n))))) <= 0.05))
    assert 0.01 * sets < rejected <= scipy.stats.binom.ppf(0.9999, sets, 0.05)


@pytest.mark.parametrize("kind", ["counts", "draws", "wrapped"])
def test_transforms_of_right_predictions_of_counts_are_uniform(kind):
    n, m = 6000, 9
    rng = np.random.default_rng(17)
    rate = rng.gamma(2.0, 0.5, n)
    ys, zs = rng.poisson(rate) * 1.0, rng.poisson(rate[:, None], (n, m)) * 1.0
    predictions = {
        "counts": dist.Poisson(rate),
        "draws": Draws(zs),
        "wrapped": dist.Poisson(rate[:, None]).to_event(1),
    }[kind]
    u = np.asarray(pit(predictions, ys))
    if kind == "draws":
        counts = np.bincount(np.rint(u * (m + 1) - 0.5).astype(int), minlength=m + 1)
        assert scipy.stats.chisquare(counts).pvalue > 1e-3
    else:
        assert scipy.stats.kstest(u, "uniform").pvalue > 1e-3
        below, at = (scipy.stats.poisson(rate).cdf(ys - 1 + k) for k in (0, 1))
        assert np.all((below - 1e-6 <= u) & (u <= at + 1e-6))
    assert float(quantile_calibration(predictions, ys).p_value) > 1e-3


def test_the_gap_is_that_of_kolmogorov():
    report = quantile_calibration(NORMAL, YS)
    distance = scipy.stats.kstest(np.asarray(pit(NORMAL, YS)), "uniform").statistic
    np.testing.assert_allclose(report.p_value, min(1, 2 * np.exp(-2 * N * distance**2)))
    np.testing.assert_allclose(
        report.observed, [np.mean(np.asarray(report.pit) <= tau) for tau in LEVELS]
    )
    assert "largest gap" in repr(report)
    assert len(report.to_dict()["observed"]) == 19


@pytest.mark.slow
def test_draws_stand_for_a_cdf():
    n, m = 20_000, 9
    z = RNG.normal(size=(n, m, 1))
    ys, levels = RNG.normal(size=n), np.arange(1, 10) / 10
    report = quantile_calibration(Draws(z), ys, levels=levels)
    of_frame = quantile_calibration(Draws(pd.DataFrame(z[:, :, 0])), ys, levels=levels)
    assert float(of_frame.p_value) == float(report.p_value)
    low, high = scipy.stats.binom.interval(0.9999, n, np.arange(1, 10) / 10)
    counts = np.rint(np.asarray(report.observed) * n)
    assert np.all((low <= counts) & (counts <= high))
    assert float(report.p_value) > 1e-3
    many = RNG.normal(size=(1, 100_000, 1))
    np.testing.assert_allclose(quantiles(Draws(many), [0.1, 0.9]), [[-1.2816, 1.2816]], atol=0.03)
    biased = quantile_calibration(Draws(z), RNG.normal(size=n) + 0.2)
    assert float(biased.p_value) < 1e-6


def test_pinball_loss_is_the_mean_over_levels_and_targets():
    def one(tau, y, q):
        return (1 - tau) * max(q - y, 0) + tau * max(y - q, 0)

    wanted = np.mean(
        [[one(tau, y, mixture_quantile(tau, i)) for tau in LEVELS] for i, y in enumerate(YS)]
    )
    loss = jax.jit(lambda predictions: pinball_loss(predictions, YS))(MIXTURE)
    np.testing.assert_allclose(loss, wanted, rtol=1e-10)
    # its minimum over predictions is at the true quantile
    y = RNG.normal(size=20_000)
    losses = [
        float(pinball_loss(dist.Normal(jnp.full(20_000, shift), 1.0), y, levels=[0.8]))
        for shift in (-0.1, 0.0, 0.1)
    ]
    assert losses[1] == min(losses)


def test_pinball_loss_over_all_levels_is_half_the_crps():
    """The continuous ranked probability score of a normal is known; levels approximate it."""
    levels = (np.arange(4000) + 0.5) / 4000
    z = (YS - LOC[:, 0]) / SCALE[:, 0]
    crps = SCALE[:, 0] * (
        z * (2 * scipy.stats.norm.cdf(z) - 1) + 2 * scipy.stats.norm.pdf(z) - np.pi**-0.5
    )
    np.testing.assert_allclose(pinball_loss(NORMAL, YS, levels=levels), crps.mean() / 2, rtol=1e-3)


def test_likelihood_and_squared_error():
    density = [WEIGHTS[i] @ scipy.stats.norm(LOC[i], SCALE[i]).pdf(y) for i, y in enumerate(YS)]
    np.testing.assert_allclose(nll(MIXTURE, YS), -np.mean(np.log(density)))
    mean = np.sum(WEIGHTS * LOC, axis=1)
    np.testing.assert_allclose(mse(MIXTURE, YS), np.mean((YS - mean) ** 2))
    vectors = dist.Normal(jnp.asarray(LOC), SCALE).to_event(1)
    ys = RNG.normal(size=(N, K))
    np.testing.assert_allclose(
        nll(vectors, ys), -np.mean(scipy.stats.norm(LOC, SCALE).logpdf(ys).sum(1))
    )
    np.testing.assert_allclose(mse(vectors, ys), np.mean(np.sum((ys - LOC) ** 2, axis=1)))
    classes = dist.Categorical(jnp.asarray(WEIGHTS))
    picked = RNG.integers(0, K, N)
    np.testing.assert_allclose(
        nll(classes, picked), -np.mean(np.log(WEIGHTS[np.arange(N), picked]))
    )


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_targets_that_are_no_numbers_give_no_verdict(value):
    ys = YS.copy()
    ys[0] = value
    for predictions in (NORMAL, Draws(RNG.normal(size=(N, 5)))):
        report = quantile_calibration(predictions, ys)
        assert np.isnan(report.p_value)
        assert np.all(np.isnan(report.observed))
        assert report.verdict == "cannot tell"
        assert "transforms are NaN" in report.reason
        assert "cannot tell: transforms are NaN" in repr(report)
        assert any("no verdict" in t.get_text() for t in coverage(report).texts)


def test_the_verdict_is_at_the_level():
    report = quantile_calibration(NORMAL, YS)
    for p, level, verdict in [(0.03, 0.05, "rejected"), (0.03, 0.01, "not rejected")]:
        other = replace(report, p_value=jnp.asarray(p), level=level)
        assert other.verdict == other.to_dict()["verdict"] == verdict
        assert f"{verdict} at level {level:g}" in repr(other)
    two = quantile_calibration(dist.Normal(jnp.zeros(2), 1.0), YS[:2], level=0.03)
    assert (two.level, two.verdict) == (0.03, "cannot tell")
    assert "too few observations for the level 0.03" in two.reason


def test_figures_show_the_transforms():
    report = quantile_calibration(NORMAL, YS)
    ax = coverage(report)
    np.testing.assert_allclose(ax.lines[1].get_xdata()[1:-1], np.sort(report.pit))
    many = jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), report)
    assert "2 results" in repr(many)
    with pytest.raises(ValueError, match="a figure shows one result"):
        coverage(many)


@pytest.mark.parametrize("m", [None, 3, 9])
def test_the_curve_leaves_its_band_where_the_test_rejects(m):
    seen, n, half = set(), 200, np.sqrt(np.log(2 / 0.05) / (2 * 200))
    for shift in np.linspace(0.0, 0.4, 9):
        ys = RNG.normal(size=n) + shift
        draws = None if m is None else Draws(RNG.normal(size=(n, m)))
        predictions = draws or dist.Normal(jnp.zeros(n), 1.0)
        report = quantile_calibration(predictions, ys)
        at, share = map(np.asarray, coverage(report).lines[1].get_data())
        before = share[1:] if m else share[:-1]  # a step goes on to the next level
        gap = max(np.max(np.abs(share - at)), np.max(np.abs(before - at[1:])))
        assert (gap > half) == (report.verdict == "rejected")
        seen.add(report.verdict)
    assert len(seen) == 2


def test_traced_results_print():
    @jax.jit
    def inside(ys):
        report = quantile_calibration(NORMAL, ys)
        assert repr(report) == "QuantileCalibration(traced)"
        assert report.warnings() == []
        return report

    assert inside(jnp.asarray(YS)).pit.shape == (N,)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: pit(NORMAL, YS[:3]), ValueError, r"batch shape \(3,\), got batch shape \(7,\)"),
        (lambda: pit(NORMAL, RNG.normal(size=(N, 2))), ValueError, "Vectors have no order"),
        (lambda: pit(np.zeros(N), YS), TypeError, "wanted a numpyro distribution of numbers"),
        (lambda: pit(dist.VonMises(jnp.zeros(N), 1.0), YS), TypeError, "has no cdf"),
        (lambda: quantiles(NORMAL, [0.0, 0.5]), ValueError, "levels: wanted probabilities"),
        (
            lambda: quantiles(Draws(np.zeros((3, 4, 2)))),
            ValueError,
            "Draws.samples: wanted m draws",
        ),
        (lambda: pinball_loss(NORMAL, YS[:3]), ValueError, "wanted one per prediction"),
        (lambda: nll(NORMAL, YS[:3]), ValueError, r"targets: wanted shape \(7,\)"),
        (lambda: nll(Draws(np.zeros((N, 2))), YS), TypeError, "normalized density"),
        (lambda: mse(np.zeros(N), YS), TypeError, "a distribution with a mean"),
    ],
)
def test_wrong_input_is_named(as_users_run_it, call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_draws_of_a_chain_are_thinned_and_said():
    """Calibrated draws with correlation .9 were rejected in 30 of 30 data sets."""
    random = np.random.default_rng(0)
    centers, z = random.normal(size=300), random.normal(size=(300, 60))
    for t in range(1, 60):
        z[:, t] = 0.9 * z[:, t - 1] + 0.19**0.5 * z[:, t]
    targets = centers + random.normal(size=300)
    draws = Draws(centers[:, None] + z)
    result = quantile_calibration(draws, targets)
    assert "[correlated-draws]" in str(result)
    assert result.draws == draws.thinned()[0].samples.shape[1] < 60
    mixed = quantile_calibration(Draws(random.permuted(draws.samples, axis=1)), targets)
    assert (mixed.draws, mixed.warnings()) == (60, [])


@pytest.mark.slow
def test_sorted_draws_are_no_chain(key):
    """Sorted in all rows but one, 2 of 100 draws were left, and p was 1e-26."""
    draws = jax.random.normal(key, (300, 100))
    ys = jax.random.normal(jax.random.fold_in(key, 1), (300,))
    ordered = jnp.sort(draws, axis=1).at[0].set(draws[0])
    either = jnp.where(ys[:, None] > 0, jnp.sort(draws, axis=1), -jnp.sort(-draws, axis=1))
    whole = quantile_calibration(Draws(draws), ys).p_value
    for other in (ordered, either):
        np.testing.assert_allclose(quantile_calibration(Draws(other), ys).p_value, whole)


def test_transforms_are_probabilities_beyond_supports():
    half = pit(dist.HalfNormal(jnp.ones(2)), jnp.array([-0.15, 1.0]))
    np.testing.assert_allclose(half, [0, 2 * scipy.stats.norm.cdf(1) - 1], rtol=1e-5)


@pytest.mark.parametrize("high", [np.inf, 3.0])
@pytest.mark.parametrize("loc", [-8.0, -5.0, 1.0])
@pytest.mark.parametrize("wide", [False, True])
def test_transforms_of_truncated_normals_keep_their_digits(loc, high, wide):
    at = np.linspace(-0.5, 1.5, 9, dtype=np.float32)
    locs, one = jnp.full(() if wide else at.size, loc, jnp.float32), jnp.float32(1)
    end = None if high == np.inf else high * one
    cut = dist.TruncatedNormal(locs, one, low=0 * one, high=end)
    cut = cut.expand([at.size]) if wide else cut
    wanted = scipy.stats.truncnorm.cdf(at.astype(float), -loc, high - loc, loc)
    np.testing.assert_allclose(pit(cut, at), wanted, atol=2e-6)
