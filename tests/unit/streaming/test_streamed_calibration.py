"""Streams of the calibration test: no order, share or size of batches changes a draw or a sum."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats

import jaxcal
from jaxcal.entries.evidence import Entries, log_evidence
from jaxcal.entries.moments import groups
from jaxcal.entries.ranks import Fit, normal
from jaxcal.entries.table import summed_table, table, table_sums
from jaxcal.nulls.contract import p_value
from jaxcal.results import notes
from jaxcal.streaming import StreamedTest, StreamState
from jaxcal.streaming.calibration import EntriesFit, _fitted, _judged, _sums, row_keys, row_signs

N, SIZE, DRAWS = 240, 40, 99
NAMES = ("0", "1"), ("everywhere", "centre", "scale")


def log_density(center, y):
    return -jnp.sum((y - center) ** 2) / 2


def bounded(center, y):
    """Ends at -1, which a centre near 0 reaches and one at 50 does not."""
    return jnp.where(jnp.all(y > -1), log_density(center, y), -jnp.inf)


RANDOM = np.random.default_rng(0)
CENTERS = RANDOM.normal(size=(N, 2))
YS = CENTERS + RANDOM.normal(size=(N, 2))
INPUTS = RANDOM.normal(size=(N, 12))  # their leading components are those of the first sample


def forecasts(rows=slice(None), density=log_density):
    return jaxcal.Unnormalized(density, jnp.asarray(CENTERS[rows]))


def batches(size=SIZE, inputs=True):
    for start in range(0, N, size):
        rows = slice(start, start + size)
        yield forecasts(rows), YS[rows], *([INPUTS[rows]] if inputs else [])


@pytest.fixture(scope="module")
def test():
    rows = slice(0, 120)
    return StreamedTest.calibration(0, forecasts(rows), YS[rows], INPUTS[rows], n_draws=DRAWS)


@pytest.fixture(scope="module")
def whole(test):
    return test.run(batches())


def same(one, other):
    assert (one.n, one.rows) == (other.n, other.rows)
    np.testing.assert_allclose(one.least["rank"], other.least["rank"], rtol=1e-10)
    for name, total in one.sums.items():
        np.testing.assert_allclose(total, other.sums[name], rtol=1e-10, atol=1e-9, err_msg=name)


@pytest.mark.slow
def test_no_order_share_or_size_changes_a_draw(test, whole):
    parts = list(batches())
    backward = test.empty()
    for k in reversed(range(len(parts))):
        backward = test.update(backward, *parts[k], first=k * SIZE)
    same(backward, whole)
    shares = [test.run(parts[:2]), test.run(parts[2:], first=2 * SIZE)]
    same(shares[1].merge(shares[0]), whole)
    same(test.update(test.empty(), forecasts(), YS, INPUTS), whole)
    assert whole.rows == ((0, N),)
    results = [test.result(state) for state in (whole, backward)]
    assert results[0].p_value == results[1].p_value


@pytest.mark.slow
def test_it_is_the_test_in_memory_with_the_same_fit(test, whole):
    fit = test.fit
    near_key, sign_key = jax.random.split(fit.key)
    rows = jnp.zeros(N, jnp.uint32), jnp.arange(N, dtype=jnp.uint32)
    predictions, ys = forecasts(), jnp.asarray(YS)

    @jax.jit
    def in_memory():
        seen = Fit.of(row_keys(near_key, rows), predictions, ys, (fit.units, fit.ends))
        named = groups(fit.frame, seen.seen, seen.scores, seen.ends, jnp.asarray(INPUTS))
        entries = Entries.of(named, seen.kept)
        sums = entries.sums(row_signs(row_keys(sign_key, rows), DRAWS, float))
        each = log_evidence(sums, entries.correlations, named)
        statistic = jax.nn.logsumexp(each, axis=0)
        return statistic, each, p_value(statistic[None, 0], statistic[None, 1:])[0]

    statistic, each, p = in_memory()
    result = test.result(whole)
    np.testing.assert_allclose(result.statistic, statistic[0], rtol=1e-9)
    np.testing.assert_allclose(result.null_samples, statistic[1:], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(result.parts.statistics, each[:, 0], rtol=1e-7, atol=1e-9)
    assert result.p_value == float(p)
    assert (result.verdict, result.n, result.n_first) == ("not rejected", N, 120)
    assert "first 120 observations" in str(result)


@pytest.mark.slow
def test_its_table_is_that_of_all_observations(test, whole):
    """With features that the observations standardize, as they do in memory."""
    columns = ("everywhere", "centre", "scale", *(f"input {k}" for k in range(10)))

    @jax.jit
    def of_all(fit):
        rows = jnp.zeros(N, jnp.uint32), jnp.arange(N, dtype=jnp.uint32)
        keys = row_keys(jax.random.split(fit.key)[0], rows)
        seen = Fit.of(keys, forecasts(), jnp.asarray(YS), (fit.units, fit.ends)).seen
        along = fit.frame.along(seen, jnp.asarray(INPUTS))
        centred = along - along.mean(axis=1, keepdims=True)
        deviation = centred.std(axis=1, keepdims=True)  # 0 of claimed scales, which are all equal
        along = centred / jnp.where(deviation > 0, deviation, 1)
        scores = seen.ranks.normal, normal(seen.ranks.resolved)
        return table(
            *scores, along, jnp.ones(N, bool), 0.05, ("0", "1"), columns, seen.ranks.expected
        )

    in_memory = of_all(test.fit)
    streamed = test.result(whole).table
    assert (streamed.rows, streamed.columns) == (in_memory.rows[:4], columns)
    np.testing.assert_allclose(streamed.effect, in_memory.effect[:4], rtol=1e-7, atol=1e-12)
    widths, wanted = (np.asarray(of.high) - np.asarray(of.low) for of in (streamed, in_memory))
    np.testing.assert_allclose(widths[:2], wanted[:2], rtol=1e-7)  # of shifts
    assert "what is off" not in str(test.result(whole))


@pytest.mark.slow
def test_without_trends_of_the_shift_limits_are_those_in_memory():
    """Of skewed features, and scores whose spread varies with them."""
    features = np.exp(RANDOM.normal(size=(3, N, 2)) / 2)
    features -= features.mean(axis=1, keepdims=True)
    features /= features.std(axis=1, keepdims=True)
    normal = RANDOM.normal(size=(N, 2)) * np.exp(0.2 * features[0])
    for k in range(2):
        along = np.concatenate([np.ones((1, N)), features[:, :, k]]).T
        normal[:, k] -= along @ np.linalg.lstsq(along, normal[:, k])[0]
    arrays = jnp.asarray(normal), jnp.asarray(features), jnp.arange(N) < N
    columns = ("everywhere", "a", "b", "c")
    in_memory = table(arrays[0], *arrays, 0.05, ("0", "1"), columns, jnp.zeros((N, 2, 1)))
    sums = [np.stack([part, part]) for part in table_sums(*arrays)]
    streamed = summed_table(*sums, 0.05, ("0", "1"), columns)
    for name in ("effect", "low", "high", "p_value"):
        values = getattr(in_memory, name)[:4]
        np.testing.assert_allclose(getattr(streamed, name), values, rtol=1e-7, atol=1e-12)


@pytest.mark.slow
def test_a_streamed_table_says_where():
    """Deviations that grow with the centre are claimed to be constant."""
    ys = CENTERS + np.exp(0.5 * CENTERS) * (YS - CENTERS)
    of = forecasts(slice(0, 120)), ys[:120]
    test = StreamedTest.calibration(0, *of, names=["a", "b"], n_draws=DRAWS)
    result = test.result(test.update(test.empty(), forecasts(), ys))
    assert result.table.rows == ("shift of a", "shift of b", "spread of a", "spread of b")
    assert result.table.sentences()[0].startswith("spread of ")
    assert "too narrow" in result.table.sentences()[0]
    assert "for each deviation of its claimed centre" in result.table.sentences()[0]
    assert result.table.sentences()[0] in str(result)
    few = test.result(test.update(test.empty(), forecasts(slice(0, 9)), ys[:9]))
    assert few.table is None


@pytest.mark.slow
def test_signs_of_rows_are_independent():
    high, low = jnp.repeat(jnp.arange(2), 500), jnp.tile(jnp.arange(500), 2)
    keys = row_keys(jax.random.key(0), (high, low))
    signs = np.asarray(row_signs(keys, 200, float))
    assert set(np.unique(signs)) == {-1.0, 1.0}
    for products in (signs.T @ signs / 1000, signs @ signs.T / 200):
        assert abs(products[np.triu_indices(len(products), 1)].mean()) < 0.01
        assert np.max(np.abs(products - np.eye(len(products)))) < 0.5


@pytest.mark.slow
def test_a_pass_goes_on_from_a_file_at_the_row(test, whole, tmp_path):
    half = test.run(list(batches())[:3])
    half.save(tmp_path / "state.npz")
    loaded = StreamState.load(tmp_path / "state.npz")
    same(loaded, half)
    size = (tmp_path / "state.npz").stat().st_size
    same(test.run(batches(size=80), state=loaded), whole)  # stopped inside of a batch
    whole.save(tmp_path / "state.npz")
    assert (tmp_path / "state.npz").stat().st_size == size  # of one size, however many rows


@pytest.mark.slow
def test_row_numbers_have_64_bits(test):
    batch, states = next(batches()), []
    for first in (7, 2**32 + 7, 2**40):
        state = test.update(test.empty(), *batch, first=first)
        assert state.rows == ((first, first + SIZE),)
        states.append(state.sums["entries"][:, 1])
    assert np.all(np.any(states[0] != states[1]) & np.any(states[0] != states[2]))


@pytest.mark.slow
def test_a_share_that_is_missing_is_named(test, whole):
    parts = list(batches())
    shares = [test.run(parts[k : k + 2], first=k * SIZE) for k in (0, 4)]  # a worker was lost
    state = shares[0].merge(shares[1])
    with pytest.raises(ValueError, match="rows 80 to 159, 240 to 299 of 300 are missing"):
        test.result(state, rows=300)
    with pytest.raises(ValueError, match="rows: wanted"):
        test.result(whole, rows=0)
    assert test.result(whole, rows=N).n == N


@pytest.mark.slow
def test_a_wrong_model_is_rejected(test):
    narrow = [
        (p, CENTERS[k * SIZE : (k + 1) * SIZE] * 1.6, x) for k, (p, _, x) in enumerate(batches())
    ]
    result = test.result(test.run(narrow))
    assert result.verdict == "rejected"
    assert result.p_value == 1 / (1 + DRAWS)


@pytest.mark.slow
def test_rows_and_parts_that_do_not_fit_are_refused(test, whole):
    with pytest.raises(ValueError, match="rows 0 to 39 are in both states"):
        whole.merge(test.update(test.empty(), *next(batches()), first=0))
    with pytest.raises(ValueError, match=r"inputs: .* had 12 columns, the batch has 0"):
        test.update(test.empty(), *next(batches(inputs=False)))
    predictions, ys, _ = next(batches())
    with pytest.raises(ValueError, match=r"inputs: .* had 12 columns, the batch has 9"):
        test.update(test.empty(), predictions, ys, np.ones((len(ys), 9)))
    with pytest.raises(ValueError, match="first: "):
        test.update(test.empty(), *next(batches()), first=-1)
    with pytest.raises(TypeError, match="predictions: this needs log densities"):
        test.update(test.empty(), np.ones((3, 2)), np.zeros(3), INPUTS[:3])
    other = StreamedTest.calibration(1, forecasts(), YS, INPUTS, n_draws=DRAWS)
    with pytest.raises(ValueError, match="a state of another test"):
        other.result(whole)
    with pytest.raises(ValueError, match="at least 2 observations"):
        test.result(test.empty())


@pytest.mark.slow
def test_what_is_lost_and_what_is_impossible_is_said():
    test = StreamedTest.calibration(0, forecasts(), YS, n_draws=DRAWS)
    batch = forecasts(slice(0, SIZE)), YS[:SIZE].copy()
    batch[1][3, 0] = np.nan
    result = test.result(test.update(test.empty(), *batch))
    assert result.verdict == "cannot tell"
    assert "1 targets, densities or scores are NaN" in result.reason
    assert any(text.startswith("1 target value ") for text in result.warnings())
    batch[1][3, 0] = 50  # so far out that no right prediction has a target there
    result = test.result(test.update(test.empty(), *batch))
    assert result.p_value == 1 / (1 + DRAWS)
    far = jaxcal.Unnormalized(bounded, jnp.asarray(CENTERS + 50))
    test = StreamedTest.calibration(0, far, YS + 50, n_draws=DRAWS)
    near = jaxcal.Unnormalized(bounded, jnp.abs(jnp.asarray(CENTERS)))
    result = test.result(test.update(test.empty(), near, np.abs(YS)))
    assert "densities end near their targets, and none in the first sample" in result.reason


@pytest.mark.slow
@pytest.mark.parametrize(
    ("density", "codes"),
    [
        (lambda c, y: log_density(c, y) + 2e15, {"coarse-logs"}),
        (lambda c, y: -log_density(c, y), {"reversed-sign", "endless-densities"}),
    ],
)
def test_its_notes_are_those_in_memory(density, codes):
    some = slice(0, 2 * SIZE)
    test = StreamedTest.calibration(0, forecasts(some, density), YS[some], n_draws=DRAWS)
    halves = slice(0, SIZE), slice(SIZE, 2 * SIZE)
    result = test.result(test.run((forecasts(half, density), YS[half]) for half in halves))
    memory = jaxcal.calibration_test(0, forecasts(some, density), YS[some])
    assert codes <= set(notes.codes(result.warnings())) == set(notes.codes(memory.warnings()))
    assert (result.verdict, result.reason) == (memory.verdict, memory.reason)


@pytest.mark.slow
def test_a_target_far_in_the_tail_or_whole_targets_are_said(test, whole):
    ys = YS.copy()
    ys[3] = CENTERS[3] + 15
    result = test.result(test.update(test.empty(), forecasts(), ys, INPUTS))
    assert notes.codes(result.warnings()) == ["improbable-targets"]
    result = test.result(test.update(test.empty(), forecasts(), np.round(YS), INPUTS))
    assert notes.codes(result.warnings()) == ["whole-targets"]
    assert test.result(whole).warnings() == []


@pytest.mark.slow
def test_distributions_stream_in_batches_of_any_order():
    def batch(k):
        rows = slice(k * SIZE, (k + 1) * SIZE)
        return dist.Normal(CENTERS[rows], 1.0).to_event(1), YS[rows]

    test = StreamedTest.calibration(0, *batch(0), n_draws=DRAWS)
    states = []
    for order in ((0, 1, 2), (2, 0, 1)):
        state = test.empty()
        for k in order:
            state = test.update(state, *batch(k), first=k * SIZE)
        states.append(state)
    same(*states)
    assert test.result(states[0]).verdict == "not rejected"


@pytest.mark.slow
def test_it_keeps_its_level_and_finds_a_wrong_spread(key):
    """The first sample is part of the stream, as it usually is."""
    fit_key, *keys = jax.random.split(key, 301)
    n, first = 100, 50

    def p_of(scale):
        def one(key):
            centers, noise = jax.random.normal(key, (2, n, 2))
            ys = centers + scale * noise
            predictions = jaxcal.Unnormalized(log_density, centers)
            sample = jaxcal.Unnormalized(log_density, centers[:first])
            fitted = _fitted(fit_key, sample, ys[:first], None)
            fit = EntriesFit(fit_key, *fitted, DRAWS, NAMES)
            rows = jnp.zeros(n, jnp.uint32), jnp.arange(n, dtype=jnp.uint32)
            sums, _ = _sums(fit, predictions, ys, None, rows, jnp.asarray(0))
            parts = sums["entries"], sums["products"], sums["squares"]
            statistic, _ = _judged(*parts, layout=fit.layout)
            return p_value(statistic[None, 0], statistic[None, 1:])[0]

        return jax.lax.map(one, jnp.stack(keys))

    low, high = scipy.stats.binom.interval(0.9999, len(keys), 0.05)
    assert low <= int(jnp.sum(p_of(1.0) <= 0.05)) <= high
    assert int(jnp.sum(p_of(1.3) <= 0.05)) > len(keys) / 2
