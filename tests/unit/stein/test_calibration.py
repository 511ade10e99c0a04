"""KCCSD against a dense oracle, its invariances, and its life under jit, vmap and grad."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import oracles
import pytest
from quick import quick_first
from reference.nulls import Bound, Gamma, Multinomial, Spectrum

import jaxcal
from jaxcal import kccsd, kccsd_test, kcsd_test
from jaxcal.divergences import Vectors
from jaxcal.kernels import IMQ, Constant, Gaussian, Laplace, Matern52
from jaxcal.nulls import BlockNormal, DependentWild, HadamardWild, Wild
from jaxcal.read import precisions as preconditioners

close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-11)
QUICK = Wild(19)


def gaussian_density(params, y):
    mean, deviation = params
    return -jnp.sum(((y - mean) / deviation) ** 2) / 2


def gaussian_scores(params, ys):
    mean, deviation = params
    return -(ys - mean) / deviation**2


def data(n=14, d=2, m=5, shift=0.5, seed=0):
    """Parameters of n Gaussian predictions, targets and base points, far from standard units."""
    rng = np.random.default_rng(seed)
    mean = 3 + 2 * rng.normal(size=(n, d))
    deviation = rng.uniform(0.5, 2, size=(n, d))
    ys = mean + deviation * rng.normal(size=(n, d)) + shift
    nodes = 3 + 2 * rng.normal(size=(m, d))
    return (mean, deviation), ys, nodes


def precondition(form, z, scores):
    """M_p by regressing each prediction's scores on the base points, in NumPy."""
    z = z - z.mean(0)
    slopes = []
    for s in scores:
        s = s - s.mean(0)
        if form == "isotropic":
            slopes.append(-np.sum(z * s) / np.sum(z**2))
        elif form == "diagonal":
            slopes.append([-z[:, q] @ s[:, q] / (z[:, q] @ z[:, q]) for q in range(z.shape[1])])
        else:
            slope = -np.linalg.solve(z.T @ z, z.T @ s)
            slopes.append((slope + slope.T) / 2)
    slopes = np.array(slopes)
    d = z.shape[1]
    if form != "full":
        return [np.eye(d) * np.asarray(a) ** -0.5 for a in slopes]
    roots = []
    for slope in slopes:
        values, vectors = np.linalg.eigh(slope)
        roots.append(vectors @ np.diag(values**-0.5) @ vectors.T)
    return roots


def dense_h(params, ys, nodes, *, standardize=True, form=None, target=None, prediction=None):
    """[d, n, n] components of H from the equations: Gaussian kernels, GFD from given points."""
    n, d = ys.shape
    center, scale = (ys.mean(0), ys.std(0)) if standardize else (np.zeros(d), np.ones(d))
    ts = (ys - center) / scale
    scores = gaussian_scores(params, ys) * scale
    at_nodes = np.stack([gaussian_scores([p[i] for p in params], nodes) * scale for i in range(n)])
    phi = at_nodes.reshape(n, -1) / np.sqrt(len(nodes))
    k = oracles.gram(oracles.gaussian, prediction or oracles.median_distance(phi), phi)
    ms = None if form is None else precondition(form, (nodes - center) / scale, at_nodes)
    length = target or oracles.median_distance(ts)
    return k * oracles.stein_matrix(oracles.gaussian, length, ts, scores, ms)


def model(params):
    return jaxcal.Unnormalized(gaussian_density, jax.tree.map(jnp.asarray, tuple(params)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("form", "d"),
    quick_first(
        [(None, 1), (None, 2), ("isotropic", 2), ("diagonal", 2), ("full", 2)],
        [(None, 2), ("diagonal", 2), ("full", 2)],
    ),
)
def test_statistic_is_the_equation(form, d, key):
    params, ys, nodes = data(d=d)
    result = kccsd_test(key, model(params), ys, base_measure=nodes, precondition=form, null=QUICK)
    h = dense_h(params, ys, nodes, form=form).sum(0)
    close(result.estimate, oracles.u_statistic(h))
    close(result.biased, oracles.v_statistic(h))
    close(result.contributions, (h.sum(1) - np.diag(h)) / (14 * 13))
    both = kccsd(key, model(params), ys, base_measure=nodes, precondition=form)
    close(both.unbiased, result.estimate)
    close(both.biased, result.biased)


def test_given_bandwidths_are_in_the_units_of_the_targets(key):
    params, ys, nodes = data()
    result = kccsd_test(
        key, model(params), ys, base_measure=nodes, null=QUICK, standardize=False,
        target_kernel=Gaussian(1.7), prediction_kernel=Gaussian(0.9),
    )  # fmt: skip
    h = dense_h(params, ys, nodes, standardize=False, target=1.7, prediction=0.9).sum(0)
    close(result.estimate, oracles.u_statistic(h))
    assert result.bandwidths == {}


def test_reported_bandwidths_are_median_distances(key):
    params, ys, nodes = data()
    result = kccsd_test(key, model(params), ys, base_measure=nodes, null=QUICK)
    scale = ys.std(0)
    scores = np.stack([gaussian_scores([p[i] for p in params], nodes) * scale for i in range(14)])
    close(result.bandwidths["target"], oracles.median_distance(ys / scale))
    close(
        result.bandwidths["prediction"],
        oracles.median_distance(scores.reshape(14, -1) / np.sqrt(5)),
    )


@pytest.mark.slow
def test_every_kind_of_prediction_gives_the_same_result(key):
    params, ys, nodes = data()
    mean, deviation = map(jnp.asarray, params)

    class Own(eqx.Module):
        mean: jax.Array

        def scores(self, ys):
            return gaussian_scores((self.mean, deviation), ys)

    at_nodes = np.stack([gaussian_scores([p[i] for p in params], nodes) for i in range(14)])
    kinds = [
        model(params),
        dist.Normal(mean, deviation).to_event(1),
        dist.MultivariateNormal(mean, scale_tril=jax.vmap(jnp.diag)(deviation)),
        Own(mean),
        jaxcal.Scores(gaussian_scores(params, ys), at_nodes, nodes),
    ]
    wanted = dense_h(params, ys, nodes, form="diagonal").sum(0)
    for kind in kinds:
        base = None if isinstance(kind, jaxcal.Scores) else nodes
        got = kccsd_test(key, kind, ys, base_measure=base, precondition="diagonal", null=QUICK)
        close(got.estimate, oracles.u_statistic(wanted))


@pytest.mark.slow
def test_scalar_and_structured_targets_are_flattened(key):
    params, ys, nodes = data(d=1)
    flat = [a[:, 0] for a in params]
    one = kccsd_test(key, model(flat), ys[:, 0], base_measure=nodes[:, 0], null=QUICK)
    close(one.estimate, oracles.u_statistic(dense_h(params, ys, nodes).sum(0)))
    normal = dist.Normal(*map(jnp.asarray, flat))
    close(
        kccsd_test(key, normal, ys[:, 0], base_measure=nodes[:, 0], null=QUICK).estimate,
        one.estimate,
    )

    params, ys, nodes = data(d=6, m=2)
    shaped = [a.reshape(14, 2, 3) for a in params]
    one = kccsd_test(
        key, model(shaped), ys.reshape(14, 2, 3), base_measure=nodes.reshape(2, 2, 3), null=QUICK
    )
    close(one.estimate, oracles.u_statistic(dense_h(params, ys, nodes).sum(0)))


@pytest.mark.slow
@pytest.mark.parametrize("form", [None, "diagonal"])
def test_coordinates_split_the_statistic(form, key):
    params, ys, nodes = data()
    options = {"base_measure": nodes, "precondition": form, "null": QUICK}
    result = kccsd_test(key, model(params), ys, coordinates=True, **options)
    h = dense_h(params, ys, nodes, form=form)
    split = result.coordinates
    close(split.estimate, [oracles.u_statistic(one) for one in h])
    close(split.estimate.sum(), result.estimate)
    close(split.contributions.sum(1), split.estimate)
    close(split.contributions.sum(0), result.contributions)
    low, high = sorted(np.asarray(split.p_value))
    close(np.sort(split.p_adjusted), sorted([min(1, 2 * low), min(1, max(2 * low, high))]))
    whole = kccsd_test(key, model(params), ys, **options)
    close(whole.estimate, result.estimate)
    close(whole.p_value, result.p_value)


@pytest.mark.slow
def test_one_coordinate_is_the_whole(key):
    params, ys, nodes = data(d=1)
    result = kccsd_test(key, model(params), ys, base_measure=nodes, coordinates=True, null=QUICK)
    close(result.coordinates.estimate, result.estimate[None])
    close(result.coordinates.p_value, result.p_value[None])


def test_order_of_observations_does_not_matter(key):
    params, ys, nodes = data()
    order = np.random.default_rng(1).permutation(14)
    one = kccsd_test(key, model(params), ys, base_measure=nodes, null=Gamma())
    other = kccsd_test(
        key, model([p[order] for p in params]), ys[order], base_measure=nodes, null=Gamma()
    )
    close(other.estimate, one.estimate)
    close(other.p_value, one.p_value)
    close(other.contributions, np.asarray(one.contributions)[order])


SCALES = [(1e-9, 1.0), (1e9, 1e-3), (1.0, 1e6)]


@pytest.mark.parametrize(
    ("form", "dtype"),
    quick_first(
        [(None, np.float64), ("diagonal", np.float64), (None, np.float32)], [(None, np.float64)]
    ),
)
def test_units_do_not_matter(form, dtype, key):
    """Metres or nanometres, Celsius or Kelvin, a coordinate at a time: the same p-value."""
    params, ys, _ = data(n=40, seed=4)
    results = []
    for scale in [(1.0, 1.0), *SCALES]:
        scale = np.array(scale)
        shift = scale * [2.0, -1.0]
        moved = [a.astype(dtype) for a in (params[0] * scale + shift, params[1] * scale)]
        targets = (ys * scale + shift).astype(dtype)
        results.append(kccsd_test(key, model(moved), targets, precondition=form, null=Wild(199)))
    tight = dtype == np.float64
    for other in results[1:]:
        assert other.estimate.dtype == dtype
        close(other.estimate, results[0].estimate, rtol=1e-7 if tight else 2e-3)
        # float32 may move a draw across the statistic, by rounding
        assert abs(float(other.p_value - results[0].p_value)) <= (0 if tight else 2.5 / 200)


@pytest.mark.slow
def test_kcsd_with_inputs_that_identify_the_predictions(key):
    """Means x, equal variances: |s_p - s_q| is |x - x'|, so both kernels are the same."""
    params, ys, nodes = data(d=1, n=30)
    params = (params[0], np.full_like(params[1], 0.8))
    calibration = kccsd_test(key, model(params), ys, base_measure=nodes, null=QUICK)
    conditional = kcsd_test(key, model(params), ys, 7.0 - 3 * params[0], null=QUICK)
    close(conditional.estimate, calibration.estimate)
    close(conditional.p_value, calibration.p_value)
    assert calibration.test != conditional.test


def test_a_mean_shift_in_the_limit_of_linear_features(key):
    # k = 1, Gaussian l, length to infinity: C tends to |a|^2 = 0.34
    n, shift = 600, np.array([0.5, -0.3])
    rng = np.random.default_rng(6)
    x = rng.normal(size=(n, 2))
    ys = x + rng.normal(size=(n, 2))
    got = kccsd_test(
        key, model((x + shift, np.ones((n, 2)))), ys, prediction_kernel=Constant(),
        target_kernel=Gaussian(1e4), standardize=False, null=QUICK,
    )  # fmt: skip
    s = x + shift - ys
    off = s @ s.T - np.diag(np.sum(s**2, 1))
    np.testing.assert_allclose(got.estimate, off.sum() / (n * (n - 1)), rtol=1e-4)
    # the mean of n scores has variance 1 / n a coordinate: twice |a| / sqrt(n)
    assert abs(float(got.estimate) - 0.34) < 4 * 2 * 0.34**0.5 / n**0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    "null",
    [
        QUICK,
        HadamardWild(19),
        DependentWild(19),
        Multinomial(19),
        Spectrum(19),
        Gamma(),
        BlockNormal(),
        Bound(1e3),
    ],
    ids=lambda null: type(null).__name__,
)
def test_results_are_reproducible_and_contributions_sum_to_them(null, key):
    params, ys, nodes = data()
    one, again = (
        kccsd_test(key, model(params), ys, base_measure=nodes, null=null) for _ in range(2)
    )
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(a, b)
    close(one.contributions.sum(), one.estimate)
    assert one.null == type(null).__name__
    assert 0 < float(one.p_value) <= 1


@pytest.mark.slow
def test_tiles_change_nothing(key):
    params, ys, nodes = data()
    one = kccsd_test(key, model(params), ys, base_measure=nodes, null=QUICK)
    other = kccsd_test(key, model(params), ys, base_measure=nodes, null=QUICK, tile=6)
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        close(a, b)


class Counting:
    """A log density that counts how often it is traced."""

    def __init__(self):
        self.traces = 0

    def __call__(self, params, y):
        self.traces += 1
        return gaussian_density(params, y)


@pytest.mark.slow
@pytest.mark.usefixtures("programs_stay")
def test_one_compilation_a_shape(key):
    density = Counting()

    def run(seed, bandwidth, n=14, b=19):
        (mean, deviation), ys, nodes = data(n=n, seed=seed)
        predictions = jaxcal.Unnormalized(density, (jnp.asarray(mean), jnp.asarray(deviation)))
        return kccsd_test(
            jax.random.key(seed), predictions, ys, target_kernel=IMQ(bandwidth),
            prediction_kernel=Gaussian(bandwidth), base_measure=nodes, null=Wild(b),
        )  # fmt: skip

    run(0, 0.5)
    checks_cost = density.traces
    run(1, 0.7)  # the shape check traces abstractly on every call, the program does not
    again = density.traces - checks_cost
    assert again < checks_cost
    run(2, 1.9)
    assert density.traces == checks_cost + 2 * again
    run(3, 1.9, n=15)
    assert density.traces >= 2 * checks_cost + 2 * again


@pytest.mark.slow
def test_jit_and_vmap_over_data_sets(key):
    params, ys, nodes = data()
    more = np.stack([ys, ys + 0.3, 2 * ys])

    def run(ys):
        return kccsd_test(key, model(params), ys, base_measure=nodes, null=QUICK)

    many = jax.jit(jax.vmap(run))(jnp.asarray(more))
    assert many.p_value.shape == (3,)
    for k in range(3):
        alone = run(more[k])
        close(many.estimate[k], alone.estimate)
        close(many.p_value[k], alone.p_value)
        close(many.contributions[k], alone.contributions)


@pytest.mark.slow
def test_vmap_over_keys(key):
    params, ys, nodes = data()
    keys = jax.random.split(key, 3)
    run = partial(kccsd_test, predictions=model(params), targets=ys, base_measure=nodes, null=QUICK)
    many = jax.vmap(run)(keys)
    for k in range(3):
        alone = run(keys[k])
        close(many.estimate[k], alone.estimate)
        close(many.p_value[k], alone.p_value)


@pytest.mark.slow
def test_vmap_over_models(key):
    params, ys, nodes = data()
    means = jnp.stack([params[0], params[0] + 1.0, params[0] * 0.5])

    def run(mean):
        return kccsd_test(key, model((mean, params[1])), ys, base_measure=nodes, null=QUICK)

    def run_numpyro(mean):
        normal = dist.Normal(mean, jnp.asarray(params[1])).to_event(1)
        return kccsd_test(key, normal, ys, base_measure=nodes, null=QUICK)

    many = jax.vmap(run)(means)
    for k in range(3):
        close(many.estimate[k], run(means[k]).estimate)
        close(many.p_value[k], run(means[k]).p_value)
    close(jax.vmap(run_numpyro)(means).estimate, many.estimate)


@pytest.mark.slow
def test_vmap_over_bandwidths(key):
    params, ys, nodes = data()
    lengths = jnp.asarray([0.3, 1.0, 4.0])

    def run(length):
        return kccsd_test(
            key, model(params), ys, base_measure=nodes, null=QUICK, target_kernel=IMQ(length)
        )

    many = jax.vmap(run)(lengths)
    for k in range(3):
        close(many.estimate[k], run(lengths[k]).estimate)
        close(many.p_value[k], run(lengths[k]).p_value)


@pytest.mark.slow
@pytest.mark.parametrize("standardize", quick_first([True, False], [True]))
def test_gradient_in_the_parameters_is_the_slope(standardize, key):
    params, ys, nodes = data()

    @jax.jit
    def estimate(params):
        return kccsd(
            key, model(params), ys, base_measure=nodes, standardize=standardize,
            target_kernel=Gaussian(1.1), prediction_kernel=Gaussian(1.3),
        ).unbiased  # fmt: skip

    params = tuple(map(jnp.asarray, params))
    slope = jax.jit(jax.grad(estimate))(params)
    rng = np.random.default_rng(2)
    step = tuple(jnp.asarray(rng.normal(size=p.shape)) for p in params)
    moved = [tuple(p + e * s for p, s in zip(params, step, strict=True)) for e in (1e-6, -1e-6)]
    difference = (estimate(moved[0]) - estimate(moved[1])) / 2e-6
    along = sum(jnp.vdot(a, b) for a, b in zip(slope, step, strict=True))
    np.testing.assert_allclose(along, difference, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kernel", "form"), [(Gaussian(), "diagonal"), (Matern52(), None), (Laplace(), None)], ids=str
)
def test_gradients_are_finite_for_equal_predictions_and_targets(kernel, form, key):
    params, ys, _ = data()
    same = tuple(jnp.asarray(np.broadcast_to(p[:1], p.shape)) for p in params)
    pairs = tuple(jnp.asarray(np.repeat(p[:7], 2, axis=0)) for p in params)
    doubled = np.repeat(ys[:7], 2, axis=0)

    @jax.jit
    @jax.grad
    def slope(params):
        return kccsd(key, model(params), doubled, prediction_kernel=kernel, precondition=form)[0]

    for params in (same, pairs):
        assert all(np.all(np.isfinite(leaf)) for leaf in slope(params))


@pytest.mark.parametrize("null", [Wild(1), BlockNormal(6)], ids=["quadratic", "blocks"])
def test_standard_error_is_the_spread_over_data_sets(null):
    """At a fixed alternative, with everything fixed but the data."""
    n, sets = 60, 600

    def one(key):
        x_key, y_key = jax.random.split(key)
        x = jax.random.normal(x_key, (n, 1))
        ys = x + jax.random.normal(y_key, (n, 1))
        result = kccsd_test(
            key, model((x + 0.7, jnp.ones((n, 1)))), ys, standardize=False,
            base_measure=jnp.zeros((1, 1)), target_kernel=Gaussian(1.5),
            prediction_kernel=Gaussian(1.5), null=null,
        )  # fmt: skip
        return result.estimate, result.standard_error

    estimates, errors = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(5), sets))
    spread = np.std(estimates, ddof=1)
    # the spread of 600 values is known to 1 / sqrt(1200) = 3 %; the error is a little too large
    # in small samples, by (n - 1) / (n - 2) and the variance of h about its projection
    assert 0.9 < np.mean(errors) / spread < 1.25


class TestPreconditioner:
    def test_for_gaussians_it_is_the_inverse_root_of_the_precision(self):
        rng = np.random.default_rng(7)
        n, m, d = 9, 5, 3
        z = rng.normal(size=(m, d)) + 1
        a = rng.normal(size=(n, d, d))
        precision = a @ np.swapaxes(a, 1, 2) + 0.3 * np.eye(d)
        mean = rng.normal(size=(n, d))

        def roots(precision):
            values, vectors = np.linalg.eigh(precision)
            return np.einsum("nij,nj,nkj->nik", vectors, values**-0.5, vectors)

        def fitted_root(precision, form):
            scores = -np.einsum("nij,nmj->nmi", precision, z - mean[:, None])
            at, of = jnp.asarray(z), jnp.asarray(scores)
            values, clamped = preconditioners.precision_root(at, of, form)
            assert int(clamped) == 0
            return values

        close(fitted_root(precision, "full"), roots(precision))
        diagonal = np.einsum("nii->ni", precision)[:, :, None] * np.eye(d)
        close(fitted_root(diagonal, "diagonal"), np.einsum("nii->ni", roots(diagonal)))
        close(fitted_root(diagonal, "full"), roots(diagonal))
        number = precision[:, :1, :1] * np.eye(d)
        close(fitted_root(number, "isotropic"), precision[:, 0, 0] ** -0.5)

    @pytest.mark.slow
    def test_it_knows_nothing_of_the_targets(self, key):
        params, ys, nodes = data()
        moved = ys + np.random.default_rng(0).normal(size=ys.shape)
        for form in ("diagonal", "full"):
            # in fixed units the statistic for other targets is the equation with the same M
            got = kccsd_test(
                key, model(params), moved, base_measure=nodes, precondition=form, standardize=False,
                null=QUICK,
            )  # fmt: skip
            h = dense_h(params, moved, nodes, form=form, standardize=False).sum(0)
            close(got.estimate, oracles.u_statistic(h))

    @pytest.mark.slow
    @pytest.mark.parametrize("form", ["isotropic", "diagonal", "full"])
    def test_slopes_that_are_no_precision_are_clamped_and_counted(self, form, key):
        rng = np.random.default_rng(8)
        z = rng.normal(size=(6, 2))
        precision = np.ones((10, 2))
        precision[2] = -1.0  # widens: gets the typical precision
        precision[5] = 1e9  # far from the others
        precision[7] = 1e-9
        scores = -precision[:, None] * z
        values, clamped = preconditioners.precision_root(jnp.asarray(z), jnp.asarray(scores), form)
        assert int(clamped) == 3
        values = np.einsum("nii->ni", values) if form == "full" else values
        wanted = np.ones(10)
        wanted[[5, 7]] = 1e-2, 1e2
        close(
            np.asarray(values).reshape(10, -1).T,
            np.broadcast_to(wanted, (1 if form == "isotropic" else 2, 10)),
        )

        ys = rng.normal(size=(10, 2))
        scores_at = jaxcal.Scores(-precision * ys, scores, z)
        result = kccsd_test(key, scores_at, ys, precondition=form, standardize=False, null=QUICK)
        assert int(result.notes["clamped-scales"]) == 3
        assert "3 predictions" in str(result)
        assert "clamped" in str(result)
        assert np.isfinite(result.p_value)

    @pytest.mark.slow
    def test_it_needs_enough_base_points(self, key):
        rng = np.random.default_rng(9)
        for form, least in (("isotropic", 2), ("diagonal", 2), ("full", 4)):
            z, scores = (jnp.asarray(rng.normal(size=s)) for s in ((least, 3), (5, least, 3)))
            preconditioners.precision_root(z, scores, form)
            with pytest.raises(ValueError, match="n_nodes"):
                preconditioners.precision_root(z[1:], scores[:, 1:], form)
        params, ys, _ = data()
        with pytest.raises(ValueError, match="n_nodes"):
            kccsd_test(key, model(params), ys, precondition="full", n_nodes=2)


@pytest.mark.slow
def test_user_embedding_as_distance(key):
    params, ys, _ = data()
    phi = jnp.asarray(np.random.default_rng(3).normal(size=(14, 3)))
    result = kccsd_test(
        key, model(params), ys, divergence=Vectors(phi), standardize=False, null=QUICK,
        prediction_kernel=IMQ(1.2), target_kernel=Matern52(0.9),
    )  # fmt: skip
    k = oracles.gram(oracles.imq(0.5), 1.2, np.asarray(phi))
    h = oracles.stein_matrix(oracles.matern52, 0.9, ys, gaussian_scores(params, ys)).sum(0)
    close(result.estimate, oracles.u_statistic(k * h))


@pytest.mark.slow
def test_a_kernel_of_the_user_on_targets(key):
    params, ys, _ = data()
    phi = jnp.asarray(np.random.default_rng(3).normal(size=(14, 3)))

    def own(x, y):
        return jnp.exp(-jnp.sum((x - y) ** 2) / 2 / 1.3**2)

    options = {"divergence": Vectors(phi), "null": QUICK}
    one = kccsd_test(key, model(params), ys, target_kernel=own, **options)
    other = kccsd_test(key, model(params), ys, target_kernel=Gaussian(1.3), **options)
    close(one.estimate, other.estimate)
    close(one.p_value, other.p_value)
