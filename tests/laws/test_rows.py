"""Laws of every estimate from rows: their order changes nothing, and NaN stays NaN."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from reference import distances, finite, kernel_density, sketches
from reference.classes import canonical_error
from reference.mixtures import mse

from jaxcal import dce, measures, squared_ce
from jaxcal.squared_ce.leave_one_out import compare_risks, one_step

KEY = jax.random.key(0)


def of_probabilities(v, y, w):
    """Everything that `jaxcal.dce` says of predictions, labels and weights, by name."""
    result = dce.distance_from_calibration(KEY, v, y, weights=w, n_draws=5)
    return {
        "ece": dce.unbinned_ece(v, y, weights=w),
        "binned ece": dce.binned_ece(v, y, weights=w).bound,
        "weighted": distances.weighted_ce(v, y, [jnp.ones_like, jnp.sin], weights=w).value,
        "best bins": dce.interval_ce(v, y, weights=w).value,
        "random bins": sketches.random_interval_ce(v, y, weights=w, width=0.3),
        "surrogate": dce.surrogate_interval_ce(v, y, weights=w, accuracy=None).value,
        "laplace": dce.kernel_ce(v, y, weights=w).value,
        "laplace witness": distances.laplace_witness(v, y, jnp.array([0.3]), weights=w)[0],
        "kernel": dce.kernel_ce(v, y, weights=w, bandwidth=0.5).value,
        "smooth": dce.smooth_ce(v, y, weights=w).value,
        "smooth on a grid": distances.smooth_ce_grid(v, y, weights=w, cells=50).value,
        "low": result.bracket.low,
        "high": result.bracket.high,
        "population low": result.interval.low,
        "population high": result.interval.high,
        "p-value": result.p_value,
    }


def of_rows(v, y, w):
    """What `jaxcal.measures` and `jaxcal.squared_ce` say of the same numbers."""
    n = v.shape[0]
    p = jnp.stack([v, 1 - v], axis=1)
    hits = y.astype(int)
    normal = dist.Normal(v, jnp.full(n, 0.4))
    classes = jnp.stack([v**2, 1 - v**2], axis=1)
    top, right = measures.confidences(p, 1 - hits)
    curve = measures.quantile_calibration(normal, y)
    reliability = measures.reliability(v, hits)
    problem = squared_ce.reduce(v, hits, "binary")
    risks = (v - y) ** 2, (v**2 - y) ** 2
    return {
        "cells": canonical_error(p, 1 - hits).mean,
        "largest cell": canonical_error(p, 1 - hits).largest,
        "known": canonical_error(p, conditional=classes).mean,
        "ball of L1": finite.lp_ball_error(p, classes, 1.0),
        "ball of L2": finite.lp_ball_error(p, classes, 2.0),
        "top label": jnp.mean(top - right.astype(float)),
        "reliability": reliability.ece,
        "worst bin": reliability.mce,
        "nll": measures.nll(normal, y),
        "mse": mse(normal, y),
        "pinball": measures.pinball_loss(normal, y, levels=[0.1, 0.7]),
        "quantiles": curve.observed[3],
        "quantile p-value": curve.p_value,
        "one step": one_step(risks[0]).squared,
        "risk p-value": compare_risks(*risks).p_value,
        "leave one out": kernel_density.leave_one_out_error(problem, 0.1),
    }


@pytest.mark.parametrize("said", [of_probabilities, of_rows])
@pytest.mark.parametrize("n", [12, *(pytest.param(n, marks=pytest.mark.slow) for n in (100, 300))])
def test_the_order_of_rows_changes_nothing_and_nan_stays(said, n):
    """NaN in the first, the last, or the middle of the rows."""
    rng = np.random.default_rng(n)
    v = jnp.asarray(rng.uniform(0.05, 0.95, n))
    y = jnp.asarray((rng.random(n) < v).astype(float))
    w = jnp.asarray(rng.random(n)) if said is of_probabilities else jnp.ones(n)
    run = jax.jit(said)
    wanted = run(v, y, w)
    order = rng.permutation(n)
    shuffled = run(v[order], y[order], w[order])
    for name, value in wanted.items():
        assert np.isfinite(value), name
        assert float(shuffled[name]) == pytest.approx(float(value), abs=1e-10), name
    for row in (0, n // 2, n - 1):
        for name, value in run(v.at[row].set(jnp.nan), y, w).items():
            assert np.isnan(value), name
