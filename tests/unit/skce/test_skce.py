"""SKCE: the published numbers, its identities, quadrature, and its laws under calibration."""

import itertools
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats
from jax.scipy.special import ndtr
from quick import quick_first
from reference.nulls import BlockSquares, Gamma, Multinomial, Spectrum

import jaxcal
from jaxcal import RandomFeatures, ucme_test
from jaxcal.divergences import TotalVariation, Vectors, Wasserstein
from jaxcal.divergences.mmd import MMD
from jaxcal.fit import testing
from jaxcal.kernels import ClassGram, Constant, Gaussian, Laplace, PowerExponential
from jaxcal.kernels.means.dispatch import kernel_means
from jaxcal.nulls import BlockNormal, Redrawn, Wild
from jaxcal.skce import block_estimates, kce, skce, skce_interval, skce_test
from jaxcal.statistics.skce import KernelResidual, Observed
from jaxcal.statistics.weighted import Weighted, WeightedFeatures
from jaxcal.streaming import StreamedTest

KEY = jax.random.key(0)
PAPER = {
    "standardize": False,
    "divergence": Wasserstein(),
    "prediction_kernel": Laplace(1.0),
    "target_kernel": Gaussian(1.0),
}
MEAN = jnp.array([0, 0.5, -1, 2, 1, 0.3])
DEVIATION = jnp.array([1, 0.5, 0.8, 1.2, 0.3, 0.7])
TARGETS = jnp.array([0.2, -0.4, -1.5, 2.5, 1.1, 1])
SIX = (dist.Normal(MEAN, DEVIATION), TARGETS)
near = partial(np.testing.assert_allclose, rtol=0, atol=1.01e-10)
close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12)


def dense(mean, deviation, ys):
    """H of the paper's kernel for one-dimensional normals, from the printed formulas, in NumPy."""
    mean, var, ys = (np.asarray(a, float) for a in (mean, np.asarray(deviation) ** 2, ys))

    def average(gap, total):
        return (1 + total) ** -0.5 * np.exp(-(gap**2) / (2 * (1 + total)))

    w2 = np.hypot(mean[:, None] - mean, np.sqrt(var)[:, None] - np.sqrt(var))
    first = average(mean[:, None] - ys, var[:, None])
    h = np.exp(-((ys[:, None] - ys) ** 2) / 2) - first - first.T
    return np.exp(-w2) * (h + average(mean[:, None] - mean, var[:, None] + var))


def test_the_published_six_points():
    h = dense(MEAN, DEVIATION, TARGETS)
    near(h[[0, 1, 1], [1, 5, 1]], [-0.03760703, -0.28606897, 0.52270722], atol=1e-8)
    estimate = skce(KEY, *SIX, **PAPER)
    near(estimate.biased, 0.0209864573)
    near(estimate.unbiased, -0.0261703615)
    near(kce(KEY, *SIX, **PAPER), 0.0209864573**0.5, atol=1e-9)
    for size, wanted in ((2, -0.0029666461), (3, -0.0089715215), (6, -0.0261703615)):
        near(block_estimates(KEY, *SIX, size=size, **PAPER).estimate, wanted)
    test = partial(skce_test, KEY, *SIX, **PAPER)
    near(ndtr(-test(null=BlockNormal(2)).statistic), 0.5636354768)
    near(test(null=BlockSquares(2)).p_value, 0.5772835055)
    near(test(null=Gamma()).p_value, 0.9120286614)
    # printed to ten digits, of which nine are those of the printed formulas
    assert np.trace(h) / 6 == pytest.approx(0.2567705513, abs=5e-10)


@pytest.mark.slow
def test_the_published_bootstrap_sample(monkeypatch):
    """The counts (2, 0, 1, 1, 0, 2) give T' = -.0160042927, against -.0523908911 observed; there
    both are less V, so that T' does not lie about 0."""
    indices = jnp.array([[0, 0, 2, 3, 5, 5]])
    pairwise, features = by_hand(*SIX)
    monkeypatch.setattr(jax.random, "randint", lambda *args, **options: indices)
    outcome, _ = testing.apply(Multinomial(1), KEY, pairwise, features)
    near(outcome.samples[0] - outcome.biased[0], -0.0160042927)
    near(outcome.statistic - outcome.biased, -0.0523908911)


def by_hand(predictions, ys):
    """The pairwise statistic of the paper's kernel and its features, put together by hand."""
    means = kernel_means(Gaussian(1.0), predictions)
    described = Wasserstein().features(KEY, predictions, None)
    described = described - Wasserstein().center(described)
    observed = Observed(ys.reshape(len(ys), -1), means.features)
    pairwise = Weighted(Laplace(1.0), Wasserstein(), KernelResidual(means.empty()))
    return pairwise, WeightedFeatures(described, observed)


def test_draws_of_multinomial_counts_lie_about_0():
    pairwise, features = by_hand(*SIX)
    outcome, _ = jax.jit(partial(testing.apply, Multinomial(20000)))(KEY, pairwise, features)
    samples = outcome.samples[0]
    error = samples.std() / 20000**0.5
    assert abs(samples.mean()) < 4 * error


@pytest.mark.slow
def test_the_published_pairs():
    two = dist.Normal(jnp.array([0.0, 1.0]), jnp.array([1.0, 0.5])), jnp.array([0.5, -0.2])
    near(skce(KEY, *two, **PAPER).unbiased, -0.0630477597)
    pairwise, features = by_hand(*two)
    near(pairwise.diagonal(features)[0, 0], 0.2488195751)
    two = dist.Laplace(jnp.array([0.0, 1.0]), jnp.array([1.0, 0.5])), two[1]
    options = {"standardize": False, "prediction_kernel": PowerExponential(1.0, power=1.0)}
    estimate = skce(KEY, *two, target_kernel=Laplace(1 / 0.7), **options)
    near(estimate.unbiased, -0.0500116700)
    p = jnp.array([[0.5, 0.3, 0.2], [0.1, 0.6, 0.3]])
    estimate = skce(KEY, p, jnp.array([0, 2]), prediction_kernel=Laplace(1.0))
    near(estimate.unbiased, -0.0060055446)


def random_six(seed=0, n=11):
    rng = np.random.default_rng(seed)
    mean, deviation = rng.normal(size=n), rng.uniform(0.2, 1.5, n)
    return mean, deviation, mean + deviation * rng.normal(size=n)


@pytest.mark.slow
def test_estimators_are_sums_over_the_matrix_in_every_tiling():
    mean, deviation, ys = random_six()
    h, n = dense(mean, deviation, ys), 11
    data = (dist.Normal(mean, deviation), jnp.asarray(ys))
    off = h - np.diag(np.diag(h))
    estimate = skce(KEY, *data, **PAPER)
    close(estimate.unbiased, off.sum() / (n * (n - 1)))
    close(estimate.biased, h.sum() / n**2)
    close(estimate.biased, (n - 1) / n * estimate.unbiased + np.trace(h) / n**2)
    assert np.linalg.eigvalsh(h).min() > -1e-12
    for size in (2, 3, 5, 11):
        m = n // size
        blocks = [slice(b * size, (b + 1) * size) for b in range(m)]
        eta = [off[b, b].sum() / (size * (size - 1)) for b in blocks]
        estimated = block_estimates(KEY, *data, size=size, **PAPER)
        close(estimated.blocks, eta)
        close(estimated.estimate, np.mean(eta))
        if m > 1:
            close(estimated.standard_error, np.std(eta, ddof=1) / m**0.5)
    order = np.random.default_rng(1).permutation(n)
    shuffled = (dist.Normal(mean[order], deviation[order]), jnp.asarray(ys[order]))
    close(skce(KEY, *shuffled, **PAPER).unbiased, estimate.unbiased)
    result = skce_test(KEY, *data, tile=4, null=Wild(19), **PAPER)
    close(result.estimate, estimate.unbiased)
    close(jnp.sum(result.contributions), result.estimate)


def test_point_masses_and_perfect_predictions():
    mean, _, ys = random_six()
    sharp = dist.Normal(mean, np.full(11, 1e-9))
    options = PAPER | {"prediction_kernel": Constant()}
    close(skce(KEY, sharp, jnp.asarray(mean), **options).biased, 0, atol=1e-9)
    k = lambda a, b: np.exp(-((a[:, None] - b) ** 2) / 2)  # noqa: E731
    h = k(ys, ys) - k(mean, ys) - k(ys, mean) + k(mean, mean)
    close(skce(KEY, sharp, jnp.asarray(ys), **options).biased, h.mean(), atol=1e-9)


@pytest.mark.slow
def test_a_constant_prediction_kernel_or_predictor_makes_it_mmd():
    mean, deviation, ys = random_six()
    options = PAPER | {"prediction_kernel": Constant()}
    estimate = skce(KEY, dist.Normal(mean, deviation), jnp.asarray(ys), **options)
    means = kernel_means(Gaussian(1.0), dist.Normal(mean, deviation))
    y = jnp.asarray(ys)[:, None]
    mmd = means.gram(y, y).mean() - 2 * means.first(means.features, y).mean()
    close(estimate.biased, mmd + means.second(means.features, means.features).mean())
    one = dist.Normal(0.3, 1.2)
    weighted = skce(KEY, one, jnp.asarray(ys), **PAPER)
    close(weighted.biased, skce(KEY, one, jnp.asarray(ys), **options).biased)


def test_wide_target_kernels_compare_means():
    mean, deviation, ys = random_six()
    options = PAPER | {"prediction_kernel": Constant(), "target_kernel": Gaussian(1000.0)}
    estimate = skce(KEY, dist.Normal(mean, deviation), jnp.asarray(ys), **options).biased
    np.testing.assert_allclose(estimate * 1000**2, np.mean(ys - mean) ** 2, rtol=1e-4)


@pytest.mark.slow
def test_classes_are_residuals_in_a_matrix_valued_kernel():
    rng = np.random.default_rng(0)
    p, ys = rng.dirichlet(np.ones(4), 9), rng.integers(0, 4, 9)
    root = rng.normal(size=(4, 4))
    gram = root @ root.T
    k = np.exp(-np.linalg.norm(p[:, None] - p, axis=-1) / 0.6)
    residual = np.eye(4)[ys] - p
    for kernel, matrix in ((None, np.eye(4)), (ClassGram(gram), gram), (gram, gram)):
        h = k * (residual @ matrix @ residual.T)
        estimate = skce(KEY, p, ys, prediction_kernel=Laplace(0.6), target_kernel=kernel)
        close(estimate.biased, h.mean())
        whole = skce(
            KEY,
            p,
            ys,
            prediction_kernel=Constant(),
            target_kernel=lambda a, b, m=matrix: (
                jnp.exp(-jnp.linalg.norm(a - b + 1e-300) / 0.6) * m
            ),
        )
        close(whole.biased, h.mean())
        close(whole.unbiased, estimate.unbiased)
    categorical = skce(KEY, dist.Categorical(probs=jnp.asarray(p)), ys)
    close(categorical.biased, skce(KEY, p, ys).biased)


def matrices(p, q):
    """A kernel of predictions and classes that is no product: each class sees p at a width of its
    own, and features of two kinds are shared between classes."""
    widths = jnp.asarray([0.3, 0.6, 1.2])
    alone = jnp.exp(-jnp.sum((p - q) ** 2) / (2 * widths**2))
    return jnp.diag(alone) + jnp.outer(jnp.sin(3 * p), jnp.sin(3 * q))


@pytest.mark.slow
def test_kernels_that_are_no_product_are_those_of_a_double_loop():
    rng = np.random.default_rng(3)
    p, ys = rng.dirichlet(np.ones(3), 8), rng.integers(0, 3, 8)
    options = {"target_kernel": matrices, "prediction_kernel": Constant()}
    h = np.zeros((8, 8))
    for i, j in itertools.product(range(8), repeat=2):
        matrix = np.asarray(matrices(jnp.asarray(p[i]), jnp.asarray(p[j])))
        for y, z in itertools.product(range(3), repeat=2):
            h[i, j] += ((ys[i] == y) - p[i, y]) * matrix[y, z] * ((ys[j] == z) - p[j, z])
    result = skce_test(KEY, p, ys, **options)
    close(result.biased, h.mean())
    close(result.estimate, (h.sum() - np.trace(h)) / 56)
    redrawn = skce_test(KEY, p, ys, null=Redrawn(99), **options)
    close(redrawn.biased, h.mean())
    assert 0 < float(redrawn.p_value) <= 1
    for call, wrong in (
        (skce_test, {"target_kernel": lambda p, q: p @ q}),
        (skce_test, options | {"features": RandomFeatures(0, 8)}),
        (ucme_test, options),
    ):
        with pytest.raises(TypeError, match="target_kernel"):
            call(KEY, p, ys, **wrong)


def test_two_classes_are_the_binary_form():
    rng = np.random.default_rng(1)
    p, ys = rng.uniform(size=12), rng.integers(0, 2, 12)
    k = np.exp(-(2**0.5) * abs(p[:, None] - p) / 0.7)
    h = 2 * k * np.outer(ys - p, ys - p)
    options = {"prediction_kernel": Laplace(0.7)}
    for predictions in (p, np.stack([1 - p, p], 1), dist.Bernoulli(probs=jnp.asarray(p))):
        close(skce(KEY, predictions, ys, **options).biased, h.mean())
    close(skce(KEY, p, ys.astype(bool), **options).biased, h.mean())
    tv = skce(KEY, p, ys, divergence=TotalVariation(), **options).biased
    close(tv, (2 * np.exp(-abs(p[:, None] - p) / 0.7) * np.outer(ys - p, ys - p)).mean())


# --- constants of the synthetic models (predictions N(c 1, 0.1^2 I), c uniform on [0, 1])


def synthetic(key, n, d, calibrated):
    c_key, y_key = jax.random.split(key)
    mean = jnp.broadcast_to(jax.random.uniform(c_key, (n, 1)), (n, d))
    true = jnp.where(calibrated, mean, mean.at[:, 0].set(0.1))
    ys = true + 0.1 * jax.random.normal(y_key, (n, d))
    return dist.Normal(mean, 0.1).to_event(1), ys


@pytest.mark.parametrize(
    ("d", "wanted"), quick_first([(1, 0.1107737), (10, 0.0595975)], [(1, 0.1107737)])
)
def test_the_constant_of_the_uncalibrated_model_by_quadrature(d, wanted):
    x, w = np.polynomial.legendre.leggauss(40)
    x, w = (x + 1) / 2, w / 2
    # the triangle c' < c, where the kernel is smooth, counts twice
    c, other = np.repeat(x, 40), (x[:, None] * x).ravel()
    weight = 2 * (w[:, None] * w * x[:, None]).ravel()

    def laws(c, calibrated):
        mean = np.repeat(c[:, None], d, 1)
        if not calibrated:
            mean[:, 0] = 0.1
        return dist.Normal(mean, 0.1).to_event(1)

    means = {
        name: [kernel_means(Gaussian(1.0), laws(side, name == "p")) for side in (c, other)]
        for name in ("p", "t")
    }

    def paired(one, two):
        a, b = means[one][0], means[two][1]

        def single(rows, cols):
            alone = (jax.tree.map(lambda leaf: leaf[None], side) for side in (rows, cols))
            return a.second(*alone)[0, 0]

        return jax.vmap(single)(a.features, b.features)

    h = paired("t", "t") - paired("p", "t") - paired("t", "p") + paired("p", "p")
    value = np.sum(weight * np.exp(-(d**0.5) * np.abs(c - other)) * h)
    np.testing.assert_allclose(value, wanted, atol=6e-8)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("d", "square"), quick_first([(1, 4.282e-5), (10, 1.683e-4)], [(10, 1.683e-4)])
)
def test_moments_of_h_under_calibration(d, square, key):
    predictions, ys = synthetic(key, 1500, d, calibrated=True)
    pairwise, features = by_hand(predictions, ys)
    h = pairwise.block(features, features)[0]
    values = pairwise.diagonal(features)[0]
    # the block's distances come from a matrix product: their roots are right to eps^1/2
    close(jnp.diag(h), values, rtol=1e-7)
    assert abs(values.mean() - (1 - 1.02 ** (-d / 2))) < 4 * values.std() / 1500**0.5
    rows = (jnp.sum(h**2, 1) - values**2) / 1499
    assert abs(rows.mean() - square) < 4 * 2 * rows.std() / 1500**0.5 + 1e-8
    means = kernel_means(Gaussian(1.0), predictions)
    close(1 - means.own(means.features), np.full(1500, 1 - 1.02 ** (-d / 2)))


@partial(jax.jit, static_argnames=("d", "calibrated"))
def estimates(keys, *, d, calibrated):
    """Biased, and unbiased from blocks of 2, 4 and 16, of data sets of 16."""

    def one(key):
        data = synthetic(key, 16, d, calibrated)
        blocks = [block_estimates(key, *data, size=b, **PAPER).estimate for b in (2, 4, 16)]
        return jnp.stack([skce(key, *data, **PAPER).biased, *blocks])

    return jax.lax.map(one, keys)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("d", "calibrated", "value", "values"),
    quick_first(
        [(1, False, 0.1107737, 0.2203), (10, True, 0.0, 0.0942692)],
        [(1, False, 0.1107737, 0.2203)],
    ),
)
def test_u_statistics_are_unbiased_and_v_statistic_bias_is_known(d, calibrated, value, values, key):
    result = estimates(jax.random.split(key, 1500), d=d, calibrated=calibrated)
    mean, error = result.mean(0), result.std(0) / 1500**0.5
    assert np.all(np.abs(mean[1:] - value) < 4 * error[1:])
    gap = result[:, 0] - result[:, 3]
    # 1e-4: the published E h(x, x) has four digits
    assert abs(gap.mean() - (values - value) / 16) < 4 * gap.std() / 1500**0.5 + 1e-5


@pytest.mark.slow
def test_the_null_law_has_its_mean_variance_and_level(key):
    """n U under calibration: mean 0, variance 2 n / (n - 1) E h^2."""
    n, sets = 32, 1200

    @jax.jit
    def unbiased(keys):
        data = partial(synthetic, n=n, d=10, calibrated=True)
        return jax.lax.map(lambda k: skce(k, *data(k), **PAPER).unbiased, keys)

    u = n * unbiased(jax.random.split(key, sets))
    assert abs(u.mean()) < 4 * u.std() / sets**0.5
    variance = 2 * n / (n - 1) * 1.683e-4
    spread = ((u - u.mean()) ** 2).std() / sets**0.5
    assert abs(u.var() - variance) < 4 * spread


# --- levels and power of the paper's tests; published levels decide the bounds

NULLS = {
    # null: published level at d = 10, n = 16, and the power of the uncalibrated model
    "A, B = 2": (BlockNormal(2), 0.070, 0.680),
    "A, sqrt": (BlockNormal(4), 0.091, 0.887),
    "B, B = 2": (BlockSquares(2), 0.042, 0.493),
    "B, sqrt": (BlockSquares(4), 0.068, 0.977),
    "bootstrap": (Multinomial(200), 0.004, 1.00),
    "spectrum": (Spectrum(200), 0.001, 1.00),
    "gamma": (Gamma(), 0.052, 1.00),
}


@pytest.fixture(scope="module")
def p_values():
    """p-values [calibrated or not][null], 300 data sets each, of one program."""

    @jax.jit
    def run(keys, calibrated):
        def one(key):
            data_key, test_key = jax.random.split(key)
            pairwise, features = by_hand(*synthetic(data_key, 16, 10, calibrated))
            nulls = [null for null, *_ in NULLS.values()] + [Wild(200)]
            outcomes = [testing.apply(null, test_key, pairwise, features)[0] for null in nulls]
            # the paper compares A with its limit for many blocks
            limit = [isinstance(null, BlockNormal) for null in nulls]
            both = zip(outcomes, limit, strict=True)
            p = [ndtr(-one.statistic) if normal else one.p_value for one, normal in both]
            return jnp.concatenate(p)

        return jax.lax.map(one, keys)

    keys = jax.random.split(jax.random.key(20210503), 300)
    return {calibrated: run(keys, calibrated) for calibrated in (True, False)}


def between(count, share, other, n=300):
    """Whether a count of n is credible: binomial around either share."""
    low = min(scipy.stats.binom.ppf(1e-4, n, q) for q in (share, other))
    high = max(scipy.stats.binom.ppf(1 - 1e-4, n, q) for q in (share, other))
    return low <= count <= high


@pytest.mark.slow
@pytest.mark.parametrize("name", NULLS)
def test_levels_and_powers_are_the_published_ones(name, p_values):
    """The published shares carry errors of their own: 2000 and 300 data sets."""
    _, level, power = NULLS[name]
    place = list(NULLS).index(name)
    for calibrated, share, sets in ((True, level, 2000), (False, power, 300)):
        spread = 3.9 * (max(share * (1 - share), 1e-3) / sets) ** 0.5
        rejected = int(jnp.sum(p_values[calibrated][:, place] <= 0.05))
        assert between(rejected, max(share - spread, 0), min(share + spread, 1))


@pytest.mark.slow
def test_the_wild_bootstrap_keeps_the_level_and_has_power(p_values):
    assert int(jnp.sum(p_values[True][:, -1] <= 0.05)) <= scipy.stats.binom.ppf(0.9999, 300, 0.05)
    assert int(jnp.sum(p_values[False][:, -1] <= 0.05)) >= 290


# --- draws, mixtures and defaults


@pytest.mark.slow
def test_draws_keep_the_level_by_separating_distance_and_means():
    """With shared draws the mean of the estimate under calibration is positive."""

    @jax.jit
    def run(keys):
        def one(key):
            data_key, draw_key, key = jax.random.split(key, 3)
            predictions, ys = synthetic(data_key, 12, 2, calibrated=True)
            draws = jaxcal.Draws(jnp.moveaxis(predictions.sample(draw_key, (6,)), 0, 1))
            sampled = dist.StudentT(1e6, predictions.base_dist.loc, 0.1).to_event(1)
            return jnp.stack(
                [
                    skce(key, draws, ys).unbiased,
                    skce(key, sampled, ys, n_samples=4).unbiased,
                ]
            )

        return jax.lax.map(one, keys)

    process = run(jax.random.split(jax.random.key(3), 1500))
    assert np.all(np.abs(process.mean(0)) < 4 * process.std(0) / 1500**0.5)


def kinds(mean):
    n, d = mean.shape
    mixing = dist.Categorical(probs=jnp.full((n, 2), 0.5))
    parts = dist.Normal(mean[:, None] + 1, jnp.ones((n, 2, d))).to_event(1)
    return {
        "Normal": dist.Normal(mean, 0.5).to_event(1),
        "Laplace": dist.Laplace(mean, 0.5).to_event(1),
        "MultivariateNormal": dist.MultivariateNormal(mean, jnp.eye(d)),
        "mixture": dist.MixtureSameFamily(mixing, parts),
        "StudentT": dist.StudentT(5.0, mean, 0.5).to_event(1),
    }


KINDS = ["Normal", "Laplace", "MultivariateNormal", "mixture", "StudentT"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", quick_first(KINDS, ["mixture", "StudentT"]))
def test_defaults_follow_the_kind_of_prediction(kind, key):
    predictions = kinds(jax.random.normal(key, (40, 2)))[kind]
    ys = predictions.sample(jax.random.key(5))
    good = skce_test(key, predictions, ys, null=Wild(99))
    bad = skce_test(key, predictions, ys + 1.5, null=Wild(99))
    assert good.p_value > 0.01
    assert bad.p_value == 0.01
    assert set(good.bandwidths) == {"target", "prediction"}
    assert not good.warnings()


def test_the_scale_of_the_targets_does_not_matter():
    mean, deviation, ys = random_six()
    one = skce(KEY, dist.Normal(mean, deviation), jnp.asarray(ys))
    other = skce(KEY, dist.Normal(1e3 * mean + 7e4, 1e3 * deviation), jnp.asarray(1e3 * ys + 7e4))
    np.testing.assert_allclose(other.unbiased, one.unbiased, rtol=1e-7)


# --- life under jit, vmap, grad, and in single precision


@pytest.mark.slow
@pytest.mark.parametrize("family", quick_first(["Normal", "Laplace"], ["Normal"]))
def test_gradients_match_differences_and_are_finite_if_equal(family):
    family = getattr(dist, family)
    ys = jnp.array([0.2, 0.7, -1.0, 0.2])
    kernel = Gaussian(1.0) if family is dist.Normal else Laplace(1.0)
    options = {"standardize": False, "prediction_kernel": Laplace(1.0), "target_kernel": kernel}

    @jax.jit
    def value(mean, scale):
        estimate = skce(KEY, family(mean, scale), ys, **options)
        return estimate.biased + 3 * estimate.unbiased

    gradient = jax.jit(jax.grad(value, argnums=(0, 1)))
    same = (jnp.array([0.2, 0.2, 0.2, 0.5]), jnp.full(4, 0.8))
    assert all(bool(jnp.all(jnp.isfinite(g))) for g in gradient(*same))
    at = (jnp.array([0.3, 0.1, -0.2, 0.5]), jnp.array([0.8, 0.5, 1.1, 0.7]))
    step = 1e-6 * jnp.eye(4)[1]
    for which, g in enumerate(gradient(*at)):
        up, down = (
            value(*(a + sign * step if i == which else a for i, a in enumerate(at)))
            for sign in (1, -1)
        )
        np.testing.assert_allclose(g[1], (up - down) / 2e-6, atol=1e-7)


@pytest.mark.slow
def test_kce_has_a_finite_gradient_at_zero():
    perfect = jnp.array([0.2, 0.7, -1.0])
    gradient = jax.grad(lambda m: kce(KEY, dist.Normal(m, 1e-12), perfect, **PAPER))(perfect)
    assert bool(jnp.all(jnp.isfinite(gradient)))


@pytest.mark.slow
@pytest.mark.usefixtures("programs_stay")
def test_a_batch_is_one_program_with_the_results_of_its_members(key):
    keys = jax.random.split(key, 3)
    p = jax.random.dirichlet(key, jnp.ones(3), (3, 12))
    ys = jax.random.categorical(key, jnp.log(p))
    run = partial(skce_test, null=Wild(19))
    batch = jax.jit(jax.vmap(run))(keys, p, ys)
    singles = [run(*one) for one in zip(keys, p, ys, strict=True)]
    close(batch.estimate, [r.estimate for r in singles])
    close(batch.p_value, [r.p_value for r in singles])
    assert "3 results" in repr(batch)
    before = testing.unjudged.alone._cache_size()
    run(jax.random.key(77), p[1], ys[2])
    assert testing.unjudged.alone._cache_size() == before


@pytest.mark.slow
def test_single_precision_keeps_the_estimate():
    mean, deviation, ys = random_six(n=60)
    values = [
        skce(
            KEY,
            dist.Normal(mean.astype(t), deviation.astype(t)),
            jnp.asarray(ys, t),
            **(PAPER | {"prediction_kernel": Laplace(t(1)), "target_kernel": Gaussian(t(1))}),
        )
        for t in (np.float32, np.float64)
    ]
    assert values[0].unbiased.dtype == jnp.float32
    np.testing.assert_allclose(values[0].unbiased, values[1].unbiased, atol=5e-7)


# --- intervals


@pytest.mark.slow
def test_intervals_hold_the_value_of_a_miscalibrated_model(key):
    @jax.jit
    def run(keys):
        def one(key):
            data = synthetic(key, 100, 1, calibrated=False)
            result = skce_test(key, *data, null=Gamma(), **PAPER)
            blocks = block_estimates(key, *data, size=4, **PAPER)
            return skce_interval(result)[:2], blocks.lower_bound(0.1)

        return jax.lax.map(one, keys)

    (low, high), bound = run(jax.random.split(key, 300))
    covering = int(jnp.sum((low <= 0.1107737) & (high >= 0.1107737)))
    # the normal limit is near at n = 100: 90 % to 97 % of the intervals, 85 % to 95 % of the bounds
    assert between(covering, 0.90, 0.97)
    assert between(int(jnp.sum(bound <= 0.1107737)), 0.85, 0.95)


@pytest.mark.slow
def test_block_estimates_say_what_they_are():
    result = block_estimates(KEY, *SIX, size=4, **PAPER)
    assert "1 blocks of 4" in repr(result)
    assert any("last 2 of 6" in text for text in result.warnings())
    assert result.to_dict()["size"] == 4
    assert skce_interval(block_estimates(KEY, *SIX, **PAPER), level=0.2).level == 0.2


# --- bad input


@pytest.mark.parametrize(
    ("predictions", "targets", "message"),
    [
        ([[0.5, 0.6], [0.5, 0.5]], [0, 1], "row 0 does not sum to 1"),
        ([[1.5, -0.5], [0.5, 0.5]], [0, 1], "negative probability"),
        ([[0.5, 0.5], [0.5, 0.5]], [1, 2], "start at 0"),
        ([[0.5, 0.5], [0.5, 0.5]], [0, 5], "wanted classes 0, .., 1, got 0 to 5"),
        ([0.5, 1.2], [0, 1], r"predictions: wanted probabilities in \[0, 1\]; entry 1 is 1.2"),
        (SIX[0], TARGETS[:5], "to match targets of shape"),
        (SIX[0], TARGETS[:, None], "to match targets of shape"),
        (jaxcal.Draws(np.ones((6, 9, 2))), TARGETS, r"Draws.samples: wanted shape \(6, m\)"),
        (jaxcal.Draws(np.ones((6, 2))), TARGETS, "at least 4 draws"),
        ([[0.5, 0.5]], [0], "at least 2 observations"),
    ],
)
def test_bad_data_is_named(predictions, targets, message):
    if isinstance(predictions, list):
        predictions, targets = np.array(predictions), np.array(targets)
    with pytest.raises(ValueError, match=message):
        skce_test(KEY, predictions, targets)


@pytest.mark.slow
def test_bad_choices_are_named():
    p, ys = np.full((4, 3), 1 / 3), np.array([0, 1, 2, 0])
    moments = jaxcal.calibration_test(KEY, *SIX)  # its standard error is 0
    for error, message, call in [
        (TypeError, "integer classes", lambda: skce_test(KEY, p, ys * 0.5)),
        (TypeError, "Gram matrix", lambda: skce_test(KEY, p, ys, target_kernel=Gaussian(1.0))),
        (
            TypeError,
            "predictions: .*mcmc_draws",
            lambda: skce_test(KEY, jaxcal.Scores(TARGETS), TARGETS),
        ),
        (ValueError, "n_samples", lambda: skce_test(KEY, *SIX, n_samples=1)),
        (ValueError, "size: wanted", lambda: block_estimates(KEY, *SIX, size=7)),
        (ValueError, "size: wanted", lambda: block_estimates(KEY, *SIX, size=1)),
        (ValueError, "two blocks", lambda: skce_test(KEY, *SIX, null=BlockNormal(4))),
        (ValueError, "one block of 7", lambda: skce_test(KEY, *SIX, null=BlockSquares(7))),
        (ValueError, "level", lambda: skce_interval(block_estimates(KEY, *SIX), level=9.5)),
        (TypeError, "result: wanted", lambda: skce_interval(moments)),
        (ValueError, "0 < power <= 2", lambda: PowerExponential(1.0, power=2.5)),
        (ValueError, "lengths", lambda: skce_test(KEY, *SIX, target_kernel=Gaussian([1.0, 2.0]))),
    ]:
        with pytest.raises(error, match=message):
            call()


@pytest.mark.slow
def test_degenerate_predictions_are_flagged():
    scale = jnp.array([1.0, -1.0, 1, 1, 1, 1])
    result = skce_test(KEY, dist.Normal(MEAN, scale, validate_args=False), TARGETS, null=Wild(9))
    assert np.isnan(result.p_value)
    assert any("NaN" in text for text in result.warnings())
    singular = dist.MultivariateNormal(
        jnp.zeros((6, 2)), scale_tril=jnp.array([[1.0, 0.0], [1.0, 0.0]]), validate_args=False
    )
    result = skce_test(KEY, singular, jnp.stack([TARGETS, TARGETS**2], 1), null=Wild(9))
    assert np.isfinite(result.p_value)  # a law on a line is a law
    broken = dist.MultivariateNormal(
        jnp.zeros((6, 2)), covariance_matrix=-jnp.eye(2), validate_args=False
    )
    assert np.isnan(skce_test(KEY, broken, jnp.ones((6, 2)), null=Wild(9)).p_value)


@pytest.mark.slow
def test_other_distances_and_vectors(key):
    mean, deviation, ys = random_six(n=30)
    data = (dist.Normal(mean, deviation), jnp.asarray(ys))
    for divergence in (
        MMD(of_targets=True),
        MMD(Gaussian(0.5)),
        Vectors(jnp.asarray(mean)[:, None]),
        jaxcal.divergences.Fisher(),
    ):
        assert np.isfinite(skce_test(key, *data, divergence=divergence, null=Wild(19)).p_value)


@pytest.mark.slow
@pytest.mark.parametrize("drawn", [False, True])
def test_precise_predictions_are_not_judged_by_rounding(drawn, key):
    """In float32 kernels lose the digits of a width of .001; units of each prediction keep them."""

    def result(width, dtype=jnp.float32, **options):
        centers, noise = jax.random.normal(key, (2, 100), dtype)
        ys = centers + width * noise
        draws = jax.random.normal(jax.random.fold_in(key, 1), (100, 20), dtype)
        sampled = jaxcal.Draws(centers[:, None] + width * draws)
        exact = dist.Normal(centers, jnp.full(100, width, dtype))
        return skce_test(key, sampled if drawn else exact, ys, **options)

    assert result(1e-3).verdict == "cannot tell"
    assert "small-residuals" in str(result(1e-3))
    own_units = jaxcal.whitening.Moments()
    for other in (result(1e-2), result(1e-3, jnp.float64), result(1e-3, whiten=own_units)):
        assert "small-residuals" not in str(other)
        assert other.verdict != "cannot tell"


def test_the_rounding_of_blocks_is_compared_with_their_scale():
    mu, e = jax.random.normal(jax.random.key(0), (2, 400), jnp.float32)
    predictions = dist.Normal(mu, jnp.float32(1e-3))
    of_all, of_blocks = (
        skce_test(0, predictions, mu + jnp.float32(1e-3) * e, null=null).notes["small-residuals"]
        for null in (Wild(9), BlockNormal(2))
    )
    np.testing.assert_allclose(of_blocks, of_all * (2 / 400) ** 0.5, rtol=0.1)


def precise():
    mu, e = jax.random.normal(jax.random.key(0), (2, 2000), jnp.float32)
    return dist.Normal(mu, jnp.float32(3e-7)), mu + jnp.float32(3e-7) * e


def test_random_features_of_precise_predictions_say_rounding():
    """Right predictions were rejected: waves of targets and of means were different functions."""
    result = skce_test(0, *precise(), features=RandomFeatures(1, 10))
    assert result.verdict == "cannot tell"
    assert "rounding may decide" in result.reason


@pytest.mark.slow
def test_streams_of_precise_predictions_say_rounding():
    test = StreamedTest.skce(0, *precise(), features=RandomFeatures(1, 10))
    result = test.result(test.run([precise()]))
    assert result.verdict == "cannot tell"
    assert "rounding may decide" in result.reason


@pytest.mark.slow
def test_forecasts_of_points_that_are_right_are_not_rejected():
    """Nothing but rounding is left of their residuals."""
    ys = jax.random.normal(jax.random.key(0), (10, 60))
    verdicts = {skce_test(0, dist.Delta(y), y).verdict for y in ys}
    assert verdicts <= {"cannot tell", "not rejected"}
    assert skce_test(0, dist.Delta(ys[0] + 1), ys[0]).verdict == "rejected"


@pytest.mark.slow
def test_random_features_keep_the_guard_of_rare_targets():
    """A jump of probability 1 / 200 is in none of 300 targets: it was "rejected" (p = .002)."""
    x, noise = jax.random.normal(jax.random.key(5), (2, 300))
    weights = dist.Categorical(probs=jnp.array([0.995, 0.005]))
    for step, verdict in ((5, "cannot tell"), (0, "not rejected")):
        parts = dist.Normal(jnp.stack([x, x + step], 1), 0.001)
        predictions = dist.MixtureSameFamily(weights, parts)
        options = {"divergence": Vectors(x), "features": RandomFeatures(1, 100)}
        result = skce_test(0, predictions, x + 0.001 * noise, **options)
        assert result.verdict == verdict
