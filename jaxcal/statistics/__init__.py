"""h(i, j) of two observations, for one pair and in blocks."""
