"""A set of observations has no order: estimates and bandwidths are those of the set.

So are choices of some observations (folds, landmarks, locations, base points): the values make
them, and a key where there is one. What is drawn observation by observation is not: signs and
resamples of a null, draws of a prediction. There permuted rows and the same key give other draws
of the same distribution.
"""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest
from api import public

from jaxcal import Draws, Unnormalized, kccsd, kcsd, ksd, sbi, squared_ce
from jaxcal.ckce import LowRank, ckce, compare
from jaxcal.ckce.class_comparison import pooled
from jaxcal.coverage import coverage
from jaxcal.dce import kernel_ce, smooth_ce
from jaxcal.divergences.vectors import Vectors
from jaxcal.fit.specification import range_over_iqr
from jaxcal.kernels.bandwidths import MAX_OBSERVATIONS, median_heuristic, pairs
from jaxcal.kernels.points import Gaussian
from jaxcal.results import in_one_order
from jaxcal.sbi.diagnosis import diagnose
from jaxcal.skce import skce
from jaxcal.squared_ce.kernel_ridge import spectral
from jaxcal.ucme import ucme
from jaxcal.whitening import Moments

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


def shares(d):
    shares_of = coverage(normals(d), d["ys"], d["samples"])
    return shares_of.observed, shares_of.p_uniform, shares_of.p_conservative


def compared(d):
    """Without what is resampled by row."""
    models = jnp.stack([d["classes"], d["classes"][:, ::-1]])
    comparison = compare(
        KEY, models, d["labels"], measure="ckce", rank=8, n_draws=3, prediction_kernel=Gaussian(0.3)
    )
    return comparison.estimate, comparison.corrected, comparison.left_out


def diagnosed(d):
    scores = (d["mean"] - d["ys"]) / d["width"]
    values = jnp.concatenate([d["mean"], d["width"]], axis=1)
    return diagnose(KEY, d["ys"], scores, values, d["mean"])


def ridges(d):
    """The eigenvalues of the low rank of a kernel whose diagonal is constant."""
    problem = squared_ce.reduce(d["classes"], d["labels"], "canonical")
    result = spectral((Gaussian(0.2),), problem, 8)
    return result.values, result.unexplained


SLOW = ("ksd", "kcsd", "draws", "divergence", "diagnosis", "compared", "locations")
ESTIMATES = {
    "kccsd": lambda d: kccsd(KEY, energies(d), d["ys"], precondition="isotropic"),
    "kcsd": lambda d: kcsd(KEY, energies(d), d["ys"], inputs=d["mean"]),
    "ksd": lambda d: ksd(KEY, energies(d), d["ys"]),
    "skce": lambda d: skce(KEY, normals(d), d["ys"]),
    "classes": lambda d: skce(KEY, d["classes"], d["labels"]),
    "draws": lambda d: skce(KEY, Draws(d["samples"]), d["ys"]),
    "ckce": lambda d: ckce(d["classes"], d["labels"], solver=LowRank(16)).estimate,
    "low rank": lambda d: (
        ckce(d["classes"], d["labels"], solver=LowRank(8), prediction_kernel=Gaussian(0.3)).estimate
    ),
    "compared": compared,
    "ridges": ridges,
    "reach": lambda d: range_over_iqr(d["ys"]),
    "coverage": shares,
    "diagnosis": diagnosed,
    "locations": lambda d: ucme(KEY, normals(d), d["ys"]),
    "compare": lambda d: pooled(jnp.stack([d["classes"], d["classes"][:, ::-1]])),
    "kernel": lambda d: kernel_ce(d["classes"][:, 0], d["labels"] == 0).squared,
    "divergence": lambda d: smooth_ce(d["classes"][:, 0], d["labels"] == 0).value,
}
# in the first run at n = 200 alone
FEW = ("skce", "classes", "compare")
CASES = [
    pytest.param(
        name,
        n,
        marks=pytest.mark.slow if name in SLOW or (name in FEW and n == 1000) else (),
    )
    for name in ESTIMATES
    for n in (200, 1000)
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "n"), CASES)
def test_the_order_of_the_observations_changes_nothing(name, n):
    estimate = jax.jit(ESTIMATES[name])
    rows = {key: jnp.asarray(value) for key, value in data(n).items()}
    order = np.random.default_rng(1).permutation(n)
    there, back = (
        jax.tree.leaves(estimate(one))
        for one in (rows, {key: value[order] for key, value in rows.items()})
    )
    for value, again in zip(there, back, strict=True):
        np.testing.assert_allclose(again, value, rtol=1e-9, atol=1e-12)


@pytest.mark.slow
def test_locations_score_the_same_set():
    rows = {key: jnp.asarray(value) for key, value in data(100).items()}
    at = (dist.Normal(rows["mean"][:3] + 0.1, rows["width"][:3]).to_event(1), rows["ys"][:3])

    def estimate(d):
        return ucme(KEY, normals(d), d["ys"], locations=at)

    order = np.random.default_rng(1).permutation(100)
    back = estimate({key: value[order] for key, value in rows.items()})
    np.testing.assert_allclose(back, estimate(rows), rtol=1e-9)


@pytest.mark.slow
def test_landmarks_of_many_rows_are_chosen_by_their_values():
    n = 5000
    q, y = jnp.asarray(data(n)["classes"]), jnp.asarray(data(n)["labels"])
    order = np.random.default_rng(1).permutation(n)
    there, back = (
        ckce(a, b, solver=LowRank(16), bandwidth=0.3).estimate
        for a, b in ((q, y), (q[order], y[order]))
    )
    np.testing.assert_allclose(back, there, rtol=1e-9)


@pytest.mark.parametrize("n", [200, 1000])
def test_base_points_are_the_same_pairs_wherever_they_stand(n):
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, 2))
    thetas = x + rng.normal(size=(n, 2))

    def log_prob(theta, x):
        return -jnp.sum((theta - x) ** 2) / 2

    order = rng.permutation(n)
    there, back = (
        sbi.score_pairs(KEY, log_prob, thetas[rows], x[rows]) for rows in (np.arange(n), order)
    )
    np.testing.assert_array_equal(back.scores.nodes, there.scores.nodes)
    first, again = np.argsort(there.thetas[:, 0]), np.argsort(back.thetas[:, 0])
    np.testing.assert_array_equal(back.thetas[again], there.thetas[first])
    np.testing.assert_array_equal(back.features[again], there.features[first])
    assert len(there.thetas) == n - 10


def test_representatives_of_many_rows_are_chosen_by_value():
    from scipy.spatial.distance import pdist, squareform

    n, m = 2500, MAX_OBSERVATIONS
    vectors = np.random.default_rng(0).standard_t(3, size=(n, 2))
    median = jax.jit(lambda v: median_heuristic(Vectors(v), v)[0])
    there = float(median(jnp.asarray(vectors)))
    order = np.random.default_rng(1).permutation(n)
    np.testing.assert_allclose(median(jnp.asarray(vectors[order])), there, rtol=1e-12)
    near = squareform(pdist(vectors)) < there
    # of m of n observations: a U-statistic, whose variance is 4 times that of a mean, and of pairs
    share = (np.sum(near) - n) / (n * (n - 1))
    error = 2 * np.std(np.mean(near, axis=1)) / m**0.5
    assert abs(share - 0.5) < 5 * error


@pytest.mark.slow
@pytest.mark.parametrize("place", [0, 700, 1999])
def test_one_prediction_of_many_that_differs_is_compared(place):
    vectors = jnp.zeros((2000, 2)).at[place].set(jnp.asarray([3.0, 4.0]))
    median, all_equal = median_heuristic(Vectors(vectors), vectors)
    assert median == 5
    assert not all_equal


def test_pairs_are_of_different_places():
    for n in (2, 64, 65, 300, 5000):
        i, j = pairs(n)
        assert np.all(np.asarray(i) != np.asarray(j))
        assert max(int(i.max()), int(j.max())) < n


def test_all_that_takes_pairs_looks_at_the_order_of_their_rows():
    """Frames whose rows are in different orders were taken by place: by eight functions."""
    functions = {}
    for name, value in public().items():
        if not inspect.isclass(value):
            functions[name] = value
            continue
        methods = [k for k, v in vars(value).items() if isinstance(v, classmethod) and k[0] != "_"]
        functions |= {f"{name}.{method}": getattr(value, method) for method in methods}
    pairs = [{"targets", models} for models in ("predictions", "model", "models")]
    pairs.append({"thetas", "xs"})
    one = pd.Series(np.linspace(0.1, 0.9, 8))
    looked = 0
    for function in functions.values():
        names = set(inspect.signature(function).parameters) if callable(function) else set()
        for first, second in (sorted(pair) for pair in pairs if pair <= names):
            looked += 1
            with pytest.raises(ValueError, match="another order"):  # before others are missed
                function(**{first: one, second: one[::-1]})
    assert looked > 40


@pytest.mark.parametrize(
    "call",
    [
        lambda a, b: kccsd(0, Unnormalized(log_density, (a, a)), b),
        lambda a, b: skce(0, dist.Normal(jnp.zeros(8), 1.0), b, divergence=Vectors(a)),
        lambda a, b: skce(0, dist.Normal(jnp.zeros(8), 1.0), b, whiten=Moments(a, a)),
    ],
    ids=["parameters", "vectors", "moments"],
)
def test_parts_of_arguments_are_looked_at_though_they_are_arrays(call):
    one = pd.Series(np.linspace(0.1, 0.9, 8))
    call(one, one)
    with pytest.raises(ValueError, match="another order"):
        call(one, one[::-1])


def test_columns_and_names_are_compared_as_text():
    frame = pd.DataFrame(np.eye(2), columns=["a", "b"])
    for names in (["b", "a"], np.array(["b", "a"]), pd.Index(["b", "a"])):
        with pytest.raises(ValueError, match="wanted the columns of names in their order"):
            in_one_order({"targets": frame, "names": names})
    in_one_order({"targets": frame, "names": np.array(["a", "b"])})
    in_one_order({"thetas": pd.DataFrame(np.eye(2)), "names": ("0", "1")})
