"""Repair of predictions, with a certificate."""

from jaxcal.repairing.probabilities import ProbabilityRepair
from jaxcal.repairing.repair import repair
from jaxcal.repairing.result import Repair

__all__ = ["ProbabilityRepair", "Repair", "repair"]
