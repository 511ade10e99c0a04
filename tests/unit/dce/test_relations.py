"""The paper's inequalities, fixed references and closed forms."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from distance_laws import LAWS, measures
from reference import constructions, distances, sketches
from reference.lower_distance import lower_distance
from reference.partitions import interval_ce_of_largest_width

from jaxcal import dce

SLACK = 1e-7
random_interval_ce = jax.jit(
    lambda v, y, w, width: sketches.random_interval_ce(v, y, weights=w, width=width)
)
A = (np.array([0.1, 0.35, 0.6, 0.9]), np.array([0.3, 0.2, 0.7, 0.6]), np.array([2, 3, 3, 2]) / 10)
B = (np.array([5, 20, 30, 55, 80, 95]) / 100, np.array([0, 1, 0, 1, 1, 0.0]), np.full(6, 1 / 6))
REFERENCES = {
    "ece": (0.175, 0.458333333),
    "lower": (0.0469386, 0.1102745),
    "upper": (0.127, 0.163888889),
    "smooth": (0.05375, 0.10375),
    "kernel": (0.054461298, 0.131134366),
    "interval": (0.175, 0.375),
    "surrogate": (0.175, 0.458333333),
}


@pytest.mark.slow
@pytest.mark.parametrize("which", [0, 1])
def test_references(which):
    law = (A, B)[which]
    result = measures(*law)
    for name, values in REFERENCES.items():
        assert result[name] == pytest.approx(values[which], abs=6e-8), name
    widest = interval_ce_of_largest_width(*law[:2], weights=law[2])
    assert widest == pytest.approx((0.175, 0.441666667)[which], abs=1e-9)
    random = [float(random_interval_ce(*law, 2.0**-k)) for k in range(4)]
    wanted = ((0.07, 0.081, 0.175, 0.175), (0.1825, 0.27, 0.365, 0.4383333))[which]
    np.testing.assert_allclose(random, wanted, atol=5e-8)


def test_gaussian_kernel_reference():
    from jaxcal.kernels import Gaussian

    square, _ = distances.kernel_ce_of_pairs(A[0], A[1], Gaussian(0.5**0.5), weights=A[2])
    assert float(square) ** 0.5 == pytest.approx(0.047382418, abs=1e-9)


@pytest.mark.slow
def test_every_inequality_between_measures(measured):
    """R2 to R5, R10 to R13, R20."""
    for m in measured:
        d, root = m["lower"], max(m["lower"], 0) ** 0.5
        for small, large in [
            (d / 2, m["smooth"]),
            (m["smooth"], 2 * d),
            (d, m["upper"]),
            (m["upper"], m["interval"]),
            (m["interval"], d + 2 * 2**0.5 * root),
            (m["interval"], m["surrogate"]),
            (m["surrogate"], d + 5 / 2**0.5 * root),
            (m["surrogate"], m["ece"]),
            (m["interval"], m["ece"]),
            (m["smooth"], 2**0.5 * m["kernel"]),
            (m["kernel"], root),
            (m["kernel"], d + (d / 2) ** 0.5),
            (m["mean"], m["smooth"]),
            (m["mean"], d),
            (m["kernel"], m["ece"]),
            (m["smooth"], m["ece"]),
        ]:
            assert small <= large + 2 * SLACK, m


def test_random_intervals_lie_between_the_mean_and_ece(measured):
    """R7 to R10: and the average over shifts falls when the width doubles."""
    for (v, y, w), m in zip(LAWS, measured, strict=True):
        values = [float(random_interval_ce(v, y, w, e)) for e in (0.07, 0.14, 0.28, 1.4)]
        assert np.all(np.diff(values[:3]) <= SLACK)
        for width, value in zip((0.07, 0.14, 0.28, 1.4), values, strict=True):
            assert m["mean"] - SLACK <= value <= m["ece"] + SLACK
            assert m["interval"] <= value + width + SLACK
            assert value <= (1 + 2 / width) * m["lower"] + 1e-5
        assert float(random_interval_ce(v, y, w, 1e-9)) == pytest.approx(m["ece"], abs=1e-6)
        assert float(random_interval_ce(v, y, w, 1e7)) == pytest.approx(m["mean"], abs=1e-6)


def test_a_calibrated_law_has_no_error():
    for v, _, w in LAWS[:8]:
        values = measures(v, v, w)
        assert all(value == pytest.approx(0, abs=2e-8) for value in values.values()), values
        surrogate = dce.surrogate_interval_ce(v, v, weights=w, accuracy=0.01)
        assert float(surrogate.value) == pytest.approx(2.0**-8)
        assert int(surrogate.k) == 8


def test_moving_predictions_moves_continuous_measures_little(measured):
    """R14 to R16 and R24."""
    rng = np.random.default_rng(0)
    for (v, y, w), m in zip(LAWS[:12], measured, strict=False):
        u = np.clip(v + rng.uniform(-0.02, 0.02, 6), 0, 1)
        moved = np.sum(w * np.abs(u - v))
        new = measures(u, y, w)
        assert abs(new["smooth"] - m["smooth"]) <= 2 * moved + SLACK
        assert abs(new["lower"] - m["lower"]) <= moved + SLACK
        assert abs(new["kernel"] - m["kernel"]) <= (2 * moved) ** 0.5 + SLACK
        for width in (0.1, 0.5):
            a, b = (float(random_interval_ce(x, y, w, width)) for x in (u, v))
            assert abs(a - b) <= (1 + 2 / width) * moved + SLACK


@pytest.mark.parametrize(
    "example",
    [
        constructions.quadratic_barrier(0.1),
        constructions.quadratic_barrier(0.3),
        constructions.quadratic_barrier(0.1, second=True),
        constructions.quadratic_barrier(0.5),
        constructions.two_points(0.1),
        constructions.two_points(0.01),
        constructions.intervals_apart(0.1),
        constructions.jumping_intervals(0.0),
        constructions.jumping_intervals(0.01),
        constructions.smooth_above(0.1, 0.1),
        constructions.constant(0.3, 0.75),
    ],
)
def test_constructions_have_their_known_values(example):
    domain, values = example
    result = measures(*(np.asarray(a) for a in domain.distribution()))
    result["laplace"] = result["kernel"]
    result["true"] = distances.true_distance(domain).value
    for name, value in values.items():
        assert result[name] == pytest.approx(value, abs=3e-8), name


def test_zero_predictions_of_ones_are_at_distance_one():
    values = measures(np.zeros(6), np.ones(6), np.full(6, 1 / 6))
    assert all(value == pytest.approx(1, abs=1e-8) for value in values.values()), values


@pytest.mark.parametrize(
    ("beta", "ece", "smooth", "kernel"),
    [
        (0.05, 0.23270, 0.005726, 0.029308),
        (0.5, 0.09657, 0.018252, 0.031389),
        (2.0, 0.0965736, 0.0353982, 0.043209),
        (10.0, 0.21556, 0.101206, 0.114112),
        (np.inf, 0.25, 0.125, 0.140548),
    ],
)
def test_population_values_of_the_tempered_family(beta, ece, smooth, kernel):
    v, y, w = constructions.tempered_population(beta, points=4000).distribution()
    assert float(dce.unbinned_ece(v, y, weights=w)) == pytest.approx(ece, abs=2e-5)
    assert float(dce.smooth_ce(v, y, weights=w).value) == pytest.approx(smooth, abs=2e-6)
    assert float(dce.kernel_ce(v, y, weights=w).value) == pytest.approx(kernel, abs=2e-6)
    smooth_exactly = abs(np.sum(w * (y - v) * (0.5 - v)))
    assert float(dce.smooth_ce(v, y, weights=w).value) == pytest.approx(smooth_exactly)


@pytest.mark.parametrize(
    ("epsilon", "smooth", "laplace", "gauss"),
    [(0.1, 0.073363, 0.071608, 0.071347), (0.02, 0.0020169, 0.0043639, 4.0244e-4)],
)
def test_a_gaussian_kernel_misses_what_the_laplace_kernel_sees(epsilon, smooth, laplace, gauss):
    from jaxcal.kernels import Gaussian

    v, y, w = constructions.hidden_from_gaussians(epsilon).distribution()
    assert float(dce.smooth_ce(v, y, weights=w).value) == pytest.approx(smooth, rel=2e-4)
    assert float(dce.kernel_ce(v, y, weights=w).value) == pytest.approx(laplace, rel=2e-4)
    square, _ = distances.kernel_ce_of_pairs(v, y, Gaussian(0.5**0.5), weights=w)
    assert float(square) ** 0.5 == pytest.approx(gauss, rel=2e-4)


@pytest.mark.slow
def test_ece_jumps_where_continuous_measures_do_not():
    halves, labels = jnp.full(2, 0.5), jnp.array([0.0, 1.0])
    apart = halves + jnp.array([-1e-6, 1e-6])
    assert float(dce.unbinned_ece(halves, labels)) == 0
    assert float(dce.unbinned_ece(apart, labels)) == pytest.approx(0.5, abs=1e-5)
    assert float(dce.smooth_ce(apart, labels).value) < 1e-6
    assert float(dce.binned_ece(apart, labels, edges=15).value) < 1e-5
    assert float(dce.binned_ece(apart, labels, edges=20).value) > 0.49


@pytest.mark.slow
def test_convex_measures_are_convex_in_the_law(measured):
    rng = np.random.default_rng(1)
    for _ in range(8):
        i, j = rng.integers(0, len(LAWS), 2)
        mixed = [np.concatenate(pair) for pair in zip(LAWS[i], LAWS[j], strict=True)]
        mixed[2] = mixed[2] / 2
        v, y, w = mixed
        by_name = {
            "ece": float(dce.unbinned_ece(v, y, weights=w)),
            "smooth": float(dce.smooth_ce(v, y, weights=w).value),
            "kernel": float(dce.kernel_ce(v, y, weights=w).value),
            "lower": lower_distance(v, y, weights=w, tol=1e-8).value,
        }
        for name, value in by_name.items():
            assert value <= (measured[i][name] + measured[j][name]) / 2 + SLACK
