"""Highest-density coverage: shares are what the regions promise, and gaps are seen."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats

import jaxcal
from jaxcal.coverage import coverage, massart, ranks_of
from jaxcal.mcmc import MALA, mcmc_draws
from jaxcal.measures import nll
from jaxcal.plots.reliability import coverage as plot
from jaxcal.read import Unnormalized, draws

N, M = 400, 19
RNG = np.random.default_rng(5)
CENTERS = jnp.asarray(RNG.normal(size=(N, 2)))


def density(center, y):
    return -jnp.sum((y - center) ** 2) / 2


def shifted(center, y):
    return density(center, y) + 1e3 * jnp.cos(jnp.sum(center))


MODEL = Unnormalized(density, CENTERS)


def targets_with(spread):
    return CENTERS + spread * jnp.asarray(np.random.default_rng(6).normal(size=(N, 2)))


def own_draws(m=M, seed=7):
    return CENTERS[:, None] + jnp.asarray(np.random.default_rng(seed).normal(size=(N, m, 2)))


@pytest.mark.slow
def test_ranks_count_the_mass_of_higher_density():
    """P(f(Z) > f(y)) of a normal in two dimensions is a chi-squared probability."""
    ys, m = targets_with(1.0), 2000
    shares_of = coverage(MODEL, ys, own_draws(m))
    exact = scipy.stats.chi2(2).cdf(np.sum((np.asarray(ys) - CENTERS) ** 2, axis=1))
    error = np.sqrt(exact * (1 - exact) / m) + 1 / m
    assert np.max(np.abs(np.asarray(ranks_of(MODEL, ys, own_draws(m))[0]) / m - exact) / error) < 5
    empirical = np.mean(exact[:, None] <= np.asarray(shares_of.levels), axis=0)
    np.testing.assert_allclose(shares_of.observed, empirical, atol=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("m", [1, 4, 19])
def test_shares_are_unbiased_for_any_number_of_draws(m):
    rng = np.random.default_rng(8)
    n = 20_000
    normal = dist.Normal(jnp.zeros(n), 2.0)
    shares_of = coverage(normal, 2 * rng.normal(size=n), 2 * rng.normal(size=(n, m, 1)))
    low, high = scipy.stats.binom.interval(0.9999, n, np.asarray(shares_of.levels))
    counts = np.rint(np.asarray(shares_of.observed) * n)
    assert np.all((low <= counts) & (counts <= high))
    np.testing.assert_allclose(shares_of.levels, np.arange(1, m + 1) / (m + 1))


@pytest.mark.slow
def test_shares_are_counts_by_hand():
    ys = np.array([0.5, 1.5, 3.0])
    z = np.array([[0.1, 0.6, 2.0], [0.1, 0.6, 2.0], [0.1, 0.6, 2.0]])
    shares_of = coverage(dist.Normal(jnp.zeros(3), 1.0), ys, z)
    assert shares_of.counts.tolist() == [0, 1, 1, 1]  # draws nearer to the centre than the target
    np.testing.assert_allclose(shares_of.levels, [0.25, 0.5, 0.75])
    np.testing.assert_allclose(shares_of.observed, [0, 1 / 3, 2 / 3])


@pytest.mark.parametrize("kind", ["counts", "plateau", "equal rates", "one point"])
def test_equal_densities_are_split_as_calibration_implies(kind):
    """Ranks of right predictions are uniform: counts, uniform densities, draws that are all one."""
    n, m = 6000, 7
    rng = np.random.default_rng(31)
    rate = rng.gamma(2.0, 0.5, (1 + m, n))[0]
    predictions, (ys, *zs) = {
        "counts": (dist.Poisson(rate), rng.poisson(rate, (1 + m, n)) * 1.0),
        "plateau": (dist.Uniform(rate, rate + 2), rng.uniform(rate, rate + 2, (1 + m, n))),
        "equal rates": (dist.Poisson(0 * rate + 0.7), rng.poisson(0.7, (1 + m, n)) * 1.0),
        "one point": (dist.Poisson(0 * rate + 1e-6), np.zeros((1 + m, n))),
    }[kind]
    counts = np.asarray(coverage(predictions, ys, np.stack(zs, axis=1)).counts)
    assert scipy.stats.chisquare(counts).pvalue > 1e-3


@pytest.mark.slow
def test_only_an_underconfident_model_is_conservative():
    calibrated, narrow, wide = (
        coverage(MODEL, targets_with(s), own_draws()) for s in (1, 1.4, 0.7)
    )
    assert float(calibrated.p_conservative) > 0.01
    assert float(calibrated.p_uniform) > 0.01
    assert float(narrow.p_conservative) < 1e-6
    assert float(wide.p_conservative) > 0.5
    assert float(wide.p_uniform) < 1e-6
    assert np.all(np.asarray(wide.observed) >= np.asarray(wide.levels))


@pytest.mark.slow
def test_p_values_keep_their_level():
    rng = np.random.default_rng(9)
    n, sets = 60, 2000
    normal = dist.Normal(jnp.zeros(n), 1.0)

    @jax.jit
    @jax.vmap
    def both(ys, z):
        shares_of = coverage(normal, ys, z)
        return shares_of.p_uniform, shares_of.p_conservative

    p = both(jnp.asarray(rng.normal(size=(sets, n))), jnp.asarray(rng.normal(size=(sets, n, 30))))
    for values in p:
        rejected = int(np.sum(np.asarray(values) <= 0.05))
        assert 0.005 * sets < rejected <= scipy.stats.binom.ppf(0.9999, sets, 0.05)


@pytest.mark.slow
def test_massart_bounds_the_kolmogorov_distance():
    exact = scipy.stats.kstwo(200).sf(0.1)
    bound = float(massart(jnp.asarray(0.1), 200, sides=2))
    assert exact <= bound < 1.2 * exact
    assert float(massart(jnp.asarray(-0.2), 50, sides=1)) == 1.0
    assert np.isnan(massart(jnp.asarray(jnp.nan), 50, sides=1))


@pytest.mark.slow
def test_constants_of_the_densities_do_not_matter():
    ys, z = targets_with(1.0), own_draws()
    one, two = coverage(MODEL, ys, z), coverage(Unnormalized(shifted, CENTERS), ys, z)
    np.testing.assert_array_equal(one.counts, two.counts)


@pytest.mark.slow
def test_mcmc_draws_and_exact_draws_give_the_same_shares(key):
    ys = targets_with(1.0)
    chain_draws = mcmc_draws(
        key, MODEL, sampler=MALA(), event_shape=2, n_samples=20, n_chains=20, thin=100, n_warmup=100
    )
    shares_of = coverage(MODEL, ys, chain_draws)
    exact = coverage(MODEL, ys, draws(key, dist.Normal(CENTERS, 1.0).to_event(1), 20))
    np.testing.assert_allclose(shares_of.observed, exact.observed, atol=4 * 0.5 / N**0.5)
    assert float(shares_of.p_uniform) > 0.01


@pytest.mark.slow
def test_results_print_and_become_dictionaries():
    shares_of = coverage(MODEL, targets_with(1.0), own_draws())
    text = repr(shares_of)
    assert f"n = {N}, {M} draws each" in text
    assert "holds at least its share" in text
    assert set(shares_of.to_dict()) >= {"levels", "observed", "p_uniform", "warnings"}
    assert shares_of.warnings() == []
    few = coverage(dist.Normal(jnp.zeros(3), 1.0), np.zeros(3), np.ones((3, 4)))
    assert "only 3 targets" in repr(few)

    @jax.jit
    def inside(ys):
        traced = coverage(MODEL, ys, own_draws())
        assert repr(traced) == "Coverage(traced)"
        assert traced.warnings() == []
        return traced

    assert "2 results" in repr(jax.vmap(inside)(jnp.stack([targets_with(1.0)] * 2)))


def test_nan_gives_no_verdict_and_infinite_log_densities_do():
    ys = np.asarray(targets_with(1.0)).copy()
    ys[3] = np.nan
    shares_of = coverage(MODEL, ys, own_draws())
    assert int(shares_of.unknown) == 1
    assert np.isnan(shares_of.p_uniform)
    assert np.isnan(shares_of.p_conservative)
    assert "1 target met a density that is NaN" in " ".join(shares_of.warnings())
    assert any("no verdict" in text.get_text() for text in plot(shares_of).texts)

    def cut(center, y):
        return jnp.where(jnp.sum(y) > 1e6, -jnp.inf, density(center, y))

    outside = targets_with(1.0).at[3].set(1e7)
    shares_of = coverage(Unnormalized(cut, CENTERS), outside, own_draws())
    assert int(ranks_of(Unnormalized(cut, CENTERS), outside, own_draws())[0][3]) == M
    assert np.isfinite(shares_of.p_uniform)


def test_the_figure_shows_the_shares_and_the_band():
    shares_of = coverage(MODEL, targets_with(1.4), own_draws())
    ax = plot(shares_of)
    _, observed = ax.lines
    np.testing.assert_allclose(observed.get_ydata()[1:-1], shares_of.observed)
    assert "share of targets" in ax.get_ylabel()
    both = f"p = {float(shares_of.p_uniform):.2g} (exact share)"
    assert both in "".join(text.get_text() for text in ax.texts)
    low, high = shares_of.band()
    assert np.all(low < shares_of.levels)
    assert np.all(high > shares_of.levels)
    many = jax.tree.map(lambda leaf: jnp.stack([leaf, leaf]), shares_of)
    with pytest.raises(ValueError, match="a figure shows one result"):
        plot(many)


@pytest.mark.parametrize(
    ("predictions", "z", "error", "message"),
    [
        (MODEL, np.zeros((N, M, 3)), ValueError, r"draws: wanted .* shape \(400, m, 2\)"),
        (MODEL, np.zeros((N - 1, M, 2)), ValueError, "draws: wanted"),
        (MODEL, np.zeros((N, 0, 2)), ValueError, "at least 1 draw"),
        (MODEL, np.zeros((N, M, 2), complex), TypeError, "draws: wanted float32 or float64"),
        (MODEL, None, TypeError, "draws: wanted"),
        (jaxcal.Scores(np.zeros((N, 2))), np.zeros((N, M, 2)), TypeError, "log densities"),
        (jaxcal.Draws(np.zeros((N, M, 2))), None, TypeError, "log densities, which Draws"),
        (np.zeros((N, 2)), np.zeros((N, M, 2)), TypeError, "log densities, which ndarray"),
    ],
)
def test_wrong_input_is_named(as_users_run_it, predictions, z, error, message):
    with pytest.raises(error, match=message):
        coverage(predictions, targets_with(1.0), z)


def test_targets_outside_the_support_are_outside_every_region():
    """All densities were equal under jit, and the p-value .38."""
    predictions = dist.Uniform(jnp.zeros(50), 1.0)
    drawn = predictions.sample(jax.random.key(0), (19,)).T
    result = coverage(predictions, jnp.full(50, 5.0), drawn)
    assert int(result.counts[-1]) == 50
    assert float(result.p_conservative) < 1e-6
    assert jnp.isinf(jax.jit(nll)(predictions, jnp.full(50, 5.0)))


def test_rounded_shares_lie_on_the_simplex():
    """numpyro wants sums within 1e-6 of 1, where shares of four digits are not."""
    predictions = dist.Dirichlet(2 * jnp.ones((300, 3)))
    drawn = jnp.moveaxis(predictions.sample(jax.random.key(0), (19,)), 0, 1)
    targets = jnp.round(predictions.sample(jax.random.key(1)), 4)
    assert float(coverage(predictions, targets, drawn).p_uniform) > 0.05
