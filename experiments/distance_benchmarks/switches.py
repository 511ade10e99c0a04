"""What separates relplot's smECE from `reference/smece.py` at one width: a mesh and four switches.

Written for this comparison as sums over mirror images, so that it shares no code with either.
"""

from typing import NamedTuple

import numpy as np


class Switches(NamedTuple):
    """Each False as in `reference/smece.py`, True as in relplot 1.0.3."""

    rectangles: bool = False  # both end points of the integral count in full, not by half
    ends_once: bool = False  # what lies on the first and last grid point has no mirror image there
    by_density: bool = False  # divided by the sum of the smoothed density, not by its true integral
    cut: bool = False  # the Gaussian ends half a unit from its centre


STEPS = [Switches(*(position < count for position in range(4))) for count in range(5)]


def smece(v, y, width, switches=STEPS[0], *, cells=1000, mesh=None):
    """smECE at a given width, of the grid of ``cells`` or interpolated on ``mesh`` points."""
    masses = np.stack([on_grid(v, (y - v) / len(v), cells), on_grid(v, 1 / len(v) + 0 * v, cells)])
    grid = np.linspace(0, 1, cells + 1)
    points = grid if mesh is None else np.linspace(0, 1, mesh)
    smooth = smoothed(masses, width, switches)
    curve, density = (np.interp(points, grid, one) for one in smooth)
    weights = np.ones(len(points))
    if not switches.rectangles:
        weights[[0, -1]] = 0.5
    total = weights @ density if switches.by_density else len(points) - 1
    return weights @ np.abs(curve) / total


def on_grid(v, masses, cells):
    """Masses at v, each shared by its two neighbours among cells + 1 points."""
    cell = np.minimum((v * cells).astype(int), cells - 1)
    part = v * cells - cell
    left = np.bincount(cell, masses * (1 - part), cells + 1)
    return left + np.bincount(cell + 1, masses * part, cells + 1)


def smoothed(masses, width, switches):
    """Rows of masses [k, points], spread by a Gaussian from 2 m + x and 2 m - x, m = -1, 0, 1.

    Further images are at least 2 away from [0, 1].
    """
    grid = np.linspace(0, 1, masses.shape[1])
    total = np.zeros(masses.shape)
    for period in (-2.0, 0.0, 2.0):
        for sign in (1, -1):
            image = masses.copy()
            if switches.ends_once and sign < 0:  # -0 is at 0, and 2 - 1 is at 1
                image[:, 0] *= period != 0
                image[:, -1] *= period != 2
            distance = period + sign * grid[:, None] - grid[None]
            density = np.exp(-((distance / width) ** 2) / 2) / (np.sqrt(2 * np.pi) * width)
            if switches.cut:
                density[np.abs(distance) > 0.5 + 1e-9] = 0
            total += image @ density
    return total
