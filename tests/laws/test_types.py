"""What a user's type checker sees: right calls pass, wrong ones are named."""

import json
import subprocess
import sys

import pytest

USER = """
import jax
import numpy as np
import numpyro.distributions as dist

import jaxcal
from jaxcal import ckce, dce, divergences, kernels, measures, squared_ce


class Mine:
    def scores(self, ys: jax.Array, /) -> jax.Array:
        return -ys


def log_density(mean, y):
    return -((y - mean) ** 2) / 2


def cosine(x, y):
    return jax.numpy.cos(x - y).sum()


key, ys, p = jax.random.key(0), np.zeros(5), [[0.2, 0.8], [0.5, 0.5]]
predictions = dist.Normal(np.zeros(5), 1.0)
jaxcal.kccsd_test(key, predictions, ys).verdict
jaxcal.kccsd_test(0, jaxcal.Unnormalized(log_density, ys), [1.0, 2.0], target_kernel=cosine)
jaxcal.kccsd_test(0, jaxcal.Scores(ys), ys, divergence=divergences.Vectors(ys))
jaxcal.kcsd_test(0, Mine(), ys, ys)
jaxcal.skce_test(0, p, [0, 1], prediction_kernel=kernels.Gaussian(1.0) + kernels.Linear())
jaxcal.skce_test(0, jaxcal.Draws(np.zeros((5, 4))), ys, target_kernel=kernels.IMQ())
jaxcal.calibration_test(0, jaxcal.Unnormalized(log_density, ys), ys)
jaxcal.distance_from_calibration(0, [0.2, 0.8], [0, 1], weights=np.ones(2)).interval
dce.smooth_ce(np.ones(2), [True, False]).value
ckce.compare(0, {"a": p, "b": p}, [0, 1]).ranking()
measures.reliability([0.2, 0.8], [0, 1]).ece
squared_ce.calibration_error(0, p, [0, 1])
"""
WRONG = """
jaxcal.kccsd_test(0, "model", ys)
jaxcal.kccsd_test(0, predictions, None)
jaxcal.kccsd_test("seed", predictions, ys)
jaxcal.kccsd_test(0, predictions, ys, level="5%")
jaxcal.skce_test(0, predictions, ys, divergence="MMD")
jaxcal.skce_test(0, predictions, ys, target_kernel=1.0)
dce.smooth_ce(0.5, None)
"""


@pytest.mark.slow
def test_pyright_tells_right_calls_from_wrong_ones(tmp_path):
    pytest.importorskip("pyright")
    script = tmp_path / "user.py"
    script.write_text(USER + WRONG)
    command = [sys.executable, "-m", "pyright", "--outputjson", "--pythonpath", sys.executable]
    done = subprocess.run([*command, str(script)], capture_output=True, text=True, cwd=tmp_path)
    said = json.loads(done.stdout)["generalDiagnostics"]
    lines = [each["range"]["start"]["line"] for each in said if each["severity"] == "error"]
    right = USER.count("\n")
    texts = (USER + WRONG).splitlines()
    assert not [texts[line] for line in lines if line < right]
    assert {texts[line] for line in lines} == set(WRONG.split("\n")) - {""}
