"""One value that is not finite never becomes a verdict, whatever the test, kernel, null and n.

Every number of the result is NaN, it says "cannot tell", and a sentence counts the value. Kernels,
distances and nulls keep NaN each for itself, in one program; tests are run on a covering array.
"""

import re
from functools import partial
from itertools import cycle, islice

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from reference.nulls import BlockSquares, Bound, ChiSquared, Gamma, Multinomial, Spectrum
from reference.sliced import SlicedWasserstein
from reference.transport import Bures, MixtureWasserstein

import jaxcal
from jaxcal import Draws, Scores, Unnormalized, candidates, ckce, kernels, nulls, ucme
from jaxcal.divergences import (
    MMD,
    Euclidean,
    Fisher,
    GaussianFisher,
    GaussianKernelFisher,
    GradientKernel,
    KernelFisher,
    TotalVariation,
    Vectors,
    Wasserstein,
)
from jaxcal.divergences.vectors import NodeScores, gram_block
from jaxcal.fit import testing
from jaxcal.kernels import (
    IMQ,
    Constant,
    Gaussian,
    L1Laplace,
    Laplace,
    Linear,
    Matern52,
    PowerExponential,
    RationalQuadratic,
    points,
)
from jaxcal.nulls import BlockNormal, DependentWild, Eigenvalues, HadamardWild, Wild
from jaxcal.statistics.weighted import Weighted, WeightedFeatures

KEY = jax.random.key(20230721)
SIZES = (12, 100, 300)
BAD = (np.nan, np.inf, -np.inf)


def forecasts(n):
    """One-dimensional forecasts in every form a test takes, and what it may be told beside them."""
    rng = np.random.default_rng(n)
    mean, width = rng.normal(size=n), rng.uniform(0.5, 2, n)
    targets = mean + width * rng.normal(size=n)
    base = rng.normal(size=5)
    probabilities = rng.dirichlet(np.ones(3), n)
    return {
        "targets": targets,
        "mean": mean,
        "width": width,
        "inputs": rng.normal(size=n),
        "samples": mean[:, None] + width[:, None] * rng.normal(size=(n, 8)),
        "base": base,
        "at targets": (mean - targets) / width**2,
        "at base": (mean[:, None] - base) / width[:, None] ** 2,
        "probabilities": probabilities,
        "others": np.roll(probabilities, 1, axis=1),
        "classes": np.arange(n) % 3,
        "mean there": np.array([0.0, 1.0]),
        "targets there": np.array([0.5, -0.5]),
    }


def spoilt(all_data, place, value):
    values = all_data[place].copy()
    values[values.shape[0] // 3] = value
    return all_data | {place: values}


def bell(x, y):
    return jnp.exp(-jnp.sum((x - y) ** 2) / 2)


def density(params, y):
    mean, width = params
    return -(((y - mean) / width) ** 2) / 2


def model(values):
    return Unnormalized(density, (values["mean"], values["width"]))


def normals(values):
    return dist.Normal(values["mean"], values["width"], validate_args=False)


def laplaces(values):
    return dist.Laplace(values["mean"], values["width"], validate_args=False)


def mixtures(values):
    centers = jnp.stack([values["mean"] - 1, values["mean"] + 1], axis=1)
    parts = dist.Normal(centers, values["width"][:, None], validate_args=False)
    return dist.MixtureSameFamily(dist.Categorical(np.full((len(centers), 2), 0.5)), parts)


# smooth, as Stein tests need them, and others
SMOOTH = [Gaussian(), IMQ(), RationalQuadratic(), Matern52(), PowerExponential(power=2.0)]
SMOOTH += [Gaussian() + Linear(), 2.0 * IMQ() * Gaussian(), bell]
ROUGH = [Laplace(), L1Laplace(), PowerExponential(power=0.7), Laplace() + Constant()]
KERNELS = SMOOTH + ROUGH
READY = [points.with_bandwidth(points.as_kernel(k), jnp.ones(())) for k in KERNELS]
# distances with the predictions they compare
OF_NORMALS = [Fisher(), KernelFisher(), KernelFisher(GradientKernel(None)), GaussianFisher()]
OF_NORMALS += [GaussianKernelFisher(), Wasserstein(), MMD(of_targets=True), SlicedWasserstein(8, 3)]
OF_NORMALS += [Bures(), MMD(), MMD(n_samples=4)]
DIVERGENCES = [(one, normals) for one in OF_NORMALS]
DIVERGENCES += [(Wasserstein(), laplaces), (MixtureWasserstein(), mixtures)]
DIVERGENCES += [
    (MMD(of_targets=True), mixtures),
    (MMD(), lambda values: Draws(values["samples"][..., None])),
]
DIVERGENCES += [
    (one, lambda values: values["probabilities"]) for one in (Euclidean(), TotalVariation())
]
NULLS = [Wild(39), HadamardWild(39), DependentWild(39), Multinomial(39), Spectrum(39), Gamma()]
NULLS += [Eigenvalues(), BlockNormal(), BlockSquares(), Bound(50.0)]
AT_LOCATIONS = [Wild(39), ucme.F(), ChiSquared()]


def test_no_kernel_distance_or_null_is_missing():
    """What is new takes part; classes are whole numbers, `Vectors` are the inputs below, and of the
    bases of kernels there is no kernel."""
    parts = [*KERNELS, *NULLS, *(one for one, _ in DIVERGENCES)]
    names = {type(part).__name__ for part in parts}
    names |= {"Constant", "Linear", "GradientKernel", "Vectors", "Delta", "ClassGram"}
    names |= {"Kernel", "Profile", "Radial"}
    names |= {"Hamming", "Spectrum"}  # of tokens, which are whole numbers
    names |= {"Redrawn"}  # the default of the tests of classes and of UCME below
    assert {name for name in kernels.__all__ if isinstance(getattr(kernels, name), type)} <= names
    public = {name for name in nulls.__all__ if hasattr(getattr(nulls, name), "least_p_value")}
    assert public - {"Null"} <= names


SLOW = pytest.mark.slow


@pytest.mark.slow
@pytest.mark.parametrize("n", [300, *(pytest.param(n, marks=SLOW) for n in SIZES[:2])])
def test_kernels_and_nulls_keep_nan(n):
    """NaN in one point is NaN in its row, by the definition and by matrix products; a null has no
    p-value of it."""
    pairwise = Weighted(Gaussian(1.0), Vectors(np.zeros((0, 1))))

    @jax.jit
    def run(x):
        grams = [
            (points.gram(k, x[row], x), gram_block(k, pairwise.divergence, x[row], x))
            for k in READY
        ]
        features = WeightedFeatures(x, jnp.ones_like(x))
        p = [testing.apply(null, KEY, pairwise, features)[0].p_value for null in NULLS]
        return grams, p

    row = np.array([n // 3])
    x = jnp.asarray(forecasts(n)["targets"])[:, None]
    grams, p = run(x)
    assert np.all(np.isfinite(grams))
    assert np.all(np.isfinite(p))
    grams, p = run(x.at[row].set(np.nan))
    assert np.all(np.isnan(grams))
    assert np.all(np.isnan(p))


@pytest.mark.slow
@pytest.mark.parametrize("n", [12, *(pytest.param(n, marks=SLOW) for n in SIZES[1:])])
def test_distances_keep_nan(n):
    row = n // 3
    chosen = [one for one in DIVERGENCES if n == 12 or one[1] is not mixtures]  # host, pair by pair

    @jax.jit
    def run(values):
        nodes = NodeScores(values["base"][:, None], values["at base"][..., None])
        rows = []
        for divergence, predictions in chosen:
            features = divergence.features(KEY, predictions(values), nodes)
            one = jax.tree.map(lambda leaf: leaf[row : row + 1], features)
            rows.append(divergence.squared_distances(one, features))
        return rows

    values = jax.tree.map(jnp.asarray, forecasts(n))
    assert np.all(np.isfinite(run(values)))
    for place in ("mean", "samples", "probabilities", "at base"):
        values |= {place: values[place].at[row].set(jnp.nan)}
    for rows, (divergence, _) in zip(run(values), chosen, strict=True):
        assert np.all(np.isnan(rows)), divergence


def kccsd(values, target, prediction, divergence, null):
    return jaxcal.kccsd_test(
        KEY,
        normals(values),
        values["targets"],
        target_kernel=target,
        prediction_kernel=prediction,
        divergence=divergence,
        null=null,
        precondition="isotropic",  # which takes base points, whatever the distance
        base_measure=values["base"],
    )


def kccsd_of_scores(values, target, prediction, divergence, null):
    scores = Scores(values["at targets"], values["at base"], values["base"])
    options = {"target_kernel": target, "prediction_kernel": prediction, "divergence": divergence}
    options |= {"null": null, "coordinates": True, "precondition": "diagonal"}
    return jaxcal.kccsd_test(KEY, scores, values["targets"], **options)


def ksd(values, target, prediction, divergence, null):
    return jaxcal.ksd_test(
        KEY, Scores(values["at targets"]), values["targets"], target_kernel=target, null=null
    )


def kcsd(values, target, prediction, divergence, null):
    options = {"target_kernel": target, "prediction_kernel": prediction, "null": null}
    return jaxcal.kcsd_test(KEY, model(values), values["targets"], values["inputs"], **options)


def skce(predictions):
    def run(values, target, prediction, divergence, null):
        options = {"target_kernel": target, "prediction_kernel": prediction, "null": null}
        result = predictions(values)
        return jaxcal.skce_test(KEY, result, values["targets"], divergence=divergence, **options)

    return run


def drawn(values):
    return Draws(values["samples"])


def skce_of_classes(values, target, prediction, divergence, null):
    options = {"prediction_kernel": prediction, "divergence": divergence, "null": null}
    return jaxcal.skce_test(KEY, values["probabilities"], values["classes"], **options)


def at_locations(predictions):
    def run(values, target, prediction, divergence, null):
        options = {
            "target_kernel": target,
            "prediction_kernel": prediction,
            "divergence": divergence,
        }
        return ucme.ucme_test(
            KEY, predictions(values), values["targets"], n_locations=2, null=null, **options
        )

    return run


def at_given_locations(values, target, prediction, divergence, null):
    there = dist.Normal(values["mean there"], 1.0, validate_args=False), values["targets there"]
    options = {"target_kernel": target, "prediction_kernel": prediction, "divergence": divergence}
    result = normals(values)
    return ucme.ucme_test(KEY, result, values["targets"], locations=there, null=null, **options)


def exchangeability(values, target, prediction, divergence, null):
    return candidates.exchangeability_test(
        KEY,
        model(values),
        values["targets"],
        proposal=candidates.Chains(6, n_steps=2),
        prediction_kernel=prediction,
        base_measure=values["base"],
        n_resamples=39,
    )


def all_moments(values, target, prediction, divergence, null):
    return jaxcal.calibration_test(
        KEY,
        model(values),
        values["targets"],
        null=null,
    )


def ckce_test(values, target, prediction, divergence, null):
    return ckce.ckce_test(KEY, values["probabilities"], values["classes"], n_draws=39)


# how each is called, and the places where a value may be bad; those of classes are traced, as
# outside of jit probabilities that are none are refused
TESTS = {
    "kccsd": (kccsd, ("targets", "mean", "width", "base")),
    "kccsd of scores": (kccsd_of_scores, ("targets", "at targets", "at base", "base")),
    "ksd": (ksd, ("targets", "at targets")),
    "kcsd": (kcsd, ("targets", "mean", "inputs")),
    "skce": (skce(normals), ("targets", "mean", "width")),
    "skce of Laplaces": (skce(laplaces), ("targets", "mean")),
    "skce of mixtures": (skce(mixtures), ("targets", "mean")),
    "skce of draws": (skce(drawn), ("targets", "samples")),
    "skce of classes": (skce_of_classes, ("probabilities",)),
    "ucme": (at_locations(normals), ("targets", "mean")),
    "ucme of draws": (at_locations(drawn), ("targets", "samples")),
    "ucme there": (at_given_locations, ("targets", "mean", "mean there", "targets there")),
    "exchangeability": (exchangeability, ("targets", "mean", "base")),
    "calibration": (all_moments, ("targets", "mean")),
    "ckce": (ckce_test, ("probabilities",)),
}
WORDS = {"targets": "1 ", "at targets": "1 score value ", "inputs": "1 value that"}


def check(name, choices, n, traced=False):
    """The law, for one test with its kernels, distance and null."""
    call, places = TESTS[name]
    run = partial(call, **choices)
    if traced or "probabilities" in places:
        run = jax.jit(run)
    sound = run(jax.tree.map(jnp.asarray, forecasts(n)))
    assert np.isfinite(sound.p_value)
    assert sound.verdict != "cannot tell"
    for place in places:
        for value in BAD[:1] if place == "width" else BAD:
            result = run(jax.tree.map(jnp.asarray, spoilt(forecasts(n), place, value)))
            assert result.verdict == "cannot tell", (place, value)
            assert "finite" in result.reason or "NaN" in result.reason
            names = ("estimate", "biased", "standard_error", "statistic", "p_value")
            for number in (*names, "contributions", "part_p_values", "part_statistics"):
                assert np.all(np.isnan(getattr(result, number, np.nan))), (place, value, number)
            said = re.compile("so the (p-value|result) is NaN")
            texts = [text for text in result.warnings() if said.search(text)]
            assert texts, (place, value)
            assert texts[0].startswith(WORDS.get(place, "")), (place, value, texts)
            assert place != "targets" or len(texts) == 1, (value, texts)


def options(target, prediction, divergence, null):
    return {"target": target, "prediction": prediction, "divergence": divergence, "null": null}


QUICK = [
    ("kccsd", options(Gaussian(), Laplace(), Fisher(), Wild(39)), 100),
    ("kccsd of scores", options(IMQ(), Matern52(), KernelFisher(), Multinomial(39)), 12),
    ("ksd", options(bell, None, None, Gamma()), 300),
    ("kcsd", options(PowerExponential(power=2.0), L1Laplace(), None, DependentWild(39)), 300),
    ("skce", options(RationalQuadratic(), Gaussian(), Bures(), Spectrum(39)), 12),
    ("skce of draws", options(Matern52(), PowerExponential(power=0.7), None, BlockNormal()), 100),
    ("skce of classes", options(None, IMQ(), TotalVariation(), BlockSquares()), 12),
    ("ucme", options(Gaussian() + Linear(), Gaussian(), None, Wild(39)), 100),
    ("exchangeability", options(None, Gaussian() + Constant(), None, None), 12),
    ("calibration", options(None, Gaussian() + Constant(), None, Wild(39)), 12),
    ("ckce", options(None, None, None, None), 12),
]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "choices", "n"), QUICK, ids=[case[0] for case in QUICK])
def test_one_bad_value_never_becomes_a_verdict(name, choices, n):
    check(name, choices, n)


def covering():
    """Every kind of test with every null (SKCE of other than normals with half of them) and every
    n, and with its kernels and distances in turn."""
    distances = {
        "kccsd": OF_NORMALS,
        "kccsd of scores": [Fisher(), KernelFisher(), KernelFisher(GradientKernel(None))],
        "skce": [None, *OF_NORMALS],
        "skce of Laplaces": [None, Wasserstein(), MMD(of_targets=True)],
        "skce of mixtures": [None, MMD(of_targets=True)],
        "skce of draws": [None, MMD(), SlicedWasserstein(None, 3)],
        "skce of classes": [Euclidean(), TotalVariation()],
    }
    radial = [one for one, kernel in zip(KERNELS, READY, strict=True) if points.profile(kernel)]
    for i, name in enumerate([*distances, "ksd", "kcsd"]):
        of_draws = name == "skce of draws"
        used = NULLS[i % 2 :: 2] if name.startswith("skce of") else NULLS
        lists = (ROUGH + SMOOTH if of_draws else SMOOTH, radial[i:] + radial[:i])
        lists += (distances.get(name, [None]), used)
        sizes = SIZES[:2] if name == "skce of mixtures" else SIZES  # whose distances are dear
        for k, choices in enumerate(islice(zip(*map(cycle, lists), strict=False), len(used))):
            yield name, options(*choices), sizes[(i + k) % len(sizes)]
    rough = (Laplace(), Matern52(), PowerExponential(power=0.7))
    for k, null in enumerate(AT_LOCATIONS):
        for i, name in enumerate(("ucme", "ucme of draws", "ucme there")):
            yield name, options(SMOOTH[k], rough[k], None, null), SIZES[(i + k) % 3]
    for k, null in enumerate(NULLS):
        if isinstance(null, Wild | nulls.HadamardWild | nulls.DependentWild):
            yield "calibration", options(None, Gaussian() + Constant(), None, null), SIZES[k % 3]
    for n in SIZES:
        yield "exchangeability", options(None, Laplace() + Constant(), None, None), n
        yield "ckce", options(None, None, None, None), n


COVERING = list(covering())


@SLOW
@pytest.mark.parametrize("k", range(len(COVERING)), ids=[f"{c[0]}, {c[2]}" for c in COVERING])
def test_the_law_over_tests_kernels_nulls_and_sizes(k):
    check(*COVERING[k])


@SLOW
@pytest.mark.parametrize("name", TESTS)
def test_the_law_where_values_are_not_known_while_tracing(name):
    choices = next(choices for other, choices, _ in COVERING if other == name)
    check(name, choices, 12, traced=True)


@pytest.mark.slow
@pytest.mark.parametrize("by_ckce", [True, False])
@pytest.mark.parametrize("value", BAD)
def test_a_model_with_one_bad_value_has_no_place_in_a_comparison(value, by_ckce):
    results = forecasts(12)

    @jax.jit
    def run(results):
        models = [results["probabilities"], results["others"], results["spoilt"]]
        options = {"measure": "ckce", "rank": 8, "bandwidth": 1.0} if by_ckce else {}
        return ckce.compare(KEY, models, results["classes"], n_draws=99, **options)

    spoilt_model = spoilt(results, "others", value)["others"]
    result = run(jax.tree.map(jnp.asarray, results | {"spoilt": spoilt_model}))
    for numbers in (result.estimate, result.corrected, result.low, result.high):
        np.testing.assert_array_equal(np.isnan(numbers), [False, False, True])
    lost = np.array([False, False, True])
    for p in (result.differences.p_value, result.differences.p_adjusted):
        np.testing.assert_array_equal(np.isnan(p), lost[:, None] | lost)
    said = [text for text in result.warnings() if "not a number for model 2" in text]
    assert "1 of its predictions are NaN or infinite" in said[0]
