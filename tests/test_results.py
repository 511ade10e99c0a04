"""Results print, become JSON and live under transformations."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxcal
from jaxcal import kccsd_test
from jaxcal.nulls import Gamma, Wild
from jaxcal.results import largest_share

RNG = np.random.default_rng(0)
YS = RNG.normal(size=(12, 2))
MEANS = jnp.asarray(YS + RNG.normal(size=(12, 2)))


def density(mean, y):
    return -jnp.sum((y - mean) ** 2) / 2


def run(key, ys=YS, null=Wild(39), coordinates=True):
    predictions = jaxcal.Unnormalized(density, MEANS)
    return kccsd_test(key, predictions, ys, null=null, coordinates=coordinates)


@pytest.fixture(scope="module")
def single():
    return run(jax.random.key(0))


@pytest.fixture(scope="module")
def batch():
    ys = jnp.stack([YS, YS + 2.0, YS * jnp.nan])
    return jax.jit(jax.vmap(lambda ys: run(jax.random.key(0), ys)))(ys)


def test_one_result_prints_what_matters(single):
    text = str(single)
    assert text == repr(single)
    assert "KCCSD test, n = 12" in text
    assert f"{float(single.p_value):.4g}" in text
    assert "Wild, 39 draws" in text
    assert "target" in text
    assert "prediction" in text
    assert "Holm" in text
    assert "too high by" in text
    assert "given the others" in text
    rows = text.split("Holm")[-1].splitlines()
    assert sum(line.split()[:1] in (["0"], ["1"]) for line in rows) == 2


@pytest.mark.parametrize(
    ("p", "words"),
    [
        (0.005, "strong evidence against"),
        (0.01, "strong evidence against"),
        (0.03, "5 % level"),
        (0.05, "5 % level"),
        (0.06, "no evidence against"),
        (np.nan, "no verdict"),
    ],
)
def test_words_follow_the_p_value(single, p, words):
    import equinox as eqx

    changed = eqx.tree_at(lambda r: r.p_value, single, jnp.asarray(p))
    assert words in str(changed)


def test_a_null_without_draws_names_itself_alone(key):
    text = str(run(key, null=Gamma(), coordinates=False))
    assert "(Gamma)" in text
    assert "draws" not in text


def test_a_batch_prints_a_summary(batch):
    text = str(batch)
    assert "3 results of KCCSD test" in text
    assert "(3,)" in text
    assert "not a number in 1" in text
    low = np.nanmin(batch.p_value)
    assert f"{low:.4g}" in text


def test_a_batch_prints_its_warnings(batch):
    assert batch.warnings()
    assert "NaN" in str(batch)


@pytest.mark.parametrize("which", ["single", "batch"])
def test_a_result_becomes_json(which, request):
    result = request.getfixturevalue(which)
    back = json.loads(json.dumps(result.to_dict()))
    np.testing.assert_allclose(back["p_value"], result.p_value)
    np.testing.assert_allclose(back["contributions"], result.contributions)
    np.testing.assert_allclose(back["coordinates"]["p_adjusted"], result.coordinates.p_adjusted)
    assert back["test"] == "KCCSD test"
    assert back["null"] == "Wild"
    assert back["warnings"] == result.warnings()
    assert set(back["bandwidths"]) == {"target", "prediction"}
    assert "null_samples" not in back


def test_a_result_is_a_pytree_under_jit_and_vmap(single, batch):
    doubled = jax.jit(lambda r: jax.tree.map(lambda a: a * 2, r))(single)
    np.testing.assert_allclose(doubled.estimate, 2 * single.estimate)
    first = jax.tree.map(lambda a: a[0], batch)
    np.testing.assert_allclose(first.estimate, single.estimate, rtol=1e-9)
    assert "n = 12" in str(first)
    traced = []

    @jax.jit
    def inside(result):
        traced.append(repr(result))
        assert result.warnings() == []
        return result.p_value

    inside(single)
    assert "traced" in traced[0]


def test_largest_share():
    assert float(largest_share(jnp.asarray([1.0, -3.0, 0.0]))) == 0.75
    assert float(largest_share(jnp.zeros(3))) == 0.0


def test_one_observation_that_carries_the_result_is_named(key):
    ys = YS.copy()
    scores = np.full_like(ys, 1e-3)
    scores[4] = 1e3
    given = jaxcal.Scores(scores, RNG.normal(size=(12, 3, 2)))
    result = kccsd_test(key, given, ys, null=Wild(39))
    assert float(result.diagnostics.largest_share) > 0.25
    assert "one observation carries" in str(result)
