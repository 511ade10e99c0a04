"""Random features: their sums against the engine of all pairs, their mean against the equations."""

from functools import cache, partial

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.special
from jaxtyping import TypeCheckError
from quick import quick_first
from reference.nulls import Gamma

import jaxcal
from jaxcal import RandomFeatures, Scores, kccsd_test, ksd_test, skce_test
from jaxcal.divergences import TotalVariation, Vectors
from jaxcal.engine.linear import SIDE, linear_sums, parts_of, square, triangle
from jaxcal.engine.quadratic import quadratic_sums
from jaxcal.fit import testing
from jaxcal.fit.options import stein_specification, with_random_features
from jaxcal.kernels import (
    IMQ,
    Constant,
    Gaussian,
    L1Laplace,
    Laplace,
    Linear,
    Matern52,
    RationalQuadratic,
)
from jaxcal.kernels.means import waves
from jaxcal.kernels.means.dispatch import kernel_means
from jaxcal.nulls import DependentWild, Eigenvalues, Wild
from jaxcal.read.families import Laplaces, Mixtures, Normals, Particles
from jaxcal.skce.calibration import mean_specification
from jaxcal.statistics.finite_rank import FiniteRank, orthogonal_normals, precisions
from jaxcal.statistics.skce import class_directions

close = partial(np.testing.assert_allclose, rtol=1e-9, atol=1e-11)


class AsTheyAre(eqx.Module):
    """Vectors that are the features [n, c, p] themselves."""

    def __call__(self, features):
        return jnp.moveaxis(features, 0, -1)


@pytest.mark.parametrize(("n", "rows", "channels"), [(12, 2048, 1), (100, 32, 3), (300, 64, 2)])
def test_sums_of_vectors_are_the_sums_over_pairs(n, rows, channels):
    rng = np.random.default_rng(n)
    z = jnp.asarray(rng.normal(0.3, 1, (n, channels, 5)))
    weights = jnp.asarray(rng.normal(size=(n, 4)))
    statistic = FiniteRank(AsTheyAre(), channels)
    linear = jax.jit(partial(linear_sums, statistic, squares=True, eigenvalues=True, rows=rows))(
        z, weights
    )
    pairs = jax.jit(partial(quadratic_sums, statistic, squares=True))(z, weights)
    for name in ("total", "diagonal", "row_sums", "forms", "squares"):
        close(getattr(linear, name), getattr(pairs, name), err_msg=name)
    h = np.einsum("icp,jcp->cij", z, z)
    each = [h.sum(0), *h] if channels > 1 else [h[0]]
    size = linear.eigenvalues.shape[1]
    for values, matrix in zip(linear.eigenvalues, each, strict=True):
        exact = np.linalg.eigvalsh(matrix) - np.mean(np.diag(matrix))
        top = min(size, n)  # below 0 they are no weights, and may be missing
        close(np.maximum(values[-top:], 0), np.maximum(exact[-top:], 0), atol=1e-10)


@pytest.mark.parametrize("p", [3, SIDE, SIDE + 1, 2 * SIDE + 30])
def test_a_symmetric_product_is_the_square_of_its_triangle(p):
    z = np.random.default_rng(p).normal(size=(p, 4))
    close(jax.jit(lambda z: square(triangle(parts_of(z))))(z), z @ z.T)


KERNELS = [
    Gaussian(0.8),
    IMQ(0.8),
    RationalQuadratic(0.8, 2.0),
    Matern52(1.1),
    Laplace(1.3),
    L1Laplace(1.3),
    Constant(),
    Gaussian(0.8) + 0.5 * IMQ(1.2),
    Gaussian(1.5) * Matern52(0.9),
    Gaussian(jnp.array([0.5, 2.0])),
]


@cache
def _normals(orthogonal, draws):
    if orthogonal:
        return np.asarray(_orthogonal(draws, 2))
    return np.asarray(jax.random.normal(jax.random.key(2), (draws, 2)))


@partial(jax.jit, static_argnums=(0, 1))
def _orthogonal(draws, d):
    return orthogonal_normals(jax.random.key(2), (draws, d), jnp.float64)


@pytest.mark.parametrize("kernel", KERNELS, ids=str)
@pytest.mark.parametrize("orthogonal", [True, False])
def test_frequencies_have_the_kernel_as_their_mean_wave(kernel, orthogonal):
    draws, gap = 40_000, np.array([0.7, -0.4])
    draw = jax.jit(lambda key: precisions(kernel, key, draws, 2))(jax.random.key(1))
    values = draw.height * np.cos((_normals(orthogonal, draws) * np.sqrt(draw.values)) @ gap)
    exact = kernel(jnp.asarray(gap), jnp.zeros(2))
    assert abs(np.mean(values) - exact) < 4.5 * np.std(values) / draws**0.5 + 1e-12


def test_orthogonal_normals_are_orthogonal_and_of_normal_length():
    normals = np.asarray(_orthogonal(3000, 3))
    gram = np.einsum("bij,bkj->bik", *[normals.reshape(1000, 3, 3)] * 2)
    close(gram * (1 - np.eye(3)), 0, atol=1e-12)
    assert abs(np.mean(normals**2) - 1) < 4.5 * (2 / 9000) ** 0.5


@pytest.mark.slow
def test_waves_over_predictions_are_characteristic_functions():
    rng = np.random.default_rng(0)
    ws = jnp.asarray(rng.normal(size=(3, 2)))
    loc, scale = rng.normal(size=(4, 2)), np.exp(rng.normal(size=(4, 2)) / 3)
    root = rng.normal(size=(4, 2, 2)) / 2
    n_draws, shape = 40_000, (40_000, 4, 2)
    normal = rng.normal(size=shape)
    draws = {
        "diagonal": loc + np.sqrt(scale) * normal,
        "full": loc + np.einsum("nij,bnj->bni", root, normal),
        "laplace": rng.laplace(loc, scale, shape),
    }
    second = rng.random((*shape[:2], 1)) < 0.3
    draws["mixture"] = np.where(second, 2 + normal, loc + np.sqrt(scale) * normal)
    parts = Normals(
        jnp.stack([jnp.asarray(loc), jnp.full((4, 2), 2.0)], 1),
        jnp.stack([jnp.asarray(scale), jnp.ones((4, 2))], 1),
    )
    predictions = {
        "diagonal": Normals(jnp.asarray(loc), jnp.asarray(scale)),
        "full": Normals(jnp.asarray(loc), jnp.asarray(root @ np.swapaxes(root, 1, 2))),
        "laplace": Laplaces(jnp.asarray(loc), jnp.asarray(scale)),
        "mixture": Mixtures(jnp.tile(jnp.array([0.7, 0.3]), (4, 1)), parts),
    }
    for name, prediction in predictions.items():
        for sine, numpy in ((False, np.cos), (True, np.sin)):
            means = kernel_means(waves.Wave(sine), prediction)
            values = numpy(draws[name] @ ws.T)
            error = 4.5 * values.std(0) / n_draws**0.5
            assert np.all(np.abs(means.first(means.features, ws) - values.mean(0)) < error), name
            few = Particles(jnp.asarray(draws[name][:50]).swapaxes(0, 1))
            from_draws = kernel_means(waves.Wave(sine), few)
            close(from_draws.first(from_draws.features, ws), values[:50].mean(0))


def test_class_directions_have_the_class_gram_of_residuals():
    signs = jnp.asarray(np.array(np.meshgrid(*[[-1, 1]] * 3)).reshape(3, -1).T, float)  # all 8
    matrix = jnp.array(np.diag([1.0, 2.0, 1.5, 1.0]) + 0.3)
    residuals = jnp.array([[0.6, -0.1, -0.2, -0.3], [-0.2, 0.9, -0.3, -0.4]])
    for gram in (None, matrix):
        along = residuals @ class_directions(signs, gram).T
        exact = residuals @ (jnp.eye(4) if gram is None else gram) @ residuals.T
        close(along @ along.T / len(signs), exact)


def _matrices(spec, predictions, targets, n_keys):
    """H of all pairs, and its mean and standard error over the frequencies of several keys."""
    keys = jax.random.split(jax.random.key(0), 2)

    def block(spec):
        prepared, featured = spec.fit(keys, predictions, targets)
        return prepared.pairwise.block(featured.features, featured.features)

    def drawn(key):
        return block(with_random_features(spec, RandomFeatures(key, 64)))

    exact, each = jax.jit(lambda drawn_keys: (block(spec), jax.vmap(drawn)(drawn_keys)))(
        jax.random.split(jax.random.key(1), n_keys)
    )
    return np.asarray(exact), np.mean(each, 0), np.std(each, 0, ddof=1) / n_keys**0.5


def _scored(n, d, key=3):
    rng = np.random.default_rng(key)
    nodes, loc = rng.normal(size=(6, d)), rng.normal(size=(n, d))
    ys = loc + 1.2 * rng.normal(size=(n, d))
    scores = (jnp.asarray(values) for values in (loc - ys, loc[:, None] - nodes, nodes))
    return Scores(*scores), jnp.asarray(ys)


STEIN = {
    "default": {},
    "IMQ and Matern": {"target_kernel": IMQ(), "prediction_kernel": Matern52()},
    "lengths": {"target_kernel": Gaussian(jnp.array([0.5, 2.0]))},
    "coordinates": {"coordinates": True},
    "isotropic": {"precondition": "isotropic"},
    "diagonal": {"precondition": "diagonal"},
    "full": {"precondition": "full"},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", quick_first(STEIN, ["full"]))
def test_features_have_the_stein_kernel_as_their_mean(name):
    predictions, ys = _scored(9, 2)
    exact, mean, error = _matrices(stein_specification(ys, **STEIN[name]), predictions, ys, 400)
    assert np.all(np.abs(mean - exact) < 5 * error + 1e-9)


def _mean_cases():
    rng = np.random.default_rng(8)
    loc, line = jnp.asarray(rng.normal(size=(9, 2))), jnp.asarray(rng.normal(size=9))
    p = jnp.asarray(scipy.special.softmax(rng.normal(size=(9, 4)), axis=1))
    classes = jnp.array([0, 1, 2, 3, 0, 1, 2, 3, 0])
    gram = jnp.asarray(np.eye(4) + 0.3)
    return {
        "normals": (dist.Normal(loc, 0.7).to_event(1), loc + 0.5, {}),
        "laplace": (dist.Laplace(line, 0.7), line - 0.3, {}),
        "classes": (p, classes, {}),
        "similar classes": (p, classes, {"target_kernel": gram}),
        "total variation": (
            p,
            classes,
            {"divergence": TotalVariation(), "prediction_kernel": Laplace()},
        ),
        "draws": (
            jaxcal.Draws(np.asarray(line)[:, None] + rng.normal(size=(9, 6))),
            line,
            {"divergence": Vectors(line)},
        ),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", quick_first(_mean_cases(), ["normals", "classes"]))
def test_features_average_to_the_kernel_of_the_calibration_error(name):
    predictions, ys, options = _mean_cases()[name]
    predictions, ys, spec = mean_specification(predictions, ys, **options)
    exact, mean, error = _matrices(spec, predictions, ys, 400)
    off = ~np.eye(9, dtype=bool)[None]  # from draws the diagonal is that of the same draws
    off = off if name == "draws" else off | True
    assert np.all((np.abs(mean - exact) < 5 * error + 1e-9) | ~off)


@pytest.mark.slow
def test_more_features_come_nearer_to_the_test_of_all_pairs():
    predictions, ys = _scored(300, 1)
    null = Eigenvalues()
    exact = kccsd_test(0, predictions, ys, null=null)
    gaps = []
    for size in (4, 400):
        run = jax.vmap(
            lambda key, size=size: kccsd_test(
                0, predictions, ys, null=null, features=RandomFeatures(key, size)
            )
        )
        results = run(jax.random.split(jax.random.key(1), 8))
        gaps.append(float(jnp.sqrt(jnp.mean((results.biased - exact.biased) ** 2))))
        assert jnp.all(results.biased >= 0)
    assert gaps[1] < gaps[0] / 4  # the square root of a hundredth, and room


@pytest.mark.parametrize("null", [Wild(100), DependentWild(100, flip=0.2), Gamma(), Eigenvalues()])
def test_every_null_serves_features_as_it_serves_pairs(null):
    """A statistic of finite rank has one p-value, whichever engine takes its sums."""
    z = jnp.asarray(np.random.default_rng(0).normal(0.2, 1, (40, 1, 3)))

    class Blocks:  # the same statistic, without saying that it is one of vectors
        channels = 1

        def block(self, rows, cols):
            return jnp.einsum("icp,jcp->cij", rows, cols)

        def diagonal(self, features):
            return jnp.sum(features**2, axis=-1).T

    linear, pairs = jax.jit(
        lambda key, z: [
            testing.apply(null, key, statistic, z)[0]
            for statistic in (FiniteRank(AsTheyAre()), Blocks())
        ]
    )(jax.random.key(1), z)
    if linear.p_error is None:
        close(linear.p_value, pairs.p_value, rtol=1e-6)
    else:  # the diagonal of H is taken for its mean
        assert abs(linear.p_value[0] - pairs.p_value[0]) < linear.p_error[0]
        assert abs(linear.p_value[0] - pairs.p_value[0]) < 1 / 40
    close(linear.contributions, pairs.contributions)


@pytest.mark.slow
def test_results_do_not_depend_on_the_block():
    predictions, ys = _scored(50, 2)
    spec = with_random_features(stein_specification(ys), RandomFeatures(0, 10))

    @jax.jit
    def both(keys):
        prepared, featured = spec.fit(keys, predictions, ys)
        sums = partial(linear_sums, prepared.pairwise, featured.features, jnp.zeros((50, 0)))
        return sums(rows=50), sums(rows=7)

    one, many = both(jax.random.split(jax.random.key(0), 2))
    close(one.total, many.total)
    close(one.row_sums, many.row_sums)


@pytest.mark.slow
def test_a_bad_value_is_no_verdict():
    predictions, ys = _scored(20, 1)
    ys = ys.at[3].set(jnp.nan)
    result = kccsd_test(0, predictions, ys, features=RandomFeatures(0, 10), null=Eigenvalues())
    assert jnp.isnan(result.p_value)
    assert result.verdict == "cannot tell"


@pytest.mark.parametrize(
    ("call", "error", "said"),
    [
        (lambda: RandomFeatures(0, 7), ValueError, "n_features: .* even"),
        (lambda: RandomFeatures(0, 0), ValueError, "n_features"),
        (
            lambda: ksd_test(0, dist.Normal(), jnp.arange(9.0), features=100),
            (TypeError, TypeCheckError),
            "features",
        ),
        (
            lambda: ksd_test(
                0,
                dist.Normal(),
                jnp.arange(9.0),
                target_kernel=Linear(),
                features=RandomFeatures(0),
            ),
            TypeError,
            "target_kernel: random features are those of",
        ),
        (
            lambda: skce_test(
                0,
                jnp.full((9, 3), 1 / 3),
                jnp.zeros(9, int),
                divergence=TotalVariation(),
                features=RandomFeatures(0),
            ),
            TypeError,
            "distance between vectors",
        ),
    ],
)
def test_what_has_no_random_features_is_named(call, error, said):
    with pytest.raises(error, match=said):
        call()


@pytest.mark.slow
def test_the_report_says_what_was_done():
    ys = jnp.linspace(-2, 2, 30)
    result = ksd_test(0, dist.Normal(), ys, features=RandomFeatures(0, 10), null=Eigenvalues())
    assert "10 random features" in str(result)
    assert "may be off by" in str(result)
