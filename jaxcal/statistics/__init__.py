"""Compute statistics h(i, j) of two observations: for one pair by definition, and in blocks."""
