"""Results print, become JSON and live under transformations."""

import json

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
import scipy.stats
from reference.nulls import Gamma

import jaxcal
from jaxcal import kccsd_test
from jaxcal.measures import quantile_calibration
from jaxcal.nulls import Wild
from jaxcal.read import checks
from jaxcal.results import largest_share, notes

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


@pytest.mark.slow
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
    rows = text.partition("Holm")[2].partition("pair")[0].splitlines()
    assert sum(line.split()[:1] in (["0"], ["1"]) for line in rows) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("p", "level", "verdict", "words"),
    [
        (0.005, 0.05, "rejected", "rejected at level 0.05: evidence against"),
        (0.05, 0.05, "rejected", "rejected at level 0.05: evidence against"),
        (0.05, 0.049, "not rejected", "not rejected at level 0.049"),
        (0.06, 0.05, "not rejected", "no evidence against calibration (which is not proof of it)"),
        (np.nan, 0.05, "cannot tell", "cannot tell: the statistic or its null is not finite"),
        (0.03, 0.01, "cannot tell", "cannot tell: too few draws for the level 0.01"),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_verdict_follows_the_p_value_and_the_level(single, p, level, verdict, words, dtype):
    changed = eqx.tree_at(lambda r: r.p_value, single, jnp.asarray(p, dtype))
    changed = changed.at_level(level, Wild(39).least_p_value)
    assert changed.verdict == verdict == changed.to_dict()["verdict"]
    assert words in str(changed)
    assert bool(changed.reason) == (verdict == "cannot tell")
    assert changed.to_dict()["level"] == level


@pytest.mark.slow
def test_a_batch_has_a_verdict_each(batch):
    assert list(batch.verdict)[2] == "cannot tell"
    assert batch.reason[2] == "target values are NaN or infinite"
    assert set(batch.verdict[:2]) <= {"rejected", "not rejected"}
    assert batch.to_dict()["verdict"] == list(batch.verdict)


@pytest.mark.slow
def test_a_test_that_cannot_reject_says_so(key):
    """Data shifted by 9 standard deviations, and one draw or two observations."""
    ys = jax.random.normal(key, (12, 1))
    wild = jaxcal.ksd_test(key, jaxcal.Scores(-(ys + 9)), ys, null=Wild(1))
    assert wild.verdict == "cannot tell"
    assert wild.reason.startswith("too few draws for the level 0.05")
    assert wild.reason in str(wild)
    transposed = ys.T.repeat(2, 0)[:2] + jnp.asarray([[0.0], [1.0]])
    two = jaxcal.ksd_test(key, jaxcal.Scores(-(transposed + 9)), transposed, null=Wild(39))
    assert two.verdict == "cannot tell"
    assert two.reason.startswith("too few observations for the level 0.05: with n = 2")
    assert Wild(39).least_p_value(5) > 0.05 > Wild(39).least_p_value(6)


@pytest.mark.parametrize("level", [0, 1, -0.1, float("nan")])
def test_a_level_is_a_probability(key, level):
    with pytest.raises(ValueError, match=r"level: wanted a (probability|finite number)"):
        checks.level(level)


@pytest.mark.slow
def test_the_smallest_shift_is_found_with_80_percent(key):
    """One distribution, n = 100: 100 data sets shifted by what calibrated ones name."""

    @jax.jit
    def results(keys, shift):
        def one(key):
            ys = jax.random.normal(key, (100, 1)) + shift
            return jaxcal.ksd_test(key, jaxcal.Scores(-ys), ys, null=Wild(99))

        return jax.lax.map(one, keys)

    calibrated, other = jax.random.split(key, (2, 100))
    named = results(calibrated, 0.0).smallest_shift
    assert named.shape == (100, 1)
    assert np.all(np.isfinite(named))
    values = np.sum(results(other, float(np.median(named))).verdict == "rejected")
    assert values >= scipy.stats.binom.ppf(1e-4, 100, 0.8)
    assert values < 100  # and a shift of a third would not be
    third = np.sum(results(other, float(np.median(named)) / 3).verdict == "rejected")
    assert third <= scipy.stats.binom.ppf(1 - 1e-4, 100, 0.4)


@pytest.mark.slow
def test_identical_targets_have_no_verdict(key):
    ys = jnp.full((12, 1), 2.0)
    result = jaxcal.kccsd_test(key, jaxcal.Unnormalized(density, MEANS[:, :1]), ys, null=Wild(39))
    assert result.verdict == "cannot tell"
    assert "identical" in result.reason
    assert "evidence" not in str(result)


@pytest.mark.slow
def test_one_corrupt_target_is_named(key):
    """In float64 the others keep their digits; in float32 they do not, and nothing is told."""
    means = MEANS[:, :1]
    for dtype, told in (("float64", True), ("float32", False)):
        ys = jnp.asarray(YS[:, :1], dtype).at[3].set(1e10)
        model = jaxcal.Unnormalized(density, means.astype(dtype))
        result = jaxcal.kccsd_test(key, model, ys, null=Wild(39))
        assert any("a few targets set the scale" in text for text in result.warnings())
        assert (result.verdict != "cannot tell") == told
        assert told or "lose their digits" in result.reason


@pytest.mark.slow
def test_a_null_without_draws_names_itself_alone(key):
    text = str(run(key, null=Gamma(), coordinates=False))
    assert "(Gamma)" in text
    assert "draws" not in text


@pytest.mark.slow
def test_a_batch_prints_a_summary(batch):
    text = str(batch)
    assert "3 results of KCCSD test" in text
    assert "(3,)" in text
    assert "at level 0.05: " in text
    assert "cannot tell in 1" in text
    low = np.nanmin(batch.p_value)
    assert f"{low:.4g}" in text


@pytest.mark.slow
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
    doubled = jax.jit(lambda r: jax.tree.map(lambda a: a + a, r))(single)
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
    values = jaxcal.Scores(scores, RNG.normal(size=(12, 3, 2)))
    result = kccsd_test(key, values, ys, null=Wild(39))
    assert float(result.notes["one-observation-decides"]) > 0.25
    assert "one observation carries" in str(result)


def with_memory(key, memory, n):
    """Return n standard normal numbers of correlation ``memory``."""

    def step(state, noise):
        state = memory * state + (1 - memory**2) ** 0.5 * noise
        return state, state

    noise = jax.random.normal(key, (n,))
    return jax.lax.scan(step, noise[0], noise)[1]


@pytest.mark.slow
@pytest.mark.parametrize("memory", [0.0, 0.8])
def test_rejections_by_dependent_rows_are_said(key, memory):
    """Calibrated predictions 0 of a series of correlation ``memory``; shifted ones have none."""
    ys = with_memory(key, memory, 200)
    centers = jax.random.normal(jax.random.fold_in(key, 1), (200,))

    def result_of(shift, **options):
        predictions = dist.Normal(centers, jnp.ones(200))
        return kccsd_test(key, predictions, centers + ys + shift, **options)

    for shift in (0.0, 0.5):
        result = result_of(shift)
        wanted = memory > 0 and result.verdict == "rejected"
        assert ("dependent-rows" in str(result)) == wanted
    assert result.verdict == "rejected"
    assert "dependent-rows" not in str(result_of(0.5, null=jaxcal.nulls.DependentWild()))


@pytest.mark.parametrize("xp", [np, jnp])
def test_correlation_of_rows_counts_beyond_three_errors(xp):
    """Of the cosine of period 6 it is .5: three errors are .61 for 24 rows, .31 for 96."""
    few, many = (xp.cos(np.pi / 3 * xp.arange(n, dtype=float))[:, None] for n in (24, 96))
    assert float(notes.memory(few)) == 0
    assert float(notes.memory(many)) == pytest.approx(47 / 96)
    assert float(notes.memory(-many, many)) == float(notes.memory(many))
    rising = xp.arange(96, dtype=float)[:, None]
    for order in (rising, -rising, xp.concatenate([many, rising], axis=1)):
        assert float(notes.memory(many, order)) == 0
    assert float(notes.memory(0 * many)) == 0


@pytest.mark.slow
@pytest.mark.parametrize("memory", [0.0, 0.9])
def test_other_results_say_where_rows_are_dependent(key, memory):
    """Too sure predictions, which all reject; rows sorted by targets are no sign."""
    n = 400
    errors = with_memory(key, memory, n)
    chances = jax.scipy.stats.norm.cdf(jax.random.normal(jax.random.fold_in(key, 1), (n,)))
    labels = jax.scipy.stats.norm.cdf(errors) < chances
    sure = jnp.where(chances < 0.5, chances / 4, 1 - (1 - chances) / 4)
    both = jnp.stack([1 - sure, sure], axis=1)
    models = {"one": both, "other": both[:, ::-1]}
    narrow = dist.Normal(jnp.zeros(n), 0.4)

    def results(order):
        y, q = labels[order].astype(int), sure[order]
        two = {name: model[order] for name, model in models.items()}
        yield jaxcal.distance_from_calibration(key, q, y)
        yield jaxcal.calibration_error(key, two["one"], y, notion="binary")
        yield jaxcal.compare(key, two, y)
        yield quantile_calibration(narrow, errors[order])
        yield jaxcal.compare(key, {"one": narrow, "other": narrow}, errors[order])

    for result in results(jnp.arange(n)):
        assert ("dependent-rows" in str(result.warnings())) == (memory > 0), result
    for result in list(results(jnp.argsort(labels)))[:3]:
        assert "dependent-rows" not in str(result.warnings()), result
    in_order = jaxcal.compare(key, {"one": narrow, "other": narrow}, jnp.sort(errors))
    assert "dependent-rows" not in str(in_order.warnings())


def test_columns_of_claims_are_told_by_place_not_by_name():
    """Inputs may be called as claims are."""
    cells = jnp.full((1, 5), 0.5)
    columns = "everywhere", "centre", "scale", "centre", "scale"
    table = jaxcal.results.Table(("shift of a",), columns, cells, cells, cells, cells, cells / 100)
    places = [text.split(" for each deviation of ")[1:] for text in table.sentences()]
    claims = [["its claimed centre, p = 0.005"], ["its claimed log scale, p = 0.005"]]
    assert places == [[], *claims, ["centre, p = 0.005"], ["scale, p = 0.005"]]


def test_frames_in_lists_are_looked_at_too():
    """Only dicts were, and only the first index: errors of .3 for 0."""
    p, names = np.tile([[0.3, 0.7]], (6, 1)), list("abcdef")
    model, without = pd.DataFrame(p, index=names), pd.DataFrame(p)
    targets = pd.Series([0, 1, 1, 0, 1, 1], index=names[::-1])
    for models in ([model, model], [without, model], {"a": without, "b": model}):
        with pytest.raises(ValueError, match="another order"):
            jaxcal.compare(0, models, targets)


@pytest.mark.slow
def test_scores_and_locations_have_the_columns_of_the_targets():
    targets = pd.DataFrame(YS, columns=["a", "b"])
    scores = pd.DataFrame(-YS, columns=["a", "b"])
    nodes = jnp.zeros((12, 3, 2)), jnp.ones((3, 2))
    assert kccsd_test(0, jaxcal.Scores(scores, *nodes), targets, null=Wild(19)).p_value > 0
    with pytest.raises(ValueError, match=r"predictions\.at_targets: wanted the columns"):
        kccsd_test(0, jaxcal.Scores(scores[["b", "a"]], *nodes), targets)
    normals = dist.Normal(MEANS, 1.0).to_event(1)
    moved = targets.sample(frac=1, random_state=0)
    assert jaxcal.ucme.ucme(0, normals, targets, locations=(normals, moved)).biased >= 0
    other = dist.Normal(MEANS[:5], 1.0).to_event(1), targets.iloc[:5][["b", "a"]]
    with pytest.raises(ValueError, match=r"locations\[1\]: wanted the columns"):
        jaxcal.ucme.ucme(0, normals, targets, locations=other)
