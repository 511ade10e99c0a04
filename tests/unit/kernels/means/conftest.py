"""Averages over predictions are one program each: outside jit they were one an operation."""

import equinox as eqx
import pytest

from jaxcal.kernels.means.dispatch import KernelMeans


@pytest.fixture(scope="module", autouse=True)
def averages_are_jitted():
    """As inside every test of the library, which calls them under jit alone."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("first", "second", "own", "gram"):
            patch.setattr(KernelMeans, name, eqx.filter_jit(vars(KernelMeans)[name]))
        yield
