"""Notions of calibration as residuals: by hand on small examples, and errors on bad input."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxcal.squared_ce import reduce
from jaxcal.squared_ce.reductions import binary, canonical, class_wise, top_label

P = np.array([[0.7, 0.2, 0.1], [0.2, 0.5, 0.3], [0.25, 0.25, 0.5], [0.4, 0.4, 0.2]])
Y = [0, 2, 2, 1]


def test_the_canonical_residual_is_probabilities_minus_one_hot():
    problem = canonical(P, Y)
    np.testing.assert_array_equal(problem.inputs, P)
    np.testing.assert_array_equal(problem.outcomes, np.eye(3)[Y])
    np.testing.assert_allclose(problem.residuals[1], [0.2, 0.5, -0.7])
    assert problem.problems() == [problem]


def test_the_top_label_residual_is_confidence_minus_correctness():
    problem = top_label(P, Y)
    np.testing.assert_array_equal(problem.inputs[:, 0], [0.7, 0.5, 0.5, 0.4])
    np.testing.assert_array_equal(problem.outcomes[:, 0], [1, 0, 1, 0])  # row 3: a tie, class 0


def test_class_wise_problems_are_columns_of_the_canonical_one():
    result = class_wise(P, Y)
    assert result.residuals.shape == (3, 4, 1)
    for k, problem in enumerate(result.problems()):
        np.testing.assert_array_equal(problem.residuals[:, 0], canonical(P, Y).residuals[:, k])
        np.testing.assert_array_equal(problem.inputs, binary(P[:, k], np.array(Y) == k).inputs)


@pytest.mark.parametrize("notion", ["canonical", "top-label", "class-wise"])
def test_observations_are_taken_along_their_axis_and_under_jit(notion):
    rows = np.array([2, 0])
    taken = reduce(P, Y, notion).take(rows)
    direct = reduce(P[rows], np.array(Y)[rows], notion)
    np.testing.assert_array_equal(taken.residuals, direct.residuals)
    assert taken.n == 2
    jitted = jax.jit(lambda p, y: reduce(p, y, notion))(jnp.asarray(P), jnp.asarray(Y))
    np.testing.assert_array_equal(jitted.residuals, reduce(P, Y, notion).residuals)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: reduce(P, Y, "classwise"),
            "notion: wanted .canonical., .top-label., .class-wise. or",
        ),
        (lambda: canonical(np.log(P), Y), "predictions: row 0 holds a negative"),
        (lambda: canonical(P * 2, Y), "predictions: row 0 does not sum to 1"),
        (lambda: top_label(P[:, 0], Y), "targets: wanted classes 0, .., 1"),
        (lambda: top_label(P, [0, 1, 2, 3]), "targets: wanted classes 0, .., 2, got 0 to 3"),
        (lambda: top_label(P, [1, 1, 2, 3]), "targets: classes 1, .., 3 were given"),
        (lambda: canonical(P, np.eye(3)[Y].astype(int)), "take the argmax of one-hot rows"),
        (lambda: canonical(P, [0]), "targets: wanted one class per observation"),
        (lambda: binary([0.5, 1.5], [0, 1]), "predictions: .*entry 1 is 1.5"),
        (lambda: binary([0.5, np.nan], [0, 1]), "predictions: .*entry 1 is nan"),
        (lambda: binary(P, Y), "predictions: the notion 'binary' is that of two classes"),
        (lambda: binary([0.5, 0.5], [0, 2]), "targets: wanted classes 0, .., 1"),
    ],
)
def test_bad_input_is_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_noninteger_labels_and_half_precision_are_refused():
    with pytest.raises(TypeError, match="targets: wanted integer classes"):
        canonical(P, [0.0, 1.0, 2.0, 1.0])
    with pytest.raises(TypeError, match="float16"):
        canonical(P.astype(np.float16), Y)


def test_single_precision_sums_are_measured_in_single_precision():
    p = np.full((2, 3), 1 / 3, np.float32)
    p[0, 0] += 1e-5
    assert canonical(p, [0, 1]).inputs.dtype == np.float32
