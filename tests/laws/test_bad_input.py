"""Who brings the wrong thing gets a sentence or a flagged result, and never a verdict."""

import warnings

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from reference.nulls import Bound, Gamma, Multinomial, Spectrum
from reference.proposals import Independent

import jaxcal
from jaxcal import Draws, Scores, Unnormalized, kccsd, kccsd_test, kcsd_test, ksd_test, skce_test
from jaxcal.candidates import exchangeability_test
from jaxcal.divergences import MMD
from jaxcal.kernels import Gaussian, Laplace, Matern52
from jaxcal.nulls import BlockNormal, Wild
from jaxcal.read import draws
from jaxcal.sbi import score_pairs

KEY = jax.random.key(0)


pytestmark = pytest.mark.usefixtures("as_users_run_it")


N, D = 12, 2
RNG = np.random.default_rng(0)
YS = RNG.normal(size=(N, D))
MEANS = jnp.asarray(YS + RNG.normal(size=(N, D)))
NODES = RNG.normal(size=(4, D))
QUICK = Wild(19)


def posterior(theta, x):
    return -jnp.sum((theta - x) ** 2) / 2


def density(mean, y):
    return -jnp.sum((y - mean) ** 2) / 2


MODEL = Unnormalized(density, MEANS)
SCORES = Scores(np.asarray(MEANS) - YS, np.asarray(MEANS)[:, None] - NODES, NODES)


def run(predictions=MODEL, ys=YS, key=KEY, **options):
    return kccsd_test(key, predictions, ys, **{"null": QUICK, "base_measure": NODES} | options)


@pytest.mark.parametrize("key", [1.0, None, "0", np.zeros(3, np.uint32)])
def test_a_key_is_a_key(key):
    for call in (
        lambda: run(key=key),
        lambda: kccsd(key, MODEL, YS),
        lambda: ksd_test(key, density, YS),
        lambda: kcsd_test(key, MODEL, YS, YS),
    ):
        with pytest.raises(TypeError, match=r"^key: .*jax.random.key\("):
            call()


def test_one_key_not_several():
    with pytest.raises(ValueError, match="key: wanted one key"):
        run(key=jax.random.split(KEY))


@pytest.mark.parametrize(
    ("ys", "error", "words"),
    [
        (np.zeros((1, 2)), ValueError, "targets: wanted at least 2 observations"),
        (np.zeros((0, 2)), ValueError, "targets: wanted at least 2 observations"),
        (np.float64(3.0), ValueError, "targets: wanted at least 2 observations"),
        (np.zeros((N, 0)), ValueError, "targets: wanted at least one coordinate"),
        (np.zeros((N, D), bool), TypeError, "targets: wanted float32 or float64"),
        (np.zeros((N, D), complex), TypeError, "targets: wanted float32 or float64"),
        (np.zeros((N, D), np.float16), TypeError, "targets: float16.*three digits"),
        (jnp.zeros((N, D), jnp.bfloat16), TypeError, "targets: bfloat16.*three digits"),
        ([[1.0, 2.0], [3.0]], ValueError, "targets: wanted a rectangular array"),
        ("targets", TypeError, "targets: wanted an array of numbers"),
        (None, TypeError, "targets: wanted an array of numbers"),
    ],
    ids=str,
)
def test_targets(ys, error, words):
    with pytest.raises(error, match=words):
        run(ys=ys)


@pytest.mark.parametrize(
    ("predictions", "error", "words"),
    [
        (MEANS, TypeError, "Wrap arrays to say what they are: jaxcal.Scores"),
        (YS.tolist(), TypeError, "Wrap arrays"),
        (Draws(jnp.zeros((N, 3, D))), TypeError, "needs scores, which draws do not give"),
        (None, TypeError, "cannot get scores"),
        ("model", TypeError, "predictions: str"),
        (Unnormalized(density, MEANS[:-1]), ValueError, r"leading axis of n=12 .*in_axes"),
        (Unnormalized(density, (MEANS, jnp.zeros(()))), ValueError, r"params\[1\] has shape \(\)"),
        (Scores(MEANS[:-1]), ValueError, "Scores.at_targets: wanted the shape of the targets"),
        (Scores(MEANS.astype(complex)), TypeError, "Scores.at_targets: wanted float32"),
        (Scores(MEANS, MEANS), ValueError, r"Scores.at_nodes: wanted shape \(12, m, 2\)"),
        (Scores(MEANS, jnp.zeros((4, N, D))), ValueError, "Scores.at_nodes: wanted shape"),
        (Scores(MEANS, jnp.zeros((N, 0, D))), ValueError, "Scores.at_nodes: wanted shape"),
        (Scores(MEANS, jnp.zeros((N, 4, D)), NODES[:3]), ValueError, "m=4 base points"),
        (Scores(MEANS), ValueError, "Scores.at_nodes is missing"),
        (dist.Normal(MEANS, 1.0), ValueError, r"to_event\(1\)"),
        (dist.Normal(MEANS[:-1], 1.0).to_event(1), ValueError, r"batch shape \(12,\)"),
        (dist.Normal(MEANS[:, 0], 1.0), ValueError, r"event shape \(2,\)"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_predictions(predictions, error, words):
    with pytest.raises(error, match=words):
        run(predictions)


@pytest.mark.parametrize("shape", [(1,), (2,), (1, 1)])
def test_a_log_density_returns_one_number(shape):
    def wrong(mean, y):
        return jnp.broadcast_to(density(mean, y), shape)

    with pytest.raises(TypeError, match=r"log_density\(params, y\) must return one number"):
        run(Unnormalized(wrong, MEANS))


def in_numpy(mean, y):
    return -np.sum((np.asarray(y) - mean) ** 2) / 2


@pytest.mark.parametrize(
    ("log_density", "params", "words"),
    [
        (density, MEANS.astype(complex), r"fails for targets of shape \(2,\).*complex128"),
        (density, {"mean": MEANS}, "fails for targets.*unsupported operand"),
        (density, jnp.ones((N, 3)), "fails for targets.*(shape|broadcast)"),
        (in_numpy, MEANS, "fails for targets.*when JAX traces it"),
    ],
    ids=["complex", "a dict", "shapes", "NumPy"],
)
def test_a_log_density_that_fails_is_that_of_the_predictions(log_density, params, words):
    with pytest.raises((TypeError, ValueError), match=rf"^predictions: log_density.*{words}"):
        run(Unnormalized(log_density, params))
    if params is MEANS:
        with pytest.raises(TypeError, match=r"^model: log_density.*fails for targets"):
            ksd_test(KEY, lambda y: in_numpy(0.0, y), YS)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        (
            {"base_measure": dist.Normal()},
            ValueError,
            r"base_measure: .*points of shape \(2,\), got \(\)",
        ),
        ({"base_measure": dist.Normal}, TypeError, "base_measure: got the class Normal"),
        ({"target_kernel": in_numpy}, TypeError, r"^target_kernel: fails for points.*\(2,\)"),
        ({"target_kernel": jnp.exp}, TypeError, r"^target_kernel: fails for points"),
    ],
    ids=["scalar", "class", "NumPy", "one argument"],
)
def test_base_measures_and_kernels_that_fail(options, error, words):
    with pytest.raises(error, match=words):
        run(**options)


def test_an_object_that_is_no_pytree():
    class Plain:
        def scores(self, ys):
            return -ys

    with pytest.raises(TypeError, match=r"predictions: Plain.*pytree"):
        run(Plain())


def test_scores_of_the_wrong_shape():
    class Flat(eqx.Module):
        def scores(self, ys):
            return -ys[:, 0]

    with pytest.raises(ValueError, match="predictions: scores have shape"):
        run(Flat())


def test_preconditioning_needs_the_base_points_of_given_scores():
    with pytest.raises(ValueError, match=r"Scores\.nodes"):
        run(Scores(SCORES.at_targets, SCORES.at_nodes), base_measure=None, precondition="diagonal")


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"target_kernel": Laplace()}, ValueError, "target_kernel: .*Laplace"),
        ({"target_kernel": Gaussian() + Laplace(1.0)}, ValueError, "target_kernel: .*Laplace"),
        ({"precondition": "whole"}, ValueError, "precondition: wanted None, 'isotropic'"),
        ({"precondition": True}, ValueError, "precondition: wanted"),
        ({"precondition": "full", "coordinates": True}, ValueError, "use 'diagonal'"),
        ({"n_nodes": 0}, ValueError, "n_nodes: wanted a whole number of at least 1"),
        ({"n_nodes": 2.5}, ValueError, "n_nodes"),
        (
            {"base_measure": np.zeros((4, 3))},
            ValueError,
            r"base_measure: wanted points of shape \[m, 2\]",
        ),
        ({"base_measure": np.zeros((0, 2))}, ValueError, "base_measure: wanted"),
        ({"base_measure": np.zeros((4, 2), complex)}, TypeError, "base_measure: wanted float32"),
        ({"tile": 0}, ValueError, "tile: wanted a whole number of at least 1"),
        ({"null": BlockNormal(7)}, ValueError, "at least two blocks"),
        ({"target_kernel": Gaussian([1.0, 1.0, 1.0])}, ValueError, "bandwidth"),
    ],
    ids=str,
)
def test_options(options, error, words):
    with pytest.raises(error, match=words):
        run(**options)


def improper(batch, event):
    return dist.ImproperUniform(dist.constraints.real, batch, event)


def test_a_base_measure_without_a_sampler():
    with pytest.raises(TypeError, match="base_measure: ImproperUniform has no sampler"):
        run(base_measure=improper((), (D,)))


def test_predictions_and_candidates_without_a_sampler():
    flat = improper((N,), (D,))
    with pytest.raises(TypeError, match="predictions: ImproperUniform has no sampler"):
        skce_test(KEY, flat, YS, divergence=MMD(n_samples=5), target_kernel=Gaussian(1.0))
    with pytest.raises(TypeError, match="predictions: ImproperUniform has no sampler"):
        draws(KEY, flat, 3)
    with pytest.raises(TypeError, match="distribution: ImproperUniform has no sampler"):
        exchangeability_test(KEY, MODEL, YS, proposal=Independent(flat))
    with pytest.raises(TypeError, match="prior: ImproperUniform has no sampler"):
        score_pairs(KEY, posterior, YS, YS, prior=improper((), (D,)))


@pytest.mark.parametrize("make", [lambda: Wild(0), lambda: Multinomial(-3)])
def test_no_draws_is_no_test(make):
    with pytest.raises(ValueError, match="n_draws: wanted a whole number of at least 1"):
        make()


@pytest.mark.parametrize("value", [0.0, -1.0, np.inf])
def test_a_bandwidth_is_positive(value):
    with pytest.raises(ValueError, match="bandwidth: lengths must be positive"):
        run(target_kernel=Matern52(value))


def test_misspelled_options_are_refused():
    with pytest.raises(TypeError, match="bandwith"):
        run(bandwith=1.0)
    with pytest.raises(TypeError, match="bandwith"):
        kccsd(KEY, MODEL, YS, bandwith=1.0)
    with pytest.raises(TypeError, match="bandwith"):
        kcsd_test(KEY, MODEL, YS, YS, bandwith=1.0)


class Tensor:
    """What a torch tensor looks like from here."""

    def __init__(self, array):
        self.array = array

    def detach(self):
        return self

    def cpu(self):
        return self

    def resolve_conj(self):
        return self

    def resolve_neg(self):
        return self

    @property
    def dtype(self):
        return self.array.dtype

    def numpy(self):
        return self.array

    def __array__(self, *args, **kwargs):
        raise TypeError("this tensor carries a graph or lives on another device")


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [np.asarray, jnp.asarray, lambda a: a.tolist(), Tensor], ids=["np", "jax", "list", "t"]
)
def test_arrays_of_any_library_are_welcome(kind):
    wanted = run()
    scores = Scores(*(kind(np.asarray(a)) for a in (SCORES.at_targets, SCORES.at_nodes, NODES)))
    assert float(run(MODEL, kind(YS)).estimate) == float(wanted.estimate)
    np.testing.assert_allclose(run(scores, kind(YS), base_measure=None).estimate, wanted.estimate)
    one = kcsd_test(KEY, MODEL, kind(YS), kind(YS), null=QUICK)
    np.testing.assert_allclose(one.estimate, kcsd_test(KEY, MODEL, YS, YS, null=QUICK).estimate)


def flagged(result, *words):
    """The result says so, in print and in its list, and where it cannot know gives no verdict."""
    text = str(result)
    for word in words:
        assert word in text
        assert any(word in line for line in result.warnings())


@pytest.mark.slow
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "null", [QUICK, Multinomial(19), Spectrum(19), Gamma(), BlockNormal(), Bound(1e9)],
    ids=lambda null: type(null).__name__,
)  # fmt: skip
def test_a_target_that_is_not_finite_gives_no_verdict(null, bad):
    ys = YS.copy()
    ys[3, 1] = bad
    result = run(ys=ys, null=null)
    assert np.isnan(result.p_value)
    flagged(result, "1 target value is NaN or infinite")
    assert result.verdict == "cannot tell"
    assert result.reason in str(result)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_score_that_is_not_finite_gives_no_verdict(bad):
    at_targets = np.asarray(SCORES.at_targets).copy()
    at_targets[2, 0] = bad
    result = run(Scores(at_targets, SCORES.at_nodes, NODES), base_measure=None)
    assert np.isnan(result.p_value)
    flagged(result, "1 score value at the targets is NaN or infinite")


@pytest.mark.parametrize("precondition", [None, "isotropic", "diagonal", "full"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_base_point_score_that_is_not_finite_gives_no_verdict(bad, precondition):
    at_nodes = np.asarray(SCORES.at_nodes).copy()
    at_nodes[2, 0, 1] = bad
    scores = Scores(SCORES.at_targets, at_nodes, NODES)
    result = run(scores, base_measure=None, precondition=precondition)
    assert np.isnan(result.p_value)
    flagged(result, "the predictions")


def test_a_density_that_does_not_reach_a_target_gives_no_verdict():
    def half_line(mean, y):
        return jnp.sum(jnp.log(y - mean)) - jnp.sum(y)

    ys = np.abs(YS)
    ys[5, 0] = 0.0
    model = Unnormalized(half_line, jnp.zeros((N, D)))
    result = run(model, ys, base_measure=np.abs(NODES) + 1, standardize=False)
    assert np.isnan(result.p_value)
    flagged(result, "does the density reach all targets")


@pytest.mark.slow
def test_a_density_cut_off_before_a_target_gives_no_verdict():
    """Its gradient there is 0, which is no score."""

    def cut(mean, y):
        return jnp.where(jnp.all(y < 100), density(mean, y), -jnp.inf)

    ys = YS.copy()
    ys[5, 0] = 200.0
    for model in (Unnormalized(cut, MEANS), Cut(MEANS)):
        result = run(model, ys)
        assert np.isnan(result.p_value)
        flagged(result, f"{D} score values at the targets are NaN")


class Cut(eqx.Module):
    """Like a numpyro distribution that ends at 100."""

    means: jax.Array
    batch_shape = (N,)
    event_shape = (D,)

    def log_prob(self, ys):
        return jnp.where(jnp.all(ys < 100, axis=-1), jax.vmap(density)(self.means, ys), -jnp.inf)


def test_a_log_density_of_nan_gives_no_verdict():
    def broken(mean, y):
        return density(mean, y) * jnp.nan

    result = run(Unnormalized(broken, MEANS))
    assert np.isnan(result.p_value)
    flagged(result, "score values at the targets are NaN")


def test_one_prediction_for_all_is_named():
    result = run(Unnormalized(density, jnp.zeros((N, D))))
    assert np.isfinite(result.p_value)
    flagged(result, "all predictions compared are identical")
    result = run(dist.Normal(jnp.zeros(D), 1.0).to_event(1))
    flagged(result, "all predictions compared are identical")


def test_one_target_for_all_says_nothing():
    result = run(ys=np.full((N, D), 0.1))
    flagged(result, "all targets compared are identical", "2 target coordinates have no spread")


def test_identical_observations_say_nothing():
    scores = Scores(np.ones((N, D)), np.ones((N, 4, D)), NODES)
    result = run(scores, np.full((N, D), 0.1), base_measure=None)
    flagged(result, "all targets compared are identical", "all predictions compared are identical")


def test_a_coordinate_without_spread_is_named():
    ys = YS.copy()
    ys[:, 1] = 0.3
    result = run(ys=ys)
    assert np.isfinite(result.p_value)
    flagged(result, "1 target coordinate has no spread")


def test_good_data_raise_no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rng = np.random.default_rng(1)
        means = rng.normal(size=(60, D))
        ys = means + rng.normal(size=(60, D))
        assert run(Unnormalized(density, jnp.asarray(means)), ys).warnings() == []


@pytest.mark.parametrize("rows", [N - 1, N + 1])
def test_mismatched_numbers_of_targets_and_predictions(rows):
    with pytest.raises(ValueError, match="predictions: params"):
        run(ys=RNG.normal(size=(rows, D)))


def test_two_observations_are_enough_to_run():
    result = run(Unnormalized(density, MEANS[:2]), YS[:2])
    assert 0 < float(result.p_value) <= 1


def test_functions_need_keys_and_data_by_position():
    with pytest.raises(TypeError):
        kccsd_test(MODEL, YS)
    assert jaxcal.kccsd_test is kccsd_test


@pytest.mark.parametrize("null", [jaxcal.nulls.Wild, "wild", None])
def test_a_null_that_is_none_is_refused(key, null):
    ys = jnp.zeros((5, 1)).at[0, 0].set(1.0)
    predictions = jaxcal.Unnormalized(_positive, jnp.zeros(5))
    with pytest.raises(TypeError, match=r"null: wanted one such as jaxcal\.nulls\.Wild\(500\)"):
        jaxcal.kccsd_test(key, predictions, ys, null=null)


def _positive(center, y):
    return jnp.sum(jnp.log(y)) - jnp.sum((y - center) ** 2)


def test_a_target_on_the_edge_of_its_density_is_no_verdict(key):
    ys = jax.random.uniform(key, (30, 1)).at[3, 0].set(0.0)
    nodes = jnp.linspace(0.1, 2, 10)[:, None]
    result = jaxcal.kccsd_test(
        key, jaxcal.Unnormalized(_positive, jnp.zeros(30)), ys, base_measure=nodes
    )
    assert jnp.isnan(result.p_value)
    assert "1 score value at the targets" in str(result)


PROBABILITIES = RNG.dirichlet(np.ones(3), N)
CLASSES = RNG.integers(0, 3, N)


@pytest.mark.parametrize(
    ("predictions", "targets", "error", "words"),
    [
        (np.log(PROBABILITIES), CLASSES, ValueError, "negative probability .*logits"),
        (PROBABILITIES.T, CLASSES, ValueError, r"^predictions: the columns .* transpose"),
        (PROBABILITIES, np.eye(3)[CLASSES], TypeError, r"^targets: .* one-hot .*argmax\(1\)"),
        (PROBABILITIES, CLASSES * 1.0, TypeError, r"^targets: .*astype\(int\)"),
        (PROBABILITIES, np.array(list("abc"))[CLASSES], TypeError, "^targets: .*classes_"),
        (PROBABILITIES, None, TypeError, "^targets: wanted an array of numbers, got None$"),
    ],
)
def test_classes_say_what_to_do(predictions, targets, error, words):
    with pytest.raises(error, match=words):
        skce_test(KEY, predictions, targets)


def test_predictions_and_options_say_what_to_do():
    each = [dist.Normal(mean, 1.0) for mean in MEANS[:, 0]]
    with pytest.raises(TypeError, match=r"^predictions: got a list of 12 distributions; give one"):
        kccsd_test(KEY, each, YS[:, 0])
    with pytest.raises(TypeError, match="skce_test; means and deviations to a numpyro"):
        kccsd_test(KEY, (MEANS[:, 0], np.ones(N)), YS[:, 0])
    with pytest.raises(TypeError, match=r"^features: .* got the class RandomFeatures \(call it"):
        kccsd_test(KEY, dist.Normal(MEANS[:, 0], 1.0), YS[:, 0], features=jaxcal.RandomFeatures)
