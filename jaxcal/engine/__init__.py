"""Sums over vectors and over tiles of pairs: the only loops over pairs in the package."""
