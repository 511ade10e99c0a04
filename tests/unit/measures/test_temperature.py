"""Temperature: powers of densities by quadrature, fits against closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from quick import quick_first
from reference.power_exponential import MultivariatePowerExponential
from scipy import integrate, stats

from jaxcal.measures import fit_temperature, nll, with_temperature
from jaxcal.read import Draws

N = 5
RNG = np.random.default_rng(12)
LOC, SCALE = jnp.asarray(RNG.normal(size=N)), jnp.asarray(RNG.uniform(0.5, 2, size=N))
P = RNG.dirichlet(np.ones(4), size=N)
ROOT = jnp.asarray(np.tril(RNG.normal(size=(N, 2, 2)), -1) + np.diag([1.0, 0.6]))
MEAN = jnp.asarray(RNG.normal(size=(N, 2)))
AB = jnp.asarray(RNG.uniform(1.5, 4, size=(2, N)))

REAL = {
    "Normal": dist.Normal(LOC, SCALE),
    "Laplace": dist.Laplace(LOC, SCALE),
    "expanded": dist.Normal(0.3, 1.2).expand((N,)),
}
POWER = {
    beta: MultivariatePowerExponential(LOC[:, None], SCALE[:, None, None], beta)
    for beta in (0.5, 1, 2.5)
}


@pytest.mark.parametrize("t", [0.4, 3.0])
@pytest.mark.parametrize("name", [*REAL, *POWER])
def test_densities_on_the_line_are_normalized_by_quadrature(name, t):
    """q = p^(1/T) / integral, checked at points for each prediction."""
    law = REAL.get(name, POWER.get(name))
    event = len(law.event_shape)

    def density(d, y):
        return np.asarray(jnp.exp(d.log_prob(jnp.full((N, *([1] * event)), y))))

    hot = with_temperature(law, t)
    center = np.broadcast_to(np.asarray(law.mean).reshape(-1), (N,))
    for i in (0, 3):
        powered = lambda y, i=i: density(law, y)[i] ** (1 / t)  # noqa: E731
        grid = np.linspace(center[i] - 400, center[i] + 400, 160_001)
        values = np.exp(
            np.asarray(
                jax.vmap(lambda y: law.log_prob(jnp.full((N, *([1] * event)), y)))(
                    jnp.asarray(grid)
                )
            )
        )[:, i] ** (1 / t)
        total = integrate.simpson(values, x=grid)
        for y in (-0.7, 0.4, 2.0):
            np.testing.assert_allclose(density(hot, y)[i], powered(y) / total, rtol=2e-5)


@pytest.mark.parametrize("t", [0.5, 2.0])
def test_beta_and_dirichlet_are_powers_for_their_base_measure(t):
    beta = dist.Beta(*AB)
    hot = with_temperature(beta, t)
    x = np.linspace(0.05, 0.95, 7)

    def to_measure(law, y):  # density with respect to dx / (x (1 - x))
        return np.asarray(jnp.exp(law.log_prob(jnp.asarray(y)[:, None]))) * (y * (1 - y))[:, None]

    ratio = to_measure(hot, x) / to_measure(beta, x) ** (1 / t)
    np.testing.assert_allclose(ratio / ratio[0], 1, rtol=1e-10)
    alpha = jnp.asarray(RNG.uniform(1, 4, size=(N, 3)))
    one = dist.Dirichlet(alpha)
    hot = with_temperature(one, t)
    points = jnp.asarray(RNG.dirichlet(np.ones(3), size=(6, 1)))

    def to_simplex(law):
        return np.asarray(jnp.exp(law.log_prob(points))) * np.prod(np.asarray(points), -1)

    ratio = to_simplex(hot) / to_simplex(one) ** (1 / t)
    np.testing.assert_allclose(ratio / ratio[0], 1, rtol=1e-10)


def test_multivariate_normal_and_classes():
    t = 2.5
    normal = dist.MultivariateNormal(MEAN, scale_tril=ROOT)
    hot = with_temperature(normal, t)
    np.testing.assert_allclose(hot.covariance_matrix, t * normal.covariance_matrix)
    diagonal = with_temperature(dist.Normal(MEAN, 1.5).to_event(1), t)
    np.testing.assert_allclose(diagonal.variance, t * 1.5**2 * np.ones((N, 2)))
    wanted = P ** (1 / t) / np.sum(P ** (1 / t), axis=1, keepdims=True)
    np.testing.assert_allclose(with_temperature(P, t), wanted)
    for law in (dist.Categorical(jnp.asarray(P)), dist.Categorical(logits=jnp.log(P) + 3)):
        np.testing.assert_allclose(with_temperature(law, t).probs, wanted, rtol=1e-6)
    p = P[:, 0]
    odds = (p / (1 - p)) ** (1 / t)
    np.testing.assert_allclose(
        with_temperature(dist.Bernoulli(jnp.asarray(p)), t).probs, odds / (1 + odds), rtol=1e-6
    )
    np.testing.assert_array_equal(np.argmax(with_temperature(P, 0.01), 1), np.argmax(P, 1))


ALL = [
    *REAL.values(),
    *POWER.values(),
    dist.Beta(*AB),
    dist.Dirichlet(AB.T),
    dist.MultivariateNormal(MEAN, scale_tril=ROOT),
    dist.Normal(MEAN, 1.0).to_event(1),
]


@pytest.mark.parametrize("law", ALL, ids=lambda law: type(law).__name__)
def test_one_is_the_identity_temperatures_compose_and_means_stay(law):
    def parameters(d):
        return [np.asarray(leaf) for leaf in jax.tree.leaves(d)]

    for left, right in (
        (with_temperature(law, 1.0), law),
        (with_temperature(with_temperature(law, 0.6), 3.0), with_temperature(law, 1.8)),
    ):
        for a, b in zip(parameters(left), parameters(right), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-12)
    np.testing.assert_allclose(with_temperature(law, 2.0).mean, law.mean, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("beta", quick_first([0.5, 1.0, 2.5], [2.5]))
def test_the_power_exponential_has_its_density_moments_and_draws(beta, key):
    law = MultivariatePowerExponential(MEAN, ROOT, beta)
    # integrate over the plane around prediction 0
    half = 14.0
    line = np.linspace(-half, half, 561)
    grid = np.stack(np.meshgrid(line, line, indexing="ij"), -1)
    whitened = jnp.asarray(grid) @ ROOT[0].T + MEAN[:1, None]
    one = MultivariatePowerExponential(MEAN[:1], ROOT[:1], beta)
    density = np.exp(np.asarray(one.log_prob(whitened)))
    area = (line[1] - line[0]) ** 2 * float(jnp.linalg.det(ROOT[0]))
    assert density.sum() * area == pytest.approx(1, abs=5e-3)
    m = 40_000
    z = np.asarray(law.sample(key, (m,))) - np.asarray(MEAN)
    outer = np.einsum("mni,mnj->mnij", z, z)
    error = outer.std(0) / m**0.5
    assert np.all(np.abs(outer.mean(0) - law.covariance_matrix) < 5 * error)
    assert np.all(np.abs(z.mean(0)) < 5 * z.std(0) / m**0.5)
    if beta == 1:
        normal = dist.MultivariateNormal(MEAN, scale_tril=ROOT)
        np.testing.assert_allclose(law.log_prob(MEAN + 0.3), normal.log_prob(MEAN + 0.3))


def test_the_power_exponential_of_one_half_is_the_laplace_law():
    law = POWER[0.5]
    laplace = dist.Laplace(LOC, 2 * SCALE)
    ys = jnp.asarray(RNG.normal(size=N))
    np.testing.assert_allclose(law.log_prob(ys[:, None]), laplace.log_prob(ys))
    hot = with_temperature(law, 3.0)
    np.testing.assert_allclose(
        hot.log_prob(ys[:, None]), with_temperature(laplace, 3.0).log_prob(ys)
    )
    slope = jax.grad(lambda y: law.log_prob(y).sum())(LOC[:, None])
    assert np.all(np.isfinite(slope))


def test_fits_equal_closed_forms():
    ys = jnp.asarray(LOC + 3 * RNG.normal(size=N))
    z = (ys - LOC) / SCALE
    fit = fit_temperature(dist.Normal(LOC, SCALE), ys)
    np.testing.assert_allclose(fit.temperature, jnp.mean(z**2), rtol=1e-6)
    assert fit.warnings() == []
    assert float(fit.after) < float(fit.before)
    np.testing.assert_allclose(
        fit.after, nll(with_temperature(dist.Normal(LOC, SCALE), fit.temperature), ys)
    )
    fit = fit_temperature(dist.Laplace(LOC, SCALE), ys)
    np.testing.assert_allclose(fit.temperature, jnp.mean(jnp.abs(z)), rtol=1e-6)
    fit = fit_temperature(
        MultivariatePowerExponential(LOC[:, None], SCALE[:, None, None], 2.5), ys[:, None]
    )
    # the likelihood of d = 1: -log T / (2 beta) - mean(z^(2 beta)) / (2 T)
    np.testing.assert_allclose(fit.temperature, 2.5 * jnp.mean(z**5 * jnp.sign(z)), rtol=1e-6)
    assert "temperature" in repr(fit)
    assert set(fit.to_dict()) == {
        "temperature",
        "before",
        "after",
        "slope",
        "impossible",
        "warnings",
    }


@pytest.mark.slow
def test_fits_recover_temperatures_of_classes_beta_and_dirichlet(key):
    n, t = 4000, 2.0
    logits = jnp.asarray(RNG.normal(size=(n, 3)) * 3)
    labels = jax.random.categorical(key, logits / t)
    fit = fit_temperature(np.asarray(jax.nn.softmax(logits)), np.asarray(labels))
    grid = np.linspace(1, 3, 4001)
    losses = [float(nll(dist.Categorical(logits=logits / g), labels)) for g in grid[::50]]
    assert abs(float(fit.temperature) - grid[::50][int(np.argmin(losses))]) < 0.03
    assert abs(float(fit.temperature) - t) < 0.25
    narrow = dist.Beta(8 * jnp.ones(n), 4.0)
    ys = stats.beta(8 / t, 4 / t).rvs(n, random_state=1)
    assert abs(float(fit_temperature(narrow, ys).temperature) - t) < 0.25
    alpha = jnp.full((n, 3), 6.0)
    ys = np.random.default_rng(2).dirichlet(np.full(3, 6 / t), size=n)
    assert abs(float(fit_temperature(dist.Dirichlet(alpha), ys).temperature) - t) < 0.15


@pytest.mark.slow
def test_a_search_without_an_end_says_so():
    perfect = fit_temperature(dist.Normal(LOC, SCALE), LOC)
    assert "has not ended at an optimum" in " ".join(perfect.warnings())
    broken = fit_temperature(dist.Normal(LOC, SCALE), LOC.at[0].set(jnp.nan))
    assert np.isnan(broken.temperature)
    assert "not finite" in repr(broken)


@pytest.mark.parametrize(
    ("dtype", "n"), [(np.float32, 12), pytest.param(np.float64, 300, marks=pytest.mark.slow)]
)
def test_probabilities_of_exactly_0_are_0_at_every_temperature(dtype, n):
    """Classes that never come true and are never predicted change nothing of the fit."""
    rng = np.random.default_rng(n)
    p = rng.dirichlet(np.ones(2), n).astype(dtype)
    labels = (rng.random(n) < (p[:, 1] + 0.5) / 2).astype(int)
    wide = np.concatenate([p, np.zeros((n, 2), dtype)], axis=1)
    plain, padded = (fit_temperature(x, labels) for x in (p, wide))
    assert float(padded.temperature) == pytest.approx(float(plain.temperature), rel=1e-3)
    assert np.isfinite(float(padded.slope))
    assert not padded.warnings()
    np.testing.assert_array_equal(with_temperature(wide, 3.0)[:, 2:], 0)
    slope = jax.grad(lambda t: jnp.sum(with_temperature(wide, t) ** 2))(dtype(2))
    assert np.isfinite(slope)


def test_a_target_of_probability_0_is_counted_and_said():
    p = np.array([[1, 0], [0.2, 0.8]] * 6, np.float32)
    fit = fit_temperature(p, [1, 1, *[0, 1] * 5])
    assert int(fit.impossible) == 1
    assert float(fit.temperature) > 1
    assert any("1 target had probability 0" in text for text in fit.warnings())


def test_no_finite_temperature_is_given_where_none_is_best():
    """Shares of five neighbours: 0 where the class does come."""
    share = np.linspace(0, 1, 6).repeat(10)
    labels = (np.arange(60) % 2).astype(int)
    fit = fit_temperature(np.stack([1 - share, share], axis=1), labels)
    assert float(fit.temperature) == np.inf
    assert any("no finite temperature" in text for text in fit.warnings())
    with pytest.raises(ValueError, match="temperature: wanted"):
        with_temperature(np.stack([1 - share, share], axis=1), fit.temperature)


def test_swapped_classes_are_said_without_other_reasons():
    p = np.array([[0.8, 0.2], [0.2, 0.8]] * 10)
    fit = fit_temperature(p, [1, 0] * 10)
    assert float(fit.temperature) == np.inf
    assert int(fit.impossible) == 0
    (said,) = fit.warnings()
    assert "are classes swapped?" in said
    assert "probability 0" not in said


def test_right_and_sure_predictions_are_not_called_wide():
    says = np.eye(2)[np.arange(20) % 2]
    assert "no temperature is better than none" in str(fit_temperature(says, np.arange(20) % 2))


@pytest.mark.slow
def test_fits_are_traced_and_batched():
    def fit(ys):
        result = fit_temperature(dist.Normal(LOC, SCALE), ys)
        assert repr(result) == "TemperatureFit(traced)"
        return result

    many = jax.vmap(fit)(LOC[None] + jnp.asarray(RNG.normal(size=(3, N))))
    assert many.temperature.shape == (3,)
    assert "3 temperatures" in repr(many)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: with_temperature(P, 0.0), ValueError, "temperature: wanted a positive number"),
        (
            lambda: with_temperature(P, [1.0, 2.0]),
            ValueError,
            "temperature: .*got shape",
        ),
        (lambda: with_temperature(2 * P, 1.0), ValueError, "does not sum to 1"),
        (lambda: with_temperature(dist.StudentT(3.0, LOC), 2.0), TypeError, "StudentT is of no"),
        (lambda: with_temperature(Draws(P), 2.0), TypeError, "predictions: wanted"),
        (lambda: fit_temperature(P, np.arange(1, N + 1)), ValueError, "classes 0, .., 3"),
        (lambda: fit_temperature(dist.Normal(LOC, 1.0), LOC[:2]), ValueError, "wanted shape"),
        (lambda: fit_temperature(dist.Normal(LOC, 1.0), LOC, steps=0), ValueError, "steps"),
    ],
)
def test_wrong_input_is_named(as_users_run_it, call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_no_temperature_says_nothing_of_widths():
    targets = jnp.arange(20.0).at[3].set(jnp.nan)
    text = str(fit_temperature(dist.Normal(jnp.zeros(20), 1.0), targets))
    assert "too wide" not in text
    assert "too narrow" not in text


def test_a_likelihood_is_that_of_whole_vectors():
    with pytest.raises(ValueError, match=r"got \(5, 3\); .to_event\(1\) makes the last"):
        nll(dist.Normal(jnp.zeros((5, 3)), 1.0), jnp.zeros((5, 3)))
