"""Errors of class probabilities: by hand, against exact conditionals, and their identities."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from reference.classes import canonical_error, cells, squared_euclidean
from reference.distances import kernel_ce_of_pairs
from reference.finite import lp_ball_error

from jaxcal.dce import binned, kernel_ce
from jaxcal.kernels.points import Gaussian, Laplace
from jaxcal.measures import confidences, ece, reliability
from jaxcal.measures.classes import wilson
from jaxcal.plots.reliability import reliability as plot
from jaxcal.skce import skce
from jaxcal.squared_ce import Bins, binning

N, M = 60, 3
RNG = np.random.default_rng(21)
P = RNG.dirichlet(np.ones(M), size=N)
Q = RNG.dirichlet(np.ones(M), size=N)
LABELS = RNG.integers(0, M, N)
R = RNG.uniform(size=N)
HITS = RNG.uniform(size=N) < R**2


def test_errors_from_a_known_conditional():
    tv = np.abs(P - Q).sum(1) / 2
    np.testing.assert_allclose(canonical_error(P, conditional=Q).mean, tv.mean())
    np.testing.assert_allclose(canonical_error(P, conditional=Q).largest, tv.max())
    squares = ((P - Q) ** 2).sum(1)
    both = canonical_error(P, conditional=Q, distance=squared_euclidean)
    np.testing.assert_allclose(both, (squares.mean(), squares.max()))
    assert float(canonical_error(P, conditional=P).mean) == 0.0


def test_binned_errors_are_those_of_a_dictionary_of_cells():
    bins = 4
    groups = {}
    for p, y in zip(P, LABELS, strict=True):
        groups.setdefault(tuple(np.minimum((p * bins).astype(int), bins - 1)), []).append((p, y))
    gaps, weights = [], []
    for members in groups.values():
        mean = np.mean([p for p, _ in members], axis=0)
        shares = np.bincount([y for _, y in members], minlength=M) / len(members)
        gaps.append(np.abs(mean - shares).sum() / 2)
        weights.append(len(members) / N)
    np.testing.assert_allclose(canonical_error(P, LABELS, bins=bins).mean, np.dot(gaps, weights))
    np.testing.assert_allclose(canonical_error(P, LABELS, bins=bins).largest, max(gaps))
    table = cells(P, LABELS, bins=bins)
    assert int(jnp.sum(table.weights > 0)) == len(groups)
    np.testing.assert_allclose(jnp.sum(table.weights), 1)
    jitted = jax.jit(lambda p, y: canonical_error(p, y, bins=bins).mean)(P, LABELS)
    np.testing.assert_allclose(jitted, np.dot(gaps, weights))


def test_two_classes_agree_with_the_reliability_diagram():
    two = np.stack([1 - R, R], 1)
    for bins in (1, 7, 15):
        # the total variation between two Bernoulli laws is the gap of their probabilities; the
        # grid of 1 - R splits no bin of R, since edges are symmetric
        np.testing.assert_allclose(
            canonical_error(two, HITS, bins=bins).mean,
            reliability(R, HITS, bins=bins).ece,
            rtol=1e-10,
        )


def test_the_plug_in_tends_to_the_exact_error():
    """P uniform in [0, 1], P(Y = 1 | P) = P^2: the ECE is E(P - P^2) = 1/6, the MCE 1/4."""
    n = 200_000
    r = RNG.uniform(size=n)
    y = RNG.uniform(size=n) < r**2
    diagram = reliability(r, y, bins=20)
    assert float(diagram.ece) == pytest.approx(1 / 6, abs=4 * 0.5 / n**0.5)
    assert float(diagram.mce) == pytest.approx(1 / 4, abs=0.02)


def test_reliability_by_hand():
    r = np.array([0.0, 0.1, 0.2, 0.25, 0.5, 1.0, 0.95])
    y = np.array([0, 1, 0, 1, 1, 1, 0])
    diagram = reliability(r, y, bins=4)
    assert diagram.count.tolist() == [3, 1, 1, 2]  # an edge belongs to the bin above it
    np.testing.assert_allclose(diagram.confidence, [0.1, 0.25, 0.5, 0.975])
    np.testing.assert_allclose(diagram.accuracy, [1 / 3, 1, 1, 0.5])
    gaps = np.array([1 / 3 - 0.1, 0.75, 0.5, 0.475])
    np.testing.assert_allclose(diagram.ece, gaps @ [3, 1, 1, 2] / 7)
    np.testing.assert_allclose(diagram.mce, 0.75)
    equal = reliability(RNG.uniform(size=1000) ** 3, np.zeros(1000, int), bins=10, equal_mass=True)
    assert np.all(np.abs(np.asarray(equal.count) - 100) <= 1)


def test_empty_bins_are_masked():
    diagram = reliability(np.array([0.05, 0.06, 0.99]), np.array([0, 1, 1]), bins=10)
    assert diagram.filled.tolist() == [True] + [False] * 8 + [True]
    for column in (diagram.confidence, diagram.accuracy, diagram.low, diagram.high):
        assert np.array_equal(np.isnan(column), ~np.asarray(diagram.filled))
    assert np.isfinite(diagram.ece)
    ax = plot(diagram)
    assert len(ax.lines[1].get_xdata()) == 2
    assert "fewer than 10" in repr(diagram)
    constant = reliability(np.full(50, 0.5), np.arange(50) % 2, equal_mass=True)
    assert int(constant.count.sum()) == 50


@pytest.mark.parametrize(("k", "n"), [(0, 5), (5, 5), (3, 10), (40, 400)])
def test_wilson_intervals_are_those_of_scipy(k, n):
    wanted = scipy.stats.binomtest(k, n).proportion_ci(0.95, method="wilson")
    low, high = wilson(jnp.asarray(k / n), jnp.asarray(float(n)))
    np.testing.assert_allclose([low, high], [wanted.low, wanted.high], atol=1e-12)


def test_the_diagram_shows_the_bins():
    diagram = reliability(R, HITS, bins=5)
    ax = plot(diagram, label="predicted probability of rain")
    np.testing.assert_allclose(ax.lines[1].get_ydata(), diagram.accuracy)
    assert ax.get_xlabel() == "predicted probability of rain"
    assert ax.get_xlim() == (0, 1)
    ax.plot([0, 1], [0.5, 0.5])  # other curves can join
    many = jax.tree.map(lambda leaf: jnp.stack([leaf] * 2), diagram)
    assert "2 reliability diagrams" in repr(many)
    with pytest.raises(ValueError, match="a figure shows one result"):
        plot(many)
    assert set(diagram.to_dict()) >= {"edges", "confidence", "accuracy", "count", "ece", "warnings"}

    @jax.jit
    def inside(r):
        traced = reliability(r, HITS)
        assert repr(traced) == "Reliability(traced)"
        assert traced.warnings() == []
        return traced.ece

    np.testing.assert_allclose(inside(jnp.asarray(R)), reliability(R, HITS).ece)


@pytest.mark.parametrize("bins", [1, 10, 15])
def test_ece_and_mce_are_those_of_practice(bins):
    """Guo et al. (2017), Section 2, by a loop in NumPy."""
    top, hit = np.max(P, axis=1), np.argmax(P, axis=1) == np.asarray(LABELS)
    inside = np.minimum((top * bins).astype(int), bins - 1)
    gaps = [
        (np.mean(inside == b), abs(np.mean(hit[inside == b]) - np.mean(top[inside == b])))
        for b in np.unique(inside)
    ]
    np.testing.assert_allclose(ece(P, LABELS, bins=bins), sum(w * gap for w, gap in gaps))
    worst = reliability(*confidences(P, LABELS), bins=bins).mce
    np.testing.assert_allclose(worst, max(gap for _, gap in gaps))


def test_the_most_likely_class_is_the_confidence_problem():
    confidence, correct = confidences(P, LABELS)
    np.testing.assert_array_equal(confidence, P.max(1))
    np.testing.assert_array_equal(correct, P.argmax(1) == LABELS)


@pytest.mark.parametrize("p", [1.0, 1.05, 1.5, 2.0, 4.0, float("inf")])
def test_the_error_over_an_lp_ball_is_the_supremum(p):
    """No function of the ball does better, and the one of Hoelder's equality reaches it."""
    w = RNG.dirichlet(np.ones(N))
    gap = Q - P
    result = float(lp_ball_error(P, Q, p, weights=w))

    def norm(f):
        size = np.abs(f)
        return size.max() if p == np.inf else np.sum(w[:, None] * size**p) ** (1 / p)

    def value(f):
        return np.sum(w[:, None] * f * gap) / norm(f)

    for _ in range(200):
        assert value(RNG.normal(size=gap.shape)) <= result * (1 + 1e-12)
    if p == 1:  # all mass where the gap is largest
        best = np.zeros_like(gap)
        at = np.unravel_index(np.argmax(np.abs(gap)), gap.shape)
        best[at] = np.sign(gap[at])
    else:
        best = np.sign(gap) * np.abs(gap) ** (0.0 if p == np.inf else 1 / (p - 1))
    np.testing.assert_allclose(value(best), result, rtol=1e-9)


def test_special_cases_of_the_ball():
    squared = canonical_error(P, conditional=Q, distance=squared_euclidean).mean
    np.testing.assert_allclose(lp_ball_error(P, Q, 2.0) ** 2, squared)
    np.testing.assert_allclose(
        lp_ball_error(P, Q, float("inf")), 2 * canonical_error(P, conditional=Q).mean
    )
    np.testing.assert_allclose(lp_ball_error(P, Q, 1.0), np.abs(P - Q).max())
    np.testing.assert_allclose(lp_ball_error(P, Q, 1.001), np.abs(P - Q).max(), rtol=2e-2)
    assert float(lp_ball_error(P, P, 3.0)) == 0.0


def mmce_by_hand(k):
    gram = np.array([[k(a, b) for b in R] for a in R])
    d = HITS - R
    h = gram * d[:, None] * d
    return h.sum() / N**2, (h.sum() - np.trace(h)) / (N * (N - 1))


def test_mmce_is_its_double_sum():
    biased, unbiased = mmce_by_hand(lambda a, b: np.exp(-abs(a - b) / 0.4))
    estimate = kernel_ce(R, HITS, bandwidth=0.4)
    np.testing.assert_allclose(estimate.squared, biased)
    np.testing.assert_allclose(estimate.unbiased, unbiased)
    biased, unbiased = mmce_by_hand(lambda a, b: np.exp(-((a - b) ** 2) / 0.08))
    over_pairs = kernel_ce_of_pairs(R, HITS, Gaussian(0.2))
    np.testing.assert_allclose(over_pairs, (biased, unbiased))


def test_mmce_is_half_the_kernel_calibration_error(key):
    """With the delta kernel on classes, SKCE = 2 MMCE^2; vectors (1 - r, r) are sqrt(2) apart."""
    whole = skce(key, R, HITS.astype(int), prediction_kernel=Laplace(0.4 * 2**0.5))
    half = kernel_ce(R, HITS, bandwidth=0.4)
    np.testing.assert_allclose(whole.biased, 2 * half.squared, rtol=1e-10)
    np.testing.assert_allclose(whole.unbiased, 2 * half.unbiased, rtol=1e-8)


@pytest.mark.slow
def test_mmce_is_a_penalty_with_finite_gradients():
    same = jnp.full(N, 0.5)

    def penalty(r):
        return kernel_ce(r, HITS, bandwidth=0.4).squared

    slope = jax.grad(penalty)(same)
    assert np.all(np.isfinite(slope))
    step = 1e-6
    bumped = jnp.asarray(R)
    up, down = bumped.at[3].add(step), bumped.at[3].add(-step)
    numeric = (penalty(up) - penalty(down)) / (2 * step)
    np.testing.assert_allclose(jax.grad(penalty)(bumped)[3], numeric, rtol=1e-5)


@given(order=st.permutations(range(N)))
def test_order_does_not_matter(order):
    order = np.array(order)
    np.testing.assert_allclose(
        reliability(R[order], HITS[order]).ece, reliability(R, HITS).ece, atol=1e-12
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_value_on_an_edge_is_in_the_bin_above(dtype):
    for b in range(2, 101):
        v = np.asarray(np.arange(b + 1) / b, dtype)
        edges = binning._all_edges(Bins(b), jnp.asarray(v))[0][0]
        np.testing.assert_array_equal(edges, v)
        np.testing.assert_array_equal(binned._edges(b, 0.0, dtype), v)
    for b in (10, 15):
        v = np.asarray(np.arange(b + 1) / b, dtype)
        count = reliability(v, np.zeros(b + 1, int), bins=b).count
        np.testing.assert_array_equal(count, [1] * (b - 1) + [2])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: canonical_error(P), ValueError, "give either conditional="),
        (lambda: canonical_error(P, LABELS, conditional=Q), ValueError, "give either conditional="),
        (
            lambda: canonical_error(P, conditional=Q[:3]),
            ValueError,
            "conditional: wanted the shape",
        ),
        (lambda: canonical_error(P, LABELS + 1), ValueError, "start at 0"),
        (lambda: canonical_error(3 * P, LABELS), ValueError, "does not sum to 1"),
        (lambda: canonical_error(P, LABELS, bins=0), ValueError, "bins: wanted a whole number"),
        (lambda: canonical_error(P[:, 0], LABELS), ValueError, "targets: wanted classes 0, .., 1"),
        (lambda: lp_ball_error(P, Q, 0.5), ValueError, "p: wanted a number of at least 1"),
        (lambda: lp_ball_error(P, Q[:2], 2.0), ValueError, "conditional: wanted the shape"),
        (lambda: reliability(P, LABELS), ValueError, "see jaxcal.measures.confidences"),
        (lambda: reliability(2 * R, HITS), ValueError, r"probabilities in \[0, 1\]"),
        (lambda: reliability(np.full(3, np.nan), [0, 1, 1]), ValueError, "entry 0 is nan"),
        (lambda: reliability(R, LABELS), ValueError, "correct: wanted classes 0, .., 1"),
        (lambda: reliability(R, R), TypeError, "correct: wanted integer classes"),
        (lambda: reliability(R, HITS, bins=2.0), ValueError, "bins: wanted a whole number"),
        (lambda: reliability(R, HITS[:4]), ValueError, "correct: wanted one class per observation"),
    ],
)
def test_wrong_input_is_named(as_users_run_it, call, error, message):
    with pytest.raises(error, match=message):
        call()
