"""The Stein kernel: blocks, autodiff and the equation by hand agree; the identity holds."""

from functools import partial
from itertools import product

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import scipy.integrate
from hypothesis import given
from hypothesis import strategies as st
from quick import quick_first
from reference.operators import OperatorStein

from jaxcal.divergences import Vectors
from jaxcal.kernels import IMQ, Gaussian, Matern52, RationalQuadratic
from jaxcal.statistics.stein import Stein, SteinFeatures, stein, stein_components
from jaxcal.statistics.weighted import Weighted, WeightedFeatures

N, D, Q = 6, 3, 2
LENGTHS = np.array([0.6, 1.1, 2.0])


def user_kernel(x, y):
    """A kernel that is neither radial nor shipped: (1 + x.y)^2 + cos(x_0 - y_0)."""
    return (1 + jnp.dot(x, y)) ** 2 + jnp.cos(x[0] - y[0])


def user_derivatives(x, y):
    a, c, s = 1 + x @ y, np.cos(x[0] - y[0]), np.sin(x[0] - y[0])
    first = np.eye(len(x))[0]
    mixed = 2 * np.outer(y, x) + 2 * a * np.eye(len(x)) + c * np.outer(first, first)
    return a**2 + c, 2 * a * y - s * first, 2 * a * x + s * first, mixed


def radial(f, lengths):
    return lambda x, y: oracles.kernel_with_derivatives(f, np.asarray(lengths), x, y)


def combined(x, y):
    one = oracles.multiply(radial(oracles.gaussian, 0.7)(x, y), radial(oracles.imq(0.5), 1.3)(x, y))
    return oracles.add(one, tuple(2 * a for a in radial(oracles.matern52, 0.9)(x, y)))


def mixed_lengths(x, y):
    return oracles.add(
        radial(oracles.gaussian, LENGTHS)(x, y),
        oracles.multiply(radial(oracles.imq(0.5), 1.3)(x, y), user_derivatives(x, y)),
    )


KERNELS = {
    "gaussian": (Gaussian(0.8), radial(oracles.gaussian, 0.8)),
    "imq": (IMQ(0.8, beta=0.7), radial(oracles.imq(0.7), 0.8)),
    "rq": (RationalQuadratic(0.8, alpha=2.0), radial(oracles.rational_quadratic(2.0), 0.8)),
    "matern": (Matern52(0.8), radial(oracles.matern52, 0.8)),
    "k1 * k2 + 2 k3": (Gaussian(0.7) * IMQ(1.3) + 2.0 * Matern52(0.9), combined),
    "gaussian lengths": (Gaussian(LENGTHS), radial(oracles.gaussian, LENGTHS)),
    "imq lengths": (IMQ(LENGTHS), radial(oracles.imq(0.5), LENGTHS)),
    "matern lengths": (Matern52(LENGTHS), radial(oracles.matern52, LENGTHS)),
    "rq lengths": (RationalQuadratic(LENGTHS), radial(oracles.rational_quadratic(1.0), LENGTHS)),
    "mixed lengths": (Gaussian(LENGTHS) + IMQ(1.3) * user_kernel, mixed_lengths),
    "user": (user_kernel, user_derivatives),
}


def preconditioners(rng, n, d):
    return {
        "none": None,
        "numbers": rng.uniform(0.5, 2, size=n),
        "diagonals": rng.uniform(0.5, 2, size=(n, d)),
        "matrices": rng.normal(size=(n, d, d)),
    }


def as_matrices(m, n, d):
    if m is None:
        return np.broadcast_to(np.eye(d), (n, d, d))
    return m if m.ndim == 3 else np.array([a * np.eye(d) for a in m])


def observations(kind="none", n=N, seed=0):
    rng = np.random.default_rng(seed)
    ys, scores, phi = rng.normal(size=(n, D)), rng.normal(size=(n, D)), rng.normal(size=(n, Q))
    ys[1], phi[1] = ys[0], phi[0]  # targets and predictions that coincide
    return WeightedFeatures(phi, SteinFeatures(ys, scores, preconditioners(rng, n, D)[kind]))


def to_jax(features):
    return jax.tree.map(jnp.asarray, features)


def by_hand(derivatives, features, prediction_gram=None):
    """[d, n, n] by loops, from derivatives that were worked out by hand."""
    phi, (ys, scores, m) = features
    n, d = ys.shape
    ms = as_matrices(m, n, d)
    k = oracles.gram(oracles.imq(0.5), 1.4, phi) if prediction_gram is None else prediction_gram
    h = np.zeros((d, n, n))
    for i in range(n):
        for j in range(n):
            parts = derivatives(ys[i], ys[j])
            h[:, i, j] = k[i, j] * oracles.stein_parts(parts, scores[i], scores[j], ms[i], ms[j])
    return h


def statistic(kernel, components=False):
    stein = Stein(kernel, dimension=D, components=components)
    return Weighted(IMQ(1.4), Vectors(jnp.zeros((0, Q))), stein)


@eqx.filter_jit
def block(pairwise, rows, cols):
    return pairwise.block(rows, cols)


@eqx.filter_jit
def blocks_and_diagonals(kernel, features):
    whole, parts = statistic(kernel), statistic(kernel, components=True)
    return (
        whole.block(features, features),
        whole.diagonal(features),
        parts.block(features, features),
        parts.diagonal(features),
    )


CASES = [(name, kind) for name in KERNELS for kind in ("none", "matrices")]
CASES += [
    (name, kind)
    for name in ("gaussian", "gaussian lengths", "mixed lengths")
    for kind in ("numbers", "diagonals")
]
# each profile, each kind of preconditioner, sums and products, one length and several
QUICK = [
    ("gaussian", "none"),
    ("gaussian lengths", "matrices"),
    ("imq lengths", "none"),
    ("rq", "matrices"),
    ("matern", "none"),
    ("mixed lengths", "diagonals"),
    ("gaussian", "numbers"),
    ("user", "matrices"),
    ("k1 * k2 + 2 k3", "none"),
]


@pytest.mark.parametrize(("name", "kind"), quick_first(CASES, QUICK))
def test_block_is_the_equation(name, kind):
    kernel, derivatives = KERNELS[name]
    features = observations(kind)
    wanted = by_hand(derivatives, features)
    whole, diagonal, parts, own_parts = blocks_and_diagonals(kernel, to_jax(features))
    close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-10)
    assert whole.shape == (1, N, N)
    close(whole[0], wanted.sum(0))
    close(diagonal[0], np.diag(wanted.sum(0)))
    assert parts.shape == (D, N, N)
    close(parts, wanted)
    close(own_parts, np.einsum("dii->di", wanted))


@pytest.mark.parametrize(
    "name", quick_first(KERNELS, ["gaussian", "matern", "k1 * k2 + 2 k3", "mixed lengths", "user"])
)
def test_definition_by_autodiff_is_the_equation(name):
    kernel, derivatives = KERNELS[name]
    rng = np.random.default_rng(4)
    x, y, s, t = rng.normal(size=(4, D))
    m, w = rng.normal(size=(2, D, D))
    for other in (y, x):
        args = [jnp.asarray(a) for a in (x, other, s, t)]
        parts = derivatives(x, other)
        got = eqx.filter_jit(stein)(kernel, *args)
        np.testing.assert_allclose(got, oracles.stein_parts(parts, s, t).sum(), rtol=1e-10)
        got = eqx.filter_jit(stein_components)(kernel, *args, jnp.asarray(m), jnp.asarray(w))
        np.testing.assert_allclose(got, oracles.stein_parts(parts, s, t, m, w), rtol=1e-10)


def test_rectangular_blocks():
    kernel, derivatives = KERNELS["gaussian"]
    features = observations("matrices")
    rows = jax.tree.map(lambda a: jnp.asarray(a[:2]), features)
    cols = jax.tree.map(lambda a: jnp.asarray(a[2:]), features)
    got = block(statistic(kernel), rows, cols)
    np.testing.assert_allclose(got[0], by_hand(derivatives, features).sum(0)[:2, 2:], rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"),
    quick_first(
        product(["gaussian", "imq lengths"], ["none", "matrices"]), [("imq lengths", "matrices")]
    ),
)
def test_operator_valued_form_equals_the_special_forms(name, kind):
    kernel, derivatives = KERNELS[name]
    features = observations(kind, n=4)
    observed = features.residual
    ms = jnp.asarray(as_matrices(observed.preconditioner, 4, D))
    scale = IMQ(1.4)

    def operator(p, q, x, y):
        # acting on scores from the left with that of the SECOND observation: M_q^T k M_p
        return scale(p["phi"], q["phi"]) * kernel(x, y) * (q["m"].T @ p["m"])

    with_matrices = to_jax(
        WeightedFeatures(
            {"phi": features.predictions, "m": ms}, observed._replace(preconditioner=None)
        )
    )
    general = block(OperatorStein(operator), with_matrices, with_matrices)[0]
    np.testing.assert_allclose(general, by_hand(derivatives, features).sum(0), rtol=1e-9, atol=1e-9)
    diagonal = OperatorStein(operator).diagonal(with_matrices)
    np.testing.assert_allclose(diagonal[0], np.diag(general), rtol=1e-9)


@pytest.mark.parametrize("kind", ["none", "matrices"])
@pytest.mark.parametrize("name", ["gaussian", "imq", "rq", "matern", "user"])
def test_matrix_is_symmetric_and_positive_semidefinite(name, kind):
    kernel, _ = KERNELS[name]
    features = to_jax(observations(kind, n=12, seed=5))
    h = np.asarray(block(statistic(kernel), features, features)[0])
    np.testing.assert_allclose(h, h.T, atol=1e-11 * np.abs(h).max())
    assert np.linalg.eigvalsh(h).min() > -1e-10 * np.abs(h).max()


@pytest.mark.slow
def test_sign_of_the_cross_term_in_numbers():
    # Gaussian, d = 1, l = 1, x = 1, y = 0, s = 2, t = 3:
    # e^{-1/2} {6 + (s - t)(x - y) + 1 - 1} = 5 e^{-1/2}
    h = stein(Gaussian(1.0), *(jnp.asarray([v]) for v in (1.0, 0.0, 2.0, 3.0)))
    np.testing.assert_allclose(h, 5 * np.exp(-0.5), rtol=1e-14)


def quartic(y):
    return -(y**4) / 4 + y**2 / 2, -(y**3) + y


def student(y, nu=4.0, scale=0.8):
    return -(nu + 1) / 2 * np.log1p((y / scale) ** 2 / nu), -(nu + 1) * y / (nu * scale**2 + y**2)


def mixture(y):
    a, b = np.log(0.3) - (y + 1) ** 2 / 2, np.log(1.4) - (y - 2) ** 2 / 0.5
    both = np.logaddexp(a, b)
    return both, -np.exp(a - both) * (y + 1) - np.exp(b - both) * (y - 2) / 0.25


def normal(y):
    return -((y - 0.5) ** 2) / 2 / 0.49, -(y - 0.5) / 0.49


@pytest.mark.parametrize("name", ["gaussian", "imq", "matern", "k1 * k2 + 2 k3"])
@pytest.mark.parametrize("density", [normal, mixture, student, quartic])
def test_expectation_under_the_prediction_is_zero(density, name):
    """E_{y ~ p} h((p, y), (p', y')) = 0, by quadrature on a grid, for fixed (p', y')."""
    kernel, _ = KERNELS[name]
    # y = sinh(t): the trapezoid rule in t converges fast and reaches the Student's tails
    t = np.linspace(-16, 16, 8001)
    grid = np.sinh(t)
    log_density, scores = density(grid)
    weight = np.exp(log_density - log_density.max()) * np.cosh(t)
    weight /= weight.sum()
    one = SteinFeatures(jnp.array([[0.7]]), jnp.array([[-1.3]]))
    many = SteinFeatures(jnp.asarray(grid[:, None]), jnp.asarray(scores[:, None]))
    h = np.asarray(block(Stein(kernel, dimension=1), one, many)[0, 0])
    assert np.sum(np.abs(h) * weight) > 0.1
    assert abs(np.sum(h * weight)) < 1e-8


@pytest.mark.parametrize("name", ["gaussian", "imq lengths 2", "matern"])
def test_expectation_is_zero_in_two_dimensions_with_any_matrix(name):
    kernel = IMQ([0.6, 1.7]) if name == "imq lengths 2" else KERNELS[name][0]
    line = np.arange(-8, 8, 0.1)  # the trapezoid rule, exact to rounding for analytic integrands
    z = np.stack(np.meshgrid(line, line), -1).reshape(-1, 2)
    w = np.exp(-np.sum(z**2, -1) / 2)
    w /= w.sum()
    root = np.array([[0.9, 0.0], [0.5, 0.6]])
    ys = z @ root.T + [0.3, -0.2]
    scores = -z @ np.linalg.inv(root)
    m = np.broadcast_to(np.array([[1.0, 2.0], [-0.5, 0.3]]), (len(ys), 2, 2))
    many = SteinFeatures(*map(jnp.asarray, (ys, scores, m)))
    other = jnp.asarray([[0.4, -1.0], [0.2, 1.5]])
    one = SteinFeatures(jnp.asarray([[0.1, 0.8]]), jnp.asarray([[1.0, -2.0]]), other[None])
    h = np.asarray(block(Stein(kernel, dimension=2), one, many)[0, 0])
    assert np.sum(np.abs(h) * w) > 0.1
    # the jump in the third derivatives of the Matern limits the quadrature, not the identity
    assert abs(np.sum(h * w)) < (1e-3 if name == "matern" else 1e-9)


def test_quadrature_by_scipy_agrees():
    one = (np.array([0.7]), np.array([-1.3]))

    def integrand(y):
        log_density, s = quartic(y)
        parts = oracles.kernel_with_derivatives(oracles.gaussian, 0.8, np.array([y]), one[0])
        return np.exp(log_density) * oracles.stein_parts(parts, np.array([s]), one[1])[0]

    value, error = scipy.integrate.quad(integrand, -8, 8, epsabs=1e-12, limit=200)
    assert abs(value) < 1e-9 + error


@given(scale=st.floats(1e-3, 1e3))
def test_scale_covariance(scale):
    """y -> c y, l -> c l, s -> s / c leaves c^2 h unchanged."""
    features = to_jax(observations())
    observed = features.residual
    wider = observed._replace(ys=observed.ys * scale, scores=observed.scores / scale)
    other = features._replace(residual=wider)
    plain = block(statistic(IMQ(0.8)), features, features)
    scaled = block(statistic(IMQ(jnp.asarray(0.8 * scale))), other, other)
    np.testing.assert_allclose(scale**2 * scaled, plain, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    "name",
    quick_first(
        ["gaussian", "matern", "matern lengths", "mixed lengths"], ["matern", "mixed lengths"]
    ),
)
def test_gradients_are_finite_where_observations_coincide(name):
    kernel, _ = KERNELS[name]
    features = to_jax(observations("matrices"))

    @eqx.filter_jit
    @jax.grad
    def slope(features):
        return jnp.sum(statistic(kernel).block(features, features) ** 2)

    for leaf in jax.tree.leaves(slope(features)):
        assert np.all(np.isfinite(leaf))


@pytest.mark.parametrize("length", [0.8, [0.6, 1.1, 2.0]], ids=["one", "many"])
def test_float32_stays_float32(length):
    features = jax.tree.map(lambda a: jnp.asarray(a, jnp.float32), observations("diagonals"))
    length = jnp.asarray(length, jnp.float32)
    kernel = Gaussian(length)
    stein = Stein(kernel, dimension=D)
    pairwise = Weighted(Gaussian(1.4), Vectors(jnp.zeros((0, Q))), stein)
    assert block(pairwise, features, features).dtype == jnp.float32
