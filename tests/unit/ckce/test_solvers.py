"""Low rank, random features and conjugate gradients, each against the exact estimator."""

from functools import partial

import jax
import jax.numpy as jnp
import many_devices
import numpy as np
import problems
import pytest
from reference.ckce_solvers import (
    ConjugateGradients,
    Fourier,
    FourierFeatures,
    conjugate_gradients,
    gram_times,
)
from reference.conditional_means import null_mean

from jaxcal.ckce import LowRank, ckce
from jaxcal.ckce.kernels import simplex_kernel
from jaxcal.kernels import Gaussian
from jaxcal.kernels.grams import pivots

N = 120
Q, Y = problems.data(1, N)
EXACT = ckce(Q, Y)
KERNEL = simplex_kernel(EXACT.bandwidths["prediction"])


def close(values, rtol):
    np.testing.assert_allclose(values.estimate, EXACT.estimate, rtol=rtol)
    np.testing.assert_allclose(values.contributions, EXACT.contributions, atol=rtol * 1e-2)
    np.testing.assert_allclose(values.influence, EXACT.influence, atol=rtol * 10)


@pytest.mark.slow
def test_incomplete_cholesky_is_exact_at_full_rank():
    estimate = ckce(Q, Y, solver=LowRank(N, tile=50))
    close(estimate, 1e-9)
    assert float(estimate.approximation.error) < 1e-9
    assert "incomplete Cholesky" in repr(estimate)


@pytest.mark.slow
def test_incomplete_cholesky_comes_nearer_with_its_rank():
    errors, left = [], []
    for rank in (3, 10, 30):
        estimate = ckce(Q, Y, solver=LowRank(rank, tile=50))
        errors.append(abs(float(estimate.estimate / EXACT.estimate) - 1))
        left.append(float(estimate.approximation.error))
    assert errors[2] < 1e-3 < errors[0]
    assert left[0] > left[1] > left[2]


def test_pivots_are_those_of_the_textbook():
    k = np.array(problems.simplex_gram(Q, Q, float(EXACT.bandwidths["prediction"])))
    chosen, used = pivots(KERNEL, Q, 12, 1e-12)
    assert bool(jnp.all(used))
    left = k.copy()  # the Schur complement, the whole matrix
    for value in np.asarray(chosen):
        assert int(value) == int(np.argmax(np.diag(left)))
        left = left - np.outer(left[:, value], left[value]) / left[value, value]


@pytest.mark.slow
def test_a_singular_gram_matrix_stops_early():
    same = Q[jnp.arange(N) % 5]
    estimate = ckce(same, Y, solver=LowRank(40))
    assert int(estimate.approximation.size) == 5
    np.testing.assert_allclose(estimate.estimate, ckce(same, Y).estimate, rtol=1e-9)
    rough = ckce(Q, Y, solver=LowRank(40, tolerance=0.05))
    assert int(rough.approximation.size) < 40


@pytest.mark.slow
def test_low_rank_has_gradients():
    exact = jax.grad(lambda q: ckce(q, Y, bandwidth=0.3).estimate)(Q)
    gradient = jax.grad(lambda q: ckce(q, Y, solver=LowRank(N), bandwidth=0.3).estimate)(Q)
    np.testing.assert_allclose(gradient, exact, atol=1e-6)


def test_random_features_have_the_kernel_for_their_mean():
    gamma = float(EXACT.bandwidths["prediction"])
    wanted = problems.simplex_gram(Q[:6], Q[:6], gamma)
    repeats = 400

    def block(key, d):
        f = FourierFeatures(jax.random.normal(key, (3, d)), jnp.asarray(gamma))(Q[:6])
        return f @ f.T

    spread = {}
    for d in (10, 160):
        keys = jax.random.split(jax.random.key(d), repeats)
        blocks = np.asarray(jax.jit(jax.vmap(partial(block, d=d)))(keys))
        spread[d] = blocks.std(axis=0)[np.triu_indices(6, 1)]
        error = np.abs(blocks.mean(axis=0) - wanted)
        assert np.all(error <= 5 * blocks.std(axis=0) / repeats**0.5 + 1e-12)
    ratio = np.mean(spread[10]) / np.mean(spread[160])
    assert 3.4 < ratio < 4.6  # sixteen times the features, a quarter of the spread


@pytest.mark.slow
def test_random_features_in_both_forms_come_near_the_exact_value():
    key = jax.random.key(7)
    primal = ckce(Q, Y, solver=Fourier(key, n_features=50))  # 103 < 120 columns
    # what the primal form computes, written down for the dual
    f = FourierFeatures(jax.random.normal(key, (3, 50)), EXACT.bandwidths["prediction"])(Q)
    left = problems.one_hot(Y) - np.asarray(Q)
    wanted = problems.trace_formula(np.asarray(f @ f.T), left @ left.T, N**-0.25)
    np.testing.assert_allclose(primal.estimate, wanted, rtol=1e-9)
    np.testing.assert_allclose(jnp.sum(primal.contributions), wanted, rtol=1e-9)
    dual = ckce(Q, Y, solver=Fourier(key, n_features=2000))
    np.testing.assert_allclose(dual.estimate, EXACT.estimate, rtol=0.03)
    np.testing.assert_allclose(primal.estimate, EXACT.estimate, rtol=0.15)


@pytest.mark.slow
def test_conjugate_gradients_are_exact_and_few():
    estimate = ckce(Q, Y, solver=ConjugateGradients(tile=50))
    close(estimate, 1e-9)
    assert int(estimate.approximation.size) <= 20
    rough = ckce(Q, Y, solver=ConjugateGradients(tile=50, tolerance=0.1))
    assert int(rough.approximation.size) < int(estimate.approximation.size)
    assert "conjugate gradients" in repr(estimate)


def test_conjugate_gradients_solve_every_column():
    random = np.random.default_rng(0)
    a = random.normal(size=(20, 20))
    a = jnp.asarray(a @ a.T + 20 * np.eye(20))
    b = jnp.asarray(random.normal(size=(20, 3)) * [1, 0, 1])
    solution = conjugate_gradients(lambda v: a @ v, b, tolerance=1e-12, steps=50)
    np.testing.assert_allclose(solution.x, np.linalg.solve(a, b), atol=1e-10)
    stopped = conjugate_gradients(lambda v: a @ v, b, tolerance=0.0, steps=2)
    assert int(stopped.steps) == 2


ON_DEVICES = """
import json, sys
import jax, numpy as np
from jax.sharding import Mesh
from jaxcal.ckce import LowRank, ckce

random = np.random.default_rng(0)
q, y = random.dirichlet(np.ones(3), 101), random.integers(0, 3, 101)
devices = np.array(jax.devices())
results = []
for mesh in (None, Mesh(devices[:3], ("rows",)), Mesh(devices.reshape(2, 2), ("hosts", "chips"))):
    solver = LowRank(10, tile=16, mesh=mesh)
    a = ckce(q, y, solver=solver, bandwidth=0.3)
    results.append([float(a.estimate), *a.contributions.tolist(), *a.influence.tolist()])
json.dump(results, sys.stdout)
"""


@pytest.mark.slow
def test_values_do_not_depend_on_the_number_of_devices():
    alone, *shared = many_devices.run_on(4, ON_DEVICES)
    for other in shared:
        np.testing.assert_allclose(other, alone, rtol=1e-9, atol=1e-13)


def test_products_by_blocks():
    v = jnp.asarray(np.random.default_rng(2).normal(size=(N, 2)))
    k = problems.simplex_gram(Q, Q, float(EXACT.bandwidths["prediction"]))
    times = jax.jit(gram_times, static_argnames="tile")
    for tile in (7, 50, 500):
        np.testing.assert_allclose(times(KERNEL, Q, v, tile=tile), k @ v, rtol=1e-9)


def test_bad_sizes_are_named():
    with pytest.raises(ValueError, match="rank: wanted a whole number of at least 1"):
        ckce(Q, Y, solver=LowRank(0))
    with pytest.raises(ValueError, match="tolerance: wanted"):
        ckce(Q, Y, solver=LowRank(tolerance=2.0))
    with pytest.raises(TypeError, match=r"wanted simplex_kernel\(\)"):
        ckce(Q, Y, solver=Fourier(jax.random.key(0)), prediction_kernel=Gaussian())


@pytest.mark.slow
def test_the_null_mean_shrinks_at_least_as_n_to_the_minus_half():
    # trace(K) / (n ridge)^2 <= 2 n^(-1/2) bounds it; smooth kernels do better
    small, large = (float(null_mean(problems.data(2, n)[0])) for n in (50, 800))
    assert small <= 2 * 50**-0.5
    assert large <= 2 * 800**-0.5
    assert small / large > 4  # 16 times the observations
