"""Compute statistics h(i, j) of pairs of observations, for one pair or for blocks of pairs."""
