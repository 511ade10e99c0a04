"""Which fault is it: each is found where it is, with limits, and no innocent is accused."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats
from reference.given_others import given_others as reference
from reference.nulls import Gamma

import jaxcal
from jaxcal.moments.attribution import faults, student_p_value
from jaxcal.sbi.diagnosis import diagnose
from jaxcal.sbi.report_text import sentences

COV = np.array([[1.0, 0.8], [0.8, 1.0]])
PRECISION = np.linalg.inv(COV)


def gaussian(rng, n, d=2):
    """Targets, their scores, centres and covariances that vary from prediction to prediction."""
    roots = rng.normal(size=(n, d, d)) * 0.5 + np.eye(d)
    covariances = roots @ roots.transpose(0, 2, 1)
    centers = 20 + rng.normal(size=(n, d))
    noise = rng.normal(size=(n, d)) * [1.4, *[1.0] * (d - 1)] + 0.2
    ys = centers + np.einsum("nij,nj->ni", roots, noise)
    scores = -np.linalg.solve(covariances, (ys - centers)[..., None])[..., 0]
    return tuple(map(jnp.asarray, (ys, scores, centers, covariances)))


def jackknife(statistic, *rows):
    """Tukey's pseudo-values, one observation left out at a time."""
    n = len(rows[0])
    keep = [np.delete(np.arange(n), i) for i in range(n)]
    whole = statistic(*rows)
    return np.array([n * whole - (n - 1) * statistic(*(r[k] for r in rows)) for k in keep])


@pytest.mark.slow
def test_for_gaussians_it_is_the_jackknife_of_residuals():
    ys, scores, centers, covariances = gaussian(np.random.default_rng(0), 12, d=3)
    result = jax.jit(faults)(ys, scores, centers, covariances)
    deviations = np.sqrt(np.einsum("nii->ni", covariances))
    z = np.asarray((ys - centers) / deviations)
    np.testing.assert_allclose(result.mean.estimate, -z.mean(0), rtol=1e-9)
    spread = jackknife(lambda z: -np.log(z.std(0, ddof=1)), z)
    np.testing.assert_allclose(result.spread.estimate, spread.mean(0), rtol=1e-8)
    t = scipy.stats.ttest_1samp(spread, 0)
    np.testing.assert_allclose(result.spread.p_value, t.pvalue, rtol=1e-7)
    np.testing.assert_allclose(result.spread.low, t.confidence_interval().low, rtol=1e-4)
    i, j = np.triu_indices(3, 1)
    claimed = np.asarray(covariances)[:, i, j] / (deviations[:, i] * deviations[:, j])

    def gap(z, claimed):
        return np.arctanh(claimed.mean(0)) - np.arctanh(np.corrcoef(z.T)[i, j])

    pseudo = jackknife(gap, z, claimed)
    center = np.arctanh(claimed.mean(0))
    wanted = np.tanh(center) - np.tanh(center - pseudo.mean(0))
    np.testing.assert_allclose(result.correlation.estimate, wanted, rtol=1e-8)
    t = scipy.stats.ttest_1samp(pseudo, 0)
    np.testing.assert_allclose(result.correlation.p_value, t.pvalue, rtol=1e-7)
    low = np.tanh(center) - np.tanh(center - t.confidence_interval().low)
    np.testing.assert_allclose(result.correlation.low, low, rtol=1e-4)
    precisions = np.linalg.inv(covariances)
    inner = np.sqrt(np.einsum("nii->ni", precisions))
    given_others = np.asarray(scores) / inner
    of_reference = jax.jit(reference)(ys, scores, centers, covariances)
    np.testing.assert_allclose(of_reference.mean.estimate, given_others.mean(0), rtol=1e-9)

    def log_spread(w, z):
        products = (w - w.mean(0)) * (z - z.mean(0))
        return -np.log(np.maximum(products.sum(0) / (len(w) - 1), 1e-6)) / 2

    conditional = jackknife(log_spread, -given_others, z * deviations * inner)
    np.testing.assert_allclose(of_reference.spread.estimate, conditional.mean(0), rtol=1e-7)


def test_any_centre_and_covariance_keep_the_identity():
    """E[-Sigma s (y - c)^T] = Sigma by quadrature, of a correlated density far from Gaussian."""
    x, step = np.linspace(-10, 10, 1001, retstep=True)
    a, b = np.meshgrid(x, x, indexing="ij")
    log = -(a**4) / 4 - b**2 / 2 + 0.7 * a * b + 0.2 * np.sin(2 * b)
    w = np.exp(log) * step**2
    w /= w.sum()
    s = np.stack([-(a**3) + 0.7 * b, -b + 0.7 * a + 0.4 * np.cos(2 * b)])
    matrix, center = np.array([[2.0, -0.3], [-0.3, 0.6]]), np.array([0.9, -1.4])
    implied = -np.einsum("ij,jxy->ixy", matrix, s)
    plain = np.stack([a, b]) - center[:, None, None]
    np.testing.assert_allclose(np.einsum("xy,ixy->i", w, implied), 0, atol=1e-9)
    product = np.einsum("xy,ixy,jxy->ij", w, implied, plain)
    np.testing.assert_allclose(product, matrix, atol=1e-9)
    covariance = np.einsum("xy,ixy,jxy->ij", w, implied, implied)
    assert np.all(np.abs(covariance - matrix) > 0.02)  # the implied residual alone does not


@pytest.mark.slow
@pytest.mark.parametrize("n", [64])
def test_a_shift_and_a_wrong_spread_accuse_nothing_else(n):
    """400 data sets: coordinate 0 shifted by .5 and spread by 1.3 in claimed deviations, with
    correlation .8, which is right."""
    root = jnp.linalg.cholesky(jnp.asarray(COV))

    def one(key):
        z = jax.random.normal(key, (n, 2)) @ root.T
        ys = z * jnp.asarray([[1.3, 1.0]]) + jnp.asarray([[0.5, 0.0]])
        covariances = jnp.broadcast_to(jnp.asarray(COV), (n, 2, 2))
        scored = ys, -ys @ jnp.asarray(PRECISION), jnp.zeros((n, 2)), covariances
        return faults(*scored), reference(*scored)

    result, of_reference = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), 400))
    low, high = scipy.stats.binom.interval(0.9999, 400, 0.05)
    for kind in ("mean", "spread"):
        accused = np.asarray(getattr(result, kind).p_adjusted <= 0.05)
        assert accused[:, 1].sum() <= high
        assert accused[:, 0].mean() > 0.6
    assert low <= int(jnp.sum(result.correlation.p_value <= 0.05)) <= high
    truths = {"mean": [-0.5, 0], "spread": [-np.log(1.3), 0], "correlation": [0]}
    for kind, truth in truths.items():
        limits = getattr(result, kind)
        missed = (np.asarray(limits.low) > truth) | (np.asarray(limits.high) < truth)
        assert np.all(missed.sum(0) <= high), kind
    # given the other, the innocent is accused of the shift in most
    assert np.mean(np.asarray(of_reference.mean.p_adjusted)[:, 1] <= 0.05) > 0.5


@pytest.mark.slow
def test_many_observations_in_float32_give_those_of_float64(key):
    """Rounding of a variance, multiplied by n, exceeds the standard error."""
    n = 200_000
    z = jax.random.normal(key, (n, 2), np.float32) @ np.linalg.cholesky(COV).T.astype(np.float32)
    scores = -z @ PRECISION.astype(np.float32)

    def found(dtype):
        covariances = jnp.broadcast_to(jnp.asarray(COV, dtype), (n, 2, 2))
        rows = z.astype(dtype), scores.astype(dtype), jnp.zeros((n, 2), dtype), covariances
        return jax.jit(faults)(*rows)

    result, wanted = found(np.float32), found(np.float64)
    for kind in ("spread", "correlation"):
        got, right = getattr(result, kind), getattr(wanted, kind)
        estimate, error = np.asarray(right.estimate), np.asarray(right.standard_error)
        np.testing.assert_allclose(got.standard_error, error, rtol=1e-4)
        assert np.all(np.abs(np.asarray(got.estimate) - estimate) < 0.02 * error)
        np.testing.assert_allclose(got.p_value, right.p_value, atol=0.02)


@pytest.mark.parametrize(("estimate", "error"), [(np.inf, np.nan), (1.0, np.nan), (np.nan, 1.0)])
def test_a_p_value_without_an_error_is_nan(estimate, error):
    p = [student_p_value(jnp.asarray(x), jnp.asarray(error), 5) for x in (estimate, 2.0)]
    assert np.isnan(p[0])
    assert np.isnan(p[1]) == np.isnan(error)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("degrees", [1, 5, 29, 30, 500, 10**5, 2 * 10**6, 10**7 - 1, 10**9])
def test_p_values_are_those_of_scipy_for_any_degrees(degrees, dtype):
    t = np.array([0, 1e-4, 0.1, 1, 2, 5, 7], dtype)
    got = student_p_value(jnp.asarray(-t), jnp.ones_like(t), degrees)
    rtol = 2e-4 if dtype == np.float32 else 1e-9
    np.testing.assert_allclose(got, 2 * scipy.stats.t.sf(t, degrees), rtol=rtol)


def test_without_a_positive_variance_no_one_is_accused():
    """Where implied and plain residuals disagree, as centres without meaning make them."""
    rng = np.random.default_rng(1)
    ys = jnp.asarray(rng.normal(size=(12, 2)))
    result = jax.jit(faults)(ys, ys, 0 * ys, jnp.broadcast_to(jnp.eye(2), (12, 2, 2)))
    for kind in ("spread", "correlation"):
        p = np.asarray(getattr(result, kind).p_value)
        assert np.all(p > 0.05), kind


@pytest.mark.slow
def test_every_route_to_the_claims_gives_the_same_and_is_shown(key):
    rng = np.random.default_rng(0)
    centers = jnp.asarray(2 * rng.normal(size=(40, 2)) + 30)
    ys = centers + rng.normal(size=(40, 2)) @ np.linalg.cholesky(COV).T * [1.5, 1.0]

    def density(center, y):
        return -(y - center) @ jnp.asarray(PRECISION) @ (y - center) / 2

    routes = [
        (dist.MultivariateNormal(centers, COV), True),
        (jaxcal.Unnormalized(density, centers), False),
    ]
    z = np.asarray(ys - centers)
    wanted = jackknife(lambda z: -np.log(z.std(0, ddof=1)), z).mean(0)
    for predictions, standardize in routes:
        result = jaxcal.kccsd_test(
            key, predictions, ys, coordinates=True, null=Gamma(), standardize=standardize
        )
        split = result.coordinates
        np.testing.assert_allclose(split.marginal_spread.estimate, wanted, rtol=1e-6)
        assert split.pairs() == [(0, 1)]
        assert "claimed / actual sd" in str(result)
        assert "correlation too high by" in str(result)
    quartic = jaxcal.Unnormalized(lambda center, y: -jnp.sum((y - center) ** 4) / 20, centers)
    untold = jaxcal.kccsd_test(key, quartic, ys, coordinates=True, null=Gamma())
    assert np.all(np.isnan(untold.coordinates.marginal_spread.p_value))
    assert "too high by" not in str(untold)
    assert "nan" not in str(untold)


@pytest.mark.slow
def test_one_coordinate_has_no_pair():
    ys, scores, centers, covariances = gaussian(np.random.default_rng(0), 12, d=1)
    result = jax.jit(faults)(ys, scores, centers, covariances)
    assert result.correlation is None
    of_reference = reference(ys, scores, centers, covariances)
    np.testing.assert_allclose(result.spread.estimate, of_reference.spread.estimate)


@pytest.mark.slow
def test_a_posterior_has_influence_by_pair_and_by_parameter(key):
    """Correlation .8 claimed, 0 actual; parameter b too narrow."""
    rng = np.random.default_rng(0)
    centers = jnp.asarray(2 * rng.normal(size=(300, 2)))
    thetas = centers + rng.normal(size=(300, 2)) * np.array([1.0, 1.4])
    scores = -(thetas - centers) @ jnp.asarray(PRECISION)
    covariances = jnp.broadcast_to(jnp.asarray(COV), (300, 2, 2))
    told = diagnose(
        key,
        thetas,
        scores,
        jnp.zeros_like(centers),  # which nothing can be regressed on
        None,
        covariances=covariances,
        claimed_centers=centers,
    )
    np.testing.assert_allclose(told.marginal_spread.estimate, [0, -np.log(1.4)], atol=0.15)
    np.testing.assert_allclose(told.correlation.estimate, [0.8], atol=0.2)
    exact = faults(thetas, scores, centers, covariances)  # about the claimed centres
    for one, other in ((told.correlation, exact.correlation), (told.marginal_spread, exact.spread)):
        np.testing.assert_allclose(one.estimate, other.estimate, rtol=1e-9)
        np.testing.assert_allclose(one.standard_error, other.standard_error, rtol=1e-9)
    said = sentences(told, ("a", "b"), 0.05)
    assert any("b is overconfident (too narrow) by itself" in text for text in said)
    assert any("correlation of a and b is claimed too high by 0." in text for text in said)
    assert not any(text.startswith("a is") and "by itself" in text for text in said)


@pytest.mark.parametrize("exact", [True, False])
def test_claims_that_are_not_gaussian_leave_only_the_means(exact):
    ys, scores, centers, covariances = gaussian(np.random.default_rng(0), 12)
    result = jax.jit(faults)(ys, scores, centers, covariances, exact=exact, gaussian=False)
    assert np.all(np.isfinite(result.mean.p_value))
    assert np.all(np.isfinite(result.mean.low) == exact)
    for kind in ("spread", "correlation"):
        assert np.all(np.isnan(getattr(result, kind).p_value))
