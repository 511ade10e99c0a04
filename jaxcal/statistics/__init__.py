"""Statistics h(i, j) of two observations: the definition for one pair, and blocks of pairs."""
