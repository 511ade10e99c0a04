"""Each prediction in its own units: exact where it should be, and without a say in the level."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import oracles
import pytest
import scipy.linalg
import scipy.special
from quick import quick_first

from jaxcal import Draws, Scores, Unnormalized, kccsd, kccsd_test, kcsd, ksd, ucme_test
from jaxcal.divergences import Vectors
from jaxcal.divergences.vectors import NodeScores
from jaxcal.fit.options import stein_specification
from jaxcal.kernels import Constant, Gaussian
from jaxcal.nulls import Wild
from jaxcal.read import OwnUnits, Standardized, Units
from jaxcal.read.families import distribution_of, mean_and_covariance
from jaxcal.skce import skce
from jaxcal.whitening import Landing, LocationScale, Moments, Regression

pytestmark = pytest.mark.usefixtures("as_users_run_it")


close = partial(np.testing.assert_allclose, rtol=1e-8, atol=1e-9)
N = 12
QUICK = Wild(19)


def normals(d, seed=0, widths=10.0):
    """Means, covariances and targets of n predictions, widths by a factor apart, offset by 50."""
    rng = np.random.default_rng(seed)
    a = 0.5 * rng.normal(size=(N, d, d)) + 2 * np.eye(d)
    factor = widths ** rng.uniform(-0.5, 0.5, size=(N, 1, 1))
    covariance = factor**2 * a @ a.transpose(0, 2, 1)
    mean = 50 + 3 * rng.normal(size=(N, d))
    noise = rng.normal(size=(N, d))
    ys = mean + np.einsum("nij,nj->ni", np.linalg.cholesky(covariance), noise)
    return mean, covariance, ys


def density(params, y):
    mean, precision = params
    return -(y - mean) @ precision @ (y - mean) / 2


def energies(mean, covariance):
    return Unnormalized(density, (jnp.asarray(mean), jnp.linalg.inv(jnp.asarray(covariance))))


def root(covariance):
    """M = D R^1/2, by SciPy's square root of a matrix."""
    deviations = np.sqrt(np.diag(covariance))
    return np.diag(deviations) @ np.real(
        scipy.linalg.sqrtm(covariance / np.outer(deviations, deviations))
    )


@partial(jax.jit, static_argnames="event")
def fitted(whitener, predictions, nodes, values, event):
    """Centres and scales in raw units."""
    d = nodes.shape[1]
    units = Units(jnp.zeros(d, nodes.dtype), jnp.ones(d, nodes.dtype))
    return whitener.fit(Standardized(predictions, units, event), NodeScores(nodes, values))


def gaussian_nodes(mean, covariance, m=9):
    nodes = 50 + 5 * np.random.default_rng(5).normal(size=(m, mean.shape[1]))
    gaps = nodes[None] - mean[:, None]
    return jnp.asarray(nodes), -jnp.asarray(
        np.einsum("nij,nmj->nmi", np.linalg.inv(covariance), gaps)
    )


@pytest.mark.slow
@pytest.mark.parametrize("d", quick_first([1, 2, 5], [2]))
def test_gaussians_get_their_means_and_deviations_exactly(d):
    mean, covariance, _ = normals(d)
    nodes, values = gaussian_nodes(mean, covariance)
    wanted = np.stack([root(c) for c in covariance])
    energy = energies(mean, covariance)
    result = Moments(jnp.asarray(mean), jnp.asarray(covariance))
    offered = dist.MultivariateNormal(mean, covariance)
    cases = [(Regression(), energy), (Landing(1), energy), (result, energy), (Moments(), offered)]
    for whitener, predictions in cases:
        whitening = fitted(whitener, predictions, nodes, values, (d,))
        close(whitening.center, mean, err_msg=str(whitener))
        close(whitening.scale, wanted, rtol=1e-7, err_msg=str(whitener))
        assert (whitening.clamped, whitening.n_not_converged) == (0, 0)


def test_diagonal_scales_are_of_the_coordinates_alone():
    mean, covariance, _ = normals(2)
    variances = covariance[:, [0, 1], [0, 1]]
    nodes, values = gaussian_nodes(mean, np.einsum("ni,ij->nij", variances, np.eye(2)))
    independent = dist.Normal(mean, np.sqrt(variances)).to_event(1)
    for whitener in (Regression("diagonal"), Landing(1, "diagonal"), Moments(form="diagonal")):
        whitening = fitted(whitener, independent, nodes, values, (2,))
        close(whitening.center, mean)
        close(whitening.scale, np.einsum("ni,ij->nij", np.sqrt(variances), np.eye(2)))


def test_landing_finds_modes_of_student_and_skewed_densities():
    rng = np.random.default_rng(1)
    center, width = 3 * rng.normal(size=(N, 2)), rng.uniform(0.3, 3, size=(N, 1))
    nodes = jnp.asarray(2 * rng.normal(size=(9, 2)))
    none = jnp.zeros((N, 9, 2))

    def student(params, y):  # 4 degrees of freedom
        return -3 * jnp.log1p(jnp.sum(((y - params[0]) / params[1]) ** 2) / 4)

    def skewed(params, y):  # log of a gamma variable of shape 2, by coordinate
        z = (y - params[0]) / params[1]
        return jnp.sum(2 * z - jnp.exp(z))

    params = (jnp.asarray(center), jnp.asarray(width))
    for form, summit, scale in ((student, 0.0, 1.5**-0.5), (skewed, np.log(2), 2**-0.5)):
        whitening = fitted(Landing(12), Unnormalized(form, params), nodes, none, (2,))
        close(whitening.center, center + width * summit, rtol=1e-6, atol=1e-6)
        close(whitening.scale, (scale * width)[:, :, None] * np.eye(2), rtol=1e-6, atol=1e-7)
        assert (whitening.clamped, whitening.n_not_converged) == (0, 0)


def test_an_unfinished_landing_is_counted_with_a_bounded_scale():
    def skewed(params, y):
        return jnp.sum(2 * (y - params) - jnp.exp(y - params))

    nodes = jnp.full((9, 1), -6.0)
    centers = jnp.linspace(0, 1, N)[:, None]
    whitening = fitted(Landing(1), Unnormalized(skewed, centers), nodes, jnp.zeros((N, 9, 1)), (1,))
    assert whitening.n_not_converged == N
    slope = 2 - np.exp(whitening.center - centers)
    assert np.all(np.abs(whitening.scale[:, :, 0] * slope) <= 1)


def test_what_cannot_be_a_scale_is_replaced_and_counted():
    nodes = jnp.asarray(np.random.default_rng(2).normal(size=(9, 2)))
    slopes = np.tile(np.diag([1.0, 4.0]), (N, 1, 1))
    slopes[0] = np.diag([-1.0, 4.0])  # widens along one coordinate
    slopes[1] = 0
    slopes[2] = 1e-12 * np.eye(2)
    slopes[3] = [[1.0, 3.0], [3.0, 4.0]]  # a saddle
    values = -jnp.einsum("nij,mj->nmi", slopes, nodes)
    whitening = fitted(Regression(), None, nodes, values, (2,))
    assert whitening.clamped == 4
    close(whitening.scale[4:], np.tile(np.diag([1.0, 0.5]), (N - 4, 1, 1)))
    close(whitening.scale[:2], np.tile(np.diag([1.0, 0.5]), (2, 1, 1)))
    close(whitening.scale[2], np.diag([1e4, 0.5e4]))
    values, vectors = np.linalg.eigh(np.asarray(slopes[3] / np.sqrt(np.outer([1, 4], [1, 4]))))
    mended = (vectors * np.where(values > 0, values, 1)) @ vectors.T
    units = np.diag([1.0, 0.5])
    close(whitening.scale[3], root(units @ np.linalg.inv(mended) @ units))


def test_a_flat_density_gets_the_typical_scale_and_is_counted():
    def box(params, y):
        return jnp.where(jnp.all(jnp.abs(y - params) < 100), 0.0, -jnp.inf)

    nodes = jnp.asarray(np.random.default_rng(2).normal(size=(9, 2)))
    whitening = fitted(
        Landing(), Unnormalized(box, jnp.zeros((N, 2))), nodes, jnp.zeros((N, 9, 2)), (2,)
    )
    assert whitening.clamped == N
    close(whitening.scale, np.tile(np.eye(2), (N, 1, 1)))


@pytest.mark.parametrize("d", quick_first([1, 2, 5], [2]))
def test_the_statistic_is_the_equation(d, key):
    mean, covariance, ys = normals(d)
    phi = np.random.default_rng(3).normal(size=(N, 3))
    options = {"prediction_kernel": Gaussian(1.3), "target_kernel": Gaussian(0.9)}
    estimate = kccsd(
        key, energies(mean, covariance), ys, divergence=Vectors(phi), standardize=False,
        whiten=Moments(mean, covariance), **options,
    )  # fmt: skip
    roots = [root(c) for c in covariance]
    us = np.stack([np.linalg.solve(m, y - c) for m, y, c in zip(roots, ys, mean, strict=True)])
    scores = -np.stack(
        [np.linalg.solve(c, y - b) for c, y, b in zip(covariance, ys, mean, strict=True)]
    )
    scores = np.stack([m.T @ s for m, s in zip(roots, scores, strict=True)])
    k = oracles.gram(oracles.gaussian, 1.3, phi)
    h = (k * oracles.stein_matrix(oracles.gaussian, 0.9, us, scores, None)).sum(0)
    close(estimate.unbiased, oracles.u_statistic(h))
    close(estimate.biased, oracles.v_statistic(h))


@pytest.mark.slow
def test_affine_maps_of_prediction_and_target_change_nothing(key):
    """Coordinates scaled and moved, of each observation by itself; and the order of coordinates."""
    mean, covariance, ys = normals(2)
    phi = np.random.default_rng(3).normal(size=(N, 3))
    rng = np.random.default_rng(4)
    scales, moves = 10 ** rng.uniform(-1, 1, size=(N, 2)), 10 * rng.normal(size=(N, 2))

    def estimates(mean, covariance, ys):
        for whitener in (Regression(), Landing(2), Moments(mean, covariance)):
            estimate = kccsd(
                key, energies(mean, covariance), ys, divergence=Vectors(phi), whiten=whitener
            )
            yield estimate.unbiased

    there = np.array(list(estimates(mean, covariance, ys)))
    square = scales[:, :, None] * scales[:, None]
    moved = list(estimates(scales * mean + moves, square * covariance, scales * ys + moves))
    close(moved, there, rtol=1e-5)
    close(there, there[0], rtol=1e-5)
    turned = list(estimates(mean[:, ::-1], covariance[:, ::-1, ::-1], ys[:, ::-1]))
    close(turned, there, rtol=1e-5)


def test_any_centre_and_scale_keep_the_mean_at_zero():
    """By quadrature: a wrong centre and scale, and a density that is far from Gaussian."""
    y, step = np.linspace(-25, 8, 200_001, retstep=True)
    w = np.exp(2 * y - np.exp(y) - scipy.special.gammaln(2))
    score = 2 - np.exp(y)
    for center, scale, other in ((0.7, 3.0, -1.0), (-4.0, 0.2, 2.0)):
        u = (y - center) / scale
        kernel = np.exp(-((u - other) ** 2) / 2)
        mean = step * np.sum(w * (scale * score * kernel - (u - other) * kernel))
        size = step * np.sum(w * np.abs(scale * score * kernel))
        assert abs(mean) < 1e-6 * size
        wrong = step * np.sum(w * (score * kernel - (u - other) * kernel))
        assert abs(wrong) > 0.05 * size


@pytest.mark.slow
def test_one_density_and_inputs_are_served_too(key):
    """KSD of N(m, S) is that of a standard normal at whitened targets; KCSD compares inputs."""
    mean, covariance, ys = normals(2, widths=1.0)
    one, spread = mean[0], covariance[0]
    us = np.linalg.solve(root(spread), (ys - one).T).T
    options = {"target_kernel": Gaussian(1.0), "standardize": False}
    plain = ksd(key, dist.MultivariateNormal(np.zeros(2), np.eye(2)), us, **options)
    whitened = ksd(key, dist.MultivariateNormal(one, spread), ys, whiten=Moments(), **options)
    close(whitened.unbiased, plain.unbiased)
    inputs = mean[:, :1]
    conditional = kcsd(key, energies(mean, covariance), ys, inputs, whiten=Landing())
    same = kccsd(key, energies(mean, covariance), ys, divergence=Vectors(inputs), whiten=Landing())
    close(conditional.unbiased, same.unbiased)


@pytest.mark.slow
def test_given_scores_are_regressed_and_cannot_land(key):
    mean, covariance, ys = normals(2)
    nodes, values = gaussian_nodes(mean, covariance)
    at_targets = -np.stack(
        [np.linalg.solve(c, g) for c, g in zip(covariance, ys - mean, strict=True)]
    )
    scores = Scores(at_targets, values, nodes)
    there = kccsd(key, scores, ys, whiten=Regression())
    energy = kccsd(key, energies(mean, covariance), ys, base_measure=nodes, whiten=Regression())
    close(there.unbiased, energy.unbiased)
    with pytest.raises(TypeError, match=r"whiten: Landing.* Scores has none: use Regression"):
        kccsd(key, scores, ys, whiten=Landing())
    with pytest.raises(ValueError, match=r"whiten: Regression.* Scores\.nodes"):
        kccsd(key, Scores(at_targets, values), ys, whiten=Regression())
    with pytest.raises(TypeError, match="whiten: Scores offers no mean"):
        kccsd(key, scores, ys, whiten=Moments())
    bad = Scores(at_targets, values.at[3, 2, 0].set(jnp.nan), nodes)
    result = kccsd_test(
        key, bad, ys, whiten=Regression(), divergence=Vectors(nodes[:1] * ys), null=QUICK
    )
    assert np.isnan(result.p_value)
    assert result.verdict == "cannot tell"
    assert "describe the predictions" in result.reason


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"whiten": Regression}, TypeError, "whiten: wanted one such as"),
        ({"whiten": "landing"}, TypeError, "whiten: wanted one such as"),
        ({"whiten": Landing(), "precondition": "full"}, ValueError, "precondition: whiten="),
        ({"whiten": Moments(np.zeros((N, 3)), np.ones((N, 3)))}, ValueError, "mean of 2 coord"),
        ({"whiten": Regression(), "n_nodes": 2}, ValueError, "at least 3 .* raise n_nodes"),
    ],
)
def test_what_is_not_served_is_said(options, error, message, key):
    mean, covariance, ys = normals(2)
    with pytest.raises(error, match=message):
        kccsd_test(key, energies(mean, covariance), ys, null=QUICK, **options)


def test_arguments_of_whiteners_are_checked():
    for make in (Regression, partial(Landing, 3), partial(Moments, None, None)):
        with pytest.raises(ValueError, match="form: wanted"):
            make("isotropic")
    with pytest.raises(ValueError, match="steps"):
        Landing(0)
    with pytest.raises(ValueError, match="give both"):
        Moments(np.zeros((3, 1)))


@pytest.mark.slow
def test_counts_reach_the_result_and_its_warnings(key):
    def student(params, y):
        return -3 * jnp.log1p(jnp.sum((y - params) ** 2) / 4)

    ys = np.random.default_rng(0).standard_t(4, size=(N, 1))
    center = jnp.zeros((N, 1)).at[0].set(1e4)
    result = kccsd_test(key, Unnormalized(student, center), ys, whiten=Regression(), null=QUICK)
    assert result.notes["clamped-scales"] >= 1
    assert any("[clamped-scales]" in text for text in result.warnings())

    def skewed(params, y):
        return jnp.sum(2 * (y - params) - jnp.exp(y - params))

    far = jnp.zeros((N, 1)).at[0].set(60.0)
    result = kccsd_test(key, Unnormalized(skewed, far), ys, whiten=Landing(1), null=QUICK)
    assert result.notes["centres-astray"] >= 1
    assert any("did not converge for 1 prediction:" in text for text in result.warnings())


@pytest.mark.slow
def test_coordinates_stay_apart_with_diagonal_scales(key):
    mean, covariance, ys = normals(2)
    whitener = Landing(2, "diagonal")
    split = kccsd_test(
        key, energies(mean, covariance), ys, whiten=whitener, coordinates=True, null=QUICK
    )
    whole = kccsd(key, energies(mean, covariance), ys, whiten=whitener)
    close(jnp.sum(split.coordinates.estimate), split.estimate)
    assert np.isfinite(float(whole.unbiased))


@pytest.mark.slow
@pytest.mark.parametrize("whitener", [Regression(), Landing(2)], ids=["regression", "landing"])
def test_derivatives_are_the_slopes_of_what_is_returned(whitener, key):
    mean, covariance, ys = normals(2)
    direction = jnp.asarray(np.random.default_rng(8).normal(size=mean.shape))
    precision = jnp.linalg.inv(jnp.asarray(covariance))

    def loss(t):
        params = (mean + t * direction, precision * (1 + 0.3 * t * direction[:, :1, None]))
        predictions = Unnormalized(density, params)
        return kccsd(
            key, predictions, ys, whiten=whitener, divergence=LocationScale(whitener)
        ).unbiased

    run = jax.jit(jax.value_and_grad(loss))
    slope = run(jnp.asarray(0.1))[1]
    step = 1e-5
    difference = (run(jnp.asarray(0.1 + step))[0] - run(jnp.asarray(0.1 - step))[0]) / (2 * step)
    np.testing.assert_allclose(slope, difference, rtol=1e-4, atol=1e-9)


@pytest.mark.slow
def test_the_order_of_the_observations_changes_nothing(key):
    mean, covariance, ys = normals(2)
    order = np.random.default_rng(1).permutation(N)
    for whitener in (Regression(), Landing(2)):
        run = jax.jit(
            lambda m, c, y, w=whitener: (
                kccsd(key, energies(m, c), y, whiten=w, divergence=LocationScale(w)).unbiased
            )
        )
        close(run(mean[order], covariance[order], ys[order]), run(mean, covariance, ys))


@pytest.mark.slow
def test_single_precision_and_an_offset_cost_few_digits(key):
    """Widths by a factor of 100 apart, and an offset of 50: against double precision."""
    mean, covariance, ys = normals(2, widths=100.0)
    nodes = 50 + 30 * np.random.default_rng(5).normal(size=(9, 2))

    def estimate(dtype, whitener):
        precision = np.linalg.inv(covariance).astype(dtype)
        params = (mean.astype(dtype), precision)
        return kccsd(
            key, Unnormalized(density, tuple(map(jnp.asarray, params))), ys.astype(dtype),
            base_measure=nodes.astype(dtype), whiten=whitener, divergence=LocationScale(whitener),
        ).biased  # fmt: skip

    for whitener in (Regression(), Landing(2)):
        exact = estimate(np.float64, whitener)
        single = estimate(np.float32, whitener)
        assert single.dtype == jnp.float32
        np.testing.assert_allclose(single, exact, rtol=5e-3)


def test_draws_give_moments_by_their_first_half():
    samples = np.random.default_rng(0).normal(size=(N, 16, 2))
    nodes = jnp.zeros((9, 2))
    whitening = fitted(Moments(), Draws(jnp.asarray(samples)), nodes, jnp.zeros((N, 9, 2)), (2,))
    close(whitening.center, samples[:, :8].mean(1))
    close(whitening.scale, np.stack([root(np.cov(s[:8].T)) for s in samples]))
    with pytest.raises(ValueError, match="needs 8 of each prediction"):
        fitted(Moments(), Draws(jnp.asarray(samples[:, :6])), nodes, jnp.zeros((N, 9, 2)), (2,))


@pytest.mark.slow
def test_centres_and_log_scales_separate_location_from_scale(key):
    mean, covariance, _ = normals(2)
    units = Units(jnp.zeros(2), jnp.ones(2))
    standardized = Standardized(dist.MultivariateNormal(mean, covariance), units, (2,))
    features = LocationScale(Moments()).features(key, standardized, None)
    deviations = np.sqrt(covariance[:, [0, 1], [0, 1]])
    roots = [root(c)[0, 1] / s[0] for c, s in zip(covariance, deviations, strict=True)]
    close(features, np.concatenate([mean, np.log(deviations), np.array(roots)[:, None]], axis=1))


@pytest.mark.slow
def test_widths_may_be_twelve_orders_of_magnitude_apart(key):
    """From 1e-6 to 1e6 in single precision: no result is NaN, and what was clamped is counted."""
    width = 10 ** np.linspace(-6, 6, N)[:, None].astype(np.float32)
    ys = (width * np.random.default_rng(0).normal(size=(N, 1))).astype(np.float32)
    predictions = dist.Normal(jnp.zeros((N, 1), jnp.float32), jnp.asarray(width)).to_event(1)
    result = kccsd_test(
        key, predictions, ys, whiten=Moments(), divergence=LocationScale(Moments()), null=QUICK
    )
    assert np.isfinite(result.p_value)
    assert result.notes["clamped-scales"] == 2  # wider than 1e4 times the typical one


def test_the_specification_is_open_to_whiteners_of_users(key):
    mean, covariance, ys = normals(2)

    class Mine(Moments):
        pass

    spec = stein_specification(jnp.asarray(ys), whiten=Mine(mean, covariance))
    assert isinstance(spec.whiten, Mine)


@pytest.mark.slow
def test_skce_of_whitened_normals_is_that_of_standard_normals(key):
    mean, covariance, ys = normals(2)
    us = np.stack(
        [np.linalg.solve(root(c), y - m) for c, y, m in zip(covariance, ys, mean, strict=True)]
    )
    inputs = Vectors(mean)
    options = {"divergence": inputs, "target_kernel": Gaussian(1.0), "standardize": False}
    standard = dist.MultivariateNormal(jnp.zeros((N, 2)), jnp.broadcast_to(jnp.eye(2), (N, 2, 2)))
    plain = skce(key, standard, us, **options)
    offered = dist.MultivariateNormal(mean, covariance)
    for whitener in (Moments(), Landing(1)):
        close(skce(key, offered, ys, whiten=whitener, **options).unbiased, plain.unbiased)


@pytest.mark.slow
def test_skce_of_draws_splits_draws_between_units_and_means(key):
    mean, _, ys = normals(2)
    samples = mean[:, None] + np.random.default_rng(0).normal(size=(N, 16, 2))
    first, second = samples[:, :8], samples[:, 8:]
    roots = np.stack([root(np.cov(s.T)) for s in first])
    carried = np.linalg.solve(roots[:, None], (second - first.mean(1, keepdims=True))[..., None])
    us = np.linalg.solve(roots, (ys - first.mean(1))[..., None])[..., 0]
    options = {"divergence": Vectors(mean), "target_kernel": Gaussian(1.0), "standardize": False}
    plain = skce(key, Draws(carried[..., 0]), us, **options)
    close(skce(key, Draws(samples), ys, whiten=Moments(), **options).unbiased, plain.unbiased)


@pytest.mark.slow
@pytest.mark.parametrize(
    "make",
    [
        lambda mean: dist.Laplace(mean[:, 0], 2.0),
        lambda mean: dist.MixtureSameFamily(
            dist.Categorical(jnp.full((N, 2), 0.5)),
            dist.Normal(jnp.stack([mean[:, 0], mean[:, 0] + 3], axis=1), 1.0),
        ),
    ],
    ids=["laplace", "mixture"],
)
def test_distributions_are_carried_along_in_closed_form(make, key):
    """Against draws of the same predictions, carried along by the map."""
    predictions = make(jnp.asarray(normals(2)[0]))
    law = distribution_of(predictions)
    center, deviation = (np.asarray(part) for part in (law_moments(law)))
    units = Units(jnp.zeros(1), jnp.ones(1))
    units_of_each = OwnUnits(units, jnp.asarray(center), jnp.asarray(deviation)[..., None])
    carried = distribution_of(Standardized(predictions, units_of_each, ()))
    mean, variance = law_moments(carried)
    close(mean, np.zeros((N, 1)))
    close(variance, np.ones((N, 1)))
    ts = jnp.asarray(np.random.default_rng(0).normal(size=(N, 4, 1)))
    close(units_of_each.points(units_of_each.original(ts)), ts)


def law_moments(law):
    moments = mean_and_covariance(law)
    return moments.mean, jnp.sqrt(moments.cov[:, 0])


def test_classes_have_no_units_and_locations_share_theirs(key):
    with pytest.raises(ValueError, match="whiten: class probabilities"):
        skce(key, np.full((N, 2), 0.5), np.arange(N) % 2, whiten=Moments())
    with pytest.raises(ValueError, match="whiten: locations"):
        ucme_test(key, dist.Normal(jnp.zeros(N), 1.0), np.arange(N) / 3, whiten=Moments())


@pytest.mark.slow
def test_coordinates_of_full_scales_are_those_of_the_targets(key):
    """Component q by its definition: derivatives along y_q of l(M^-1 (y - c), ..), by autodiff, in
    claimed deviations; and their sum is the statistic."""
    mean, covariance, ys = normals(2)
    bandwidth = 1.3
    whitener = Moments(mean, covariance)
    options = {"target_kernel": Gaussian(bandwidth), "prediction_kernel": Constant()}
    result = kccsd_test(
        key,
        energies(mean, covariance),
        ys,
        whiten=whitener,
        coordinates=True,
        null=QUICK,
        **options,
    )
    deviations = np.sqrt(np.diagonal(covariance, axis1=1, axis2=2))
    scale = [root(one) for one in covariance]
    inverse, scores = (
        np.linalg.inv(scale),
        np.linalg.solve(covariance, (mean - ys)[..., None])[..., 0],
    )

    def kernel(y, z, i, j):
        gap = i[1] @ (y - i[0]) - j[1] @ (z - j[0])
        return jnp.exp(-gap @ gap / (2 * bandwidth**2))

    @jax.jit
    def components(y, z, s, t, i, j):
        value = kernel(y, z, i, j)
        one, two = jax.grad(kernel, argnums=(0, 1))(y, z, i, j)
        both = jnp.diagonal(jax.jacfwd(jax.grad(kernel), argnums=1)(y, z, i, j))
        return value * s * t + s * two + t * one + both

    wanted = sum(
        deviations[i] * deviations[j] * components(
            ys[i], ys[j], scores[i], scores[j], (mean[i], inverse[i]), (mean[j], inverse[j])
        )
        for i in range(N) for j in range(N) if i != j
    ) / (N * (N - 1))  # fmt: skip
    close(result.coordinates.estimate, wanted)
    close(jnp.sum(result.coordinates.estimate), result.estimate)


@pytest.mark.parametrize(("degrees", "factor"), [(4.0, 2**0.5), (1.5, 1.0)])
def test_moments_of_a_student_t_are_its_covariance(degrees, factor):
    """numpyro calls its scale matrix covariance_matrix; it is used where there is no covariance."""
    predictions = dist.MultivariateStudentT(degrees, jnp.zeros((5, 2)), jnp.eye(2))
    units = Standardized(predictions, Units(jnp.zeros(2), jnp.ones(2)), (2,))
    np.testing.assert_allclose(Moments().fit(units, None).scale[0], factor * np.eye(2), atol=1e-6)
