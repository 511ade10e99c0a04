"""Which choices are said to be at an end of their grid."""

import jax
import numpy as np
import pytest
from reference.classifiers import squared_confidence
from reference.parametric import Parametric
from squared_ce_oracles import problem_error

from jaxcal import squared_ce
from jaxcal.kernels import Gaussian
from jaxcal.squared_ce import Bins, KernelDensity, KernelRidge

KEY = jax.random.key(2)
WEAK = (1e-9, 1e-8)  # ridges for which more is better


def wrong(n):
    with jax.enable_x64(True):
        return squared_confidence(jax.random.key(n), n)


def tuned(problem, estimator):
    return problem_error(KEY, problem, estimators=[estimator], folds=2)


def divided(theta, inputs):
    return inputs / theta


@pytest.mark.slow
def test_an_end_is_said():
    report = tuned(wrong(100), KernelRidge(WEAK, power=0.75))
    assert (len(report.best.grid), report.best.edges) == (2, [["ridge"]])
    assert "(edge: ridge)" in repr(report)
    assert "[edge-of-grid]" in " ".join(report.warnings())


@pytest.mark.slow
def test_single_candidates_have_no_end():
    for estimator in (Bins(15), KernelDensity(0.1), KernelRidge((1e-3,), power=0.75)):
        report = tuned(wrong(100), estimator)
        assert (len(report.best.grid), report.best.edges) == (1, [[]])
        assert "[edge-of-grid]" not in " ".join(report.warnings())


@pytest.mark.slow
def test_a_choice_among_kernels_and_starts_has_no_end():
    several = KernelRidge(WEAK, [Gaussian(s) for s in (0.3, 1.0)], power=0.75)
    best = tuned(wrong(100), several).best
    assert (len(best.grid), best.edges) == (4, [["ridge"]])
    starts = Parametric(divided, np.array([1.0, 2.0]), descend=True)
    report = tuned(wrong(100), starts)
    assert report.best.edges == [[]]
    assert "start 1" in repr(report) or "start 2" in repr(report)


@pytest.mark.slow
def test_classes_have_one_grid():
    logits = jax.random.normal(jax.random.key(3), (100, 3))
    labels = jax.random.categorical(jax.random.key(4), logits)
    p = jax.nn.softmax(logits * np.array([[1.0, 1.0, 3.0]]))
    best = squared_ce.calibration_error(
        KEY, p, labels, notion="class-wise", estimators=[KernelDensity((1e-3, 1e-2))], folds=2
    ).best
    assert best.risks.shape == (3, 2, 2)
    assert best.grid == [{"bandwidth": 1e-3}, {"bandwidth": 1e-2}]
    assert len(best.edges) == 3
    np.testing.assert_array_equal(best.chosen, np.argmin(best.risks.mean(axis=1), axis=1))
