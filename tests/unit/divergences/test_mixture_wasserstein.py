"""Transport between components against closed forms and bounds; what is no kernel is found out."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.optimize
import scipy.stats
from reference.definiteness import positive_definiteness, spectrum
from reference.sinkhorn import Sinkhorn
from reference.transport import Bures, Exact, MixtureWasserstein, components

from jaxcal.divergences import MMD, Fisher, Wasserstein
from jaxcal.kernels import Gaussian, Laplace
from jaxcal.read import Standardized, Units


def mixture(weights, means, deviations):
    parts = dist.Normal(jnp.asarray(means, float), jnp.asarray(deviations, float))
    return dist.MixtureSameFamily(dist.Categorical(jnp.asarray(weights)), parts)


def random_mixtures(n, k, seed=0, equal=False):
    rng = np.random.default_rng(seed)
    weights = np.full((n, k), 1 / k) if equal else rng.dirichlet(np.ones(k), n)
    return mixture(weights, rng.normal(size=(n, k)), rng.uniform(0.3, 1.5, (n, k)))


@jax.jit
def squared(divergence, values):
    return divergence.squared_distances(values, values)


def distances(divergence, predictions):
    return jnp.sqrt(squared(divergence, components(predictions)))


def test_the_fixture_of_two_mixtures():
    # squared distance of (0, 1), (2, .5) with weights .3, .7 to (1, 1), (-1, .25) with .5, .5
    mixtures = mixture([[0.3, 0.7], [0.5, 0.5]], [[0, 2], [1, -1]], [[1, 0.5], [1, 0.25]])
    parts = components(mixtures)
    np.testing.assert_allclose(squared(MixtureWasserstein(), parts)[0, 1], 2.90625, rtol=1e-12)
    gaps = parts.vectors[0, :, None] - parts.vectors[1, None]
    plan = Exact()(jnp.sum(gaps**2, -1), parts.weights[0], parts.weights[1])
    np.testing.assert_allclose(plan, [[0, 0.3], [0.5, 0.2]], atol=1e-12)


@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("s", [1.0, 1.5, 2.0])
def test_it_is_a_metric(s, equal):
    values = np.asarray(distances(MixtureWasserstein(s), random_mixtures(7, 3, equal=equal)))
    np.testing.assert_allclose(values, values.T, atol=1e-7)
    np.testing.assert_allclose(np.diag(values), 0, atol=1e-7)
    assert np.all(values[~np.eye(7, dtype=bool)] > 0.01)
    assert np.all(values[:, :, None] <= values[:, None, :] + values.T[None] + 1e-7)


def test_couplings_are_those_of_a_linear_program_of_their_own():
    rng = np.random.default_rng(3)
    cost, a, b = (
        rng.uniform(size=(5, 3, 4)),
        rng.dirichlet(np.ones(3), 5),
        rng.dirichlet([1] * 4, 5),
    )
    plans = Exact()(jnp.asarray(cost), jnp.asarray(a), jnp.asarray(b))
    np.testing.assert_allclose(plans.sum(2), a, atol=1e-9)
    np.testing.assert_allclose(plans.sum(1), b, atol=1e-9)
    for c, left, right, plan in zip(cost, a, b, plans, strict=True):
        # the dual: f_i + g_j <= c_ij
        pairs = np.concatenate([np.kron(np.eye(3), np.ones((4, 1))), np.tile(np.eye(4), (3, 1))], 1)
        dual = scipy.optimize.linprog(
            -np.concatenate([left, right]), pairs, c.ravel(), bounds=(None, None)
        )
        np.testing.assert_allclose(np.sum(plan * c), -dual.fun, rtol=1e-7)


def test_equal_weights_are_the_best_of_all_permutations():
    mixtures = random_mixtures(4, 4, equal=True, seed=5)
    squares = squared(MixtureWasserstein(), components(mixtures))
    parts = np.stack(
        [mixtures.component_distribution.loc, mixtures.component_distribution.scale], -1
    )
    for i, j in itertools.product(range(4), range(4)):
        costs = ((parts[i][:, None] - parts[j]) ** 2).sum(-1)
        best = min(costs[range(4), p].mean() for p in itertools.permutations(range(4)))
        np.testing.assert_allclose(squares[i, j], best, atol=1e-12)


def test_single_components_are_at_their_own_distance(key):
    rng = np.random.default_rng(1)
    loc, scale = jnp.asarray(rng.normal(size=(6, 2))), jnp.asarray(rng.uniform(0.2, 2, (6, 2)))
    root = jnp.asarray(rng.normal(size=(6, 2, 2)))
    full = dist.MultivariateNormal(loc, root @ root.mT + 0.2 * jnp.eye(2)[None])
    for one, alone in (
        (dist.Normal(loc, scale), Wasserstein()),
        (dist.Laplace(loc, scale), Wasserstein()),
    ):
        single = one.to_event(1)
        features = alone.features(key, single, None)
        wanted = alone.squared_distances(features, features)
        squares = squared(MixtureWasserstein(), components(single))
        np.testing.assert_allclose(squares, wanted, atol=1e-12)
    features = Wasserstein().features(key, full, None)
    wanted = Wasserstein().squared_distances(features, features)
    np.testing.assert_allclose(squared(MixtureWasserstein(), components(full)), wanted, atol=1e-12)


@pytest.mark.parametrize("law", [scipy.stats.norm, scipy.stats.laplace])
def test_location_scale_distances_are_wasserstein_distances(law):
    # quantile functions differ by a linear function of a standard one; integrated numerically
    u = (np.arange(200_000) + 0.5) / 200_000
    z = law.ppf(u)
    family = dist.Normal if law is scipy.stats.norm else dist.Laplace
    loc, scale = jnp.asarray([0.3, -1.0]), jnp.asarray([0.5, 2.0])
    gap = (loc[0] - loc[1]) + (scale[0] - scale[1]) * z
    values = squared(MixtureWasserstein(), components(family(loc, scale)))[0, 1]
    np.testing.assert_allclose(values, np.mean(gap**2), rtol=1e-3)


@pytest.mark.parametrize("s", [1.0, 1.5, 2.0])
def test_normals_of_one_width_pair_their_sorted_means(s):
    means = np.random.default_rng(2).normal(size=(2, 5))
    mixtures = mixture(np.full((2, 5), 0.2), means, np.ones((2, 5)))
    gaps = np.abs(np.sort(means[0]) - np.sort(means[1]))
    wanted = np.mean(gaps**s) ** (1 / s)
    np.testing.assert_allclose(distances(MixtureWasserstein(s), mixtures)[0, 1], wanted, rtol=1e-10)


@pytest.mark.slow
def test_it_is_at_least_the_wasserstein_distance_of_the_mixtures():
    mixtures = random_mixtures(4, 3, seed=4)
    squares = squared(MixtureWasserstein(), components(mixtures))
    draws = np.sort(np.asarray(mixtures.sample(jax.random.key(1), (40_000,))), axis=0)
    for i, j in itertools.combinations(range(4), 2):
        gaps = (draws[:, i] - draws[:, j]) ** 2
        assert squares[i, j] >= np.mean(gaps) - 4 * np.std(gaps) / 200


def test_split_and_weightless_components_change_nothing():
    base = random_mixtures(5, 2, seed=6)
    parts = base.component_distribution
    w = base.mixing_distribution.probs
    doubled = mixture(
        jnp.concatenate([0.25 * w, 0.75 * w], 1), jnp.tile(parts.loc, 2), jnp.tile(parts.scale, 2)
    )
    more = mixture(
        jnp.pad(w, ((0, 0), (0, 2))),
        jnp.pad(parts.loc, ((0, 0), (0, 2)), constant_values=9.0),
        jnp.pad(parts.scale, ((0, 0), (0, 2)), constant_values=3.0),
    )
    wanted = squared(MixtureWasserstein(), components(base))
    for value in (doubled, more):
        np.testing.assert_allclose(
            squared(MixtureWasserstein(), components(value)), wanted, atol=1e-9
        )


def test_mixtures_of_other_kinds_and_units():
    rng = np.random.default_rng(8)
    loc, scale = rng.normal(size=(4, 3, 2)), rng.uniform(0.5, 1, (4, 3, 2))
    weights = dist.Categorical(jnp.asarray(rng.dirichlet(np.ones(3), 4)))
    same = dist.MixtureSameFamily(
        weights, dist.Normal(jnp.asarray(loc), jnp.asarray(scale)).to_event(1)
    )
    parts = [
        dist.Normal(jnp.asarray(loc[:, k]), jnp.asarray(scale[:, k])).to_event(1) for k in range(3)
    ]
    general = dist.MixtureGeneral(weights, parts)
    wanted = squared(MixtureWasserstein(), components(same))
    np.testing.assert_allclose(
        squared(MixtureWasserstein(), components(general)), wanted, atol=1e-12
    )
    units = Units(jnp.asarray([1.0, -2.0]), jnp.asarray([2.0, 2.0]))
    scaled = components(Standardized(same, units, (2,)))
    np.testing.assert_allclose(squared(MixtureWasserstein(), scaled), wanted / 4, atol=1e-12)


def test_gradients_match_differences_and_are_finite_if_equal():
    mixtures = random_mixtures(3, 3, seed=7)
    weights, parts = mixtures.mixing_distribution.probs, mixtures.component_distribution

    @jax.jit
    def total(means, s=2.0):
        result = components(mixture(weights, means, parts.scale))
        return jnp.sum(MixtureWasserstein(1.5).squared_distances(result, result))

    step = jnp.zeros((3, 3)).at[1, 2].set(1e-6)
    gradient = jax.jit(jax.grad(total))(parts.loc)
    wanted = (total(parts.loc + step) - total(parts.loc - step)) / 2e-6
    np.testing.assert_allclose(gradient[1, 2], wanted, rtol=1e-5)
    assert jnp.all(jnp.isfinite(gradient))


def test_a_batch_of_data_sets_is_one_program():
    many = [components(random_mixtures(4, 3, seed=k)) for k in range(3)]
    stacked = jax.tree.map(lambda *leaves: jnp.stack(leaves), *many)
    values = jax.jit(jax.vmap(lambda value: MixtureWasserstein().squared_distances(value, value)))(
        stacked
    )
    for one, value in zip(values, many, strict=True):
        np.testing.assert_allclose(one, squared(MixtureWasserstein(), value), atol=1e-12)


@pytest.mark.optional("ott")
@pytest.mark.filterwarnings("ignore")
def test_sinkhorn_comes_near_from_above(free_promotion):
    parts = components(random_mixtures(4, 3, seed=9))
    exact = np.asarray(squared(MixtureWasserstein(), parts))
    near = np.asarray(squared(MixtureWasserstein(transport=Sinkhorn(0.01)), parts))
    assert np.all(near > exact - 1e-3 * exact.max())
    np.testing.assert_allclose(near, exact, atol=0.1 * exact.mean())
    assert np.abs(near - exact).mean() < 0.03 * exact.mean()


@pytest.mark.optional("ott")
@pytest.mark.filterwarnings("ignore")
def test_sinkhorn_that_has_not_arrived_is_not_a_number(free_promotion):
    cost = jnp.asarray([[0.0, 1.0], [1.0, 0.3]])
    weights = jnp.asarray([0.3, 0.7]), jnp.asarray([0.6, 0.4])
    assert jnp.all(jnp.isnan(Sinkhorn(1e-4, iterations=10)(cost, *weights)))


def test_bad_input_is_refused_or_not_a_number():
    for s, says in ((0.5, "order s >= 1"), (float("inf"), "s: wanted a finite number")):
        with pytest.raises(ValueError, match=says):
            MixtureWasserstein(s)
    with pytest.raises(ValueError, match="epsilon"):
        Sinkhorn(0.0)
    with pytest.raises(TypeError, match=r"all normal or all Laplace.*got Gamma"):
        components(dist.Gamma(jnp.ones(3), 1.0))
    with pytest.raises(ValueError, match="batch shape \\(\\)"):
        components(mixture([0.5, 0.5], [0, 1], [1, 1]))
    uneven = [dist.Normal(jnp.zeros(2), 1.0), dist.Laplace(jnp.zeros(2), 1.0)]
    with pytest.raises(TypeError, match="all normal or all Laplace"):
        components(dist.MixtureGeneral(dist.Categorical(jnp.ones((2, 2)) / 2), uneven))
    parts = components(random_mixtures(3, 2))
    spoilt = parts._replace(vectors=parts.vectors.at[1, 0, 0].set(jnp.nan))
    squares = squared(MixtureWasserstein(), spoilt)
    assert jnp.all(jnp.isnan(squares[1]))
    assert jnp.isfinite(squares[0, 2])


# Section 9.1 of the specification: Theorem D.1 of the paper does not hold
CORNERS = mixture(
    [[0.5, 0.5]] * 4, [[1, 1], [0, 2], [0, 2], [0, 2]], [[1, 3], [3, 1], [2, 2], [1, 3]]
)


@pytest.mark.slow
def test_four_mixtures_are_no_points_of_a_hilbert_space():
    values = np.asarray(squared(MixtureWasserstein(), components(CORNERS)))
    np.testing.assert_allclose([values[i, (i + 1) % 4] for i in range(4)], 1, rtol=1e-12)
    np.testing.assert_allclose([values[0, 2], values[1, 3]], [2, 4], rtol=1e-12)
    seen = positive_definiteness(
        CORNERS, divergence=MixtureWasserstein(), prediction_kernel=Gaussian(2.5**0.5)
    )
    np.testing.assert_allclose(seen.smallest, -0.0814, atol=5e-5)
    assert seen.indefinite
    once = positive_definiteness(
        CORNERS, divergence=MixtureWasserstein(), prediction_kernel=Laplace(1.0)
    )
    assert not once.indefinite


@pytest.mark.slow
def test_exponentials_of_the_distance_are_not_kernels():
    grid = list(itertools.product([0, 1, 2], [1, 2, 3]))
    two = np.asarray(list(itertools.combinations_with_replacement(grid, 2)), float)
    mixtures = mixture(np.full((45, 2), 0.5), two[:, :, 0], two[:, :, 1])
    wide, narrow = (
        positive_definiteness(
            mixtures, divergence=MixtureWasserstein(), prediction_kernel=Laplace(1 / rate)
        )
        for rate in (0.25, 1.0)
    )
    np.testing.assert_allclose(wide.smallest, -0.0587, atol=5e-5)
    assert wide.indefinite
    assert not narrow.indefinite


def test_first_order_distances_of_locations_fail_too():
    ends = [[0, 10], [1, 10], [1, 11], [0, 11]]
    mixtures = mixture([[0.5, 0.5]] * 4, ends, np.ones((4, 2)))
    values = np.asarray(distances(MixtureWasserstein(1.0), mixtures))
    np.testing.assert_allclose([values[i, (i + 1) % 4] for i in range(4)], 0.5, rtol=1e-9)
    np.testing.assert_allclose([values[0, 2], values[1, 3]], 1, rtol=1e-9)
    wide = Gaussian(5.0)  # wide kernels are where it shows
    assert positive_definiteness(
        mixtures, divergence=MixtureWasserstein(1.0), prediction_kernel=wide
    ).indefinite


@pytest.mark.parametrize(("s", "kernel"), [(1.0, Laplace(2.0)), (2.0, Gaussian(2.0))])
def test_components_on_a_line_are_safe(s, kernel):
    rng = np.random.default_rng(0)
    mixtures = mixture(rng.dirichlet(np.ones(3), 15), rng.normal(size=(15, 3)), np.ones((15, 3)))
    seen = positive_definiteness(
        mixtures, divergence=MixtureWasserstein(s), prediction_kernel=kernel
    )
    assert seen.smallest > -1e-8


@pytest.mark.slow
def test_embeddings_make_kernels_and_the_look_says_so(key):
    rng = np.random.default_rng(4)
    root = jnp.asarray(rng.normal(size=(30, 2, 2)))
    result = dist.MultivariateNormal(jnp.asarray(rng.normal(size=(30, 2))), root @ root.mT)
    for divergence in (Wasserstein(), MMD(Gaussian(1.0))):
        seen = positive_definiteness(result, divergence=divergence)
        assert not seen.indefinite
    bures = positive_definiteness(result, divergence=Bures(), prediction_kernel=Gaussian(3.0))
    assert bures.largest > 0
    with pytest.raises(ValueError, match="Fisher is a distance of vectors"):
        positive_definiteness(result, divergence=Fisher())


@pytest.mark.slow
def test_the_spectrum_of_a_matrix():
    seen = spectrum(jnp.asarray([[1.0, 2.0], [2.0, 1.0]]))
    np.testing.assert_allclose([seen.smallest, seen.largest], [-1, 3], rtol=1e-12)
    assert seen.indefinite
    near = spectrum(jnp.ones((50, 50)))  # eigenvalues 0 to rounding
    assert not near.indefinite
    broken = spectrum(jnp.full((2, 2), jnp.nan))
    assert not broken.indefinite
    assert jnp.isnan(broken.smallest)
