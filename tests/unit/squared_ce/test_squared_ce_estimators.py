"""Every estimator against its equation in NumPy, golden numbers, and its limits."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from reference.calibration_functions import diagonal, fit_one, gram
from reference.classifiers import squared_confidence, temperature_residual, tempered_dirichlet
from reference.kernel_density import dirichlet, leave_one_out_error, likelihood_bandwidth
from reference.parametric import Parametric, Zero
from squared_ce_oracles import (
    EVAL,
    EVAL_LABELS,
    TRAIN,
    TRAIN_LABELS,
    density_ratio,
    kronecker_ridge,
    rbf,
    two_step_residual,
)

from jaxcal.kernels import Gaussian, Laplace
from jaxcal.kernels.grams import gram as gram_matrix
from jaxcal.squared_ce.binning import Bins, bin_numbers
from jaxcal.squared_ce.functions import at_data, candidate, on_edge
from jaxcal.squared_ce.kde import KernelDensity, on_simplex
from jaxcal.squared_ce.kernel_ridge import KernelRidge, spectral
from jaxcal.squared_ce.reductions import binary, canonical, top_label

Kronecker = partial(KernelRidge, kronecker=True)

TRAINING = canonical(TRAIN, TRAIN_LABELS)
EVALUATION = canonical(EVAL, EVAL_LABELS)
UPPER = np.triu_indices(3)


def kkr(*multipliers, power=2, **options):  # power 2: the paper's lambda
    return Kronecker(multipliers, **options, power=power)


def ukkr(*multipliers, power=1, **options):
    return KernelRidge(multipliers, **options, power=power)


@eqx.filter_jit
def factors_at(fitted, problem):
    features = fitted.features(problem.inputs)
    return jax.lax.map(lambda setting: fitted.factors(features, setting), fitted.settings)


def diagonals(fitted, problem):
    left, right = factors_at(fitted, problem)
    return jnp.sum(left * right, axis=-1)


def residuals_at(fitted, problem):
    return factors_at(fitted, problem).left


GOLDEN = [
    (
        kkr(0.1, 0.001),
        [
            [-0.0056485493, 0.0185430504, 0.0335482235, 0.0536633087, 0.0695642404, 0.0838360173],
            [-0.0304383554, -0.0520773143, -0.0093445045, 0.0732091788, 0.2657059891, 0.5556586978],
        ],
        [0.0409087572, 0.0876480171],
        [0.0439502589, 0.1994765070],
    ),
    (
        ukkr(0.1, 0.001),
        [
            [0.0028751949, 0.0117314104, 0.0168906847, 0.0514435985, 0.0718957398, 0.1017059698],
            [0.0807819325, -0.0445450968, -0.3127819196, 0.0706704719, 0.2557398893, 1.3614355355],
        ],
        [0.0437829183, 0.1762994672],
        [0.0520082544, 0.5042959800],
    ),
    (
        KernelDensity((0.1, 0.5)),
        [
            [0.0226120946, -0.0492629722, -0.0480428840, 0.1268966287, 0.2302195698, 0.9074959006],
            [0.0360522526, 0.0265806427, 0.0457509163, 0.0207953190, 0.0520873082, 0.3393338156],
        ],
        [0.0865007691, 0.0369385073],
        [0.3523348746, 0.1320604624],
    ),
    (Zero(), [[0.0] * 6], [0.0374083333], [0.0]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("estimator", "values", "risk", "mean"), GOLDEN, ids=lambda v: str(v)[:4])
def test_golden_numbers(estimator, values, risk, mean):
    fitted = estimator.fit(TRAINING, [])
    seen = at_data(fitted, EVALUATION)
    np.testing.assert_allclose(jnp.mean(seen.rows, axis=1), risk, rtol=2e-9)
    own = diagonals(fitted, EVALUATION)
    np.testing.assert_allclose(jnp.mean(own, axis=1), mean, rtol=2e-9, atol=1e-15)
    for i, wanted in enumerate(values):
        h = np.asarray(gram(candidate(fitted, i), EVALUATION.inputs, EVALUATION.inputs))
        np.testing.assert_allclose(h, h.T, atol=1e-12)
        np.testing.assert_allclose(h[UPPER], wanted, rtol=2e-8, atol=1e-10)
        np.testing.assert_allclose(own[i], np.diag(h), atol=1e-12)
    assert seen.finite.all()
    if fitted.is_product:
        residuals = residuals_at(fitted, EVALUATION)
        products = jnp.einsum("cid,cjd->cij", residuals, residuals)
        np.testing.assert_allclose(products[-1], h, atol=1e-12)


# --- bins

CONFIDENCES = np.array([0.55, 0.62, 0.70, 0.81, 0.93, 0.97])
CORRECT = np.array([1, 0, 1, 1, 1, 0])
SCALAR = binary(CONFIDENCES, CORRECT)


def plug_in(estimator, problem):
    return float(jnp.mean(diagonal(fit_one(estimator, problem), problem.inputs)))


@pytest.mark.slow
def test_bins_of_the_small_example():
    settings = Bins(5).fit(SCALAR, []).settings
    which = bin_numbers(SCALAR.inputs[:, 0], settings.edges[0], settings.counts[0])
    np.testing.assert_array_equal(which, [2, 3, 3, 4, 4, 4])
    np.testing.assert_allclose(settings.residuals[0, 2:], [-0.45, 0.16, 0.2366666667], rtol=1e-9)
    assert plug_in(Bins(5), SCALAR) == pytest.approx(0.0702888889, rel=1e-8)
    assert plug_in(Bins(5, debiased=True), SCALAR) == pytest.approx(-0.10235, rel=1e-5)
    assert plug_in(Bins(edges=(0, 0.2, 0.4, 0.6, 0.8, 1)), SCALAR) == pytest.approx(0.0702888889)


@pytest.mark.slow
def test_one_bin_is_mean_confidence_minus_accuracy():
    residuals = residuals_at(Bins((1, 2, 5, 15)).fit(SCALAR, []), SCALAR)
    gap = CONFIDENCES.mean() - CORRECT.mean()
    np.testing.assert_allclose(residuals[0, :, 0], gap, rtol=1e-12)
    for i, count in enumerate((1, 2, 5, 15)):
        alone = residuals_at(Bins(count).fit(SCALAR, []), SCALAR)
        np.testing.assert_allclose(residuals[i], alone[0], rtol=1e-12)


def test_confidences_0_and_1_are_in_outer_right_closed_bins():
    edges = jnp.linspace(0, 1, 6)
    which = bin_numbers(jnp.array([0.0, 0.2, 0.2000001, 0.8, 1.0]), edges, jnp.asarray(5))
    np.testing.assert_array_equal(which, [0, 0, 1, 3, 4])
    hundred = jnp.asarray(np.linspace(0, 1, 101))
    # 0.07 * 100 is 7.000000000000001, but 0.07 is an edge
    assert int(bin_numbers(jnp.array([0.07]), hundred, jnp.asarray(100))[0]) == 6


def test_empty_bins_follow_their_policy():
    fresh = jnp.array([[0.1], [0.95]])
    gap = CONFIDENCES.mean() - CORRECT.mean()
    for empty, wanted in [(None, gap), (0.0, 0.0)]:
        result = fit_one(Bins(5, empty=empty), SCALAR).factors(fresh).left[:, 0]
        np.testing.assert_allclose(result, [wanted, 0.2366666667], rtol=1e-9)


@pytest.mark.slow
def test_bins_of_equal_mass_hold_equally_many():
    for n, bins in ((1000, 10), (4, 2), (10, 5), (11, 5), (23, 7), (101, 50)):
        problem = squared_confidence(jax.random.key(1), n)
        settings = Bins(bins, equal_mass=True).fit(problem, []).settings
        which = bin_numbers(problem.inputs[:, 0], settings.edges[0], settings.counts[0])
        counts = np.bincount(np.asarray(which), minlength=bins)
        assert np.ptp(counts) <= 1, (n, bins)
    ties = binary(np.r_[np.full(90, 0.5), np.linspace(0.6, 0.9, 10)], np.zeros(100, int))
    assert np.isfinite(plug_in(Bins(10, equal_mass=True), ties))


@pytest.mark.parametrize(
    ("count", "root"), [(1, 0.1666667), (2, 0.1666667), (5, 0.1796045), (15, 0.1822370)]
)
def test_bins_with_infinite_data_have_their_closed_form(count, root):
    n = 20_000
    c = (np.arange(n) + 0.5) / n  # expected outcomes instead of drawn ones
    problem = binary(c, np.zeros(n, int))
    object.__setattr__(problem, "outcomes", problem.inputs**2)
    assert plug_in(Bins(count), problem) ** 0.5 == pytest.approx(root, abs=1e-6)


@pytest.mark.slow
def test_the_debiased_form_has_less_bias_where_nothing_is_wrong():
    def one(key):
        c_key, z_key = jax.random.split(key)
        c = jax.random.uniform(c_key, (100,))
        problem = squared_confidence(c_key, 2)
        outcomes = (jax.random.uniform(z_key, (100,)) < c).astype(c.dtype)
        problem = type(problem)(c[:, None], outcomes[:, None], "binary")
        fits = [Bins(10, debiased=flag).fit(problem, []) for flag in (False, True)]
        return jnp.stack([jnp.mean(diagonals(fit, problem)) for fit in fits])

    result = jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), 2000))
    plain, debiased = jnp.mean(result, axis=0)
    error = jnp.std(result, axis=0) / 2000**0.5
    assert plain > 0.01  # about sum of c (1 - c) / n_b = 10 / 100 / 6
    # bins without a second point take no part, and confidences vary inside a bin: small, not 0
    assert abs(float(debiased)) < 4 * float(error[1]) + 0.05 * float(plain)


@pytest.mark.usefixtures("as_users_run_it")
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Bins(0), "counts: wanted a whole number of at least 1"),
        (lambda: Bins((5, 2.5)), "counts: wanted a whole number of at least 1"),
        (lambda: Bins(()), "counts: wanted at least one"),
        (lambda: Bins(edges=(0.1, 1)), "edges: wanted at least two, from 0"),
        (lambda: Bins(edges=(0, 0.5, 0.5, 1)), "edges: wanted increasing"),
        (lambda: Bins(5).fit(TRAINING, []), "bins divide confidences"),
        (lambda: KernelDensity((0.1, -1)), "bandwidths: wanted positive, finite numbers"),
        (lambda: KernelDensity(()), "bandwidths: wanted positive"),
        (lambda: Kronecker((0.0,)), "ridges: wanted positive"),
        (lambda: Kronecker(rank=0), "rank: wanted a whole number of at least 1"),
        (lambda: KernelRidge(kernels=Gaussian()), "kernels: Gaussian has no bandwidth"),
        (lambda: KernelRidge(kernels=()), "kernels: wanted at least one"),
        (lambda: Parametric(temperature_residual, [np.nan]), "thetas: wanted finite"),
        (lambda: fit_one(Bins((5, 10)), SCALAR), "5 bins has|bins has 2 candidates"),
    ],
)
def test_bad_options_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# --- density ratios


def test_dirichlet_kernels_and_ratios_of_the_small_example():
    result = dirichlet(EVALUATION.inputs, TRAINING.inputs, 0.5)
    golden = [
        (4.5218422963, 1.8596799455, 0.3549757905, 3.1486119681),
        (1.7027119181, 2.8678370264, 3.7728735028, 2.5715392262),
        (0.5933355561, 3.2119774696, 0.8908648732, 1.9516034092),
    ]
    np.testing.assert_allclose(result, golden, rtol=1e-9)
    wanted = scipy.stats.dirichlet(TRAIN[0] / 0.5 + 1).pdf(EVAL[0])
    assert float(result[0, 0]) == pytest.approx(wanted)
    h = fit_one(KernelDensity(0.5), TRAINING)
    ratio = EVALUATION.inputs - h.factors(EVALUATION.inputs).left
    np.testing.assert_allclose(ratio[0], [0.457439755, 0.3185206809, 0.2240395641], rtol=1e-8)
    for row, query in zip(np.asarray(ratio), EVAL, strict=True):
        np.testing.assert_allclose(
            row, density_ratio(TRAIN, np.eye(3)[TRAIN_LABELS], query, 0.5), rtol=1e-11
        )


@pytest.mark.slow
def test_in_sample_ratios_with_and_without_the_own_term():
    result = jnp.mean(diagonal(fit_one(KernelDensity(0.5), TRAINING), TRAINING.inputs))
    assert float(result) == pytest.approx(0.0514758296, rel=1e-8)
    assert float(leave_one_out_error(TRAINING, 0.5)) == pytest.approx(0.2974958875, rel=1e-8)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_confidences_of_exactly_1_bring_no_nan(dtype):
    train = binary(np.array([1, 0.9, 0.6, 1], dtype), [1, 1, 0, 0])
    queries = jnp.asarray(np.array([[1], [0.7], [0.95]], dtype))
    result = dirichlet(on_simplex(queries), on_simplex(train.inputs), jnp.asarray(0.1, dtype))
    golden = [
        (11, 0, 0, 11),
        (0.310722774, 1.33166903, 2.20133044, 0.310722774),
        (6.58610633, 3.46637175, 0.0106128892, 6.58610633),
    ]
    rtol = 2e-8 if dtype == np.float64 else 1e-4
    np.testing.assert_allclose(result, golden, rtol=rtol)
    ratio = queries - fit_one(KernelDensity(0.1), train).factors(queries).left
    np.testing.assert_allclose(ratio[:, 0], (0.5, 0.39533362, 0.60378155), rtol=rtol)


@pytest.mark.slow
def test_at_the_boundary_the_ratio_is_its_limit():
    # no training point has power 0 at the vertex: naive code has 0 / 0 there
    train = binary([0.9, 0.6, 0.9, 0.2], [1, 1, 0, 0])
    h = fit_one(KernelDensity(0.1), train)
    edge, near = (1 - h.factors(jnp.array([[1 - gap]])).left[0, 0] for gap in (0.0, 1e-13))
    assert float(edge) == 0.5  # the two points at 0.9
    assert float(edge) == pytest.approx(float(near), abs=1e-3)
    vertex = fit_one(KernelDensity(0.2), TRAINING).factors(jnp.array([[1.0, 0.0, 0.0]]))
    approached = jnp.array([[1 - 2e-14, 1e-14, 1e-14]])
    limit = 1.0 * fit_one(KernelDensity(0.2), TRAINING).factors(approached).left
    np.testing.assert_allclose(vertex.left, limit, atol=2e-2)
    assert np.isfinite(float(leave_one_out_error(binary([1.0, 1.0, 0.0], [1, 0, 0]), 1e-4)))


def test_a_wide_kernel_gives_the_class_frequencies():
    result = (
        EVALUATION.inputs - fit_one(KernelDensity(1e9), TRAINING).factors(EVALUATION.inputs).left
    )
    np.testing.assert_allclose(result, np.tile([0.25, 0.25, 0.5], (3, 1)), atol=1e-8)


@pytest.mark.slow
def test_many_observations_are_walked_in_blocks(monkeypatch):
    wanted = diagonals(KernelDensity((0.1, 0.3)).fit(TRAINING, []), EVALUATION)
    monkeypatch.setattr("jaxcal.squared_ce.kde.BLOCK", 8)
    jax.clear_caches()
    result = diagonals(KernelDensity((0.1, 0.3)).fit(TRAINING, []), EVALUATION)
    np.testing.assert_allclose(result, wanted, rtol=1e-12)


@pytest.mark.slow
def test_the_likeliest_bandwidth_is_that_of_a_direct_sum():
    grid = (0.01, 0.05, 0.2, 1.0)
    sample = squared_confidence(jax.random.key(2), 40)
    c = np.asarray(sample.inputs[:, 0])
    scores = []
    for b in grid:
        k = np.array([[scipy.stats.beta(z / b + 1, (1 - z) / b + 1).pdf(p) for z in c] for p in c])
        scores.append(np.sum(np.log(k.sum(1) - np.diag(k))))
    assert float(likelihood_bandwidth(sample, grid)) == grid[int(np.argmax(scores))]
    saturated = binary(np.append(c, 1.0), np.zeros(41, int))
    assert float(likelihood_bandwidth(saturated, grid)) == grid[int(np.argmax(scores))]
    assert np.isnan(likelihood_bandwidth(binary([1.0, 0.0], [0, 1]), grid))


# --- kernel ridges


def small(seed, n, m, d):
    random = np.random.default_rng(seed)
    p = random.dirichlet(np.ones(d), n + m)
    labels = random.integers(0, d, n + m)
    return canonical(p[:n], labels[:n]), canonical(p[n:], labels[n:])


@pytest.mark.parametrize("ridge", [10.0, 0.1, 1e-3])
def test_kkr_is_the_kronecker_system_and_ukkr_the_vector_ridge(ridge):
    train, queries = small(0, 9, 4, 3)
    x, d, q = (np.asarray(a) for a in (train.inputs, train.residuals, queries.inputs))
    result = gram(fit_one(kkr(ridge, power=0), train), queries.inputs, queries.inputs)
    np.testing.assert_allclose(result, kronecker_ridge(x, d, q, ridge), rtol=1e-7, atol=1e-10)
    residual = fit_one(ukkr(ridge, power=0), train).factors(queries.inputs).left
    np.testing.assert_allclose(residual, two_step_residual(x, d, q, ridge), rtol=1e-8, atol=1e-11)


@pytest.mark.slow
def test_other_kernels_and_several_at_once():
    train, queries = small(1, 8, 3, 3)
    x, d, q = (np.asarray(a) for a in (train.inputs, train.residuals, queries.inputs))
    kernels = (Gaussian(0.3), Laplace(1.0), linear)

    def laplace(xs, ys):
        return np.exp(-np.sqrt(((xs[:, None] - ys[None]) ** 2).sum(-1)))

    plain = (lambda xs, ys: rbf(xs, ys, 0.5 / 0.09), laplace, lambda xs, ys: xs @ ys.T)
    both = [kkr(0.5, 0.01, power=0, kernels=kernels), ukkr(0.5, 0.01, power=0, kernels=kernels)]
    shared = []
    seen = [diagonals(estimator.fit(train, shared), queries) for estimator in both]
    assert len(shared) == 1  # one factorisation for both
    for i, setting in enumerate(both[0].grid(train)):
        k, ridge = plain[int(setting["kernel"])], setting["ridge"]
        h = kronecker_ridge(x, d, q, ridge, k)
        np.testing.assert_allclose(seen[0][i], np.diag(h), rtol=1e-6, atol=1e-9)
        r = two_step_residual(x, d, q, ridge, k)
        np.testing.assert_allclose(seen[1][i], (r**2).sum(1), rtol=1e-6, atol=1e-9)


def linear(x, y):
    return x @ y


@pytest.mark.slow
def test_kkr_without_ridge_on_the_kernel_that_absorbs_it_is_ukkr():
    train, queries = small(2, 7, 3, 3)
    x, d, q = (np.asarray(a) for a in (train.inputs, train.residuals, queries.inputs))
    ridge = 0.3

    def absorbed(xs, ys):
        return rbf(xs, ys) + ridge * (len(xs) == len(ys)) * np.eye(len(xs), len(ys))

    h = gram(fit_one(ukkr(ridge, power=0), train), queries.inputs, queries.inputs)
    np.testing.assert_allclose(kronecker_ridge(x, d, q, 0.0, absorbed), h, atol=1e-10)


@pytest.mark.slow
def test_ridges_at_their_limits():
    train, _ = small(3, 8, 2, 3)
    for estimator in (kkr(1e12, power=0), ukkr(1e12, power=0)):
        assert np.all(np.abs(diagonals(estimator.fit(train, []), train)) < 1e-9)
    assert np.all(diagonals(Zero().fit(train, []), train) == 0)
    sharp = Gaussian(0.05)  # a well conditioned matrix
    products = np.asarray(train.residuals @ train.residuals.T)
    for estimator in (kkr(1e-13, kernels=sharp), ukkr(1e-13, kernels=sharp)):
        h = gram(fit_one(estimator, train), train.inputs, train.inputs)
        np.testing.assert_allclose(h, products, atol=1e-8)


def test_kkr_can_be_negative_unlike_residual_products():
    p = np.random.default_rng(4).dirichlet(np.ones(3), 240)
    labels = (np.random.default_rng(5).random((240, 1)) > np.cumsum(p, axis=1)).sum(1)
    train, queries = canonical(p[:40], labels[:40]), canonical(p[40:], labels[40:])
    shared = []
    h = diagonals(kkr(0.001).fit(train, shared), queries)
    assert 0.02 < float(np.mean(np.asarray(h) < 0)) < 0.5
    assert np.all(np.asarray(diagonals(ukkr(0.001).fit(train, shared), queries)) >= 0)
    residual = residuals_at(ukkr(0.001).fit(train, shared), queries)
    assert np.linalg.matrix_rank(np.asarray(residual[0] @ residual[0].T)) <= 3


@pytest.mark.slow
def test_repeated_predictions_are_no_trouble():
    train = top_label(np.tile([[0.9, 0.1], [1.0, 0.0]], (20, 1)), [0, 1] * 20)
    for estimator in (Kronecker(), KernelRidge(), Kronecker(rank=5)):
        seen = at_data(estimator.fit(train, []), train)
        assert seen.finite.all()
    # at 0.9 all are right, at 1 all are wrong
    best = residuals_at(ukkr(1e-8, power=0).fit(train, []), train)[0, :2, 0]
    np.testing.assert_allclose(best, [-0.1, 1.0], atol=1e-5)


@pytest.mark.parametrize(("kind", "power"), [(Kronecker, 1.5), (KernelRidge, 0.75)])
def test_ridges_are_multipliers_times_a_power_of_n(kind, power):
    fitted = kind((0.1, 1.0)).fit(SCALAR, [])
    np.testing.assert_allclose(fitted.settings.ridge, np.array([0.1, 1.0]) * SCALAR.n**power)
    fitted = kind((0.1, 1.0), power=0).fit(SCALAR, [])
    np.testing.assert_allclose(fitted.settings.ridge, [0.1, 1.0])


def test_grids_are_those_of_the_code():
    def ends(estimator, problem):
        ridges = [setting["ridge"] for setting in estimator.grid(problem)]
        return ridges[0], ridges[-1], len(ridges)

    assert ends(Kronecker(), SCALAR) == pytest.approx((0.1, 1e-17, 9))
    assert ends(KernelRidge(), SCALAR) == pytest.approx((0.1, 1e-9, 9))
    assert ends(Kronecker(), TRAINING) == pytest.approx((1e8, 1e-9, 18))
    assert ends(KernelRidge(), TRAINING) == pytest.approx((1e4, 10**-4.5, 18))
    assert len(KernelDensity().bandwidths) == 20
    assert Bins().counts == tuple(range(5, 91, 5))


# --- low rank


@pytest.mark.slow
def test_a_low_rank_factor_is_exact_for_kernels_of_that_rank():
    train = squared_confidence(jax.random.key(5), 400)
    queries = squared_confidence(jax.random.key(6), 50)
    for exact, low in [
        (kkr(1e-3, 1e-6), kkr(1e-3, 1e-6, rank=20)),
        (ukkr(1e-3, 1e-6), ukkr(1e-3, 1e-6, rank=20)),
    ]:
        fitted = low.fit(train, [])
        assert float(jnp.max(fitted.spectral.unexplained)) < 1e-11
        wanted = diagonals(exact.fit(train, []), queries)
        np.testing.assert_allclose(diagonals(fitted, queries), wanted, rtol=1e-5, atol=1e-9)


@pytest.mark.slow
def test_a_low_rank_factor_is_orthogonal_with_a_reported_gap():
    train, queries = small(6, 60, 5, 4)
    result = spectral((Gaussian(0.2),), train, 12)
    a = result.lifted(train.inputs)[0]
    approximate = a @ a.T
    gap = gram_matrix(Gaussian(0.2), train.inputs, train.inputs) - approximate
    assert np.linalg.eigvalsh(np.asarray(gap)).min() > -1e-10
    assert float(result.unexplained[0]) == pytest.approx(float(jnp.trace(gap)) / 60, rel=1e-6)
    np.testing.assert_allclose(a.T @ a, np.diag(np.asarray(result.values[0])), atol=1e-10)
    np.testing.assert_allclose(a.T @ train.residuals, result.loadings[0], atol=1e-10)
    # ukkr with the kernel G G^T from its definition
    at = result.lifted(queries.inputs)[0]
    solved = np.linalg.solve(np.asarray(approximate) + 0.1 * np.eye(60), train.residuals)
    wanted = np.asarray(at @ a.T) @ solved
    low = ukkr(0.1, power=0, kernels=Gaussian(0.2), rank=12)
    np.testing.assert_allclose(
        fit_one(low, train).factors(queries.inputs).left, wanted, rtol=1e-7, atol=1e-10
    )


@pytest.mark.slow
def test_queries_are_lifted_in_blocks(monkeypatch):
    train, queries = small(7, 30, 11, 3)
    wanted = spectral((Gaussian(1.0),), train, None).lifted(queries.inputs)
    monkeypatch.setattr("jaxcal.squared_ce.kernel_ridge.QUERY_ROWS", 4)
    result = spectral((Gaussian(1.0),), train, None).lifted(queries.inputs)
    np.testing.assert_allclose(result, wanted, atol=1e-12)


# --- parameters


@pytest.mark.slow
def test_grid_and_descent_find_the_temperature_family():
    sample = tempered_dirichlet(jax.random.key(8), 2000)
    problem = canonical(sample.probabilities, sample.labels)
    grid = Parametric(temperature_residual, 2.0 ** np.linspace(-5, 4.9, 34))
    seen = at_data(grid.fit(problem, []), problem)
    curve = np.asarray(jnp.mean(seen.rows, axis=1))
    best = grid.grid(problem)[int(np.argmin(curve))]["theta"]
    valley = np.flatnonzero((curve[1:-1] < curve[:-2]) & (curve[1:-1] < curve[2:])) + 1
    false, true = (grid.grid(problem)[i]["theta"] for i in valley)
    assert 0.1 < false < 0.25  # the wrong sign of the residual lowers the risk too
    assert true == best
    assert 0.8 < best < 1.25
    descent = Parametric(temperature_residual, np.array([0.3, 0.5, 2.0]), descend=True)
    fitted = descent.fit(problem, [])
    ends = np.asarray(fitted.settings)
    result = jnp.mean(at_data(fitted, problem).rows, axis=1)
    assert np.all(np.abs(ends[1:] - best) < 0.1)
    assert float(result[1]) <= float(jnp.min(jnp.mean(seen.rows, axis=1))) + 1e-12
    # the residual 0 at theta = 0.3 is stationary, though it is no minimum
    assert ends[0] == pytest.approx(0.3)
    assert float(result[0]) > float(result[1]) + 3e-4
    assert descent.grid(problem)[0] == {"start": "0.3"}


def test_edges_of_grids_are_named():
    grid = [{"bins": b, "ridge": r} for b in (1.0, 5.0, 9.0) for r in (1.0, 2.0, 3.0)]
    assert on_edge(grid, 4) == []
    assert on_edge(grid, 3) == ["ridge"]
    assert on_edge(grid, 1) == ["bins"]
    assert on_edge(grid, 8) == ["bins", "ridge"]
    kernels = [{"kernel": k, "ridge": r} for k in "ab" for r in (1.0, 2.0, 3.0)]
    assert [on_edge(kernels, i) for i in range(6)] == 2 * [["ridge"], [], ["ridge"]]
    assert on_edge([{"bins": 15.0}], 0) == []
    assert on_edge([{}], 0) == []
