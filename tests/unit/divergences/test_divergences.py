"""Distances between predictions: oracles by quadrature and scipy, invariants, and whole tests."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.linalg
import scipy.optimize
import scipy.stats
from quick import quick_first
from reference.sliced import SlicedWasserstein
from reference.transport import Bures

from jaxcal import kccsd_test
from jaxcal.divergences import (
    MMD,
    Fisher,
    GaussianFisher,
    GaussianKernelFisher,
    GradientKernel,
    KernelFisher,
    Wasserstein,
    gaussians,
    mmd,
)
from jaxcal.divergences.vectors import NodeScores, gram_block
from jaxcal.kernels import IMQ, Gaussian, bandwidths, points
from jaxcal.kernels.means.dispatch import kernel_means
from jaxcal.read import Draws, Scores, Standardized, Units, Unnormalized
from jaxcal.read.scores import scores_at

DIVERGENCES = {
    "fisher": Fisher(),
    "kernel fisher": KernelFisher(Gaussian(1.5)),
    "matrix-valued": KernelFisher(GradientKernel(IMQ(2.0))),
    "gaussian fisher": GaussianFisher(),
    "gaussian kernel fisher": GaussianKernelFisher(bandwidth=1.5),
    "mmd": MMD(Gaussian(1.5)),
    "mmd of draws": MMD(IMQ(), n_samples=6),
    "wasserstein": Wasserstein(),
    "bures": Bures(),
    "sliced": SlicedWasserstein(n_samples=6, n_projections=4),
}
every_divergence = pytest.mark.parametrize(
    "divergence", DIVERGENCES.values(), ids=DIVERGENCES.keys()
)


def general_gaussians(n, d, seed=0):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(n, d, d))
    cov = root @ np.swapaxes(root, 1, 2) + 0.3 * np.eye(d)
    return dist.MultivariateNormal(jnp.asarray(rng.normal(size=(n, d))), jnp.asarray(cov))


def at_nodes(key, predictions, m):
    n, d = predictions.batch_shape[0], predictions.event_shape[0]
    nodes = jax.random.normal(key, (m, d))
    _, values = scores_at(predictions, jnp.zeros((n, d)), nodes)
    return NodeScores(nodes, values)


@eqx.filter_jit
def described(divergence, key, predictions, nodes):
    return divergence.features(key, predictions, nodes)


@eqx.filter_jit
def squared(divergence, key, predictions, m=5):
    nodes = at_nodes(key, predictions, m) if divergence.needs_nodes else None
    features = divergence.features(key, predictions, nodes)
    return divergence.squared_distances(features, features)


def hermite(mean, cov, degree):
    x, w = np.polynomial.hermite_e.hermegauss(degree)
    grid = np.stack(np.meshgrid(x, x, indexing="ij"), -1).reshape(-1, 2)
    weights = np.outer(w, w).ravel()
    return mean + grid @ np.linalg.cholesky(cov).T, weights / weights.sum()


@every_divergence
def test_blocks_are_symmetric_nonnegative_and_agree_with_pairs(divergence, key):
    predictions = general_gaussians(5, 2)

    @jax.jit
    def compare(key):
        nodes = at_nodes(key, predictions, 4) if divergence.needs_nodes else None
        features = divergence.features(key, predictions, nodes)
        d2 = divergence.squared_distances(features, features)
        swapped = jax.tree.map(lambda a: a[::-1], features)
        gram = gram_block(Gaussian(jnp.ones(())), divergence, features, features)
        return d2, divergence.paired(features, swapped), gram

    d2, paired, gram = compare(key)
    np.testing.assert_allclose(d2, d2.T, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(jnp.diagonal(d2), 0, atol=1e-10)
    assert jnp.all(d2 >= 0)
    assert jnp.all(d2 + jnp.eye(5) > 1e-6)
    np.testing.assert_allclose(paired, jnp.diagonal(d2[:, ::-1]), atol=1e-10)
    if not isinstance(divergence, Bures):
        assert np.min(np.linalg.eigvalsh(gram)) > -1e-10


@pytest.mark.slow
def test_fisher_of_draws_converges_to_the_closed_form(key):
    predictions = general_gaussians(2, 2)
    nodes = at_nodes(key, predictions, 20_000)
    terms = jnp.sum((nodes.values[0] - nodes.values[1]) ** 2, axis=-1)
    standard_error = jnp.std(terms) / len(terms) ** 0.5
    exact = squared(GaussianFisher(), key, predictions)[0, 1]
    assert standard_error < 0.03 * exact
    features = described(Fisher(), key, predictions, nodes)
    assert abs(jnp.sum((features[0] - features[1]) ** 2) - exact) < 4 * standard_error


def test_kernel_fisher_of_draws_converges_to_the_closed_form(key):
    predictions, m = general_gaussians(2, 2), 700
    nodes = at_nodes(key, predictions, m)
    exact = squared(GaussianKernelFisher(bandwidth=1.3), key, predictions)[0, 1]
    features = described(KernelFisher(Gaussian(1.3)), key, predictions, nodes)
    values = jnp.sum((features[0] - features[1]) ** 2)
    delta = np.asarray(nodes.values[0] - nodes.values[1])
    z = np.asarray(nodes.nodes)
    gram = np.exp(-np.sum((z[:, None] - z) ** 2, -1) / (2 * 1.3**2))
    rows = np.sum(delta * (gram @ delta), axis=1) / m  # E of one row is the divergence
    standard_error = 2 * np.std(rows) / m**0.5
    bias = np.mean(np.sum(delta**2, -1)) / m  # of the terms that pair a node with itself
    assert standard_error < 0.2 * exact
    assert abs(values - bias - exact) < 4 * standard_error
    # smoothing never adds: sup k = 1
    assert values <= np.mean(np.sum(delta**2, -1))


def test_isotropic_kernel_fisher_is_the_published_formula(key):
    d, b, g = 3, 0.7, 1.9
    mean, variance = np.array([[0.0, 1, 2], [1, 1, -1]]), np.array([0.5, 2.0])
    predictions = dist.Normal(jnp.asarray(mean), jnp.sqrt(variance)[:, None]).to_event(1)
    shared = g**2 + 2 * b**2
    precision = np.subtract(*(1 / variance))
    shift = np.subtract(*(mean / variance[:, None]))
    wanted = (g**2 / shared) ** (d / 2) * (d * b**4 / shared * precision**2 + shift @ shift)
    divergence = GaussianKernelFisher(cov=b**2, bandwidth=g)
    np.testing.assert_allclose(squared(divergence, key, predictions)[0, 1], wanted, rtol=1e-10)


@pytest.mark.parametrize("diagonal", [True, False])
def test_closed_mmd_is_the_double_integral(diagonal, key):
    predictions, lengths = general_gaussians(2, 2), np.array([1.5, 2.5])
    mean, cov = np.asarray(predictions.loc), 0.5 * np.asarray(predictions.covariance_matrix)
    if diagonal:
        cov = np.stack([np.diag(np.diag(c)) for c in cov])
        deviation = jnp.sqrt(jnp.asarray(np.stack([np.diag(c) for c in cov])))
        predictions = dist.Normal(jnp.asarray(mean), deviation).to_event(1)
    else:
        predictions = dist.MultivariateNormal(jnp.asarray(mean), jnp.asarray(cov))
    z, w = zip(*(hermite(m, c, 30) for m, c in zip(mean, cov, strict=True)), strict=True)

    def integral(i, j):
        gaps = (z[i][:, None] - z[j]) / lengths
        return w[i] @ np.exp(-np.sum(gaps**2, -1) / 2) @ w[j]

    wanted = integral(0, 0) + integral(1, 1) - 2 * integral(0, 1)
    values = squared(MMD(Gaussian(lengths)), key, predictions)[0, 1]
    np.testing.assert_allclose(values, wanted, rtol=1e-8)


def test_mmd_of_draws_is_the_distance_of_the_samples(key):
    samples = np.random.default_rng(0).normal(size=(3, 7, 2))
    d2 = squared(MMD(IMQ(0.8)), key, Draws(jnp.asarray(samples)))

    def mean_kernel(p, q):
        return np.mean((1 + np.sum((p[:, None] - q) ** 2, -1) / 0.8**2) ** -0.5)

    for i, j in [(0, 1), (2, 1)]:
        p, q = samples[i], samples[j]
        wanted = mean_kernel(p, p) + mean_kernel(q, q) - 2 * mean_kernel(p, q)
        np.testing.assert_allclose(d2[i, j], wanted, rtol=1e-10)


@pytest.mark.slow
def test_mmd_of_draws_converges_to_the_closed_form(key):
    predictions, m, repeats = general_gaussians(2, 2), 200, 12
    exact = squared(MMD(Gaussian(1.5)), key, predictions)[0, 1]
    squared_norms = described(MMD(Gaussian(1.5)), key, predictions, None).squared_norms

    def once(key):
        return squared(MMD(Gaussian(1.5), n_samples=m), key, predictions)[0, 1]

    values = jax.lax.map(once, jax.random.split(key, repeats))
    bias = jnp.sum(1 - squared_norms) / m  # of the draws paired with themselves
    standard_error = jnp.std(values, ddof=1) / repeats**0.5
    assert standard_error < 0.1 * exact
    assert abs(jnp.mean(values) - bias - exact) < 4 * standard_error


def test_bures_is_the_wasserstein_distance_of_any_gaussians(key):
    predictions = general_gaussians(3, 3)
    mean, cov = np.asarray(predictions.loc), np.asarray(predictions.covariance_matrix)
    d2 = squared(Bures(), key, predictions)
    upper = squared(Wasserstein(), key, predictions)
    for i, j in [(0, 1), (1, 2)]:
        root = scipy.linalg.sqrtm(cov[j])
        overlap = scipy.linalg.sqrtm(root @ cov[i] @ root).real
        wanted = np.sum((mean[i] - mean[j]) ** 2) + np.trace(cov[i] + cov[j] - 2 * overlap)
        np.testing.assert_allclose(d2[i, j], wanted, rtol=1e-8)
        assert upper[i, j] > d2[i, j]


def test_sliced_wasserstein_in_1d_is_the_optimal_assignment(key):
    samples = np.random.default_rng(0).normal(size=(2, 12))
    cost = (samples[0][:, None] - samples[1]) ** 2
    wanted = np.mean(cost[scipy.optimize.linear_sum_assignment(cost)])
    divergence = SlicedWasserstein(n_samples=None, n_projections=3)
    d2 = squared(divergence, key, Draws(jnp.asarray(samples)[..., None]))
    np.testing.assert_allclose(d2[0, 1], wanted, rtol=1e-10)


def test_langevin_flow_speed_is_gradient_kernel_fisher(key):
    # Proposition 4.3, with Ornstein-Uhlenbeck flows in closed form: dX = s_p(X) dt + sqrt(2) dW
    kernel, t = Gaussian(1.4), 1e-4
    start_mean, start = np.array([0.3, -0.2]), np.diag([1.0, 0.6])
    mean, variance = np.array([[1.0, 0.0], [-0.5, 2.0]]), np.array([[0.5, 1.0], [2.0, 0.7]])
    decay = np.exp(-t / variance)
    later = dist.Normal(
        jnp.asarray(mean + decay * (start_mean - mean)),
        jnp.sqrt(jnp.asarray(decay**2 * np.diag(start) + variance * (1 - decay**2))),
    ).to_event(1)
    speed = jnp.sqrt(squared(MMD(kernel), key, later)[0, 1]) / t
    nodes, weights = hermite(start_mean, start, 14)
    scores = (mean[:, None] - nodes) / variance[:, None]
    # weights m w_k on the scores turn the mean over nodes into the quadrature
    weighted = NodeScores(jnp.asarray(nodes), jnp.asarray(scores * (weights * len(nodes))[:, None]))
    features = described(KernelFisher(GradientKernel(kernel)), key, later, weighted)
    divergence = jnp.sqrt(jnp.sum((features[0] - features[1]) ** 2))
    np.testing.assert_allclose(speed, divergence, rtol=1e-3)
    scalar = described(KernelFisher(kernel), key, later, weighted)
    assert abs(jnp.sqrt(jnp.sum((scalar[0] - scalar[1]) ** 2)) / speed - 1) > 0.1


@pytest.mark.slow
def test_scores_are_blind_to_the_proportions_of_separated_modes(key):
    def two_modes(share, y):
        return jnp.logaddexp(
            jnp.log(share) - jnp.sum((y - 8) ** 2) / 2,
            jnp.log1p(-share) - jnp.sum((y + 8) ** 2) / 2,
        )

    shares = jnp.asarray([0.1, 0.9])
    nodes = jnp.concatenate(
        [jax.random.normal(key, (50, 1)) + 8, jax.random.normal(key, (50, 1)) - 8]
    )
    _, values = scores_at(Unnormalized(two_modes, shares), jnp.zeros((2, 1)), nodes)
    # the base measure covers both modes, and yet
    for divergence in (Fisher(), KernelFisher(Gaussian(2.0))):
        features = described(divergence, key, None, NodeScores(nodes, values))
        assert divergence.squared_distances(features, features)[0, 1] < 1e-12
    right = jax.random.uniform(key, (2, 400, 1)) < shares[:, None, None]
    samples = jax.random.normal(key, (2, 400, 1)) + jnp.where(right, 8.0, -8.0)
    assert squared(MMD(Gaussian(2.0)), key, Draws(samples))[0, 1] > 0.3


@pytest.mark.parametrize("dtype", quick_first([jnp.float32, jnp.float64], [jnp.float32]))
def test_kernel_fisher_is_fisher_in_1d_with_equal_variances(dtype, key):
    # a squared distance below 0 would be a NaN here, which never rejects
    mean = jax.random.normal(key, (200,), dtype) * 0.1 + 20
    predictions = dist.Normal(mean, jnp.ones((), dtype))

    @eqx.filter_jit
    def gram(divergence):
        features = divergence.features(key, predictions, None)
        features = features - divergence.center(features)
        assert features.dtype == dtype
        bandwidth, _ = bandwidths.median_heuristic(divergence, features)
        return gram_block(Gaussian(bandwidth), divergence, features, features)

    grams = [gram(GaussianFisher()), gram(GaussianKernelFisher())]
    assert jnp.all(jnp.isfinite(grams[1]))
    assert jnp.max(grams[1]) <= 1
    tolerance = 1e-4 if dtype == jnp.float32 else 1e-10
    np.testing.assert_allclose(grams[0], grams[1], atol=tolerance)


@pytest.mark.parametrize(
    "name",
    quick_first(
        DIVERGENCES, ["fisher", "gaussian kernel fisher", "mmd", "wasserstein", "bures", "sliced"]
    ),
)
def test_types_stay_and_equal_predictions_have_finite_gradients(name, key):
    divergence = DIVERGENCES[name]
    nodes = jax.random.normal(key, (3, 2), jnp.float32)

    def total(mean, deviation, kind):
        if kind == "full":
            cov = deviation[:, :, None] ** 2 * jnp.eye(2, dtype=mean.dtype)[None]
            predictions = dist.MultivariateNormal(mean, cov)
        else:
            predictions = dist.Normal(mean, deviation).to_event(1)
        at = None
        if divergence.needs_nodes:
            values = (mean[:, None] - nodes[None]) / deviation[:, None] ** 2
            at = NodeScores(nodes, values)
        features = divergence.features(key, predictions, at)
        gram = gram_block(Gaussian(jnp.ones((), mean.dtype)), divergence, features, features)
        return jnp.sum(gram), gram

    one = jnp.ones((3, 2), jnp.float32)  # all three predictions are the same
    for kind in ("diagonal", "full"):
        grads, gram = jax.jit(
            jax.grad(total, argnums=(0, 1), has_aux=True), static_argnames="kind"
        )(one, one, kind=kind)
        assert gram.dtype == jnp.float32
        assert all(g.dtype == jnp.float32 and jnp.all(jnp.isfinite(g)) for g in grads)


def test_base_measure_is_in_the_units_of_the_targets(key):
    predictions = general_gaussians(3, 2)
    units = Units(jnp.asarray([3.0, -1.0]), jnp.asarray([2.0, 0.5]))
    standardized = Standardized(predictions, units, (2,))
    mean, cov = jnp.asarray([1.0, 2.0]), jnp.asarray([[2.0, 0.3], [0.3, 1.0]])
    changed = dist.MultivariateNormal(
        units.points(predictions.loc),
        predictions.covariance_matrix / (units.scale[:, None] * units.scale[None])[None],
    )
    for form, base in [((2, 2), cov), ((2,), jnp.diagonal(cov)), ((), cov[0, 0])]:
        wide = jnp.broadcast_to(base, form) if form else base * jnp.ones(2)
        in_units = wide / (
            units.scale[:, None] * units.scale[None] if form == (2, 2) else units.scale**2
        )
        for divergence in (GaussianFisher, partial(GaussianKernelFisher, bandwidth=1.0)):
            squares = squared(divergence(mean=mean, cov=base), key, standardized)
            wanted = squared(divergence(mean=units.points(mean), cov=in_units), key, changed)
            np.testing.assert_allclose(squares, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_unset_ground_bandwidths_use_the_second_order_heuristic(key, monkeypatch):
    for module, name, value in [
        (gaussians, "spread_of_gaussians", 1.5),
        (mmd, "second_order_heuristic", 1.5),
        (mmd, "spread_of_draws", 2.5),
    ]:
        monkeypatch.setattr(module, name, lambda *_, value=value: jnp.asarray(value))
    predictions = dist.Normal(jax.random.normal(key, (4, 1)), 0.5).to_event(1)
    nodes = at_nodes(key, predictions, 5)
    chosen = bandwidths.second_order_heuristic(key, predictions)
    # neither moments nor draws: the median distance of the base points
    scores = Scores(jnp.zeros((4, 1)), nodes.values, nodes.nodes)
    i, j = np.triu_indices(5, 1)
    of_nodes = np.median(np.abs(nodes.nodes[i, 0] - nodes.nodes[j, 0]))

    def gradient(*bandwidth):
        return KernelFisher(GradientKernel(Gaussian(*bandwidth)))

    for opened, values, results in [
        (GaussianKernelFisher(), GaussianKernelFisher(bandwidth=1.5), predictions),
        (MMD(), MMD(Gaussian(1.5)), predictions),
        (MMD(IMQ(), n_samples=6), MMD(IMQ(2.5), n_samples=6), predictions),
        (KernelFisher(), KernelFisher(Gaussian(chosen)), predictions),
        (gradient(), gradient(chosen), predictions),
        (KernelFisher(IMQ()), KernelFisher(IMQ(of_nodes)), scores),
    ]:
        features = [described(divergence, key, results, nodes) for divergence in (opened, values)]
        pairs = [(f, jax.tree.map(lambda a: a[::-1], f)) for f in features]
        result, wanted = opened.paired(*pairs[0]), values.paired(*pairs[1])
        np.testing.assert_allclose(result, wanted, rtol=1e-9, atol=1e-12)
        assert jnp.min(wanted) > 1e-6


@pytest.mark.slow
def test_mmd_of_any_predictions_is_the_distance_of_kernel_means(key):
    """Of mixtures in closed form, of others by points; as a test fits it, and by itself."""
    centers = jnp.asarray([[0.0, 1.0], [0.5, 2.0], [3.0, -1.0]])
    weights = dist.Categorical(probs=jnp.asarray([0.3, 0.7]))
    mixtures = dist.MixtureSameFamily(weights, dist.Normal(centers, 0.5))
    for predictions, kernel in (
        (mixtures, Gaussian(1.5)),
        (dist.Laplace(centers[:, 0], 1.0), Gaussian(1.5)),
        (dist.Normal(centers[:, 0], 1.0), IMQ(1.5)),
    ):
        means = kernel_means(kernel, predictions, key=jax.random.split(key)[0])
        between = means.second(means.features, means.features)
        within = jnp.diagonal(between)
        wanted = within[:, None] + within[None] - 2 * between
        np.testing.assert_allclose(squared(MMD(kernel), key, predictions), wanted, atol=1e-14)
        assert jnp.min(wanted[~np.eye(3, dtype=bool)]) > 0.01
    features = MMD(Gaussian(1.5)).features(key, mixtures, None)
    paired = MMD(Gaussian(1.5)).paired(features, jax.tree.map(lambda a: a[::-1], features))
    np.testing.assert_allclose(
        paired, jnp.diagonal(squared(MMD(Gaussian(1.5)), key, mixtures)[:, ::-1]), atol=1e-12
    )


def test_wrong_use_is_named(key):
    gaussian = dist.Normal(jnp.zeros(3), 1.0)
    laplace = dist.Laplace(jnp.zeros(3), 1.0)
    nodes = NodeScores(jnp.zeros((2, 1)), jnp.zeros((3, 2, 1)))
    student = dist.StudentT(jnp.full(3, 5.0))
    for divergence in (GaussianFisher(), GaussianKernelFisher(), Wasserstein(), Bures()):
        with pytest.raises(TypeError, match="closed form"):
            divergence.features(key, student, None)
    for divergence in (GaussianFisher(), GaussianKernelFisher(), Wasserstein(), Bures(), MMD()):
        with pytest.raises(ValueError, match="batch shape"):
            divergence.features(key, dist.Normal(0.0, 1.0), None)
    with pytest.raises(TypeError, match="n_samples"):
        SlicedWasserstein(None).features(key, laplace, None)
    with pytest.raises(ValueError, match="batch shape"):
        SlicedWasserstein().features(key, dist.Normal(0.0, 1.0), None)
    with pytest.raises(ValueError, match="n_samples"):
        MMD(n_samples=0)
    with pytest.raises(ValueError, match="n_projections"):
        SlicedWasserstein(n_projections=0)
    with pytest.raises(TypeError, match="ground"):
        KernelFisher(2.0)
    with pytest.raises(ValueError, match="base points"):
        KernelFisher().features(key, gaussian, nodes._replace(nodes=None))
    with pytest.raises(ValueError, match="ground: wanted a kernel"):
        KernelFisher(lambda x, y: jnp.outer(x, y)[None]).features(key, gaussian, nodes)
    with pytest.raises(ValueError, match="cov"):
        GaussianFisher(cov=jnp.ones(2)).features(key, gaussian, None)
    with pytest.raises(ValueError, match="mean"):
        GaussianFisher(mean=jnp.ones(2)).features(key, gaussian, None)
    with pytest.raises(ValueError, match="bandwidth"):
        GaussianKernelFisher(bandwidth=jnp.ones(2)).features(key, gaussian, None)
    features = MMD(Gaussian(1.0)).features(key, gaussian, None)
    with pytest.raises(TypeError, match="radial"):
        gram_block(lambda x, y: x @ y, MMD(), features, features)


@pytest.mark.slow
def test_plain_functions_are_ground_kernels_under_jit(key):
    def bump(x, y):
        return jnp.exp(-jnp.sum((x - y) ** 2) / (2 * 1.3**2))

    predictions = general_gaussians(3, 2)
    nodes = at_nodes(key, predictions, 4)
    run = eqx.filter_jit(lambda divergence: divergence.features(key, predictions, nodes))
    np.testing.assert_allclose(
        run(KernelFisher(bump)), run(KernelFisher(Gaussian(1.3))), atol=1e-12
    )


OPEN = {
    "kernel fisher": KernelFisher(),
    "gaussian kernel fisher": GaussianKernelFisher(),
    "mmd": MMD(),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", quick_first(DIVERGENCES, ["fisher", "mmd"]))
def test_the_calibration_test_keeps_its_level_and_sees_a_shift(name, key):
    divergence = (DIVERGENCES | OPEN)[name]

    @jax.jit
    def p_values(keys, shift):
        def one(key):
            x_key, y_key, test_key = jax.random.split(key, 3)
            x = jax.random.normal(x_key, (24, 1))
            ys = x + jax.random.normal(y_key, (24, 1))
            predictions = dist.Normal(x + shift, 1.0).to_event(1)
            return kccsd_test(test_key, predictions, ys, divergence=divergence).p_value

        return jax.vmap(one)(keys)

    keys = jax.random.split(key, 120)
    p = p_values(keys, 0.0)
    low, high = scipy.stats.binom.interval(0.9999, 120, 0.05)
    assert low <= int(jnp.sum(p <= 0.05)) <= high
    assert 0.35 < jnp.mean(p) < 0.65  # 5 standard errors of a uniform mean are .13
    assert jnp.mean(p_values(keys, 1.0) <= 0.05) > 0.8


@pytest.mark.slow
@pytest.mark.parametrize("n", [300, 12_000])
def test_a_common_offset_of_vectors_costs_no_digits(n):
    apart = np.random.default_rng(0).normal(size=(n, 20))
    there = jnp.asarray(apart + 1e6, jnp.float32)
    there = there - Fisher().center(there)
    rows, cols = (there[k : k + 100] for k in (10, 150))
    wanted = np.sum((apart[10:110, None] - apart[None, 150:250]) ** 2, axis=-1)
    # float32 at 1e6 has steps of 1/16
    np.testing.assert_allclose(points.squared_distances(rows, cols), wanted, rtol=0.1)


@pytest.mark.slow
def test_a_narrow_prediction_costs_the_others_no_digits():
    """The scores of the first are a million times those of others, and move their mean."""
    rng = np.random.default_rng(0)
    centers, nodes = rng.normal(size=(100, 1)), rng.normal(size=(10, 1))
    widths = np.where(np.arange(100) == 0, 1e-4, 1.0)[:, None]
    ys = centers + widths * rng.normal(size=(100, 1))

    def test(dtype):
        c, s, y, z = (jnp.asarray(part, dtype) for part in (centers, widths, ys, nodes))
        scores = Scores((c - y) / s**2, (c[:, None] - z[None]) / s[:, None] ** 2, z)
        return kccsd_test(0, scores, y)

    with jax.enable_x64(False):
        single = test(jnp.float32)
    np.testing.assert_allclose(single.estimate, test(jnp.float64).estimate, rtol=1e-3)
