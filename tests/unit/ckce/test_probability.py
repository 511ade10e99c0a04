"""Errors in units of probability: values, draws, intervals, and what a comparison says of them."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import problems
import pytest
import scipy.stats

from jaxcal.ckce import compare, errors, expansion
from jaxcal.ckce.errors import Error, Pairs, pairs
from jaxcal.ckce.inputs import n_components
from jaxcal.ckce.probability import Probability, basis, says, slope

N = 200
TRUTH, Y = problems.drawn(0, N)
MODELS = {
    "over": problems.tempered(TRUTH, 0.4),
    "true": TRUTH,
    "again": TRUTH,
    "under": problems.tempered(TRUTH, 3.0),
}


@pytest.fixture(scope="module")
def compared():
    return compare(jax.random.key(2), MODELS, Y, n_draws=199)


def hat(q, components):
    """The regression on a constant and the leading components, as a projection."""
    centred = q - q.mean(axis=0)
    left, sizes, _ = np.linalg.svd(centred, full_matrices=False)
    kept = left[:, : components - 1][:, sizes[: components - 1] > 1e-10]
    return kept @ kept.T + 1 / len(q)


def off_diagonal(q, d, components):
    """Half the sum over i != j of H_ij d_i d_j / sqrt((1 - H_ii) (1 - H_jj)) / n."""
    h = hat(q, components)
    scale = np.sqrt(1 - np.diag(h))
    w = h / scale[:, None] / scale[None] / (2 * len(q))
    products = w * (d @ d.T)
    return products.sum() - np.trace(products)


def of_one(q, y, *, n_draws=9, rank=None):
    n, m = q.shape
    measure = Probability(n_components(n, m) if rank is None else rank)
    labels, keys = jnp.asarray(y, jnp.int32), (jax.random.key(0), jax.random.key(1))
    return measure(*keys, jnp.asarray(q), jnp.ones(n), labels, n_draws)[0]


def test_the_value_is_the_equation(compared):
    for i, q in enumerate(MODELS.values()):
        value = off_diagonal(q, problems.one_hot(Y) - q, 3)
        np.testing.assert_allclose(compared.corrected[i], max(value, 0), rtol=1e-9)


@pytest.mark.slow
def test_a_linear_error_has_its_own_size():
    """Labels in the exact frequencies of a linear recalibration, by many equal predictions."""
    p = np.repeat(np.linspace(0.1, 0.9, 9), 1000)
    true = 0.5 + 0.6 * (p - 0.5)
    y = np.concatenate([np.arange(1000) < 1000 * a for a in true[::1000]]).astype(int)
    q = np.stack([1 - p, p], axis=1)
    result = compare(0, {"sure": q, "right": np.stack([1 - true, true], axis=1)}, y, n_draws=99)
    # these labels have no noise: what is taken away for it is 2 * .25 / 9000 of the square at most
    size = np.sqrt(np.mean((p - true) ** 2))
    np.testing.assert_allclose(result.error[0], size, atol=0.25 / 9000 / size)
    assert float(result.error[1]) < 0.01
    said, true_ends = np.asarray(result.says.said[0, 1]), np.asarray(result.says.true[0, 1])
    np.testing.assert_allclose(said, p.mean() + np.std(p) * np.asarray([-1, 1]))
    np.testing.assert_allclose(true_ends, 0.5 + 0.6 * (said - 0.5), atol=1e-9)
    assert "overconfident" in str(result)


@pytest.mark.slow
def test_the_p_value_of_one_model_is_that_of_all_labels():
    rng = np.random.default_rng(0)
    p = rng.uniform(0.1, 0.6, 10)
    q, y = np.stack([1 - p, p], axis=1), (rng.uniform(size=10) < 0.8).astype(int)
    observed = off_diagonal(q, problems.one_hot(y, 2) - q, 2)
    exact = 0.0
    for labels in itertools.product((0, 1), repeat=10):
        chance = np.prod(np.where(labels, p, 1 - p))
        value = off_diagonal(q, problems.one_hot(labels, 2) - q, 2)
        exact += chance * (value >= observed - 1e-12)
    p = compare(0, [q, q], y, n_draws=1999).p_calibrated[0]
    low, high = scipy.stats.binom.interval(0.9999, 1999, exact)
    assert low <= 2000 * float(p) - 1 <= high


@pytest.mark.slow
def test_the_first_influence_is_the_derivative_in_the_weights():
    q, y, n = MODELS["over"], Y, N
    d = problems.one_hot(y) - q

    def plain(weights):
        c = (weights[:, None] * q).T @ d
        return np.trace(c.T @ np.linalg.solve((weights[:, None] * q).T @ q, c)) / 2

    even = np.full(n, 1 / n)
    steps = 1e-6 * np.eye(n)
    slopes = np.asarray([(plain(even + s) - plain(even - s)) / 2e-6 for s in steps])
    slopes = (slopes - slopes.mean()) / n
    # the library leaves the observation itself out of the regression
    first = np.asarray(of_one(q, y).first)
    assert np.corrcoef(first, slopes)[0, 1] > 0.99
    np.testing.assert_allclose(first.std(), slopes.std(), rtol=0.1)


def example(models=3, k=12, draws=5, size=1):
    rng = np.random.default_rng(0)
    first, second = size * rng.normal(size=(models, k)), rng.normal(size=(models, k, k))
    second = second + np.swapaxes(second, 1, 2)
    second[:, np.arange(k), np.arange(k)] = 0
    v = rng.choice([-1.0, 1.0], (draws, k))
    terms = np.einsum("bi,mij,bj->mb", v, second, v)
    scalars = np.ones(models), [0.3, 0.5, -0.4], [0.2, 0.3, 0.1]
    arrays = *scalars, first, second, terms, np.zeros((models, draws)), np.zeros(models, int)
    return Error(*(jnp.asarray(a) for a in arrays)), jnp.asarray(v)


@pytest.mark.parametrize("large", [False, True])
def test_draws_of_differences_are_the_equation(large):
    each, v = example(size=100 if large else 1)
    drawn, normal = pairs(each, v)
    lengths = np.linalg.norm(each.first, axis=1)
    np.testing.assert_allclose(normal, np.asarray(v @ each.first.T) / lengths, rtol=1e-9)
    for i, j in ((0, 1), (1, 2), (0, 2)):
        grams = [np.asarray(each.second[k]) for k in (i, j)]
        first = [np.asarray(each.first[k]) for k in (i, j)]
        first = [a / np.linalg.norm(a) for a in first]
        s = [float(each.slope[k]) for k in (i, j)]
        common = max(0.0, float(each.value[i] + each.value[j]) / 2)
        slope = s[0] + s[1] - 2 * np.sqrt(s[0] * s[1]) * (first[0] @ first[1])
        second = 2 * np.sum((grams[0] - grams[1]) ** 2)
        direct = np.sum(np.asarray(each.first[i] - each.first[j]) ** 2)
        assert (direct - 3 * second > slope * common) == large
        lead = direct - 2 * second if large else slope * common
        error, scale = np.sqrt(second + lead), np.sqrt(lead / slope)
        np.testing.assert_allclose(drawn.error[i, j], error, rtol=1e-9)
        for b, signs in enumerate(np.asarray(v)):
            ends = [
                scale * np.sqrt(r) * (a @ signs) + signs @ g @ signs
                for r, a, g in zip(s, first, grams, strict=True)
            ]
            ratio = abs(ends[0] - ends[1]) / error
            np.testing.assert_allclose(drawn.ratios[b, i, j], ratio, rtol=1e-9)


@pytest.mark.parametrize("gap", [-0.4, 0.0, 0.1, 0.9])
def test_the_reach_is_where_the_test_changes_its_mind(gap):
    second, slope, common, quantile = 0.01, 0.05, 0.2, 2.0
    fields = second, slope, slope * common
    one = Pairs(*(jnp.full((1, 1), a) for a in fields), jnp.zeros((1, 1, 1)))
    reach = errors._reach(one, jnp.full((1, 1), gap), jnp.asarray(quantile))
    grid = np.linspace(0, 5, 500_001)
    inside = grid <= quantile * np.sqrt(second + slope * np.maximum(common, np.abs(gap + grid) / 2))
    np.testing.assert_allclose(float(reach[0, 0]), grid[inside].max(), atol=2e-5)


@pytest.mark.slow
def test_blocks_of_observations_add_up(monkeypatch):
    q, y = MODELS["over"], Y
    alone = of_one(q, y, n_draws=499)
    for module in (errors, expansion):
        monkeypatch.setattr(module, "BLOCKS", 64)
    monkeypatch.setattr(expansion, "REDRAWN", 0)
    blocks = of_one(q, y, n_draws=499)
    assert blocks.first.shape == (64,)
    np.testing.assert_allclose(blocks.value, alone.value, rtol=1e-12)
    assert 0.6 < float(jnp.std(blocks.terms) / jnp.std(alone.terms)) < 1.6
    assert 0.5 < float(blocks.slope / alone.slope) < 2
    assert 0.6 < float(jnp.std(blocks.null) / jnp.std(alone.null)) < 1.6


@pytest.mark.slow
def test_rows_without_weight_do_not_count():
    q, y = jnp.asarray(MODELS["over"]), jnp.asarray(Y, jnp.int32)
    weights = jnp.where(jnp.arange(N) < 120, 1.0, 0.0)
    f = basis(q, weights, 3)(q) * weights[:, None]
    np.testing.assert_allclose(f.T @ f, np.eye(3), atol=1e-12)
    some, _ = Probability(3)(jax.random.key(0), jax.random.key(1), q, weights, y, 9)
    np.testing.assert_allclose(some.value, of_one(q[:120], y[:120]).value, rtol=1e-9)
    groups = np.where(np.arange(N) < 120, "a", "b")
    both = jax.jit(lambda q: compare(0, q, y, groups=groups, n_draws=99))(q)
    np.testing.assert_allclose(both.corrected[0], some.value, rtol=1e-9)
    assert both.names == ("a", "b")
    assert "Calibration errors of 2 groups" in str(both)


@pytest.mark.slow
@pytest.mark.parametrize(("deviation", "number"), [(2e-4, 0), (7e-5, 2)])
def test_the_basis_is_orthonormal_in_float32(deviation, number):
    """Rare classes, alone or beside ``number`` further variables of deviation 1."""
    rng = np.random.default_rng(0)
    share, z = rng.uniform(0.2, 0.8, (500, 1)), rng.normal(size=(500, number))
    rare = deviation * (3 + rng.uniform(-1, 1, (500, 2)))
    rest = (1 - np.sum(rare, axis=1, keepdims=True)) * np.concatenate([share, 1 - share], axis=1)
    x = jnp.asarray(np.concatenate([rest, rare, z], axis=1), jnp.float32)
    f = np.asarray(basis(x, jnp.ones(500, jnp.float32), 4 + number)(x), float)
    np.testing.assert_allclose(f.T @ f, np.eye(4 + number), atol=0.01)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_rounding_of_a_mean_is_no_regressor(dtype):
    q, weights = jnp.tile(jnp.asarray([[0.7, 0.3]], dtype), (3000, 1)), jnp.ones(3000, dtype)
    np.testing.assert_array_equal(basis(q, weights, 2)(q)[:, 1], 0)
    said = says(q, jnp.zeros(3000, int), weights).said
    np.testing.assert_array_equal(said[:, 0], said[:, 1])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_interval_of_constants_has_the_noise_of_labels(dtype):
    """Right predictions, whose values are 0, and equal labels, although others are rare."""
    for a, b, ones, deviation in ((0.3, 0.31, 15, (0.21 / 50) ** 0.5), (0.3, 0.5, 0, 2**0.5 / 54)):
        models, y = {"a": np.full(50, a, dtype), "b": np.full(50, b, dtype)}, np.arange(50) < ones
        result = compare(0, models, y.astype(int), n_draws=199)
        ends = [float(d[0, 1]) for d in (result.differences.low, result.differences.high)]
        half = 1.96 * 2 * abs(a - b) * deviation  # of (a - rate)^2 - (b - rate)^2
        np.testing.assert_allclose((ends[1] - ends[0]) / 2, half, rtol=0.25)
        said = result.warnings()
        assert [text[:2] for text in said if "[identical-predictions]" in text] == ["a:", "b:"]
        assert any("[one-class]" in text for text in said) == (ones == 0)


def test_equal_models_tie_and_the_report_says_what_is_wrong(compared):
    d = compared.differences
    assert float(d.low[1, 2]) == float(d.estimate[1, 2]) == float(d.high[1, 2]) == 0
    assert float(d.p_value[1, 2]) == 1
    np.testing.assert_allclose(d.low, -d.high.T, atol=1e-15)
    outside = (d.low > 0) | (d.high < 0)
    np.testing.assert_array_equal(outside, d.p_adjusted <= 0.05)
    assert set(compared.best()) == {"true", "again"}
    assert compared.warnings() == []
    text = str(compared)
    said = {line.split()[0]: line for line in text.splitlines() if "comes true" in line}
    assert "overconfident" in said["over"]
    assert "underconfident" in said["under"]
    assert "not shown wrong" in said["true"]
    assert bool(jnp.all((compared.low >= 0) & (compared.low <= compared.corrected)))
    assert bool(jnp.all((compared.corrected <= compared.high) & (compared.high <= 1)))


@pytest.mark.slow
def test_no_label_noise_and_no_spread_leave_bounded_intervals():
    constant = np.full((50, 2), 0.5)
    sure = np.stack([np.zeros(50), np.ones(50)], axis=1)
    result = compare(0, {"constant": constant, "sure": sure}, np.ones(50, int), n_draws=99)
    np.testing.assert_allclose(result.error, [0.5, 0], atol=0.01)
    # of 50 labels without an error: a share of 3 / 50 has probability .95 of showing one
    assert 0.03 < float(jnp.sqrt(result.high[1])) < 0.2
    assert bool(jnp.all(jnp.isfinite(result.high)))
    assert result.best() == ["sure"]


@pytest.mark.slow
def test_level_and_power():
    sets, n = 150, 150

    def one(key):
        parts_key, label_key, test_key = jax.random.split(key, 3)
        p = jax.random.uniform(parts_key, (2, n))
        labels = (jax.random.uniform(label_key, (n,)) < jnp.mean(p, axis=0)).astype(int)
        right = (p + 0.5) / 2
        odds = (right[1] / (1 - right[1])) ** 5  # too sure
        rate = jnp.full(n, jnp.mean(labels))
        models = jnp.stack([*right, odds / (1 + odds), rate])
        stack = jnp.stack([1 - models, models], axis=-1)
        result = compare(test_key, stack, labels, n_draws=99)
        d = result.differences
        worse = (d.p_adjusted <= 0.05) & (d.estimate > 0)
        return jnp.any(worse[:2]), worse[2, 0], result.low[0] <= 0

    keys = jax.random.split(jax.random.key(0), sets)
    accused, rejected, covered = jax.jit(lambda keys: jax.lax.map(one, keys))(keys)
    most = scipy.stats.binom.ppf(0.9999, sets, 0.05)
    assert int(jnp.sum(accused)) <= most
    assert int(jnp.sum(~covered)) <= most
    assert int(jnp.sum(rejected)) > 0.4 * sets


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="at least 2 models, got 1; of one model"):
        compare(0, {"one": TRUTH}, Y)
    with pytest.raises(ValueError, match="at least 3 observations"):
        compare(0, [TRUTH[:2], TRUTH[:2]], Y[:2])
    for row, value, why in ((3, 0.7, "does not sum to 1"), (5, np.nan, "holds NaN")):
        wrong = TRUTH.copy()
        wrong[row, 0] += value
        with pytest.raises(ValueError, match=rf"models\[b\]: row {row} {why}"):
            compare(0, {"a": TRUTH, "b": wrong}, Y)
    with pytest.raises(ValueError, match='ridge: an option of measure="ckce"'):
        compare(0, MODELS, Y, ridge=0.1)
    with pytest.raises(ValueError, match="measure: wanted one of probability, ckce"):
        compare(0, MODELS, Y, measure="brier")
    with pytest.raises(ValueError, match="groups: wanted one for each"):
        compare(0, TRUTH, Y, groups=[1, 2])


@pytest.mark.slow
def test_classes_in_another_order_are_put_in_order_by_name(compared):
    first = pd.DataFrame(MODELS["over"], columns=["cat", "dog", "eel"])
    turned = pd.DataFrame(TRUTH, columns=["cat", "dog", "eel"])[["eel", "cat", "dog"]]
    result = compare(jax.random.key(2), {"over": first, "true": turned}, Y, n_draws=19)
    np.testing.assert_allclose(result.corrected, compared.corrected[:2])
    with pytest.raises(ValueError, match=r"models\[b\]: its columns are"):
        compare(0, {"a": first, "b": turned.rename(columns={"eel": "fox"})}, Y)


@pytest.mark.slow
def test_the_slope_holds_where_noise_has_many_directions(key):
    """The squared mean of x in 30 dimensions, with variance 4 mu'S mu / n of its first sum.

    mu lies where S is largest, so that noise, mostly elsewhere, has another slope.
    """
    n, p, sets = 200, 30, 200
    variances = jnp.concatenate([jnp.full(1, 4.0), jnp.full(p - 1, 0.5)])
    noise = jax.random.normal(key, (sets, n, p)) * jnp.sqrt(variances)[None, None]
    x = noise.at[:, :, 0].add(1.0)

    def of_one(x):
        mean = jnp.mean(x, axis=0)
        b = (x - mean[None]) / n
        alone = jnp.sum(b**2, axis=1)
        first = 2 * (x @ mean - jnp.sum(x**2, axis=1) / n) / n
        value = jnp.sum(mean**2) - jnp.sum(x**2) / n**2
        second = errors.without_diagonal(b @ b.T)
        return slope(value, first - jnp.mean(first), second, jnp.sum(alone))

    slopes = jax.vmap(of_one)(x)
    np.testing.assert_allclose(jnp.mean(slopes), 4 * 4.0 / n, rtol=0.07)


def test_rows_are_copies_if_all_models_repeat_them():
    rng = np.random.default_rng(1)
    p = rng.random(200)
    y, twice = (rng.random(200) < p).astype(int), np.tile(np.arange(200), 2)
    models = {"tree": np.where(p < 0.5, 0.25, 0.75)[twice], "net": p[twice]}
    assert int(compare(0, models, y[twice], n_draws=99).repeated) == 200
    alone = {"tree": models["tree"][:200], "net": p}
    assert int(compare(0, alone, y, n_draws=99).repeated) == 0
