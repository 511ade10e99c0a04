"""Who averages what: mixtures, sums, classes, draws, and what has no closed form."""

from functools import partial
from typing import NamedTuple

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pandas as pd
import pytest

from jaxcal import Draws
from jaxcal.kernels import IMQ, ClassGram, Delta, Gaussian, L1Laplace, Laplace, PowerExponential
from jaxcal.kernels.means import dispatch
from jaxcal.kernels.means.dispatch import kernel_means, pair
from jaxcal.read import Standardized, Units
from jaxcal.read.families import Classes, Mixtures, Normals, distribution_of

close = partial(np.testing.assert_allclose, rtol=1e-10, atol=1e-12)


def mixture(weights, means, scales, family=dist.Normal):
    parts = family(jnp.asarray(means), jnp.asarray(scales))
    return dist.MixtureSameFamily(dist.Categorical(probs=jnp.asarray(weights)), parts)


P = ([[0.3, 0.7]], [[0.0, 2.0]], [[1.0, 0.5]])
Q = ([[0.5, 0.5]], [[1.0, -1.0]], [[1.0, 0.25]])


def test_the_published_mixture():
    """h = exp(-MW_2) h_Y with MW_2^2 = 2.90625 is .0607221158."""
    kernel, y, w = Gaussian(1.0), jnp.array([[0.5]]), jnp.array([[-0.2]])
    p, q = (kernel_means(kernel, mixture(*m)) for m in (P, Q))
    h = p.gram(y, w) - p.first(p.features, w) - q.first(q.features, y).T
    h = h + p.second(p.features, q.features)
    np.testing.assert_allclose(h[0, 0] * np.exp(-(2.90625**0.5)), 0.0607221158, atol=1e-10)


@pytest.mark.parametrize("family", ["Normal", "Laplace"])
def test_mixtures_are_weighted_sums_over_their_components(family):
    family, kernel = getattr(dist, family), Gaussian(0.8)
    if family is dist.Laplace:
        kernel = L1Laplace(0.8)
    rng = np.random.default_rng(0)
    shapes = {"p": (3, 2), "q": (3, 4)}  # different numbers of components
    by_name = {
        name: (rng.dirichlet(np.ones(s[1]), 3), rng.normal(size=s), rng.uniform(0.3, 2, s))
        for name, s in shapes.items()
    }
    ys = jnp.asarray(rng.normal(size=(5, 1)))
    p, q = (kernel_means(kernel, mixture(*by_name[name], family)) for name in "pq")
    parts = {
        name: [kernel_means(kernel, family(m[:, a], s[:, a])) for a in range(m.shape[1])]
        for name, (_, m, s) in by_name.items()
    }
    first = sum(
        by_name["p"][0][:, a, None] * k.first(k.features, ys) for a, k in enumerate(parts["p"])
    )
    close(p.first(p.features, ys), first)
    second = sum(
        by_name["p"][0][:, a, None] * by_name["q"][0][:, b] * k.second(k.features, g.features)
        for a, k in enumerate(parts["p"])
        for b, g in enumerate(parts["q"])
    )
    close(p.second(p.features, q.features), second)
    close(p.own(p.features), jnp.diag(p.second(p.features, p.features)))


@pytest.mark.slow
def test_split_repeated_and_empty_components_change_nothing():
    ys = jnp.array([[0.1], [2.0]])
    alone = kernel_means(Gaussian(0.9), dist.Normal(jnp.array([0.4]), jnp.array([0.7])))
    for weights, means, scales in [
        ([[1.0]], [[0.4]], [[0.7]]),
        ([[0.25, 0.75]], [[0.4, 0.4]], [[0.7, 0.7]]),
        ([[1.0, 0.0]], [[0.4, 5.0]], [[0.7, 0.1]]),
    ]:
        mixed = kernel_means(Gaussian(0.9), mixture(weights, means, scales))
        close(mixed.first(mixed.features, ys), alone.first(alone.features, ys))
        close(mixed.own(mixed.features), alone.own(alone.features))


def test_general_mixtures_and_vectors_and_units():
    rng = np.random.default_rng(1)
    w, m, s = (
        rng.dirichlet(np.ones(2), 3),
        rng.normal(size=(3, 2, 2)),
        rng.uniform(0.5, 1, (3, 2, 2)),
    )
    mixing = dist.Categorical(probs=jnp.asarray(w))
    same = dist.MixtureSameFamily(mixing, dist.Normal(m, s).to_event(1))
    parts = [dist.Normal(m[:, a], s[:, a]).to_event(1) for a in range(2)]
    general = dist.MixtureGeneral(mixing, parts)
    units = Units(jnp.array([0.3, -1.0]), jnp.array([2.0, 0.5]))
    kernel, ys = Gaussian(0.7), jnp.asarray(rng.normal(size=(4, 2)))
    one, other = (kernel_means(kernel, Standardized(p, units, (2,))) for p in (same, general))
    close(one.first(one.features, ys), other.first(other.features, ys))
    close(one.second(one.features, one.features), other.second(other.features, other.features))
    close(one.own(one.features), jnp.diag(other.second(other.features, other.features)))


def test_sums_are_linear_and_a_product_of_gaussians_is_gaussian():
    predictions, ys = dist.Normal(jnp.array([0.0, 1.0]), jnp.array([1.0, 0.4])), jnp.array([[0.3]])
    values = {}
    for name, kernel in {
        "g": Gaussian(0.7),
        "l": Gaussian(1.6),
        "sum": 2.0 * Gaussian(0.7) + Gaussian(1.6),
        "product": Gaussian(0.7) * Gaussian(1.6),
        "one": Gaussian((0.7**-2 + 1.6**-2) ** -0.5),
    }.items():
        k = kernel_means(kernel, predictions)
        values[name] = np.concatenate(
            [k.first(k.features, ys).ravel(), k.own(k.features), k.gram(ys, ys).ravel()]
        )
    close(values["sum"], 2 * values["g"] + values["l"])
    close(values["product"], values["one"])


def test_classes_are_products_with_their_gram_matrix():
    rng = np.random.default_rng(2)
    p, root = rng.dirichlet(np.ones(4), 5), rng.normal(size=(4, 4))
    gram, ys = root @ root.T, jnp.array([0, 3, 1])
    for kernel, matrix in ((Delta(), np.eye(4)), (ClassGram(gram), gram)):
        means = kernel_means(kernel, dist.Categorical(probs=jnp.asarray(p)))
        close(means.first(means.features, ys), (p @ matrix)[:, ys])
        close(means.second(means.features, means.features), p @ matrix @ p.T)
        close(means.own(means.features), np.diag(p @ matrix @ p.T))
        close(means.gram(ys, ys), matrix[np.ix_(ys, ys)])
        close(kernel(ys[0], ys[1]), matrix[0, 3])


def test_a_class_gram_matrix_must_be_one():
    for matrix, message in [
        (np.ones((2, 3)), "shape"),
        (np.array([[1.0, 0.5], [0.2, 1.0]]), "not symmetric"),
        (np.array([[1.0, 2.0], [2.0, 1.0]]), "not positive semidefinite"),
        (np.array([[1.0, np.nan], [np.nan, 1.0]]), "NaN"),
    ]:
        with pytest.raises(ValueError, match=message):
            ClassGram(matrix)
    with pytest.raises(ValueError, match="2 classes for probabilities of 3"):
        kernel_means(ClassGram(np.eye(2)), Classes(jnp.full((1, 3), 1 / 3)))


def test_averages_from_draws_are_unbiased_also_on_the_diagonal(key):
    z = jax.random.normal(key, (3, 6, 2))
    ys, kernel = z[0, :4] + 0.3, Gaussian(1.1)
    means = kernel_means(kernel, Draws(z))

    def k(a, b):
        return np.exp(-np.sum((a - b) ** 2, -1) / (2 * 1.1**2))

    z = np.asarray(z)
    close(means.first(means.features, ys), k(z[:, :, None], np.asarray(ys)[None, None]).mean(1))
    second = np.array([[k(a[:, None], b[None]).mean() for b in z] for a in z])
    close(means.second(means.features, means.features), second)
    values = [k(a[:, None], a[None])[~np.eye(6, dtype=bool)].mean() for a in z]
    close(means.own(means.features), values)


@pytest.mark.parametrize("n_samples", [None, 4000])
def test_a_sampler_gives_the_closed_form_within_its_error(key, n_samples):
    normal = dist.Normal(jnp.array([0.0, 1.0]), jnp.array([1.0, 0.5]))
    exact, ys = kernel_means(Gaussian(0.8), normal), jnp.array([[0.2], [-1.0]])
    if n_samples is None:  # a law without a closed form: 64 draws
        drawn = kernel_means(PowerExponential(2**0.5 * 0.8, power=2.0), normal, key=key)
    else:
        drawn = kernel_means(Gaussian(0.8), normal, key=key, n_samples=n_samples)
    m = drawn.features.points.shape[1]
    for value, wanted in [
        (drawn.first(drawn.features, ys), exact.first(exact.features, ys)),
        (
            drawn.second(drawn.features, drawn.features)[0, 1:],
            exact.second(*[exact.features] * 2)[0, 1:],
        ),
        (drawn.own(drawn.features), exact.own(exact.features)),
    ]:
        np.testing.assert_allclose(value, wanted, atol=4 * 0.5 / m**0.5)


def test_own_is_unbiased_where_the_plain_diagonal_is_not(key):
    normal = dist.Normal(jnp.zeros(4000), jnp.ones(4000))
    drawn = kernel_means(Gaussian(0.8), normal, key=key, n_samples=3)
    result = drawn.own(drawn.features)
    exact = (1 + 2 / 0.8**2) ** -0.5
    assert abs(result.mean() - exact) < 4 * result.std() / 4000**0.5
    assert (
        result.mean() + 0.1 < (result * 2 / 3 + 1 / 3).mean()
    )  # what the plain diagonal would give


class Uniforms(NamedTuple):
    low: jax.Array


def test_adding_a_pair_is_one_function():
    class Two(eqx.Module):
        def first(self, rows, ys):
            return jnp.full((rows.low.shape[0], ys.shape[0]), 2.0)

        def second(self, rows, cols):
            return jnp.full((rows.low.shape[0], cols.low.shape[0]), 3.0)

        def own(self, features):
            return jnp.full(features.low.shape[0], 3.0)

    @pair(Gaussian, Uniforms)
    def gaussian_over_uniforms(kernel, law):
        return law, Two()

    try:
        law = Mixtures(jnp.full((2, 3), 1 / 3), Uniforms(jnp.zeros((2, 3))))
        features, formulas = dispatch.make(Gaussian(1.0), law)
        close(formulas.first(features, jnp.zeros((4, 1))), np.full((2, 4), 2.0))
        close(formulas.second(features, features), np.full((2, 2), 3.0))
    finally:
        del dispatch._PAIRS[Gaussian, Uniforms]


def test_laws_are_read_through_wrappers():
    assert isinstance(distribution_of(dist.Normal(0.0, 1.0).expand([3])), Normals)
    assert distribution_of(dist.Normal(jnp.zeros((3, 2)), 1.0).to_event(1)).mean.shape == (3, 2)
    assert distribution_of(dist.Normal(jnp.zeros((3, 2, 2)), 1.0).to_event(2)).mean.shape == (3, 4)
    assert distribution_of(dist.StudentT(3.0, jnp.zeros(3), 1.0)) is None
    assert distribution_of(dist.Bernoulli(logits=jnp.zeros(3))).probabilities.shape == (3, 2)
    mixed = [dist.Normal(jnp.zeros(3), 1.0), dist.Laplace(jnp.zeros(3), 1.0)]
    assert (
        distribution_of(dist.MixtureGeneral(dist.Categorical(probs=jnp.full((3, 2), 0.5)), mixed))
        is None
    )


def test_what_is_missing_is_said():
    with pytest.raises(ValueError, match="no bandwidth yet"):
        kernel_means(Gaussian(), dist.Normal(jnp.zeros(2), 1.0))
    with pytest.raises(TypeError, match="give a key"):
        kernel_means(Gaussian(1.0), dist.StudentT(3.0, jnp.zeros((2, 2)), 1.0).to_event(1))
    with pytest.raises(TypeError, match="give a key"):
        kernel_means(Laplace(1.0), dist.Laplace(jnp.zeros((2, 2)), 1.0).to_event(1))
    with pytest.raises(ValueError, match="at least 2 draws"):
        kernel_means(IMQ(1.0), Draws(jnp.zeros((3, 1, 2))))
    with pytest.raises(ValueError, match="2 lengths for predictions of 3"):
        kernel_means(Gaussian([1.0, 2.0]), dist.Normal(jnp.zeros((2, 3)), 1.0).to_event(1))
    means = kernel_means(Gaussian(1.0), dist.Normal(jnp.zeros(2), 1.0))
    with pytest.raises(ValueError, match=r"targets: wanted shape \[c, 1\]"):
        means.first(means.features, jnp.zeros((2, 3)))


def test_affine_transforms_are_their_family():
    rng = np.random.default_rng(3)
    m, loc = rng.normal(size=(2, 3, 2))
    s, scale = rng.uniform(0.5, 2, (2, 3, 2))
    scale[:, 1] *= -1
    twice = [dist.transforms.AffineTransform(0.5, 2.0), dist.transforms.AffineTransform(loc, scale)]
    center, spread = loc + scale * (0.5 + 2 * m), 2 * np.abs(scale) * s
    root = np.array([[1.0, 0.0], [0.8, 0.5]])
    stretched = 2 * scale[:, :, None] * root
    for predictions, wanted in [
        (dist.Normal(m, s), dist.Normal(center, spread)),
        (dist.Laplace(m, s), dist.Laplace(center, spread)),
        (
            dist.MultivariateNormal(m, scale_tril=root),
            dist.MultivariateNormal(center, stretched @ np.swapaxes(stretched, 1, 2)),
        ),
    ]:
        moved = dist.TransformedDistribution(predictions, twice)
        if not wanted.event_shape:
            moved, wanted = moved.to_event(1), wanted.to_event(1)
        jax.tree.map(close, distribution_of(moved), distribution_of(wanted))
    inside = dist.TransformedDistribution(mixture(*P), dist.transforms.AffineTransform(3.0, -2.0))
    direct = mixture(P[0], 3 - 2 * np.array(P[1]), 2 * np.array(P[2]))
    jax.tree.map(close, distribution_of(inside), distribution_of(direct))
    folded = dist.TransformedDistribution(dist.Normal(m, s), dist.transforms.ExpTransform())
    assert distribution_of(folded) is None


def test_a_frame_of_similarities_is_read_by_its_classes():
    similar = np.eye(3) + 0.5 * (np.ones((3, 3)) - np.eye(3)) * [[0, 1, 0], [1, 0, 0], [0, 0, 0]]
    names = ["2", "0", "1"]
    frame = pd.DataFrame(similar, index=list("012"), columns=list("012")).loc[names, names]
    np.testing.assert_array_equal(ClassGram(frame).matrix, similar)
    with pytest.raises(ValueError, match="wanted rows named as the columns"):
        ClassGram(frame.reset_index(drop=True))


def test_mixtures_in_float32_beside_targets_in_float64(key):
    centers, weights = jax.random.normal(key, (4, 3), jnp.float32), jnp.ones((4, 3), jnp.float32)
    mixtures = Mixtures(weights / 3, Normals(centers[:, :, None], weights[:, :, None]))
    means = kernel_means(Gaussian(1.0), mixtures)
    with jax.numpy_dtype_promotion("standard"):
        assert means.first(means.features, jnp.zeros((2, 1))).dtype == jnp.float64
