"""Exact posteriors of three simulators with eight faults each: the verdict, and what is named.

Rates over many data sets are in `experiments/sbi_verdicts/faults`.
"""

import re

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from reference import faulty

from jaxcal import sbi

N = 200
SIZES = {"narrow": 0.6, "wide": 1.6, "shifted": 0.6}
NAMED = {  # a finding that names the fault
    "narrow": "b is overconfident",
    "wide": "b is underconfident",
    "shifted": "b is too high",
    "correlation": "the correlation of a and b",
    "swapped": "a and b may be swapped",
    "dropped": ".* a mode may be missing",
    "ignores": "errors change with x",
    "prior": "errors change with x",
}
SILENT = {("rates", "wide")}  # found and not named
INNOCENT = {"narrow": "a", "wide": "a", "shifted": "a", "correlation": "[ab]"}


def pairs(simulator, n, key):
    which = jnp.asarray(faulty.SIMULATORS.index(simulator))
    return faulty.simulated(jax.random.key(key), which, jnp.asarray(1.0), n)


def joint(simulator, theta, x):
    """Log density of parameters and observation, by SciPy."""
    (a, b), normal = theta, scipy.stats.norm.logpdf
    if simulator == "gaussian":
        return normal(a) + normal(b) + normal(x[0], a + 0.8 * b, 0.5) + normal(x[1], b, 0.8)
    if simulator == "modes":
        of_sign = [normal(a, 1.5 * s, 0.5) + normal(x[0], s * a, 0.3) for s in (1, -1)]
        return np.logaddexp(*of_sign) + normal(b) + normal(x[1], b + 0.8 * a, 0.6)
    gamma, ratio = scipy.stats.gamma.logpdf, b / a
    prior = gamma(a, 2) + gamma(ratio, 3) - np.log(a)
    times = np.exp(x)
    return prior + gamma(times[0], 3, scale=1 / a) + gamma(times[1], 4, scale=1 / ratio)


@pytest.mark.slow
@pytest.mark.parametrize("simulator", faulty.SIMULATORS)
def test_posteriors_are_exact(simulator):
    thetas, xs = pairs(simulator, 20, key=1)
    others = thetas * jnp.exp(0.3 * jax.random.normal(jax.random.key(2), thetas.shape))
    exact = eqx.filter_jit(eqx.filter_vmap(faulty.posterior(simulator, "right")))
    gains = exact(others, xs) - exact(thetas, xs)
    rows = zip(np.asarray(others), np.asarray(thetas), np.asarray(xs), strict=True)
    wanted = [joint(simulator, other, x) - joint(simulator, theta, x) for other, theta, x in rows]
    np.testing.assert_allclose(gains, wanted, rtol=1e-9)


@pytest.fixture(scope="module")
def check():
    def checked(simulator, fault):
        thetas, xs = pairs(simulator, N, key=33)
        prior, _ = pairs(simulator, faulty.PRIOR_DRAWS, key=34)
        density = faulty.posterior(simulator, fault, size=SIZES.get(fault, 1.0))
        return sbi.check_posterior(
            35,
            density,
            thetas,
            xs,
            prior=prior,
            bounds=faulty.bounds(simulator),
            names=["a", "b"],
            chains=None,
        )

    return checked


@pytest.mark.slow
@pytest.mark.parametrize("simulator", faulty.SIMULATORS)
def test_right_posteriors_pass_and_nothing_is_named(simulator, check):
    report = check(simulator, "right")
    assert report.conclusion.startswith("no evidence")
    assert report.findings() == []


@pytest.mark.slow
@pytest.mark.parametrize("fault", NAMED)
@pytest.mark.parametrize("simulator", faulty.SIMULATORS)
def test_faults_are_rejected_and_named(simulator, fault, check):
    report = check(simulator, fault)
    assert float(report.p_value) <= 0.05
    said = report.findings()
    if (simulator, fault) not in SILENT:
        assert any(re.match(NAMED[fault], text) for text in said)
    if fault in INNOCENT:
        assert not any(
            re.match(f"{INNOCENT[fault]} is|.* of {INNOCENT[fault]}:", text) for text in said
        )
    swapped = any("may be swapped" in text for text in said)
    assert swapped == (fault == "swapped")
