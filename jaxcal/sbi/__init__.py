"""Tests of posteriors of simulation-based inference, from JAX, numpyro, torch or arrays."""

from jaxcal.sbi.adapters import as_draws, predictions
from jaxcal.sbi.check import check_posterior, kccsd_test, kcsd_test
from jaxcal.sbi.monitor import monitor
from jaxcal.sbi.numpyro_posterior import GuidePosterior, NumpyroPosterior
from jaxcal.sbi.pairs import score_pairs
from jaxcal.sbi.posteriors import JaxPosterior, chunked_scores
from jaxcal.sbi.ranking import rank_posteriors
from jaxcal.sbi.ranks import check_draws, rank_metric
from jaxcal.sbi.repair import repair_posterior
from jaxcal.sbi.space import Space
from jaxcal.sbi.torch_posterior import TorchPosterior

__all__ = [
    "GuidePosterior",
    "JaxPosterior",
    "NumpyroPosterior",
    "Space",
    "TorchPosterior",
    "as_draws",
    "check_draws",
    "check_posterior",
    "chunked_scores",
    "kccsd_test",
    "kcsd_test",
    "monitor",
    "predictions",
    "rank_metric",
    "rank_posteriors",
    "repair_posterior",
    "score_pairs",
]


def __dir__() -> list[str]:
    return sorted(__all__)
