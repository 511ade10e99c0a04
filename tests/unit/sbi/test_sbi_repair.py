"""Posteriors after a repair: bounded densities, draws and certificates, of JAX and torch."""

import contextlib
import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
import scipy.stats

from jaxcal import sbi
from jaxcal.sbi.pairs import summarized
from jaxcal.sbi.repair import RepairedPosterior

with contextlib.suppress(ModuleNotFoundError), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    from sbi import inference

HIGH = 3.0


def log_prob(theta, x):
    """Of Beta(2 + x, 4 - x) on 0 to 3, normalized, x in 0 to 2."""
    a, b = 2 + x[0], 4 - x[0]
    share = theta[0] / HIGH
    inside = (share > 0) & (share < 1)
    share = jnp.where(inside, share, 0.5)
    return jnp.where(inside, dist.Beta(a, b).log_prob(share) - jnp.log(HIGH), -jnp.inf)


@pytest.fixture(scope="module")
def repaired():
    """Parameters are spread wider and lie higher than the posterior says, and stay in bounds."""
    keys = jax.random.split(jax.random.key(1), 2)
    x = jax.random.uniform(keys[0], (300, 1), maxval=2.0)
    share = dist.Beta(1.5 + x[:, 0], 2.0).sample(keys[1])
    thetas = HIGH * share[:, None]
    return sbi.repair_posterior(2, log_prob, thetas, x, bounds=(0.0, HIGH), names=["rate"])


@pytest.mark.slow
def test_a_repaired_bounded_density_integrates_to_1_and_gains(repaired):
    """By the trapezoid rule on 4,000 points, whose error is below 1e-3 as the density is bounded;
    one that lacks a Jacobian is off by a tenth and more."""
    assert repaired.certificate.low > 0
    assert repaired.certificate.names[0] == ("rate",)
    at = np.linspace(0, HIGH, 4001)[1:-1]
    for x in (0.3, 1.7):
        logs = repaired.log_prob(at[:, None], jnp.array([x]))
        mass = np.trapezoid(np.exp(np.asarray(logs)), at)
        assert mass == pytest.approx(1, abs=5e-3)
    beyond = jnp.array([[-0.1], [0.0], [HIGH], [3.2]])
    np.testing.assert_array_equal(repaired.log_prob(beyond, jnp.array([1.0])), -np.inf)


@pytest.mark.slow
def test_mapped_draws_have_the_repaired_density(repaired):
    """Kolmogorov-Smirnov against the integral of the density."""
    x = jnp.array([0.7])
    drawn = HIGH * dist.Beta(2.7, 3.3).sample(jax.random.key(5), (2000, 1))
    moved = np.asarray(repaired.draws(drawn, x))[:, 0]
    assert ((moved > 0) & (moved < HIGH)).all()
    at = np.linspace(0, HIGH, 2001)[1:-1]
    density = np.exp(np.asarray(repaired.log_prob(at[:, None], x)))
    cdf = np.cumsum(density) * (at[1] - at[0])
    assert scipy.stats.kstest(moved, lambda v: np.interp(v, at, cdf)).pvalue > 1e-3
    assert (
        scipy.stats.kstest(np.asarray(drawn)[:, 0], lambda v: np.interp(v, at, cdf)).pvalue < 1e-6
    )
    # a draw that rounding put on a bound stays there
    edges = repaired.draws(jnp.array([[0.0], [HIGH]]), x)
    np.testing.assert_allclose(edges, [[0.0], [HIGH]], atol=1e-3)


@pytest.mark.slow
def test_the_repaired_posterior_is_compiled_tested_and_pickled(repaired):
    x, thetas = jnp.array([[0.4], [1.1]]), jnp.array([[1.0], [2.0]])
    of_pairs = repaired.log_prob(thetas, x)
    one_by_one = [repaired.log_prob(theta, row) for theta, row in zip(thetas, x, strict=True)]
    np.testing.assert_allclose(of_pairs, jnp.stack(one_by_one), rtol=1e-5)
    predictions = repaired.predictions(x)
    at = jax.jit(jax.vmap(predictions.log_density, in_axes=(predictions.in_axes, 0)))
    np.testing.assert_allclose(at(predictions.params, thetas), of_pairs, rtol=1e-5)
    pairs = sbi.score_pairs(
        0, repaired, jnp.full((30, 1), 1.5), jnp.linspace(0, 2, 30)[:, None], bounds=(0.0, HIGH)
    )
    assert pairs.predictions is not None
    assert bool(jnp.all(jnp.isfinite(pairs.scores.at_targets)))
    again = pickle.loads(pickle.dumps(repaired))
    np.testing.assert_array_equal(again.log_prob(thetas, x), of_pairs)
    assert "nats an observation" in repr(repaired)
    assert "only if none of these pairs trained the posterior" in repr(repaired)


@pytest.mark.slow
def test_what_a_posterior_cannot_be_asked_is_said(repaired):
    with pytest.raises(TypeError, match=r"by MCMC, and map these draws by \.draws"):
        repaired.sample((3,), jnp.array([1.0]))
    with pytest.raises(ValueError, match="no default_x"):
        repaired.log_prob(jnp.ones((1, 1)))
    with pytest.raises(ValueError, match=r"x: wanted one observation or 3, one per theta, got 2"):
        repaired.log_prob(jnp.ones((3, 1)), jnp.ones((2, 1)))
    with pytest.raises(ValueError, match=r"theta: wanted shape \[b, 1\] or \[1\]"):
        repaired.log_prob(jnp.ones((3, 2)), jnp.ones(1))
    with pytest.raises(ValueError, match=r"x: wanted an observation of shape \(1,\)"):
        repaired.log_prob(jnp.ones((3, 1)), jnp.ones((2, 2)))
    thetas = jnp.linspace(0.1, 0.9, 20)[:, None]
    claimed = dist.Normal(thetas, 1.0).to_event(1)
    with pytest.raises(TypeError, match=r"say nothing of other observations"):
        sbi.repair_posterior(0, claimed, thetas, thetas)


@pytest.mark.slow
def test_a_posterior_that_draws_by_jax_is_mapped_by_a_key():
    """Parameters of 300 without bounds, as in kelvin: draws were clipped at 87 in float32."""

    def posterior(xs):
        return dist.Normal(xs, 1.0).to_event(1)

    with jax.enable_x64(False):
        keys = jax.random.split(jax.random.key(3), 2)
        x = 300 + jax.random.normal(keys[0], (200, 2))
        thetas = x + 0.5 + 2 * jax.random.normal(keys[1], (200, 2))
        prior = dist.Normal(jnp.full(2, 300.0), 2.0).to_event(1)
        repaired = sbi.repair_posterior(0, posterior, thetas, x, prior=prior)
        at = jnp.array([301.0, 299.0])
        drawn = repaired.sample((2000,), at, key=1)
    assert drawn.shape == (2000, 2)
    np.testing.assert_allclose(jnp.std(drawn, axis=0), 2, rtol=0.2)
    np.testing.assert_allclose(jnp.mean(drawn, axis=0), at + 0.5, atol=0.5)
    with pytest.raises(TypeError, match="key: wanted a random key"):
        repaired.sample((5,), at)


def of_named(theta, x):
    """N(x["z"], 1), x["a"] is noise: the mean of the posterior differs by x["z"] / 2 from it."""
    return -jnp.sum((theta - x["z"]) ** 2) / 2


@pytest.mark.slow
def test_names_of_observations_may_come_in_any_order():
    """By the order of insertion the map was fitted to x["z"], and given x["a"] in its place."""
    z, noise, a = jax.random.normal(jax.random.key(4), (3, 200, 1))
    thetas, at = z / 2 + noise, jnp.linspace(-2, 2, 9)[:, None]
    orders, logs = ({"z": z, "a": a}, {"a": a, "z": z}), []
    for xs in orders:
        repaired = sbi.repair_posterior(0, of_named, thetas, xs, bounds=(-jnp.inf, jnp.inf))
        one = {name: values[:1] for name, values in xs.items()}
        logs += [repaired.log_prob(at, one), repaired.log_prob(at, dict(reversed(one.items())))]
    for other in logs[1:]:
        np.testing.assert_allclose(other, logs[0], rtol=1e-6, atol=1e-6)
    density = np.exp(logs[0] - logs[0].max())
    mean = np.sum(np.asarray(at)[:, 0] * density) / density.sum()
    assert mean == pytest.approx(float(z[0, 0]) / 2, abs=0.3)


def test_simulated_inputs_are_those_of_new_observations(as_users_run_it):
    """`NumpyroPosterior.pairs` puts the observed site first; x_shapes is sorted by name."""

    def model(design, y=None):
        slope = numpyro.sample("slope", dist.Normal())
        numpyro.sample("y", dist.Normal(slope * design, 0.5), obs=y)

    posterior = sbi.NumpyroPosterior(model, "y", inputs=["design"])
    design = jax.random.normal(jax.random.key(7), (60,))
    _, xs = posterior.pairs(0, 60, {"design": design})
    assert list(xs) == ["y", "design"]
    shapes = jax.tree.map(lambda leaf: leaf.shape[1:], xs)
    rows = RepairedPosterior(posterior, None, shapes, {})._rows(xs)
    fitted, new = (summarized(posterior, of, None, 60)[0] for of in (xs, rows))
    np.testing.assert_array_equal(new, fitted)


@pytest.mark.optional("torch", "sbi")
@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["NPE", "NLE"])
def test_posteriors_of_sbi_come_back_in_torch_and_bounded(how):
    """Trained on simulations that are less noisy than those of the pairs, so that it is too
    narrow."""
    from sbi.utils import BoxUniform

    torch.set_num_threads(1)
    torch.manual_seed(0)
    prior = BoxUniform(-torch.ones(1), torch.ones(1))

    def simulated(n, noise):
        theta = prior.sample((n,))
        return theta, theta + noise * torch.randn(n, 1)

    trainer = getattr(inference, how)(prior=prior, show_progress_bars=False)
    trainer.append_simulations(*simulated(1000, 0.15)).train(max_num_epochs=60)
    posterior = trainer.build_posterior()
    theta, x = simulated(150, 0.4)
    repaired = sbi.repair_posterior(0, posterior, theta, x, folds=3)
    assert repaired.certificate.low > 0
    observed = torch.tensor([[0.5]])
    at = torch.linspace(-1, 1, 801)[1:-1, None]
    logs = repaired.log_prob(at, observed)
    assert isinstance(logs, torch.Tensor)
    assert torch.isinf(repaired.log_prob(torch.tensor([[1.5]]), observed)).all()
    density = np.exp(logs.numpy().astype(float))
    mass = np.trapezoid(density, at[:, 0].numpy())
    if how == "NPE":  # normalized, but for the share beyond the bounds, which sbi estimates
        assert mass == pytest.approx(1, abs=0.03)
    posterior.set_default_x(observed)
    options = {"show_progress_bars": False}
    if how == "NLE":
        options |= {"num_chains": 10, "warmup_steps": 30, "thin": 2}
    drawn = repaired.sample((500,), **options)
    assert isinstance(drawn, torch.Tensor)
    assert drawn.shape == (500, 1)
    assert bool((drawn.abs() <= 1).all())
    cdf = np.cumsum(density) / density.sum()
    statistic = scipy.stats.kstest(
        drawn[:, 0].numpy(), lambda v: np.interp(v, at[:, 0].numpy(), cdf)
    ).statistic
    assert statistic < (0.1 if how == "NPE" else 0.2)  # chains are dependent
    if how == "NPE":
        many = repaired.sample_batched((7,), x=x[:4], **options)
        assert many.shape == (7, 4, 1)
        shown_by_the_tools_of_sbi(repaired, drawn, theta[:20], x[:20])


def shown_by_the_tools_of_sbi(repaired, drawn, theta, x):
    """Plots of the draws, ranks and expected coverage: its functions take the posterior itself."""
    from sbi.analysis import marginal_plot, pairplot
    from sbi.diagnostics import run_sbc, run_tarp

    twice = torch.cat([drawn, drawn], dim=1)  # sbi plots two parameters and more
    pairplot(twice)
    marginal_plot(twice)
    options = {"num_posterior_samples": 20, "show_progress_bar": False}
    ranks, _ = run_sbc(theta, x, repaired, **options)
    assert ranks.shape == (len(theta), 1)
    covered, levels = run_tarp(theta, x, repaired, **options)
    assert covered.shape == levels.shape


def beside_a_bound(xs):
    return dist.Normal(xs, 0.3).to_event(1)


@pytest.mark.slow
def test_draws_beyond_a_bound_are_drawn_again():
    """More than half of the draws at x = 1.06 were NaN."""
    thetas = jax.random.uniform(jax.random.key(0), (200, 1))
    xs = thetas + 0.3 * jax.random.normal(jax.random.key(1), (200, 1))
    prior = dist.Uniform(jnp.zeros(1), 1.0).to_event(1)
    fitted = sbi.repair_posterior(0, beside_a_bound, thetas, xs, prior=prior)
    drawn = fitted.sample((1000,), jnp.array([1.06]), key=1)
    assert ((drawn >= 0) & (drawn <= 1)).all()


@pytest.mark.slow
def test_columns_of_observations_are_those_of_the_fit():
    """Of a frame with columns in another order they were taken by position."""
    signal, noise, other = jax.random.normal(jax.random.key(0), (3, 200))
    thetas = (signal + noise)[:, None]
    xs = pd.DataFrame({"signal": signal, "noise": other})

    def of_columns(theta, x):
        return -jnp.sum((theta - x[0]) ** 2) / 2

    fitted = sbi.repair_posterior(0, of_columns, thetas, xs, bounds=(-jnp.inf, jnp.inf))
    one = xs.iloc[:1]
    assert np.isfinite(fitted.log_prob(jnp.zeros((1, 1)), one)).all()
    np.testing.assert_array_equal(
        *(fitted.log_prob(jnp.zeros((1, 1)), x) for x in (one, xs.iloc[0]))
    )
    with pytest.raises(ValueError, match="wanted the columns"):
        fitted.log_prob(jnp.zeros((1, 1)), one[["noise", "signal"]])
