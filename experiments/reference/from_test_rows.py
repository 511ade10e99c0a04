"""Intervals of a squared calibration error from the test rows alone, of a `Report` with estimators.

`plug_in` is that of the estimate itself: what other test data would change, the fitted function
being fixed. It leaves out the fit's own bias, so it does not cover the error. `one_step` joins
those of all estimators.
"""

import numpy as np
import scipy.stats

from jaxcal.results import Interval
from jaxcal.squared_ce.leave_one_out import root


def plug_in(tuned) -> Interval:
    """Normal interval of ``tuned.error``, the root of a mean over the test rows."""
    values = tuned.contributions[np.isfinite(tuned.contributions)]
    if len(values) < 2:
        return Interval(np.nan, np.nan, tuned.level)
    half = scipy.stats.norm.ppf(1 - tuned.level / 2) * np.std(values, ddof=1) / len(values) ** 0.5
    ends = Interval(np.mean(values) - half, np.mean(values) + half, tuned.level)
    return root(ends, tuned.largest)


def quoted(report):
    """The selected estimator; or, where its h is no product of residuals (kkr) and so has no
    interval, the one of the lowest validation risk that has."""
    some = [each for each in report.estimators.values() if each.terms is not None]
    if report.best.terms is not None or not some:
        return report.best
    return min(some, key=lambda each: np.nan_to_num(each.risk, nan=np.inf))


def one_step(report) -> Interval:
    """Lower end by `quoted`, upper end by the estimator where it is largest: no fit's one-step
    estimate is too large on average, so this end is too low only where those of all fits are."""
    ends = [float(each.interval.high) for each in report.estimators.values()]
    return quoted(report).interval._replace(high=np.nanmax(ends) if ends else np.nan)
