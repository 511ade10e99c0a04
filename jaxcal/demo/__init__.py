"""The demonstration: two forecasters of tomorrow's temperatures in Seattle, fitted and tested."""

from jaxcal.demo.story import Verdict, run

__all__ = ["Verdict", "run"]
