"""Likelihoods are those of the draws, exact posteriors those of prior and likelihood."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from quick import quick_first
from reference import problems as simulators
from reference import simulators as more
from scipy.integrate import solve_ivp

SHAPES = {
    "bernoulli_glm": (10, 10),
    "gaussian_linear": (10, 10),
    "gaussian_linear_uniform": (10, 10),
    "gaussian_mixture": (2, 2),
    "lotka_volterra": (4, 20),
    "sir": (2, 10),
    "slcp": (5, 8),
    "two_moons": (2, 2),
}
MAKERS = {name: getattr(simulators, name, getattr(more, name, None)) for name in SHAPES}


@pytest.mark.parametrize("name", quick_first(sorted(SHAPES), ["two_moons", "bernoulli_glm"]))
def test_pairs_have_benchmark_shapes_and_positive_likelihood(key, name):
    task = MAKERS[name]()
    thetas, xs = jax.jit(task.pairs, static_argnums=1)(key, 50)
    assert (thetas.shape[1], xs.shape[1]) == SHAPES[name]
    assert len(task.names) == thetas.shape[1]
    assert np.all(np.isfinite(jax.jit(jax.vmap(task.log_posterior))(thetas, xs)))
    assert np.all(task.prior.support(thetas))


def total_mass(result, theta, grid):
    """The integral over two-dimensional observations."""
    area = (grid[1] - grid[0]) ** 2
    points = jnp.stack(jnp.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    values = jax.jit(jax.vmap(result.log_likelihood, in_axes=(None, 0)))(theta, points)
    return float(jnp.sum(jnp.exp(values)) * area)


def test_likelihoods_integrate_to_one():
    theta = jnp.asarray([0.3, -0.2])
    moons = total_mass(simulators.two_moons(), theta, jnp.linspace(-0.6, 0.6, 1200))
    assert moons == pytest.approx(1, abs=2e-3)  # the grid cuts across the edges
    mixture = total_mass(more.gaussian_mixture(), theta, jnp.linspace(-8, 8, 1200))
    assert mixture == pytest.approx(1, abs=1e-6)


@pytest.mark.slow
def test_moments_of_the_moons_are_those_of_the_draws(key):
    simulator, theta = simulators.two_moons(), jnp.asarray([-0.4, 0.1])
    xs = jax.vmap(simulator.draw, in_axes=(0, None))(jax.random.split(key, 20_000), theta)
    grid = jnp.linspace(-0.5, 0.7, 1200)
    points = jnp.stack(jnp.meshgrid(grid, grid), axis=-1).reshape(-1, 2)
    density = jnp.exp(jax.vmap(simulator.log_likelihood, in_axes=(None, 0))(theta, points))
    mean = density @ points / jnp.sum(density)
    errors = jnp.std(xs, axis=0) / np.sqrt(20_000)
    assert np.all(np.abs(jnp.mean(xs, axis=0) - mean) < 4.5 * errors + 1e-3)


def test_slcp_is_the_density_of_four_gaussian_points(key):
    simulator = more.slcp()
    theta = jnp.asarray([0.7, -1.1, -1.5, 0.8, 0.6])
    x = simulator.draw(key, theta)
    s1, s2, rho = theta[2] ** 2, theta[3] ** 2, jnp.tanh(theta[4])
    cov = np.array([[s1**2, rho * s1 * s2], [rho * s1 * s2, s2**2]]) + 1e-6 * np.eye(2)
    law = scipy.stats.multivariate_normal(np.asarray(theta[:2]), cov)
    wanted = law.logpdf(np.asarray(x).reshape(4, 2)).sum()
    assert float(simulator.log_likelihood(theta, x)) == pytest.approx(wanted, abs=1e-9)
    xs = jax.vmap(simulator.draw, in_axes=(0, None))(jax.random.split(key, 20_000), theta)
    np.testing.assert_allclose(np.cov(xs[:, :2].T), cov, rtol=0.05)


@pytest.mark.slow
def test_signs_of_two_parameters_of_slcp_cannot_be_told(key):
    """So their mean scores are 0 under any draws with random signs, and say nothing of them."""
    simulator = more.slcp()
    thetas, xs = simulator.pairs(key, 20)
    likelihood = jax.jit(jax.vmap(simulator.log_likelihood))
    score = jax.jit(jax.vmap(jax.grad(simulator.log_likelihood)))
    for signs in ([1, 1, -1, 1, 1], [1, 1, 1, -1, 1]):
        flip = jnp.asarray([signs], float)
        flipped = thetas * flip
        np.testing.assert_allclose(likelihood(flipped, xs), likelihood(thetas, xs), rtol=1e-9)
        wanted = score(thetas, xs) * flip
        np.testing.assert_allclose(score(flipped, xs), wanted, rtol=1e-7, atol=1e-9)
    other = thetas * jnp.asarray([[1.0, 1, 1, 1, -1]])
    assert not np.allclose(likelihood(other, xs), likelihood(thetas, xs))


def test_the_glm_depends_on_spikes_through_its_statistics(key):
    simulator = more.bernoulli_glm()
    design = np.asarray(more.design_matrix(jnp.asarray(np.random.default_rng(42).normal(size=100))))
    spikes = np.asarray(jax.random.bernoulli(key, 0.4, (100,)), float)
    thetas = simulator.prior.sample(key, (2,))
    p = 1 / (1 + np.exp(-np.asarray(thetas) @ design.T))
    direct = scipy.stats.bernoulli.logpmf(spikes, p).sum(axis=1)
    ours = [
        float(simulator.log_likelihood(theta, jnp.asarray(spikes @ design))) for theta in thetas
    ]
    np.testing.assert_allclose(np.diff(ours), np.diff(direct), rtol=1e-9)  # up to no constant
    np.testing.assert_allclose(ours, direct, rtol=1e-9)


def test_the_epidemic_solves_its_equations_and_counts_binomially(key):
    simulator, theta = more.sir(), jnp.asarray([0.5, 0.12])

    def slope(t, y):
        s, i, _ = y
        return [-0.5 * s * i / 1e6, 0.5 * s * i / 1e6 - 0.12 * i, 0.12 * i]

    times = 17 * np.arange(10)
    start = [1e6 - 1, 1, 0]
    solved = solve_ivp(slope, (0, 160), start, t_eval=times, rtol=1e-9, atol=1e-7)
    infected = solved.y[1] / 1e6
    np.testing.assert_allclose(np.exp(more._log_infected(theta)), infected, rtol=2e-4)
    xs = [simulator.draw(k, theta) for k in jax.random.split(key, 2)]
    wanted = [scipy.stats.binom.logpmf(x, 1000, infected).sum() for x in np.asarray(xs)]
    choices = [scipy.special.gammaln([1001, *(x + 1), *(1001 - x)]) for x in np.asarray(xs)]
    constant = [10 * c[0] - c[1:].sum() for c in choices]
    ours = [float(simulator.log_likelihood(theta, x)) for x in xs]
    np.testing.assert_allclose(np.add(ours, constant), wanted, rtol=2e-3)


def test_predators_and_prey_solve_their_equations(key):
    simulator, theta = simulators.lotka_volterra(), jnp.asarray([0.9, 0.05, 0.8, 0.04])

    def slope(t, y):
        return [0.9 * y[0] - 0.05 * y[0] * y[1], 0.04 * y[0] * y[1] - 0.8 * y[1]]

    solved = solve_ivp(slope, (0, 20), [30, 1], t_eval=2.1 * np.arange(10), rtol=1e-9, atol=1e-9)
    center = np.log(solved.y).reshape(-1)
    np.testing.assert_allclose(simulators._log_populations(theta), center, atol=1e-4)
    x = simulator.draw(key, theta)
    wanted = scipy.stats.lognorm.logpdf(np.asarray(x), 0.1, scale=np.exp(center)).sum()
    assert float(simulator.log_likelihood(theta, x)) == pytest.approx(wanted, abs=0.05)


@pytest.mark.slow
def test_the_posterior_is_that_of_prior_and_likelihood(key):
    """Gaussian linear: N(x / 2, I / 20), whose score neither prior nor likelihood has alone."""
    simulator = simulators.gaussian_linear(3)
    thetas, xs = simulator.pairs(key, 5)
    gradient = jax.vmap(jax.grad(simulator.log_posterior))(thetas, xs)
    np.testing.assert_allclose(gradient, 20 * (xs / 2 - thetas), rtol=1e-9)


EXACT = ["gaussian_linear", "gaussian_linear_uniform", "gaussian_mixture", "two_moons"]


@pytest.mark.slow
@pytest.mark.parametrize("name", quick_first(EXACT, ["two_moons"]))
def test_exact_draws_rank_the_truth_uniformly(key, name):
    """Simulation-based calibration of the sampler itself: ranks among 19 draws, 1000 pairs."""
    task = MAKERS[name]()
    pair_key, draw_key = jax.random.split(key)
    thetas, xs = task.pairs(pair_key, 1000)
    keys = jax.random.split(draw_key, 1000)
    draws = jax.jit(jax.vmap(lambda k, x: task.draw_posterior(k, x, 19)))(keys, xs)
    assert np.all(task.prior.support(draws))
    ranks = np.asarray(jnp.sum(draws[..., 0] < thetas[:, None, 0], axis=1))
    assert scipy.stats.chisquare(np.bincount(ranks, minlength=20)).pvalue > 1e-4
    # and so does a function of both coordinates, the likelihood
    likelihood = jax.jit(jax.vmap(jax.vmap(task.log_likelihood, (0, None)), (0, 0)))
    values = likelihood(thetas[:, None], xs)[:, 0]
    ranks = np.asarray(jnp.sum(likelihood(draws, xs) < values[:, None], axis=1))
    assert scipy.stats.chisquare(np.bincount(ranks, minlength=20)).pvalue > 1e-4
