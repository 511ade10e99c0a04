"""Annotations are checked before and after a call, with one size for one name."""

import equinox as eqx
import numpy as np
import pytest
from annotations import checked
from jaxtyping import Float, TypeCheckError, jaxtyped

from jaxcal.engine.quadratic import ordered_pairs


@jaxtyped(typechecker=checked)
def columns(values: Float[np.ndarray, "n d"], first: int = 0) -> Float[np.ndarray, " n"]:
    return values[:, 0] if first == 0 else values[0]


@jaxtyped(typechecker=checked)
class Pair(eqx.Module):
    values: Float[np.ndarray, " n"]
    others: Float[np.ndarray, " n"]


def test_arguments_results_and_their_sizes_are_checked():
    values = np.ones((3, 2))
    assert columns(values).shape == (3,)
    for arguments in [(values[0],), (values, 0.5)]:
        with pytest.raises(TypeCheckError, match="checking the parameters"):
            columns(*arguments)
    with pytest.raises(TypeCheckError, match="checking the return value"):
        columns(values, first=1)  # of another size than the argument had


def test_fields_of_modules_are_checked():
    Pair(np.ones(3), np.ones(3))
    with pytest.raises(TypeCheckError):
        Pair(np.ones(3), np.ones(4))


def test_the_library_is_checked(request):
    if "annotations.checked" not in (request.config.getoption("jaxtyping_packages") or ""):
        pytest.skip("this run does not check the annotations of the library")
    with pytest.raises(TypeCheckError):
        ordered_pairs("many")
