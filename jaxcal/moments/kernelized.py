"""An infinite family of moments: the Stein features of a kernel on targets, as in KCCSD."""

from typing import Any

import equinox as eqx

from jaxcal import convert
from jaxcal.kernels.points import Gaussian


class KernelStein(eqx.Module):
    """KCCSD as a part of `jaxcal.calibration_test`: sees shifts first, and any smooth error.

    ``kernel``: twice differentiable, on targets; an open bandwidth becomes ``factor`` times the
    median distance of the targets. Cost a pair: one kernel and its derivatives.
    """

    kernel: Any = Gaussian()
    factor: float = eqx.field(default=1.0, static=True)
    whole_space: bool = eqx.field(default=True, static=True)
    smoothness: int = eqx.field(default=1, init=False, static=True)

    def __check_init__(self):
        convert.real(self.factor, "factor", above=0)
