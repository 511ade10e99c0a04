"""Repair predictions, with a certificate: confidence limits of the gain on other data."""

from jaxcal.repairing.probabilities import ProbabilityRepair
from jaxcal.repairing.repair import repair
from jaxcal.repairing.result import Repair

__all__ = ["ProbabilityRepair", "Repair", "repair"]
