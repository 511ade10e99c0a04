"""Ensembles are mixtures: densities, moments and kernels are those of the parts."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from reference.mixtures import ensemble, mse

from jaxcal.measures import nll, pinball_loss
from jaxcal.skce import skce

N = 6
RNG = np.random.default_rng(31)
LOC, SCALE = jnp.asarray(RNG.normal(size=(3, N))), jnp.asarray(RNG.uniform(0.5, 2, size=(3, N)))
MEAN = jnp.asarray(RNG.normal(size=(3, N, 2)))
ROOT = jnp.asarray([[1.0, 0.0], [0.5, 0.8]])
YS, POINTS = jnp.asarray(RNG.normal(size=N)), jnp.asarray(RNG.normal(size=(N, 2)))
W = np.array([0.2, 0.5, 0.3])


def mean_density(members, ys, weights):
    each = jnp.stack([jnp.exp(member.log_prob(ys)) for member in members])
    return jnp.log(jnp.tensordot(jnp.asarray(weights), each, axes=1))


FAMILIES = {
    "normal": ([dist.Normal(a, b) for a, b in zip(LOC, SCALE, strict=True)], YS),
    "one scale": ([dist.Normal(a, 1.5) for a in LOC], YS),
    "expanded": ([dist.Normal(a, 1.0).expand((N,)) for a in (0.1, 0.2, 0.3)], YS),
    "laplace": ([dist.Laplace(a, b) for a, b in zip(LOC, SCALE, strict=True)], YS),
    "student": ([dist.StudentT(4.0, a, b) for a, b in zip(LOC, SCALE, strict=True)], YS),
    "vectors": ([dist.Normal(a, 1.5).to_event(1) for a in MEAN], POINTS),
    "covariance": ([dist.MultivariateNormal(a, scale_tril=ROOT) for a in MEAN], POINTS),
    "matrix": ([dist.MultivariateNormal(a, covariance_matrix=ROOT @ ROOT.T) for a in MEAN], POINTS),
}


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("weights", [None, W], ids=["equal", "given"])
def test_the_density_is_the_mean_of_densities(name, weights):
    members, ys = FAMILIES[name]
    mixture = ensemble(members, weights)
    assert type(mixture).__name__ == "MixtureSameFamily"
    assert mixture.batch_shape == (N,)
    wanted = mean_density(members, ys, np.full(3, 1 / 3) if weights is None else weights)
    np.testing.assert_allclose(mixture.log_prob(ys), wanted, rtol=1e-10)


def test_members_of_several_families_make_a_general_mixture():
    members = [dist.Normal(LOC[0], SCALE[0]), dist.Laplace(LOC[1], SCALE[1])]
    mixture = ensemble(members, [0.25, 0.75])
    assert type(mixture).__name__ == "MixtureGeneral"
    np.testing.assert_allclose(mixture.log_prob(YS), mean_density(members, YS, [0.25, 0.75]))


def test_class_probabilities_are_averaged():
    p = RNG.dirichlet(np.ones(4), size=(3, N))
    np.testing.assert_allclose(ensemble(list(p), W), np.tensordot(W, p, 1))
    logits = dist.Categorical(logits=jnp.log(p[1]))
    mixed = ensemble([dist.Categorical(jnp.asarray(p[0])), logits, dist.Categorical(p[2])], W)
    np.testing.assert_allclose(mixed.probs, np.tensordot(W, p, 1), rtol=1e-6)
    coins = ensemble([dist.Bernoulli(jnp.asarray(p[0][:, 0])), dist.Bernoulli(p[1][:, 0])])
    np.testing.assert_allclose(coins.probs, (p[0] + p[1])[:, 0] / 2)


@pytest.mark.slow
def test_an_ensemble_is_better_than_its_members_on_average():
    """Jensen: the squared error and the negative log likelihood of the mixture."""
    members, ys = FAMILIES["normal"]
    mixture = ensemble(members)
    for loss in (mse, nll):
        assert float(loss(mixture, ys)) <= np.mean([float(loss(m, ys)) for m in members])
    assert np.isfinite(pinball_loss(mixture, ys))


def test_copies_of_one_member_change_nothing(key):
    member = dist.Normal(LOC[0], SCALE[0])
    copies = ensemble([member] * 3, W)
    np.testing.assert_allclose(copies.log_prob(YS), member.log_prob(YS))
    from jaxcal.kernels.points import Constant, Gaussian

    options = {"prediction_kernel": Constant(), "target_kernel": Gaussian(1.0)}
    np.testing.assert_allclose(
        skce(key, copies, YS, **options), skce(key, member, YS, **options), rtol=1e-8
    )


def test_ensembles_are_differentiable():
    def loss(shift):
        return nll(ensemble([dist.Normal(a + shift, 1.0) for a in LOC]), YS)

    step = 1e-5
    numeric = (loss(step) - loss(-step)) / (2 * step)
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(0.0), numeric, rtol=1e-6)


@pytest.mark.parametrize(
    ("members", "weights", "message"),
    [
        ([], None, "members: wanted at least one"),
        (FAMILIES["normal"][0], [np.nan, 0.5, 0.5], "weights: wanted numbers >= 0 of sum 1"),
        (FAMILIES["normal"][0], [0.5, 0.5], r"weights: wanted one per member, shape \(3,\)"),
        (FAMILIES["normal"][0], [0.5, 0.5, 0.5], "of sum 1"),
        ([dist.Normal(YS, 1.0), dist.Normal(YS[:3], 1.0)], None, "the same batch and event shape"),
        ([dist.Normal(0.0, 1.0)], None, r"batch shape \[n\]"),
        ([np.eye(3), np.eye(4)], None, "the same shape"),
    ],
)
def test_wrong_members_are_named(as_users_run_it, members, weights, message):
    with pytest.raises(ValueError, match=message):
        ensemble(members, weights)
