"""What a test reaches that asks for one fault alone, whose form it knows but not its size or sign.

    python experiments/power/reachable.py    # seconds, prints the table of the README

It knows the predictions exactly: each observation gives a moment of its exact rank or residual
times the feature along which the error varies, and their studentized sum is two-sided normal.
"""

from collections.abc import Callable

import numpy as np
import scipy.stats
from scipy.special import ndtri

SETS, N, SEED = 4000, 200, 20261126
SHARED = 8  # alternatives among which `calibration_test` shares its level


def powers(entries: np.ndarray) -> str:
    """Shares of rejections by sums over the last axis, at .05 and at .05 over `SHARED`."""
    sums = entries.sum(1) / np.sqrt((entries**2).sum(1))
    ends = scipy.stats.norm.isf(0.025 / np.array([1, SHARED]))
    return ", ".join(f"{np.mean(np.abs(sums) > end):.2f}" for end in ends)


def of_spread(random: np.random.Generator, d: int, log_spread: Callable, *forms: Callable) -> str:
    """Normal predictions: the normal score of the rank of the log density, as in the test."""
    x = random.normal(size=(SETS, N))
    z = random.normal(size=(SETS, N, d)) * np.exp(log_spread(x))[..., None]
    moment = ndtri(scipy.stats.chi2.cdf((z**2).sum(-1), d))
    return " | ".join(powers(moment * form(x)) for form in forms)


def of_shift(random: np.random.Generator, correlation: float) -> str:
    """Shifts of .2 in both of two coordinates with the sign of x: the sum of both errors."""
    x, noise = random.normal(size=(SETS, N)), random.normal(size=(SETS, N))
    total = noise + 0.2 * np.sign(x) * 2 / (2 + 2 * correlation) ** 0.5
    return f"{powers(total * np.sign(x))} | {powers(total * x)}"


def of_student(random: np.random.Generator, log_spread: float) -> str:
    """Student t4 in two dimensions: the derivative of the log density by the log scale."""
    chi = random.chisquare(4, size=(SETS, N, 1)) / 4
    z = random.normal(size=(SETS, N, 2)) / np.sqrt(chi) * np.exp(log_spread)
    square = (z**2).sum(-1)
    return powers(6 * square / (4 + square) - 2)


def efficiency(d: int) -> str:
    """Of a spread in d dimensions: the share of the information that normal scores of ranks keep,
    and that of the best moment which is symmetric under calibration."""
    u = (np.arange(10**6) + 0.5) / 10**6
    score = (scipy.stats.chi2.ppf(u, d) - d) / (2 * d) ** 0.5
    odd = (score - score[::-1]) / 2
    return f"{np.mean(score * ndtri(u)) ** 2:.2f}, {np.mean(odd**2):.2f}"


def main() -> None:
    random = np.random.default_rng(SEED)

    def linear(x):
        return x

    print("fault: in its form, at .05 and at .05 / 8 | with a linear feature, likewise")
    for d in (1, 2):
        power = of_spread(random, d, lambda x: 0.2 * np.sign(x), np.sign, linear)
        print(f"widths that cancel, normal {d}: {power}")
    for d in (1, 2):
        power = of_spread(random, d, lambda x: 0.15 * x, linear)
        print(f"spread trend in mean, normal {d}: {power}")
    print("shifts that cancel, widths:", of_shift(random, 0.5))
    print("shifts that cancel, modes:", of_shift(random, 0.0))
    print("student too narrow:", of_student(random, 0.14))
    print("student too wide:", of_student(random, -0.14))
    upper = np.where(random.uniform(size=(SETS, N)) < 0.65, 1.0, -1.0)
    print("weights of modes:", powers(upper))
    print("information on a spread that normal scores keep, and the best symmetric moment:")
    print("\n".join(f"d = {d}: {efficiency(d)}" for d in (1, 2, 5)))


if __name__ == "__main__":
    main()
