"""Algorithm 1: splits, choices, ensembles, flags, intervals, the paired test, and bad input."""

import json
from dataclasses import replace
from functools import partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from reference import finite
from reference.calibration_functions import Mean, diagonal
from reference.classifiers import squared_confidence, temperature_residual, tempered_dirichlet
from reference.from_test_rows import one_step as one_step_of
from reference.from_test_rows import plug_in, quoted
from reference.parametric import FittedZero, Parametric, Zero
from squared_ce_oracles import ATOMS, CONDITIONALS, WEIGHTS, double_loop, problem_error

from jaxcal import squared_ce
from jaxcal.kernels import Gaussian
from jaxcal.plots.comparisons import calibration_errors
from jaxcal.squared_ce import Bins, KernelDensity, KernelRidge
from jaxcal.squared_ce.functions import Factors, at_data, candidate
from jaxcal.squared_ce.leave_one_out import (
    claimed_parts,
    compare_risks,
    one_step,
    one_step_terms,
    root,
)
from jaxcal.squared_ce.reductions import Reduced
from jaxcal.squared_ce.splits import folds, hold_out

Kronecker = partial(KernelRidge, kronecker=True)

ESTIMATORS = [
    Bins((1, 5, 15)),
    KernelDensity((0.05, 0.2)),
    Kronecker((1e-3, 1e-2), power=1.5),
    KernelRidge((1e-3, 1e-2), power=0.75),
]
N = 100


@pytest.fixture(scope="module")
def problem():
    return squared_confidence(jax.random.key(1), N)


@pytest.fixture(scope="module")
def report(problem):
    return problem_error(jax.random.key(2), problem, estimators=ESTIMATORS, keep=True)


@pytest.mark.slow
def test_the_pipeline_is_algorithm_1_by_hand(problem, report):
    tuning, tested = hold_out(jax.random.key(2), 0.2, problem.inputs, problem.outcomes)
    assert (len(tuning), len(tested)) == (80, 20)
    opt, final = problem.take(tuning), problem.take(tested)
    pairs = folds(5, np.asarray(opt.inputs), np.zeros(80))
    for estimator in ESTIMATORS[:2]:
        risks, functions = [], []
        tuned = report.estimators[estimator.name]
        for train, valid in pairs:
            fitted = estimator.fit(opt.take(train), [])
            part = opt.take(valid)
            each = [candidate(fitted, i) for i in range(len(estimator.grid(opt)))]
            grams = [np.asarray(h.factors(part.inputs).left) for h in each]
            risks.append([double_loop(np.asarray(part.residuals), g @ g.T) for g in grams])
            functions.append(each)
        np.testing.assert_allclose(tuned.risks[0], risks, rtol=1e-9)
        best = int(np.argmin(np.mean(risks, axis=0)))
        assert tuned.chosen[0] == best
        ensemble = Mean([each[best] for each in functions])
        values = diagonal(ensemble, final.inputs)
        np.testing.assert_allclose(tuned.contributions, values, rtol=1e-9)
        assert tuned.squared == pytest.approx(float(jnp.mean(values)))
        assert tuned.error == pytest.approx(float(jnp.mean(values)) ** 0.5)
        kept = diagonal(Mean(tuned.functions[0]), final.inputs)
        np.testing.assert_allclose(kept, values, rtol=1e-9)
        residual = np.mean([each[best].factors(final.inputs).left for each in functions], axis=0)
        terms = 2 * np.asarray(final.residuals) * residual - residual**2
        np.testing.assert_allclose(tuned.terms, terms[:, 0], rtol=1e-9, atol=1e-12)
        gram = (
            np.asarray(ensemble.factors(final.inputs).left)
            @ np.asarray(ensemble.factors(final.inputs).right).T
        )
        assert tuned.test_rows.mean() == pytest.approx(
            double_loop(np.asarray(final.residuals), gram)
        )
        rmse = 100 * np.sqrt(np.array(risks)[:, best])
        assert tuned.rmse == pytest.approx((rmse.mean(), rmse.std(ddof=1) / 5**0.5))
    selected = min(report.estimators.values(), key=lambda each: each.risk)
    assert report.best.name == selected.name
    assert report.best.squared == selected.squared


@pytest.mark.slow
def test_the_choice_does_not_see_the_test_rows(problem, report):
    _, tested = hold_out(jax.random.key(2), 0.2, problem.inputs, problem.outcomes)
    spoiled = problem.outcomes.at[tested].set(1 - problem.outcomes[tested])
    other = eqx.tree_at(lambda p: p.outcomes, problem, spoiled)
    again = problem_error(jax.random.key(2), other, estimators=ESTIMATORS)
    assert again.selected == report.selected
    for name, tuned in again.estimators.items():
        np.testing.assert_array_equal(tuned.risks, report.estimators[name].risks)
        assert tuned.squared == report.estimators[name].squared


@pytest.mark.slow
def test_a_report_reads_well_and_becomes_json(report):
    text = repr(report)
    assert f"error {report.error:.4f}, every one of 100 rows tested by a fit to the others" in text
    assert "interval {:.4f} to {:.4f}\n".format(*map(float, report.interval[:2])) in text
    assert "estimators, tuned on 80 rows in 5 folds, estimated on the other 20" in text
    for name in (
        "bins",
        "kernel density (kde)",
        "matrix kernel ridge (kkr)",
        "kernel ridge (ukkr)",
    ):
        assert f"\n  {name} " in text
    fields = json.loads(json.dumps(report.to_dict()))
    assert fields["selected"] == report.selected
    assert fields["every_row"]["error"] == report.error == report.every_row.error
    assert len(report.table()) == 4
    risks = [report.estimators[line["estimator"]].risk for line in report.table()]
    assert risks == sorted(risks)
    with pytest.raises(ValueError, match="second: wanted one of bins, kde"):
        report.compare("bins", "dke")
    same = report.compare("bins", "bins")
    assert (float(same.difference), float(same.p_value)) == (0, 0.5)
    one, other = report.compare("kde", "bins"), report.compare("bins", "kde")
    assert float(one.p_value) + float(other.p_value) == pytest.approx(1)


@pytest.mark.slow
def test_edges_negative_means_and_low_ranks_are_flagged(problem):
    chosen = [
        Bins((90, 95), debiased=True),
        Bins(15),
        KernelRidge((1e-3,), kernels=Gaussian(0.01), rank=3, power=0.75),
    ]
    result = problem_error(jax.random.key(2), problem, estimators=chosen, folds=1)
    text = "\n".join(result.warnings())
    assert "debiased bins: the chosen hyperparameter is at an end of what was tried" in text
    assert "\n15 bins" not in text  # one candidate has no edges
    assert "the low rank leaves out" in text
    assert result.n_folds == 1
    tuned = result.estimators["debiased bins"]
    if tuned.squared < 0:
        assert tuned.error == 0
        assert "is negative" in text
    assert result.estimators["15 bins"].interval.low >= 0


class Broken(eqx.Module):
    """The residual 0, but not a number where the confidence is above a half."""

    @property
    def name(self):
        return "broken"

    def grid(self, problem):
        return [{}]

    def fit(self, train, shared):
        return FittedBroken(jnp.zeros(1))


class FittedBroken(eqx.Module):
    settings: jax.Array

    @property
    def is_product(self):
        return True

    def features(self, inputs):
        return inputs

    def factors(self, features, setting):
        values = jnp.where(features > 0.5, jnp.nan, setting * features)
        return Factors(values, values)


@pytest.mark.slow
def test_nan_is_counted_and_risks_are_compared_on_common_rows(problem):
    result = problem_error(jax.random.key(2), problem, estimators=[Broken(), Bins(5), Zero()])
    broken, zero = result.estimators["broken"], result.estimators["zero"]
    tuning, tested = hold_out(jax.random.key(2), 0.2, problem.inputs, problem.outcomes)
    high = np.asarray(problem.inputs[:, 0]) > 0.5
    assert broken.nonfinite_validation == high[tuning].sum()
    assert broken.nonfinite_test == high[tested].sum()
    assert zero.nonfinite_validation == 0
    # the same function on the same rows: the same risk
    np.testing.assert_allclose(broken.fold_risks, zero.fold_risks, rtol=1e-12)
    part = problem.take(tuning[:16])
    low = ~high[tuning[:16]]
    residuals = np.asarray(part.residuals)[low]
    wanted = double_loop(residuals, np.zeros((low.sum(), low.sum())))
    assert zero.fold_risks[0] == pytest.approx(wanted, rel=1e-12)
    assert np.isfinite(broken.squared)
    assert any("h is not finite" in text for text in result.warnings())
    assert np.isnan(zero.test_rows[high[tested]]).all()


@pytest.mark.slow
def test_class_wise_adds_up_the_problems_of_the_classes():
    law = finite.FiniteDistribution(*(jnp.asarray(a) for a in (ATOMS, WEIGHTS, CONDITIONALS)))
    p, y = (np.asarray(a) for a in law.sample(jax.random.key(3), 400))
    key, test, third = jax.random.key(4), np.arange(0, 400, 4), np.arange(300) % 3
    folds = [tuple(np.flatnonzero(part) for part in (third != k, third == k)) for k in range(3)]
    options = {"estimators": [Bins((1, 10))], "test": test, "folds": folds}
    result = squared_ce.calibration_error(key, p, y, notion="class-wise", **options)
    parts = [
        squared_ce.calibration_error(key, p[:, k], y == k, notion="binary", **options)
        for k in range(3)
    ]
    assert result.best.squared == pytest.approx(sum(part.best.squared for part in parts))
    assert result.best.risk == pytest.approx(sum(part.best.risk for part in parts))
    assert result.brier == pytest.approx(sum(part.brier for part in parts))
    assert len(result.best.chosen) == 3
    assert abs(result.best.squared - 0.048) < 0.05


@pytest.mark.slow
def test_the_simulation_of_the_paper_gives_its_known_estimates():
    # bands: the specification's mean over seeds, plus and minus four of its standard deviations
    with jax.enable_x64(True):
        sample = tempered_dirichlet(jax.random.key(5), 500)
    p, y = np.asarray(sample.probabilities), np.asarray(sample.labels)
    result = squared_ce.calibration_error(
        jax.random.key(6), p, y, notion="canonical", estimators="paper"
    )
    assert result.interval.low < 0.2516 < result.interval.high  # from every row
    for name, (mean, sd) in {
        "kde": (0.209, 0.012),
        "ukkr": (0.222, 0.036),
        "kkr": (0.181, 0.051),
    }.items():
        assert abs(result.estimators[name].error - mean) < 4 * sd
    assert result.best.name == "kde"
    assert result.best.settings[0]["bandwidth"] == pytest.approx(0.2)
    assert 8 < result.best.rmse[0] < 11


@pytest.mark.slow
def test_closed_form_confidences_give_known_estimates():
    # bands as above; the truth is 0.1826
    with jax.enable_x64(True):
        problem = squared_confidence(jax.random.key(13), 500)
    result = problem_error(jax.random.key(14), problem, estimators="paper")
    for name, (mean, sd) in {
        "bins": (0.193, 0.022),
        "kde": (0.181, 0.019),
        "ukkr": (0.187, 0.018),
        "kkr": (0.180, 0.018),
    }.items():
        assert abs(result.estimators[name].error - mean) < 4 * sd
    # tuning cannot lose to the fixed choice where its grid holds it
    assert result.estimators["bins"].risk <= result.estimators["15 bins"].risk


def mean_square(h, problem):
    left, right = h.factors(problem.inputs)
    return jnp.mean(jnp.sum(left * right, axis=1))


@partial(jax.jit, static_argnums=1)
def squares_of_calibrated(keys, n):
    """Tuned on three quarters of n calibrated confidences and taken at the rest: [sets, 2]."""
    chosen = [Bins((1, 5, 15)), KernelRidge((1e-2, 1.0), rank=12, power=0.75)]

    def one(key):
        c_key, z_key = jax.random.split(key)
        c = jax.random.uniform(c_key, (n, 1))
        z = (jax.random.uniform(z_key, (n, 1)) < c).astype(c.dtype)
        problem = Reduced(c, z, "binary")
        parts = np.split(np.arange(n), [n // 2, 3 * n // 4])
        train, valid, final = (problem.take(part) for part in parts)
        fits = [each.fit(train, []) for each in chosen]
        best = [jnp.argmin(jnp.mean(at_data(fit, valid).rows, axis=1)) for fit in fits]
        squares = [
            jnp.stack([mean_square(candidate(fit, k), final) for k in range(len(each.grid(train)))])
            for fit, each in zip(fits, chosen, strict=True)
        ]
        return jnp.stack([square[i] for square, i in zip(squares, best, strict=True)])

    return jax.vmap(one)(keys)


@pytest.mark.slow
def test_the_error_of_calibrated_confidences_shrinks():
    keys = jax.random.split(jax.random.key(15), 32)
    few, many = (np.mean(squares_of_calibrated(keys, n), axis=0) for n in (80, 1280))
    assert np.all(many < few / 3)
    assert np.all(many < 0.002)


@pytest.mark.slow
def test_single_precision_data_is_tuned_in_float64(problem):
    c = np.asarray(problem.inputs[:, 0], np.float32)
    p = np.stack([c, 1 - c], axis=1)
    labels = 1 - np.asarray(problem.outcomes[:, 0]).astype(int)
    result = squared_ce.calibration_error(
        jax.random.key(2), p, labels, notion="canonical", estimators=[Zero()]
    )
    assert result.best.risks.dtype == np.float64


# --- splits


class Splitter:
    """As scikit-learn's: an object with split(X, y)."""

    def split(self, x, y, groups=None):
        assert len(x) == len(y) == 80
        rows = np.arange(80)
        yield rows[rows % 2 == 0], rows[rows % 2 == 1]
        yield rows[rows % 2 == 1], rows[rows % 2 == 0]


@pytest.mark.slow
def test_splitters_and_pairs_of_rows_are_taken_as_they_are(problem):
    rows = np.arange(80)
    pairs = [(rows[::2], rows[1::2]), (rows[1::2], rows[::2])]
    one, other = (
        problem_error(jax.random.key(2), problem, estimators=[Bins(5)], folds=how)
        for how in (Splitter(), pairs)
    )
    np.testing.assert_array_equal(one.best.risks, other.best.risks)
    fixed = problem_error(jax.random.key(2), problem, estimators=[Bins(5)], test=np.arange(20))
    assert (fixed.n_tuning, fixed.n_test) == (80, 20)


@pytest.mark.parametrize("test", [np.arange(20) * 5, 0.2])
def test_folds_of_rows_number_them_in_the_order_of_the_data(problem, test):
    key, halves = jax.random.key(2), (np.arange(40), np.arange(40, 80))
    tuning = np.sort(hold_out(key, test, problem.inputs, problem.outcomes)[0])
    result = problem_error(key, problem, estimators=[Zero()], test=test, folds=[halves])
    residuals = np.asarray(problem.residuals)[tuning[halves[1]]]
    wanted = double_loop(residuals, np.zeros((40, 40)))
    assert result.best.fold_risks[0] == pytest.approx(wanted, rel=1e-12)


@pytest.mark.parametrize("test", [0.3, np.arange(3, 8), np.arange(50) % 7 == 0])
def test_tuning_and_test_rows_are_all_rows_once(test):
    tuning, tested = hold_out(jax.random.key(0), test, np.arange(50) % 9)
    np.testing.assert_array_equal(np.sort(np.r_[tuning, tested]), np.arange(50))
    if not isinstance(test, float):
        rows = np.flatnonzero(test) if test.dtype == bool else test
        np.testing.assert_array_equal(np.sort(tested), rows)


@pytest.mark.parametrize("n", [200, pytest.param(1000, marks=pytest.mark.slow)])
def test_a_permutation_of_the_pairs_changes_nothing(n):
    """Rows that are equal in part (ties) or altogether (repeated) included."""
    key, order = jax.random.key(5), np.random.default_rng(6).permutation(n)
    p = np.random.default_rng(7).multinomial(50, [0.5, 0.3, 0.2], n) / 50
    y = np.random.default_rng(8).integers(0, 3, n)
    p[51:71], y[51:71] = p[:20], y[:20]
    chosen = {"estimators": [Bins((1, 5, 15))]}

    def numbers(rows):
        one = squared_ce.calibration_error(key, p[rows], y[rows], **chosen)
        mask = (np.arange(n) % 4 == 0)[rows]
        other = squared_ce.calibration_error(key, p[rows], y[rows], test=mask, **chosen)
        compared = one.compare("bins", "bins")
        return np.r_[
            *((each.best.squared, each.brier) for each in (one, other)),
            *(each.best.risk for each in (one, other)),
            float(compared.p_value),
        ], np.r_[one.interval[:2], other.interval[:2]]

    (reordered, reordered_ends), (plain, ends) = numbers(order), numbers(np.arange(n))
    np.testing.assert_allclose(reordered, plain, rtol=1e-12, atol=1e-15)
    # ends of intervals solve for a quantile of sums of squares and cubes, which magnifies rounding
    np.testing.assert_allclose(reordered_ends, ends, rtol=1e-10)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"folds": 60}, ValueError, "60 folds of at least 2 validation rows need 120 rows"),
        ({"folds": 0}, ValueError, "folds: wanted a whole number of at least 1"),
        ({"folds": "five"}, TypeError, "folds: wanted a number, an object with split"),
        ({"folds": True}, TypeError, "folds: wanted a number"),
        ({"folds": []}, ValueError, "the splitter gave none"),
        ({"folds": [np.arange(5)]}, ValueError, r"folds: number 0: wanted \(training rows"),
        ({"folds": [([0, 1, 2], [2, 3])]}, ValueError, "1 rows are both for training and"),
        ({"folds": [([0, 1], [3, 90])]}, ValueError, "folds: number 0: rows go from 0 to 79"),
        (
            {"folds": [([0, 1], [3])]},
            ValueError,
            "folds: number 0: both parts need at least 2",
        ),
        ({"folds": [([0, 0, 1], [3, 4])]}, ValueError, "a row is listed more than once"),
        ({"test": 1.5}, ValueError, "test: wanted a share between 0 and 1"),
        ({"test": np.ones(3)}, ValueError, "test: wanted row numbers, or a mask of length 100"),
        ({"level": 95.0}, ValueError, "level: wanted a probability of rejecting"),
        ({"estimators": "all"}, TypeError, 'estimators: wanted "paper" or a list'),
        ({"estimators": [Bins]}, (TypeError, AttributeError), "estimators|property"),
        ({"estimators": [Bins((5, 6)), Bins((7, 8))]}, ValueError, "two are called 'bins'"),
    ],
)
def test_bad_options_are_named(problem, options, error, message):
    with pytest.raises(error, match=message):
        problem_error(jax.random.key(2), problem, **options)


def test_by_default_no_estimator_is_tuned(problem, report):
    alone = problem_error(jax.random.key(2), problem)
    assert alone.estimators == {}
    assert (alone.error, alone.interval) == (report.error, report.interval)
    assert str(alone).splitlines() == str(report).splitlines()[:4]
    for act in (lambda: alone.best, lambda: calibration_errors(alone)):
        with pytest.raises(ValueError, match="tuned"):
            act()
    assert alone.to_dict()["estimators"] == {}


@pytest.mark.slow
def test_bad_data_is_named_or_flagged(problem):
    p, y = np.array([[0.7, 0.3, 0.0]] * 40), np.array([0] * 38 + [1] * 2)
    key = jax.random.key(1)
    call = squared_ce.calibration_error
    with pytest.raises(ValueError, match="targets: wanted classes 0"):
        call(key, p, y + 2)
    with pytest.raises(ValueError, match="both parts need at least 2 rows"):
        call(key, p[:3], y[:3])
    broken = eqx.tree_at(lambda q: q.inputs, problem, problem.inputs.at[0].set(jnp.nan))
    with pytest.raises(ValueError, match=r"predictions: .*nan"):
        problem_error(key, broken)
    result = call(key, p, y, notion="class-wise", estimators=[Bins(5)])
    text = "\n".join(result.warnings())
    assert "no label belongs to the class 2:" in text
    assert "40 observations have a probability of exactly 0 or 1" in text
    assert "all predictions compared are identical" in text


@pytest.mark.slow
def test_folds_without_a_class_are_named():
    y = np.r_[np.zeros(60, int), np.ones(20, int)]
    p = np.tile([[0.6, 0.4]], (80, 1))
    without, rest = np.arange(58), np.arange(58, 78)
    result = squared_ce.calibration_error(
        jax.random.key(0),
        p,
        y,
        estimators=[Zero()],
        test=np.arange(2),
        folds=[(without, rest), (np.r_[without[:30], rest[:10]], np.r_[without[30:], rest[10:]])],
    )
    assert result.notes["incomplete-folds"].tolist() == [0]
    assert any("fold 0 lack a class" in text for text in result.warnings())


class Constant(eqx.Module):
    """The same residual everywhere, ``value``, as if fitted to nothing."""

    value: float

    @property
    def name(self):
        return f"constant {self.value}"

    def grid(self, problem):
        return [{}]

    def fit(self, train, shared):
        return FittedZero(jnp.full((1, train.inputs.shape[-1]), self.value, train.inputs.dtype))


@pytest.mark.slow
@pytest.mark.parametrize(("notion", "largest"), [("top-label", 1), ("class-wise", 2**0.5)])
def test_an_error_is_never_more_than_possible(notion, largest):
    key = jax.random.key(0)
    p = jax.random.dirichlet(key, jnp.ones(3), (13,))
    result = squared_ce.calibration_error(
        key, p, np.arange(13) % 3, notion=notion, estimators=[Constant(6.3)], folds=2
    )
    tuned = result.best
    assert tuned.error == pytest.approx(largest)
    for end in (*result.interval[:2], *plug_in(tuned)[:2], *tuned.fold_errors):
        assert 0 <= float(end) <= largest + 1e-9
    text = "\n".join(result.warnings())
    assert "more than a squared error can be" in text
    assert "3 observations are too few" in text


def test_intervals_from_the_test_rows_are_those_of_one_step(problem):
    key, kkr = jax.random.key(4), Kronecker((1.0,), power=0.75)
    report = problem_error(key, problem, estimators=[Zero(), Bins(8), kkr], folds=2)
    for name, tuned in report.estimators.items():
        if tuned.one_step is None:
            assert name == "kkr"
            assert np.isnan(tuned.interval.low)
        else:
            low, high = tuned.one_step.interval[:2]
            assert tuned.interval.low == root(tuned.one_step.interval, 1.0).low
            middle = max((low + high) / 2, 0)  # an estimate below 0 counts as 0
            np.testing.assert_allclose(tuned.interval.high**2, middle + (high - low) / 2)
    highest = max(each.interval.high for each in report.estimators.values() if each.one_step)
    for selected, wanted in [("8 bins", "8 bins"), ("kkr", quoted(report).name)]:
        low, high = (float(end) for end in one_step_of(replace(report, selected=selected))[:2])
        assert wanted != "kkr"
        assert low == report.estimators[wanted].interval.low
        assert high == highest


# --- intervals and the paired test


def test_labels_not_seen_do_not_shrink_an_interval():
    """Sixty labels 0 of P(1) = .02 are no sign of a calibration error, though their terms agree."""
    inputs, residual = jnp.full((60, 1), 0.02), jnp.full((60, 1), 0.02)
    terms = one_step_terms(inputs, residual)
    assert float(one_step(terms).interval.low) == pytest.approx(0.02**2)
    mean, square = claimed_parts(inputs, residual)
    step_estimate = one_step(terms, 0.05, 4 * (square - mean**2))
    error = 2 * 0.02 * (0.02 * 0.98 / 60) ** 0.5
    assert float(step_estimate.standard_error) == pytest.approx(error)
    assert float(step_estimate.interval.low) < 0
    assert float(step_estimate.lower_bound) < 0


def test_claimed_variances_are_those_of_redrawn_labels():
    p, r = np.array([[0.2, 0.5, 0.3], [0.9, 0.1, 0.0]]), np.array([[0.1, -0.2, 0.4], [1, 2, 3]])
    mean, square = claimed_parts(jnp.asarray(p), jnp.asarray(r))
    wanted = [np.cov(r[i], aweights=p[i], ddof=0) for i in range(2)]
    np.testing.assert_allclose(square - mean**2, wanted, rtol=1e-12)
    parts = [claimed_parts(jnp.asarray(p[:, [k]]), jnp.asarray(r[:, [k]])) for k in range(3)]
    np.testing.assert_allclose(np.sum(parts, axis=0), np.stack([mean, square]), rtol=1e-12)


def test_intervals_by_hand():
    values = jnp.asarray(np.random.default_rng(0).normal(1, 2, 50))
    step = one_step(values, 0.1)
    assert float(step.lower_bound) == pytest.approx(
        float(jnp.mean(values)) - 1.2815515655 * float(step.standard_error)
    )
    assert float(step.standard_error) == pytest.approx(np.std(values, ddof=1) / 50**0.5)
    wanted = scipy.stats.norm.interval(0.9, np.mean(values), np.std(values, ddof=1) / 50**0.5)
    np.testing.assert_allclose(step.interval[:2], wanted, rtol=1e-9)
    np.testing.assert_allclose(root(one_step(values - 1, 0.1).interval).low, 0)
    assert np.isnan(one_step(values[:1]).interval.low)


SETS = 1000


@jax.jit
@jax.vmap
def bounds(key):
    """The one-step estimate of ten bins fitted on half of 400 confidences; true square 1 / 30."""
    sample = squared_confidence(key, 400)
    train, test = sample.take(slice(0, 200)), sample.take(slice(200, 400))
    h = candidate(Bins(10).fit(train, []), 0)
    step = one_step(one_step_terms(test.residuals, h.factors(test.inputs).left))
    holds = (step.interval.low <= 1 / 30) & (step.interval.high >= 1 / 30)
    return holds, step.lower_bound <= 1 / 30, step.squared, mean_square(h, test)


def test_the_lower_bound_and_one_step_estimate_are_not_too_high():
    holds, above, squared, plain = bounds(jax.random.split(jax.random.key(9), SETS))
    low, _ = scipy.stats.binom.interval(0.9999, SETS, 0.95)
    assert int(jnp.sum(above)) >= low
    assert float(jnp.mean(holds)) > 0.85  # too short by the fit's error: E|r - r*|^2 is 0.007
    error = float(jnp.std(squared)) / SETS**0.5
    assert float(jnp.mean(squared)) < 1 / 30 + 4 * error
    # what the one-step estimate lacks the plug-in has too much: the variance of ten bins' means
    assert float(jnp.mean(plain)) > 1 / 30 + 4 * float(jnp.std(plain)) / SETS**0.5


@jax.jit
def paired_p_values(keys):
    """Two functions of equal risk, half and one and a half times the true one; then the truth
    against nine times itself."""

    def one(key):
        sample = squared_confidence(key, 500)
        true = sample.inputs - sample.inputs**2

        def rows(factor):
            return squared_ce.empirical_risk(Known(factor**0.5 * true), sample).rows

        equal = compare_risks(rows(0.5), rows(1.5)).p_value
        return equal, compare_risks(rows(1.0), rows(9.0)).p_value

    return jax.lax.map(one, keys, batch_size=50)


class Known(eqx.Module):
    values: jax.Array

    def factors(self, inputs):
        return Factors(self.values, self.values)


def test_the_paired_test_has_its_documented_level_and_power():
    equal, far = paired_p_values(jax.random.split(jax.random.key(10), 1000))
    _, high = scipy.stats.binom.interval(0.9999, 1000, 0.07)  # documented: 7 % at this size
    for p in (equal, 1 - equal):
        assert 10 <= int(jnp.sum(p <= 0.05)) <= high
    assert float(jnp.mean(far <= 0.05)) > 0.9


@pytest.mark.slow
def test_a_parametric_family_goes_through_the_pipeline():
    with jax.enable_x64(True):
        sample = tempered_dirichlet(jax.random.key(11), 300)
    family = Parametric(temperature_residual, np.array([0.3, 0.7, 1.0, 1.4]))
    result = squared_ce.calibration_error(
        jax.random.key(12),
        np.asarray(sample.probabilities),
        np.asarray(sample.labels),
        notion="canonical",
        estimators=[family],
    )
    assert result.best.settings[0]["theta"] in (0.7, 1.0, 1.4)
    assert abs(result.best.squared - 0.063278) < 0.03


@pytest.mark.slow
def test_an_interval_from_test_rows_holds_its_estimate():
    for seed in range(12):  # one-step estimates wholly below 0 are among these
        rng = np.random.default_rng(seed)
        p = rng.dirichlet(np.ones(3), 400)
        labels = (rng.random(400)[:, None] > np.cumsum(p, 1)).sum(1)
        report = squared_ce.calibration_error(seed, p, labels, estimators=[Bins()])
        step = np.sqrt(max(float(report.best.one_step.squared), 0))
        interval = report.best.interval
        assert interval.low - 1e-12 <= step <= interval.high
        assert interval.high > interval.low


@pytest.mark.slow
def test_folds_are_no_matter_without_estimators():
    p = jax.nn.softmax(jax.random.normal(jax.random.key(3), (200, 3)))
    classes = np.zeros(200, int)
    classes[50:] = 1
    classes[7] = 2
    assert "incomplete-folds" not in str(squared_ce.calibration_error(0, p, classes))
