"""Comparisons of models nobody chose for them: in-sample fits, underconfidence, rare labels."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import problems
import pytest
import scipy.stats

from jaxcal import ckce

compare = partial(ckce.compare, measure="ckce")
N, DATA_SETS = 100, 120
COMPARED = jax.jit(lambda key, models, y: compare(key, models, y, n_draws=99, rank=32))


def two(p):
    return np.stack([1 - p, p], -1)


def base_rate(rng):
    """A calibrated model, and the frequency of the labels it is compared on."""
    p = rng.uniform(size=N)
    y = rng.uniform(size=N) < p
    return [p, np.full(N, y.mean())], y


def in_sample_bins(rng):
    """A calibrated model, and its frequencies in ten bins of the same labels."""
    p = rng.uniform(size=N)
    y = rng.uniform(size=N) < p
    cell = (10 * p).astype(int)
    return [p, (np.bincount(cell, y, 10) / np.maximum(np.bincount(cell, minlength=10), 1))[cell]], y


def under_confident(rng):
    """Two models, each the mean given one of two parts, with logits half as large as is right."""
    parts = rng.uniform(size=(2, N))
    right = (parts + 0.5) / 2
    y = rng.uniform(size=N) < parts.mean(axis=0)
    return list(1 / (1 + np.sqrt(1 / right - 1))), y


def rare_labels(rng):
    """Two calibrated models of the same kind, labels with probability .03."""
    parts = rng.uniform(0.002, 0.062, (2, N))
    return list((parts + 0.032) / 2), rng.uniform(size=N) < parts.mean(axis=0)


LAWS = {f.__name__: f for f in (base_rate, in_sample_bins, under_confident, rare_labels)}


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
def test_equal_models_are_not_accused_and_intervals_cover(law):
    rng = np.random.default_rng(1)
    sets = [LAWS[law](rng) for _ in range(DATA_SETS)]
    models = jnp.asarray([[two(q) for q in each] for each, _ in sets])
    labels = jnp.asarray([y for _, y in sets], int)
    keys = jax.random.split(jax.random.key(0), DATA_SETS)
    results = jax.jit(lambda *sets: jax.lax.map(lambda a: COMPARED(*a), sets))(keys, models, labels)
    d, allowed = results.differences, scipy.stats.binom.ppf(0.9999, DATA_SETS, 0.05)
    # the models are equal, or the second one is fitted to the labels and truly worse
    fitted = law in ("base_rate", "in_sample_bins")
    accused = (d.p_adjusted[:, 0, 1] <= 0.05) & ((d.estimate[:, 0, 1] > 0) | (not fitted))
    assert int(jnp.sum(accused)) <= allowed
    assert bool(jnp.all((results.low >= 0) & (results.low <= results.corrected)))
    assert bool(jnp.all((results.corrected <= results.high) & (results.high < 0.5)))
    if law != "under_confident":
        assert int(jnp.sum(results.low[:, 0] > 0)) <= allowed
        assert int(jnp.sum(results.p_calibrated[:, 0] <= 0.05)) <= allowed
    else:  # of class 1, where a high probability is said
        said, true = (a[:, 0, 1, 1] for a in results.says)
        assert float(jnp.mean(true - said)) > 4 * float(jnp.std(true - said)) / DATA_SETS**0.5
    outside = (d.low[:, 0, 1] > 0) | (d.high[:, 0, 1] < 0)
    np.testing.assert_array_equal(outside, d.p_adjusted[:, 0, 1] <= 0.05)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_base_rate_has_an_interval(dtype):
    (p, rate), y = base_rate(np.random.default_rng(0))
    models = jnp.asarray([two(p), two(rate)], dtype)
    result = COMPARED(jax.random.key(0), models, jnp.asarray(y, int))
    assert float(result.corrected[1]) == float(result.low[1]) == 0
    # k(q, q) / (k(q, q) + ridge)^2 of the squared distance of two vectors of class probabilities
    height, ridge = 1 + np.sum(two(rate)[0] ** 2), float(result.ridge)
    distance = np.sqrt(float(result.high[1]) * (height + ridge) ** 2 / height / 2)
    # 1.96 standard errors of a frequency, .05, once in the labels and at most once more
    assert 1.96 * 0.05 < distance < 2 * 1.96 * 0.05 * 1.1


@pytest.mark.slow
def test_pair_intervals_hold_together():
    q, y = problems.drawn(0, 200)
    models = {str(t): problems.tempered(q, t) for t in (1.0, 0.8, 0.5, 0.25)}
    d = compare(0, models, y, n_draws=199, rank=64).differences
    outside = (d.low > 0) | (d.high < 0)
    np.testing.assert_array_equal(outside, d.p_adjusted <= 0.05)
    assert bool(jnp.any(outside))


def sure(rng, y, accuracy):
    """Predictions without doubt, right as often as told."""
    return two(np.where(rng.uniform(size=len(y)) < accuracy, y, 1 - y).astype(float))


@pytest.mark.slow
@pytest.mark.parametrize("measure", ["ckce", "probability"])
def test_models_that_claim_no_noise_are_told_apart(measure):
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 200)
    models = {"good": sure(rng, y, 0.95), "bad": sure(rng, y, 0.6), "again": sure(rng, y, 0.6)}
    models["mirrored"] = models["bad"][:, ::-1]
    d = ckce.compare(0, models, y, n_draws=99, measure=measure).differences
    outside = (d.low > 0) | (d.high < 0)
    np.testing.assert_array_equal(outside, d.p_adjusted <= 0.05)
    assert bool(jnp.all(outside[0, 1:]))
    assert not bool(outside[1, 2])
    same = ckce.compare(0, [models["bad"]] * 2, y, n_draws=99, measure=measure).differences
    assert float(same.p_adjusted[0, 1]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("measure", ["ckce", "probability"])
def test_a_calibrated_model_has_an_interval_that_allows_error(measure):
    y = np.random.default_rng(0).integers(0, 2, 30)
    models = {"right": two(y.astype(float)), "even": np.full((30, 2), 0.5)}
    assert float(ckce.compare(0, models, y, n_draws=99, measure=measure).high[0]) > 0.001


def test_right_models_of_absent_events_are_not_called_wrong():
    """Also beyond 1,024 rows, where labels drawn once may hold none or one of them."""
    p = np.random.default_rng(0).uniform(0.2, 1.8, 1100) / 1100
    models = {"right": p, "other": 1.2 * p}
    for key in range(5):
        compared = ckce.compare(key, models, np.zeros(1100, int), n_draws=99)
        assert compared.p_calibrated[0] > 0.2
