"""Random laws of (v, y) on six places, a shape that all property tests share."""

import jax
import numpy as np
from reference.lower_distance import lower_distance
from reference.partitions import upper_distance

from jaxcal import dce


def random_law(seed):
    """Predictions, mean labels and weights of 1 to 6 atoms; some on a grid, some tied, some at the
    ends; weights of 0 are padding."""
    rng = np.random.default_rng(seed)
    v = rng.random(6) if seed % 3 else rng.integers(0, 9, 6) / 8
    w = rng.random(6) * (np.arange(6) <= rng.integers(0, 6))
    y = rng.random(6) if seed % 2 else (rng.random(6) < v**2).astype(float)
    if seed % 5 == 0:
        y = 0.7 * v + 0.3 * y  # near calibration
    return v, y, w / w.sum()


LAWS = [random_law(seed) for seed in range(40)]


@jax.jit
def of_one_program(v, y, w):
    return {
        "ece": dce.unbinned_ece(v, y, weights=w),
        "smooth": dce.smooth_ce(v, y, weights=w).value,
        "kernel": dce.kernel_ce(v, y, weights=w).value,
        "interval": dce.interval_ce(v, y, weights=w).value,
        "surrogate": dce.surrogate_interval_ce(v, y, weights=w, accuracy=None).value,
    }


def measures(v, y, w):
    """Everything of one law, exactly."""
    return {
        **{name: float(value) for name, value in of_one_program(v, y, w).items()},
        "mean": abs(float(np.sum(w * (y - v)))),
        "lower": lower_distance(v, y, weights=w, tol=1e-8).value,
        "upper": upper_distance(v, y, weights=w).value,
    }
