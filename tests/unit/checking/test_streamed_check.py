"""A check in one pass: the tests of its parts, one report, and sums that merge and go on."""

import functools

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import jaxcal
from jaxcal import RandomFeatures
from jaxcal.checking.streamed import streamed_check
from jaxcal.nulls.contract import holm
from jaxcal.streaming import StreamedTest, StreamState, array_batches

RANDOM = np.random.default_rng(0)
N = 240
FEATURES = RandomFeatures(1, 6)
CENTERS, NOISE = RANDOM.normal(size=(2, N, 2))
YS = CENTERS + NOISE
P = RANDOM.dirichlet(np.ones(3), N)
LABELS = (RANDOM.random(N)[:, None] > np.cumsum(P, 1)).sum(1)
YES = (RANDOM.random(N) < P[:, 0]).astype(int)


def normals(rows):
    return dist.Normal(jnp.asarray(CENTERS[rows]), 1.0).to_event(1)


def batches(size, predictions, targets):
    for start in range(0, N, size):
        yield predictions(slice(start, start + size)), targets[start : start + size]


@pytest.mark.slow
def test_distributions_have_both_tests_under_one_level():
    check = streamed_check(0, normals(slice(0, 90)), YS[:90], features=FEATURES)
    report = check.result(check.run(batches(80, normals, YS)), level=0.01)
    alone = [
        test.result(test.run(batches(80, normals, YS)))
        for test in (
            StreamedTest.calibration(0, normals(slice(0, 90)), YS[:90]),
            StreamedTest.skce(0, normals(slice(0, 90)), YS[:90], features=FEATURES),
        )
    ]
    assert report.names == ("calibration_test", "skce_test")
    np.testing.assert_allclose(report.p_values, [test.p_value for test in alone], rtol=1e-6)
    np.testing.assert_allclose(report.p_adjusted, holm(report.p_values))
    assert (report.n, report.level, report.tests[0].level) == (N, 0.01, 0.01)


@pytest.mark.slow
def test_classes_are_tested_and_top_classes_are_counted():
    check = streamed_check(0, P[:90], LABELS[:90], features=FEATURES)
    report = check.result(check.run(array_batches(70, P, LABELS)))
    alone = StreamedTest.skce(0, P[:90], LABELS[:90], features=FEATURES)
    wanted = alone.result(alone.run(array_batches(70, P, LABELS)))
    np.testing.assert_allclose(report.p_value, wanted.p_value, rtol=1e-6)
    (reliability,) = report.estimates
    in_memory = jaxcal.measures.reliability(P.max(1), P.argmax(1) == LABELS, bins=16)
    for name in ("count", "confidence", "accuracy", "low", "high", "ece", "mce"):
        expected = getattr(in_memory, name)
        np.testing.assert_allclose(getattr(reliability, name), expected, rtol=1e-4, err_msg=name)
    assert "without calibration_error" in report.why
    assert "reliability" in str(report)


@pytest.mark.slow
@pytest.mark.parametrize(
    "form",
    [
        lambda p: p,
        lambda p: np.stack([1 - p, p], 1),
        lambda p: dist.Bernoulli(jnp.asarray(p)),
    ],
    ids=["numbers", "two columns", "bernoulli"],
)
def test_yes_and_no_have_the_distance_of_their_table(form):
    p = P[:, 0]
    check = streamed_check(3, form(p[:90]), YES[:90])
    pairs = [(form(p[k : k + 60]), YES[k : k + 60]) for k in range(0, N, 60)]
    report = check.result(check.run(pairs))
    cells = jaxcal.dce.Table.of(p, YES)
    wanted = jaxcal.distance_from_calibration(3, **cells.groups)
    np.testing.assert_allclose(report.p_value, wanted.p_value)
    np.testing.assert_allclose(report.tests[0].bracket.low, wanted.bracket.low, atol=1e-6)


@pytest.mark.slow
def test_scores_with_inputs_are_kcsd():
    scores = lambda rows: jaxcal.Scores(CENTERS[rows] - YS[rows])  # noqa: E731
    check = streamed_check(0, scores(slice(0, 90)), YS[:90], inputs=CENTERS[:90], features=FEATURES)
    triples = [
        (*pair, CENTERS[k * 80 : k * 80 + 80]) for k, pair in enumerate(batches(80, scores, YS))
    ]
    report = check.result(check.run(triples))
    alone = StreamedTest.kcsd(0, scores(slice(0, 90)), YS[:90], CENTERS[:90], features=FEATURES)
    np.testing.assert_allclose(report.p_value, alone.result(alone.run(triples)).p_value, rtol=1e-6)


@pytest.mark.slow
def test_parts_of_a_check_are_merged_saved_and_go_on(tmp_path):
    check = streamed_check(0, normals(slice(0, 90)), YS[:90], features=FEATURES)
    whole = check.result(check.run(batches(80, normals, YS)))
    parts = [
        check.update(check.empty(), normals(slice(k, k + 80)), YS[k : k + 80], first=k)
        for k in (160, 0, 80)
    ]
    parts[1].save(tmp_path / "state.npz")
    parts[1] = StreamState.load(tmp_path / "state.npz")
    merged = check.result(functools.reduce(StreamState.merge, parts), rows=N)
    np.testing.assert_allclose(merged.p_values, whole.p_values, rtol=1e-6)
    with pytest.raises(ValueError, match="rows 160 to 239 of 240 are missing"):
        check.result(parts[1].merge(parts[2]), rows=N)
    with pytest.raises(ValueError, match="a state of another test"):
        streamed_check(1, P[:90], LABELS[:90], features=FEATURES).result(whole_state(check))


def whole_state(check):
    return check.run(batches(80, normals, YS))


@pytest.mark.slow
def test_a_wrong_model_is_rejected_in_a_pass():
    wrong = lambda rows: dist.Normal(jnp.asarray(CENTERS[rows] + 0.5), 1.0).to_event(1)  # noqa: E731
    check = streamed_check(0, wrong(slice(0, 90)), YS[:90], features=FEATURES)
    assert check.result(check.run(batches(80, wrong, YS))).verdict == "rejected"


def test_what_cannot_be_streamed_is_said():
    draws = CENTERS[:, None] + RANDOM.normal(size=(N, 9, 2))
    logs = jaxcal.LogDensities(YS[:, 0], draws[:, :, 0])
    with pytest.raises(TypeError, match="log densities at targets and draws is a sum over"):
        streamed_check(0, logs, None)
    with pytest.raises(ValueError, match="skce_test of class probabilities takes no inputs"):
        streamed_check(0, P, LABELS, inputs=CENTERS)
    check = streamed_check(0, P, LABELS, features=FEATURES)
    with pytest.raises(ValueError, match="the first sample had class probabilities, the batch has"):
        check.update(check.empty(), P[:, 0], YES)


@pytest.mark.parametrize("bins", [3, 5000])
def test_bins_that_cut_cells_are_refused(bins):
    table = jaxcal.dce.Table.of(P[:, 0], YES)
    with pytest.raises(ValueError, match=f"divides that of the cells, 8192, got {bins}"):
        table.reliability(bins)
