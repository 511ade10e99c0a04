"""The risk: three ways to compute it, its exact value on finite laws, and its closed forms."""

from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.integrate
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from quick import quick_first
from reference import finite
from reference.calibration_functions import Mean, diagonal, gram
from reference.classifiers import squared_confidence, temperature_residual, tempered_dirichlet
from reference.incomplete import consecutive_risk, random_pairs_risk
from squared_ce_oracles import ATOMS, CONDITIONALS, WEIGHTS, double_loop

from jaxcal.squared_ce import functions as risks
from jaxcal.squared_ce.functions import Factors, Residual, on_diagonal
from jaxcal.squared_ce.reductions import canonical, class_wise, top_label

LAW = finite.FiniteDistribution(jnp.asarray(ATOMS), jnp.asarray(WEIGHTS), jnp.asarray(CONDITIONALS))
NUMBERS = st.floats(-2, 2, width=32)
by_moments = jax.jit(risks.risk_by_moments)
by_pairs = jax.jit(risks.risk_by_pairs)


def symmetric(seed, n, d, r):
    """Residuals [n, d] and the factors of a symmetric, indefinite h."""
    random = np.random.default_rng(seed)
    left, middle = random.normal(size=(n, r)), random.normal(size=(r, r))
    factors = Factors(jnp.asarray(left), jnp.asarray(left @ (middle + middle.T)))
    return jnp.asarray(random.normal(size=(n, d))), factors


@given(st.integers(0, 1000))
def test_all_ways_to_the_risk_equal_the_double_loop(seed):
    residuals, factors = symmetric(seed, 8, 3, 2)
    h = np.asarray(factors.left @ factors.right.T)
    wanted = double_loop(np.asarray(residuals), h)
    for value in (
        by_moments(residuals, factors),
        by_pairs(residuals, factors),
    ):
        np.testing.assert_allclose(value.value, wanted, rtol=1e-11)
        np.testing.assert_allclose(jnp.mean(value.rows), wanted, rtol=1e-11)
    np.testing.assert_allclose(
        by_moments(residuals, factors).rows, by_pairs(residuals, factors).rows, rtol=1e-9, atol=1e-9
    )


@given(
    residuals=arrays(np.float64, (6, 2), elements=NUMBERS),
    values=arrays(np.float64, (6, 2), elements=NUMBERS),
    order=st.permutations(range(6)),
    angle=st.floats(0, 6),
)
def test_the_risk_ignores_order_and_rotations_of_both_residuals(residuals, values, order, angle):
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    factors = Factors(jnp.asarray(values), jnp.asarray(values))
    plain = by_moments(jnp.asarray(residuals), factors).value
    moved = jnp.asarray(values[list(order)])
    permuted = by_moments(jnp.asarray(residuals[list(order)]), Factors(moved, moved)).value
    np.testing.assert_allclose(permuted, plain, atol=1e-9)
    turned = jnp.asarray(values @ turn.T)
    mirrored = by_moments(jnp.asarray(residuals @ turn), Factors(turned, turned)).value
    np.testing.assert_allclose(mirrored, plain, atol=1e-9)
    signs = by_moments(jnp.asarray(residuals), Factors(-factors.left, -factors.right)).value
    np.testing.assert_allclose(signs, plain, atol=1e-12)


@pytest.mark.slow
def test_the_size_selects_moments_or_pairs_and_both_are_right():
    for r in (2, 40):
        residuals, factors = symmetric(3, 30, 2, r)
        wanted = double_loop(np.asarray(residuals), np.asarray(factors.left @ factors.right.T))
        np.testing.assert_allclose(
            risks.risk_of_factors(residuals, factors).value, wanted, rtol=1e-10
        )


def test_incomplete_versions_are_means_over_their_pairs(key):
    residuals, factors = symmetric(5, 9, 2, 3)
    gaps = np.asarray((residuals @ residuals.T - factors.left @ factors.right.T) ** 2)
    np.testing.assert_allclose(
        consecutive_risk(residuals, factors), np.mean(np.diag(gaps, 1)), rtol=1e-12
    )
    n_pairs = 40_000
    value = float(random_pairs_risk(key, residuals, factors, n_pairs=n_pairs))
    off = gaps[~np.eye(9, dtype=bool)]
    assert abs(value - off.mean()) < 4.5 * off.std() / n_pairs**0.5


def test_random_pairs_never_pair_an_observation_with_itself(key):
    residuals = jnp.eye(3)  # products are 1 with itself, 0 otherwise
    zero = jnp.zeros((3, 1))
    assert float(random_pairs_risk(key, residuals, Factors(zero, zero), n_pairs=500)) == 0


def test_the_jackknife_equals_leaving_out_each_observation():
    residuals, factors = symmetric(7, 12, 2, 2)
    result = by_moments(residuals, factors)
    h = np.asarray(factors.left @ factors.right.T)
    rest = [np.delete(np.arange(12), i) for i in range(12)]
    values = np.array([double_loop(np.asarray(residuals)[k], h[np.ix_(k, k)]) for k in rest])
    wanted = np.sqrt(11 / 12 * np.sum((values - values.mean()) ** 2))
    np.testing.assert_allclose(result.standard_error, wanted, rtol=1e-9)
    assert np.isnan(risks.jackknife(jnp.ones(2)))


def test_sizes_are_checked():
    residuals, factors = symmetric(0, 4, 2, 2)
    with pytest.raises(ValueError, match="at least 2 observations"):
        risks.risk_by_moments(residuals[:1], Factors(factors.left[:1], factors.right[:1]))
    with pytest.raises(ValueError, match="take the class-wise problems one by one"):
        risks.empirical_risk(Residual(jnp.zeros_like), class_wise(ATOMS, [0, 1, 2]))


@pytest.mark.slow
def test_the_risk_is_differentiable_and_batches():
    problem = canonical(ATOMS, [0, 1, 1])

    def value(theta):
        result = temperature_residual(theta, problem.inputs)
        return risks.risk_of_factors(problem.residuals, Factors(result, result)).value

    slope = jax.grad(value)(0.7)
    np.testing.assert_allclose(slope, (value(0.7 + 1e-6) - value(0.7 - 1e-6)) / 2e-6, rtol=1e-6)
    thetas = jnp.array([0.5, 1.0])
    np.testing.assert_allclose(jax.vmap(value)(thetas), [value(t) for t in thetas], rtol=1e-12)
    assert float(jax.grad(value)(0.3)) == pytest.approx(0, abs=1e-12)  # r = 0 is stationary


# --- the finite law: exact rationals


def product(values):
    return Factors(jnp.asarray(values), jnp.asarray(values))


def population(notion, factors):
    weights, problem = LAW.support(notion)
    return float(finite.population_risk(weights, problem.residuals, factors))


def test_errors_of_the_finite_law_are_the_rationals():
    assert float(LAW.squared_error("canonical")) == pytest.approx(6 / 125, rel=1e-14)
    assert float(LAW.squared_error("top-label")) == pytest.approx(0.031, rel=1e-14)
    np.testing.assert_allclose(LAW.squared_error("class-wise"), [0.022, 0.010, 0.016], rtol=1e-13)


def test_murphys_parts_add_up_with_the_corrected_constant_only():
    parts = finite.murphy(LAW)
    np.testing.assert_allclose(parts, [0.638, 0.048, 0.0722, 1 - 0.3378], rtol=1e-13)
    assert float(parts.brier) == pytest.approx(
        float(parts.calibration - parts.sharpness + parts.uncertainty)
    )
    printed = parts.calibration - parts.sharpness + (1 - parts.uncertainty)
    assert float(printed) == pytest.approx(0.3136)


def test_risks_of_the_finite_law_are_the_rationals():
    true = LAW.true_residual("canonical")
    best = population("canonical", product(true))
    assert best == pytest.approx(51043 / 250000, rel=1e-13)
    assert population("canonical", product(0 * true)) == pytest.approx(0.20554, rel=1e-13)
    assert population("canonical", product(2**0.5 * true)) == pytest.approx(0.20554, rel=1e-13)
    constant = jnp.full((9, 1), 0.1)
    assert population("canonical", product(constant)) == pytest.approx(0.205304, rel=1e-13)
    top = LAW.true_residual("top-label")
    assert population("top-label", product(0 * top)) == pytest.approx(0.076176, rel=1e-13)
    assert population("top-label", product(top)) == pytest.approx(0.075215, rel=1e-13)


@given(arrays(np.float64, (9, 3), elements=NUMBERS), st.floats(-2, 2))
def test_excess_risk_is_the_squared_distance_to_the_truth(values, scale):
    weights, _ = LAW.support("canonical")
    # a function of the prediction: the same at all labels of an atom
    values = np.repeat(values[::3], 3, axis=0)
    true = np.asarray(LAW.true_residual("canonical"))
    excess = population("canonical", product(values)) - population("canonical", product(true))
    distance = np.asarray(weights) @ (values @ values.T - true @ true.T) ** 2 @ np.asarray(weights)
    assert excess == pytest.approx(distance, abs=1e-9)
    square = np.asarray(weights) @ (true @ true.T) ** 2 @ np.asarray(weights)
    assert square == pytest.approx(0.001368, rel=1e-12)
    scaled = population("canonical", Factors(scale * jnp.asarray(true), jnp.asarray(true)))
    assert scaled == pytest.approx(51043 / 250000 + (1 - scale) ** 2 * square, rel=1e-12)


def test_moments_and_exchangeable_laws_give_the_same_risk():
    weights, problem = LAW.support("canonical")
    true = LAW.true_residual("canonical")
    w, d = weights[:, None], problem.residuals
    risk = finite.risk_from_moments((w * d).T @ d, (w * d).T @ true, (w * true).T @ true)
    assert float(risk) == pytest.approx(51043 / 250000, rel=1e-12)
    noise = jnp.sum(((w * d).T @ d) ** 2) - jnp.sum(((w * true).T @ true) ** 2)
    assert float(noise) == pytest.approx(51043 / 250000, rel=1e-12)  # identity 2
    brier = 0.276
    assert finite.exchangeable_risk(brier, 0, 0) == pytest.approx(0.076176)
    assert finite.exchangeable_risk(brier, 0.031, 0.031) == pytest.approx(0.075215)


def test_scalar_notions_merge_atoms_of_equal_confidence():
    atoms = jnp.array([[0.6, 0.4, 0.0], [0.6, 0.0, 0.4]])
    truth = jnp.array([[0.8, 0.2, 0.0], [0.4, 0.3, 0.3]])
    law = finite.FiniteDistribution(atoms, jnp.array([0.5, 0.5]), truth)
    assert float(law.squared_error("top-label")) == pytest.approx(0)  # on average 0.6 is right
    assert float(law.squared_error("canonical")) > 0.05


def test_empirical_risks_are_unbiased_for_a_fixed_function(key):
    n, sets = 40, 4000
    fixed = Residual(partial(temperature_residual, 0.9))

    @jax.jit
    @jax.vmap
    def one(key):
        probabilities, labels = LAW.sample(key, n)
        problem = canonical(probabilities, labels)
        factors = fixed.factors(problem.inputs)
        return (
            risks.risk_by_moments(problem.residuals, factors).value,
            consecutive_risk(problem.residuals, factors),
        )

    _, support = LAW.support("canonical")
    wanted = population("canonical", fixed.factors(support.inputs))
    for value in one(jax.random.split(key, sets)):
        error = float(jnp.std(value)) / sets**0.5
        assert abs(float(jnp.mean(value)) - wanted) < 4 * error
        assert error < 0.01 * wanted


# --- the scalar closed forms


def test_the_scalar_law_has_its_closed_forms(key):
    problem = squared_confidence(key, 200_000)
    c, d = problem.inputs[:, 0], problem.residuals[:, 0]
    assert float(jnp.mean(d**2)) == pytest.approx(1 / 6, abs=4 * float(jnp.std(d**2)) / 447)
    true = Residual(lambda inputs: inputs - inputs**2)
    wanted = scipy.integrate.quad(lambda t: (t - t**2) ** 2, 0, 1)[0]
    assert wanted == pytest.approx(1 / 30)
    assert float(jnp.mean(diagonal(true, problem.inputs))) == pytest.approx(wanted, rel=0.01)
    for h, value in [
        (true, 1 / 36 - 1 / 900),
        (Residual(jnp.zeros_like), 1 / 36),
    ]:
        result = risks.empirical_risk(h, problem)
        assert abs(float(result.value) - value) < 4 * float(result.standard_error)
        assert float(result.standard_error) < 3e-4
    assert float(c.min()) >= 0


CURVE = [(0.16, 0.009347), (0.3, 0.009667), (1.0, 0.008666), (2.0, 0.009321)]


@pytest.mark.slow
@pytest.mark.parametrize(("theta", "wanted"), quick_first(CURVE, [CURVE[0], CURVE[3]]))
def test_the_simulation_of_the_paper_has_its_exact_curve(theta, wanted):
    problem, _, _ = simulated()
    result = risks.empirical_risk(Residual(partial(temperature_residual, theta)), problem)
    assert abs(float(result.value) - wanted) < 4 * float(result.standard_error) + 5e-6
    assert float(result.standard_error) < 1.5e-4  # 0.00116 to 0.0013 at n = 500


@eqx.filter_jit
def simulated():
    sample = tempered_dirichlet(jax.random.key(4), 60_000)
    return canonical(sample.probabilities, sample.labels), sample.truth, sample


@pytest.mark.slow
def test_the_simulation_of_the_paper_has_its_known_errors():
    problem, truth, result = simulated()

    def near(values, wanted):
        return abs(float(jnp.mean(values)) - wanted) < 4 * float(jnp.std(values)) / 60_000**0.5

    assert near(jnp.sum(truth**2, axis=1), 1.04 / 1.2)
    assert near(jnp.max(truth, axis=1), 0.90597)
    assert near(jnp.max(result.probabilities, axis=1), 0.73984)
    assert near(jnp.sum(problem.residuals**2, axis=1), 0.19664)
    results = temperature_residual(1.0, problem.inputs)
    np.testing.assert_allclose(results, problem.inputs - truth, atol=1e-9)
    assert near(jnp.sum(results**2, axis=1), 0.063278)
    assert not np.any(np.isnan(temperature_residual(2.0, jnp.array([[1.0, 0.0, 0.0]]))))


# --- functions


@pytest.mark.slow
def test_an_ensemble_averages_functions_not_residuals():
    first, second = (Residual(partial(temperature_residual, t)) for t in (0.5, 2.0))
    both = Mean([first, second])
    xs, ys = jnp.asarray(ATOMS), jnp.asarray(ATOMS[:2])
    wanted = (gram(first, xs, ys) + gram(second, xs, ys)) / 2
    np.testing.assert_allclose(gram(both, xs, ys), wanted, rtol=1e-12)
    np.testing.assert_allclose(diagonal(both, xs), on_diagonal(both.factors(xs)), rtol=1e-14)
    np.testing.assert_allclose(diagonal(both, xs), jnp.diag(gram(both, xs, xs)), rtol=1e-12)


@pytest.mark.slow
def test_two_classes_as_canonical_count_twice():
    p = np.array([[0.7, 0.3], [0.2, 0.8], [0.6, 0.4], [0.9, 0.1]])
    labels = [0, 0, 1, 0]
    both, one = canonical(p, labels), top_label(p, labels)
    zero = Residual(jnp.zeros_like)
    assert float(risks.empirical_risk(zero, both).value) == pytest.approx(
        4 * float(risks.empirical_risk(zero, one).value)
    )
