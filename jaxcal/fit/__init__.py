"""Fitting a test to data: units, nodes, scores, features, bandwidths and statistic."""
