"""Maps from predictions to vectors: their distances against quadrature, scipy and Monte Carlo."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.linalg
import scipy.optimize
from jax.test_util import check_grads
from reference.sliced import sliced_wasserstein

from jaxcal.divergences import fisher, gaussians
from jaxcal.numerics import psd_root

RNG = np.random.default_rng(3)
FUNCTIONS = (
    fisher.fisher,
    fisher.kernel_fisher,
    gaussians.gaussian_fisher,
    gaussians.gaussian_kernel_fisher,
    gaussians.wasserstein,
    psd_root,
)
embeddings = SimpleNamespace(**{function.__name__: jax.jit(function) for function in FUNCTIONS})


def covariances(n, d, rng=RNG):
    root = rng.normal(size=(n, d, d))
    return root @ np.swapaxes(root, 1, 2) + 0.3 * np.eye(d)


def gauss_hermite(mean, cov, degree=6):
    """Nodes and weights for N(mean, cov): exact for polynomials of degree < 2 degree."""
    x, w = np.polynomial.hermite_e.hermegauss(degree)
    d = len(mean)
    grid = np.stack(np.meshgrid(*[x] * d, indexing="ij"), -1).reshape(-1, d)
    weights = np.prod(np.stack(np.meshgrid(*[w] * d, indexing="ij"), -1).reshape(-1, d), axis=1)
    return mean + grid @ np.linalg.cholesky(cov).T, weights / weights.sum()


def gaussian_scores(mean, cov, nodes):
    """Scores of each Gaussian at the nodes, [n, m, d]."""
    return np.stack([np.linalg.solve(c, (m - nodes).T).T for m, c in zip(mean, cov, strict=True)])


def squared(vectors):
    one, other = np.asarray(vectors)
    return np.sum((one - other) ** 2)


def test_fisher_is_the_mean_squared_difference_of_scores():
    scores = RNG.normal(size=(2, 7, 3))
    wanted = np.mean(np.sum((scores[0] - scores[1]) ** 2, axis=-1))
    np.testing.assert_allclose(squared(embeddings.fisher(jnp.asarray(scores))), wanted)


@pytest.mark.parametrize("matrix", [False, True])
def test_kernel_fisher_is_the_double_sum(matrix):
    m, d = 6, 3
    scores, nodes = RNG.normal(size=(2, m, d)), RNG.normal(size=(m, d))
    gram = np.exp(-np.sum((nodes[:, None] - nodes) ** 2, -1) / 2)
    if matrix:
        side = RNG.normal(size=(m, d, d))
        gram = np.einsum("kab,lcb->klac", side, side) * gram[..., None, None]
        full = gram
    else:
        full = gram[..., None, None] * np.eye(d)
    delta = scores[0] - scores[1]
    wanted = np.einsum("ka,klab,lb->", delta, full, delta) / m**2
    result = embeddings.kernel_fisher(jnp.asarray(scores), jnp.asarray(gram))
    np.testing.assert_allclose(squared(result), wanted, rtol=1e-10)


def test_kernel_fisher_is_finite_for_a_singular_float32_gram():
    nodes = np.linspace(0, 1e-3, 20, dtype=np.float32)
    gram = jnp.asarray(np.exp(-((nodes[:, None] - nodes) ** 2) / 2))
    assert not jnp.all(jnp.isfinite(jnp.linalg.cholesky(gram)))  # what a Cholesky factor would be
    scores = jnp.ones((1, 20, 1), jnp.float32)
    result = embeddings.kernel_fisher(scores, gram)
    assert result.dtype == jnp.float32
    np.testing.assert_allclose(np.sum(np.asarray(result) ** 2), 1.0, rtol=1e-5)


@pytest.mark.parametrize("base", ["variances", "covariance"])
@pytest.mark.parametrize("model", ["variances", "covariance"])
def test_gaussian_fisher_is_the_integral_over_the_base(model, base):
    mean, base_mean = RNG.normal(size=(2, 2)), RNG.normal(size=2)
    cov, base_cov = covariances(2, 2), covariances(1, 2)[0]
    if model == "variances":
        cov = np.stack([np.diag(np.diag(c)) for c in cov])
    if base == "variances":
        base_cov = np.diag(np.diag(base_cov))
    nodes, weights = gauss_hermite(base_mean, base_cov)
    scores = gaussian_scores(mean, cov, nodes)
    wanted = weights @ np.sum((scores[0] - scores[1]) ** 2, axis=-1)
    result = embeddings.gaussian_fisher(
        jnp.asarray(mean),
        jnp.asarray(cov if model == "covariance" else np.stack([np.diag(c) for c in cov])),
        jnp.asarray(base_mean),
        jnp.asarray(base_cov if base == "covariance" else np.diag(base_cov)),
    )
    np.testing.assert_allclose(squared(result), wanted, rtol=1e-10)


@pytest.mark.parametrize("base", ["variances", "covariance"])
@pytest.mark.parametrize("model", ["variances", "covariance"])
def test_gaussian_kernel_fisher_is_the_double_integral(model, base):
    mean, base_mean = RNG.normal(size=(2, 2)), RNG.normal(size=2)
    cov, base_cov = covariances(2, 2), 0.3 * covariances(1, 2)[0]
    lengths = np.array([1.5, 2.5])
    if model == "variances":
        cov = np.stack([np.diag(np.diag(c)) for c in cov])
    if base == "variances":
        base_cov = np.diag(np.diag(base_cov))
    nodes, weights = gauss_hermite(base_mean, base_cov, degree=30)
    delta = np.subtract(*gaussian_scores(mean, cov, nodes)) * weights[:, None]
    scaled = nodes / lengths
    gram = np.exp(-np.sum((scaled[:, None] - scaled) ** 2, -1) / 2)
    wanted = np.sum(delta * (gram @ delta))
    result = embeddings.gaussian_kernel_fisher(
        jnp.asarray(mean),
        jnp.asarray(cov if model == "covariance" else np.stack([np.diag(c) for c in cov])),
        jnp.asarray(base_mean),
        jnp.asarray(base_cov if base == "covariance" else np.diag(base_cov)),
        jnp.asarray(lengths),
    )
    np.testing.assert_allclose(squared(result), wanted, rtol=1e-8)


def test_wasserstein_is_bures_or_an_upper_bound():
    def bures(c1, c2):
        root = scipy.linalg.sqrtm(c2)
        return np.trace(c1 + c2 - 2 * scipy.linalg.sqrtm(root @ c1 @ root).real)

    axes = scipy.linalg.qr(RNG.normal(size=(3, 3)))[0]
    cov = np.stack([axes @ np.diag(v) @ axes.T for v in RNG.uniform(0.1, 4, (2, 3))])
    mean = RNG.normal(size=(2, 3))
    shift = np.sum((mean[0] - mean[1]) ** 2)
    result = embeddings.wasserstein(jnp.asarray(mean), jnp.asarray(cov))
    np.testing.assert_allclose(squared(result), shift + bures(*cov), rtol=1e-10)
    general = covariances(2, 3)
    result = embeddings.wasserstein(jnp.asarray(mean), jnp.asarray(general))
    assert squared(result) > shift + bures(*general) + 1e-3
    variances = RNG.uniform(0.1, 4, (2, 3))
    result = embeddings.wasserstein(jnp.asarray(mean), jnp.asarray(variances))
    np.testing.assert_allclose(squared(result), shift + bures(*map(np.diag, variances)), rtol=1e-10)


def test_isotropic_wasserstein_compares_deviations_not_variances():
    mean, d = jnp.zeros((2, 4)), 4
    squares = squared(embeddings.wasserstein(mean, jnp.asarray([[4.0] * d, [9.0] * d])))
    np.testing.assert_allclose(
        squares, d * (2 - 3) ** 2
    )  # the paper's print would give d (4 - 9)^2


def test_sliced_wasserstein_averages_optimal_assignments():
    samples, angles = RNG.normal(size=(2, 9, 2)), RNG.uniform(0, 2 * np.pi, 5)
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    costs = []
    for theta in directions:
        cost = (samples[0] @ theta)[:, None] - samples[1] @ theta
        costs.append(np.mean(cost[scipy.optimize.linear_sum_assignment(cost**2)] ** 2))
    result = sliced_wasserstein(jnp.asarray(samples), jnp.asarray(directions))
    np.testing.assert_allclose(squared(result), np.mean(costs), rtol=1e-10)


def test_psd_root_and_its_derivative():
    matrix = covariances(1, 4)[0]
    root = embeddings.psd_root(jnp.asarray(matrix))
    np.testing.assert_allclose(root, scipy.linalg.sqrtm(matrix), rtol=1e-9)

    @jax.jit
    def probe(a):
        return embeddings.psd_root(jnp.asarray(a + a.T) / 2)

    check_grads(probe, (jnp.asarray(matrix),), order=1, modes=["fwd", "rev"], atol=1e-6, rtol=1e-6)
    # equal eigenvalues, where the derivative of the eigenvectors does not exist
    check_grads(probe, (2 * jnp.eye(3),), order=1, modes=["fwd", "rev"], atol=1e-6, rtol=1e-6)
    singular = jnp.diag(jnp.asarray([1.0, 0.0]))
    assert np.all(np.isfinite(jax.jit(jax.jacrev(embeddings.psd_root))(singular)))


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64])
def test_embeddings_keep_the_type_they_are_given(dtype):
    mean, variances = np.zeros((3, 2), dtype), np.ones((3, 2), dtype)
    cov, base = variances[:, :, None] * np.eye(2, dtype=dtype), np.ones(2, dtype)
    scores = np.ones((3, 4, 2), dtype)
    values = [
        embeddings.fisher(scores),
        embeddings.kernel_fisher(scores, np.eye(4, dtype=dtype)),
        embeddings.gaussian_fisher(mean, variances, base, base),
        embeddings.gaussian_fisher(mean, cov, base, np.eye(2, dtype=dtype)),
        embeddings.gaussian_kernel_fisher(mean, variances, base, base, base),
        embeddings.gaussian_kernel_fisher(mean, cov, base, np.eye(2, dtype=dtype), base),
        embeddings.wasserstein(mean, variances),
        embeddings.wasserstein(mean, cov),
        sliced_wasserstein(scores, np.eye(2, dtype=dtype)),
    ]
    assert {vector.dtype for vector in values} == {jnp.dtype(dtype)}
    assert all(np.all(np.isfinite(vector)) for vector in values)
