"""KSD and KCSD against dense oracles, and what they do not depend on."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import oracles
import pytest
from reference.nulls import Gamma

import jaxcal
from jaxcal import kcsd, kcsd_test, ksd, ksd_test
from jaxcal.kernels import IMQ, Gaussian, Linear, Spectrum, points
from jaxcal.nulls import Wild

close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-11)
QUICK = Wild(19)
N, D = 14, 2
RNG = np.random.default_rng(0)
YS = RNG.normal(size=(N, D)) * [1.0, 2.0] + [0.5, 0.3]
INPUTS = RNG.normal(size=(N, 3)) * [1.0, 100.0, 1e-3]
MEANS = RNG.normal(size=(N, D))


def density(y):
    return -jnp.sum(y**2) / 2 - jnp.sum(y**4) / 40


def with_a_constant(y):
    return density(y) + 123.0


def scores(ys):
    return -ys - ys**3 / 10


def conditional(mean, y):
    return -jnp.sum((y - mean) ** 2) / 2


def with_a_constant_each(mean, y):
    return conditional(mean, y) + jnp.exp(jnp.sum(mean))


def dense(values, *, standardize=True, k=1.0, length=None):
    scale = YS.std(0) if standardize else np.ones(D)
    ts = YS / scale
    length = length or oracles.median_distance(ts)
    return k * oracles.stein_matrix(oracles.gaussian, length, ts, values * scale).sum(0)


@pytest.mark.slow
def test_ksd_is_the_equation(key):
    result = ksd_test(key, density, YS, null=QUICK)
    h = dense(scores(YS))
    close(result.estimate, oracles.u_statistic(h))
    close(result.biased, oracles.v_statistic(h))
    assert set(result.bandwidths) == {"target"}
    assert not bool(result.notes["identical-predictions"])
    both = ksd(key, density, YS)
    close(both.unbiased, result.estimate)
    close(both.biased, result.biased)


@pytest.mark.slow
def test_ksd_of_raw_targets_with_a_given_bandwidth(key):
    got = ksd(key, density, YS, standardize=False, target_kernel=Gaussian(1.7))
    close(got.unbiased, oracles.u_statistic(dense(scores(YS), standardize=False, length=1.7)))


@pytest.mark.slow
def test_ksd_ignores_the_constant_of_the_density(key):
    one, other = (ksd_test(key, f, YS, null=QUICK) for f in (density, with_a_constant))
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_a_density_a_distribution_and_scores_are_the_same_model(key):
    def normal(y):
        return -jnp.sum(y**2) / 2

    wanted = oracles.u_statistic(dense(-YS))
    alone = dist.Normal(jnp.zeros(D), 1.0).to_event(1)
    for model in (normal, alone, alone.expand((N,)), jaxcal.Scores(-YS)):
        close(ksd(key, model, YS).unbiased, wanted)


@pytest.mark.slow
def test_kcsd_is_the_equation(key):
    model = jaxcal.Unnormalized(conditional, jnp.asarray(MEANS))
    result = kcsd_test(key, model, YS, INPUTS, null=QUICK)
    xs = INPUTS / INPUTS.std(0)
    k = oracles.gram(oracles.gaussian, oracles.median_distance(xs), xs)
    h = dense(MEANS - YS, k=k)
    close(result.estimate, oracles.u_statistic(h))
    close(result.biased, oracles.v_statistic(h))
    close(kcsd(key, model, YS, INPUTS).unbiased, result.estimate)


def test_kcsd_of_raw_inputs(key):
    model = jaxcal.Unnormalized(conditional, jnp.asarray(MEANS))
    xs = INPUTS[:, 0]
    got = kcsd(
        key, model, YS, xs, standardize=False, prediction_kernel=IMQ(0.8),
        target_kernel=Gaussian(1.2),
    )  # fmt: skip
    k = oracles.gram(oracles.imq(0.5), 0.8, xs[:, None])
    close(got.unbiased, oracles.u_statistic(dense(MEANS - YS, standardize=False, k=k, length=1.2)))


@pytest.mark.slow
def test_kcsd_ignores_the_constants_of_the_densities(key):
    one, other = (
        kcsd_test(key, jaxcal.Unnormalized(f, jnp.asarray(MEANS)), YS, INPUTS, null=QUICK)
        for f in (conditional, with_a_constant_each)
    )
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.slow
def test_kcsd_without_inputs_to_tell_apart_is_ksd(key):
    model = jaxcal.Unnormalized(conditional, jnp.asarray(MEANS))
    got = kcsd_test(key, model, YS, np.ones((N, 1)), null=QUICK)
    close(got.estimate, oracles.u_statistic(dense(MEANS - YS)))
    assert bool(got.notes["identical-predictions"])
    assert "identical" in str(got)


def test_units_of_inputs_do_not_matter(key):
    model = jaxcal.Unnormalized(conditional, jnp.asarray(MEANS))
    one, other = (
        kcsd_test(key, model, YS, xs, null=QUICK) for xs in (INPUTS, 7 + INPUTS * [1e9, 1e-9, 3.0])
    )
    close(other.estimate, one.estimate, rtol=1e-6)
    close(other.p_value, one.p_value)


@pytest.mark.slow
def test_order_of_observations_does_not_matter(key):
    order = np.random.default_rng(1).permutation(N)
    one, other = (ksd_test(key, density, ys, null=Gamma()) for ys in (YS, YS[order]))
    close(other.estimate, one.estimate)
    close(other.p_value, one.p_value)


@pytest.mark.slow
def test_under_jit_vmap_and_grad(key):
    many = jnp.stack([YS, YS + 1.0])
    got = jax.jit(jax.vmap(lambda ys: ksd_test(key, density, ys, null=QUICK)))(many)
    for k in range(2):
        close(got.estimate[k], ksd_test(key, density, many[k], null=QUICK).estimate)
        close(got.p_value[k], ksd_test(key, density, many[k], null=QUICK).p_value)

    def estimate(mean):
        model = dist.Normal(mean, 1.0).to_event(1)
        return ksd(key, model, YS, target_kernel=Gaussian(1.0)).unbiased

    mean, step = jnp.asarray([0.3, -0.2]), jnp.asarray([1.0, 2.0])
    slope = jax.grad(estimate)(mean)
    difference = (estimate(mean + 1e-6 * step) - estimate(mean - 1e-6 * step)) / 2e-6
    np.testing.assert_allclose(slope @ step, difference, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("programs_stay")
def test_a_named_density_compiles_once(key):
    traces = []

    def counted(y):
        traces.append(1)
        return density(y)

    calls = []
    for seed in range(3):
        before = len(traces)
        ksd_test(jax.random.key(seed), counted, YS + seed, null=QUICK)
        calls.append(len(traces) - before)
    # every call checks shapes by an abstract trace; the program itself is traced once
    assert calls[0] > calls[1] == calls[2]


@pytest.mark.slow
def test_power_and_level_in_one_look(key):
    normal = np.random.default_rng(5).normal(size=(200, D))

    def model(y):
        return -jnp.sum(y**2) / 2

    assert float(ksd_test(key, model, normal, null=Wild(199)).p_value) > 0.05
    assert float(ksd_test(key, model, normal + 0.5, null=Wild(199)).p_value) == 1 / 200


@pytest.mark.slow
@pytest.mark.parametrize("rows", [13, 15])
def test_inputs_must_match_the_targets(rows, key):
    model = jaxcal.Unnormalized(conditional, jnp.asarray(MEANS))
    with pytest.raises(ValueError, match="inputs: wanted n=14 rows"):
        kcsd_test(key, model, YS, np.ones((rows, 2)))


@pytest.mark.parametrize("kernel", [Spectrum(1), Linear()])
def test_inputs_as_they_are_keep_their_zero(kernel):
    """Of inputs minus their medians, .198 for .162 and -.02 for 11.7."""
    rng = np.random.default_rng(0)
    y, tokens = jnp.asarray(rng.normal(size=20)), jnp.asarray(rng.integers(3, 6, (20, 4)) * 1.0)
    model, options = dist.Normal(jnp.zeros(20), 1.0), {"standardize": False}
    options |= {"target_kernel": Gaussian(1.0)}
    got = kcsd(0, model, y, tokens, prediction_kernel=kernel, **options).unbiased
    gaps = y[:, None] - y[None]
    h = np.exp(-(gaps**2) / 2) * (y[:, None] * y[None] + 1 - 2 * gaps**2)
    pairs = points.gram(kernel, tokens, tokens) * h * (1 - np.eye(20))
    np.testing.assert_allclose(got, np.sum(pairs) / (20 * 19), rtol=1e-10)
