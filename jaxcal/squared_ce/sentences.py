"""What limits a report of squared calibration errors, in words."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxcal.squared_ce.report import Report
    from jaxcal.squared_ce.tuned import Tuned

FEWEST = 30  # test observations for a normal interval


def about_data(report: "Report") -> list[str]:
    """What the data leave open, in words; empty where nothing does."""
    data = report.data
    return [
        text
        for text, holds in [
            (
                f"no label belongs to the classes {data.unseen}: nothing can be said about them"
                " [unseen-classes]",
                bool(data.unseen),
            ),
            (
                f"the training rows of the folds {data.incomplete_folds} lack a class that other "
                f"rows have; a stratified splitter avoids that [incomplete-folds]",
                bool(data.incomplete_folds),
            ),
            (
                f"{data.test} test observations are too few for the interval from them, which is "
                f"normal [few-observations]",
                data.test < FEWEST and bool(report.estimators),
            ),
            (
                "the interval of the canonical notion, from the test rows, does not hold as often "
                "as it says: a nominal 95 % held the error in 57 of 75 data sets of 300 rows"
                " [canonical-interval]",
                report.every_row is None,
            ),
            (
                "all confidences are .8 or more: for such data the 95 % interval from the test "
                "rows was seen to hold the error in about 90 % (at 60 test rows)"
                " [confident-predictions]",
                data.confident and bool(report.estimators),
            ),
            (
                f"{data.saturated} observations have a probability of exactly 0 or 1; if a softmax "
                f"in float32 made them, take it again in float64, which keeps them apart"
                " [saturated-probabilities]",
                data.saturated > 0,
            ),
            (
                "all predictions are the same: this asks only whether they fit the frequencies"
                " [identical-predictions]",
                data.identical,
            ),
        ]
        if holds
    ]


def about_estimator(tuned: "Tuned") -> list[str]:
    """What limits one tuned estimator, in words; empty where nothing does."""
    edges = sorted({name for names in tuned.edges for name in names})
    n_edges = sum(bool(names) for names in tuned.edges)
    where = f" in {n_edges} of {len(tuned.edges)} problems" if len(tuned.edges) > 1 else ""
    return [
        f"{tuned.name}: {text}"
        for text, holds in [
            (
                f"the chosen {', '.join(edges)} is at an end of what was tried{where}; values past "
                f"it may lower the risk and change the estimate [edge-of-grid]",
                bool(edges),
            ),
            (
                f"h is not finite at {tuned.nonfinite_validation} validation and "
                f"{tuned.nonfinite_test} test observations; estimates leave them out, and risks "
                f"are compared on the observations where every estimator is finite [nonfinite-h]",
                tuned.nonfinite_validation + tuned.nonfinite_test > 0,
            ),
            (
                f"the mean of h is negative ({tuned.squared:.3g}), so the error is given as 0"
                " [negative-error]",
                tuned.squared < 0,
            ),
            (
                f"the mean of h is {tuned.squared:.3g}, more than a squared error can be: too few "
                f"observations for this estimator; the error is given as {tuned.largest**0.5:.3g}, "
                f"the largest that is possible [error-too-large]",
                tuned.squared > tuned.largest,
            ),
            (
                f"the low rank leaves out {tuned.unexplained:.2g} of the kernel's trace; a higher "
                f"rank may change the estimate [low-rank]",
                tuned.unexplained > 1e-3,
            ),
        ]
        if holds
    ]
