"""A set of observations has no order: estimates and bandwidths are those of the set."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

from jaxcal import Draws, Unnormalized, kccsd, kcsd, ksd
from jaxcal.ckce import ckce_low_rank, pooled_bandwidth
from jaxcal.distance import smooth_ce
from jaxcal.kernels.bandwidths import median_heuristic, pairs
from jaxcal.kernels.medians import HELD
from jaxcal.kernels.predictions import Vectors
from jaxcal.measures import mmce
from jaxcal.skce import skce
from jaxcal.ucme import ucme

KEY = jax.random.key(0)


def log_density(params, y):
    return -jnp.sum(((y - params[0]) / params[1]) ** 2) / 2


def data(n):
    rng = np.random.default_rng(n)
    return {
        "mean": rng.normal(size=(n, 2)),
        "width": np.exp(rng.normal(size=(n, 2)) / 2),
        "ys": rng.standard_t(5, size=(n, 2)),
        "samples": rng.normal(size=(n, 8, 2)),
        "classes": rng.dirichlet(np.ones(3) / 2, n),
        "labels": rng.integers(0, 3, n),
    }


def normals(d):
    return dist.Normal(d["mean"], d["width"]).to_event(1)


def energies(d):
    return Unnormalized(log_density, (d["mean"], d["width"]))


SLOW = ("ksd", "kcsd", "draws", "distance")
ESTIMATES = {
    "kccsd": lambda d: kccsd(KEY, energies(d), d["ys"], precondition="isotropic"),
    "kcsd": lambda d: kcsd(KEY, energies(d), d["ys"], inputs=d["mean"]),
    "ksd": lambda d: ksd(KEY, energies(d), d["ys"]),
    "skce": lambda d: skce(KEY, normals(d), d["ys"]),
    "classes": lambda d: skce(KEY, d["classes"], d["labels"]),
    "draws": lambda d: skce(KEY, Draws(d["samples"]), d["ys"]),
    "ckce": lambda d: ckce_low_rank(d["classes"], d["labels"], rank=16).estimate,
    "compare": lambda d: pooled_bandwidth(jnp.stack([d["classes"], d["classes"][:, ::-1]])),
    "measures": lambda d: mmce(d["classes"][:, 0], d["labels"] == 0).biased,
    "distance": lambda d: smooth_ce(d["classes"][:, 0], d["labels"] == 0).value,
}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in ESTIMATES],
)
def test_the_order_of_the_observations_changes_nothing(name):
    estimate = jax.jit(ESTIMATES[name])
    for n in (200, 1000) if name in ("kccsd", "ckce", "measures") else (200,):
        rows = {key: jnp.asarray(value) for key, value in data(n).items()}
        order = np.random.default_rng(1).permutation(n)
        there, back = (
            jax.tree.leaves(estimate(one))
            for one in (rows, {key: value[order] for key, value in rows.items()})
        )
        np.testing.assert_allclose(back, there, rtol=1e-9, atol=1e-12)


def test_locations_score_the_same_set():
    rows = {key: jnp.asarray(value) for key, value in data(100).items()}
    at = (dist.Normal(rows["mean"][:3] + 0.1, rows["width"][:3]).to_event(1), rows["ys"][:3])

    def estimate(d):
        return ucme(KEY, normals(d), d["ys"], locations=at)

    order = np.random.default_rng(1).permutation(100)
    back = estimate({key: value[order] for key, value in rows.items()})
    np.testing.assert_allclose(back, estimate(rows), rtol=1e-9)


def test_many_rows_are_represented_by_pairs_that_their_values_choose():
    n = 2500
    assert n * (n - 1) // 2 > HELD
    vectors = np.random.default_rng(0).standard_t(3, size=(n, 2))
    median = jax.jit(lambda v: median_heuristic(Vectors(v), v)[0])
    there = median(jnp.asarray(vectors))
    order = np.random.default_rng(1).permutation(n)
    np.testing.assert_allclose(median(jnp.asarray(vectors[order])), there, rtol=1e-12)
    from scipy.spatial.distance import pdist

    # 2^21 of 3.1 million pairs: the share below their median is 1/2 within 5 standard errors
    share = np.mean(pdist(vectors) < float(there))
    assert abs(share - 0.5) < 5 * 0.5 / HELD**0.5


def test_pairs_are_of_different_places():
    for n in (2, 64, 65, 300, 5000):
        i, j = pairs(n)
        assert np.all(np.asarray(i) != np.asarray(j))
        assert max(int(i.max()), int(j.max())) < n
