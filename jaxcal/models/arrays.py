"""Predictions that were evaluated elsewhere (PyTorch, R, Julia) and arrive as arrays."""

from typing import Any

import equinox as eqx


class Scores(eqx.Module):
    """Precomputed scores, in the units of 1 / target, as arrays or tensors of any library.

    ``at_targets`` [n, d]: the gradient of log f_i at target i. ``at_nodes`` [n, m, d]: the same at
    m base points, the same points for every prediction; the Fisher distances need it. ``nodes``
    [m, d]: those points; the kernelized Fisher distance and preconditioning need them.
    """

    at_targets: Any
    at_nodes: Any = None
    nodes: Any = None


class Draws(eqx.Module):
    """m draws from each of n predictions, shape [n, m, d], in the units of the targets."""

    samples: Any
