"""The tasks in jaxcal's words; `peers_theirs.py` has those of the other packages."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpyro.distributions as dist
from peers_data import Data

import jaxcal

sys.path.insert(0, str(Path(__file__).parents[1]))
from distance_benchmarks import switches
from reference.smece import smece

# Classes


def ece(d: Data) -> Any:
    return jaxcal.measures.ece(d.probabilities, d.labels, bins=15)


def mce(d: Data) -> Any:
    problem = jaxcal.measures.confidences(d.probabilities, d.labels)
    return jaxcal.measures.reliability(*problem, bins=15).mce


def equal_mass(d: Data) -> Any:
    return jaxcal.measures.reliability(d.p, d.y, bins=15, equal_mass=True).ece


def curve(d: Data) -> Any:
    result = jaxcal.measures.reliability(d.confidence, d.correct, bins=15)
    return result.accuracy[result.filled]


def brier(d: Data) -> Any:
    return jaxcal.ckce.skill(d.probabilities, d.labels).brier


def log_loss(d: Data) -> Any:
    return jaxcal.measures.nll(dist.CategoricalProbs(d.probabilities), d.labels)


def smece_of_its_own_width(d: Data) -> Any:
    return smece(d.p, d.y).value


def smece_of_width(d: Data) -> Any:
    return smece(d.p, d.y, width=0.1).value


def switched(d: Data) -> Any:
    choices = switches.Switches(rectangles=True, ends_once=True, by_density=True, cut=True)
    return switches.smece(d.p, d.y, 0.1, choices, mesh=200)


def mmce(d: Data) -> Any:
    return jaxcal.dce.kernel_ce(d.confidence, d.correct, bandwidth=0.4).value


def skce(d: Data) -> Any:
    both, kernel = np.stack([1 - d.p, d.p], axis=1), jaxcal.kernels.Laplace(0.3 * 2**0.5)
    return jaxcal.skce.skce(0, both, d.y, prediction_kernel=kernel).unbiased


def temperature(d: Data) -> Any:
    return jaxcal.measures.fit_temperature(d.probabilities, d.labels).temperature


def recalibrated(d: Data) -> Any:
    fit = jaxcal.measures.fit_temperature(d.probabilities, d.labels)
    return jaxcal.measures.with_temperature(d.probabilities, fit.temperature)


# Numbers with Gaussian forecasts


def nll(d: Data) -> Any:
    return jaxcal.measures.nll(dist.Normal(d.mean, d.sd), d.targets)


def pinball(d: Data) -> Any:
    levels = np.linspace(0.01, 0.99, 99)
    return jaxcal.measures.pinball_loss(dist.Normal(d.mean, d.sd), d.targets, levels=levels)


def crps(d: Data) -> Any:
    levels = (np.arange(2000) + 0.5) / 2000
    return 2 * jaxcal.measures.pinball_loss(dist.Normal(d.mean, d.sd), d.targets, levels=levels)


def quantile_curve(d: Data) -> Any:
    levels = np.linspace(0.05, 0.95, 19)
    predictions = dist.Normal(d.mean, d.sd)
    return jaxcal.measures.quantile_calibration(predictions, d.targets, levels=levels).observed


def central(d: Data) -> Any:
    transforms = jaxcal.measures.pit(dist.Normal(d.mean, d.sd), d.targets)
    return np.mean(np.abs(transforms - 0.5) <= 0.475)


# Posteriors of which there are draws


def ranks(d: Data) -> Any:
    result = jaxcal.sbi.check_draws(0, d.draws, d.thetas)
    return np.floor(100 * result.ranks[:, 1:])


def uniform(d: Data) -> Any:
    return jaxcal.sbi.check_draws(0, d.draws, d.thetas).p_values[1:]
