"""What the paper proves of the measures beside their values: other forms, grids, convexity.

Lines of the paper's inequalities R1 to R24 (by the theorems they come from) and where each is held:

R1 here and test_measures (lifts), R2 to R5 and R11 to R13, R20 test_relations (every inequality),
R6 here, R7 to R10 test_relations (random intervals) and here (only doubling), R14 to R16 and R24
test_relations (moving predictions) and here (surrogate), R17 follows from R2 and R15, R18, R19 and
R22 here, R21 test_measures (denoising, certificate), R23 test_relations (a Gaussian kernel).
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.optimize
from distance_laws import LAWS
from reference import distances, sketches
from reference.lower_distance import chain_program, lower_distance
from reference.partitions import upper_distance

from jaxcal import dce
from jaxcal.dce.intervals import boxcars

SLACK = 1e-7


def masses(law):
    """Different predictions of positive weight with the masses of both labels."""
    v, y, w = law
    places, atom = np.unique(v[w > 0], return_inverse=True)
    return places, *(np.bincount(atom, (w * x)[w > 0], places.size) for x in (1 - y, y))


def restricted(law, u):
    """The lower distance with u in a finite set, by the primal program of eq. 17."""
    v, p0, p1 = masses(law)
    k, m = u.size, v.size
    cost = np.tile(np.abs(u[:, None] - v).ravel(), 2)  # label 0, then label 1; u runs first
    carried = np.kron(np.eye(2), np.kron(np.ones(k), np.eye(m)))
    balanced = np.hstack([np.kron(np.diag(-u), np.ones(m)), np.kron(np.diag(1 - u), np.ones(m))])
    program = scipy.optimize.linprog(
        cost,
        A_eq=np.vstack([carried, balanced]),
        b_eq=np.concatenate([p0, p1, np.zeros(k)]),
        method="highs",
    )
    assert program.status == 0
    return program.fun


def on_chain(law, u):
    v, p0, p1 = masses(law)
    at = np.searchsorted(u, v)
    return chain_program(u, *(np.bincount(at, p, u.size) for p in (p0, p1))).value


@pytest.mark.parametrize("case", range(8))
def test_lower_distances_to_a_finite_set(case, measured):
    """R18, R19; the primal program is the chain where u are the predictions; more u cost less."""
    law, m = LAWS[case], measured[case]
    ends = np.union1d(masses(law)[0], [0.0, 1.0])
    results = restricted(law, ends)
    assert results == pytest.approx(on_chain(law, ends), abs=1e-8)
    finer = restricted(law, np.union1d(ends, np.arange(11) / 10))
    assert m["lower"] - SLACK <= finer <= results + SLACK
    assert results <= 2 * m["smooth"] + SLACK
    for cells in (3, 10):
        result = restricted(law, np.arange(cells + 1) / cells)
        assert m["lower"] - SLACK <= result <= m["lower"] + 1 / cells + SLACK  # cover 1/(2 cells)
        assert 2 * m["smooth"] <= 4 * result + SLACK


def test_the_kernel_error_is_an_average_of_squared_windows(measured):
    """R22, with the integral over Gamma(2, 1) by the midpoint rule; and its bound by RintCE."""
    edges = np.concatenate([np.linspace(0, 1, 4001), np.linspace(1, 40, 4001)[1:]])
    delta, chance = (edges[1:] + edges[:-1]) / 2, np.diff(np.exp(-edges) * -(1 + edges))
    average = jax.jit(boxcars)
    for law, m in list(zip(LAWS, measured, strict=True))[:6]:
        order = np.argsort(law[0])
        v, rho = law[0][order], (law[2] * (law[1] - law[0]))[order]
        f = np.concatenate([[0], np.cumsum(rho)])
        t = np.sort(np.concatenate([np.tile(v, (delta.size, 1)), v - delta[:, None]], axis=1))
        middle = (t[:, 1:] + t[:, :-1]) / 2
        after = f[np.searchsorted(v, middle + delta[:, None])]
        squares = np.sum((after - f[np.searchsorted(v, middle)]) ** 2 * np.diff(t), axis=1) / delta
        assert squares @ chance == pytest.approx(m["kernel"] ** 2, abs=1e-6)
        assert m["kernel"] ** 2 <= np.asarray(average(v, rho, delta)) @ chance + 1e-6


def test_the_true_distance_lies_between_lower_and_upper():
    """R1, R5: domains whose inputs share predictions, so that f does not tell them apart."""
    rng = np.random.default_rng(0)
    for _ in range(6):
        f = rng.choice(rng.random(3), 6)
        domain = distances.Domain(np.full(6, 1 / 6), f, rng.random(6))
        true = distances.true_distance(domain).value
        low = lower_distance(f, domain.f_star, tol=1e-8).value
        high = upper_distance(f, domain.f_star).value
        assert low - SLACK <= true <= high + SLACK
        assert high**2 / 16 <= true + SLACK
        assert true <= 4 * low**0.5 + SLACK


def test_any_bins_with_their_width_are_an_upper_bound(measured):
    """R6 for bins at random."""
    rng = np.random.default_rng(1)
    run = jax.jit(lambda v, y, w, edges: dce.binned_ece(v, y, weights=w, edges=edges).bound)
    for (v, y, w), m in zip(LAWS, measured, strict=True):
        edges = np.sort(np.concatenate([[0, 1], rng.random(4)]))
        assert m["upper"] <= float(run(v, y, w, edges)) + SLACK


@pytest.mark.slow
def test_random_intervals_fall_by_doubling_alone():
    """R9 and what it does not say: 20 equal atoms with residuals of alternating signs."""
    v = jnp.asarray((np.arange(20) + 0.5) / 20)
    rho = jnp.asarray((-1.0) ** np.arange(20) * 0.01)
    narrow, wider, double = boxcars(v, rho, jnp.array([0.1, 0.15, 0.2]))
    assert double <= narrow < wider


def test_the_surrogate_moves_little_with_the_predictions(measured):
    """R24, at the best width."""
    rng = np.random.default_rng(2)
    run = jax.jit(lambda v, y, w: dce.surrogate_interval_ce(v, y, weights=w, accuracy=None).value)
    scales = 2.0 ** np.arange(12)
    for (v, y, w), m in zip(LAWS[:20], measured, strict=False):
        u = np.clip(v + rng.uniform(-0.01, 0.01, 6), 0, 1)
        bound = np.min((1 + 2 * scales) * np.sum(w * np.abs(u - v)) + 1 / scales)
        assert abs(float(run(u, y, w)) - m["surrogate"]) <= bound + SLACK


def test_random_intervals_are_convex_in_the_law():
    """The other convex measures: test_relations."""
    run = jax.jit(lambda v, y, w: sketches.random_interval_ce(v, y, weights=w, width=0.3))
    for first, second in zip(LAWS[:8], LAWS[8:16], strict=True):
        both = [np.concatenate(pair) for pair in zip(first, second, strict=True)]
        none = np.zeros(6)
        apart = [
            float(run(both[0], both[1], np.concatenate(w)))
            for w in ((first[2], none), (none, second[2]))
        ]
        assert float(run(*both)) <= sum(apart) / 2 + SLACK


NOT_CONVEX = {  # predictions and rates, in tenths: two atoms of each law
    "interval": ((6, 3, 3, 2), (0, 9, 6, 0)),
    "surrogate": ((4.9, 5.1, 1, 9), (0, 10, 1, 9)),
    "upper": ((8, 2, 2, 2), (2, 9, 2, 2)),
}


@pytest.mark.parametrize("name", NOT_CONVEX)
def test_measures_with_bins_are_not_convex_in_the_law(name):
    """Half of two atoms and half of two others have more error than the two have on average."""
    run = {
        "interval": lambda w: dce.interval_ce(v, y, weights=w).value,
        "surrogate": lambda w: dce.surrogate_interval_ce(v, y, weights=w, accuracy=None).value,
        "upper": lambda w: upper_distance(v, y, weights=w).value,
    }[name]
    v, y = (np.array(x) / 10 for x in NOT_CONVEX[name])
    first, second = np.array([1.0, 1, 0, 0]), np.array([0.0, 0, 1, 1])
    apart = (float(run(first)) + float(run(second))) / 2
    assert float(run(first + second)) > apart + 0.01


def test_the_lower_distance_is_0_only_for_calibrated_predictions(measured):
    for m in measured:
        assert (m["lower"] > 1e-6) == (m["ece"] > 1e-6)


@pytest.mark.parametrize(
    ("mass", "f", "truth", "message"),
    [
        ([0.5, 0.6], [0.2, 0.4], [0.1, 0.2], "domain: wanted masses >= 0 of sum 1"),
        ([1.5, -0.5], [0.2, 0.4], [0.1, 0.2], "domain: wanted masses >= 0 of sum 1"),
        ([0.5, np.nan], [0.2, 0.4], [0.1, 0.2], "domain: wanted masses >= 0 of sum 1"),
        ([0.5, 0.5], [0.2, 1.4], [0.1, 0.2], r"domain: wanted f in \[0, 1\]"),
        ([0.5, 0.5], [0.2, 0.4], [0.1, np.nan], r"domain: wanted f_star in \[0, 1\]"),
        ([], [], [], "domain: wanted mass, f and f_star of one shape"),
    ],
)
def test_masses_and_probabilities_of_a_domain_are_checked(mass, f, truth, message):
    domain = distances.Domain(*(np.asarray(x, float) for x in (mass, f, truth)))
    for function in (distances.true_distance, distances.is_calibrated):
        with pytest.raises(ValueError, match=message):
            function(domain)
