"""Coverage and tables in batches: those of all observations, merged, saved and read from files."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from jaxcal import dce
from jaxcal.coverage import coverage
from jaxcal.read import LogDensities
from jaxcal.streaming import Shards, StreamedTest, StreamState, array_batches

RANDOM = np.random.default_rng(0)
N, M = 300, 19
CENTERS, NOISE = RANDOM.normal(size=(2, N, 2))
DRAWS = CENTERS[:, None] + RANDOM.normal(size=(N, M, 2))
YS = CENTERS + 1.5 * NOISE
P = RANDOM.dirichlet(np.ones(3), N)
LABELS = (RANDOM.random(N)[:, None] > np.cumsum(P, 1)).sum(1)


def normals(rows):
    return dist.Normal(jnp.asarray(CENTERS[rows]), 1.0).to_event(1)


def batches(size):
    for start in range(0, N, size):
        rows = slice(start, start + size)
        yield normals(rows), YS[rows], DRAWS[rows]


@pytest.mark.slow
def test_coverage_of_batches_is_that_of_all(tmp_path):
    whole = coverage(normals(slice(None)), YS, DRAWS)
    test, other = StreamedTest.coverage(M), StreamedTest.coverage(M + 1)
    parts = [test.run(list(batches(100))[k:][:1]) for k in range(3)]
    parts[2].save(tmp_path / "state.npz")
    merged = StreamState.load(tmp_path / "state.npz").merge(parts[0].merge(parts[1]))
    goes_on = test.run(batches(299), state=parts[0])  # the last batch has one row
    for state in (merged, goes_on):
        streamed = test.result(state, level=0.01)
        np.testing.assert_array_equal(streamed.counts, whole.counts)
        np.testing.assert_allclose(streamed.observed, whole.observed)
        np.testing.assert_allclose(streamed.p_uniform, whole.p_uniform)
        np.testing.assert_allclose(streamed.p_conservative, whole.p_conservative)
        assert (streamed.n, streamed.level) == (N, 0.01)
    assert str(streamed) == str(whole)
    with pytest.raises(ValueError, match="draws: wanted 20 from each prediction, got 19"):
        other.update(other.empty(), *next(batches(10)))
    with pytest.raises(ValueError, match="a state of another test"):
        other.result(merged)


def test_equal_densities_are_split_alike_in_one_pass():
    flat = [LogDensities(np.zeros(n), np.zeros((n, M))) for n in (N, 120, N - 120)]
    test = StreamedTest.coverage(M)
    state = test.run([(part, None, None) for part in flat[1:]])
    counts = coverage(flat[0]).counts
    np.testing.assert_array_equal(test.result(state).counts, counts)
    assert np.count_nonzero(counts) > M / 2


def test_what_is_unknown_is_counted():
    test = StreamedTest.coverage(M)
    ys = YS[:10].copy()
    ys[3] = np.nan
    result = test.result(test.update(test.empty(), normals(slice(0, 10)), ys, DRAWS[:10]))
    assert int(result.unknown) == 1
    assert np.isnan(result.p_uniform)


def test_a_table_of_batches_is_that_of_all():
    p, y = P[:, 0], LABELS == 0
    test = StreamedTest.table(64)
    streamed = test.result(test.run(array_batches(70, p, y)))
    whole = dce.Table.of(p, y, cells=64)
    for name in ("counts", "predictions", "targets"):
        np.testing.assert_allclose(getattr(streamed, name), getattr(whole, name))
    both = test.update(test.empty(), np.stack([1 - p, p], 1), y)
    np.testing.assert_array_equal(both.sums["counts"], whole.counts)


def test_a_table_of_classes_is_that_of_the_most_probable(tmp_path):
    """Read from files, with batches that are filled up."""
    pytest.importorskip("pyarrow")
    for k, rows in enumerate((slice(0, 130), slice(130, N))):
        np.savez(tmp_path / f"{k}.npz", probabilities=P[rows], targets=LABELS[rows])
    test = StreamedTest.table()
    table = test.result(test.run(Shards(tmp_path, 64)))
    right = (np.argmax(P, 1) == LABELS).astype(float)
    assert table.n == N
    of_all = dce.binned_ece(np.max(P, 1), right, edges=8)
    binned = dce.binned_ece(**table.means, edges=8)
    np.testing.assert_allclose(binned.value, of_all.value, atol=1e-12)


@pytest.mark.parametrize(
    ("p", "y", "error", "said"),
    [
        (P, LABELS + 1, ValueError, "targets: classes 1, .., 3 were given"),
        (P, LABELS - 1, ValueError, "targets: wanted classes 0, .., 2, got -1 to 1"),
        (P, LABELS.astype(str), TypeError, "targets: "),
        (2 * P, LABELS, ValueError, "predictions: row 0 does not sum to 1"),
        (2 * P[:, :2], LABELS == 1, ValueError, "predictions: row 0 does not sum to 1"),
    ],
)
def test_classes_and_probabilities_of_a_table_are_checked(p, y, error, said):
    test = StreamedTest.table()
    with pytest.raises(error, match=said):
        test.update(test.empty(), p, y)


def test_columns_of_a_table_are_read_by_their_numbers():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(P[:, [2, 0, 1]], columns=["p2", "p0", "p1"])
    test = StreamedTest.table()
    sums = test.update(test.empty(), frame, LABELS.astype(float)).sums  # as pandas often has them
    for name, total in test.update(test.empty(), P, LABELS).sums.items():
        np.testing.assert_array_equal(sums[name], total)
