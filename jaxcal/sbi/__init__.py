"""Test posteriors of simulation-based inference, given by JAX, numpyro, torch or arrays."""

from jaxcal.sbi.adapters import predictions
from jaxcal.sbi.check import check_posterior
from jaxcal.sbi.monitor import monitor
from jaxcal.sbi.numpyro_posterior import NumpyroPosterior
from jaxcal.sbi.pairs import score_pairs
from jaxcal.sbi.posteriors import JaxPosterior
from jaxcal.sbi.ranking import rank_posteriors
from jaxcal.sbi.ranks import check_draws
from jaxcal.sbi.repair import repair_posterior
from jaxcal.sbi.torch_posterior import TorchPosterior

__all__ = [
    "JaxPosterior",
    "NumpyroPosterior",
    "TorchPosterior",
    "check_draws",
    "check_posterior",
    "monitor",
    "predictions",
    "rank_posteriors",
    "repair_posterior",
    "score_pairs",
]
__dir__ = __all__.copy  # completion shows the public names
