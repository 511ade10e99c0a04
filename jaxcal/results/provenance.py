"""What is known of how a result came about: versions, the call, its key, sizes and options."""

import functools
import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxcal.typing import Contents, DTypeLike

Arguments = ParamSpec("Arguments")
Outcome = TypeVar("Outcome")
SOURCE = "_source"  # the attribute of a result that holds what is known of its call


def recorded(function: Callable[Arguments, Outcome]) -> Callable[Arguments, Outcome]:
    """Make the result of a function remember the call; under jit and vmap nothing is kept."""

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Outcome:
        result = function(*args, **kwargs)
        if not getattr(result, "traced", True):
            object.__setattr__(result, SOURCE, _described(function, args, kwargs))
        return result

    return call


def provenance(result: Any, dtype: DTypeLike) -> Contents:
    """Versions, class, type of the numbers, and the call as far as it is known."""
    unknown = {"function": None, "key": None, "n": None, "options": None}
    here = {
        "jaxcal": import_module("jaxcal").__version__,
        "jax": jax.__version__,
        "result": type(result).__name__,
        "dtype": str(dtype),
    }
    return here | getattr(result, SOURCE, unknown)  # one that was read brings its own versions


def _described(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Contents:
    parameters = inspect.signature(function).parameters
    bound = inspect.signature(function).bind(*args, **kwargs).arguments
    bound |= bound.pop("options", {})
    places = [name for name, one in parameters.items() if one.kind is not one.KEYWORD_ONLY]
    data = [
        bound[name] for name in ("targets", "thetas", *places) if name in bound and name != "key"
    ]
    sizes = [shape[0] for one in data if (shape := _shape(one))]
    options = {name: _in_short(value) for name, value in bound.items() if name not in places}
    return {
        "function": f"{function.__module__}.{function.__qualname__}",
        "key": _plain_key(bound.get("key")),
        "n": sizes[0] if sizes else None,
        "options": options,
    }


def _shape(value: Any) -> tuple[int, ...]:
    """Shape of an array or a list, or that of a batch of predictions."""
    for name in ("batch_shape", "shape"):
        if isinstance(shape := getattr(value, name, None), tuple) and shape:
            return shape
    return (len(value),) if isinstance(value, list | tuple) else ()


def _plain_key(key: Any) -> Any:
    """A key as the whole numbers that make it."""
    if key is None or isinstance(key, int | Tracer):
        return key if isinstance(key, int) else None
    typed = hasattr(key, "dtype") and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(key) if typed else key).tolist()


def _in_short(value: Any) -> Any:
    """Numbers and words as they are, anything longer in a few words."""
    if value is None or isinstance(value, bool | int | float | str):
        return value if not isinstance(value, float) or np.isfinite(value) else str(value)
    if isinstance(shape := getattr(value, "shape", None), tuple):
        return f"{getattr(value, 'dtype', 'array')}{list(shape)}"
    if callable(value) and hasattr(value, "__name__"):
        return value.__name__
    words = " ".join(repr(value).split())
    return words if len(words) <= 100 and " at 0x" not in words else type(value).__name__
