"""Posteriors of torch: what sbi, zuko and lampe make, distributions, functions; no network trained
longer than an epoch."""

import contextlib
import copy
import gc
import math
import warnings
import weakref
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

import jaxcal
from jaxcal import sbi
from jaxcal.read.scores import log_densities_at, score, to_second_order
from jaxcal.sbi.adapters import as_posterior
from jaxcal.sbi.repair import RepairedPosterior, _features
from jaxcal.sbi.suspicions import in_sentences
from jaxcal.sbi.torch_posterior import TorchPosterior

with contextlib.suppress(ModuleNotFoundError), warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import torch
    from sbi import inference

pytestmark = [
    pytest.mark.optional("torch", "sbi"),
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore"),
]

N, D = 300, 2
KEY = jax.random.key(0)


@pytest.fixture
def compilations():
    """Names of the events in which JAX has compiled a program, since the test began."""
    events = []

    def listen(event, seconds, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            events.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    yield events
    jax.monitoring.unregister_event_duration_listener(listen)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    yield
    torch.set_num_threads(threads)


def box():
    from sbi.utils import BoxUniform

    return BoxUniform(-torch.ones(D), torch.ones(D))


def normal():
    return torch.distributions.MultivariateNormal(torch.zeros(D), torch.eye(D))


def simulated(prior, n=N):
    torch.manual_seed(1)
    theta = prior.sample((n,))
    return theta, theta + 0.3 * torch.randn(n, D)


def trained(how, prior, theta, x, **options):
    trainer = getattr(inference, how)(prior=prior, show_progress_bars=False, **options)
    estimator = trainer.append_simulations(theta, x).train(max_num_epochs=1)
    return estimator, trainer.build_posterior()


def log_prob(theta, x):
    """Of N(x, 1/2) in every coordinate."""
    return -((theta - x) ** 2).sum(dim=-1)


@pytest.mark.parametrize("how", ["NPE", "NLE", "NRE"])
@pytest.mark.parametrize("prior", [box, normal])
def test_sbi_posteriors_and_estimators_are_tested_without_jax(how, prior):
    prior = prior()
    theta, x = simulated(prior)
    estimator, posterior = trained(how, prior, theta, x)
    pairs = sbi.score_pairs(KEY, posterior, theta[:60], x[:60])
    assert 0 < float(jaxcal.kccsd_test(KEY, pairs.scores, pairs.thetas).p_value) <= 1
    bounded = type(prior).__name__ == "BoxUniform"
    # read off the posterior's own prior
    assert ("bounded-parameters" in pairs.notes) == bounded

    # the scores are those of sbi's own potential, one x at a time, by finite differences
    scores = TorchPosterior(posterior).scored(jnp.asarray(theta[:2]), x[:2], None).at_targets
    for i in range(2):
        potential = posterior.potential_fn
        potential.set_x(x[i : i + 1])
        for k in range(D):
            step = torch.zeros(1, D)
            step[0, k] = 1e-3
            at = theta[i : i + 1]
            up, down = (potential(at + s, track_gradients=False) for s in (step, -step))
            slope = float(up - down) / 2e-3
            assert float(scores[i, k]) == pytest.approx(slope, rel=0.05, abs=0.05)

    if how == "NRE":  # what .train() returns is the same posterior
        of_estimator = TorchPosterior(estimator, prior=prior)
        assert of_estimator.prior is prior
        again = of_estimator.scored(jnp.asarray(theta[:2]), x[:2], None).at_targets
        np.testing.assert_allclose(again, scores, rtol=1e-5)


@pytest.mark.parametrize("how", ["NPE", "NLE"])
@pytest.mark.parametrize("prior", [lambda: None, normal])
def test_an_estimator_that_may_be_of_theta_or_of_x_is_refused(how, prior):
    chosen = prior()
    theta, x = simulated(normal())
    estimator, posterior = trained(how, normal(), theta, x)
    refused = pytest.raises(ValueError, match=r"\(NLE\), .* which: pass what build_posterior\(\)")
    with refused:
        TorchPosterior(estimator, prior=chosen)
    with refused:
        sbi.check_posterior(KEY, estimator, theta[:60], x[:60], prior=chosen)
    with refused:
        sbi.predictions(estimator, x, prior=chosen)

    # where sizes tell, that of NPE is the posterior, and that of NLE is refused at the pairs
    longer = torch.cat([x, x[:, :1] ** 2], dim=1)
    estimator, posterior = trained(how, normal(), theta, longer)
    at, wrapped = jnp.asarray(theta[:5]), TorchPosterior(estimator, prior=normal())
    if how == "NPE":
        wanted = TorchPosterior(posterior).scored(at, longer[:5], None).at_targets
        again = wrapped.scored(at, longer[:5], None).at_targets
        np.testing.assert_array_equal(again, wanted)
    else:
        with pytest.raises(ValueError, match=r"estimator of NLE\? Pass build_posterior\(\)"):
            wrapped.scored(at, longer[:5], None)


def test_scores_of_npse_are_its_network_at_the_smallest_noise():
    prior = normal()
    theta, x = simulated(prior)
    estimator, posterior = trained("NPSE", prior, theta, x)
    pairs = sbi.score_pairs(KEY, posterior, theta[:60], x[:60])
    assert 0 < float(jaxcal.kccsd_test(KEY, pairs.scores, pairs.thetas).p_value) <= 1
    wrapped = TorchPosterior(posterior)
    scores = wrapped.scored(jnp.asarray(theta[:5]), x[:5], None).at_targets
    potential = posterior.potential_fn
    for i in range(5):
        potential.set_x(x[i : i + 1])
        np.testing.assert_allclose(scores[i], potential.gradient(theta[i : i + 1])[0], rtol=1e-4)
    again = TorchPosterior(estimator).scored(jnp.asarray(theta[:5]), x[:5], None).at_targets
    np.testing.assert_allclose(again, scores, rtol=1e-5)
    # a density by an ODE is not offered to tests that need many of them
    assert not hasattr(wrapped, "predictions")


def test_scores_of_fmpe_are_the_gradients_of_its_flow():
    prior = box()
    theta, x = simulated(prior)
    _, posterior = trained("FMPE", prior, theta, x)
    wrapped, at = TorchPosterior(posterior), np.asarray(0.9 * theta[:4])
    values, scores = wrapped.logs_and_scores(at, x[:4])
    for i in range(4):
        logs = posterior.log_prob(torch.as_tensor(at[i : i + 1]), x=x[i : i + 1])
        assert values[i] == pytest.approx(float(logs), rel=1e-3, abs=1e-3)
    for k in range(D):
        step = 1e-2 * np.eye(D, dtype=np.float32)[k]
        up, down = (wrapped.log_densities(at + s, x[:4]) for s in (step, -step))
        np.testing.assert_allclose(scores[:, k], (up - down) / 2e-2, rtol=0.02, atol=1e-2)
    draws = wrapped.sample(KEY, x[:4], 50)
    assert draws.shape == (4, 50, D)
    scored = sbi.score_pairs(KEY, posterior, theta[:5], x[:5], n_nodes=2)
    assert np.isfinite(scored.scores.at_nodes).all()


def test_an_ensemble_is_the_mixture_of_its_members():
    prior = normal()
    theta, x = simulated(prior)
    members = [trained("NPE", prior, theta, x)[1] for _ in range(2)]
    ensemble = inference.EnsemblePosterior(members, weights=[0.3, 0.7])
    scores = TorchPosterior(ensemble).scored(jnp.asarray(theta[:3]), x[:3], None).at_targets

    def by_hand(theta, x):
        logs = [m.posterior_estimator.log_prob(theta[None], condition=x)[0] for m in members]
        return torch.log(0.3 * torch.exp(logs[0]) + 0.7 * torch.exp(logs[1]))

    wanted = TorchPosterior(by_hand).scored(jnp.asarray(theta[:3]), x[:3], None).at_targets
    np.testing.assert_allclose(scores, wanted, rtol=1e-3, atol=1e-4)
    assert not any(TorchPosterior(ensemble).notes.values())
    # members may have mass outside of this prior
    bounded = SimpleNamespace(posteriors=members, weights=[0.3, 0.7], prior=box())
    (note,) = in_sentences(TorchPosterior(bounded).notes)
    assert "corrections for mass outside of the prior" in note
    ensemble_of_likelihoods = inference.EnsemblePosterior(
        [trained("NLE", prior, theta, x)[1] for _ in range(2)]
    )
    scored = sbi.score_pairs(KEY, ensemble_of_likelihoods, theta[:60], x[:60])
    assert any("weighs members by their evidence" in note for note in scored.warnings())
    assert scored.sampler is None


@pytest.mark.optional("zuko", "lampe")
def test_flows_of_zuko_and_lampe_need_no_wrapping():
    import lampe
    import zuko

    theta, x = simulated(normal(), 20)
    flow = zuko.flows.MAF(D, context=D, hidden_features=[8])
    at = jnp.asarray(theta)
    of_flow = as_posterior(flow, theta).scored(at, x, None).at_targets
    wanted = TorchPosterior(lambda t, c: flow(c).log_prob(t)).scored(at, x, None).at_targets
    np.testing.assert_allclose(of_flow, wanted, rtol=1e-5)
    estimator = lampe.inference.NPE(D, D, hidden_features=[8])
    of_lampe = as_posterior(estimator, theta).scored(at, x, None).at_targets
    wanted = TorchPosterior(lambda t, c: estimator(t, c)).scored(at, x, None).at_targets
    np.testing.assert_allclose(of_lampe, wanted, rtol=1e-5)
    ratio = lampe.inference.NRE(D, D, hidden_features=[8])
    with pytest.raises(ValueError, match=r"a ratio \(NRE\) needs one to be a posterior"):
        as_posterior(ratio, theta)
    of_ratio = as_posterior(ratio, theta, normal()).scored(at, x, None).at_targets
    wanted = TorchPosterior(lambda t, c: ratio(t, c) - (t**2).sum(-1) / 2).scored(at, x, None)
    np.testing.assert_allclose(of_ratio, wanted.at_targets, rtol=1e-4, atol=1e-6)


def test_distributions_of_torch_are_conditional_posteriors():
    theta, x = simulated(normal(), 60)

    def of_x(x):
        return torch.distributions.Independent(torch.distributions.Normal(x, 0.5), 1)

    at = jnp.asarray(theta)
    for posterior in (of_x, of_x(x)):
        wrapped = as_posterior(posterior, theta)
        scores = wrapped.scored(at, x, None).at_targets
        np.testing.assert_allclose(scores, (np.asarray(x) - at) / 0.25, rtol=1e-4)
    draws = np.asarray(TorchPosterior(of_x).sample(KEY, x, 200))
    z = (draws - np.asarray(x)[:, None]) / 0.5
    assert scipy.stats.kstest(z.ravel(), "norm").pvalue > 1e-4
    with pytest.raises(ValueError, match="Independent"):
        as_posterior(lambda x: torch.distributions.Normal(x, 0.5), theta).scored(at, x, None)
    with pytest.raises(TypeError, match="function of one argument returned"):
        as_posterior(lambda x: x, theta).scored(at, x, None)


def test_inference_mode_and_the_default_type_do_not_matter():
    prior = normal()
    theta, x = simulated(prior)
    x = torch.cat([x, x[:, :1]], dim=1)
    estimator, posterior = trained("NPE", prior, theta, x)
    at = jnp.asarray(theta[:5])
    plain = TorchPosterior(posterior).scored(at, x[:5], None).at_targets
    with torch.inference_mode(), torch.no_grad():
        of_mode = TorchPosterior(posterior).scored(at, x[:5] + 0, None).at_targets
        made_inside = copy.deepcopy(estimator)
        of_copy = TorchPosterior(made_inside).scored(at, x[:5], None).at_targets
    np.testing.assert_array_equal(of_mode, plain)
    np.testing.assert_array_equal(of_copy, plain)
    torch.set_default_dtype(torch.float64)
    try:
        of_type = TorchPosterior(posterior).scored(at, x[:5].double(), None).at_targets
        doubled = copy.deepcopy(estimator).double()
        of_double = TorchPosterior(doubled).scored(at, x[:5], None).at_targets
        of_function = as_posterior(lambda t, c: log_prob(t, c[:, :D]), theta)
        assert of_function.scored(at, x[:5], None).at_targets.shape == (5, D)
    finally:
        torch.set_default_dtype(torch.float32)
    np.testing.assert_array_equal(of_type, plain)
    np.testing.assert_allclose(of_double, plain, rtol=1e-3, atol=1e-4)


def test_inputs_go_to_the_device_of_the_network():
    if not torch.cuda.is_available():
        pytest.skip("needs a second device")
    prior = normal()
    theta, x = simulated(prior)
    x = torch.cat([x, x[:, :1]], dim=1)
    estimator, _ = trained("NPE", prior, theta, x)
    at = jnp.asarray(theta[:5])
    here = TorchPosterior(estimator).scored(at, x[:5], None).at_targets
    there = TorchPosterior(copy.deepcopy(estimator).cuda()).scored(at, x[:5], None).at_targets
    np.testing.assert_allclose(there, here, rtol=1e-3, atol=1e-4)


def test_networks_are_evaluated_in_eval_mode_and_put_back():
    class Noisy(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.drop = torch.nn.Dropout(0.5)
            self.weight = torch.nn.Parameter(torch.ones(1))

        def forward(self, theta, x):
            return -(self.drop(theta - x) ** 2).sum(-1) * self.weight

    theta, x = simulated(normal(), 30)
    network = Noisy().train()
    scores = TorchPosterior(network).scored(jnp.asarray(theta), x, None).at_targets
    np.testing.assert_allclose(scores, -2 * (theta - x), rtol=1e-5)
    assert network.training
    assert network.drop.training


@pytest.mark.parametrize("batch", [7, 1000])
def test_log_densities_of_torch_live_inside_jax_programs(batch):
    """Value, gradient and Hessian of a quartic, under jit, vmap and loops; also in batches."""
    theta, x = simulated(normal(), 40)
    wrapped = TorchPosterior(lambda t, c: -((t - c) ** 4).sum(-1) / 4, batch=batch)
    predictions = wrapped.predictions(jnp.asarray(x))
    at = jnp.asarray(theta)
    gap = at - jnp.asarray(x)
    np.testing.assert_allclose(jax.jit(score)(predictions, at), -(gap**3), rtol=1e-5, atol=1e-6)
    many = jax.jit(lambda zs: jax.lax.map(lambda z: score(predictions, z), zs))
    np.testing.assert_allclose(
        many(jnp.stack([at, at + 1])), -(jnp.stack([gap, gap + 1]) ** 3), rtol=1e-5, atol=1e-6
    )
    from jaxcal.read import Standardized, Units

    standardized = Standardized(predictions, Units.unchanged(at), (D,))
    _, _, hessians = jax.jit(to_second_order)(standardized, at)
    wanted = -3 * gap[:, :, None] ** 2 * jnp.eye(D, dtype=at.dtype)[None]
    np.testing.assert_allclose(hessians, wanted, rtol=1e-4, atol=1e-5)


def test_posteriors_of_one_shape_share_a_program_without_leaks():
    theta, x = simulated(normal(), 20)
    at, gap, traces = jnp.asarray(theta), jnp.asarray(theta - x), []

    @jax.jit
    def counted(predictions, at):
        traces.append(at.shape)
        return score(predictions, at)

    def scaled(factor):
        network = torch.nn.Linear(1, 1)
        torch.nn.init.constant_(network.weight, factor)

        def log_prob(theta, x):
            return -network.weight[0, 0] * ((theta - x) ** 2).sum(-1)

        return sbi.predictions(log_prob, x), weakref.ref(network)

    first, network = scaled(1.0)
    second, _ = scaled(3.0)
    np.testing.assert_allclose(counted(first, at), -2 * gap, rtol=1e-5)
    np.testing.assert_allclose(counted(second, at), -6 * gap, rtol=1e-5)
    assert traces == [(20, D)]
    mixed = jax.tree.map(lambda a, b: jnp.concatenate([a[:5], b[5:]]), first, second)
    del first
    gc.collect()
    assert network() is not None  # the rows of a copy need it
    np.testing.assert_allclose(counted(mixed, at)[:5], -2 * gap[:5], rtol=1e-5)
    np.testing.assert_allclose(counted(mixed, at)[5:], -6 * gap[5:], rtol=1e-5)
    numbers = mixed.params[0].numbers
    del mixed
    gc.collect()
    assert network() is None
    gone = eqx.tree_at(lambda p: p.params[0].numbers, second, numbers)
    with pytest.raises(Exception, match="keep the object that"):
        counted(gone, at)


@pytest.mark.usefixtures("programs_stay")
def test_a_second_network_of_known_shape_compiles_nothing(compilations):
    """A whole check, small: the programs of the first network are those of the second."""
    prior = normal()
    theta, x = simulated(prior)
    torch.manual_seed(2)
    networks = [trained("NPE", prior, theta, x, density_estimator="maf")[1] for _ in range(2)]
    counts = []
    for posterior in networks:
        before = len(compilations)
        sbi.check_posterior(KEY, posterior, theta[:60], x[:60], n_samples=9)
        counts.append(len(compilations) - before)
    assert counts[0] > 0
    assert counts[1] == 0


def test_what_torch_cannot_differentiate_is_explained():
    theta, x = simulated(normal(), 7)
    cases = [
        (lambda t, c: log_prob(t, c).detach(), ValueError, "detached from theta"),
        (lambda t, c: log_prob(t, c)[:3], ValueError, "for each of 7 pairs"),
        (lambda t, c: (c**2).sum(-1).requires_grad_(), ValueError, "does not depend on theta"),
        (lambda t, c: np.zeros(len(t)), TypeError, "not a torch tensor"),
        (lambda t, c: t @ c, ValueError, r"fails for tensors of shape \(7, 2\) and \(7, 2\)"),
    ]
    for function, error, message in cases:
        with pytest.raises(error, match=message):
            TorchPosterior(function).scored(jnp.asarray(theta), x, None)

    def cut(theta, x):  # torch.where(inside, log_p, -inf) has gradient 0 outside
        outside = torch.arange(len(theta)) == 2
        return torch.where(outside, -torch.inf, log_prob(theta, x))

    scores = np.asarray(TorchPosterior(cut).scored(jnp.asarray(theta), x, None).at_targets)
    np.testing.assert_array_equal(np.isnan(scores).all(axis=1), np.arange(7) == 2)
    np.testing.assert_array_equal(np.isnan(scores).any(axis=1), np.arange(7) == 2)


def test_what_is_no_posterior_is_refused():
    class VIPosterior:
        pass

    class NPE_C:
        def build_posterior(self):
            return VIPosterior()

    with pytest.raises(TypeError, match="fitted to one x"):
        TorchPosterior(VIPosterior())
    with pytest.raises(TypeError, match=r"got NPE_C, which trains one: .*build_posterior\(\)"):
        TorchPosterior(NPE_C())
    with pytest.raises(TypeError, match="neither a posterior_estimator nor a potential_fn"):
        TorchPosterior(object())


def test_a_potential_keeps_its_own_observation():
    class Potential:
        def __init__(self):
            self._x_o, self._x_is_iid, self.prior = "mine", True, None

        def set_x(self, x, x_is_iid):
            self._x_o, self._x_is_iid = x, x_is_iid

        def __call__(self, theta, track_gradients):
            assert track_gradients
            assert self._x_is_iid is False
            return log_prob(theta, self._x_o)

    theta, x = simulated(normal(), 9)
    potential = Potential()
    scores = TorchPosterior(potential, batch=4).scored(jnp.asarray(theta), x, None).at_targets
    np.testing.assert_allclose(scores, -2 * (theta - x), rtol=1e-5)
    assert (potential._x_o, potential._x_is_iid) == ("mine", True)


def test_long_observations_are_compared_by_network_embedding():
    from sbi.neural_nets import posterior_nn

    prior = normal()
    theta, x = simulated(prior)
    long = x.repeat(1, 100) + 0.1 * torch.randn(N, 200)
    embedding = torch.nn.Sequential(torch.nn.Linear(200, 5), torch.nn.Tanh())
    builder = posterior_nn("maf", embedding_net=embedding, hidden_features=8, num_transforms=1)
    estimator = builder(theta, long)
    scored = sbi.score_pairs(KEY, estimator, theta[:60], long[:60], prior=prior)
    assert scored.features.shape == (60, 5)
    assert any("5 numbers of 200" in note for note in scored.warnings())
    means = long[:60].mean(dim=1)
    by_hand = sbi.score_pairs(KEY, estimator, theta[:60], long[:60], summaries=means, prior=prior)
    assert by_hand.features.shape == (60, 1)


def test_priors_of_torch_say_their_bounds():
    from sbi import utils

    from jaxcal.sbi.space import space_of

    parts = [
        torch.distributions.Gamma(torch.ones(1), torch.ones(1)),
        torch.distributions.Uniform(torch.zeros(1), 2 * torch.ones(1)),
        torch.distributions.Normal(torch.zeros(1), torch.ones(1)),
    ]
    space = space_of(utils.MultipleIndependent(parts), None, 3, jnp.float64)
    np.testing.assert_array_equal(space.low, [0, 0, -np.inf])
    np.testing.assert_array_equal(space.high, [np.inf, 2, np.inf])


def test_edges_of_a_transformed_prior_of_torch():
    from sbi import utils

    from jaxcal.sbi.space import space_of

    td, inf = torch.distributions, np.inf
    unit = td.Uniform(torch.zeros(2), 1.0)
    affine = td.AffineTransform(1.0, torch.tensor([10.0, -2.0]))
    for base, first, low, high in (
        (unit, [], [1, -1], [11, 1]),
        (td.Normal(torch.zeros(2), 1.0), [td.SigmoidTransform()], [1, -1], [11, 1]),
        (unit, [td.SigmoidTransform().inv], -inf, inf),
        (td.Exponential(torch.ones(2)), [], [1, -inf], [inf, 1]),
    ):
        prior = td.Independent(td.TransformedDistribution(base, [*first, affine]), 1)
        space = space_of(prior, None, 2, jnp.float64)
        np.testing.assert_allclose(space.low, np.broadcast_to(low, 2), rtol=1e-6)
        np.testing.assert_allclose(space.high, np.broadcast_to(high, 2), rtol=1e-6)
    together = td.IndependentTransform(td.SigmoidTransform(), 1)
    space = space_of(td.TransformedDistribution(td.Independent(unit, 1), together), None, 2, float)
    np.testing.assert_allclose(
        [space.low, space.high], [[0.5] * 2, [np.e / (1 + np.e)] * 2], rtol=1e-6
    )
    two = utils.MultipleIndependent([td.Uniform(torch.zeros(1), 1.0), td.Independent(unit, 1)])
    scaled = td.TransformedDistribution(two, [td.AffineTransform(0.0, torch.ones(3))])
    assert not np.any(space_of(scaled, None, 3, jnp.float64).bounded)  # as it declares


def test_exchangeable_candidates_of_a_torch_posterior():
    """The exact posterior passes, one twice too wide does not; densities only, called back."""
    from jaxcal.candidates import Chains, exchangeability_test

    theta, _ = simulated(normal(), 150)
    x = theta + torch.randn(150, D)

    def posterior(theta, x):
        return -((theta - x["mean"]) ** 2).sum(-1) / (2 * x["variance"])

    proposal = Chains(n_candidates=9, n_steps=4)
    wrapped = TorchPosterior(posterior)
    for variance, passes in ((0.5, True), (2.0, False)):
        xs = {"mean": jnp.asarray(x / 2), "variance": jnp.full(150, variance)}
        predictions = wrapped.predictions(xs)
        result = exchangeability_test(KEY, predictions, jnp.asarray(theta), proposal=proposal)
        assert (float(result.p_value) > 0.01) == passes
    assert math.isfinite(float(result.acceptance))


def test_coverage_with_the_users_own_draws_and_no_jax():
    """Of N(x / 2, 1/2) the claimed and the actual posterior: shares by Massart's bound."""
    from jaxcal.coverage import coverage

    torch.manual_seed(3)
    theta = torch.randn(N, D)
    x = theta + torch.randn(N, D)

    def posterior(theta, x):
        return -((theta - x / 2) ** 2).sum(-1)

    draws = x[:, None] / 2 + torch.randn(N, 19, D) / math.sqrt(2)
    result = coverage(sbi.predictions(posterior, x), theta, draws)
    assert float(result.p_uniform) > 0.01
    narrow = x[:, None] / 2 + 0.3 * torch.randn(N, 19, D)
    assert float(coverage(sbi.predictions(posterior, x), theta, narrow).p_conservative) < 1e-6


def test_coverage_of_an_sbi_posterior_uses_its_log_densities():
    from jaxcal import LogDensities
    from jaxcal.coverage import coverage

    prior = box()
    theta, x = simulated(prior, 60)
    _, posterior = trained("NPE", prior, *simulated(prior))
    draws = posterior.sample_batched((9,), x, show_progress_bars=False).transpose(0, 1)
    result = coverage(sbi.predictions(posterior, x), theta, draws)
    at = torch.stack([theta, *draws.unbind(1)])
    with torch.no_grad():
        logs = posterior.posterior_estimator.log_prob(at, condition=x)
    by_hand = coverage(LogDensities(logs[0], logs[1:].T))
    np.testing.assert_array_equal(result.counts, by_hand.counts)


def test_standardized_or_swapped_network_inputs_are_named():
    prior = box()
    theta, x = simulated(prior)
    x = 20 + 3 * torch.cat([x, x[:, :1]], dim=1)
    _, posterior = trained("NPE", prior, theta, x)
    few = theta[:60], x[:60]
    assert sbi.score_pairs(KEY, posterior, *few).notes == {"bounded-parameters": D}
    standardized = (few[1] - x.mean(0)) / x.std(0)
    notes = sbi.score_pairs(KEY, posterior, few[0], standardized).warnings()
    assert any("xs do not look like those that the network was trained on" in n for n in notes)
    with pytest.raises(ValueError, match="are the two swapped"):
        sbi.score_pairs(KEY, posterior, few[1], few[0], bounds=(-100, 100))
    with pytest.raises(ValueError, match=r"trained on 2 parameters and observations of shape \(3,"):
        sbi.score_pairs(KEY, posterior, few[0], few[1][:, :2])
    wider = type(prior)(-2 * torch.ones(D), 2 * torch.ones(D))
    notes = sbi.score_pairs(KEY, posterior, *few, prior=wider).warnings()
    assert any("prior= contradicts the posterior's own prior" in n for n in notes)


def test_one_call_checks_an_sbi_posterior_without_failed_pairs():
    prior = box()
    theta, x = simulated(prior)
    _, posterior = trained("NPE", prior, theta, x)
    x = x[:60].clone()
    x[5] = torch.nan
    report = sbi.check_posterior(
        KEY, posterior, theta[:60], x, exclude_invalid_x=True, n_samples=19
    )
    assert report.ranks.source == "draws"
    assert report.ranks.ranks.shape == (59, 1 + D)
    assert np.isfinite(np.asarray(report.ranks.ranks)).all()
    assert "1 pair with NaN or infinite x was left out" in repr(report)


def test_mixed_sbi_posteriors_are_checked_by_draws_and_densities():
    """sbi's MNPE: a normal rate and a choice of 0 and 1, which x tells apart."""
    from sbi.inference import MNPE
    from sbi.utils import MultipleIndependent

    torch.manual_seed(0)
    normal = torch.distributions.Normal(torch.zeros(1), torch.ones(1))
    choice = torch.distributions.Bernoulli(probs=torch.tensor([0.5]))
    prior = MultipleIndependent([normal, choice], validate_args=False)
    theta = prior.sample((900,))
    x = torch.cat([theta[:, :1] + 0.5 * torch.randn(900, 1), 2 * theta[:, 1:]], 1)
    x[:, 1:] += torch.randn(900, 1)
    trainer = MNPE(prior, density_estimator="mnpe", show_progress_bars=False)
    estimator = trainer.append_simulations(theta[:700], x[:700]).train(max_num_epochs=20)
    with torch.no_grad():
        draws = estimator.sample((49,), condition=x[700:]).transpose(0, 1).numpy()
    flipped = np.stack([draws[..., 0], 1 - draws[..., 1]], axis=2)
    ranked, wrong = (
        sbi.check_draws(KEY, which, theta[700:], x[700:], names=["rate", "kind"])
        for which in (draws, flipped)
    )
    assert set(np.unique(draws[..., 1])) == {0, 1}
    assert float(ranked.p_values[2]) > 1e-3 > 1e-9 > float(wrong.p_values[2])
    assert float(ranked.p_values[1]) == pytest.approx(float(wrong.p_values[1]))
    posterior, names = trainer.build_posterior(), ["rate", "kind"]
    with pytest.raises(ValueError, match=r"theta_2 are whole .*discrete={'theta_2': \[0, 1\]}"):
        sbi.check_posterior(KEY, posterior, theta[700:], x[700:])

    def flipped_kind(thetas, xs):
        return estimator.log_prob(torch.stack([thetas[:, 0], 1 - thetas[:, 1]], 1)[None], xs)[0]

    right, wrong = (
        sbi.check_posterior(
            KEY, which, theta[700:], x[700:], names=names, discrete={"kind": [0, 1]}, prior=prior
        )
        for which in (posterior, flipped_kind)
    )
    assert right.names == ("rate",)
    assert float(right.discrete[0].p_value) > 1e-3
    assert (
        float(wrong.discrete[0].p_value) <= 0.003
    )  # three tests, the draws of one of which are 999
    assert any(text.startswith("kind = ") or "of kind = " in text for text in wrong.findings())


def test_draws_of_a_prior_leave_its_bounds_to_the_posterior():
    """Without them what NPE leaks was tested as mass; sbi draws nothing outside of the prior."""
    theta, x = simulated(box())
    posterior = trained("NPE", box(), theta, x)[1]
    pairs = sbi.score_pairs(0, posterior, theta, x, prior=box().sample((200,)).numpy())
    np.testing.assert_array_equal(pairs.space.low, -np.ones(D))
    predictions = sbi.predictions(posterior, x)
    inside, outside = (log_densities_at(predictions, jnp.full((N, D), at)) for at in (0.5, 5.0))
    assert jnp.isfinite(inside).all()
    assert (outside == -jnp.inf).all()


def test_training_moments_of_a_ratio_are_those_of_x():
    from sbi.neural_nets import classifier_nn

    theta = torch.randn(N, D)
    x = 100 + 50 * theta + torch.randn(N, D)
    mean, sd = TorchPosterior(classifier_nn("mlp")(theta, x), prior=normal()).training_moments()
    np.testing.assert_allclose(mean, x.mean(0), rtol=1e-5)
    np.testing.assert_allclose(sd, x.std(0), rtol=1e-2)


def test_a_prior_of_torch_may_declare_no_support():
    class Restricted(torch.distributions.Distribution):
        """Without a support, as sbi's ``RestrictedPrior``."""

        def __init__(self):
            super().__init__(event_shape=(D,), validate_args=False)

        def sample(self, shape=()):
            return torch.randn(*shape, D)

        def log_prob(self, value):
            return -(value**2).sum(-1) / 2

    theta, x = simulated(normal(), 60)
    pairs = sbi.score_pairs(KEY, log_prob, theta, x, prior=Restricted())
    assert pairs.thetas.shape == (60, D)
    assert not pairs.space.bounded.any()


def test_the_share_of_npe_inside_the_bounds_takes_any_array():
    from sbi.inference.posteriors import DirectPosterior
    from sbi.neural_nets import posterior_nn

    theta, x = simulated(box())
    posterior = DirectPosterior(posterior_nn("mdn")(theta, x), box())
    inside = SimpleNamespace(space=SimpleNamespace(bounded=np.ones(D, bool)))
    repaired = RepairedPosterior(posterior, inside, (D,), {})
    wanted = repaired._log_inside(x[:2], 2)
    for rows in (x[:2].numpy(), x[:2].numpy().astype(float), jnp.asarray(x[:2].numpy())):
        np.testing.assert_allclose(repaired._log_inside(rows, 2), wanted, atol=0.05)


def test_one_observation_may_be_a_vector_of_torch():
    assert RepairedPosterior(None, None, (3,), {})._rows(torch.zeros(3)).shape == (1, 3)


def test_summaries_by_torch_get_tensors_of_new_observations():
    network, like = torch.nn.Linear(3, 2), torch.zeros(0, 3)
    inputs = _features(None, network, [like], jnp.zeros(()).dtype, jnp.ones((4, 3)))
    np.testing.assert_allclose(inputs, network(torch.ones(4, 3)).detach(), rtol=1e-6)
