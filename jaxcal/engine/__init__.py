"""Sums over vectors and over tiles of pairs; nothing else in the package loops over pairs."""
