"""smECE beside the package relplot, whose values for 18 samples are committed."""

import csv
import functools
from pathlib import Path

import numpy as np
import pytest
from distance_benchmarks import switches
from quick import quick_first
from reference.smece import smece

VALUES = Path(switches.__file__).with_name("relplot.csv")


@functools.cache
def samples():
    """Predictions, labels, width and value of relplot, as `relplot_values.py` draws them."""
    with VALUES.open(newline="") as file:
        rows = list(csv.DictReader(file))
    drawn = []
    for row in rows:
        rng, n = np.random.default_rng(int(row["seed"])), int(row["n"])
        truth = rng.random(n)
        odds = (truth / (1 - truth)) ** float(row["power"])
        labels = (rng.random(n) < truth).astype(float)
        drawn.append((odds / (1 + odds), labels, float(row["width"]), float(row["smece"])))
    return drawn


def difference(sample, step):
    v, y, width, theirs = samples()[sample]
    return abs(switches.smece(v, y, width, step, mesh=max(round(10 / width), 200)) - theirs)


@pytest.mark.parametrize("sample", [7, 13])
def test_without_switches_it_is_ours(sample):
    """Sums over mirror images against cosines, on the same grid."""
    v, y, width, _ = samples()[sample]
    ours = smece(v, y, width=width, cells=1000).value
    np.testing.assert_allclose(switches.smece(v, y, width), ours, rtol=1e-12)


@pytest.mark.parametrize("sample", quick_first(range(18), [0, 7, 13]))
def test_with_all_four_it_is_relplot(sample):
    assert difference(sample, switches.STEPS[-1]) < 1e-6


@pytest.mark.parametrize("name", switches.Switches._fields)
def test_none_of_the_four_can_be_spared(name):
    assert difference(7, switches.STEPS[-1]._replace(**{name: False})) > 1e-5
