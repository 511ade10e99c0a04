"""How many observations the theory asks for, up to a constant that the paper does not give."""

import math
from typing import NamedTuple

from jaxcal.dce.intervals import smallest_width
from jaxcal.read import convert


class SampleSizes(NamedTuple):
    """Observations for an error ``accuracy`` with probability 1 - ``failure``, each times the same
    unknown constant: ``surrogate`` (Theorem 6.12), ``smooth`` (Cor. 9.9), ``kernel`` (Theorem
    9.8). ``k`` is the number of halvings of the width, ``shifts`` and ``pairs`` what the paper's
    random estimators need; the exact ones here need none."""

    surrogate: float
    smooth: float
    kernel: float
    k: int
    shifts: float
    pairs: float


def sample_sizes(accuracy: float, failure: float = 0.05) -> SampleSizes:
    """Orders of magnitude only: the constants are not known."""
    accuracy = convert.real(accuracy, "accuracy", above=0, below=0.25)
    failure = convert.real(failure, "failure", above=0, below=0.25)
    log, k = math.log(1 / failure), smallest_width(accuracy)
    return SampleSizes(
        surrogate=accuracy**-3 + log * accuracy**-2,
        smooth=log * accuracy**-2,
        kernel=(1 + log) * accuracy**-2,
        k=k,
        shifts=accuracy**-2 * math.log(k / failure),
        pairs=accuracy**-2 * log,
    )


def kernel_radius(n: int, *, brier: float = 0.25, failure: float = 0.05) -> float:
    r"""|kCE of a sample - kCE| is at most this with probability 1 - ``failure``, for every n.

    :math:`(\sqrt{E(y-v)^2} + \sqrt{2 \ln(1/\delta)}) / \sqrt n` by McDiarmid's inequality;
    ``brier`` = E(y - v)^2. Conservative, and not in the paper.
    """
    n, failure = convert.integer(n, "n"), convert.real(failure, "failure", above=0, below=1)
    if not 0 <= (brier := convert.real(brier, "brier")) <= 1:
        raise ValueError(f"brier: wanted a number in [0, 1], got {brier}")
    return (brier**0.5 + (2 * math.log(1 / failure)) ** 0.5) / n**0.5
