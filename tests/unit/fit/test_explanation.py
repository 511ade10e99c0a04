"""`jaxcal.explain` prints what a test was fitted with, and the shapes are those of its arrays."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import numpyro.distributions as dist
import pytest

import jaxcal
from jaxcal import divergences, kernels, whitening

N, D = 20, 3
CENTERS, NOISE = jax.random.normal(jax.random.key(0), (2, N, D))
PREDICTIONS = dist.Normal(CENTERS, 1.0).to_event(1)
YS = CENTERS + NOISE


def explained(capsys, result):
    jaxcal.explain(result)
    return capsys.readouterr().out.splitlines()


@pytest.mark.slow
def test_the_steps_of_a_stein_test(capsys):
    kernel = kernels.IMQ() + kernels.Constant()
    options = {"n_nodes": 7, "prediction_kernel": kernel, "whiten": whitening.Landing()}
    result = jaxcal.kccsd_test(1, PREDICTIONS, YS, **options)
    head, *lines = explained(capsys, result)
    assert head == "KCCSD test, n = 20"
    for place, words in enumerate(
        (
            "units       t = (y - mean) / sd of the targets, and M_i^-1",
            "nodes       z_1, .., z_7 from N(0, I) in these units, [7, 3]",
            "scores      s_i = grad log p_i at the target, [20, 3], and at the nodes, [20, 7, 3]",
            "features    D(p, q): Fisher (\\frac1m",
            "bandwidths  k = IMQ ((1 + u)^-beta) + Constant (k = 1); l = Gaussian (exp(-u",
            "statistic   h_ij = k(D(p_i, p_j)) [l s_i's_j",
        )
    ):
        assert lines[place].startswith(f"{place + 1} {words}")
    assert f"(20, {7 * D})" in lines[3]
    assert f"prediction {float(result.bandwidths['prediction']):.4g}" in lines[4]
    assert f"p = {float(result.p_value):.4g}" in lines[7]


@pytest.mark.slow
def test_inputs_are_what_a_goodness_of_fit_test_compares(capsys):
    lines = explained(capsys, jaxcal.kcsd_test(1, PREDICTIONS, YS, np.asarray(CENTERS[:, :2])))
    assert "Vectors" in lines[4]
    assert "(20, 2)" in lines[4]
    lines = explained(capsys, jaxcal.ksd_test(1, dist.Normal(np.zeros(D), 1.0).to_event(1), YS))
    assert "not compared" in lines[4]


@pytest.mark.slow
def test_classes_means_moments_and_locations(capsys):
    p = jax.random.dirichlet(jax.random.key(2), np.ones(3), (N,))
    lines = explained(capsys, jaxcal.skce_test(1, p, np.arange(N) % 3))
    assert [line.split(maxsplit=2)[2] for line in lines[1:4]] == [
        "classes have none",
        "none needed",
        "none needed",
    ]
    assert "l(y_i, y_j) - E l(Z_i, y_j)" in lines[6]
    wide = {"divergence": divergences.Wasserstein(), "features": jaxcal.RandomFeatures(0, 8)}
    assert (
        "in 8 random features" in explained(capsys, jaxcal.skce_test(1, PREDICTIONS, YS, **wide))[6]
    )
    assert "m = Balance" in explained(capsys, jaxcal.moment_test(1, PREDICTIONS, YS))[6]
    assert "at J locations" in explained(capsys, jaxcal.ucme_test(1, PREDICTIONS, YS))[6]


@pytest.mark.slow
def test_the_steps_of_a_calibration_test(capsys):
    result: Any = jaxcal.calibration_test(1, PREDICTIONS, YS, inputs=CENTERS[:, :2])
    head, *lines = explained(capsys, result)
    assert head == "calibration test, n = 20"
    assert lines[2].endswith("s_i = grad log p_i at the target, [20, 3]")
    assert lines[3].endswith("log of the claimed scale, 2 inputs")
    assert lines[5].endswith(f"averaged over {', '.join(result.parts.names)}")
    assert f"p = {float(result.p_value):.4g}" in lines[7]


@pytest.mark.slow
def test_results_without_these_steps_are_refused():
    one = jaxcal.skce_test(1, PREDICTIONS, YS)
    both = jax.tree.map(lambda leaf: np.stack([leaf, leaf]), one)
    for other in (replace(one, steps=()), both):
        with pytest.raises(ValueError, match="result: wanted one result of calibration_test"):
            jaxcal.explain(other)
