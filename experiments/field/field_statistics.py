"""p-values as other libraries compute them, from counts of posterior draws and from classifiers.

Each function states in NumPy and SciPy what the library does; the README says how far they differ.
Where a library has one p-value for each parameter, the smallest is multiplied by their number.
"""

from functools import lru_cache
from typing import Any

import numpy as np
import scipy.stats
from scipy.special import betainc

Array = np.ndarray


def bonferroni(p_values: list[float]) -> float:
    return min(1.0, len(p_values) * min(p_values))


def sbi_ks(counts: Array, m: int) -> float:
    """``sbi.diagnostics.check_sbc``: counts 0, .., m beside the uniform distribution on [0, m]."""
    return bonferroni([scipy.stats.kstest(c, "uniform", (0, m)).pvalue for c in counts.T])


def tarp_curves(coverage: Array, bins: int) -> float:
    """``check_tarp`` of sbi, ``accuracy_random_points`` of BayesFlow: the expected coverage at the
    edges of the bins, and these edges, as if they were two samples."""
    density, edges = np.histogram(coverage, bins=bins, density=True)
    expected = np.concatenate([[0.0], np.cumsum(density) / density.sum()])
    return scipy.stats.kstest(expected, edges).pvalue


def _gamma(below: Array, n: int, m: int) -> Array:
    """Modrak et al. (2025), eq. 7: ``below[i]`` of n ranks are less than i + 1, i = 0, .., m."""
    z = np.arange(1, m + 2) / (m + 1)
    lower, upper = scipy.stats.binom.cdf(below, n, z), scipy.stats.binom.sf(below - 1, n, z)
    return 2 * np.min(np.minimum(lower, upper), axis=-1)


@lru_cache
def _gamma_under_uniformity(n: int, m: int, draws: int = 5000) -> Array:
    uniform = np.random.default_rng(n).random((draws, n))
    edges = np.arange(1, m + 2) / (m + 1)
    below = np.stack([np.searchsorted(np.sort(u), edges, side="left") for u in uniform])
    return np.sort(_gamma(below, n, m))


def log_gamma(counts: Array, m: int) -> float:
    """``calibration_log_gamma`` of BayesFlow, whose value is below 0 where this p is below .05."""
    n = len(counts)
    null = _gamma_under_uniformity(n, m)
    below = np.stack([np.searchsorted(np.sort(c), np.arange(1, m + 2)) for c in counts.T])
    rank = np.searchsorted(null, _gamma(below, n, m), side="right")
    return bonferroni(list((1 + rank) / (1 + len(null))))


def _truncated_cauchy(p: Array) -> float:
    cauchy = np.where(p < 0.5, np.tan((0.5 - np.minimum(p, 0.5)) * np.pi), 0.0)
    return 0.5 - np.arctan(np.mean(cauchy)) / np.pi


def pot_c(shares: Array) -> float:
    """``uniformity_test(method="pot_c")`` of ArviZ: order statistics beside their Beta law."""

    def one(share: Array) -> float:
        i = np.arange(1, len(share) + 1)
        below = betainc(i, i[::-1], np.sort(share))
        return _truncated_cauchy(2 * np.minimum(below, 1 - below))

    return bonferroni([one(share) for share in shares.T])


def prit_c(shares: Array) -> float:
    """``uniformity_test(method="prit_c")`` of ArviZ: binomial counts at every share, for ranks."""

    def one(share: Array) -> float:
        x, n = np.sort(share), len(share)
        rank = np.searchsorted(x, x, side="right")
        lower = scipy.stats.binom.cdf(rank, n, x)
        upper = 1 - scipy.stats.binom.cdf(rank - 1, n, x)
        return _truncated_cauchy(2 * np.minimum(lower, upper))

    return bonferroni([one(share) for share in shares.T])


def vsbc(counts: Array, m: int) -> float:
    """``vsbc_diagnostic`` of numpyro: are the shares below symmetric about 1 / 2?"""
    shares = counts / m
    return bonferroni(
        [scipy.stats.ks_2samp(share, 1 - share, method="asymp").pvalue for share in shares.T]
    )


def conformal(seed: int, pairs: Array, of_draws: Array) -> float:
    """The conformal test of BayesFlow's ``classifier_two_sample_test``: twice the mean p-value of
    five folds, of scores of a classifier between (x, parameter) and (x, draw), each [n, k].

    The classifier is scikit-learn's network of the same layers, where BayesFlow takes Keras'.
    """
    from sklearn.model_selection import KFold
    from sklearn.neural_network import MLPClassifier

    n, k = pairs.shape
    rows = np.concatenate([of_draws, pairs])
    rows = (rows - rows.mean(axis=0)) / rows.std(axis=0)
    labels, width = np.repeat([0, 1], n), 2 ** int(np.ceil(np.log2(10 * k)))
    p_values = []
    for train, test in KFold(5, shuffle=True, random_state=seed).split(pairs):
        classifier = MLPClassifier(
            (width, width), max_iter=100, early_stopping=True, random_state=seed
        )
        fold = np.concatenate([train, n + train])
        probabilities = classifier.fit(rows[fold], labels[fold]).predict_proba
        scores, reference = probabilities(rows[test])[:, 1], probabilities(rows[n + test])[:, 1]
        p_values.append(_conformal(seed, reference, scores))
    return min(1.0, 2 * float(np.mean(p_values)))


def _conformal(seed: int, reference: Array, scores: Array) -> float:
    """Bansal et al. (2026): the mean rank of the scores of draws among those of parameters."""
    rng, n = np.random.default_rng(seed), len(reference)
    ordered = np.sort(reference)
    low, high = (np.searchsorted(ordered, scores, side=side) for side in ("left", "right"))
    ranks = (low + rng.random(len(scores)) * (high - low)) / n
    back = np.sort(scores)
    middle = sum(np.searchsorted(back, reference, side=side) for side in ("left", "right")) / 2
    variance = np.var(middle / len(scores), ddof=1) + n / (12 * len(scores))
    return scipy.stats.norm.sf((0.5 - ranks.mean()) / np.sqrt(variance / n))


def lc2st(seed: int, thetas: Array, xs: Array, draws: Array) -> float:
    """``sbi.diagnostics.LC2ST`` at the last x with all its draws; one draw of each of the others.

    19 classifiers under the null: p <= .05 where none of them exceeds the observed one.
    """
    import torch
    from sbi.diagnostics import LC2ST

    tensors = (torch.as_tensor(np.array(a), dtype=torch.float32) for a in (thetas, xs, draws))
    theta, x, drawn = tensors
    test = LC2ST(theta[:-1], x[:-1], drawn[:-1, 0], seed=seed, num_trials_null=19)
    test.train_on_observed_data(verbosity=0)
    test.train_under_null_hypothesis(verbosity=0)
    return float(test.p_value(drawn[-1], x[-1:]))


def lc2st_nf(seed: int, noise: Array, xs: Array, trials: int = 199) -> float:
    """``sbi.diagnostics.LC2ST_NF`` at the last x, for parameters and one draw of each posterior
    that are mapped to standard normal noise [2, n, d]; classifiers under the null are shared."""
    import torch

    theta, drawn, x = (
        torch.as_tensor(np.array(part), dtype=torch.float32) for part in (*noise, xs)
    )
    null = _null_of_noise(len(theta) - 1, theta.shape[1], x.shape[1], trials)
    test = _lc2st_nf(theta[:-1], x[:-1], drawn[:-1], seed, trials, null)
    test.train_on_observed_data(verbosity=0)
    return float(test.p_value(x[-1:]))


@lru_cache
def _null_of_noise(n: int, d: int, q: int, trials: int) -> Any:
    """Classifiers trained under the null, with standard normal inputs [n, q]."""
    import torch

    torch.manual_seed(n)
    theta, x, drawn = (torch.randn(n, k) for k in (d, q, d))
    test = _lc2st_nf(theta, x, drawn, n, trials, None)
    return test.train_under_null_hypothesis(verbosity=0).trained_clfs_null


def _lc2st_nf(theta: Any, x: Any, drawn: Any, seed: int, trials: int, null: Any) -> Any:
    import torch
    from sbi.diagnostics import LC2ST_NF

    d = theta.shape[1]
    base = torch.distributions.MultivariateNormal(torch.zeros(d), torch.eye(d))
    return LC2ST_NF(
        theta,
        x,
        drawn,
        lambda noise, _: noise,
        base,
        num_eval=999,
        trained_clfs_null=null,
        seed=seed,
        num_trials_null=trials,
    )
