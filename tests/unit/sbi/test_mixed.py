"""Posteriors of continuous and discrete parameters: conditionals, levels, names, bad input."""

from functools import partial
from types import SimpleNamespace

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from jaxtyping import Array
from optimized import optimized
from scipy import stats

from jaxcal import sbi
from jaxcal.sbi import discrete, mixed

CENTERS, WEIGHTS = jnp.array([-1.0, 0.0, 1.0]), jnp.array([0.5, 0.3, 0.2])
VALUES = {"k": [0, 1, 2]}
NAMES = ["a", "k", "b"]


def simulated(key, n):
    """A mean of three possible models k, shifted by a, and a rate b with its own observation."""
    which, normal, noise = jax.random.split(key, 3)
    k = jax.random.choice(which, 3, (n,), p=WEIGHTS)
    a, b = jax.random.normal(normal, (2, n))
    xs = jnp.stack([0.3 * a + CENTERS[k], b], 1) + jax.random.normal(noise, (n, 2))
    return jnp.stack([a, k.astype(a.dtype), b], 1), xs


class Claims(eqx.Module):
    """The posterior, or a wrong one: all are one program, as only these numbers differ."""

    weights: Array = eqx.field(default=(0.5, 0.3, 0.2), converter=jnp.asarray)
    along: Array = eqx.field(default=0.0, converter=jnp.asarray)
    defined_to: Array = eqx.field(default=jnp.inf, converter=jnp.asarray)  # x[1], where k = 2

    def __call__(self, theta, x):
        a, k, b = theta
        place = jnp.asarray(k, int)
        residuals = x - jnp.stack([0.3 * a + CENTERS[place], b])
        of_continuous = -(a**2 + b**2 + jnp.sum(residuals**2)) / 2
        value = of_continuous + jnp.log(self.weights[place]) + self.along * k * x[1]
        return jnp.where((k == 2) & (x[1] > self.defined_to), jnp.nan, value)


log_prob = Claims()


def prior(key, m):
    return simulated(key, m)[0]


@pytest.fixture(scope="module")
def pairs():
    return simulated(jax.random.key(0), 300)


def checked(density, pairs, **options):
    options = {"prior": prior, "names": NAMES, "discrete": VALUES} | options
    return sbi.check_posterior(1, density, *pairs, **options)


@pytest.mark.slow
def test_a_right_posterior_passes_and_shows_discrete_parameters(pairs):
    report = checked(log_prob, pairs)
    assert report.conclusion == "no evidence against the posterior (which is not proof of it)"
    assert report.names == ("a", "b")
    (k,) = report.discrete
    assert (k.name, k.values, k.features) == ("k", (0.0, 1.0, 2.0), ("", "x[0]", "x[1]", "a", "b"))
    printed = repr(report)
    assert "k, 3 values: p = " in printed
    assert "[given-discrete]" in printed
    assert "discrete parameters" in printed
    assert report.to_dict()["discrete"][0]["name"] == "k"
    assert float(report.p_values()["discrete"]) == pytest.approx(float(k.p_value))


@pytest.mark.slow
def test_probabilities_without_a_verdict_reject_nothing(pairs):
    report = checked(log_prob, pairs)
    lost = eqx.tree_at(lambda e: e.discrete[0].calibrated.p_value, report, jnp.asarray(1e-3))
    assert lost.verdict == "rejected"
    note = "nonfinite-targets"
    lost = eqx.tree_at(lambda e: e.discrete[0].calibrated.notes[note], lost, jnp.asarray(1))
    assert lost.conclusion == f"cannot tell: {lost.discrete[0].calibrated.reason}"
    along = eqx.tree_at(lambda e: e.discrete[0].p_along, lost, jnp.asarray(1e-4))
    assert along.verdict == "rejected"


@pytest.mark.slow
def test_only_wrong_probabilities_are_rejected_and_named(pairs):
    by_weight = checked(Claims(weights=(0.2, 0.3, 0.5)), pairs)
    assert "probabilities of discrete parameters are wrong" in by_weight.conclusion
    said = by_weight.findings()
    assert any(text.startswith("k = 0 is claimed with probability") for text in said)
    assert not any(text.startswith(("a ", "b ")) for text in said)
    along = checked(Claims(along=0.7), pairs).findings()
    assert "the probability of k = 2 is too high where x[1] is large" in along


def test_probabilities_of_values_are_those_of_the_closed_form(pairs):
    thetas, xs = pairs
    part = mixed.split(log_prob, thetas, xs, VALUES, {"prior": prior, "names": NAMES})
    predictions = part.continuous[0].of_all(part.continuous[2])
    got = mixed._probabilities(predictions, thetas, jnp.arange(3.0), 1)
    by_hand = np.asarray(WEIGHTS) * stats.norm.pdf(
        np.asarray(xs)[:, :1], 0.3 * np.asarray(thetas)[:, :1] + np.asarray(CENTERS)
    )
    np.testing.assert_allclose(got, by_hand / by_hand.sum(1, keepdims=True), rtol=2e-5)


def test_continuous_parameters_condition_on_discrete_columns(pairs):
    thetas, xs = pairs
    first = jnp.array([1, 0, 2])  # k, a, b: sorting these columns is no exchange of two

    def reordered(theta, x):
        return log_prob(theta[first], x)

    part = mixed.split(reordered, thetas[:, first], xs, {0: [0, 1, 2]}, {"prior": prior})
    posterior, continuous, observed, _ = part.continuous
    predictions = posterior.predictions(observed)
    got = jax.vmap(predictions.log_density)(predictions.params, continuous)
    np.testing.assert_allclose(got, jax.vmap(log_prob)(thetas, xs), rtol=1e-6)


def _p_values(key, n):
    """P-values of right probabilities: one of four values is rare, and some are all but certain."""
    a, b, c, d = jax.random.split(key, 4)
    logits = jnp.array([[0.0, 1.0, -1.0, -6.0]]) + 3 * jax.random.normal(a, (n, 4))
    inputs = jax.random.t(b, 3.0, (n, 3))
    place = jax.random.categorical(c, logits, axis=1)
    probabilities = jax.nn.softmax(logits)
    p_along, p_excluded, _, p_errors = discrete._along(d, probabilities, place, inputs, draws=199)
    return jnp.stack([p_along, p_excluded, jnp.min(p_errors)])


@pytest.mark.slow
@pytest.mark.parametrize("n", [20, 200])
def test_each_p_value_of_right_probabilities_has_its_level(n):
    keys = jax.random.split(jax.random.key(3), 1000)
    p = np.asarray(optimized(partial(jax.lax.map, partial(_p_values, n=n)))(keys))
    for level in (0.05, 0.01):
        most = stats.binom.ppf(0.999, len(p), level)
        assert ((p <= level).sum(axis=0) <= most).all()
    least = stats.binom.ppf(0.001, len(p), 0.05)  # those by draws are exact, not conservative
    assert ((p <= 0.05).sum(axis=0)[[0, 2]] >= least).all()


@pytest.mark.slow
def test_one_value_excluded_by_its_posterior_is_rejected():
    probabilities = jnp.tile(jnp.array([0.5, 0.5 - 1e-7, 1e-7]), (100, 1))
    place = jnp.zeros(100, int).at[::2].set(1).at[7].set(2)
    result = discrete.of_probabilities(
        jax.random.key(0),
        probabilities,
        place,
        jnp.zeros((100, 1)),
        0.05,
        values=(0.0, 1.0, 2.0),
        features=("x[0]",),
        name="k",
    )
    assert float(result.p_excluded) == pytest.approx(1e-5, rel=1e-3)
    assert "values of low probability  p = 1e-05" in repr(result)


@pytest.mark.parametrize(
    ("discrete", "error", "said"),
    [
        ({"z": [0, 1]}, ValueError, "'z' is no parameter: these are a, k, b"),
        ({"k": [0, 1]}, ValueError, "k is 2 in row .* not among the values listed"),
        ({"k": [0]}, ValueError, "2 to 1000 finite values of k, got 1"),
        ({}, TypeError, "wanted a dict from names or columns"),
        ({5: [0, 1]}, ValueError, "5 is no parameter"),
    ],
)
def test_what_is_no_list_of_values_is_refused(pairs, discrete, error, said):
    with pytest.raises(error, match=said):
        checked(log_prob, pairs, discrete=discrete)


@pytest.mark.slow
def test_densities_that_are_undefined_at_a_value_are_named(pairs):
    thetas, xs = pairs
    n = int(jnp.sum(xs[:, 1] > 1.5))
    defined = thetas.at[:, 1].set(jnp.minimum(thetas[:, 1], 1.0))  # at the parameters
    with pytest.raises(ValueError, match=f"in {n} of .* is NaN or .infinity at a value of k"):
        checked(Claims(defined_to=1.5), (defined, xs))


def test_the_prior_may_draw_the_continuous_parameters_alone():
    all_draws, key = prior(jax.random.key(0), 40), jax.random.key(1)
    kept = (0, 2)
    for draws in (all_draws, all_draws[:, kept]):
        np.testing.assert_array_equal(mixed._prior_of(draws, kept, 3), all_draws[:, kept])
        function = mixed._prior_of(lambda key, m, draws=draws: draws[:m], kept, 3)
        np.testing.assert_array_equal(function(key, 7), all_draws[:7, kept])


def test_bad_calls_name_the_remedy(pairs):
    thetas, xs = pairs
    joint = dist.Normal(jnp.zeros(3), 1.0).to_event(1)
    with pytest.raises(ValueError, match="pass that of the continuous ones, a function prior"):
        checked(log_prob, pairs, prior=joint)
    for draws in (jnp.zeros((9, 4)), lambda key, m: jnp.zeros((m, 4))):
        with pytest.raises(ValueError, match=r"prior: wanted draws \[m, 3\] of all .* \[m, 2\]"):
            checked(log_prob, pairs, prior=draws)
    with pytest.raises(ValueError, match=r"check_posterior\(.., discrete={'theta_2': \[0, 1\]}\)"):
        sbi.check_posterior(1, log_prob, thetas, xs)
    with pytest.raises(ValueError, match="draws: not allowed with discrete"):
        checked(log_prob, pairs, draws=jnp.zeros((300, 9, 3)))
    with pytest.raises(ValueError, match=r"no parameter is continuous.*jaxcal\.check"):
        sbi.check_posterior(1, log_prob, thetas[:, 1:2], xs, discrete={0: [0, 1, 2]})
    with pytest.raises(TypeError, match="needs log densities of one theta given one x"):
        checked(lambda xs: dist.Normal(xs, 1.0).to_event(1), pairs)
    with pytest.raises(TypeError, match="needs a posterior, thetas and xs"):
        sbi.check_posterior(1, log_prob, discrete=VALUES)


@pytest.mark.slow
def test_choices_that_equal_all_redrawn_ones_are_no_evidence(monkeypatch):
    """Their sums are rounded differently in a loop: p was the share of redraws that differ."""
    counted = []

    def p_value(*args, ties=False):
        counted.append(ties)
        return jnp.ones(args[0].shape)

    monkeypatch.setattr(discrete, "p_value", p_value)
    discrete._along.__wrapped__(
        jax.random.key(0),
        jnp.tile(jnp.array([0.999, 0.001]), (60, 1)),
        jnp.zeros(60, int),
        jnp.zeros((60, 1)),
        draws=9,
    )
    assert counted == [True, True]


def test_the_finding_on_a_value_is_its_largest_error():
    """All clear errors have the least p-value, of which the first was named."""
    errors, p = jnp.array([[-10.0, -43.0], [10.0, 43.0]]), jnp.full((2, 2), 1e-4)
    half = jnp.full(2, 0.5)
    z = SimpleNamespace(
        name="z", values=(0.0, 1.0), features=("", "x[0]"), claimed=half, actual=half
    )
    z.errors, z.p_errors = errors, p
    said = discrete.DiscreteParameter.findings(z, 0.05)
    assert said[1] == "the probability of z = 1 is too low where x[0] is large"


@pytest.mark.parametrize("names", ["y", "xs", "observations other"])
def test_observations_may_be_a_dict_of_any_names(names):
    name, *others = names.split()
    thetas, noise = jax.random.normal(jax.random.key(0), (2, 60, 2))
    thetas = thetas.at[:, 1].set((thetas[:, 1] > 0).astype(float))

    def of_named(theta, x):
        return -jnp.sum((theta[:1] - x[name]) ** 2)

    xs = {name: thetas[:, :1] + noise[:, :1]} | dict.fromkeys(others, noise)
    posterior, kept, observed, options = mixed.split(
        of_named, thetas, xs, {1: [0, 1]}, {}
    ).continuous
    scored = sbi.score_pairs(1, posterior, kept, observed, **options)
    assert bool(jnp.all(jnp.isfinite(scored.scores.at_targets)))
