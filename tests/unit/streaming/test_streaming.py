"""Streams: batches in any order are one test, interrupted or not; bad shards are named."""

import contextlib
import pickle
from collections.abc import Callable

import equinox as eqx
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from jaxcal import RandomFeatures, Scores, Unnormalized
from jaxcal.divergences import Vectors
from jaxcal.engine.linear import linear_sums
from jaxcal.fit.residuals import MeanResidual
from jaxcal.read.observations import observations
from jaxcal.results.notes import codes
from jaxcal.streaming import Shards, StreamedTest, StreamState, array_batches
from jaxcal.streaming.state import RankCounts

pytest.importorskip("pyarrow")

RANDOM = np.random.default_rng(0)
P = RANDOM.dirichlet(np.ones(3), 600)
LABELS = (RANDOM.random(600)[:, None] > np.cumsum(P, 1)).sum(1)
FEATURES = RandomFeatures(1, 10)


@pytest.fixture(scope="module")
def test():
    return StreamedTest.skce(0, P[:200], LABELS[:200], features=FEATURES)


def same(one, other):
    assert one.n == other.n
    for name, total in one.sums.items():
        np.testing.assert_allclose(total, other.sums[name], rtol=1e-11, atol=1e-11, err_msg=name)


def test_batches_of_what_has_no_rows_are_refused_by_place():
    with pytest.raises(TypeError, match=r"arrays: wanted one array or more, got an array .* None"):
        list(array_batches(4, P, None))
    with pytest.raises(TypeError, match="arrays: wanted one array or more, got none"):
        list(array_batches(4))


def test_batches_in_any_order_are_one_linear_test(test):
    batches = list(array_batches(200, P, LABELS))
    forward, backward = test.run(batches), test.run(batches[::-1])
    merged = test.run(batches[:1]).merge(test.run(batches[1:]))
    same(forward, backward)
    same(forward, merged)
    predictions, ys = observations(P, LABELS)
    prepared, key = test.fit.prepared, test.fit.key
    featured = prepared.features(jnp.stack([key, key]), predictions, ys)
    sums = linear_sums(prepared.pairwise, featured.features, jnp.zeros((600, 0)), eigenvalues=True)
    result = test.result(forward)
    np.testing.assert_allclose(result.estimate, sums.total[0] / (600 * 599), rtol=1e-9)
    values = np.linalg.eigvalsh(forward.sums["products"]) - forward.sums["trace"] / 600
    np.testing.assert_allclose(values, sums.eigenvalues[0], atol=1e-9)
    assert result.verdict == "not rejected"
    assert "first 200 observations" in str(result)


def test_a_printed_state_is_one_line(test):
    state = test.run(array_batches(200, P, LABELS))
    assert len(repr(state)) < 100
    assert "n=600" in repr(state)


def test_a_wrong_model_is_rejected(test):
    assert test.result(test.run(array_batches(200, np.roll(P, 1, axis=1), LABELS))).p_value < 1e-6


@pytest.mark.optional("torch")
def test_tensors_are_batches_too(test):
    import torch

    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(torch.as_tensor(P), torch.as_tensor(LABELS)), 200
    )
    same(test.run(loader), test.run(array_batches(200, P, LABELS)))


def gaussians(kind):
    """A test of this kind fitted to some of 200 predictions, and their arrays, to be cut."""
    x, noise = np.random.default_rng(2).normal(size=(2, 200, 2))
    arrays = (x + noise, x) if kind == "kcsd" else (x + noise,)

    def batch(rows):
        return (dist.Normal(jnp.asarray(x[rows]), 1.0).to_event(1), *(a[rows] for a in arrays))

    return getattr(StreamedTest, kind)(0, *batch(slice(50)), features=FEATURES), batch


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["skce", "kccsd", "kcsd"])
def test_the_last_batch_may_be_one_observation(kind):
    test, batch = gaussians(kind)
    cut = [batch(slice(199)), batch(slice(199, 200))]
    same(test.run(cut), test.run([batch(slice(200))]))


def test_a_batch_of_classes_may_be_one_observation(test):
    same(test.run(array_batches(599, P, LABELS)), test.run(array_batches(600, P, LABELS)))


def test_batches_longer_than_a_block_are_summed_block_by_block(test, monkeypatch):
    monkeypatch.setattr("jaxcal.streaming.linear.ROWS", 64)
    long = test.run(array_batches(317, P, LABELS))  # lengths that no other test compiles
    same(long, test.run(array_batches(50, P, LABELS)))


def test_a_batch_of_none_is_named():
    test, batch = gaussians("kccsd")
    with pytest.raises(ValueError, match=r"batch 1: targets: .*at least 1 observation,"):
        test.run([batch(slice(9)), batch(slice(0))])


def test_an_interrupted_pass_goes_on_where_it_was(test, tmp_path):
    batches, file = list(array_batches(200, P, LABELS)), tmp_path / "state.npz"

    def interrupted():
        yield from batches[:2]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        test.run(interrupted(), checkpoint=file, every=1)
    assert StreamState.load(file).n == 400
    further = test.run(array_batches(599, P[:599], LABELS[:599]))
    with pytest.raises(ValueError, match="400 rows, fewer than the 599 of state="):
        test.run(batches, state=further, checkpoint=file)
    same(test.run(batches, checkpoint=file), test.run(batches))
    other = StreamedTest.skce(5, P[200:400], LABELS[200:400], features=FEATURES)
    with pytest.raises(ValueError, match="another test"):
        other.run(batches, checkpoint=file)
    file.write_bytes(b"no state")
    with pytest.raises(ValueError, match="not a saved state"):
        test.run(batches, checkpoint=file)


def test_a_state_of_another_option_is_of_another_test(test):
    drawn = eqx.tree_at(lambda fit: fit.prepared.residual, test.fit, MeanResidual(n_samples=20))
    other = StreamedTest.of_sums(drawn, test.n_first, test.name)
    with pytest.raises(ValueError, match="another test"):
        test.empty().merge(other.empty())


def test_a_fingerprint_holds_functions_but_no_addresses():
    class Fit(RankCounts):
        function: Callable = eqx.field(static=True)

    def of(function):
        return StreamedTest.of_sums(Fit(3, function), 0, "test").fingerprint

    assert of(lambda p: p) == of(lambda p: p) == of(lambda p: p)
    assert of(jnp.sin) != of(jnp.cos)


def test_a_checkpoint_after_no_batches_is_refused(test, tmp_path):
    with pytest.raises(ValueError, match="every: wanted a whole number of at least 1, got 0"):
        test.run(array_batches(200, P, LABELS), checkpoint=tmp_path / "state.npz", every=0)


def test_a_pass_goes_on_at_its_row_whatever_the_batches(test, tmp_path):
    whole = test.run(array_batches(200, P, LABELS))
    for before, size in ((200, 600), (599, 200), (600, 599)):
        begun = test.run(array_batches(599, P[:before], LABELS[:before]))
        same(test.run(array_batches(size, P, LABELS), state=begun), whole)
    shorter = array_batches(200, P[:300], LABELS[:300])
    with pytest.raises(ValueError, match=r"batches: they end after 300 rows.* state has 600"):
        test.run(shorter, state=whole)


def test_states_of_the_same_shard_do_not_add_up(test, tmp_path):
    np.savez(tmp_path / "0.npz", targets=LABELS[:200], probabilities=P[:200])
    state = test.run(Shards(tmp_path / "0.npz", 200))
    (tmp_path / "0.npz").rename(tmp_path / "1.npz")  # of another name, with the same rows
    with pytest.raises(ValueError, match=r"1\.npz, .* bytes, checksum .* in both"):
        state.merge(test.run(Shards(tmp_path, 200)))


@pytest.mark.slow
def test_a_bad_batch_is_named_and_a_bad_value_is_no_verdict(test):
    with pytest.raises(ValueError, match="batch 1: "):
        test.run([(P[:200], LABELS[:200]), (P[:200], LABELS[:199])])
    ys = RANDOM.normal(size=(200, 1))
    nodes = np.linspace(-2, 2, 5)[:, None]
    scores = Scores(-ys, np.broadcast_to(-nodes, (200, 5, 1)) + 0 * ys[:, None], nodes)
    stein = StreamedTest.kccsd(0, scores, ys, features=FEATURES)
    bad = ys.copy()
    bad[3] = np.nan
    result = stein.result(stein.run([(scores, bad)]))
    assert result.verdict == "cannot tell"
    assert "NaN" in result.reason


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["skce", "kccsd", "kcsd", "calibration"])
def test_batches_of_another_width_than_the_first_are_refused(kind):
    x, noise = np.random.default_rng(2).normal(size=(2, 40, 2))

    def batch(d, q=2):
        normals = dist.Normal(jnp.asarray(x[:, :d]), 1.0).to_event(1)
        inputs = (x[:, :q],) if kind in ("kcsd", "calibration") else ()
        return (normals, (x + noise)[:, :d], *inputs)

    options = {} if kind == "calibration" else {"features": FEATURES}
    test = getattr(StreamedTest, kind)(0, *batch(2), **options)
    with pytest.raises(ValueError, match=r"targets: .* had 2 columns, the batch has 1"):
        test.update(test.empty(), *batch(1))
    if len(batch(2)) == 3:
        with pytest.raises(ValueError, match=r"inputs: .* had 2 columns, the batch has 1"):
            test.update(test.empty(), *batch(2, 1))


def test_batches_of_other_parts_or_classes_are_refused(test):
    for parts in ((P,), (P, LABELS, P, P)):
        with pytest.raises(ValueError, match=f"batch: wanted .*, got {len(parts)}"):
            test.update(test.empty(), *parts)
    two = P[:, :2] / P[:, :2].sum(1, keepdims=True)
    with pytest.raises(ValueError, match="predictions: wanted 3 classes, got 2"):
        test.update(test.empty(), two, LABELS % 2)


@pytest.mark.parametrize(
    ("shards", "twice"),
    [
        ([["a, 9 bytes, 1"], [], []], False),
        ([["a, 9 bytes, 1"], ["b, 8 bytes, 2", "c, 9 bytes, 2"]], False),
        ([["a, 9 bytes, 1"], ["b, 8 bytes, 2", "c, 9 bytes, 1"]], True),
        ([["b, 8 bytes, 2", "a, 9 bytes, 1"], [], ["c, 9 bytes, 1"]], True),
        ([[], []], False),
    ],
)
def test_shards_of_two_processes_are_refused_by_content(shards, twice, monkeypatch):
    states = [StreamState(7, 1, tuple(names), (), {"x": np.ones(3)}, {}) for names in shards]
    texts = [pickle.dumps(state) for state in states]
    size = max(map(len, texts))
    padded = np.array([list(text.ljust(size)) for text in texts], np.uint8)
    answers = iter([np.array([[len(text)] for text in texts]), padded])
    monkeypatch.setattr("jax.process_count", lambda: len(shards))
    monkeypatch.setattr("jaxcal.streaming.state.same_test", lambda fingerprint: None)
    monkeypatch.setattr("jaxcal.streaming.state.gathered", lambda values: next(answers))
    with pytest.raises(ValueError, match="c, 9 bytes") if twice else contextlib.nullcontext():
        total = states[0].over_processes()
        assert (total.n, total.sums["x"].tolist()) == (len(shards), [len(shards)] * 3)


@pytest.mark.slow
def test_batches_of_scores_at_other_nodes_are_refused():
    ys = RANDOM.normal(size=(40, 1))
    nodes = np.linspace(-2, 2, 5)[:, None]

    def scores(nodes):
        return Scores(-ys, np.broadcast_to(-nodes, (40, 5, 1)) + ys[:, None], nodes)

    test = StreamedTest.kccsd(0, scores(nodes), ys, features=FEATURES)
    state = test.run([(scores(nodes), ys)])
    for other in (scores(nodes + 1), Scores(-ys)):
        with pytest.raises(ValueError, match=r"Scores.nodes: .*base points of the fit only"):
            test.update(state, other, ys)


@pytest.mark.slow
def test_equal_batches_have_different_draws():
    """Errors of averages from draws that equal batches of rare counts share would add up."""
    rates = np.full((10, 2), 0.03)
    batch = (dist.Poisson(jnp.asarray(rates)).to_event(1), np.zeros((10, 2)), rates)
    spread = (dist.Poisson(RANDOM.random((50, 2))).to_event(1), RANDOM.poisson(0.5, (50, 2)))
    vectors = Vectors(RANDOM.random((50, 2)))
    test = StreamedTest.skce(0, *spread, features=FEATURES, divergence=vectors)
    once, twice = (test.run([batch] * k) for k in (1, 2))
    assert not np.allclose(twice.sums["sums"], 2 * once.sums["sums"], rtol=1e-3)
    assert twice.rows == ((0, 20),)
    backward = test.update(test.run([batch], first=10), *batch, first=0)
    same(backward, twice)


def noted(density, draw, size):
    """Return the result of KCSD in batches of ``size``, for targets ``draw(center, noise)``."""
    center, noise = np.random.default_rng(3).normal(size=(2, 200))
    ys = draw(center, noise)
    batches = [
        (Unnormalized(density, jnp.asarray(center[rows])), ys[rows], center[rows])
        for rows in np.arange(200).reshape(-1, size)
    ]
    test = StreamedTest.kcsd(
        0, Unnormalized(density, jnp.asarray(center)), ys, center, features=FEATURES
    )
    return test.result(test.run(batches))


@pytest.mark.slow
@pytest.mark.parametrize("size", [100, 5])
def test_notes_in_memory_are_those_of_a_stream(size):
    """Of all observations, in batches of any size."""
    normal = noted(lambda c, y: -((y - c) ** 2) / 2, np.add, size)
    assert (normal.verdict, normal.warnings()) == ("not rejected", [])
    energy = noted(lambda c, y: (y - c) ** 2 / 2, np.add, size)
    assert codes(energy.warnings()) == ["reversed-sign"]
    counts = noted(lambda c, y: -((y - c) ** 2) / 2, lambda c, e: np.round(c + e), size)
    assert codes(counts.warnings()) == ["whole-targets"]
    half = noted(lambda c, y: jnp.where(y > c, c - y, -jnp.inf), lambda c, e: c + e**2, size)
    assert half.verdict == "cannot tell"
    assert "density ends where it is not 0" in half.reason
    assert "abrupt-edge" in codes(half.warnings())


@pytest.mark.slow
def test_notes_on_the_first_sample_are_kept():
    center, noise = np.random.default_rng(3).normal(size=(2, 200, 1))
    ys = center + noise
    ys[0] = 1e6
    normal = dist.Normal(jnp.asarray(center), 1.0).to_event(1)
    test = StreamedTest.skce(0, normal, ys, features=FEATURES)
    assert codes(test.result(test.run([(normal, ys)])).warnings()) == ["far-targets"]


def test_a_state_of_another_version_is_refused(monkeypatch):
    state = StreamedTest.table().empty()
    monkeypatch.setattr("jaxcal.__version__", "0.0.1")
    with pytest.raises(ValueError, match=r"another test .*or version of jaxcal"):
        StreamedTest.table().empty().merge(state)


def test_a_stream_too_short_for_the_level_gives_no_verdict():
    p, labels = np.full((6, 3), 1 / 3), np.full(6, 1)
    test = StreamedTest.skce(0, p, labels, features=FEATURES)
    result = test.result(test.update(test.empty(), p, labels), level=0.001)
    assert result.verdict == "cannot tell"
    assert "[too-few-observations]" in result.reason


def test_rare_classes_that_are_absent_give_no_verdict():
    rare = 1e-4 * np.exp(0.5 * np.random.default_rng(0).normal(size=(2000, 2)))
    p, labels = np.column_stack([1 - np.sum(rare, axis=1), rare]), np.zeros(2000, int)
    test = StreamedTest.skce(0, p[:500], labels[:500], features=FEATURES)
    result = test.result(test.run(array_batches(500, p, labels)))
    assert result.verdict == "cannot tell"
    assert "rare" in result.reason
