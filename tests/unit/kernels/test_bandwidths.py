"""The second-order heuristic against scipy's noncentral chi squared and against brute force."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.optimize
import scipy.stats

from jaxcal.kernels import bandwidths
from jaxcal.kernels.bandwidths import at_ranks, by_values, second_order_heuristic
from jaxcal.read import Draws, Standardized, Units, Unnormalized

spread_of_draws = jax.jit(bandwidths.spread_of_draws)
spread_of_gaussians = jax.jit(bandwidths.spread_of_gaussians, static_argnames="most")
heuristic = eqx.filter_jit(second_order_heuristic)
isotropic_median = jax.jit(bandwidths._isotropic_median, static_argnames="d")


def mixture_median(shift, v, w, d):
    """Where the mixture's distribution function is 1/2, with scipy's (noncentral) chi squared."""

    def excess(r):
        alike = scipy.stats.chi2.sf(r**2 / (2 * v), d) + scipy.stats.chi2.sf(r**2 / (2 * w), d)
        noncentral = scipy.stats.ncx2.cdf(r**2 / (v + w), d, shift**2 / (v + w))
        return alike / 4 - noncentral / 2  # both sides small: no cancellation of 1/2

    return scipy.optimize.brentq(excess, 0, shift + 10 * np.sqrt(d * max(v, w)), xtol=1e-13)


@pytest.mark.parametrize("d", [1, 2, 3, 5, 40])
def test_median_of_isotropic_gaussians_solves_its_equation(d):
    rng = np.random.default_rng(d)
    # from coinciding means to 15 standard deviations apart, variances two decades apart
    shift = np.concatenate([[0.0], 10 ** rng.uniform(-2, 0.7, 40)])
    v, w = 10 ** rng.uniform(-1, 1, (2, 41))
    wanted = [mixture_median(*pair, d) for pair in zip(shift, v, w, strict=True)]
    median = isotropic_median(*map(jnp.asarray, (shift, v, w)), d=d)
    np.testing.assert_allclose(median, wanted, rtol=1e-7)


@pytest.mark.slow
def test_median_of_isotropic_gaussians_has_five_float32_digits():
    shift, v, w = (jnp.asarray([0.0, 1.0, 5.0, 9.0], jnp.float32) + c for c in (0, 1, 0.5))
    median = isotropic_median(shift, v, w, d=3)
    wanted = [mixture_median(*map(float, pair), 3) for pair in zip(shift, v, w, strict=True)]
    assert median.dtype == jnp.float32
    np.testing.assert_allclose(median, wanted, rtol=1e-5)


@pytest.mark.parametrize("d", [1, 4])
@pytest.mark.parametrize("deviation", [0.0, 1e-9, 1e-3])
def test_narrow_predictions_far_apart_have_their_median_halfway(d, deviation):
    # half of the distances are 0 or nearly so, half are the shift: the tails meet in the middle
    variance = jnp.full(3, deviation**2)
    for dtype in (jnp.float32, jnp.float64):
        shift = jnp.asarray([0.0, 1.0, 7.0], dtype)
        median = isotropic_median(shift, variance.astype(dtype), variance.astype(dtype), d=d)
        np.testing.assert_allclose(median[1:], [0.5, 3.5], rtol=1e-2)
        assert 0 <= median[0] <= 3 * deviation


@pytest.mark.slow
def test_heuristic_is_the_median_over_pairs(key):
    rng = np.random.default_rng(0)
    mean, variance = rng.normal(size=(7, 2)), rng.uniform(0.2, 3, 7)
    i, j = np.triu_indices(7, 1)
    shift = np.linalg.norm(mean[i] - mean[j], axis=-1)
    wanted = np.median([mixture_median(*a, 2) for a in zip(shift, variance[i], variance[j])])  # noqa: B905
    diagonal = jnp.asarray(np.repeat(variance[:, None], 2, axis=1))
    for cov in (diagonal, diagonal[:, :, None] * jnp.eye(2)[None]):
        result = spread_of_gaussians(key, jnp.asarray(mean), cov)
        np.testing.assert_allclose(result, wanted, rtol=1e-7)


@pytest.mark.slow
def test_heuristics_of_other_predictions_match_brute_force(key):
    rng = np.random.default_rng(1)
    n, d, many = 20, 3, 2000
    mean = rng.normal(size=(n, d))
    root = rng.normal(size=(n, d, d)) * [1.0, 0.5, 0.1]
    cov = root @ np.swapaxes(root, 1, 2)
    z = [
        rng.multivariate_normal(m, c, size=(2, many), method="eigh")
        for m, c in zip(mean, cov, strict=True)
    ]
    medians = []
    for a in range(n):
        for b in range(a):
            p, q = np.concatenate([z[a][0], z[b][0]]), np.concatenate([z[a][1], z[b][1]])
            p = p[rng.permutation(2 * many)]  # pairs of independent draws from the mixture
            medians.append(np.median(np.linalg.norm(p - q, axis=-1)))
    wanted = np.median(medians)
    # one median of 32^2 distances has a standard error of about 10 % (1.25 * 0.45 / sqrt(32)),
    # and the median over 190 pairs of 20 predictions of about 10 % / sqrt(20) = 2.3 %
    result = spread_of_gaussians(key, jnp.asarray(mean), jnp.asarray(cov))
    np.testing.assert_allclose(result, wanted, rtol=0.1)
    samples = jnp.asarray(np.stack([one[0, :64] for one in z]))
    np.testing.assert_allclose(spread_of_draws(samples), wanted, rtol=0.1)


def test_mixture_proportions_are_a_quarter_a_quarter_and_a_half():
    # p is a point mass at 0, q one at 1: half of the distances are 0 and half are 1
    p, q = jnp.zeros((4, 1)), jnp.ones((4, 1))
    assert bandwidths._median_distance(p, q) == 0.5
    # three points apart: p with p is 0, q with q is 2 or 0, p with q is 9 or 11
    q = jnp.asarray([[9.0], [9.0], [11.0], [11.0]])
    assert bandwidths._median_distance(p, q) == (2 + 9) / 2


@pytest.mark.slow
def test_degenerate_cases_follow_the_median_heuristic(key):
    same = jnp.ones((5, 6, 2))
    assert spread_of_draws(same) == 1.0
    assert spread_of_gaussians(key, same[:, 0], jnp.zeros((5, 2))) == 1.0
    one_differs = same.at[0].set(4.0)  # most pairs are at distance 0: the others decide
    assert spread_of_draws(one_differs) == np.sqrt(18) / 2
    for d in (1, 2):
        mean = jnp.zeros((5, d)).at[2].set(jnp.nan)
        assert jnp.isnan(spread_of_gaussians(key, mean, jnp.ones((5, d))))
    assert jnp.isnan(spread_of_draws(same.at[0, 0, 0].set(jnp.nan)))


@pytest.mark.slow
def test_dispatch_uses_moments_then_draws(key):
    mean = jax.random.normal(key, (6, 1))
    gaussian = dist.Normal(mean[:, 0], 0.5)
    exact = spread_of_gaussians(jax.random.key(1), mean, jnp.full((6, 1), 0.25))
    np.testing.assert_allclose(heuristic(key, gaussian), exact, rtol=1e-9)
    samples = jax.random.laplace(key, (6, 10, 2))
    units = Units(jnp.zeros(2), jnp.full(2, 4.0))
    raw = heuristic(key, Draws(samples))
    scaled = heuristic(key, Standardized(Draws(samples), units, (2,)))
    np.testing.assert_allclose(raw, 4 * scaled, rtol=1e-9)
    assert heuristic(key, dist.Laplace(mean[:, 0], 1.0)) > 0
    with pytest.raises(TypeError, match="no sampler"):
        second_order_heuristic(key, Unnormalized(lambda p, y: -((y - p) @ (y - p)), mean))


@pytest.mark.slow
def test_many_predictions_cost_no_more_pairs(key):
    mean = jax.random.normal(key, (3000, 1))
    result = spread_of_gaussians(key, mean, jnp.ones((3000, 1)))
    all_pairs = spread_of_gaussians(key, mean[:200], jnp.ones((200, 1)), most=200 * 199 // 2)
    np.testing.assert_allclose(result, all_pairs, rtol=0.1)
    shapes = [
        np.prod(v.aval.shape, dtype=int)
        for eqn in jax.make_jaxpr(spread_of_gaussians)(key, mean, jnp.ones((3000, 1))).eqns
        for v in eqn.outvars
        if hasattr(v.aval, "shape")
    ]
    assert max(shapes) <= 3000


def test_too_few_predictions_or_draws_are_named(key):
    with pytest.raises(ValueError, match="n=1"):
        spread_of_gaussians(key, jnp.zeros((1, 2)), jnp.ones((1, 2)))
    with pytest.raises(ValueError, match="m=1"):
        spread_of_draws(jnp.zeros((4, 1, 2)))


def test_few_ranks_are_those_of_a_sort(key):
    numbers = jax.random.normal(key, (1000, 3))
    ranks = np.arange(40) * 999 // 39
    np.testing.assert_array_equal(at_ranks(numbers, ranks), by_values(numbers)[ranks])
    repeated = numbers[np.arange(1000) % 7]
    at = at_ranks(repeated, ranks)
    np.testing.assert_array_equal(repeated[at], repeated[by_values(repeated)][ranks])
    assert int(jnp.max(at)) < 7  # the first of equal rows
