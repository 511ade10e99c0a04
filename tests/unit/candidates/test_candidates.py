"""Exchangeable candidates: uniform ranks, exact p-values, the fault by its name."""

from dataclasses import dataclass, replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats
from reference.proposals import Independent, RandomWalk

import jaxcal
from jaxcal.candidates import Candidates, Chains, exchangeability_test, ranks
from jaxcal.candidates.exchangeability import _features, uniformity
from jaxcal.candidates.proposals import Drawn
from jaxcal.candidates.ranks import coordinate, distance_to, log_density

N = 2000


def skewed(sharpness, y):
    """A density with two edges, no constant, and no symmetry: Beta(2, 5) to a power, on (0, 1)."""
    inside = (y > 0) & (y < 1)
    at = jnp.where(inside, y, 0.5)
    logs = sharpness * (jnp.log(at) + 4 * jnp.log1p(-at))
    return jnp.sum(jnp.where(inside, logs, -jnp.inf))


@dataclass(frozen=True)
class Skewed:
    """The densities that proposals ask."""

    sharpness: jax.Array

    def __call__(self, at):
        both = jax.value_and_grad(lambda y: skewed(self.sharpness, y))
        return jax.vmap(jax.vmap(both))(at)

    def logs(self, at):
        return self(at)[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "proposal",
    [
        Chains(n_candidates=9, n_steps=3),
        Chains(n_candidates=9, n_steps=3, langevin=False),
        Chains(n_candidates=9, n_steps=3, nodes=jnp.linspace(0.02, 0.98, 20)[:, None]),
        RandomWalk(n_candidates=9),
        # a proposal that reaches a little less than the prediction's neighbour: still a density > 0
        "independent",
    ],
    ids=["langevin", "random walk chain", "jumps", "random walk", "independent"],
)
def test_ranks_are_uniform_only_if_targets_follow_predictions(proposal, key):
    if proposal == "independent":
        import numpyro.distributions as dist

        proposal = Independent(dist.Beta(1.5, 3.0).to_event(0).expand([1]).to_event(1), 9)
    candidate_key, rank_key = jax.random.split(key)
    ys = jnp.asarray(np.random.default_rng(1).beta(2, 5, (N, 1)))
    units = jnp.full((N, 1, 1), 0.2)

    @jax.jit
    def ranked(sharpness):
        drawn = proposal(candidate_key, Skewed(sharpness), ys, units)
        of = (log_density, coordinate(0), distance_to(jnp.full((N, 1), 0.3)))
        return jnp.stack([ranks(rank_key, drawn, statistic) for statistic in of])

    true, sharp = np.asarray(ranked(1.0)), np.asarray(ranked(2.0))
    assert all(scipy.stats.kstest(u, "uniform").pvalue > 1e-4 for u in true)
    assert scipy.stats.kstest(sharp[0], "uniform").pvalue < 1e-8


def test_ranks_count_ties_and_weights_as_written():
    logs = jnp.log(jnp.asarray([[0.2, 0.5, 0.3]]))
    candidates = Candidates(
        jnp.asarray([[[1.0], [1.0], [0.0]]]), logs, jnp.asarray([[0.2, 0.5, 0.3]]), jnp.ones(())
    )
    u = float(ranks(jax.random.key(3), candidates, coordinate(0))[0])
    uniform = float(jax.random.uniform(jax.random.key(3), (1,))[0])
    assert u == pytest.approx(0.3 + 0.7 * uniform)


def test_uniformity_is_the_two_sided_bound_of_the_largest_gap():
    u = np.random.default_rng(0).random(100)
    gap = scipy.stats.kstest(u, "uniform").statistic
    assert float(uniformity(jnp.asarray(u))) == pytest.approx(min(1, 2 * np.exp(-200 * gap**2)))


def normal(params, y):
    centre, root = params
    return -jnp.sum(jax.scipy.linalg.solve_triangular(root, y - centre, lower=True) ** 2) / 2


FAULTS = {
    "none": (0.0, 1.0, 0.5),
    "log density": (0.0, 1.4, 0.5),
    "location": (0.5, 1.0, 0.5),
    "correlation": (0.0, 1.0, -0.1),
}


def result(key, fault):
    """Targets with shift, spread and correlation of their own; predictions have correlation .5."""
    shift, spread, correlation = fault
    keys = jax.random.split(key, 4)
    centres, noise = jax.random.normal(keys[0], (2, 60, 2))
    widths = jnp.exp(0.3 * jax.random.normal(keys[1], (60, 1)))
    other = correlation * noise[:, 0] + jnp.sqrt(1 - correlation**2) * noise[:, 1]
    targets = centres + widths * (spread * jnp.stack([noise[:, 0], other], axis=1) + shift)
    claimed = widths[:, :, None] * jnp.asarray([[[1.0, 0.0], [0.5, 0.75**0.5]]])
    return exchangeability_test(
        keys[2],
        jaxcal.Unnormalized(normal, (centres, claimed)),
        targets,
        proposal=Chains(n_candidates=9, n_steps=4),
        n_resamples=99,
    )


def test_features_of_gaussians_do_not_depend_on_the_candidates():
    """Their means are exact: centred at the prediction's own mean, whichever points were drawn;
    members of a set change places together with their features."""
    rng = np.random.default_rng(3)
    means, roots = rng.normal(size=(40, 1, 2)), np.tril(rng.normal(size=(40, 2, 2))) + 2 * np.eye(2)
    z = rng.normal(size=(40, 7, 2)) + rng.normal(size=(40, 1, 2))  # of sets that are off, as chains
    points = means + np.einsum("nij,nkj->nki", roots, z)
    gradients = -np.einsum("nji,nkj->nki", np.linalg.inv(roots), z)
    logs, same = 5 - np.sum(z**2, axis=2) / 2, np.full((40, 7), 1 / 7)
    drawn = Candidates(*map(jnp.asarray, (points, logs, same, np.ones(()), gradients)))
    parts = _features(drawn, jnp.asarray(roots))
    expected = (1 - (z**2).sum(2, keepdims=True) / 2, z, z**2 - 1, z[:, :, :1] * z[:, :, 1:])
    for part, wanted in zip(parts, expected, strict=True):
        np.testing.assert_allclose(part, np.moveaxis(wanted, 2, 0), atol=1e-9)
    turned = Candidates(*(leaf[:, ::-1] if leaf.ndim > 1 else leaf for leaf in drawn))
    for part, other in zip(parts, _features(turned, jnp.asarray(roots)), strict=True):
        np.testing.assert_allclose(part, other[:, :, ::-1], atol=1e-9)
    without = _features(drawn._replace(gradients=None), jnp.asarray(roots))
    np.testing.assert_allclose(np.sum(without[1], axis=2), 0, atol=1e-9)


SETS, FAULTY_SETS = 300, 40


@pytest.fixture(scope="module")
def results():
    """Results of calibrated and of faulty data sets, from one program."""
    faults = [name for name in FAULTS if name != "none"]
    rows = [FAULTS["none"]] * SETS + [FAULTS[name] for name in faults for _ in range(FAULTY_SETS)]
    keys = jax.random.split(jax.random.key(20230721), len(rows))
    every = jax.jit(lambda keys, rows: jax.lax.map(lambda one: result(*one), (keys, rows)))
    all_of_them = every(keys, jnp.asarray(rows))
    sizes = {"none": SETS} | dict.fromkeys(faults, FAULTY_SETS)
    starts = dict(zip(sizes, np.cumsum([0, *sizes.values()])[:-1], strict=True))
    return {
        name: jax.tree.map(lambda leaf, k=name: leaf[starts[k] : starts[k] + sizes[k]], all_of_them)
        for name in sizes
    }


@pytest.mark.slow
def test_p_values_keep_their_level_and_every_fault_is_named(results):
    low, high = scipy.stats.binom.interval(0.9999, SETS, 0.05)
    calibrated = results["none"]
    for p in (calibrated.p_value, *calibrated.part_p_values.T):
        assert low <= int(jnp.sum(p <= 0.05)) <= high
    for name in ("log density", "location", "correlation"):
        faulty = results[name]
        part = faulty.part_p_values[:, faulty.parts.index(name)]
        assert int(jnp.sum(faulty.p_value <= 0.05)) >= FAULTY_SETS / 2
        assert int(jnp.sum(part <= 0.05)) >= FAULTY_SETS / 2


@pytest.mark.slow
def test_a_result_prints_its_verdict_and_names_the_fault(results):
    one = jax.tree.map(lambda leaf: leaf[0], results["log density"])
    assert one.verdict == "rejected"
    assert one.strongest in ("log density", "scale")
    assert "exact, 99 resamples" in repr(one)
    assert one.warnings() == []
    batch = results["none"]
    rejected = int(np.sum(np.asarray(batch.p_value) <= batch.level))
    assert np.sum(batch.verdict == "rejected") == rejected
    assert f"{SETS} results" in repr(batch)
    assert f"rejected in {rejected}" in repr(batch)
    assert replace(one, level=0.001).verdict == "cannot tell"  # of 99 resamples


@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "verdict", "sentence"),
    [(np.nan, "cannot tell", "NaN"), (2.0, "rejected", "density 0")],
    ids=["NaN", "impossible"],
)
def test_a_target_without_density_is_counted_and_said(target, verdict, sentence):
    ys = jnp.asarray(np.random.default_rng(1).beta(2, 5, (12, 1))).at[3].set(target)
    values = exchangeability_test(
        jax.random.key(0),
        jaxcal.Unnormalized(skewed, jnp.ones(12)),
        ys,
        proposal=RandomWalk(),
        n_resamples=99,
        base_measure=jnp.linspace(0.1, 0.9, 5)[:, None],
    )
    assert values.verdict == verdict
    assert any(sentence in text for text in values.warnings())


def test_what_is_no_density_or_no_proposal_is_named(key):
    ys = jnp.zeros((5, 1))
    with pytest.raises(TypeError, match="predictions"):
        exchangeability_test(key, jaxcal.Scores(ys), ys)
    with pytest.raises(TypeError, match="proposal"):
        exchangeability_test(key, jaxcal.Unnormalized(skewed, jnp.ones(5)), ys, proposal=Chains)
    for option in ({"n_nodes": 1}, {"n_resamples": 0}, {"level": 2.0}, {"tile": 0}):
        with pytest.raises(ValueError, match=next(iter(option))):
            exchangeability_test(key, jaxcal.Unnormalized(skewed, jnp.ones(5)), ys, **option)
    with pytest.raises(ValueError, match="n_steps"):
        Chains(n_steps=0)
    with pytest.raises(ValueError, match="smallest"):
        Chains(smallest=2.0, largest=1.0)


@pytest.mark.slow
def test_rows_that_repeat_and_rows_in_order_are_said(key):
    """Each pair five times: right models are rejected in 34 of 60 data sets."""
    centers, noise = jnp.repeat(jax.random.normal(key, (2, 20, 1)), 5, axis=1)
    predictions = jaxcal.Unnormalized(normal, (centers, jnp.ones((100, 1, 1))))
    said = str(exchangeability_test(0, predictions, centers + 2 * noise))
    assert "79 observations repeat" in said or "80 observations repeat" in said
    assert "[dependent-rows]" in said


@pytest.mark.slow
@pytest.mark.parametrize("family", [dist.HalfNormal, dist.Exponential])
def test_chains_stay_in_the_support_of_a_distribution(family):
    """numpyro's log densities are finite outside of it under jit: all were rejected."""
    predictions = family(jnp.ones(150))
    targets = predictions.sample(jax.random.key(1))
    right = exchangeability_test(0, predictions, targets, n_resamples=99)
    assert right.verdict == "not rejected"
    assert float(jnp.min(right.rank_p_values)) > 1e-3
    impossible = exchangeability_test(0, predictions, targets.at[3].set(-1), n_resamples=99)
    assert (int(impossible.impossible), impossible.verdict) == (1, "rejected")


@pytest.mark.slow
def test_chains_that_never_move_cannot_tell(key):
    x, noise = jax.random.normal(key, (2, 100))
    proposal = Chains(smallest=1e6, largest=1e6)
    result = exchangeability_test(0, dist.Normal(x, 1.0), x + noise, proposal=proposal)
    assert (int(result.unmoved), result.verdict) == (100, "cannot tell")


@pytest.mark.slow
def test_targets_that_recur_by_chance_give_no_verdict():
    """Of two points each, four targets are those observed with probability 1 / 16."""
    draws = jax.random.normal(jax.random.key(0), (4, 1, 1))
    predictions = dist.Normal(jnp.zeros((4, 1)), 1.0).to_event(1)
    result = exchangeability_test(1, predictions, jnp.full((4, 1), 6.0), proposal=Drawn(draws))
    assert result.verdict == "cannot tell"
    assert "no p-value is below 0.062" in result.reason
