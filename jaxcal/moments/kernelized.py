"""An infinite family of moments: the Stein features of a kernel on targets, as in KCCSD."""

import equinox as eqx

from jaxcal import convert
from jaxcal.kernels.points import Gaussian
from jaxcal.typing import KernelLike


class KernelStein(eqx.Module):
    """KCCSD as a part of `jaxcal.calibration_test`: sees shifts first, and any smooth error.

    Args:
        kernel: Kernel on targets, twice differentiable.
        factor: An unset bandwidth becomes this times the median distance of the targets.
        whole_space: Leave the part out where a density ends; False keeps it.

    Cost: one kernel and its derivatives a pair.

    Example:
        >>> import jax, jaxcal
        >>> import numpyro.distributions as dist
        >>> centers, noise = jax.random.normal(jax.random.key(0), (2, 100))
        >>> stein = jaxcal.moments.KernelStein
        >>> parts = {"near": stein(factor=0.3), "far": stein()}
        >>> predictions = dist.Normal(centers, 1.0)
        >>> result = jaxcal.calibration_test(1, predictions, centers + noise, parts=parts)
        >>> result.parts.names
        ('near: shape', 'far: shape')
    """

    kernel: KernelLike = Gaussian()
    factor: float = eqx.field(default=1.0, static=True)
    whole_space: bool = eqx.field(default=True, static=True)
    smoothness: int = eqx.field(default=1, init=False, static=True)

    def __check_init__(self):
        convert.real(self.factor, "factor", above=0)
