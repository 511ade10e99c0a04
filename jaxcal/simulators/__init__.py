"""Simulators with priors: benchmark problems of simulation-based inference."""

from jaxcal.simulators.problems import gaussian_linear, lotka_volterra, two_moons
from jaxcal.simulators.simulator import Simulator

__all__ = ["Simulator", "gaussian_linear", "lotka_volterra", "two_moons"]


def __dir__() -> list[str]:
    return sorted(__all__)
