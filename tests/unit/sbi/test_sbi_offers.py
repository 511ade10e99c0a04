"""What scored pairs offer besides scores: log densities and draws over free parameters."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.integrate
import scipy.stats

from jaxcal import sbi
from jaxcal.read.scores import log_densities_at, score
from jaxcal.sbi.space import Space

N, D = 12, 2
KEY = jax.random.key(3)
BOUNDS = ([0.0, -1.0], [np.inf, 2.0])  # one half line, one interval


@pytest.fixture(scope="module")
def pairs():
    us, xs = jax.random.normal(KEY, (2, N, D))
    return jnp.stack([jnp.exp(us[:, 0]), 3 * jax.nn.sigmoid(us[:, 1]) - 1], axis=1), xs


def log_prob(theta, x):
    return -jnp.sum((theta - x) ** 4) / 4 + jnp.log(theta[0])


class Energy(eqx.Module):
    weight: jax.Array

    def __call__(self, theta, x):
        return -jnp.sum((theta - x) ** 2) * self.weight


@pytest.mark.slow
@pytest.mark.parametrize(
    "posterior",
    [log_prob, Energy(jnp.asarray(0.7)), lambda xs: dist.Normal(xs, 2.0).to_event(1)],
    ids=["function", "network", "distribution"],
)
def test_scores_are_gradients_of_the_offered_log_densities(pairs, posterior):
    thetas, xs = pairs
    posterior = posterior(xs) if getattr(posterior, "__name__", "") == "<lambda>" else posterior
    prior = jnp.stack([jnp.ones(4), jnp.linspace(-0.5, 1.5, 4)], axis=1)
    scored = sbi.score_pairs(KEY, posterior, thetas, xs, prior=prior, bounds=BOUNDS, n_nodes=4)
    wanted = score(scored.predictions, scored.thetas)
    np.testing.assert_allclose(scored.scores.at_targets, wanted, rtol=1e-9)


def test_densities_of_free_parameters_hold_the_jacobian():
    """The integral over u is that over theta, by quadrature."""
    space = Space(jnp.asarray([-1.0]), jnp.asarray([2.0]))
    for low, high in ((-1.0, 2.0), (-1.0, np.inf), (-np.inf, 2.0), (-np.inf, np.inf)):
        space = Space(jnp.asarray([low]), jnp.asarray([high]))

        @jax.jit
        def freed(u, space=space):
            us = jnp.asarray([u])
            return jnp.exp(-jnp.sum(space.bound(us) ** 2) / 2 + space.log_jacobian(us))

        over_u, _ = scipy.integrate.quad(lambda u, f=freed: float(f(u)), -12, 12)
        over_theta, _ = scipy.integrate.quad(lambda t: np.exp(-(t**2) / 2), low, high)
        assert over_u == pytest.approx(over_theta, rel=1e-4)


@pytest.mark.slow
def test_draws_are_of_the_posteriors_and_free(pairs):
    thetas, xs = pairs
    posterior = dist.LogNormal(xs, 0.5).to_event(1)
    prior = dist.LogNormal(jnp.zeros(D), 1.0).to_event(1)
    scored = sbi.score_pairs(KEY, posterior, thetas + 1.5, xs, prior=prior)
    draws = np.asarray(scored.sample(jax.random.key(1), 400))
    assert draws.shape == (N, 400, D)
    gaps = draws.mean(axis=1) - np.asarray(xs)  # of log theta
    assert np.abs(gaps).max() < 5 * 0.5 / np.sqrt(400)
    np.testing.assert_allclose(
        log_densities_at(scored.predictions, jnp.asarray(draws[:, 0])),
        dist.Normal(xs, 0.5).log_prob(jnp.asarray(draws[:, 0])).sum(axis=1),
        rtol=1e-9,
    )
    assert scored.sampler is not None


def test_a_density_alone_offers_no_draws(pairs):
    scored = sbi.score_pairs(KEY, log_prob, *pairs, bounds=BOUNDS, n_nodes=3)
    assert scored.sampler is None
    with pytest.raises(TypeError, match="offers no draws"):
        scored.sample(KEY, 3)


@pytest.mark.slow
def test_draws_outside_of_the_bounds_are_drawn_again():
    """A normal posterior with a third of its mass below 0 is drawn as the truncated one."""
    xs = jnp.full((20, 1), 0.4)
    thetas = jnp.abs(xs + jnp.linspace(-0.3, 1.0, 20)[:, None])
    posterior = dist.Normal(xs, 1.0).to_event(1)
    prior = jnp.linspace(0.1, 2.0, 4)[:, None]
    scored = sbi.score_pairs(KEY, posterior, thetas, xs, prior=prior, bounds=(0, np.inf))
    draws = np.exp(np.asarray(scored.sample(1, 50))).ravel()
    below = scipy.stats.truncnorm(-0.4, np.inf, loc=0.4).cdf
    assert scipy.stats.kstest(draws, below).pvalue > 1e-4
    far = dist.Normal(xs - 30, 1.0).to_event(1)
    scored = sbi.score_pairs(KEY, far, thetas, xs, prior=prior, bounds=(0, np.inf))
    with pytest.raises(ValueError, match="20 of 20 posteriors have nearly all their mass"):
        scored.sample(1, 5)
