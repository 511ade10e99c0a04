"""Figures of tuned errors show the report's numbers."""

import io
import itertools

import equinox as eqx
import jax
import numpy as np
import pytest
from reference.classifiers import squared_confidence

from jaxcal.plots.squared_ce import calibration_errors, risk_over_grid
from jaxcal.squared_ce import Bins, KernelDensity, Zero, problem_error


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


def test_risks_over_the_grid_show_folds_their_mean_and_the_choice(report):
    tuned = report.estimators["bins"]
    ax = risk_over_grid(tuned)
    *single, mean, mark = ax.lines
    assert len(single) == 5
    chosen = tuned.chosen[0]
    wanted = 100 * (tuned.risks[0].mean(0) / tuned.risks[0][:, chosen].mean() - 1)
    np.testing.assert_allclose(mean.get_ydata(), wanted)
    assert mark.get_xdata()[0] == tuned.settings[0]["bins"]
    ax.figure.savefig(io.BytesIO())
    risk_over_grid(report.estimators["kde"]).figure.savefig(io.BytesIO())


def test_what_cannot_be_drawn_is_said(report):
    with pytest.raises(ValueError, match="a grid of one hyperparameter, zero has"):
        risk_over_grid(report.estimators["zero"])
    with pytest.raises(ValueError, match="problem: wanted a whole number from 0 to 0, got 1"):
        risk_over_grid(report.estimators["bins"], problem=1)
    best = report.best
    none = eqx.tree_at(lambda t: t.contributions, best, np.full(20, np.nan))
    broken = eqx.tree_at(lambda r: r.estimators[r.selected], report, none)
    assert "no estimator" in calibration_errors(broken).texts[0].get_text()


def test_ticks_of_risks_do_not_touch(report):
    for name in ("bins", "kde"):
        ax = risk_over_grid(report.estimators[name])
        ax.figure.canvas.draw()
        low, high = ax.get_ylim()
        shown = [label for label in ax.get_yticklabels() if low <= label.get_position()[1] <= high]
        boxes = sorted((label.get_window_extent() for label in shown), key=lambda box: box.y0)
        assert len(boxes) > 1
        assert all(below.y1 <= above.y0 for below, above in itertools.pairwise(boxes))
