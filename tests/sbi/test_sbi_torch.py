"""The adapter of torch: its logic with a stand-in, and sbi itself where it is installed."""

import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcal import sbi
from jaxcal.sbi.pairs import as_posterior
from jaxcal.sbi.torch_posterior import TorchPosterior

N, D = 7, 2


class FakeTensor:
    """Enough of a tensor: numbers, and whether a graph leads back to theta."""

    def __init__(self, values, requires_grad=False, gradient=None):
        self.values, self.requires_grad, self.gradient = np.asarray(values), requires_grad, gradient
        self.shape = self.values.shape

    def requires_grad_(self, flag):
        self.requires_grad = flag
        return self

    def detach(self):
        return FakeTensor(self.values)

    def cpu(self):
        return self

    def numpy(self):
        return self.values

    def sum(self):
        return self

    def reshape(self, *shape):
        return FakeTensor(self.values.reshape(*shape), self.requires_grad, self.gradient)

    def unsqueeze(self, axis):
        return self

    def __getitem__(self, rows):
        return self if isinstance(rows, int) else FakeTensor(self.values[rows])

    def __len__(self):
        return len(self.values)


class _Grad:
    def __enter__(self):
        return self

    def __exit__(self, *args):
        return False


@pytest.fixture
def fake_torch(monkeypatch):
    torch = types.ModuleType("torch")
    torch.get_default_dtype = lambda: np.float32
    torch.as_tensor = lambda a, dtype=None: FakeTensor(getattr(a, "values", a))
    torch.enable_grad = _Grad
    torch.autograd = types.SimpleNamespace(
        grad=lambda out, theta, allow_unused: (
            None if out.gradient is None else FakeTensor(out.gradient),
        )
    )
    monkeypatch.setitem(sys.modules, "torch", torch)
    return torch


def fake_log_prob(theta, x):
    gap = theta.values - x.values
    return FakeTensor(-np.sum(gap**2, axis=1) / 2, True, -gap)


class FakePotential:
    def __init__(self):
        self._x_o, self._x_is_iid, self.prior = "mine", True, None

    def set_x(self, x, x_is_iid):
        assert x_is_iid is False
        self._x_o, self._x_is_iid = x, x_is_iid

    def __call__(self, theta, track_gradients):
        assert track_gradients
        return fake_log_prob(theta, self._x_o)


class FakeSampler:
    def __init__(self):
        self.potential_fn = FakePotential()


class FakeDirect:
    """NPE: an estimator of the posterior, with sample axis first."""

    def __init__(self):
        self.posterior_estimator = types.SimpleNamespace(
            log_prob=lambda theta, condition: fake_log_prob(theta, condition)
        )


@pytest.fixture
def pairs():
    keys = jax.random.split(jax.random.key(0), 2)
    return jax.random.normal(keys[0], (N, D)), jax.random.normal(keys[1], (N, D))


@pytest.mark.parametrize("make", [FakePotential, FakeSampler, FakeDirect])
@pytest.mark.parametrize("batch", [3, 100])
def test_scores_come_from_autograd_in_batches(fake_torch, pairs, make, batch):
    thetas, xs = pairs
    held = make()
    assert isinstance(as_posterior(held), TorchPosterior)
    found = TorchPosterior(held, batch=batch).scored(thetas, xs, thetas[:3])
    np.testing.assert_allclose(found.at_targets, xs - thetas, rtol=1e-6)
    np.testing.assert_allclose(found.at_nodes, xs[:, None] - thetas[None, :3], rtol=1e-6)
    potential = getattr(held, "potential_fn", held)
    if isinstance(potential, FakePotential):
        assert (potential._x_o, potential._x_is_iid) == ("mine", True)


def test_a_pair_without_density_has_no_score(fake_torch, pairs):
    """torch.where(inside, log_p, -inf) has gradient 0 outside."""

    def cut(theta, x):
        whole = fake_log_prob(theta, x)
        outside = np.arange(len(theta)) == 2
        values, gradient = np.where(outside, -np.inf, whole.values), whole.gradient.copy()
        gradient[outside] = 0
        return FakeTensor(values, True, gradient)

    found = np.asarray(TorchPosterior(cut, batch=100).scored(*pairs, None).at_targets)
    np.testing.assert_array_equal(np.isnan(found).all(axis=1), np.arange(len(found)) == 2)
    np.testing.assert_array_equal(np.isnan(found).any(axis=1), np.arange(len(found)) == 2)


@pytest.mark.parametrize(
    ("log_prob", "error", "message"),
    [
        (lambda t, x: FakeTensor(np.zeros(len(t))), ValueError, "detached from theta"),
        (lambda t, x: FakeTensor(np.zeros(3), True, t.values), ValueError, "for each of 7 pairs"),
        (lambda t, x: FakeTensor(np.zeros(len(t)), True), ValueError, "does not depend on theta"),
        (lambda t, x: np.zeros(len(t)), TypeError, "not a torch tensor"),
    ],
)
def test_what_torch_cannot_differentiate_is_explained(fake_torch, pairs, log_prob, error, message):
    with pytest.raises(error, match=message):
        TorchPosterior(log_prob).scored(*pairs, None)


def test_a_posterior_of_one_x_is_refused():
    class VIPosterior:
        pass

    with pytest.raises(TypeError, match="fitted to one x"):
        TorchPosterior(VIPosterior())
    with pytest.raises(TypeError, match="neither a posterior_estimator nor a potential_fn"):
        TorchPosterior(object())


def trained(how, prior, theta, x):
    inference = pytest.importorskip("sbi.inference")
    trainer = getattr(inference, how)(prior=prior, show_progress_bars=False)
    trainer.append_simulations(theta, x).train(max_num_epochs=3)
    return trainer.build_posterior()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("how", ["NPE", "NLE", "NRE"])
def test_posteriors_of_sbi_are_tested_without_any_jax(how):
    torch = pytest.importorskip("torch")
    pytest.importorskip("sbi.inference")
    from sbi.utils import BoxUniform

    torch.manual_seed(0)
    prior = BoxUniform(-torch.ones(D), torch.ones(D))
    theta = prior.sample((200,))
    x = theta + 0.3 * torch.randn(200, D)
    posterior = trained(how, prior, theta, x)
    result = sbi.kccsd_test(jax.random.key(0), posterior, theta[:60], x[:60])
    assert 0 < float(result.p_value) <= 1
    assert "with bounds" in repr(result)  # read off the posterior's own prior

    # the scores are those of sbi's own potential, one x at a time, by finite differences
    found = TorchPosterior(posterior).scored(jnp.asarray(theta[:2]), x[:2], None).at_targets
    for i in range(2):
        potential = posterior.potential_fn
        potential.set_x(x[i : i + 1])
        for k in range(D):
            step = torch.zeros(1, D)
            step[0, k] = 1e-3
            at = theta[i : i + 1]
            up, down = (potential(at + s, track_gradients=False) for s in (step, -step))
            slope = float(up - down) / 2e-3
            assert float(found[i, k]) == pytest.approx(slope, rel=0.05, abs=0.05)


@pytest.mark.filterwarnings("ignore")
def test_priors_of_torch_say_their_bounds():
    torch = pytest.importorskip("torch")
    utils = pytest.importorskip("sbi.utils")
    from jaxcal.sbi.space import space_of

    parts = [
        torch.distributions.Gamma(torch.ones(1), torch.ones(1)),
        torch.distributions.Uniform(torch.zeros(1), 2 * torch.ones(1)),
        torch.distributions.Normal(torch.zeros(1), torch.ones(1)),
    ]
    space = space_of(utils.MultipleIndependent(parts), None, 3, jnp.float64)
    np.testing.assert_array_equal(space.low, [0, 0, -np.inf])
    np.testing.assert_array_equal(space.high, [np.inf, 2, np.inf])
