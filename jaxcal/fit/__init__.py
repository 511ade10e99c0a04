"""Fit a test to data (units, nodes, scores, features, bandwidths, statistic), and run it."""
