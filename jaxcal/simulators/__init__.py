"""Simulators with priors: the problems on which posteriors of simulation are usually compared."""

from jaxcal.simulators.dynamics import lotka_volterra, sir
from jaxcal.simulators.gaussians import gaussian_linear, gaussian_linear_uniform, gaussian_mixture
from jaxcal.simulators.glm import bernoulli_glm
from jaxcal.simulators.multimodal import slcp, two_moons
from jaxcal.simulators.simulator import Simulator

__all__ = [
    "Simulator",
    "bernoulli_glm",
    "gaussian_linear",
    "gaussian_linear_uniform",
    "gaussian_mixture",
    "lotka_volterra",
    "sir",
    "slcp",
    "two_moons",
]


def __dir__() -> list[str]:
    return sorted(__all__)
