"""Moments have mean zero under the prediction, by quadrature; and what each is blind to."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
import scipy.stats
from quick import quick_first
from reference.moments import Jumps, Linear
from reference.nulls import Gamma, Multinomial, Spectrum

from jaxcal import Unnormalized, calibration_test, nulls
from jaxcal.kernels import Constant
from jaxcal.moments import Balance, Curvature, Exchangeable, Score, stein
from jaxcal.moments.balance import symmetric_moves
from jaxcal.stein.calibration import moment_test
from jaxcal.whitening import Regression

evaluate = jax.jit(stein.evaluate)
MOVES = np.random.default_rng(0).normal(size=(5, 1)) * np.array([[2.0], [1], [0.5], [0.3], [0.1]])
STEIN = [Score(), Linear(), Curvature(), Curvature(bound=None), Curvature("trace", 1.0)]
BALANCE = [Balance(MOVES), Jumps(MOVES)]


def two_modes(_, y):
    y = y[0]
    return jnp.logaddexp(-((y + 2) ** 2) / 2, 0.4 - (y - 1) ** 2)


def student(_, y):
    return -2.5 * jnp.log1p(y[0] ** 2 / 4)


def skewed(_, y):
    return 2 * y[0] - jnp.exp(y[0])


def beta(_, y):
    inside = (y[0] > 0) & (y[0] < 1)
    z = jnp.where(inside, y[0], 0.5)
    return jnp.where(inside, jnp.log(z) + jnp.log1p(-z), -jnp.inf)


def triangle(_, y):
    """A jump at 0, where a score has no Stein identity."""
    inside = (y[0] > 0) & (y[0] < 1)
    return jnp.where(inside, jnp.log1p(-jnp.where(inside, y[0], 0.5)), -jnp.inf)


def kinked(_, y):
    return -jnp.abs(y[0])


def means(log_density, chosen, grid, measure):
    """E_p t and E_p |t| by quadrature, a pair for each moment and name."""
    predictions = Unnormalized(log_density, None, in_axes=None)
    origin, scale = jnp.full((1, 1), 0.2), jnp.full((1, 1, 1), 0.7)

    def pairs(grid):
        weights = measure * jnp.exp(jax.vmap(lambda y: log_density(None, y))(grid))
        weights, both = weights / jnp.sum(weights), []
        for moment in chosen:
            values = evaluate(moment, predictions, grid, origin, scale)
            for value in values.values():
                kept = jnp.where(weights[:, None] > 0, value, 0)
                both.append((weights @ kept, weights @ jnp.abs(kept)))
        return both

    return [(float(a[0]), float(b[0])) for a, b in jax.jit(pairs)(grid) if a.size]


def line(reach):
    """Points that are dense about 0 and go far, and what they stand for."""
    t = jnp.linspace(-reach, reach, 40_001)
    return jnp.sinh(t)[:, None], jnp.cosh(t)


UNIT = jnp.linspace(0, 1, 40_001)[:, None]


@pytest.mark.parametrize(
    ("log_density", "reach"),
    quick_first([(two_modes, 3.3), (student, 9), (skewed, 3.0)], [(student, 9)]),
)
def test_the_mean_is_zero_under_the_prediction(log_density, reach):
    for mean, size in means(log_density, STEIN + BALANCE, *line(reach)):
        assert size > 1e-3
        assert abs(mean) < 1e-3 * size


@pytest.mark.parametrize("log_density", quick_first([beta, triangle], [triangle]))
def test_balance_needs_no_transform_of_a_bounded_support(log_density):
    for mean, size in means(log_density, BALANCE, UNIT, jnp.ones(40_001)):
        assert size > 0.01
        assert abs(mean) < 2e-3 * size


def test_curvature_of_a_density_that_ends_has_a_mean():
    """-12 for Beta(2, 2), in units of the target: the slope of the density at the ends counts."""
    # the integrand s^2 p + p s' = p'' is -12 throughout; the units are .7
    ((mean, _),) = means(beta, [Curvature(bound=None)], UNIT, jnp.ones(40_001))
    assert mean / 0.7**2 == pytest.approx(-12, rel=1e-3)
    ((shift, size),) = means(triangle, [Score()], UNIT, jnp.ones(40_001))
    assert abs(shift) > 0.5 * size
    ((kink, size),) = means(kinked, [Curvature(bound=None)], *line(4))
    assert abs(kink) > 0.9 * size


def test_entries_of_a_matrix_are_those_of_its_definition(key):
    """s s^T + H of a correlated Gaussian, entry by entry, in units of each prediction."""
    cov = np.array([[1.0, 0.6], [0.6, 2.0]])
    precision = np.linalg.inv(cov)
    ys, centers = jax.random.normal(key, (2, 7, 2))
    scales = jnp.asarray(np.eye(2) + 0.3 * np.random.default_rng(1).normal(size=(7, 2, 2)))
    predictions = dist.MultivariateNormal(jnp.zeros((7, 2)), cov)
    got = evaluate(Curvature(bound=None), predictions, ys, centers, scales)
    s = -np.asarray(ys) @ precision
    inner = s[:, :, None] * s[:, None] - precision
    wanted = np.einsum("nqi,nqr,nrj->nij", scales, inner, scales)
    np.testing.assert_allclose(got["spread"], np.diagonal(wanted, axis1=1, axis2=2), rtol=1e-9)
    np.testing.assert_allclose(got["correlation"][:, 0], 2**0.5 * wanted[:, 0, 1], rtol=1e-9)
    trace = evaluate(Curvature("trace", None), predictions, ys, centers, scales)["spread"]
    np.testing.assert_allclose(trace[:, 0], np.trace(wanted, axis1=1, axis2=2), rtol=1e-9)
    u = np.linalg.solve(scales, (ys - centers)[..., None])[..., 0]
    linear = evaluate(Linear("diagonal"), predictions, ys, centers, scales)["spread"]
    t = np.einsum("nqi,nq->ni", scales, s) * u + 1
    np.testing.assert_allclose(linear, t, rtol=1e-9)


def test_bounded_curvature_is_stein_of_the_bounded_score(key):
    r"""v f^T + (d f / d v) M^T H M with f = v / sqrt(1 + |v|^2 / 9), the formula written out."""
    cov = np.array([[1.0, 0.6], [0.6, 2.0]])
    precision = np.linalg.inv(cov)
    ys = jax.random.normal(key, (7, 2))
    predictions = dist.MultivariateNormal(jnp.zeros((7, 2)), cov)
    zero = jnp.zeros((7, 2))
    got = evaluate(Curvature(), predictions, ys, zero, jnp.eye(2)[None])
    for y, spread, correlation in zip(ys, got["spread"], got["correlation"], strict=True):
        v = -precision @ np.asarray(y)
        r = 1 + v @ v / 9
        slope = (np.eye(2) - np.outer(v, v) / (9 * r)) / r**0.5
        t = np.outer(v, v) / r**0.5 - slope @ precision
        np.testing.assert_allclose(spread, np.diagonal(t), rtol=1e-9)
        np.testing.assert_allclose(correlation[0], (t[0, 1] + t[1, 0]) / 2**0.5, rtol=1e-9)


def test_balance_is_its_sum_over_moves(key):
    moves = np.asarray(symmetric_moves(key, 4, 1, (1.0, 0.3), jnp.float64))
    y, log = jnp.asarray([[0.3], [-1.0]]), lambda y: -np.log(np.cosh(y))
    predictions = Unnormalized(lambda _, y: -jnp.log(jnp.cosh(y[0])), None, in_axes=None)
    zero, eye = jnp.zeros((1, 1)), jnp.ones((1, 1, 1))
    got = evaluate(Balance(moves), predictions, y, zero, eye)["spread"]
    jumps = evaluate(Jumps(moves), predictions, y, zero, eye)["weights"]
    both = np.concatenate([moves, -moves])[:, 0]
    ratio = log(np.asarray(y) + both[None]) - log(np.asarray(y))
    weight = np.minimum(1, np.exp(ratio))
    np.testing.assert_allclose(got[:, 0], np.sum(weight * np.tanh(ratio / 2), axis=1) / 4)
    np.testing.assert_allclose(jumps[:, 0], np.sum(weight * both[None], axis=1) / 4)
    rng = np.random.default_rng(5)  # of the standard hyperbolic secant, by its quantile function
    draws = 2 / np.pi * np.log(np.tan(np.pi / 2 * rng.uniform(size=(20_000, 1))))
    values = evaluate(
        Balance(moves),
        Unnormalized(lambda _, y: -jnp.log(jnp.cosh(jnp.pi / 2 * y[0])), None, in_axes=None),
        jnp.asarray(draws),
        zero,
        eye,
    )["spread"]
    assert abs(np.mean(values)) < 4 * np.std(values) / 20_000**0.5


@pytest.mark.parametrize(("d", "n_moves"), [(1, 4), (2, 7), (5, 16), (9, 4)])
def test_moves_that_follow_each_other_are_at_right_angles(d, n_moves, key):
    moves = np.asarray(symmetric_moves(key, n_moves, d, (1.0, 0.3, 0.1), jnp.float32))
    lengths = np.linalg.norm(moves, axis=1)
    assert moves.dtype == np.float32
    wanted = 10 ** np.interp(np.linspace(0, 2, n_moves), range(3), np.log10([1, 0.3, 0.1]))
    np.testing.assert_allclose(lengths, wanted, rtol=1e-5)
    block = moves[: min(d, n_moves)]
    block = block / np.linalg.norm(block, axis=1, keepdims=True)
    np.testing.assert_allclose(block @ block.T, np.eye(len(block)), atol=1e-5)


@pytest.mark.parametrize("width", [0.1, 1.0, 1.4])
def test_default_moves_are_detected_for_predictions_of_any_width(width, key):
    """Of normal predictions this wide beside all targets, by sums over z: the slope of the mean in
    the log of the spread, in deviations of the moment, beside the likelihood's sqrt(2), and these
    deviations beside those of predictions half as wide as the targets."""
    z = jnp.linspace(-9, 9, 2001)
    weight = np.exp(-(np.asarray(z) ** 2) / 2)
    weight = weight / np.sum(weight)

    @jax.jit
    def of(moves):
        values = jax.vmap(Balance(moves), in_axes=(None, 0))(lambda y: -y @ y / 2, z[:, None])
        return values["spread"][:, 0]

    moves = Balance().fitted(key, 1, jnp.float64).moves
    t, half = np.asarray(of(moves / width)), np.asarray(of(moves / 0.5))
    assert weight @ (t * (np.asarray(z) ** 2 - 1)) > 0.94 * (2 * weight @ t**2) ** 0.5
    assert weight @ t**2 > 0.75**2 * (weight @ half**2)


def test_an_exchangeable_target_is_held_against_its_set(key):
    """The formula written out; and its mean is 0 under a density with a jump and an end, also in
    units that have nothing to do with it, where with one point only it is far from y - E y."""
    ys = 1 - np.sqrt(np.random.default_rng(3).uniform(size=(20_000, 1)))
    keys = jax.random.split(key, len(ys))
    predictions = Unnormalized(triangle, None, in_axes=None)
    origin, scale = jnp.full((1, 1), 0.6), jnp.full((1, 1, 1), 0.5)
    for m, width in [(1, 0.5), (16, 1.2)]:
        one = Exchangeable(m, width)
        got = np.asarray(
            evaluate(one, predictions, jnp.asarray(ys), origin, scale, keys)["weights"]
        )
        drawn = width * jax.vmap(partial(jax.random.normal, shape=(m, 1)))(keys)[:, :, 0]
        u = np.concatenate([(ys - 0.6) / 0.5, drawn], axis=1)
        a = 0.6 + 0.5 * u
        ratio = np.where((a > 0) & (a < 1), 1 - a, 0) / scipy.stats.norm.pdf(u, scale=width)
        weights = ratio / np.sum(ratio, axis=1, keepdims=True)
        gaps = u - np.sum(weights * u, axis=1, keepdims=True)
        square = np.sum(weights * gaps**2, axis=1, keepdims=True)
        r = gaps / np.sqrt(np.where(square > 0, square, 1))
        # of some sets no member lies beyond an edge
        whole = np.all(ratio > 0, axis=1, keepdims=True)
        features = (
            np.where(whole, gaps, r / np.sqrt(1 + r**2)),
            np.where(whole, 0, r**2 / (1 + r**2)),
        )
        wanted = np.stack([f[:, 0] - np.sum(weights * f, axis=1) for f in features], axis=1)
        np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-9)
        assert np.all(np.std(got[:, : 1 + (m > 1)], axis=0) > 0.02)
        assert np.all(abs(np.mean(got, axis=0)) <= 4 * np.std(got, axis=0) / len(ys) ** 0.5)
    flat_one = Unnormalized(flat, None, in_axes=None)
    got = evaluate(one, flat_one, jnp.asarray(ys[:5]), origin, scale, keys[:5])["weights"]
    np.testing.assert_array_equal(got, 0)


@pytest.mark.slow
def test_wrong_weights_of_modes_are_found_by_the_default(key):
    """The upper mode has .65 of the mass and is claimed to have .5, 20 widths from the other, so
    that no score and no move inside of a mode can know. .62 of 40 other data sets were rejected;
    more than 5 of these 20 are, and of right ones at most 4 (more have probability .003)."""

    def modes(x, y):
        z = (y - x) / jnp.asarray([0.15, 0.5])
        far = jnp.asarray([10.0, 0.0])
        return jnp.logaddexp(-jnp.sum((z - far) ** 2) / 2, -jnp.sum((z + far) ** 2) / 2)

    @jax.jit
    def run(key, share):
        x, noise = jax.random.normal(key, (2, 300, 2))
        upper = jax.random.uniform(jax.random.fold_in(key, 1), (300,)) < share
        side = jnp.where(upper, 1.5, -1.5)
        ys = x + noise * jnp.asarray([[0.15, 0.5]]) + jnp.stack([side, 0 * side], axis=1)
        return calibration_test(key, Unnormalized(modes, x), ys)

    right, wrong = ([run(k, share) for k in jax.random.split(key, 20)] for share in (0.5, 0.65))
    assert sum(result.verdict == "rejected" for result in right) <= 4
    rejected = [result for result in wrong if result.verdict == "rejected"]
    assert len(rejected) > 5
    assert all(r.parts.names[int(r.parts.winner)] == "shift" for r in rejected)


def forecasts(key, n=300, spread=1.0, shift=0.0, correlation=0.0):
    x, noise = jax.random.normal(key, (2, n, 2))
    noise = noise.at[:, 1].set(
        correlation * noise[:, 0] + (1 - correlation**2) ** 0.5 * noise[:, 1]
    )
    return dist.Normal(x, jnp.ones((n, 2))).to_event(1), x + shift + spread * noise


def own_moment(log_density, y):
    """A user's: Stein's identity for the hyperbolic tangent of the first score."""
    slope, pull = jax.value_and_grad(lambda z: jnp.tanh(jax.grad(log_density)(z)[0]))(y)
    return (slope * jax.grad(log_density)(y)[0] + pull[0])[None]


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("moment", "fault"),
    [
        pytest.param(Balance(), "spread", marks=SLOW, id="balance"),
        pytest.param(own_moment, "spread", marks=SLOW, id="a user's"),
        pytest.param(Score(marginal=True), "shift", marks=SLOW, id="shift"),
        pytest.param(Curvature("correlation"), "correlation", marks=SLOW, id="correlation"),
    ],
)
def test_a_moment_finds_its_fault_under_every_null(moment, fault, key):
    sizes = {"spread": 1.4, "shift": 0.4, "correlation": 0.7}
    drawn = [
        nulls.Wild(99),
        Multinomial(99),
        Spectrum(99),
        nulls.DependentWild(99),
        Gamma(),
    ]
    for null in drawn if moment is own_moment else drawn[:1]:
        right = moment_test(key, *forecasts(key), moment=moment, null=null)
        wrong = moment_test(key, *forecasts(key, **{fault: sizes[fault]}), moment=moment, null=null)
        assert right.p_value > 0.01
        assert wrong.p_value <= 0.02


def square(_, y):
    return y**2 - 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("null", "of"),  # what a null takes for its statistic
    [
        (nulls.HadamardWild(99), lambda result: result.estimate),
        (Multinomial(99), lambda result: 40 / 39 * result.estimate),
        (Gamma(), lambda result: 40 * result.biased),
        (nulls.Eigenvalues(), lambda result: 39 * result.estimate),
    ],
    ids=["HadamardWild", "Multinomial", "Gamma", "Eigenvalues"],
)
@pytest.mark.parametrize("spread", [0.8, 1.3])
def test_a_moment_against_its_skewness_counts_less_in_all_nulls(null, of, spread, key):
    """Squares are skewed to the right: of targets that are too close they sum to the left."""
    predictions = dist.Normal(jnp.zeros(40), 1.0)
    targets = spread * jax.random.normal(key, (40,))
    result = moment_test(key, predictions, targets, moment=square, null=null, standardize=False)
    plain = of(result)
    assert (result.p_value_error is not None) == isinstance(null, nulls.Eigenvalues)
    if spread < 1:
        assert result.statistic < 0.95 * plain
    else:
        assert float(result.statistic) == pytest.approx(float(plain))


@pytest.mark.slow
@pytest.mark.parametrize(("spread", "said"), [(0.6, True), (1.6, False)])
def test_a_sum_on_the_short_side_of_skewed_values_is_said(key, spread, said):
    predictions = dist.Normal(jnp.zeros(40), 1.0)
    targets = spread * jax.random.normal(key, (40,))
    result = moment_test(key, predictions, targets, moment=Curvature())
    assert result.verdict == "rejected"
    assert any("[skewed-moment]" in text for text in result.warnings()) == said
    shifted = moment_test(key, predictions, targets + 1, moment=Score())
    assert "[skewed-moment]" not in "".join(shifted.warnings())


@pytest.mark.slow
def test_an_absent_event_of_a_custom_moment_is_no_evidence(key):
    """Of probability .02, at 20 targets: signs alone reject at the least p-value there is."""

    def event(log_density, y):
        return jnp.where(jax.grad(log_density)(y)[0] < -2.0537, 1.0, 0.0) - 0.02

    def shift(log_density, y):
        return jax.grad(log_density)(y)

    targets = jax.random.truncated_normal(key, -3.0, 2.05, (20,))
    right = dist.Normal(jnp.zeros(20), 1.0)
    result = moment_test(key, right, targets, moment=event, standardize=False)
    assert result.verdict == "cannot tell"
    assert any("[rare-targets]" in text for text in result.warnings())
    exact = moment_test(
        key, right, targets, moment=event, standardize=False, null=nulls.Redrawn(99)
    )
    assert exact.p_value > 0.3
    assert moment_test(key, right, targets + 3, moment=shift).verdict == "rejected"


@pytest.mark.slow
def test_what_a_moment_asks_for_is_looked_at(key):
    n = 100
    x = jax.random.normal(key, (n, 1))
    laplace = dist.Laplace(x[:, 0], 1.0)
    alone = moment_test(key, laplace, x[:, 0], moment=Curvature())
    assert alone.verdict == "cannot tell"
    assert np.isnan(alone.p_value)
    assert any("not twice differentiable" in text for text in alone.warnings())

    # a density that has not ended yet at its ends: scores are not right
    ends = dist.TruncatedNormal(x[:, 0], 1.0, low=x[:, 0] - 0.5, high=x[:, 0] + 1)
    inside = x[:, 0] + 0.25 + 0.7 * jnp.sin(jnp.arange(n))
    result = calibration_test(key, ends, inside)
    assert result.verdict != "cannot tell"
    assert any("0 somewhere" in text for text in result.warnings())
    outside = calibration_test(key, ends, inside.at[3].add(5.0))
    assert outside.verdict == "rejected"
    assert any(text.startswith("1 target lies where") for text in outside.warnings())


def flat(_, y):
    return 0.0 * jnp.sum(y)


@pytest.mark.slow
def test_a_flat_density_has_nothing_to_say(key):
    x = jax.random.normal(key, (50, 1))
    result = moment_test(key, Unnormalized(flat, None, in_axes=None), x)
    assert result.verdict == "cannot tell"
    assert "flat" in result.reason
    assert np.isnan(result.p_value)


@pytest.mark.slow
def test_one_program_over_data_sets_and_the_level(key):
    """128 calibrated data sets; 99.99 % of right tests reject at 5 % in at most 17."""

    def p_value(key):
        predictions, targets = forecasts(key, n=30)
        return calibration_test(key, predictions, targets, null=nulls.Wild(99)).p_value

    p = jax.jit(jax.vmap(p_value))(jax.random.split(key, 128))
    low, high = scipy.stats.binom.interval(0.9998, 128, 0.05)
    assert low <= int(np.sum(np.asarray(p) <= 0.05)) <= high


def test_wrong_arguments_are_named(key):
    predictions, targets = forecasts(key, n=12)
    for error, words, call in [
        (TypeError, "moment: wanted", lambda: moment_test(key, predictions, targets, moment=3)),
        (TypeError, "log densities", lambda: moment_test(key, np.ones(12), targets)),
        (TypeError, "tiles: no such", lambda: moment_test(key, predictions, targets, tiles=3)),
        (ValueError, r"moves: .* \[m, 2\]", lambda: Balance(np.ones((3, 1))).fitted(key, 2, float)),
    ]:  # fmt: skip
        with pytest.raises(error, match=words):
            call()


@pytest.mark.slow
def test_in_own_units_gaussians_of_every_width_are_one(key):
    """The moments of N(c, w^2) at y are those of N(0, 1) at (y - c) / w."""
    n = 60
    c, w, u = jax.random.normal(key, (3, n, 1))
    w = jnp.exp(w)
    moves = np.random.default_rng(2).normal(size=(6, 1))

    def run(center, width, targets, whiten):
        predictions = dist.Normal(center, width).to_event(1)
        options = {"moment": Balance(moves), "null": nulls.Wild(99)}
        options |= {"prediction_kernel": Constant(), "standardize": False, "whiten": whiten}
        return moment_test(key, predictions, targets, **options).statistic

    whitened = run(c, w, c + w * u, Regression())
    np.testing.assert_allclose(whitened, run(0 * c, w**0, u, None), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"n_nodes": 4}, {"whiten": Regression()}])
def test_a_shift_of_many_correlated_coordinates_is_found(options):
    """Without covariances scores speak of each coordinate given the others, and hardly see it."""
    d, n = 12, 100
    noise_key, center_key, key = jax.random.split(jax.random.key(3), 3)
    root = jnp.linalg.cholesky(0.5 * jnp.eye(d) + 0.5)
    centers = jax.random.normal(center_key, (n, d))
    predictions = Unnormalized(
        lambda center, y: -jnp.sum(jnp.linalg.solve(root, y - center) ** 2) / 2, centers
    )
    ys = centers + 0.3 + jax.random.normal(noise_key, (n, d)) @ root.T
    result = moment_test(key, predictions, ys, moment=Score(marginal=True), **options)
    assert result.p_value < 0.01


@pytest.mark.slow
@pytest.mark.parametrize("n", [200, 201])
def test_an_absent_event_is_no_evidence_in_any_units(n):
    """Of 201 equal values a product of bounds was negative: "rejected"; of 200 "cannot tell"."""

    def event(_, y):
        return jnp.where(y > 3000.0, 1.0, 0.0) - 0.00135

    def log_density(_, y):
        return -jnp.sum((y / 1000) ** 2) / 2

    targets = 1000 * jax.random.truncated_normal(jax.random.key(3), -3.0, 2.8, (n, 1))
    predictions = Unnormalized(log_density, jnp.zeros(n))
    options = {"moment": event, "standardize": False}
    assert moment_test(0, predictions, targets, **options).verdict == "cannot tell"


@pytest.mark.slow
def test_points_exchanged_have_the_width_of_the_targets():
    """They had that of one unit with standardize=False: p was NaN for .002."""

    def modes(_, y):
        return two_modes(_, y / 1000)

    targets = 1000 * (2 + jax.random.normal(jax.random.key(0), (200, 1)))
    predictions = Unnormalized(modes, jnp.zeros(200))
    p = [
        moment_test(0, predictions, targets, moment=Exchangeable(), standardize=units).p_value
        for units in (True, False)
    ]
    np.testing.assert_allclose(*p)
