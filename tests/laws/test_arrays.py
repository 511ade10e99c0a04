"""One converter reads every array argument: any library, any form, and a sentence otherwise."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest
from optional import torch_by_name, with_packages

import jaxcal
from jaxcal import Scores, Unnormalized, ckce, kccsd_test, measures
from jaxcal.checking.plan import plan
from jaxcal.dce import unbinned_ece
from jaxcal.nulls import Wild
from jaxcal.read import checks, convert
from jaxcal.streaming import StreamedTest

pytestmark = pytest.mark.usefixtures("as_users_run_it")


TABLE = np.asarray([[1.0, 2.0], [3.0, 4.0], [5.0, 6.5]])


def _torch():
    import torch

    return torch


def _frame():
    return pytest.importorskip("pandas").DataFrame(TABLE)


FORMS = {
    "list": lambda: TABLE.tolist(),
    "tuple": lambda: tuple(map(tuple, TABLE.tolist())),
    "list of jax": lambda: [jnp.asarray(row) for row in TABLE],
    "list of NumPy, unmasked": lambda: list(np.ma.MaskedArray(TABLE)),
    "list of torch": lambda: [_torch().tensor(r, requires_grad=True) for r in TABLE],
    "lists of torch": lambda: [[_torch().tensor(x) for x in row] for row in TABLE],
    "list of pandas": lambda: [row for _, row in _frame().iterrows()],
    "lists of Arrow": lambda: [list(pytest.importorskip("pyarrow").array(r)) for r in TABLE],
    "big endian": lambda: TABLE.astype(">f8"),
    "little endian": lambda: TABLE.astype("<f8"),
    "big endian float32": lambda: TABLE.astype(">f4"),
    "long double": lambda: TABLE.astype(np.longdouble),
    "Fortran order": lambda: np.asfortranarray(TABLE),
    "strided": lambda: np.repeat(TABLE, 2, axis=0)[::2],
    "nothing masked": lambda: np.ma.MaskedArray(TABLE, mask=np.zeros_like(TABLE, bool)),
    "boxed": lambda: TABLE.astype(object),
    "jax": lambda: jnp.asarray(TABLE),
    "torch": lambda: _torch().tensor(TABLE.tolist(), dtype=_torch().float64),
    "torch with a graph": lambda: _torch().tensor(TABLE.tolist(), requires_grad=True) * 1.0,
    "pandas": _frame,
    "pandas nullable": lambda: _frame().astype("Float64"),
    "pandas boxed": lambda: _frame().astype(object),
    "Arrow": lambda: pytest.importorskip("pyarrow").table({"a": TABLE[:, 0], "b": TABLE[:, 1]}),
}


@pytest.mark.parametrize("form", with_packages(FORMS, torch_by_name))
def test_every_form_of_an_array_is_the_same_array(form):
    read = convert.floats(FORMS[form](), "targets")
    assert isinstance(read, jax.Array)
    np.testing.assert_array_equal(read, TABLE)


@pytest.mark.parametrize("kind", ["i4", ">i4", "u1", "i8", ">i2"])
def test_integers_are_converted(kind):
    read = convert.floats(np.arange(6).astype(kind), "targets")
    assert read.dtype == jnp.result_type(float)
    assert read.tolist() == list(range(6))


MASKED = np.ma.MaskedArray(np.linspace(0, 1, 12), mask=np.arange(12) < 3)


def _series(values, kind):
    return pytest.importorskip("pandas").Series(values, dtype=kind)


REFUSED = {
    "masked": (lambda: MASKED, ValueError, r"3 of 12 entries are masked.*leave"),
    "list of masked rows": (
        lambda: list(np.ma.MaskedArray(TABLE, mask=TABLE > 6)),
        ValueError,
        "1 of 2 entries are masked.*leave",
    ),
    "lists of masked numbers": (
        lambda: [[1.0, np.ma.masked], [2.0, 3.0]],
        ValueError,
        "1 of 1 entries are masked",
    ),
    "list of NA": (
        lambda: [_series([1.0, None], "Float64")] * 2,
        ValueError,
        "1 of 2 entries are missing",
    ),
    "Arrow nulls in a list": (
        lambda: list(pytest.importorskip("pyarrow").array([1.0, None])),
        ValueError,
        "1 of 2 entries are missing",
    ),
    "a frame with text": (
        lambda: _frame().assign(name="x"),
        TypeError,
        r"DataFrame of shape \(3, 3\) with columns of float64, (object|str)",
    ),
    "None among numbers": (lambda: [1.0, None, 2.0], ValueError, "1 of 3 entries are missing"),
    "NA": (lambda: _series([1.0, None], "Float64"), ValueError, "1 of 2 entries are missing"),
    "NA in integers": (lambda: _series([1, None, 2], "Int64"), ValueError, "1 of 3"),
    "Arrow null": (
        lambda: pytest.importorskip("pyarrow").array([1.0, None]),
        ValueError,
        "1 of 2 entries are missing",
    ),
    "ragged": (lambda: [[1.0, 2.0], [3.0]], ValueError, "rectangular"),
    "half": (lambda: np.zeros(3, np.float16), TypeError, "float16 keeps about three digits"),
    "bfloat16": (lambda: jnp.zeros(3, jnp.bfloat16), TypeError, "bfloat16 keeps about three"),
    "torch bfloat16": (
        lambda: _torch().zeros(3, dtype=_torch().bfloat16),
        TypeError,
        r"bfloat16 keeps about three digits.*\.float\(\)",
    ),
    "complex": (lambda: np.zeros(3, complex), TypeError, "complex128; take its real part"),
    "booleans": (lambda: np.zeros(3, bool), TypeError, "got bool"),
    "a string": (lambda: "targets", TypeError, "array of numbers, got strings"),
    "strings": (lambda: ["a", "b"], TypeError, "got strings"),
    "pandas strings": (lambda: _series(["a", "b"], "category"), TypeError, "array of numbers"),
    "dates": (lambda: np.zeros(3, "datetime64[s]"), TypeError, "array of numbers"),
    "huge integers": (lambda: [2**70, 1], TypeError, "64 bits"),
    "records": (lambda: np.zeros(3, [("a", "f8")]), TypeError, "array of numbers"),
    "None": (lambda: None, TypeError, "array of numbers"),
    "a dict": (lambda: {"a": 1.0}, TypeError, "array of numbers"),
    "a set": (lambda: {1.0, 2.0}, TypeError, "array of numbers"),
    "a class": (lambda: int, TypeError, "array of numbers"),
    "a function": (lambda: len, TypeError, "array of numbers"),
}


@pytest.mark.parametrize("case", with_packages(REFUSED, torch_by_name))
def test_what_is_no_array_of_numbers_is_refused_by_name(case):
    make, error, words = REFUSED[case]
    with pytest.raises(error, match=rf"(?s)^thetas: .*{words}"):
        convert.floats(make(), "thetas")


@pytest.mark.parametrize(
    ("column", "words"),
    [([0.0, np.nan, 2.0], "of which 1 are NaN"), ([0.0, 1.0, 2.0], r"convert with .astype\(int\)")],
)
def test_classes_in_a_column_of_floats(column, words):
    with pytest.raises(TypeError, match=rf"labels: wanted integer classes.*float64.*{words}"):
        checks.labels(column, 3, 3, "labels")


def test_missing_numbers_in_a_numpy_column_stay_nan():
    assert np.isnan(convert.floats(_series([1.0, np.nan], "float64"), "targets")[1])


def test_lists_of_traced_numbers_and_traced_arrays_pass():
    read = jax.jit(lambda x: convert.floats([x[0], x[1]], "targets"))
    assert read(jnp.asarray([1.0, 2.0])).tolist() == [1.0, 2.0]


# front doors: the reproducers
RNG = np.random.default_rng(1)


def density(mean, y):
    return -jnp.sum((y - mean) ** 2) / 2


@pytest.mark.parametrize("n", [12, 100])
def test_masked_targets_are_refused_not_filled(n):
    ys = RNG.normal(size=n)
    masked = np.ma.MaskedArray(
        np.where(np.arange(n) < n // 10, 1e4, ys), mask=np.arange(n) < n // 10
    )
    with pytest.raises(ValueError, match=f"targets: {n // 10} of {n} entries are masked"):
        kccsd_test(0, Unnormalized(density, np.zeros(n)), masked)


MEANS = {
    "big endian": lambda means: means.astype(">f8"),
    "torch": lambda means: _torch().tensor(means.tolist(), requires_grad=True).double(),
}


@pytest.mark.slow
@pytest.mark.parametrize("form", with_packages(MEANS, torch_by_name))
def test_parameters_are_read_like_arrays(form):
    ys, means = RNG.normal(size=12), RNG.normal(size=12)
    options = {"null": Wild(19), "base_measure": np.zeros((4,))}
    want = kccsd_test(0, Unnormalized(density, jnp.asarray(means)), ys, **options)
    result = kccsd_test(0, Unnormalized(density, MEANS[form](means)), ys.astype(">f8"), **options)
    np.testing.assert_allclose(result.estimate, want.estimate, rtol=1e-6)


def test_masked_parameters_are_named():
    with pytest.raises(ValueError, match=r"params\['mean'\]: 3 of 12 entries are masked"):
        Unnormalized(density, {"mean": MASKED})


def test_integer_targets_of_continuous_predictions_are_numbers():
    ys = np.arange(12)
    as_integers = kccsd_test(
        0,
        Scores(-ys[:, None], np.zeros((12, 4, 1), int), np.ones((4, 1), int)),
        ys[:, None],
        null=Wild(19),
    )
    as_floats = kccsd_test(
        0,
        Scores(-1.0 * ys[:, None], np.zeros((12, 4, 1)), np.ones((4, 1))),
        ys[:, None] * 1.0,
        null=Wild(19),
    )
    assert as_integers.estimate == as_floats.estimate


ROWS = np.linspace(0.1, 0.9, 12)
BOTH = np.stack([1 - ROWS, ROWS], axis=1)
LABELS = np.arange(12) % 2


@pytest.mark.parametrize(
    "measure",
    [
        lambda p: measures.ece(p, LABELS),
        lambda p: ckce.ckce(p, LABELS).estimate,
        lambda p: measures.confidences(p, LABELS)[0],
    ],
)
def test_bernoulli_and_categorical_are_class_probabilities(measure):
    want = measure(BOTH)
    np.testing.assert_allclose(measure(ROWS), want)
    np.testing.assert_allclose(measure(dist.Categorical(BOTH)), want)
    np.testing.assert_allclose(measure(dist.Categorical(logits=np.log(BOTH))), want)
    np.testing.assert_allclose(measure(dist.Bernoulli(ROWS)), want)


def test_shared_classes_are_rows_and_other_numbers_are_refused():
    shared = dist.CategoricalProbs(BOTH[0]).expand([3])
    np.testing.assert_array_equal(checks.probabilities(shared), [BOTH[0]] * 3)
    with pytest.raises(ValueError, match="got BinomialProbs with batch shape"):
        checks.probabilities(dist.Binomial(3, ROWS))


def test_compare_takes_binary_probabilities():
    models = {"a": ROWS, "b": ROWS[::-1]}
    by_vector = jaxcal.compare(0, models, LABELS, n_draws=19)
    by_table = jaxcal.compare(
        0, {k: np.stack([1 - p, p], 1) for k, p in models.items()}, LABELS, n_draws=19
    )
    np.testing.assert_allclose(by_vector.corrected, by_table.corrected)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_a_confidence_above_1_by_rounding_is_1(kind):
    above = np.nextafter(kind(1), kind(2))
    p = np.full(12, above, kind)
    assert float(jnp.max(checks.unit(p, "p"))) == 1
    assert np.isfinite(unbinned_ece(p, LABELS))
    with pytest.raises(ValueError, match=r"confidence: .*\[0, 1\]; entry 0 is 1.5"):
        measures.reliability(np.full(12, 1.5, kind), LABELS)


THREE = np.random.default_rng(2).dirichlet(np.ones(3), 30)
OF_CLASSES = {
    "ece": lambda p: measures.ece(p, np.arange(30) % 3),
    "ckce": lambda p: ckce.ckce(p, np.arange(30) % 3).estimate,
    "skce": lambda p: jaxcal.skce.skce(0, p, np.arange(30) % 3).biased,
    "check": lambda p: plan(p, np.arange(30) % 3, dependent=False).predictions,
    "temperature": lambda p: measures.with_temperature(p, 2.0)[:, 0].sum(),
}


@pytest.mark.parametrize("measure", OF_CLASSES)
def test_columns_named_after_the_classes_are_put_in_their_order(measure):
    """By the numbers 2, 1, 0; they were read by position."""
    pandas = pytest.importorskip("pandas")
    measure, want = OF_CLASSES[measure], OF_CLASSES[measure](THREE)
    turned = pandas.DataFrame(THREE[:, ::-1], columns=[2, 1, 0])
    forms = [turned, turned.set_axis(["2", "1", "0"], axis=1)]
    forms += [
        turned.set_axis(names, axis=1)
        for names in (
            ["p2", "p1", "p0"],
            ["c2x", "c1x", "c0x"],
            ["p2_v2", "p1_v2", "p0_v2"],
            ["24_p2", "24_p1", "24_p0"],
        )
    ]
    forms.append(pytest.importorskip("pyarrow").Table.from_pandas(forms[1]))
    by_position = ["a", "b", "c"], ["p1", "p2", "p3"], ["p0", "q1", "r2"], ["p2_0", "p1_1", "p0_2"]
    for names in by_position:
        forms.append(pandas.DataFrame(THREE, columns=names))
    for frame in forms:
        np.testing.assert_allclose(measure(frame), want)


def test_numbers_of_names_are_no_text():
    """Sorted as text, "p10" stands before "p2"."""
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(np.random.default_rng(3).dirichlet(np.ones(11), 40))
    frame.columns = [f"p{k}" for k in range(11)]
    labels = np.arange(40) % 11
    by_text = frame[sorted(frame.columns)]
    assert list(by_text.columns)[:3] == ["p0", "p1", "p10"]
    np.testing.assert_allclose(measures.ece(by_text, labels), measures.ece(frame, labels))


WRONG = [[1, 2, 3], [0, 1, 1], [0, 1, "other"], [-1, 0, 1], ["p3", "p2", "p1"]]


@pytest.mark.parametrize("names", WRONG)
def test_numbers_with_ambiguous_classes_of_columns_are_refused(names):
    frame = pytest.importorskip("pandas").DataFrame(THREE, columns=names)
    with pytest.raises(ValueError, match=r"predictions: .*classes 0, .., 2, got .*to_numpy\(\)"):
        jaxcal.check(0, frame, np.arange(30) % 3)


def test_a_frame_of_false_and_true_is_read_by_its_names():
    frame = pytest.importorskip("pandas").DataFrame(BOTH[:, ::-1], columns=[True, False])
    np.testing.assert_allclose(measures.ece(frame, LABELS), measures.ece(BOTH, LABELS))


def test_indices_in_different_orders_are_refused():
    """Rows are taken as they stand, and pandas would have aligned them."""
    pandas = pytest.importorskip("pandas")
    frame, labels = pandas.DataFrame(THREE), pandas.Series(np.arange(30) % 3)
    there = labels.iloc[::-1]
    with pytest.raises(ValueError, match="targets: its index has the labels of predictions"):
        jaxcal.skce_test(0, frame, there)
    with pytest.raises(ValueError, match=r"models\['b'\]: its index"):
        jaxcal.compare(0, {"a": frame, "b": frame.iloc[::-1]}, labels)
    draws, values = jaxcal.Draws(frame), pandas.Series(THREE[:, 0], there.index)
    plain = (measures.ece, lambda p, y: jaxcal.skce.kce(0, p, y))
    for call in (*plain, lambda p, _: measures.pinball_loss(draws, values)):
        with pytest.raises(ValueError, match="targets: its index has the labels of predictions"):
            call(frame, there)
    with pytest.raises(ValueError, match="targets: its index"):
        jaxcal.dce.lower_distance(frame[0], there == 0)
    wanted = jaxcal.skce_test(0, THREE, labels).p_value
    for same in (labels, labels.set_axis(range(5, 35)), labels.set_axis([0] * 30)):
        assert jaxcal.skce_test(0, frame, same).p_value == wanted


def test_indices_in_scores_and_streams_are_compared():
    """A stream took every batch as it stood, and so did all tests the frames inside `Scores`."""
    pandas = pytest.importorskip("pandas")
    random, few = np.random.default_rng(4), jaxcal.RandomFeatures(1, 6)
    x = pandas.DataFrame(random.normal(size=(40, 2)), columns=["a", "b"])
    y = x.a + random.normal(size=40)
    there = y.iloc[::-1]
    with pytest.raises(ValueError, match=r"targets: its index has the labels of predictions.at_t"):
        jaxcal.kcsd_test(0, Scores(x.a - y), there, x)
    frame, labels = pandas.DataFrame(THREE), pandas.Series(np.arange(30) % 3)
    stream = StreamedTest.skce(0, frame, labels, features=few)
    for call in (
        lambda: StreamedTest.skce(0, frame, labels.iloc[::-1], features=few),
        lambda: stream.update(stream.empty(), frame, labels.iloc[::-1]),
        lambda: jaxcal.streamed_check(0, frame, labels.iloc[::-1]),
    ):
        with pytest.raises(ValueError, match="targets: its index has the labels of predictions"):
            call()
    scores, values = (x.a - y).to_numpy(), y.to_numpy()
    named = StreamedTest.kcsd(0, Scores(scores), values, x, features=few)
    same = named.update(named.empty(), Scores(scores), values, x)
    np.testing.assert_array_equal(  # arrays have no names to compare
        same.sums["sums"],
        named.update(named.empty(), Scores(scores), values, x.to_numpy()).sums["sums"],
    )
    with pytest.raises(ValueError, match=r"inputs: wanted the columns \('a', 'b'\) of the fit"):
        named.update(named.empty(), Scores(scores), values, x[["b", "a"]])
