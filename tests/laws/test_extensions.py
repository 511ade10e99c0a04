"""What a user adds outside of the package has the rights of what is in it, in under 20 lines."""

import inspect

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats
from jax.tree_util import Partial
from quick import quick_first
from reference.definiteness import positive_definiteness
from reference.nulls import Gamma

import jaxcal
from jaxcal import ckce, nulls, sbi
from jaxcal.ckce import solvers
from jaxcal.divergences import Fisher, Vectors, Wasserstein
from jaxcal.engine.linear import linear_sums
from jaxcal.fit.moment_residual import MomentResidual
from jaxcal.fit.options import stein_specification, with_random_features
from jaxcal.fit.residuals import Featured
from jaxcal.fit.specification import Specification
from jaxcal.fit.testing import apply
from jaxcal.kernels import Constant, Gaussian
from jaxcal.kernels.grams import square_gram
from jaxcal.kernels.means.dispatch import kernel_means, pair
from jaxcal.numerics import TURN
from jaxcal.read.families import Normals, Particles, distribution, distribution_of
from jaxcal.statistics.finite_rank import Frequencies, twice, waves
from jaxcal.statistics.weighted import Inner, Weighted, WeightedFeatures

N = 40
RNG = np.random.default_rng(20231204)
X = jnp.asarray(RNG.normal(size=(N, 2)))
YS = X + jnp.asarray(RNG.normal(size=(N, 2)))
NORMALS = dist.Normal(X, 1.0).to_event(1)
PROBABILITIES = jnp.asarray(RNG.dirichlet(np.ones(3), N))
LABELS = jnp.asarray(RNG.integers(0, 3, N))
KEY = jax.random.key(0)


class Hellinger(eqx.Module):
    """Squared Hellinger distance of normals of one scale: 2 - 2 exp(-|mu - mu'|^2 / 8)."""

    needs_nodes = False  # scores at base points

    def features(self, key, predictions, at_nodes):
        normals, units = (
            predictions.predictions,
            predictions.units,
        )  # as given, and the test's units
        return (normals.base_dist.loc - units.center[None]) / normals.base_dist.scale

    def squared_distances(self, rows, cols):
        return jax.vmap(lambda row: self.paired(row[None], cols))(rows)

    def paired(self, rows, cols):
        return 2 - 2 * jnp.exp(-jnp.sum((rows - cols) ** 2, axis=-1) / 8)


class SignAgreement(eqx.Module):
    """h = k(x, x') sign(r) . sign(r'): a statistic of residuals' signs, against heavy tails."""

    channels: int = eqx.field(default=1, static=True)

    def block(self, rows, cols):
        near = jax.vmap(lambda x: jax.vmap(lambda z: Gaussian(1.0)(x, z))(cols[0]))(rows[0])
        return (near * (jnp.sign(rows[1]) @ jnp.sign(cols[1]).T))[None]

    def diagonal(self, features):
        return jnp.sum(jnp.sign(features[1]) ** 2, axis=1)[None]


class Eigen(eqx.Module):
    """CKCE by the eigenvectors of the Gram matrix that carry it."""

    rank: int = eqx.field(static=True)

    def __call__(self, kernel, q, residuals, ridge):
        values, vectors = jnp.linalg.eigh(square_gram(kernel, q))
        kept = vectors[:, -self.rank :] * jnp.sqrt(jnp.abs(values[-self.rank :]))[None]
        error = 1 - jnp.sum(kept**2) / jnp.sum(values)
        by = solvers.Approximation("eigenvectors", jnp.asarray(self.rank), error)
        return solvers.fit(kept @ kept.T, residuals, ridge)._replace(approximation=by)


class Coins(eqx.Module):
    """Random signs, written down by hand."""

    n_draws: int = eqx.field(default=99, static=True)

    def needs(self, key, features):
        n = len(jax.tree.leaves(features)[0])
        return nulls.Needs(weights=jax.random.rademacher(key, (n, self.n_draws), dtype=float))

    def outcome(self, sums):
        drawn = sums.forms / (sums.n * (sums.n - 1))
        above = jnp.sum(drawn >= sums.means, axis=1)
        return sums.outcome(sums.means[:, 0], (1 + above) / (self.n_draws + 1), drawn)

    def least_p_value(self, n):
        return 1 / (self.n_draws + 1)


class Conjugate:
    """theta | x = N(x / 2, 1 / 2): a posterior whose scores are known."""

    def scored(self, thetas, xs, nodes):
        def score(theta, x):
            return 2 * (x / 2 - theta)

        at_nodes = None if nodes is None else score(nodes[None], xs[:, None])
        return jaxcal.Scores(score(thetas, xs), at_nodes, nodes)


class Cauchy(eqx.Module):
    """k(x, y) = prod_j 1 / (1 + (x_j - y_j)^2), of Laplace frequencies."""

    def __call__(self, x, y):
        return jnp.prod(1 / (1 + (x - y) ** 2))

    def frequencies(self, key, count, d):
        return jax.random.laplace(key, (count, d))


class SignResidual(eqx.Module):
    """k(p, p') sign(y - mu) . sign(y' - mu'): what a user compares instead of scores."""

    needs_scores = components = False

    def needs_nodes(self, predictions):
        return False

    def node_key(self, key):
        return key

    def features(self, key, view, predictions, target_kernel, described):
        signs = jnp.sign(view.ys - predictions.units.points(predictions.predictions.base_dist.loc))
        return Featured(WeightedFeatures(described, signs), *[jnp.zeros((), int)] * 3)

    def statistic(self, featured, target_kernel):
        return Inner()


class NearSigns(SignAgreement):
    """The same in random waves of its kernel."""

    def waves(self, draw, features):
        return SignWaves(draw.frequencies(features[0].shape[1], Gaussian(1.0)))


class SignWaves(eqx.Module):
    """Waves of predictions and targets, times signs."""

    frequencies: Frequencies

    def __call__(self, vectors, features):
        turns = self.frequencies.turns(vectors) + self.frequencies.targets @ features[0].T / TURN
        cos, _ = waves(turns, twice(self.frequencies.sizes))
        return (cos[:, None] * jnp.sign(features[1]).T[None]).reshape(1, -1, len(features[0]))


OUTSIDE = [Hellinger, SignAgreement, Eigen, Coins, Conjugate]
OUTSIDE += [Cauchy, SignResidual, NearSigns, SignWaves]


@pytest.mark.parametrize("kind", OUTSIDE)
def test_each_takes_fewer_than_20_lines(kind):
    assert len(inspect.getsource(kind).strip().splitlines()) <= 20


class Leafy(Hellinger):
    needs_nodes: bool = False


def test_a_divergence_declares_whether_it_needs_nodes():
    with pytest.raises(TypeError, match=r"divergence: needs_nodes of Leafy .* part of the data"):
        jaxcal.skce_test(KEY, NORMALS, YS, divergence=Leafy())


@pytest.mark.slow
def test_a_divergence():
    result = jaxcal.skce_test(KEY, NORMALS, YS, divergence=Hellinger(), null=nulls.Wild(99))
    assert 0 < float(result.p_value) <= 1
    shifted = dist.Normal(X + 2, 1.0).to_event(1)
    assert jaxcal.kccsd_test(KEY, shifted, YS, divergence=Hellinger()).p_value < 0.01
    # the units of the test change nothing
    wide = dist.Normal(100 * X + 7, 100.0).to_event(1)
    again = jaxcal.skce_test(KEY, wide, 100 * YS + 7, divergence=Hellinger(), null=nulls.Wild(99))
    np.testing.assert_allclose(again.p_value, result.p_value)


@pytest.mark.parametrize("null", [nulls.Wild(199), Gamma(), nulls.BlockNormal(), Coins()])
def test_a_statistic_with_every_kind_of_null(null):
    run = jax.jit(lambda *features: apply(null, KEY, SignAgreement(), features)[0])
    outcome = run(X, YS - X)
    near = np.exp(-np.sum((X[:, None] - X[None]) ** 2, axis=-1) / 2)
    h = near * (np.sign(YS - X) @ np.sign(YS - X).T)
    pairs = h.sum() - np.trace(h)
    if not isinstance(null, nulls.BlockNormal):
        np.testing.assert_allclose(outcome.estimate[0], pairs / (N * (N - 1)))
    assert 0 < float(outcome.p_value[0]) <= 1
    off = run(X, YS - X + 3)
    assert float(off.p_value[0]) < 0.02


def test_a_solver():
    exact = ckce.ckce(PROBABILITIES, LABELS)
    np.testing.assert_allclose(
        ckce.ckce(PROBABILITIES, LABELS, solver=Eigen(N)).estimate, exact.estimate, rtol=1e-8
    )
    few = ckce.ckce(PROBABILITIES, LABELS, solver=Eigen(6))
    np.testing.assert_allclose(few.estimate, exact.estimate, rtol=0.05)
    assert "eigenvectors, 6" in repr(few)


@pytest.mark.usefixtures("as_users_run_it")
def test_what_is_no_solver_is_refused():
    with pytest.raises(TypeError, match=r"solver: wanted one such as jaxcal\.ckce\.LowRank"):
        ckce.ckce(PROBABILITIES, LABELS, solver="exact")
    with pytest.raises(TypeError, match=r"call it: LowRank\(..\)"):
        ckce.ckce(PROBABILITIES, LABELS, solver=ckce.LowRank)


@pytest.mark.slow
def test_a_null():
    assert jaxcal.kccsd_test(KEY, NORMALS, YS, null=Coins()).p_value > 0.01
    assert jaxcal.skce_test(KEY, NORMALS, YS + 1, null=Coins()).p_value < 0.02


@pytest.mark.slow
def test_a_posterior():
    thetas = jnp.asarray(RNG.normal(size=(N, 2)))
    xs = thetas + jnp.asarray(RNG.normal(size=(N, 2)))
    assert sbi.check_posterior(KEY, Conjugate(), thetas, xs).p_value > 0.01
    assert sbi.check_posterior(KEY, Conjugate(), thetas + 1, xs).p_value < 0.01


def skewness(log_density, y):
    return jnp.tanh(jax.grad(log_density)(y))


def of_signs(n):
    spec = Specification(Wasserstein(), Gaussian(), Gaussian(), SignResidual())
    return spec, dist.Normal(X[:n], 1.0).to_event(1), YS[:n]


def of_a_moment(n):
    residual = MomentResidual(Partial(skewness), "skewness")
    spec = Specification(Fisher(), Gaussian() + Constant(), Gaussian(), residual)
    return spec, dist.Normal(X[:n], 1.0).to_event(1), YS[:n]


def of_a_kernel(n):
    kernel = 0.5 * Gaussian() + Gaussian() * Cauchy() + Cauchy()
    return stein_specification(YS[:n], target_kernel=kernel), *of_signs(n)[1:]


@pytest.mark.slow
@pytest.mark.parametrize("n", quick_first([12, 25, 40], [12]))
@pytest.mark.parametrize("case", [of_signs, of_a_moment, of_a_kernel])
def test_random_features_of_what_a_user_adds(case, n):
    """Their mean over keys is the statistic of all pairs; each is that of all pairs of features."""
    spec, predictions, ys = case(n)
    keys = jax.random.split(KEY, 2)

    @jax.jit
    def all_pairs():
        prepared, featured = spec.fit(keys, predictions, ys)
        return prepared.pairwise.block(featured.features, featured.features)[0]

    def drawn(key):
        random = with_random_features(spec, jaxcal.RandomFeatures(key, 40))
        prepared, featured = random.fit(keys, predictions, ys)
        linear = linear_sums(prepared.pairwise, featured.features, jnp.zeros((n, 0)))
        return prepared.pairwise.block(featured.features, featured.features)[0], linear.total[0]

    exact = all_pairs()
    each, totals = jax.jit(jax.vmap(drawn))(jax.random.split(KEY, 200))
    error = jnp.std(each, 0, ddof=1) / 200**0.5
    assert np.all(np.abs(jnp.mean(each, 0) - exact) < 5 * error + 1e-9)
    pairs = jnp.sum(each, (1, 2)) - jnp.trace(each, axis1=1, axis2=2)
    np.testing.assert_allclose(totals, pairs, rtol=1e-8, atol=1e-8)


def test_random_features_of_a_statistic_with_waves_of_its_own():
    features = WeightedFeatures(X, (X, YS - X))
    weighted = Weighted(Gaussian(2.0), Vectors(X), NearSigns())
    exact = weighted.block(features, features)[0]

    def drawn(key):
        return jaxcal.RandomFeatures(key, 40).of(weighted, features).block(features, features)[0]

    each = jax.jit(jax.vmap(drawn))(jax.random.split(KEY, 400))
    assert np.all(np.abs(each.mean(0) - exact) < 5 * each.std(0, ddof=1) / 20 + 1e-9)
    without = Weighted(Gaussian(2.0), Vectors(X), SignAgreement())
    with pytest.raises(TypeError, match=r"SignAgreement has no random features: .* vectors"):
        jaxcal.RandomFeatures(0).of(without, features)


@pytest.mark.slow
@pytest.mark.parametrize("null", [nulls.Wild(199), nulls.Eigenvalues(), Coins()])
def test_a_moment_of_a_user_in_linear_time(null):
    options = {"moment": skewness, "features": jaxcal.RandomFeatures(1, 40), "null": null}
    calm = jaxcal.moment_test(KEY, NORMALS, YS, **options)
    assert calm.p_value > 0.01
    assert "40 random features" in str(calm)
    assert jaxcal.moment_test(KEY, NORMALS, YS + 1, **options).verdict == "rejected"


@pytest.mark.slow
def test_moments_keep_their_level_in_linear_time():
    def p_value(key):
        keys = jax.random.split(key, 3)
        centers, noise = jax.random.normal(keys[0], (2, 100, 2))
        predictions = jaxcal.Unnormalized(lambda m, y: -jnp.sum((y - m) ** 2) / 2, centers)
        features = jaxcal.RandomFeatures(1, 40)
        ys, null = centers + noise, nulls.Wild(99)
        return jaxcal.moment_test(keys[2], predictions, ys, null=null, features=features)

    p = jax.lax.map(lambda key: p_value(key).p_value, jax.random.split(KEY, 200), batch_size=50)
    low, high = scipy.stats.binom.interval(0.9999, 200, 0.05)
    assert low <= int(jnp.sum(p <= 0.05)) <= high


class Plain:
    """A divergence, a null and a distribution at once, of a plain class."""

    needs_nodes, batch_shape, event_shape = False, (N,), (2,)
    features = squared_distances = paired = needs = outcome = log_prob = lambda self, *args: None

    def least_p_value(self, n):
        return 0.0


@pytest.mark.parametrize("argument", ["divergence", "null", "predictions"])
def test_a_plain_class_is_refused_with_what_to_do(argument):
    arguments = {"predictions": NORMALS, argument: Plain()}
    with pytest.raises(TypeError, match=f"^{argument}: .*derive it from equinox.Module"):
        jaxcal.kccsd_test(KEY, targets=YS, **arguments)


def test_the_definiteness_of_a_users_divergence():
    spectrum = positive_definiteness(NORMALS, divergence=Hellinger())
    squares = Hellinger().squared_distances(X, X)  # of the normals of deviation 1
    wanted = np.linalg.eigvalsh(np.exp(-squares / np.median(squares[np.triu_indices(N, 1)]) / 2))
    np.testing.assert_allclose([spectrum.smallest, spectrum.largest], wanted[[0, -1]], rtol=1e-5)


class Corrected(Constant):
    """A kernel whose averages over draws are registered twice."""


class Raised(eqx.Module):
    """Averages that are all one value."""

    value: float = eqx.field(static=True)

    def first(self, rows, ys):
        return jnp.full((len(rows), len(ys)), self.value)

    second = first

    def own(self, features):
        return jnp.full(len(features), self.value)


def test_reregistered_averages_replace_the_compiled_ones():
    draws = jaxcal.Draws(jnp.zeros((N, 4, 2)))

    @jax.jit
    def average(draws):
        return kernel_means(Corrected(), draws, key=0).own(draws.samples)

    def register(value):
        @pair(Corrected, Particles)
        def averages(kernel, distribution):
            return distribution.points, Raised(value)

    register(1.0)
    assert float(average(draws)[0]) == 1.0
    register(2.0)
    assert float(average(draws)[0]) == 2.0


class Offset(eqx.Module):
    """Predictions of users, whose closed form is registered twice."""

    loc: jax.Array


def test_reregistered_distributions_replace_the_compiled_ones():
    @jax.jit
    def mean(predictions):
        return distribution_of(predictions).mean

    def register(offset):
        @distribution("Offset")
        def read(base, whole):
            return Normals(base.loc + offset, jnp.ones_like(base.loc))

    register(0.0)
    assert float(mean(Offset(jnp.zeros((3, 1))))[0, 0]) == 0.0
    register(5.0)
    assert float(mean(Offset(jnp.zeros((3, 1))))[0, 0]) == 5.0
