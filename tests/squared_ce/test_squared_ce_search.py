"""Grids go on past their ends: the choice is that of a grid that was wide from the start."""

from functools import partial

import equinox as eqx
import jax
import numpy as np
import pytest
from quick import quick_first
from reference.classifiers import squared_confidence
from reference.parametric import Parametric

from jaxcal import squared_ce
from jaxcal.kernels import Gaussian
from jaxcal.squared_ce import Bins, KernelDensity, KernelRidge
from jaxcal.squared_ce.tuning import MOST, Range, beyond

Kronecker = partial(KernelRidge, kronecker=True)

KEY = jax.random.key(2)
SIZES = (12, 100, 300)
WIDE = tuple(10.0**e for e in range(8, -14, -1))  # ends where the search does, or past it
COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 14, 17, 21, 26, 32, 40, 50, 62, 77, 96, 120, 150)


def calibrated(n):
    with jax.enable_x64(True):
        c = jax.random.uniform(jax.random.key(n), (n,))
        return squared_ce.binary(c, jax.random.bernoulli(jax.random.key(n + 1), c))


def wrong(n):
    with jax.enable_x64(True):
        return squared_confidence(jax.random.key(n), n)


def tuned(problem, estimator, **options):
    report = squared_ce.problem_error(KEY, problem, estimators=[estimator], folds=2, **options)
    return report.best


def risks(tuned):
    return tuned.risks[0].mean(axis=0)


@pytest.mark.parametrize("n", quick_first(SIZES, [12]))
@pytest.mark.parametrize("problem", [calibrated, wrong])
@pytest.mark.parametrize("ends", [(1e-3, 1e-2), (1e2, 1e3), (1e-9, 1e-8)])
def test_ridges_end_where_a_wide_grid_does(n, problem, ends):
    data = problem(n)
    for kind, power in ((KernelRidge, 0.75), (Kronecker, 1.5)):
        got = tuned(data, kind(ends, power=power))
        wide = tuned(data, kind(WIDE, power=power))
        bounds = kind().ranges(data)["ridge"]
        inside = [bounds.smallest < m < bounds.largest for m in WIDE]
        # from one end the search stops at the first valley; past it lies nothing that it tried
        tried = np.array([setting["ridge"] for setting in got.grid])
        chosen = got.settings[0]["ridge"]
        assert got.edges == [[]]
        assert np.all(risks(got)[got.chosen[0]] <= risks(got) * (1 + 2e-9))
        shared = [i for i, m in enumerate(WIDE) if inside[i] and (abs(tried / m - 1) < 1e-6).any()]
        same = [int(np.argmin(abs(tried / WIDE[i] - 1))) for i in shared]
        np.testing.assert_allclose(risks(got)[same], risks(wide)[shared], rtol=1e-6)
        best = min(shared, key=lambda i: risks(wide)[i])
        assert risks(got)[got.chosen[0]] <= risks(wide)[best] * (1 + 1e-7)
        if not got.limits[0]:  # neighbours on both sides were tried, and are no better
            assert tried.min() < chosen < tried.max()


@pytest.mark.parametrize("n", quick_first(SIZES, [12]))
def test_bins_and_bandwidths_end_where_a_wide_grid_does(n):
    for data in (calibrated(n), wrong(n)):
        narrow, wide = tuned(data, Bins((40, 50))), tuned(data, Bins(COUNTS))
        assert narrow.edges == [[]]
        counts = {setting["bins"] for setting in narrow.grid}
        among = [i for i, count in enumerate(COUNTS) if count in counts]
        assert risks(narrow).min() <= risks(wide)[among].min() * (1 + 1e-9)
        for bandwidths in ((1e-4, 1e-3), (10.0, 20.0)):
            kde = tuned(data, KernelDensity(bandwidths))
            assert kde.edges == [[]]
            assert risks(kde)[kde.chosen[0]] <= risks(kde).min() * (1 + 2e-9)


def test_the_limits_are_what_they_say():
    """On data where h = 0 is best for both ridges: the error at the limit is none."""
    got = [tuned(calibrated(300), kind()) for kind in (KernelRidge, Kronecker)]
    at_zero = [one for one in got if one.limits == [{"ridge": "h is 0"}]]
    assert at_zero
    assert all(one.error < 1e-4 for one in at_zero)
    one_bin = tuned(calibrated(300), Bins((2, 3)))
    counts = {setting["bins"] for setting in one_bin.grid}
    assert (one_bin.limits == [{"bins": "one bin"}]) == (one_bin.settings[0]["bins"] == 1)
    assert counts <= set(range(1, 301))


def test_extended_candidates_need_no_other_factorisation(monkeypatch):
    from jaxcal.squared_ce import kernel_ridge

    calls = []
    spectral = kernel_ridge.spectral
    monkeypatch.setattr(kernel_ridge, "spectral", lambda *args: calls.append(1) or spectral(*args))
    report = squared_ce.problem_error(
        KEY,
        calibrated(100),
        estimators=[KernelRidge((1e-3, 1e-2), power=0.75), Kronecker()],
        folds=2,
    )
    assert len(report.estimators["ukkr"].grid) > 2
    assert len(calls) == 2  # one a fold


@pytest.mark.parametrize(("kind", "power"), [(KernelRidge, 0.75), (Kronecker, 1.5)])
@pytest.mark.parametrize("scales", [(0.3, 1.0), (1.0, 0.3), (0.1, 0.3, 1.0)])
def test_one_of_several_kernels_is_at_no_end(kind, power, scales):
    """The choice is the best over the kernels, each with a ridge that has neighbours."""
    data = wrong(100)
    several = kind((1e-9, 1e-8), [Gaussian(s) for s in scales], power=power)
    report = squared_ce.problem_error(KEY, data, estimators=[several], folds=2)
    got = report.best
    assert got.edges == [[]]
    assert "[edge-of-grid]" not in " ".join(report.warnings())
    assert len(got.grid) > 2 * len(scales)
    assert not got.limits[0]
    for k, scale in enumerate(scales):
        ridges = sorted(s["ridge"] for s in got.grid if s["kernel"] == str(k))
        alone = tuned(data, kind(ridges, Gaussian(scale), power=power), extend=False)
        mine = [i for i, setting in enumerate(got.grid) if setting["kernel"] == str(k)]
        np.testing.assert_allclose(sorted(risks(got)[mine]), sorted(risks(alone)), rtol=1e-6)
        assert risks(got)[got.chosen[0]] <= risks(alone).min() * (1 + 1e-7)
    chosen = got.settings[0]["ridge"]
    assert min(s["ridge"] for s in got.grid) < chosen < max(s["ridge"] for s in got.grid)


def test_a_grid_of_kernels_of_different_size_goes_on_for_each_of_them():
    data = calibrated(100)
    sizes = [Gaussian(1.0), 1e-9 * Gaussian(1.0)]
    both, small = (KernelRidge((1e-3, 1e-2), k, power=0.75) for k in (sizes, sizes[1]))
    ends, alone = (each.ranges(data)["ridge"] for each in (both, small))
    assert ends.smallest == alone.smallest < 1e-6 * ends.largest
    assert ends.largest == KernelRidge(kernels=sizes[0]).ranges(data)["ridge"].largest


def test_starts_of_a_descent_are_at_no_end():
    starts = Parametric(divided, np.array([1.0, 2.0]), descend=True)
    report = squared_ce.problem_error(KEY, wrong(100), estimators=[starts], folds=2)
    assert report.best.edges == [[]]
    assert "start 1" in repr(report) or "start 2" in repr(report)


def test_single_candidates_and_switched_off_searches_stay():
    data = calibrated(100)
    for estimator in (Bins(15), KernelDensity(0.1), KernelRidge((1e-3,), power=0.75)):
        one = tuned(data, estimator)
        assert len(one.grid) == 1
        assert one.edges == [[]]
    narrow = KernelRidge((1e-9, 1e-8), power=0.75)
    off = tuned(data, narrow, extend=False)
    assert (len(off.grid), off.edges) == (2, [["ridge"]])
    assert "(edge: ridge)" in repr(
        squared_ce.problem_error(KEY, data, estimators=[narrow], folds=2, extend=False)
    )


class Plain(eqx.Module):
    """A user's estimator: bins without the two methods of a grid that can go on."""

    bins: Bins

    @property
    def name(self):
        return "plain"

    def grid(self, problem):
        return self.bins.grid(problem)

    def fit(self, train, shared):
        return self.bins.fit(train, shared)


def divided(theta, inputs):
    return inputs / theta


class Slow(eqx.Module):
    """One that can go on, in steps that are too small."""

    thetas: tuple[float, ...] = (1.0, 1.01)

    @property
    def name(self):
        return "slow"

    def grid(self, problem):
        return [{"theta": theta} for theta in self.thetas]

    def fit(self, train, shared):
        return Parametric(divided, np.array(self.thetas)).fit(train, shared)

    def ranges(self, problem):
        return {"theta": Range(1e-3, 1e3, "large", "small")}

    def with_values(self, name, values):
        return Slow(values)


def test_estimators_of_users_keep_their_grid_or_extend_it():
    data = calibrated(100)
    kept = squared_ce.problem_error(KEY, data, estimators=[Plain(Bins((40, 50)))], folds=2)
    assert (len(kept.best.grid), kept.best.edges) == (2, [["bins"]])
    assert "[edge-of-grid]" in " ".join(kept.warnings())
    slow = squared_ce.problem_error(KEY, data, estimators=[Slow()], folds=2)
    assert (len(slow.best.grid), slow.best.edges) == (2 + MOST, [["theta"]])
    assert np.all(np.diff(risks(slow.best)) < 0)
    assert "[edge-of-grid]" in " ".join(slow.warnings())


def test_values_past_an_end():
    free = Range(1e-3, 1e3, "low", "high")
    assert beyond(10.0, 10.0, 4, free) == pytest.approx((100, 1000, 1000, 1000))
    assert beyond(0.1, 10.0, 3, free, up=False) == pytest.approx((1e-2, 1e-3, 1e-3))
    assert beyond(1e3, 10.0, 3, free) == () == beyond(1e-4, 10.0, 3, free, up=False)
    whole = Range(1, 9, "one", "nine", whole=True)
    assert beyond(5.0, 1.1, 6, whole) == (6, 7, 7, 8, 9, 9)
    assert beyond(5.0, 1.185, 6, whole, up=False) == (4, 3, 3, 2, 2, 1)


def test_classes_have_one_grid_and_no_number_where_a_candidate_was_not_tried():
    logits = jax.random.normal(jax.random.key(3), (100, 3))
    labels = jax.random.categorical(jax.random.key(4), logits)
    p = jax.nn.softmax(logits * np.array([[1.0, 1.0, 3.0]]))
    report = squared_ce.calibration_error(
        KEY, p, labels, notion="class-wise", estimators=[KernelDensity((1e-3, 1e-2))], folds=2
    )
    got = report.best
    assert got.risks.shape == (3, 2, len(got.grid))
    assert got.edges == [[], [], []]
    assert len({setting["bandwidth"] for setting in got.grid}) == len(got.grid)
    for k, problem in enumerate(got.risks):
        tried = np.isfinite(problem).all(axis=0)
        assert tried[:2].all()
        assert np.nanmin(problem.mean(axis=0)) == pytest.approx(
            problem[:, got.chosen[k]].mean(), rel=2e-9
        )
    assert np.isfinite(got.risk)
    assert got.grid[:2] == [{"bandwidth": 1e-3}, {"bandwidth": 1e-2}]


def test_several_kernels_share_their_ridges_and_are_an_end_still():
    kernels = (Gaussian(0.3), Gaussian(1.0))
    got = tuned(calibrated(100), KernelRidge((1e-3, 1e-2), kernels, power=0.75))
    assert "ridge" not in got.edges[0]
    assert len(got.grid) % 2 == 0
