"""Exact repeats of whole observations are named; chance repeats and discrete data are not."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import jaxcal
from jaxcal import dce, sbi
from jaxcal.nulls import Wild
from jaxcal.read.families import Classes
from jaxcal.read.observations import fingerprints, n_repeated, repeated_rows
from jaxcal.ucme import ucme_test

NULL = Wild(20)


def count(predictions, ys):
    n = len(ys)
    return int(repeated_rows(ys, fingerprints(ys, n), fingerprints(predictions, n)))


@pytest.mark.slow
@pytest.mark.parametrize("n", [300, 10_000, 100_000])
def test_honest_float32_data_are_silent(n, key):
    x, y = jax.random.normal(key, (2, n), jnp.float32)
    assert count(None, y) == 0  # one density, where float32 draws repeat by chance
    assert count(dist.Normal(x, ONE), y) == 0
    assert count(x, jnp.round(x + y, 1)) == 0  # rounded targets
    assert count(jnp.round(x, 1), jnp.round(x + y, 1)) == 0  # and forecasts
    assert count(None, jnp.round(y, 1)) == 0  # one forecast for all
    assert count(x > 0, (y > 0).astype(int)) == 0  # labels
    again = jnp.arange(n).at[: n // 10].set(jnp.arange(n)[n // 2 : n // 2 + n // 10])
    for predictions in (None, x, dist.Normal(x, ONE)):
        repeated = jax.tree.map(
            lambda leaf: leaf[again] if jnp.ndim(leaf) and len(leaf) == n else leaf, predictions
        )
        assert abs(count(repeated, y[again]) - n // 10) <= n // 100


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.float64, jnp.bfloat16, jnp.int32, bool])
def test_fingerprints_tell_rows_apart(dtype):
    """Against rows compared as they are, of few values in permuted columns."""
    rows = np.random.default_rng(5).integers(0, 2, size=(200, 7))
    bits = np.asarray(fingerprints({"a": jnp.asarray(rows, dtype), "b": jnp.ones(3)}, 200))
    same = np.all(rows[:, None] == rows, axis=-1)
    np.testing.assert_array_equal(bits[:, None] == bits, same)
    other = np.asarray(fingerprints(jnp.asarray(rows[:, ::-1], dtype), 200))
    assert not np.array_equal(bits, other)


class Odd:
    """No array, and not hashable."""

    __hash__ = None


def test_what_holds_no_arrays_is_no_part_of_a_program(key):
    y = jax.random.normal(key, (20,))
    again = jnp.arange(20).at[15:].set(jnp.arange(5))
    predictions = {"x": y[again], "of": Odd(), "scale": 2.0, "names": np.array(["a"] * 20)}
    assert n_repeated(y[again], predictions) == 5


def pairs(key, n, twice):
    """Forecasts x, targets; the first ``twice`` observations stand for the last ones too."""
    x, noise = jax.random.normal(key, (2, n), jnp.float32)
    rows = jnp.arange(n).at[n - twice :].set(jnp.arange(twice))
    return x[rows], (x + noise)[rows]


ONE = jnp.ones((), jnp.float32)
TESTS = {
    "kccsd": lambda x, ys: jaxcal.kccsd_test(0, dist.Normal(x, ONE), ys, null=NULL),
    "kcsd": lambda x, ys: jaxcal.kcsd_test(0, dist.Normal(x, ONE), ys, x, null=NULL),
    "ksd": lambda x, ys: jaxcal.ksd_test(0, dist.Normal(0 * ONE, ONE), ys, null=NULL),
    "skce": lambda x, ys: jaxcal.skce_test(0, dist.Normal(x, ONE), ys, null=NULL),
    "ucme": lambda x, ys: ucme_test(0, dist.Normal(x, ONE), ys, n_locations=2),
}


@pytest.mark.slow
@pytest.mark.parametrize("test", TESTS.values(), ids=TESTS)
def test_every_test_names_what_stands_twice(test, key):
    twice = jax.jit(test)(*pairs(key, 100, 20))
    named = [text for text in twice.warnings() if "repeat another exactly" in text]
    assert len(named) == 1
    assert 18 <= int(named[0].split()[0]) <= 20  # two may serve as locations
    once = jax.jit(test)(*pairs(key, 100, 0))
    assert not any("repeat" in text for text in once.warnings())


@pytest.mark.slow
def test_targets_that_several_predictions_share_are_counted(key):
    """Of five simulations of each parameter, right posteriors are rejected in 57 of 80 data sets by
    calibration_test and in 78 by check_draws. Values that draws share by chance are no repeats."""
    x, noise = jax.random.normal(key, (2, 200))
    rounded, levels = jnp.round(noise, 1), jnp.linspace(-1, 1, 24)[jnp.arange(200) % 24]
    bins = levels[jax.random.randint(key, (200,), 0, 24)]
    for ys in (
        rounded,
        bins,
        jnp.maximum(noise, 0),
        noise[jax.random.randint(key, (200,), 0, 200)],
    ):
        assert count(x, ys) == 0
    for times in (2, 5):
        assert count(x, jnp.repeat(noise[: 200 // times], times)) == 200 - 200 // times
    some_lost = jnp.repeat(noise[:40], 5)[jax.random.permutation(key, 200)[:180]]
    assert count(x[:180], some_lost) >= 130
    ys, draws = jnp.repeat(noise[:40], 5), x[:, None] + jax.random.normal(key, (200, 9))
    for result in (
        jaxcal.coverage.coverage(dist.Normal(x, 1.0), ys, draws),
        sbi.check_draws(0, draws[:, :, None], ys[:, None], x),
        sbi.check_draws(0, draws[:, :, None], ys[:, None]),
        TESTS["kccsd"](x.astype(jnp.float32), ys.astype(jnp.float32)),
    ):
        assert "160 observations repeat" in str(result)


@pytest.mark.slow
def test_a_batch_counts_each_data_set(key):
    keys = jax.random.split(key, 2)
    both = [pairs(keys[k], 100, twice) for k, twice in enumerate((0, 20))]
    x, ys = (jnp.stack(values) for values in zip(*both, strict=True))
    result = jax.jit(jax.vmap(TESTS["kccsd"]))(x, ys)
    np.testing.assert_array_equal(result.notes["repeated-rows"], [0, 20])


def test_probabilities_of_classes_repeat_as_they_like(key):
    p = jnp.tile(jnp.asarray([[0.2, 0.8], [0.7, 0.3]]), (50, 1))
    ys = jax.random.categorical(key, jnp.log(p))
    assert partial(jaxcal.skce_test, 0, null=NULL)(p, ys).notes["repeated-rows"] == 0


@pytest.mark.slow
def test_copies_of_classes_are_named_and_chance_repeats_are_not():
    """Of each row five times, skce_test rejects right models in 45 of 60 data sets."""
    rng = np.random.default_rng(0)

    def repeats(p, rows=slice(None)):
        labels = (rng.random(len(p))[:, None] >= np.cumsum(p, axis=1)[:, :-1]).sum(1)
        return int(n_repeated(jnp.asarray(labels[rows]), Classes(jnp.asarray(p[rows]))))

    honest = rng.dirichlet(np.ones(3), 200)
    fifth = rng.permutation(np.repeat(np.arange(40), 5))
    sure = np.where(rng.random(200)[:, None] < 0.7, [1.0, 0.0, 0.0], honest)
    assert repeats(honest) == repeats(np.full((200, 3), 1 / 3)) == repeats(sure) == 0
    assert repeats(np.full((200, 2), 0.5)) == 0
    assert repeats(honest, fifth) == 160
    labels = (rng.random(200)[:, None] >= np.cumsum(honest, axis=1)[:, :-1]).sum(1)[fifth]
    for test in (jaxcal.skce_test, ucme_test):
        assert "160 observations repeat" in str(test(0, honest[fifth], labels))
    models = {"a": honest[fifth], "b": np.full((200, 3), 1 / 3)}
    assert "160 observations repeat" in str(jaxcal.compare(0, models, labels))


@pytest.mark.slow
def test_labels_of_a_model_that_is_too_cautious_are_no_copies():
    """Never wrong, and sure to .9: equal rows, of which repair has to make use."""
    ys = np.random.default_rng(0).integers(0, 2, 200)
    p = np.where(np.arange(2) == ys[:, None], 0.9, 0.1)
    assert n_repeated(jnp.asarray(ys), Classes(jnp.asarray(p))) == 0
    assert n_repeated(jnp.zeros(100, int), Classes(jnp.full((100, 2), 0.5))) == 0
    assert jaxcal.repair(0, p, ys).low > 0.05  # of .105 nats


ONE_MODEL = {
    "ckce_test": lambda p, ys: jaxcal.ckce.ckce_test(0, p, ys, n_draws=20),
    "calibration_error": lambda p, ys: jaxcal.calibration_error(0, p, ys),
    "distance": lambda p, ys: dce.distance_from_calibration(0, p[:, 0], (ys == 0).astype(float)),
    "quantiles": lambda p, ys: jaxcal.measures.quantile_calibration(dist.Normal(p[:, 0], 1.0), ys),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_MODEL)
def test_measures_of_one_model_name_copies_only(name, key):
    logits_key, label_key = jax.random.split(key)
    logits = 2 * jax.random.normal(logits_key, (200, 3))
    p, ys = jax.nn.softmax(logits), jax.random.categorical(label_key, logits)
    if name == "quantiles":
        ys = p[:, 0] + jax.random.normal(label_key, (200,))
    rounded = jnp.round(4 * p) / 4  # few values, and the same pairs by chance
    rounded = rounded / jnp.sum(rounded, axis=1, keepdims=True)
    five_times = jnp.repeat(p[:40], 5, axis=0), jnp.repeat(ys[:40], 5)
    for predictions, targets, copied in ((p, ys, 0), (rounded, ys, 0), (*five_times, 160)):
        said = str(ONE_MODEL[name](predictions, targets))
        assert ("[repeated-rows]" in said) == (copied > 0)
        assert f"{copied} observations repeat" in said or not copied
