"""What users bring: functions, networks, flows, numpyro models and guides, arrays."""

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
import scipy.stats

from jaxcal import Scores
from jaxcal.sbi import JaxPosterior, NumpyroPosterior, score_pairs
from jaxcal.sbi.adapters import as_posterior
from jaxcal.sbi.posteriors import chunked_scores

N, D = 13, 2


@pytest.fixture(scope="module")
def pairs():
    keys = jax.random.split(jax.random.key(0), 3)
    return tuple(jax.random.normal(k, (n, D)) for k, n in zip(keys, (N, N, 4), strict=True))


def log_prob(theta, x):
    return -jnp.sum((theta - x) ** 4) / 4


def power(x, theta):
    return -((theta - x) ** 3)


@pytest.mark.parametrize("batch", [1, 7, 1000])
def test_scores_in_chunks_are_the_gradients(pairs, batch):
    thetas, xs, nodes = pairs
    scores = chunked_scores(log_prob, thetas, xs, nodes, batch=batch)
    np.testing.assert_allclose(scores.at_targets, power(xs, thetas), rtol=1e-12)
    np.testing.assert_allclose(scores.at_nodes, power(xs[:, None], nodes[None]), rtol=1e-12)
    assert chunked_scores(log_prob, thetas, xs, batch=batch).at_nodes is None


class Energy(eqx.Module):
    net: eqx.nn.MLP

    def __call__(self, theta, x):
        return self.net(jnp.concatenate([theta, x]))[0]


class Flow(eqx.Module):
    """Shaped as flowjax's: log_prob(theta, condition=x), no batch shape."""

    scale: jax.Array

    def log_prob(self, theta, condition):
        return -jnp.sum((theta - condition) ** 2) * self.scale / 2


def test_networks_and_flows_need_no_wrapping(pairs):
    thetas, xs, nodes = pairs
    energy = Energy(eqx.nn.MLP(2 * D, 1, 8, 1, jnp.tanh, key=jax.random.key(1)))
    scores = as_posterior(energy).scored(thetas, xs, nodes)
    wanted = jax.vmap(jax.grad(energy))(thetas, xs)
    np.testing.assert_allclose(scores.at_targets, wanted, rtol=1e-9)
    flow = as_posterior(Flow(jnp.asarray(3.0))).scored(thetas, xs, nodes)
    np.testing.assert_allclose(flow.at_nodes, 3 * (xs[:, None] - nodes[None]), rtol=1e-9)


def test_a_new_network_of_the_same_shape_compiles_nothing_new(pairs):
    thetas, xs, _ = pairs
    traces = []

    class Counted(eqx.Module):
        weight: jax.Array

        def __call__(self, theta, x):
            traces.append(1)
            return -jnp.sum((theta - x) ** 2) * self.weight

    counts = []
    for weight in (1.0, 2.0):
        chunked_scores(Counted(jnp.asarray(weight)), thetas, xs)
        counts.append(len(traces))
    assert counts[0] == counts[1] > 0


def test_memory_of_a_million_posteriors_is_that_of_their_scores():
    """Intermediates of 256 hidden units for every posterior at once would be 50 times more."""
    n = 20_000

    def wide(theta, x):
        return jnp.sum(jnp.tanh(theta[0] * jnp.arange(256.0) + x[0]))

    from jaxcal.sbi.posteriors import Swapped, _chunked

    zeros = jnp.zeros((n, 1))
    lowered = _chunked.lower(Swapped(wide), None, zeros, zeros, None, 500).lowered
    assert lowered.compile().memory_analysis().temp_size_in_bytes < 0.2 * n * 256 * 8


def model(x):
    p = numpyro.sample("p", dist.Beta(2.0, 3.0))
    rate = numpyro.sample("rate", dist.Gamma(2.0, 1.5))
    w = numpyro.sample("w", dist.Dirichlet(jnp.ones(3)))
    center = numpyro.deterministic("center", jnp.stack([p, rate, w[0]]))
    numpyro.sample("x", dist.Normal(center, 0.5).to_event(1), obs=x)


@pytest.fixture(scope="module")
def numpyro_posterior():
    return NumpyroPosterior(model)


@pytest.mark.slow
def test_numpyro_models_give_scores_of_unconstrained_posteriors(numpyro_posterior):
    posterior = numpyro_posterior
    assert posterior.names == ("p", "rate", "w[0]", "w[1]")
    us, xs = posterior.pairs(jax.random.key(1), 6)

    def by_hand(u, x):
        p, rate = 1 / (1 + jnp.exp(-u[0])), jnp.exp(u[1])
        # stick breaking: shares sigmoid(u - log(pieces left)), numpyro's simplex bijection
        a = jax.nn.sigmoid(u[2] - jnp.log(2.0))
        b = jax.nn.sigmoid(u[3] - jnp.log(1.0))
        w = jnp.stack([a, (1 - a) * b, (1 - a) * (1 - b)])
        jacobian = jnp.log(p * (1 - p)) + u[1]
        jacobian += jnp.log(a * (1 - a)) + jnp.log((1 - a) * b * (1 - b))
        prior = jnp.log(p) + 2 * jnp.log1p(-p) + jnp.log(rate) - 1.5 * rate
        return prior + jacobian - jnp.sum((x - jnp.stack([p, rate, w[0]])) ** 2) / 0.5

    wanted = jax.jit(jax.vmap(jax.grad(by_hand)))(us, xs)
    scores = posterior.scored(us, xs, us[:2])
    np.testing.assert_allclose(scores.at_targets, wanted, rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(scores.at_nodes[0, 0], wanted[0], rtol=1e-8, atol=1e-8)


@pytest.mark.slow
def test_constrained_latents_become_the_parameters_of_the_pairs(numpyro_posterior):
    latents = {"p": jnp.asarray([0.25]), "rate": jnp.asarray([2.0]), "w": jnp.full((1, 3), 1 / 3)}
    u = numpyro_posterior.free(latents)
    np.testing.assert_allclose(u[0, :2], [np.log(1 / 3), np.log(2)], rtol=1e-9)
    np.testing.assert_allclose(u[0, 2:], 0, atol=1e-9)


@pytest.mark.slow
def test_numpyro_base_points_are_unconstrained_prior_draws(numpyro_posterior):
    nodes = np.asarray(numpyro_posterior.draw_nodes(jax.random.key(4), 400))
    p, rate = 1 / (1 + np.exp(-nodes[:, 0])), np.exp(nodes[:, 1])
    assert scipy.stats.kstest(p, scipy.stats.beta(2, 3).cdf).pvalue > 1e-4
    assert scipy.stats.kstest(rate, scipy.stats.gamma(2, scale=1 / 1.5).cdf).pvalue > 1e-4


def conjugate(x):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.sample("x", dist.Normal(mu, 1.0), obs=x)


def test_an_amortized_guide_is_a_prediction():
    def guide(x):
        slope = numpyro.param("slope", 0.3)
        numpyro.sample("mu", dist.Normal(slope * x, 0.5))

    posterior = NumpyroPosterior(conjugate, guide=guide, params={"slope": jnp.asarray(0.5)})
    us, xs = posterior.pairs(jax.random.key(2), 5)
    scores = posterior.scored(us, xs, None)
    np.testing.assert_allclose(scores.at_targets[:, 0], (0.5 * xs - us[:, 0]) / 0.25, rtol=1e-9)


def box(x=None):
    t = numpyro.sample("t", dist.Uniform(-5.0, 5.0))
    numpyro.sample("x", dist.Normal(t, 0.3), obs=x)


def simulator(x=None):
    """Without a density of x: a guide is all that can be tested."""
    t = numpyro.sample("t", dist.Uniform(-5.0, 5.0))
    noise = 0.3 * jax.random.normal(numpyro.prng_key())
    numpyro.sample("x", dist.Delta(t + noise), obs=x)


@pytest.mark.parametrize(
    ("distribution", "score"),
    [
        (lambda x: dist.Normal(x, 0.3), lambda t, x: (x - t) / 0.09),
        (lambda x: dist.LogNormal(x, 1.0), lambda t, x: (x - jnp.log(t) - 1) / t),
        (lambda x: dist.Uniform(-1.0, 8.0), lambda t, x: jnp.where(t > -1, 0.0, jnp.nan)),
    ],
)
@pytest.mark.parametrize("model", [box, simulator], ids=["box", "simulator"])
def test_a_guide_is_compared_over_the_supports_of_the_model(model, distribution, score):
    def guide(x=None):
        numpyro.sample("t", distribution(x))

    posterior = NumpyroPosterior(model, guide=guide)
    us, xs = posterior.pairs(0, 9)
    scores = posterior.scored(us, xs, None).at_targets[:, 0]
    share = jax.nn.sigmoid(us[:, 0])
    t = 10 * share - 5
    np.testing.assert_allclose(t, xs, atol=1.5)
    wanted = score(t, xs) * 10 * share * (1 - share) + 1 - 2 * share
    np.testing.assert_allclose(scores, wanted, rtol=1e-8)
    with pytest.raises(ValueError, match="guide: it has no site 't'"):
        NumpyroPosterior(model, guide=lambda x: None).scored(us, xs, None)


@pytest.mark.slow
def test_autoguides_fitted_to_each_observation_are_predictions():
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoDiagonalNormal

    def positive(x):
        rate = numpyro.sample("rate", dist.LogNormal(0.0, 1.0))
        numpyro.sample("x", dist.Normal(jnp.log(rate), 1.0), obs=x)

    guide = AutoDiagonalNormal(positive)
    SVI(positive, guide, numpyro.optim.Adam(0.1), Trace_ELBO()).init(jax.random.key(0), 0.3)
    params = {"auto_loc": jnp.asarray([[0.1], [0.7]]), "auto_scale": jnp.asarray([[0.5], [2.0]])}
    us = jnp.asarray([[0.2], [0.3]])
    fits = as_posterior(guide.get_posterior(params).to_event(1))
    scores = fits.scored(us, jnp.zeros((2, 1)), us)
    wanted = (params["auto_loc"] - us) / params["auto_scale"] ** 2
    np.testing.assert_allclose(scores.at_targets, wanted, rtol=1e-9)
    with pytest.raises(ValueError, match="one per observation"):
        fits.scored(us[:1], us[:1], None)


def test_a_batch_of_distributions_is_a_posterior_per_observation(pairs):
    thetas, xs, nodes = pairs
    scores = as_posterior(dist.Normal(xs, 0.5).to_event(1)).scored(thetas, xs, nodes)
    np.testing.assert_allclose(scores.at_targets, 4 * (xs - thetas), rtol=1e-9)
    np.testing.assert_allclose(scores.at_nodes, 4 * (xs[:, None] - nodes[None]), rtol=1e-9)


def test_distributions_of_one_parameter_need_no_event_axis(pairs):
    thetas, xs, nodes = (values[:, :1] for values in pairs)
    sds = jnp.linspace(0.5, 2, N)
    for law in (dist.Normal(xs[:, 0], sds), dist.Normal(xs, sds[:, None]).to_event(1)):
        scores = as_posterior(law).scored(thetas, xs, nodes)
        np.testing.assert_allclose(scores.at_targets[:, 0], (xs - thetas)[:, 0] / sds**2, rtol=1e-9)
        wanted = (xs[:, None] - nodes[None]) / sds[:, None, None] ** 2
        np.testing.assert_allclose(scores.at_nodes, wanted, rtol=1e-9)


def test_a_distribution_has_no_score_where_it_has_no_density():
    class Half(dist.Normal):
        def log_prob(self, value):
            return jnp.where(value > 0, super().log_prob(value), -jnp.inf)

    thetas, nodes = jnp.asarray([[1.0], [-1.0]]), jnp.asarray([[2.0], [-2.0]])
    scores = as_posterior(Half(jnp.zeros(2), 1.0)).scored(thetas, thetas, nodes)
    np.testing.assert_array_equal(scores.at_targets, [[-1], [np.nan]])
    np.testing.assert_array_equal(scores.at_nodes[..., 0], [[-2, np.nan], [-2, np.nan]])


def test_models_that_cannot_have_scores_are_refused():
    def discrete(x):
        k = numpyro.sample("k", dist.Poisson(3.0))
        numpyro.sample("x", dist.Normal(k, 1.0), obs=x)

    with pytest.raises(ValueError, match="'k' is discrete"):
        NumpyroPosterior(discrete)
    with pytest.raises(ValueError, match="no latent sites"):
        NumpyroPosterior(lambda x: numpyro.sample("x", dist.Normal(), obs=x))
    with pytest.raises(ValueError, match="no site 'y'"):
        NumpyroPosterior(conjugate, observed="y").pairs(jax.random.key(0), 3)


def test_arrays_and_nonsense_are_told_apart(pairs):
    assert isinstance(as_posterior(log_prob), JaxPosterior)
    assert as_posterior(Scores(pairs[0])).scored(*pairs[:2], None).at_targets is pairs[0]
    with pytest.raises(TypeError, match=r"wrap scores as jaxcal\.Scores"):
        as_posterior(pairs[0])
    with pytest.raises(TypeError, match="cannot get scores from dict"):
        as_posterior({})


def with_factor(x):
    mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
    numpyro.factor("soft", -(mu**2))
    numpyro.sample("x", dist.Normal(mu, 1.0), obs=x)


def test_a_factor_enters_the_density_but_not_simulations():
    """mu ~ N(0, 1) exp(-mu^2), x ~ N(mu, 1): a score of -mu - 2 mu + (x - mu)."""
    posterior = NumpyroPosterior(with_factor)
    us, xs = jnp.asarray([[0.3], [-1.0]]), jnp.asarray([0.7, 0.1])
    scores = posterior.scored(us, xs, us).at_targets
    np.testing.assert_allclose(scores[:, 0], -3 * us[:, 0] + xs - us[:, 0], rtol=1e-9)
    assert posterior.draw_nodes(jax.random.key(0), 5).shape == (5, 1)
    with pytest.raises(ValueError, match="site 'soft' is a factor"):
        posterior.pairs(jax.random.key(0), 4)

    def conditioned(x):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        numpyro.sample("more", dist.Normal(mu, 1.0), obs=0.3)
        numpyro.sample("x", dist.Normal(mu, 1.0), obs=x)

    with pytest.raises(ValueError, match="'more' is observed also in"):
        NumpyroPosterior(conditioned).pairs(0, 4)

    def scaled(x):
        mu = numpyro.sample("mu", dist.Normal(0.0, 1.0))
        with numpyro.handlers.scale(scale=3.0):
            numpyro.sample("x", dist.Normal(mu, 1.0), obs=x)

    with pytest.raises(ValueError, match="'x' has a scaled log density"):
        NumpyroPosterior(scaled).pairs(0, 4)

    def masked(x):
        mu = numpyro.sample("mu", dist.Normal(jnp.zeros(2), 1.0).mask(mask).to_event(1))
        numpyro.sample("x", dist.Normal(mu, 1.0).mask(jnp.asarray([True, False])), obs=x)

    mask = jnp.asarray([True, False])
    with pytest.raises(ValueError, match="latent site 'mu' is masked"):
        NumpyroPosterior(masked).pairs(0, 4)
    mask = True
    assert NumpyroPosterior(masked).pairs(0, 4)[0].shape == (4, 2)
    mask = jnp.ones(2, bool)  # leaves nothing out
    assert NumpyroPosterior(masked).pairs(0, 4)[0].shape == (4, 2)


def regression(design, noise, y=None):
    slope = numpyro.sample("slope", dist.Normal(0.0, 1.0))
    numpyro.sample("y", dist.Normal(slope * design, noise).to_event(1), obs=y)


@pytest.mark.slow
def test_models_with_several_arguments():
    """Shared ones by ``arguments``, each observation's own by ``inputs``; x is the one left."""
    design = jnp.asarray([0.5, 1.0, 2.0])
    shared = NumpyroPosterior(regression, "y", arguments={"design": design, "noise": 0.5})
    us, ys = shared.pairs(0, 6)
    assert (us.shape, ys.shape) == ((6, 1), (6, 3))

    def wanted(us, ys, designs):
        gaps = ys - us * designs
        return -us + jnp.sum(designs * gaps, axis=1, keepdims=True) / 0.25

    scores = shared.scored(us, ys, None).at_targets
    np.testing.assert_allclose(scores, wanted(us, ys, design[None]), rtol=1e-9)

    designs = jax.random.normal(jax.random.key(1), (6, 3))
    posterior = NumpyroPosterior(regression, "y", arguments={"noise": 0.5}, inputs=["design"])
    us, xs = posterior.pairs(0, 6, inputs={"design": designs})
    assert set(xs) == {"y", "design"}
    assert posterior.names == ("slope",)
    scores = posterior.scored(us, xs, us[:2]).at_targets
    np.testing.assert_allclose(scores, wanted(us, xs["y"], designs), rtol=1e-9)
    # y / design is about the slope: the observations follow their own inputs
    assert float(jnp.max(jnp.abs(xs["y"] - us * designs))) < 5 * 0.5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "its argument 'noise' has no value"),
        ({"arguments": {"nois": 1.0}}, "no argument 'nois'"),
        ({"arguments": {"design": 1.0, "noise": 1.0, "y": None}}, "wanted an argument for the"),
    ],
)
def test_arguments_that_do_not_fit_the_model_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        NumpyroPosterior(regression, "y", **options)
    posterior = NumpyroPosterior(regression, "y", arguments={"noise": 1.0}, inputs=["design"])
    with pytest.raises(ValueError, match="inputs: wanted design, got None"):
        posterior.pairs(0, 3)
    with pytest.raises(ValueError, match="leading axis of n=3"):
        posterior.pairs(0, 3, inputs={"design": jnp.ones((2, 3))})
    with pytest.raises(ValueError, match="xs: wanted a dict of y, design"):
        posterior.scored(jnp.ones((3, 1)), jnp.ones((3, 3)), None)


def grouped(group, y=None):
    with numpyro.plate("groups", 3):
        means = numpyro.sample("a", dist.Normal())
    numpyro.sample("y", dist.Normal(means[group], 1.0), obs=y)


def test_whole_numbers_of_a_model_are_indices_again():
    posterior = NumpyroPosterior(grouped, "y", inputs=["group"])
    thetas, xs = posterior.pairs(0, 30, {"group": np.arange(30) % 3})
    scored = score_pairs(0, posterior, thetas, xs, prior=thetas)
    assert scored.thetas.shape == (30, 3)
    assert jnp.issubdtype(scored.xs["group"].dtype, jnp.integer)
    assert scored.features.dtype == thetas.dtype


@pytest.mark.slow
def test_supports_that_depend_on_inputs_are_those_of_each_row():
    def model(width, x=None):
        t = numpyro.sample("t", dist.Uniform(0.0, width))
        numpyro.sample("x", dist.Normal(t, 0.01), obs=x)

    widths = jnp.asarray([3.0, 1.0, 2.0])
    posterior = NumpyroPosterior(model, inputs=["width"])
    us, xs = posterior.pairs(0, 3, {"width": widths})
    t = widths * jax.nn.sigmoid(us[:, 0])
    np.testing.assert_allclose(t, xs["x"], atol=0.05)
    slope = t * (1 - t / widths)
    scores = posterior.scored(us, xs, None).at_targets[:, 0]
    np.testing.assert_allclose(scores, (xs["x"] - t) * 1e4 * slope + 1 - 2 * t / widths, rtol=1e-9)

    fresh = NumpyroPosterior(model, inputs=["width"])  # it learns the sites from the inputs
    np.testing.assert_allclose(fresh.free({"t": t}, {"width": widths}), us, rtol=1e-9)
    with pytest.raises(ValueError, match="inputs: wanted width, got None"):
        posterior.free({"t": t})
