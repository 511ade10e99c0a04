"""Draw from predictions that have no sampler, by MCMC of numpyro, with convergence diagnostics."""

from jaxcal.mcmc.run import mcmc_draws
from jaxcal.mcmc.samplers import HMC, MALA, NUTS

__all__ = ["HMC", "MALA", "NUTS", "mcmc_draws"]
__dir__ = __all__.copy  # completion shows the public names
