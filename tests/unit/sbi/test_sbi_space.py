"""Parameters with bounds: the change to the whole space, and what is said where it is missing."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from jaxcal import calibration_test
from jaxcal.sbi import score_pairs
from jaxcal.sbi.space import Space, check_continuous, check_inside, evenly_filled, freed, space_of
from jaxcal.sbi.suspicions import PairNotes, about_space

INF = np.inf
CALLS = []
BOX = Space(jnp.asarray([-1.0, 0.0, -INF, -INF]), jnp.asarray([3.0, INF, 2.0, INF]))


@pytest.fixture(scope="module")
def thetas():
    u = jax.random.normal(jax.random.key(3), (20, 4)) * 2
    return BOX.bound(u)


@pytest.mark.slow
def test_free_and_bound_undo_each_other_and_increase(thetas):
    us = BOX.free(thetas)
    np.testing.assert_allclose(BOX.bound(us), thetas, rtol=1e-12)
    for k in range(4):
        assert np.all(np.diff(us[jnp.argsort(thetas[:, k]), k]) > 0)


@pytest.mark.slow
def test_values_beside_a_bound_keep_their_digits():
    """Far from 0 a share of the width has no digits left; -1e-10 came back as 0 in float32."""
    low, high = jnp.asarray([-1.0, 0, -1e5], jnp.float32), jnp.asarray([0, 1, 0], jnp.float32)
    thetas = jnp.asarray([[-1e-10, 1 - 2**-24, -1e-3], [-0.7, 1e-30, -9e4]], jnp.float32)
    box = Space(low, high)
    np.testing.assert_allclose(box.bound(box.free(thetas)), thetas, rtol=1e-5)


def test_each_kind_of_bound_has_its_own_function():
    us = BOX.free(jnp.asarray([2.0, 50.0, -40.0, 7.0]))
    np.testing.assert_allclose(us, [np.log(3), np.log(50), -np.log(42), 7], rtol=1e-12)


@pytest.mark.slow
def test_scores_are_gradients_of_densities_with_their_jacobian(thetas):
    def log_density(theta):
        return -jnp.sum(theta**2 * jnp.arange(1.0, 5)) / 3 + theta[0] * theta[3]

    def free_log_density(u):
        jacobian = jnp.diagonal(jax.jacfwd(lambda v: BOX.bound(v[None])[0])(u))
        return log_density(BOX.bound(u[None])[0]) + jnp.sum(jnp.log(jacobian))

    us = BOX.free(thetas)
    wanted = jax.jit(jax.vmap(jax.grad(free_log_density)))(us)
    ours = BOX.scores(us, jax.vmap(jax.grad(log_density))(thetas))
    np.testing.assert_allclose(ours, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
def test_gradients_are_finite_where_an_exponential_overflows():
    """In float32 exp(89) is infinite: a parameter of 300 beside bounded ones had NaN gradients."""
    box = jax.tree.map(lambda edge: edge.astype(jnp.float32), BOX)
    us = jnp.asarray([[0.0, 1, 1, 300], [-100, -100, 100, -300], [100, -200, 200, 0]], jnp.float32)
    slopes = jax.grad(lambda u: jnp.sum(box.bound(u)))(us)
    assert np.all(np.isfinite(slopes))
    np.testing.assert_allclose(slopes[0], [1, np.exp(1), np.exp(-1), 1], rtol=1e-6)
    np.testing.assert_array_equal(slopes[:, 3], 1)
    back = jax.grad(lambda theta: jnp.sum(box.free(theta)))(jnp.zeros((1, 4), jnp.float32) + 1.0)
    edge = jax.grad(lambda theta: jnp.sum(box.free(theta)))(jnp.asarray([[1.0, 1, 1, 0]], "f4"))
    np.testing.assert_allclose([back[0], edge[0]], [[1, 1, 1, 1]] * 2, rtol=1e-6)


@pytest.mark.slow
def test_the_identity_holds_after_the_change_and_not_before():
    """E[s(theta) theta + 1] of U(0, 1): 1 as it came, 0 on the whole line, by quadrature."""
    unit = Space(jnp.zeros(1), jnp.ones(1))
    theta = (jnp.arange(20_000.0)[:, None] + 0.5) / 20_000
    u = unit.free(theta)
    s = unit.scores(u, jnp.zeros_like(theta))
    assert float(jnp.mean(jnp.tanh(u) * s + 1 - jnp.tanh(u) ** 2)) == pytest.approx(0, abs=1e-3)
    assert float(jnp.mean(theta * 0 + 1)) == 1  # what a uniform prior does to f = theta


@pytest.mark.parametrize(
    ("prior", "low", "high"),
    [
        (dist.Uniform(-jnp.ones(2), 2.0).to_event(1), -1, 2),
        (dist.LogNormal(jnp.zeros(2)).to_event(1), 0, INF),
        (dist.Beta(jnp.ones(2), 2.0).to_event(1), 0, 1),
        (dist.MultivariateNormal(jnp.zeros(2), jnp.eye(2)), -INF, INF),
        (None, -INF, INF),
        (lambda key, m: jnp.zeros((m, 2)), -INF, INF),
    ],
)
def test_the_space_is_read_from_the_prior(prior, low, high):
    space = space_of(prior, None, 2, jnp.float64)
    np.testing.assert_array_equal(space.low, [low, low])
    np.testing.assert_array_equal(space.high, [high, high])


UNIT = dist.Uniform(jnp.zeros(2), 1.0)
AFFINE = dist.transforms.AffineTransform(jnp.asarray([1.0, 5.0]), jnp.asarray([10.0, -2.0]))
LOGISTIC = dist.transforms.SigmoidTransform()


@pytest.mark.parametrize(
    ("prior", "low", "high"),
    [
        (dist.TransformedDistribution(UNIT, AFFINE).to_event(1), [1, 3], [11, 5]),
        (dist.TransformedDistribution(UNIT.to_event(1), AFFINE), [1, 3], [11, 5]),
        (dist.TransformedDistribution(dist.Normal(0, 1), [LOGISTIC, AFFINE]), [1, 3], [11, 5]),
        (dist.TransformedDistribution(dist.Exponential(), AFFINE), [1, -INF], [INF, 5]),
        (dist.TransformedDistribution(UNIT, [LOGISTIC.inv, AFFINE]), -INF, INF),
        (dist.TransformedDistribution(UNIT, dist.transforms.ExpTransform()), 1, np.e),
        (dist.TransformedDistribution(UNIT, dist.transforms.AbsTransform()), 0, INF),
        (dist.LogUniform(jnp.ones(2), 3.0), 1, 3),
    ],
)
def test_edges_of_a_transformed_prior(prior, low, high):
    space = space_of(prior, None, 2, jnp.float64)
    np.testing.assert_allclose(space.low, np.broadcast_to(low, 2), rtol=1e-12)
    np.testing.assert_allclose(space.high, np.broadcast_to(high, 2), rtol=1e-12)


class Interval:
    def __init__(self, low, high):
        self.lower_bound, self.upper_bound = low, high


class Real:
    pass


class Cat:
    def __init__(self, *parts):
        self.cseq, self.lengths = parts, [1, 2]


class TorchLike:
    def __init__(self, support):
        self.support = support


def test_blocks_of_parameters_keep_their_own_bounds():
    space = space_of(TorchLike(Cat(Interval(0.0, 1.0), Real())), None, 3, jnp.float64)
    np.testing.assert_array_equal(space.low, [0, -INF, -INF])
    np.testing.assert_array_equal(space.high, [1, INF, INF])


def test_what_has_no_box_is_refused_with_advice():
    with pytest.raises(ValueError, match="NumpyroPosterior"):
        space_of(dist.Dirichlet(jnp.ones(3)), None, 3, jnp.float64)
    with pytest.raises(ValueError, match="discrete"):
        space_of(dist.Poisson(jnp.ones(2)).to_event(1), None, 2, jnp.float64)
    with pytest.raises(ValueError, match=r"bounds: wanted \(low, high\)"):
        space_of(None, 3.0, 2, jnp.float64)
    with pytest.raises(ValueError, match="below its high"):
        space_of(None, (1.0, [0.0, 2.0]), 2, jnp.float64)
    with pytest.raises(ValueError, match="one number or 2"):
        space_of(None, ([0.0] * 3, 1.0), 2, jnp.float64)


def test_parameters_on_a_bound_are_counted_and_named():
    space = Space(jnp.zeros(2), jnp.ones(2))
    bad = jnp.asarray([[0.5, 0.5], [0.5, 1.0], [0.2, 1.5]])
    with pytest.raises(ValueError, match="2 of 3 rows lie on or beyond a bound, first in rate"):
        check_inside(space, bad, ("size", "rate"))
    check_inside(space, bad[:1], ("size", "rate"))


def test_integers_not_due_to_rounding_are_a_discrete_parameter():
    rng = np.random.default_rng(0)
    thetas = jnp.asarray(np.stack([rng.normal(size=99), rng.integers(0, 2, 99)], axis=1))
    with pytest.raises(ValueError, match=r"all values of k are whole numbers; .* check_draws"):
        check_continuous(thetas, ("t", "k"))
    check_continuous(thetas[:10], ("t", "k"))
    mostly = thetas.at[0, 1].add(0.5)
    for continuous in (thetas + 0.5, mostly, 1e8 * thetas[:, :1].astype(jnp.float32)):
        check_continuous(continuous, ("t", "k"))


def test_an_even_filling_is_noticed_and_a_gaussian_is_not():
    uniform = jax.random.uniform(jax.random.key(0), (300, 1))
    normal = jax.random.normal(jax.random.key(1), (300, 1))
    assert evenly_filled(jnp.concatenate([normal, uniform], axis=1)) == [1]
    assert evenly_filled(uniform[:100]) == []
    assert evenly_filled(jnp.zeros((300, 1))) == []
    modes = 4 * jnp.sign(jnp.linspace(-1, 1, 300))[:, None] + normal
    assert 3 < np.ptp(modes) / np.std(modes) < 3.6
    assert evenly_filled(modes) == []


@pytest.mark.slow
def test_unknown_bounds_are_said_beside_what_is_declared():
    class Square(dist.transforms.AbsTransform):
        codomain = dist.constraints.real

    unit = jax.random.uniform(jax.random.key(0), (300, 2))
    prior = dist.TransformedDistribution(dist.Uniform(jnp.zeros(2), 1.0), Square()).to_event(1)
    notes = lambda space, bounds=None: about_space(space, bounds, unit, ("a", "b"))  # noqa: E731
    declared = space_of(prior, None, 2, jnp.float64)
    assert notes(declared) == {"bounded-parameters": 0, "unknown-bounds": ("a",)}
    assert notes(declared, (-INF, INF)) == {"bounded-parameters": 0}
    half = Space(jnp.asarray([0.0, -INF]), jnp.asarray([1.0, INF]))
    assert notes(half) == {"bounded-parameters": 1, "unknown-bounds": ("b",)}
    assert notes(Space(jnp.zeros(2), jnp.ones(2))) == {"bounded-parameters": 2}


@pytest.mark.slow
def test_a_distribution_beyond_its_bounds_is_tested_as_truncated():
    """A third of the draws were out of bounds, and counted as points below no target: p = .002."""
    thetas = jax.random.uniform(jax.random.key(0), (300, 1))
    xs = thetas + 0.3 * jax.random.normal(jax.random.key(1), (300, 1))
    space = Space(jnp.zeros(1), jnp.ones(1))
    free = freed(dist.Normal(xs, 0.3).to_event(1), space)
    assert jnp.mean(jnp.isfinite(free.sample(jax.random.key(3), (50,)))) > 0.999
    assert calibration_test(2, free, space.free(thetas)).p_value > 0.05


class Counted(dist.Normal):
    """Normals that note each call of ``sample`` when it runs."""

    def sample(self, key, sample_shape=()):
        jax.debug.callback(lambda: CALLS.append(None))
        return super().sample(key, sample_shape)


def test_a_posterior_beyond_its_bounds_does_not_hold_up_others():
    space, loc = Space(jnp.zeros(1), jnp.ones(1)), jnp.array([[0.5], [-9.0]])
    CALLS.clear()
    drawn = freed(Counted(loc, 0.3).to_event(1), space).sample(jax.random.key(0), (50,))
    jax.effects_barrier()
    assert jnp.all(jnp.isfinite(drawn[:, 0]))
    assert jnp.all(jnp.isnan(drawn[:, 1]))
    assert len(CALLS) == 21


def test_pairs_with_notes_pass_through_programs_and_stack():
    thetas = jax.random.uniform(jax.random.key(0), (60, 1))
    prior, log_prob = (
        dist.Uniform(jnp.zeros(1), 1.0).to_event(1),
        lambda t, x: -jnp.sum((t - x) ** 2),
    )
    one, other = (score_pairs(k, log_prob, thetas, thetas, prior=prior) for k in (0, 1))
    assert one.notes["bounded-parameters"] == 1
    one, other = (replace(pairs, notes={"unknown-bounds": ("a",)}) for pairs in (one, other))
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), one, other)
    assert stacked.scores.nodes.shape == (2, 10, 1)
    assert jax.jit(lambda pairs: pairs)(one).warnings() == one.warnings()
    assert hash(jax.tree.structure(one)) == hash(jax.tree.structure(one))


def test_equal_notes_have_equal_hashes():
    one = PairNotes({"bounded-parameters": 1, "unknown-bounds": ("a",)})
    other = PairNotes({"unknown-bounds": ("a",), "bounded-parameters": 1})
    assert (one, hash(one)) == (other, hash(other))
