"""Figures of tuned errors show the report's numbers."""

import io

import equinox as eqx
import jax
import numpy as np
import pytest
from reference.classifiers import squared_confidence
from reference.parametric import Zero
from squared_ce_oracles import problem_error

from jaxcal.plots.comparisons import calibration_errors
from jaxcal.squared_ce import Bins, KernelDensity


@pytest.fixture(scope="module")
def report():
    problem = squared_confidence(jax.random.key(1), 100)
    chosen = [Bins((1, 5, 15)), KernelDensity((0.05, 0.2)), Zero()]
    return problem_error(jax.random.key(2), problem, estimators=chosen)


def test_errors_are_shown_in_the_order_of_risk(report):
    ax = calibration_errors(report)
    names = [tick.get_text().split("\n")[0] for tick in ax.get_yticklabels()]
    assert names == [row["estimator"] for row in report.table()]
    assert names[0] == report.selected
    marks = [line for line in ax.lines if line.get_marker() == "o"]
    shown = [float(np.ravel(line.get_xdata())[0]) for line in marks]
    assert shown == [row["error"] for row in report.table()]
    ax.figure.savefig(io.BytesIO())


def test_what_cannot_be_drawn_is_said(report):
    best = report.best
    none = eqx.tree_at(lambda t: t.contributions, best, np.full(20, np.nan))
    broken = eqx.tree_at(lambda r: r.estimators[r.selected], report, none)
    assert "no estimator" in calibration_errors(broken).texts[0].get_text()
