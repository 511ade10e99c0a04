"""Draws from predictions without a sampler, by numpyro's MCMC, with convergence diagnostics."""

from jaxcal.mcmc.densities import log_densities
from jaxcal.mcmc.run import check_draws, mcmc_draws
from jaxcal.mcmc.samplers import HMC, MALA, NUTS

__all__ = ["HMC", "MALA", "NUTS", "check_draws", "log_densities", "mcmc_draws"]


def __dir__() -> list[str]:
    return sorted(__all__)
