"""Odd values for every required argument of public names end in the library's own sentence."""

import importlib
import inspect
import traceback
import warnings
from pathlib import Path

import jaxtyping
import numpy as np
import pytest

import jaxcal

PACKAGE = str(Path(jaxcal.__file__).parent)
ODD = {
    "text": "text",
    "None": None,
    "a class": int,
    "an object": object(),
    "masked": np.ma.MaskedArray([1.0, 2.0], mask=[1, 0]),
    "strings": np.array(["a"]),
    "complex": np.zeros(3, complex),
}
# parts that take what the library made, or JAX arrays alone: not yet read by the converter
OPEN = {"exact_median", "p_value", "signs", "holm", "Ridges", "PowerExponential", "euclidean"}
OPEN |= {"squared_euclidean", "random_interval_ce", "sampled_interval_ce"}
ROOMS = ("kernels", "nulls", "mcmc", "squared_ce", "distance", "measures")


def public(room):
    module = importlib.import_module(f"jaxcal.{room}")
    own = [n for n, o in vars(module).items() if getattr(o, "__module__", "") == module.__name__]
    for name in getattr(module, "__all__", own):  # protocols are not called
        value = getattr(module, name)
        plain = inspect.isclass(value) and issubclass(value, tuple)
        plain = plain or getattr(value, "_is_protocol", False)
        if callable(value) and not plain and not name.startswith("_") and name not in OPEN:
            yield name, value


@pytest.mark.parametrize("room", ROOMS)
def test_no_odd_call_ends_in_anothers_traceback(room):
    jaxtyping.config.update("jaxtyping_disable", True)
    unexplained = []
    for name, call in public(room):
        parameters = inspect.signature(call).parameters.values()
        required = [p.name for p in parameters if p.default is p.empty and p.kind in (1, 3)]
        for words, value in ODD.items():
            try:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    call(**dict.fromkeys(required, value))
            except (TypeError, ValueError) as error:
                last = traceback.extract_tb(error.__traceback__)[-1].filename
                if not last.startswith(PACKAGE) and last != __file__:
                    unexplained.append((name, words, str(error)[:100]))
            except Exception as error:
                unexplained.append((name, words, repr(error)[:100]))
    jaxtyping.config.update("jaxtyping_disable", False)
    assert not unexplained
