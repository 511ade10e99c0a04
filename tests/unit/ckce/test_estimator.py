"""The exact estimator against NumPy, its limits and invariances, its gradients, its errors."""

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
import scipy.stats
from problems import N
from reference.conditional_means import cross_validated_ridge, null_mean
from reference.incomplete import sampled_residuals
from reference.joint import jkce

from jaxcal.ckce import Equal, ckce, ckce_test, solvers
from jaxcal.ckce.inputs import class_root, residuals
from jaxcal.ckce.kernels import median_bandwidth
from jaxcal.ckce.results import CKCE
from jaxcal.kernels import Gaussian, Laplace, Linear, Matern52
from jaxcal.kernels.grams import gram
from jaxcal.skce import skce

Q, Y = problems.data()
GAMMA = problems.median(Q)
K = problems.simplex_gram(Q, Q, GAMMA)
R = problems.one_hot(Y) - np.asarray(Q)
RIDGE = N**-0.25


def test_equals_the_trace_formula_of_the_paper():
    estimate = ckce(Q, Y)
    wanted = problems.trace_formula(K, R @ R.T, RIDGE)
    np.testing.assert_allclose(estimate.estimate, wanted, rtol=1e-10)
    np.testing.assert_allclose(jnp.sum(estimate.contributions), wanted, rtol=1e-10)
    np.testing.assert_allclose(estimate.ridge, RIDGE)
    np.testing.assert_allclose(estimate.bandwidths["prediction"], GAMMA)


@pytest.mark.slow
def test_the_other_forms_agree():
    wanted = ckce(Q, Y)
    gram_q, left = jnp.asarray(K), jnp.asarray(R)
    ridge = jnp.asarray(RIDGE)
    whole = solvers.fit_products(gram_q, left @ left.T, ridge)
    np.testing.assert_allclose(whole.estimate, wanted.estimate, rtol=1e-10)
    np.testing.assert_allclose(whole.contributions, wanted.contributions, rtol=1e-9)
    np.testing.assert_allclose(whole.influence, wanted.influence, atol=1e-12)
    w = solvers.null_weights(gram_q, ridge)
    np.testing.assert_allclose(jnp.sum(w * (left @ left.T)), wanted.estimate, rtol=1e-10)
    path = ckce(Q, Y, ridge=[0.01, RIDGE, 1.0])
    assert path.contributions.shape == (3, N)
    path = path.estimate
    np.testing.assert_allclose(path[1], wanted.estimate, rtol=1e-10)
    for ridge, value in zip([0.01, 1.0], path[jnp.asarray([0, 2])], strict=True):
        wanted = problems.trace_formula(K, R @ R.T, ridge)
        np.testing.assert_allclose(value, wanted, rtol=1e-9)


def test_a_similarity_of_classes_changes_residual_products():
    root = np.asarray(jax.random.normal(jax.random.key(2), (3, 3)))
    similarity = root @ root.T
    estimate = ckce(Q, Y, target_kernel=similarity).estimate
    q, e = np.asarray(Q), problems.one_hot(Y)
    # entry by entry: l(y, y') - E l(Z, y') - E l(y, Z') + E l(Z, Z')
    products = e @ similarity @ e.T - q @ similarity @ e.T - e @ similarity @ q.T
    products = products + q @ similarity @ q.T
    np.testing.assert_allclose(estimate, problems.trace_formula(K, products, RIDGE), rtol=1e-9)
    np.testing.assert_allclose(ckce(Q, Y, target_kernel=np.eye(3)).estimate, ckce(Q, Y).estimate)


@pytest.mark.parametrize(
    "kernel",
    [
        Gaussian(0.4),
        Laplace(0.5),
        Matern52(0.3) * Linear(),
        2.0 * Gaussian(0.3) + Linear(),
        Equal(),
        Gaussian([0.3, 0.4, 0.5]),
    ],
    ids=repr,
)
def test_every_kernel_has_the_gram_matrix_of_its_definition(kernel):
    xs, ys = Q[:4], Q[2:7]
    pair = jax.jit(kernel.__call__)
    wanted = [[float(pair(x, y)) for y in ys] for x in xs]
    np.testing.assert_allclose(gram(kernel, xs, ys), wanted, atol=1e-7)


def test_any_kernel_serves():
    kernel = 2.0 * Laplace(0.5) + Matern52(0.3) * Linear()
    gaps = np.linalg.norm(np.asarray(Q)[:, None] - np.asarray(Q), axis=-1)
    t = 5**0.5 * gaps / 0.3
    whole = 2 * np.exp(-gaps / 0.5) + (1 + t + t**2 / 3) * np.exp(-t) * np.asarray(Q @ Q.T)
    estimate = ckce(Q, Y, prediction_kernel=kernel).estimate
    np.testing.assert_allclose(estimate, problems.trace_formula(whole, R @ R.T, RIDGE), rtol=1e-6)


def test_a_constant_predictor_compares_frequencies():
    q = jnp.tile(jnp.asarray([0.5, 0.3, 0.2]), (N, 1))
    c, frequencies = float(jnp.sum(q[0] ** 2)) + 1, np.bincount(Y, minlength=3) / N
    wanted = c / (c + RIDGE) ** 2 * np.sum((frequencies - np.asarray(q[0])) ** 2)
    for bandwidth in (None, 0.01, 10.0):
        estimate = ckce(q, Y, bandwidth=bandwidth)
        np.testing.assert_allclose(estimate.estimate, wanted, rtol=1e-9)
    assert "all predictions compared are identical" in estimate.warnings()[0]
    balanced = jnp.arange(N + 2) % 3
    assert float(ckce(jnp.full((N + 2, 3), 1 / 3), balanced).estimate) < 1e-28


def test_redrawn_labels_that_tie_with_the_data_count(key):
    """Equal predictions expect 1 one in 10 rows: 3 or more are as far from it as the data."""
    q = jnp.tile(jnp.array([0.9, 0.1]), (10, 1))
    exact = scipy.stats.binom.sf(2, 10, 0.1)
    for order in range(4):
        y = np.random.default_rng(order).permutation([1] * 3 + [0] * 7)
        result = ckce_test(key, q, jnp.asarray(y), n_draws=999)
        low, high = scipy.stats.binom.interval(0.9999, 999, exact)
        assert (1 + low) / 1000 <= float(result.p_value) <= (1 + high) / 1000


def test_limits_in_the_ridge():
    ridges = np.geomspace(1e-3, 1e6, 30)
    path = np.asarray(ckce(Q, Y, ridge=ridges).estimate)
    assert np.all(np.diff(path) < 0)
    brier = np.mean(np.sum(R**2, axis=1))
    assert np.all((path >= 0) & (path <= brier / (4 * ridges)))
    np.testing.assert_allclose(ridges[-1] ** 2 * path[-1], jkce(Q, Y).biased, rtol=1e-5)
    # K of a coarse kernel has full rank to rounding, and ridge 0 is the pseudo-inverse
    sharp = np.asarray(gram(Laplace(0.1), Q, Q))
    small = ckce(Q, Y, ridge=1e-12, prediction_kernel=Laplace(0.1)).estimate
    np.testing.assert_allclose(small, np.trace(np.linalg.pinv(sharp) @ R @ R.T), rtol=1e-6)


def test_null_mean_is_the_average_over_redrawn_labels():
    result = null_mean(Q)
    q = np.asarray(Q)
    w = problems.weights(K, RIDGE)
    np.testing.assert_allclose(result, np.diag(w) @ (1 - np.sum(q**2, axis=1)), rtol=1e-9)
    uniform = np.random.default_rng(3).uniform(size=(4000, N, 1))
    left = np.eye(3)[(uniform > np.cumsum(q, axis=1)[:, :-1]).sum(axis=-1)] - q
    values = np.einsum("bip,ij,bjp->b", left, w, left)
    assert abs(values.mean() - result) < 4 * values.std() / 4000**0.5


@pytest.mark.slow
def test_sampled_predictions_add_the_null_mean():
    w = jnp.asarray(problems.weights(K, RIDGE))
    keys = jax.random.split(jax.random.key(4), 2000)

    def value(key, draws):
        left = sampled_residuals(key, Q, Y, n_samples=draws)
        return jnp.sum(left * (w @ left))

    for draws in (1, 5):
        values = jax.vmap(lambda k, draws=draws: value(k, draws))(keys)
        wanted = ckce(Q, Y).estimate + null_mean(Q) / draws
        assert abs(values.mean() - wanted) < 4 * values.std() / 2000**0.5


def test_null_mean_with_a_similarity():
    similarity = np.array([[2.0, 1, 0], [1, 2, 0], [0, 0, 1]])
    q, w = np.asarray(Q), problems.weights(K, RIDGE)
    variances = q @ np.diag(similarity) - np.sum(q @ similarity * q, axis=1)
    np.testing.assert_allclose(
        null_mean(Q, target_kernel=similarity), np.diag(w) @ variances, rtol=1e-9
    )


def test_invariances():
    options = {"bandwidth": 0.3, "ridge": 0.2}
    wanted = ckce(Q, Y, **options).estimate
    order = jax.random.permutation(jax.random.key(1), N)
    np.testing.assert_allclose(ckce(Q[order], Y[order], **options).estimate, wanted, rtol=1e-11)
    classes = jnp.asarray([2, 0, 1])  # class c becomes classes[c]
    renamed = jnp.zeros_like(Q).at[:, classes].set(Q)
    np.testing.assert_allclose(ckce(renamed, classes[Y], **options).estimate, wanted, rtol=1e-11)
    twice = ckce(jnp.concatenate([Q, Q]), jnp.concatenate([Y, Y]), **options)
    np.testing.assert_allclose(twice.estimate, wanted, rtol=1e-10)


def test_repeated_predictions_equal_their_aggregated_form():
    distinct = jnp.asarray([[0.7, 0.2, 0.1], [0.1, 0.8, 0.1], [0.2, 0.3, 0.5]])
    which = jax.random.randint(jax.random.key(5), (N,), 0, 3)
    estimate = ckce(distinct[which], Y, bandwidth=0.4, ridge=0.1).estimate
    share = np.bincount(which, minlength=3) / N
    r = problems.one_hot(Y) - np.asarray(distinct)[which]
    means = np.stack([r[which == a].mean(axis=0) for a in range(3)])
    root = np.diag(np.sqrt(share))
    m = root @ problems.simplex_gram(distinct, distinct, 0.4) @ root
    inverse = np.linalg.inv(m + 0.1 * np.eye(3))
    wanted = np.trace(means.T @ root @ inverse @ m @ inverse @ root @ means)
    np.testing.assert_allclose(estimate, wanted, rtol=1e-10)


def test_influence_is_the_derivative_in_the_weights():
    def value(weights):
        root = jnp.diag(jnp.sqrt(weights))
        heavy = root @ jnp.asarray(K) @ root
        b = jnp.linalg.solve(heavy + RIDGE * jnp.eye(N), root @ jnp.asarray(R))
        return jnp.sum(b * (heavy @ b))

    even = jnp.full(N, 1 / N)
    slope = jax.jit(jax.grad(value))(even)
    estimate = ckce(Q, Y)
    np.testing.assert_allclose(estimate.influence, slope - slope.mean(), atol=1e-12)
    error = np.sqrt(np.mean((slope - slope.mean()) ** 2) / N)
    np.testing.assert_allclose(estimate.standard_error, error, rtol=1e-9)


def test_gradients_are_right_and_finite_at_duplicates():
    def value(q):
        return ckce(q, Y, bandwidth=0.3).estimate

    slope = jax.grad(value)
    way = jnp.asarray(np.random.default_rng(6).normal(size=Q.shape))
    step = 1e-6 * Q * (way - jnp.sum(Q * way, axis=1, keepdims=True))  # stays on the simplex
    wanted = (value(Q + step) - value(Q - step)) / 2e-6
    np.testing.assert_allclose(jnp.sum(slope(Q) * step) * 1e6, wanted, rtol=1e-5)
    same = jnp.concatenate([Q[: N // 2], Q[: N // 2]])
    assert bool(jnp.all(jnp.isfinite(slope(same))))
    kernel = Laplace(0.3) + Matern52(0.4)
    rough = jax.grad(lambda q: ckce(q, Y, prediction_kernel=kernel).estimate)
    assert bool(jnp.all(jnp.isfinite(rough(same))))
    assert bool(jnp.all(jnp.isfinite(slope(jnp.full((N, 3), 1 / 3)))))


@pytest.mark.slow
@pytest.mark.usefixtures("programs_stay")
def test_transformations_and_traces():
    traces = []

    @jax.jit
    def value(q, y, ridge, bandwidth):
        traces.append(0)
        estimate = ckce(q, y, ridge=ridge, bandwidth=bandwidth)
        assert repr(estimate) == "CKCE(traced)"
        assert estimate.warnings() == []
        return estimate.estimate

    wanted = ckce(Q, Y, ridge=0.1, bandwidth=0.3).estimate
    np.testing.assert_allclose(value(Q, Y, 0.1, 0.3), wanted)
    value(Q[::-1], Y, 0.2, 0.4)
    assert len(traces) == 1
    both = jax.vmap(lambda q: ckce(q, Y, ridge=0.1, bandwidth=0.3))(jnp.stack([Q, Q[::-1]]))
    assert isinstance(both, CKCE)
    np.testing.assert_allclose(both.estimate[0], wanted)
    assert "2 values of CKCE" in repr(both)
    assert "comparable only at equal n, ridge and kernel" in repr(ckce(Q, Y))
    assert ckce(Q, Y).to_dict()["warnings"] == []


def test_float32_keeps_its_digits():
    q = Q.astype(jnp.float32)
    estimate = ckce(q / jnp.sum(q, axis=1, keepdims=True), Y)
    assert estimate.estimate.dtype == jnp.float32
    np.testing.assert_allclose(estimate.estimate, ckce(Q, Y).estimate, rtol=1e-4)


def test_the_schedule_and_the_median():
    estimate = ckce(Q, Y, ridge=lambda n: 1 / n)
    np.testing.assert_allclose(estimate.ridge, 1 / N)
    width = jax.jit(median_bandwidth)
    np.testing.assert_allclose(width(Q), problems.median(Q), rtol=1e-12)
    assert float(width(jnp.full((N, 3), 1 / 3))) == 1.0
    some = Q.at[: N - 2].set(Q[0])
    assert 0 < float(width(some)) < 2


def test_cross_validation_leaves_one_out():
    ridges = jnp.asarray([0.01, 0.1, 1.0])
    k, e = problems.simplex_gram(Q, Q, 0.3), problems.one_hot(Y)
    best, errors = cross_validated_ridge(jnp.asarray(k), jnp.asarray(e), ridges)
    for ridge, error in zip(ridges, errors, strict=True):
        gaps = []
        for i in range(N):
            keep = np.arange(N) != i
            a = k[np.ix_(keep, keep)] + ridge * N * np.eye(N - 1)
            gaps.append(np.sum((e[i] - k[i, keep] @ np.linalg.solve(a, e[keep])) ** 2))
        np.testing.assert_allclose(error, np.mean(gaps), rtol=1e-8)
    assert float(best) == ridges[int(np.argmin(errors))]


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf")])
def test_ridges_that_are_none(value):
    with pytest.raises(ValueError, match="ridge: wanted a positive, finite number"):
        ckce(Q, Y, ridge=value)
    with pytest.raises(ValueError, match="ridge: wanted positive, finite numbers"):
        ckce(Q, Y, ridge=[0.1, value])


def test_bad_input_is_named():
    with pytest.raises(TypeError, match="ridge: wanted None"):
        ckce(Q, Y, ridge="small")
    with pytest.raises(ValueError, match="ridge: wanted one number"):
        ckce_test(0, Q, Y, ridge=jnp.ones(2))
    with pytest.raises(ValueError, match="given: wanted n="):
        ckce(Q, Y, given=Y[1:])
    with pytest.raises(ValueError, match="does not sum to 1"):
        ckce(3 * Q, Y)
    with pytest.raises(ValueError, match="predictions: row 1 holds NaN"):
        ckce(Q.at[1, 0].set(jnp.nan), Y)
    with pytest.raises(ValueError, match="subtract 1, they start at 0"):
        ckce(Q, Y + 1)
    with pytest.raises(ValueError, match="one class per observation"):
        ckce(Q, Y[1:])
    with pytest.raises(TypeError, match="integer classes"):
        ckce(Q, Y.astype(float))
    with pytest.raises(TypeError, match="float16"):
        ckce(Q.astype(jnp.float16), Y)
    with pytest.raises(ValueError, match="bandwidth: wanted a positive number"):
        ckce(Q, Y, bandwidth=0.0)
    with pytest.raises(ValueError, match="bandwidth of 2 lengths"):
        ckce(Q, Y, prediction_kernel=Gaussian([1.0, 2.0]))
    for similarity, says in (
        (np.eye(2), r"shape \(3, 3\)"),
        (np.triu(np.ones((3, 3))), "symmetric"),
        (-np.eye(3), "positive semidefinite"),
        (np.full((3, 3), np.nan), "NaN"),
    ):
        with pytest.raises(ValueError, match=says):
            ckce(Q, Y, target_kernel=similarity)


def test_lists_and_one_observation():
    assert float(ckce([[0.4, 0.6]], [1]).estimate) > 0
    np.testing.assert_allclose(
        ckce(np.asarray(Q).tolist(), np.asarray(Y).tolist()).estimate, ckce(Q, Y).estimate
    )


def test_a_frame_of_the_class_kernel_is_read_by_its_names():
    pd = pytest.importorskip("pandas")
    matrix = np.array([[1, 0.9, 0], [0.9, 1, 0], [0, 0, 1]])
    names = ["p2", "p0", "p1"]
    frame = pd.DataFrame(matrix, index=sorted(names), columns=sorted(names)).loc[names, names]
    for value in (
        lambda kernel: ckce(Q, Y, target_kernel=kernel).estimate,
        lambda kernel: skce(0, Q, Y, target_kernel=kernel).unbiased,
    ):
        np.testing.assert_allclose(value(frame), value(matrix), rtol=1e-12)
    same = np.arange(3)[:, None] // 2 == np.arange(3)[None] // 2
    one, other = (
        ckce(Q, Y, target_kernel=kernel).estimate for kernel in (same, same.astype(float))
    )
    assert float(one) == float(other)


def test_near_duplicates_and_tiny_ridges():
    close = Q[:1] + 1e-9 * (Q - Q[:1])
    assert np.isfinite(float(ckce(close, Y).estimate))
    single = ckce(jnp.tile(Q[:1], (N, 1)).astype(jnp.float32), Y, ridge=1e-12)
    assert np.isnan(float(single.estimate)) or float(single.estimate) >= 0
    if np.isnan(float(single.estimate)):
        assert any("below rounding" in text for text in single.warnings())


def test_residuals_sum_to_zero_and_roots_multiply_back():
    np.testing.assert_allclose(jnp.sum(residuals(Q, Y), axis=1), 0, atol=1e-12)
    similarity = np.array([[2.0, 1, 0], [1, 2, 0], [0, 0, 0]])
    root = class_root(similarity, 3, jnp.float64)
    assert root is not None
    np.testing.assert_allclose(root @ root.T, similarity, atol=1e-12)
