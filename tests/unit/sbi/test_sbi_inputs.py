"""Pairs that do not fit the posterior: a sentence for each, an error where nothing can be said."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import jaxcal
from jaxcal import sbi

N, D = 120, 2
KEY = jax.random.key(0)
PRIOR = dist.Normal(jnp.asarray([3.0, -2.0]), 1.0).to_event(1)


def log_prob(theta, x):
    return -jnp.sum((theta - x) ** 2) / 2


@pytest.fixture(scope="module")
def pairs():
    thetas = PRIOR.sample(jax.random.key(1), (N,))
    return thetas, 10 * thetas + jax.random.normal(jax.random.key(2), (N, D))


def notes(*pair, prior=PRIOR, posterior=log_prob, **options):
    return sbi.score_pairs(KEY, posterior, *pair, prior=prior, **options).warnings()


@pytest.mark.slow
def test_pairs_that_fit_leave_nothing_to_say(pairs):
    assert notes(*pairs) == []


def test_parameters_that_are_no_draws_of_the_prior_are_named(pairs):
    thetas, xs = pairs
    standardized = (thetas - thetas.mean(0)[None]) / thetas.std(0)[None]
    for other in (standardized, 1000 * thetas):
        (note,) = notes(other, xs)
        assert "thetas do not look like draws of the prior" in note
        assert "other units" in note
    (note,) = notes(xs, thetas)
    assert "xs do: are thetas and xs swapped? If not, were they standardized" in note


@pytest.mark.slow
def test_the_look_at_the_prior_keeps_quiet_on_its_own_draws():
    """200 sets of 40 and of 400 draws, none named: the bound of the test is 1e-6 a parameter."""
    from jaxcal.sbi.suspicions import PRIOR_DRAWS, about_prior

    rng = np.random.default_rng(0)
    for n in (40, 400):
        for _ in range(100):
            values, draws = rng.normal(size=(n, 3)), rng.normal(size=(PRIOR_DRAWS, 3))
            assert about_prior(None, None, values, values, draws) == {}


@pytest.mark.parametrize("d", [1, 3])
def test_a_prior_over_other_parameters_is_named(pairs, d):
    with pytest.raises(ValueError, match=r"prior: .* thetas have 2 parameters, got \(2000, [13]\)"):
        notes(*pairs, prior=dist.Normal(jnp.zeros(d), 9.0).to_event(1))
    box = dist.Uniform(-jnp.full(3, 20.0), 20.0).to_event(1)
    with pytest.raises(ValueError, match=r"prior: wanted one number or 2, .* of shape \(3,\)"):
        notes(*pairs, prior=box)


class WithPrior:
    """A posterior that carries its prior."""

    prior = PRIOR

    def scored(self, thetas, xs, nodes):
        return sbi.JaxPosterior(log_prob).scored(thetas, xs, nodes)


def test_a_prior_that_contradicts_the_posteriors_own_is_named(pairs):
    assert notes(*pairs, posterior=WithPrior()) == []
    same = dist.Normal(jnp.asarray([3.0, -2.0]), 1.0).to_event(1)
    assert notes(*pairs, posterior=WithPrior(), prior=same) == []
    wider = dist.Normal(jnp.asarray([3.0, -2.0]), 1.3).to_event(1)
    (note,) = notes(*pairs, posterior=WithPrior(), prior=wider)
    assert "prior= contradicts the posterior's own prior" in note


@pytest.mark.slow
def test_rows_of_failed_simulations_are_named_or_omitted(pairs):
    thetas, xs = pairs
    failed = xs.at[jnp.asarray([3, 7]), 1].set(jnp.nan).at[9, 0].set(jnp.inf)
    with pytest.raises(ValueError, match=r"xs: 3 of 120 rows hold NaN .* \(first row 3\)"):
        notes(thetas, failed)
    scored = sbi.score_pairs(KEY, log_prob, thetas, failed, prior=PRIOR, exclude_invalid_x=True)
    assert scored.notes == {"excluded-pairs": 3}
    assert scored.warnings() == ["3 pairs with NaN or infinite x were left out [excluded-pairs]"]
    kept = np.setdiff1d(np.arange(N), [3, 7, 9])
    np.testing.assert_array_equal(scored.thetas, thetas[kept])
    np.testing.assert_allclose(scored.scores.at_targets, (xs - thetas)[kept], rtol=1e-9)
    # summaries and precomputed scores follow
    summarized = sbi.score_pairs(
        KEY, scored.scores, thetas[kept], xs[kept], prior=PRIOR, summaries=xs[kept][:, :1]
    )
    with_nan = sbi.score_pairs(
        KEY, _padded(scored.scores, kept), thetas, failed, prior=PRIOR, summaries=xs[:, :1],
        exclude_invalid_x=True,
    )  # fmt: skip
    np.testing.assert_array_equal(with_nan.features, summarized.features)
    np.testing.assert_array_equal(with_nan.scores.at_nodes, summarized.scores.at_nodes)
    with pytest.raises(ValueError, match="120 of 120 rows hold NaN"):
        notes(thetas, jnp.full_like(xs, jnp.nan), exclude_invalid_x=True)


def test_summaries_that_are_not_finite_are_named(pairs):
    thetas, xs = pairs
    summaries = xs.at[3, 1].set(jnp.nan).at[7, 0].set(jnp.inf)
    with pytest.raises(ValueError, match=r"summaries: 2 of 120 rows hold NaN .* \(first row 3\)"):
        sbi.check_posterior(KEY, log_prob, thetas, xs, prior=PRIOR, summaries=summaries)


def _padded(scores, kept):
    from jaxcal import Scores

    at = np.zeros((N, D))
    at[kept] = scores.at_targets
    at_nodes = np.zeros((N, *scores.at_nodes.shape[1:]))
    at_nodes[kept] = scores.at_nodes
    return Scores(at, at_nodes, scores.nodes)


@pytest.mark.slow
def test_few_pairs_and_repeated_simulations_are_named(pairs):
    thetas, xs = pairs
    assert any("only 20 pairs" in note for note in notes(thetas[:20], xs[:20]))
    again = jnp.concatenate([thetas[:60], thetas[:60]])
    (note,) = notes(again, xs)
    assert "repeat another" in note
    twice = jnp.concatenate([xs[:60]] * 2)
    scored = sbi.score_pairs(KEY, log_prob, again, twice, prior=PRIOR)
    repeated = jaxcal.kccsd_test(KEY, scored.scores, scored.thetas)
    assert any("identical" in text or "repeat" in text for text in repeated.warnings())


@pytest.mark.parametrize("junk", ["text", object(), {1, 2}, lambda: None, 3 + 4j])
@pytest.mark.parametrize(
    "name", ["posterior", "thetas", "xs", "prior", "bounds", "summaries", "names", "key", "n_nodes"]
)
def test_junk_is_an_error_that_names_the_argument(pairs, name, junk):
    arguments = {"key": KEY, "posterior": log_prob, "thetas": pairs[0], "xs": pairs[1]}
    with pytest.raises((TypeError, ValueError)) as caught:
        sbi.score_pairs(**arguments | {name: junk})
    assert name in str(caught.value)


def test_exclude_invalid_x_is_a_flag(pairs):
    with pytest.raises(TypeError, match="exclude_invalid_x"):
        notes(*pairs, exclude_invalid_x="yes")


@pytest.mark.slow
def test_observations_that_the_conversion_rounds_are_named():
    rng = np.random.default_rng(0)
    thetas, flag = rng.normal(size=(N, D)), rng.integers(0, 2, (N, 1)) + 0.1
    xs = np.concatenate(
        [thetas + rng.normal(size=(N, D)), flag, np.full((N, 1), 1e6 + 0.1)], axis=1
    )
    prior = dist.Normal(jnp.zeros(D, jnp.float32), jnp.ones(D, jnp.float32)).to_event(1)

    def said(xs, **options):
        all_notes = notes(thetas, xs, prior=prior, posterior=lambda t, x: -jnp.sum(t**2), **options)
        return [note for note in all_notes if "coarse-observations" in note]

    far = xs + 1e6 * np.arange(4)
    assert said(far) == []  # in float64
    with jax.enable_x64(False):
        assert said(xs) == []
        assert said(far.astype(np.float32)) == []  # nothing is lost here
        assert said(xs + 100 * np.arange(4)) == []
        (note,) = said(far)
        assert note.startswith("2 numbers of x vary so little beside their size")
        far[0] = np.nan
        (note,) = said({"x": xs[:, 0], "y": far[:, 1]}, exclude_invalid_x=True)
        assert note.startswith("1 number of x varies so little beside its size")
