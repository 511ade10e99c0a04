"""Repair of predictions, with a certificate."""

from jaxcal.repairing.repair import Repair, repair

__all__ = ["Repair", "repair"]
