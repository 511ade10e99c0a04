"""p-values of all methods from the same pairs, scores and draws; those of sbi by sbi itself."""

import time
import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import scipy.stats
from jaxtyping import Array

import jaxcal
from jaxcal.nulls import Wild
from jaxcal.sbi.diagnosis import diagnose

OURS = ("KCCSD", "KCCSD diagonal", "KCSD", "witnesses", "SKCE")
RANKS = ("SBC chi2", "expected coverage", "TARP ranks")
OF_SBI = ("SBC KS", "coverage KS", "TARP", "LC2ST")
NULLS_OF_LC2ST = 19  # p <= 0.05 where none is larger: level 1 / 20


class Times(NamedTuple):
    """Seconds of one data set: on the clock, and of all processors."""

    wall: float
    cpu: float

    def plus(self, other: "Times") -> "Times":
        return Times(self.wall + other.wall, self.cpu + other.cpu)


class Clock:
    def __init__(self):
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def read(self, sets: int) -> Times:
        now = time.perf_counter() - self.wall, time.process_time() - self.cpu
        return Times(now[0] / sets, now[1] / sets)


class Ranks(NamedTuple):
    """What tests from draws compare: [n, d], [n, m, d], and log densities [n], [n, m]."""

    thetas: np.ndarray
    draws: np.ndarray
    at_targets: np.ndarray
    others: np.ndarray


def stein(method: str, key: Array, thetas, scores, xs, n_draws: int = 300) -> Array:
    """p-value from scores alone: ``scores`` is a `jaxcal.Scores`."""
    if method == "witnesses":  # the smallest of 2 d p-values after Holm
        result = scores.at_nodes.reshape(len(thetas), -1)
        diagnosis = diagnose(key, thetas, scores.at_targets, result, None)
        return jnp.minimum(jnp.min(diagnosis.bias.p_adjusted), jnp.min(diagnosis.spread.p_adjusted))
    if method == "KCSD":
        return jaxcal.kcsd_test(key, scores, thetas, xs, null=Wild(n_draws)).p_value
    form = "diagonal" if method == "KCCSD diagonal" else None
    return jaxcal.kccsd_test(key, scores, thetas, precondition=form, null=Wild(n_draws)).p_value


def chi2(thetas: np.ndarray, draws: np.ndarray) -> float:
    """SBC: ranks of each parameter in 20 bins, smallest p-value times the parameters."""
    ranks = np.sum(draws < thetas[:, None], axis=1)
    bins = ranks * 20 // (draws.shape[1] + 1)
    p = [scipy.stats.chisquare(np.bincount(b, minlength=20)).pvalue for b in bins.T]
    return min(1.0, len(p) * min(p))


def uniform_ranks(values: np.ndarray, others: np.ndarray, rng: np.random.Generator) -> float:
    """Kolmogorov-Smirnov p-value of the rank of ``own`` [n] among ``others`` [n, m]."""
    below = np.sum(others < values[:, None], axis=1) + rng.random(len(values))
    return scipy.stats.kstest(below / (others.shape[1] + 1), "uniform").pvalue


def tarp_ranks(thetas: np.ndarray, draws: np.ndarray, rng: np.random.Generator) -> float:
    """TARP's coverage values about uniform references, tested for uniformity directly."""
    low, high = thetas.min(axis=0), thetas.max(axis=0)
    references = rng.uniform(low, high, thetas.shape)
    values = np.linalg.norm(thetas - references, axis=1)
    return uniform_ranks(values, np.linalg.norm(draws - references[:, None], axis=2), rng)


def from_draws(method: str, seed: int, xs: np.ndarray, ranks: Ranks, local=None) -> float:
    """p-value of a test from draws. ``local``: an x and draws of its posterior, for LC2ST."""
    rng = np.random.default_rng(seed)
    if method == "SBC chi2":
        return chi2(ranks.thetas, ranks.draws)
    if method == "expected coverage":
        return uniform_ranks(ranks.at_targets, ranks.others, rng)
    if method == "TARP ranks":
        return tarp_ranks(ranks.thetas, ranks.draws, rng)
    if not sbi_is_here():
        raise not_here(method)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return of_sbi(method, seed, xs, ranks, local)


def of_sbi(method: str, seed: int, xs: np.ndarray, ranks: Ranks, local) -> float:
    """sbi's own verdict."""
    import torch
    from sbi.diagnostics import check_tarp
    from sbi.diagnostics.lc2st import LC2ST
    from sbi.diagnostics.sbc import _run_sbc, check_uniformity_frequentist
    from sbi.diagnostics.tarp import _run_tarp, get_tarp_references

    torch.manual_seed(seed)
    theta, x, samples = (torch.as_tensor(np.array(a), dtype=torch.float32) for a in
                         (ranks.thetas, xs, np.moveaxis(ranks.draws, 1, 0)))  # fmt: skip
    if method == "SBC KS":
        result = _run_sbc(theta, x, samples, "marginals", show_progress_bar=False)
        p = check_uniformity_frequentist(result, samples.shape[0])
        return min(1.0, len(p) * float(p.min()))
    if method == "coverage KS":  # sbi's expected coverage: ranks of the log density
        below = np.sum(ranks.others < ranks.at_targets[:, None], axis=1)
        result = torch.as_tensor(below[:, None], dtype=torch.float32)
        return float(check_uniformity_frequentist(result, samples.shape[0])[0])
    if method == "TARP":
        ecp, alpha = _run_tarp(samples, theta, get_tarp_references(theta))
        return float(check_tarp(ecp, alpha)[1])
    x_o, theta_o = (torch.as_tensor(np.array(a), dtype=torch.float32) for a in local)
    test = LC2ST(theta, x, samples[0], seed=seed, num_trials_null=NULLS_OF_LC2ST)
    test.train_on_observed_data()
    test.train_under_null_hypothesis(verbosity=0)
    return float(test.p_value(theta_o, x_o))


def sbi_is_here() -> bool:
    try:
        import sbi.diagnostics  # noqa: F401
    except ImportError:
        return False
    return True


def not_here(method: str) -> RuntimeError:
    return RuntimeError(
        f"{method} is computed by the library sbi, which is not installed: pip install "
        f"'jaxcal[sbi]', or run with --quick, which leaves such methods out"
    )


def key_seed(key: Array) -> int:
    return int(jax.random.bits(key, dtype=jnp.uint32) >> 1)
