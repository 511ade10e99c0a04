"""Scores against closed forms and finite differences."""

from functools import partial
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from numpyro.distributions import transforms

from jaxcal import calibration_test, kccsd_test
from jaxcal.divergences import Vectors
from jaxcal.read import Scores, Standardized, Units, Unnormalized
from jaxcal.read.families import offered_moments
from jaxcal.read.scores import (
    compiled_log_densities,
    is_distribution,
    log_densities_at,
    score,
    scores_at,
    signs_reversed,
    states_an_end,
)

N, D = 5, 3
RNG = np.random.default_rng(0)
YS = jnp.asarray(RNG.normal(size=(N, D)))
MEAN = jnp.asarray(RNG.normal(size=(N, D)))
DEVIATION = jnp.asarray(RNG.uniform(0.5, 2, size=(N, D)))
ROOT = jnp.asarray(np.tril(RNG.normal(size=(N, D, D)), -1) + np.diag([1.0, 0.7, 1.4]))
close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-12)


def test_directions_have_no_means():
    """numpyro gives the circular mean of a von Mises distribution as its mean."""
    assert offered_moments(dist.VonMises(jnp.linspace(-1, 3, N), 1.0)) is None
    assert offered_moments(dist.VonMises(jnp.zeros((N, D)), 1.0).to_event(1)) is None
    assert offered_moments(dist.Gamma(jnp.linspace(1, 3, N), 1.0)) is not None


def gaussian(params, y):
    return -jnp.sum(((y - params["mean"]) / params["deviation"]) ** 2) / 2


def with_constant(params, y):
    mean, deviation = params["mean"], params["deviation"]
    constant = jnp.sum(jnp.exp(mean)) - 17.0 * jnp.sum(jnp.log(deviation))
    return gaussian(params, y) + constant


PARAMS = {"mean": MEAN, "deviation": DEVIATION}
GAUSSIAN_SCORES = -(YS - MEAN) / DEVIATION**2


def test_score_of_an_unnormalized_density():
    close(score(Unnormalized(gaussian, PARAMS), YS), GAUSSIAN_SCORES)


def test_the_constant_is_never_needed():
    one, other = (score(Unnormalized(f, PARAMS), YS) for f in (gaussian, with_constant))
    np.testing.assert_array_equal(one, other)


def energy(net, x, y):
    hidden = jnp.tanh(net["w"] @ y + net["v"] * x)
    return jnp.sum(hidden) - jnp.sum(y**4)


def test_shared_parameters_by_in_axes():
    net = {"w": jnp.asarray(RNG.normal(size=(4, D))), "v": jnp.asarray(RNG.normal(size=4))}
    xs = jnp.arange(5.0)
    shared = Unnormalized(lambda p, y: energy(*p, y), (net, xs), in_axes=((None, 0)))
    got = score(shared, YS)
    for i in range(N):
        slope = 1 - np.tanh(net["w"] @ YS[i] + net["v"] * xs[i]) ** 2
        close(got[i], slope @ net["w"] - 4 * YS[i] ** 3)
    by_leaf = Unnormalized(lambda p, y: energy(p[0], p[1], y), (net, xs), in_axes=(None, 0))
    close(score(by_leaf, YS), got)


@pytest.mark.parametrize("kind", [list, tuple, lambda leaves: SimpleTree(*leaves)])
def test_parameters_are_any_pytree(kind):
    params = kind([MEAN, DEVIATION])

    def density(params, y):
        mean, deviation = jax.tree.leaves(params)
        return gaussian({"mean": mean, "deviation": deviation}, y)

    close(score(Unnormalized(density, params), YS), GAUSSIAN_SCORES)


class SimpleTree(eqx.Module):
    mean: jax.Array
    deviation: jax.Array


def test_normal():
    close(score(dist.Normal(MEAN, DEVIATION).to_event(1), YS), GAUSSIAN_SCORES)
    scalar = dist.Normal(MEAN[:, 0], DEVIATION[:, 0])
    close(score(scalar, YS[:, 0]), GAUSSIAN_SCORES[:, 0])


def test_one_distribution_for_all():
    got = score(dist.Normal(MEAN[0], DEVIATION[0]).to_event(1), YS)
    close(got, -(YS - MEAN[:1]) / DEVIATION[:1] ** 2)


def test_multivariate_normal():
    got = score(dist.MultivariateNormal(MEAN, scale_tril=ROOT), YS)
    precision = np.linalg.inv(ROOT @ np.swapaxes(ROOT, 1, 2))
    close(got, -np.einsum("nij,nj->ni", precision, YS - MEAN), rtol=1e-8)


def test_student():
    nu = jnp.asarray([1.0, 2.0, 3.5, 10.0, 100.0])
    y, loc, scale = YS[:, 0], MEAN[:, 0], DEVIATION[:, 0]
    got = score(dist.StudentT(nu, loc, scale), y)
    close(got, -(nu + 1) * (y - loc) / (nu * scale**2 + (y - loc) ** 2))


def test_mixture_of_gaussians():
    weights = RNG.dirichlet(np.ones(2), size=N)
    loc, scale = RNG.normal(size=(N, 2)), RNG.uniform(0.5, 2, size=(N, 2))
    mixture = dist.MixtureSameFamily(
        dist.Categorical(probs=jnp.asarray(weights)), dist.Normal(jnp.asarray(loc), scale)
    )
    y = np.asarray(YS[:, :1])
    parts = weights * np.exp(-((y - loc) ** 2) / 2 / scale**2) / scale
    wanted = np.sum(parts * -(y - loc) / scale**2, 1) / np.sum(parts, 1)
    close(score(mixture, YS[:, 0]), wanted)


def test_event_shapes():
    shape = (N, 2, 3)
    mean, ys = (jnp.asarray(RNG.normal(size=shape)) for _ in range(2))
    wanted = -(ys - mean) / 4
    close(score(dist.Normal(mean, 2.0).to_event(2), ys), wanted)
    close(score(Unnormalized(lambda m, y: -jnp.sum((y - m) ** 2) / 8, mean), ys), wanted)
    flat = Standardized(
        dist.Normal(mean, 2.0).to_event(2), Units.unchanged(ys.reshape(N, 6)), (2, 3)
    )
    close(score(flat, ys.reshape(N, 6)), wanted.reshape(N, 6))


def test_standardized_scores_follow_the_chain_rule():
    """t = (y - c) / a has log density log f(c + a t) + const: its gradient by differences."""
    units = Units(jnp.asarray([1.0, -2.0, 0.3]), jnp.asarray([0.1, 3.0, 1e3]))
    standardized = Standardized(Unnormalized(gaussian, PARAMS), units, (D,))
    ts = units.points(YS)
    close(units.original(ts), YS)
    got = score(standardized, ts)
    close(got, GAUSSIAN_SCORES * units.scale[None])
    for i in range(N):
        for q in range(D):
            step = np.eye(D)[q] * 1e-6
            params = {name: leaf[i] for name, leaf in PARAMS.items()}
            values = [
                gaussian(params, units.center + units.scale * (ts[i] + sign * step))
                for sign in (1, -1)
            ]
            np.testing.assert_allclose(got[i, q], (values[0] - values[1]) / 2e-6, rtol=1e-4)


def test_scores_at_targets_and_base_points():
    nodes = jnp.asarray(RNG.normal(size=(4, D)))
    values, at_nodes = scores_at(Unnormalized(gaussian, PARAMS), YS, nodes)
    close(values, GAUSSIAN_SCORES)
    assert at_nodes.shape == (N, 4, D)
    close(at_nodes, -(nodes[None] - MEAN[:, None]) / DEVIATION[:, None] ** 2)
    alone, nothing = scores_at(Unnormalized(gaussian, PARAMS), YS, None)
    close(alone, values)
    assert nothing is None


def test_given_scores_change_units_like_computed_ones():
    nodes = jnp.asarray(RNG.normal(size=(4, D)))
    units = Units.of(YS)
    computed = Standardized(Unnormalized(gaussian, PARAMS), units, (D,))
    values, at_nodes = scores_at(Unnormalized(gaussian, PARAMS), YS, nodes)
    standardized = Standardized(Scores(values, at_nodes, nodes), units, (D,))
    for a, b in zip(
        scores_at(computed, units.points(YS), units.points(nodes)),
        scores_at(standardized, units.points(YS), units.points(nodes)),
        strict=True,
    ):
        close(a, b)


def test_a_model_with_scores_of_its_own():
    class Own(eqx.Module):
        def scores(self, ys):
            return -ys

    close(score(Own(), YS), -YS)


def test_what_has_no_score_says_so():
    with pytest.raises(TypeError, match="cannot get scores from SimpleNamespace"):
        score(SimpleNamespace(), YS)


def test_what_counts_as_a_distribution():
    assert is_distribution(dist.Normal(0.0, 1.0))
    assert not is_distribution(Unnormalized(gaussian, PARAMS))


def test_a_score_that_is_not_finite_comes_through():
    def cliff(params, y):
        return jnp.log(jnp.abs(y[0]))

    got = score(Unnormalized(cliff, jnp.zeros(N)), YS.at[1, 0].set(0.0))
    assert np.isnan(got[1, 0])  # the density is 0 there
    assert np.all(np.isfinite(np.delete(np.asarray(got), 1, 0)))


def student(nu):
    def draw(key, n):
        center, noise = jax.random.split(key)
        e = jax.random.t(noise, nu, (n,))
        return jax.random.normal(center, (n,)) + e, -(nu + 1) * e / (nu + e**2)

    return draw


def two_modes(key, n):
    x, z, side = jax.random.split(key, 3)
    e = jax.random.normal(z, (n,)) + 2 * jax.random.rademacher(side, (n,), float)
    return jax.random.normal(x, (n,)) + e, 2 * jnp.tanh(2 * e) - e


def of_many_widths(key, n):
    x, z, widths = jax.random.normal(key, (3, n))
    width = jnp.exp(widths)
    return x + width * z, -z / width


def beta(key, n):
    y = jax.random.beta(key, 2.0, 2.0, (n,))
    return y, 1 / y - 1 / (1 - y)


@pytest.mark.slow
@pytest.mark.parametrize(
    "draw",
    [student(1), student(3), student(1e6), two_modes, of_many_widths, beta],
    ids=["Cauchy", "t3", "normal", "two modes", "widths", "beta"],
)
def test_a_right_sign_never_looks_reversed(draw, key):
    """0 of 500 data sets of 50; and most energies are recognized at n = 200."""

    def flags(key):
        few, many = draw(key, 50), draw(key, 200)
        return (
            signs_reversed(few[0][:, None], few[1][:, None]),
            signs_reversed(many[0][:, None], -many[1][:, None]),
        )

    right, energy = jax.jit(jax.vmap(flags))(jax.random.split(key, 500))
    assert int(jnp.sum(right)) == 0
    assert float(jnp.mean(energy)) > 0.4


@pytest.mark.slow
def test_an_energy_in_the_place_of_a_log_density_is_named(key):
    center, noise = jax.random.normal(key, (2, 60))
    energy = Unnormalized(lambda c, y: (y - c) ** 2 / 2, center)
    by_moments = calibration_test(key, energy, center + noise)
    distance = Vectors(center[:, None])
    right, wrong = (
        kccsd_test(key, Scores(sign * noise), center + noise, divergence=distance)
        for sign in (-1, 1)
    )
    for result, said in [(by_moments, True), (right, False), (wrong, True)]:
        assert any("reversed-sign" in text for text in result.warnings()) == said
        assert (result.verdict == "rejected") == said


@pytest.mark.parametrize("wrap", [lambda p: p, lambda p: p.expand((200, 1)).to_event(1)])
def test_a_shifted_distribution_ends_where_its_base_does(wrap, key):
    """numpyro's affine transform says "real" of any support: right ones were rejected."""
    c = jax.random.normal(key, (200, 1))
    base = dist.Exponential(jnp.ones((200, 1)))
    p = wrap(dist.TransformedDistribution(base, transforms.AffineTransform(c, 1.0)))
    p = p if p.event_shape else p.to_event(1)
    assert states_an_end(p)
    assert jnp.all(jax.jit(log_densities_at)(p, c - 1) == -jnp.inf)
    np.testing.assert_allclose(jax.jit(log_densities_at)(p, c + 1), -1)
    assert kccsd_test(0, p, c + jax.random.exponential(key, (200, 1))).verdict == "cannot tell"


def test_transforms_to_the_whole_line_have_no_end():
    normal, uniform = dist.Normal(jnp.zeros(3), 1.0), dist.Uniform(jnp.zeros(3), 1.0)
    affine, exp = transforms.AffineTransform(1.0, 2.0), transforms.ExpTransform()
    to_line = [transforms.SigmoidTransform().inv, affine]
    for base, changes, ends in [
        (normal, [affine], False),
        (normal, [exp], True),
        (normal, [exp, affine], True),
        (normal, [transforms.ComposeTransform([exp, affine])], True),
        (uniform, to_line, False),
        (uniform, [affine], True),
    ]:
        assert states_an_end(dist.TransformedDistribution(base, changes)) == ends
    scaled = dist.TransformedDistribution(uniform, [affine])
    at = jnp.array([1.0, 3.0, 3.1])
    expected = [-jnp.log(2.0), -jnp.log(2.0), -jnp.inf]
    np.testing.assert_allclose(jax.jit(log_densities_at)(scaled, at), expected)


def test_values_that_round_to_an_end_are_inside():
    """A right target that rounds to the shift had the density 0."""
    with jax.enable_x64(False):
        shift = jnp.array([2024.3, 2024.3, 2024.0, 5.0])
        p = dist.TransformedDistribution(
            dist.HalfNormal(jnp.ones(4)), transforms.AffineTransform(shift, 1.0)
        )
        logs = jax.jit(log_densities_at)(p, jnp.array([2024.3, 2025.0, 2023.9, 4.0]))
    np.testing.assert_array_equal(jnp.isfinite(logs), [True, True, False, False])


def test_every_end_on_the_way_counts_but_no_fold():
    affine, fold = transforms.AffineTransform(1.0, 1.0), transforms.AbsTransform()
    late = dist.TransformedDistribution(dist.LogNormal(jnp.zeros(2), 1.0), affine)
    logs = jax.jit(log_densities_at)(late, jnp.array([0.5, 1.5]))
    np.testing.assert_array_equal(logs == -jnp.inf, [True, False])
    folded = dist.FoldedDistribution(dist.Uniform(-3 * jnp.ones(2), -jnp.ones(2)))
    assert jnp.all(jnp.isfinite(jax.jit(log_densities_at)(folded, jnp.array([1.5, 2.0]))))
    assert states_an_end(dist.TransformedDistribution(dist.Normal(jnp.zeros(2), 1.0), fold))
    counts = dist.Poisson(jnp.ones((2, 3))).to_event(1)
    turned = dist.TransformedDistribution(counts, transforms.PermuteTransform(jnp.array([2, 0, 1])))
    assert jnp.all(jnp.isfinite(log_densities_at(turned, jnp.ones((2, 3), jnp.int32))))


@pytest.mark.skipif(not hasattr(dist, "HurdleDistribution"), reason="numpyro 0.21 lacks it")
@pytest.mark.parametrize("base", [dist.LogNormal, dist.Gamma], ids=["log-normal", "gamma"])
def test_a_hurdle_gives_zero_its_probability(base):
    one = jnp.ones(2)
    hurdle = dist.HurdleDistribution(base(2 * one, 1.0), gate=0.3 * one)
    at = np.asarray(compiled_log_densities(hurdle, jnp.array([0.0, 1.0])))
    away = np.log(0.7) + base(2.0, 1.0).log_prob(1.0)
    np.testing.assert_allclose(at, [np.log(0.3), away], rtol=1e-6)
    stations = dist.HurdleDistribution(base(2 * jnp.ones((3, 2)), 1.0), gate=0.3).to_event(1)
    at = np.asarray(compiled_log_densities(stations, jnp.array([[0.0, 1], [0, 0], [0, -1]])))
    np.testing.assert_allclose(at, [np.log(0.3) + away, 2 * np.log(0.3), -np.inf], rtol=1e-6)


def test_inflated_zeros_below_a_support_have_their_probability():
    die = dist.ZeroInflatedDistribution(dist.DiscreteUniform(1, 6), gate=0.3 * jnp.ones(3))
    at = np.asarray(compiled_log_densities(die, jnp.array([0, 6, 7])))
    np.testing.assert_allclose(at, [np.log(0.3), np.log(0.7 / 6), -np.inf], rtol=1e-6)


ONE = jnp.ones(2)
AT_ZERO = {  # limits of log densities, to which numpyro's supports do not belong
    "exponential": (dist.Exponential(2 * ONE), np.log(2)),
    "expanded": (dist.Exponential(2.0).expand([2]), np.log(2)),
    "masked": (dist.Exponential(2 * ONE).mask(True), np.log(2)),
    "half-normal": (dist.HalfNormal(ONE), np.log(2 / np.pi) / 2),
    "vectors": (dist.Exponential(2 * jnp.ones((2, 3))).to_event(1), 3 * np.log(2)),
    "falling": (dist.Gamma(2 * ONE, 1.0), -np.inf),
    "infinite": (dist.Gamma(0.05 * ONE, 1.0), -np.inf),
    "transformed": (
        dist.TransformedDistribution(dist.Uniform(ONE, 2 * ONE), transforms.ExpTransform()),
        -np.inf,
    ),
    "falling vectors": (dist.Gamma(2 * jnp.ones((2, 3)), 1.0).to_event(1), -np.inf),
    "log-normal": (dist.LogNormal(0 * ONE, 1.0), -np.inf),
    "inverse gamma": (dist.InverseGamma(ONE, 1.0), -np.inf),
}


@pytest.mark.parametrize("name", AT_ZERO)
def test_the_density_of_positive_numbers_at_zero_is_its_limit(name):
    distribution, limit = AT_ZERO[name]
    ys = jnp.zeros((2, *distribution.event_shape))
    np.testing.assert_allclose(compiled_log_densities(distribution, ys), limit, rtol=1e-6)
    assert not np.isfinite(compiled_log_densities(distribution, ys - 0.1)).any()
    below = ys.at[(0,) * ys.ndim].set(-1.0)  # beside zeros
    assert not np.isfinite(compiled_log_densities(distribution, below)[0])


def test_whole_numbers_have_densities_of_positive_numbers():
    ones = compiled_log_densities(dist.Exponential(2 * ONE), jnp.array([0, 3]))
    np.testing.assert_allclose(ones, [np.log(2), np.log(2) - 6], rtol=1e-6)


@pytest.mark.slow
def test_rounded_waiting_times_are_no_impossible_targets():
    waits = dist.Exponential(jnp.exp(jax.random.normal(jax.random.key(0), (100,)) / 3))
    ys = jnp.round(waits.sample(jax.random.key(1)), 1)
    assert jnp.sum(ys == 0) > 2
    assert not calibration_test(2, waits, ys).notes.get("impossible-targets", 0)
