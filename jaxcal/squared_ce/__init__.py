"""Squared calibration errors of classifiers, with the estimator chosen by its risk."""

from jaxcal.squared_ce.reductions import Reduced, binary, canonical, class_wise, reduce, top_label

__all__ = ["Reduced", "binary", "canonical", "class_wise", "reduce", "top_label"]
