"""Calls that make no sense end in a sentence that names the argument."""

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from optional import torch_by_name, with_packages

import jaxcal
from jaxcal import Scores, kccsd_test, kcsd_test, ksd_test, measures, sbi, skce_test, ucme
from jaxcal.divergences import Fisher
from jaxcal.kernels import Delta, Gaussian, Laplace
from jaxcal.nulls import BlockNormal
from jaxcal.read.families import distribution_of
from jaxcal.squared_ce import Bins

YS = np.random.default_rng(0).normal(size=(12, 2))
SCORES = Scores(-YS, np.zeros((12, 4, 2)), np.ones((4, 2)))
NORMALS = dist.Normal(jnp.zeros((12, 2)), 1.0).to_event(1)
P, Y = np.linspace(0.1, 0.9, 12), np.arange(12) % 2


pytestmark = pytest.mark.usefixtures("as_users_run_it")


def torch_normal():
    import torch

    return torch.distributions.Normal(torch.zeros(12), 1.0)


CALLS = {
    "kernel a string": (lambda: kccsd_test(0, SCORES, YS, target_kernel="rbf"), "target_kernel"),
    "kernel a class": (
        lambda: kccsd_test(0, SCORES, YS, prediction_kernel=Gaussian),
        r"prediction_kernel: .*call it: Gaussian\(\)",
    ),
    "kernel a number": (lambda: Gaussian(1.0) + 2.0, "kernel"),
    "bandwidth a string": (lambda: Laplace("wide"), "bandwidth"),
    "distance a class": (
        lambda: kccsd_test(0, SCORES, YS, divergence=Fisher),
        "divergence: .*call it",
    ),
    "distance a string": (lambda: skce_test(0, NORMALS, YS, divergence="w2"), "divergence"),
    "null a class": (lambda: ucme.ucme_test(0, NORMALS, YS, null=ucme.F), "null"),
    "null of locations": (lambda: kccsd_test(0, SCORES, YS, null=ucme.F()), "null"),
    "block size": (lambda: BlockNormal(2.5), "size: wanted a whole number of at least 2"),
    "classes' kernel": (lambda: skce_test(0, NORMALS, YS, target_kernel=Delta()), "target_kernel"),
    "and of a density": (lambda: kccsd_test(0, SCORES, YS, target_kernel=Delta()), "target_kernel"),
    "torch": (lambda: kccsd_test(0, torch_normal(), YS[:, 0]), "predictions: torch's Normal"),
    "torch too": (lambda: skce_test(0, torch_normal(), YS[:, 0]), "predictions: torch's Normal"),
    "torch again": (lambda: measures.nll(torch_normal(), YS[:, 0]), "predictions: torch's Normal"),
    "a class": (lambda: kccsd_test(0, Scores, YS), "predictions: got the class Scores"),
    "StudentT": (
        lambda: measures.quantiles(dist.StudentT(3.0, jnp.zeros(12), 1.0)),
        "predictions: StudentT has no inverse cdf",
    ),
    "Gamma": (
        lambda: measures.quantiles(dist.Gamma(jnp.ones(12), 1.0)),
        "predictions: Gamma has no inverse cdf",
    ),
    "groups": (lambda: jaxcal.compare(0, P, Y, groups=0), "groups: wanted text or integers"),
    "estimators": (
        lambda: jaxcal.calibration_error(0, P, Y, folds=2, estimators=[Bins]),
        "estimators",
    ),
    "accuracy": (lambda: jaxcal.distance_from_calibration(0, P, Y, accuracy=0), "accuracy"),
    "KCSD": (
        lambda: kcsd_test(0, SCORES, YS, YS, divergence=Fisher()),
        "divergence: KCSD compares",
    ),
    "KCSD estimate": (
        lambda: jaxcal.kcsd(0, SCORES, YS, YS, divergence=Fisher()),
        "divergence: KCSD",
    ),
    "KSD": (
        lambda: ksd_test(0, SCORES, YS, prediction_kernel=Gaussian()),
        "prediction_kernel: KSD",
    ),
    "KSD distance": (lambda: jaxcal.ksd(0, SCORES, YS, divergence=Fisher()), "divergence: KSD"),
    "coverage": (lambda: sbi.check_posterior(0, SCORES, YS, YS, coverage=0.9), "coverage: wanted"),
    "confidence": (lambda: measures.reliability(P + 1, Y), "confidence: .*out of range"),
}


@pytest.mark.parametrize("name", with_packages(CALLS, torch_by_name))
def test_a_sentence_names_the_argument(name):
    call, words = CALLS[name]
    with pytest.raises((TypeError, ValueError), match=rf"(?s)^{words}"):
        call()


@pytest.mark.parametrize("scale", [2, 2.0, np.float64(2.0), np.float32(2.0), jnp.asarray(2.0)])
def test_a_number_on_either_side_multiplies_a_kernel(scale):
    x, y = jnp.zeros(2), jnp.ones(2)
    kernel = Gaussian(1.0)
    for product in (kernel * scale, scale * kernel):
        assert float(product(x, y)) == pytest.approx(2 * float(kernel(x, y)))


def test_components_that_all_mixtures_share_are_repeated():
    mixing = dist.Categorical(jnp.full((12, 2), 0.5))
    shared = dist.MixtureSameFamily(mixing, dist.Normal(jnp.asarray([0.0, 1.0]), 1.0))
    each = dist.MixtureSameFamily(
        mixing, dist.Normal(jnp.tile(jnp.asarray([0.0, 1.0]), (12, 1)), 1.0)
    )
    np.testing.assert_allclose(distribution_of(shared).parts.mean, distribution_of(each).parts.mean)
    np.testing.assert_allclose(measures.quantiles(shared, [0.5]), measures.quantiles(each, [0.5]))
