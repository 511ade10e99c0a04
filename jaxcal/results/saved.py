"""Save and load results: an .npz file with one array per leaf and a header in strict JSON.

``header.json`` holds the structure. Other programs can read the arrays from the .npz file under the
names of their fields.
"""

import dataclasses
import functools
import inspect
import io
import json
import math
import os
import re
import time
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from jaxcal.numerics import Arguments, Outcome, full_precision, make_room
from jaxcal.results.notes import codes
from jaxcal.typing import Contents, DTypeLike

FORMAT, HEADER = 1, "header.json"
MOVED = {  # old name of a module -> new name, to read files of earlier versions
    "jaxcal.squared_ce.report": "jaxcal.squared_ce.pipeline",
    "jaxcal.checking.report": "jaxcal.checking.check",
    "jaxcal.streaming.counts": "jaxcal.streaming.state",
    "jaxcal.streaming.entries": "jaxcal.streaming.linear",
    "jaxcal.squared_ce.intervals": "jaxcal.squared_ce.leave_one_out",
    "jaxcal.squared_ce.estimators": "jaxcal.squared_ce.functions",
    "jaxcal.divergences.simplex": "jaxcal.divergences.vectors",
    "jaxcal.kernel_means.laplaces": "jaxcal.kernel_means.closed_forms",
    "jaxcal.kernel_means.normals": "jaxcal.kernel_means.closed_forms",
    "jaxcal.results.base": "jaxcal.results.result",
    "jaxcal.fit.views": "jaxcal.fit.residuals",
    "jaxcal.repairing.cross_fitted": "jaxcal.repairing.certificate",
    "jaxcal.moments.support": "jaxcal.moments.stein",
    "jaxcal.dce.kernel": "jaxcal.dce.smooth",
    "jaxcal.candidates.mixtures": "jaxcal.candidates.proposals",
    "jaxcal.read.standardized": "jaxcal.read.predictions",
    "jaxcal.repairing.features": "jaxcal.repairing.fit",
    "jaxcal.squared_ce.tuned": "jaxcal.squared_ce.tuning",
}
RENAMED = {  # class, old name of a field -> new name
    ("Repair", "n_draws"): "n_samples",
}
NEWER = {  # class -> fields that files of earlier versions lack, with their values there
    "ExchangeabilityResult": {"n_points": 10**9},
    "QuantileCalibration": {"correlation": 0.0},
    "Repair": {"axes": None},
}
BROKEN = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, RuntimeError, TypeError, ValueError)


@contextmanager
def replacing(path: Path) -> Iterator[Any]:
    """Yield a temporary file, which replaces ``path`` once it is written without an error."""
    beside = path.with_name(path.name + ".part")
    try:
        with beside.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def save(value: Any, path: Path, provenance: Contents) -> None:
    """Write a result to a .npz file. TypeError names a field whose type cannot be saved."""
    arrays: dict[str, np.ndarray] = {}
    content = _packed(value, "", arrays)
    header = {"format": FORMAT, "provenance": provenance, "content": content}
    text = json.dumps(header, indent=1, allow_nan=False)
    with replacing(path) as file, zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(HEADER, text)
        for name, array in arrays.items():
            buffer = io.BytesIO()
            np.lib.format.write_array(buffer, array, allow_pickle=False)
            archive.writestr(f"{name}.npy", buffer.getvalue())


def load(path: Path) -> tuple[Any, Contents]:
    """Return a saved result and its provenance. ValueError if the file holds none."""
    with path.open("rb") as file:
        try:
            archive = zipfile.ZipFile(file)
            text = archive.read(HEADER)
        except BROKEN:
            raise ValueError(
                f"{path}: not a saved result (cut off, damaged, or another kind of file)"
            ) from None
        try:
            header = json.loads(text, parse_constant=_refused)
            if header["format"] != FORMAT:
                raise ValueError(f"its format is {header['format']}, not {FORMAT}")
            read = lambda name: np.lib.format.read_array(  # noqa: E731
                io.BytesIO(archive.read(f"{name}.npy")), allow_pickle=False
            )
            return _unpacked(header["content"], read), dict(header["provenance"])
        except BROKEN as error:
            what = f"lacks {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"{path}: not a result that can be read: {what}") from None


def _packed(value: Any, place: str, arrays: dict[str, np.ndarray]) -> Any:
    """Return the value of the field ``place`` as JSON, and add its arrays to ``arrays``."""

    def inside(name: object, item: Any) -> Any:
        return _packed(item, f"{place}.{name}" if place else str(name), arrays)

    if value is None or (isinstance(value, bool | int | str) and not isinstance(value, np.generic)):
        return value
    if isinstance(value, float) and not isinstance(value, np.generic):
        return value if math.isfinite(value) else {"float": repr(value)}
    if isinstance(value, np.ndarray | np.generic | jax.Array):
        return _array(value, place, arrays)
    if isinstance(value, eqx.Module) or hasattr(value, "_fields"):
        kind = type(value)
        fields = {name: inside(name, getattr(value, name)) for name in _names(kind)}
        return {"class": f"{kind.__module__}.{kind.__qualname__}", "fields": fields}
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {"dict": {name: inside(name, item) for name, item in value.items()}}
    for kind in (list, tuple):
        if type(value) is kind:
            return {kind.__name__: [inside(i, item) for i, item in enumerate(value)]}
    raise TypeError(f"{place}: a {type(value).__name__} cannot be saved")


def _array(value: Any, place: str, arrays: dict[str, np.ndarray]) -> Any:
    """Add an array to ``arrays``; return its JSON entry. Keys and bfloat16 become integers."""
    entry = {"as": "jax" if isinstance(value, jax.Array) else "numpy"}
    if isinstance(value, np.generic):
        entry["as"] = "scalar"
    elif jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        entry["key"] = str(jax.random.key_impl(value))
        value = jax.random.key_data(value)
    array = np.asarray(value)
    if array.dtype.kind == "O":
        raise TypeError(f"{place}: an array of objects cannot be saved")
    if array.dtype.kind == "V":  # such as bfloat16
        entry["dtype"] = array.dtype.name
        array = array.view(f"u{array.dtype.itemsize}")
    name = re.sub(r"[^\w.-]", "_", place)
    while name in arrays:
        name += "_"
    arrays[name] = array
    return {"array": name} | entry


def _unpacked(node: Any, read: Callable[[str], np.ndarray]) -> Any:
    match node:
        case {"float": text}:
            return float(text)
        case {"array": name, **entry}:
            return _restored(read(name), entry)
        case {"list": items}:
            return [_unpacked(item, read) for item in items]
        case {"tuple": items}:
            return tuple(_unpacked(item, read) for item in items)
        case {"dict": items}:
            return {name: _unpacked(item, read) for name, item in items.items()}
        case {"class": name, "fields": fields}:
            kind = _class(name)
            fields = {RENAMED.get((kind.__name__, k), k): item for k, item in fields.items()}
            values: Contents = dict(NEWER.get(kind.__name__, {}))
            if different := {*values, *fields} ^ set(_names(kind)):
                other = ", ".join(sorted(map(str, different)))
                raise ValueError(f"{kind.__name__} of this version of jaxcal differs in {other}")
            values |= {str(field): _unpacked(item, read) for field, item in fields.items()}
            if isinstance(texts := values.get("notes"), tuple):  # earlier versions: sentences
                values["notes"] = {code: text for text in texts for code in codes([text])}
            return _object(kind, values)
        case {}:
            raise ValueError(f"an entry of the header is of an unknown kind: {sorted(node)}")
    return node


def _restored(array: np.ndarray, entry: Contents) -> Any:
    if "dtype" in entry:
        array = array.view(jnp.dtype(entry["dtype"]))
    if entry["as"] == "scalar":
        return array[()]
    if entry["as"] == "numpy":
        return array
    with jax.enable_x64(True):  # keeps 64-bit types
        restored = jnp.asarray(array)
        if "key" not in entry:
            return restored
        return jax.random.wrap_key_data(restored, impl=entry["key"])


def _names(kind: Any) -> list[str]:
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    return list(kind._fields)


def _class(name: str) -> Any:
    """Return the equinox module or named tuple of jaxcal with this name; ValueError if none."""
    home, _, word = name.rpartition(".")
    home = MOVED.get(home, home)
    try:
        if not home.startswith("jaxcal."):
            raise ImportError
        kind = getattr(import_module(home), word)
        plain = isinstance(kind, type) and kind.__module__ == home
        if not plain or not (issubclass(kind, eqx.Module) or hasattr(kind, "_fields")):
            raise ImportError
    except (ImportError, AttributeError):
        raise ValueError(f"the class {name} is not one of this version of jaxcal") from None
    return kind


def _object(kind: Any, values: Contents) -> Any:
    """Return an object with these fields; the ``__init__`` of a module is not called."""
    if not issubclass(kind, eqx.Module):
        return kind(**values)
    module = object.__new__(kind)
    for name, value in values.items():
        field = kind.__dataclass_fields__[name].metadata
        if field.get("static") and "converter" in field:  # it makes a value hashable
            value = field["converter"](value)
        object.__setattr__(module, name, value)
    return module


def _refused(word: str) -> None:
    raise ValueError(f"the header holds {word}, which is no JSON")


COMPILED = 0.1  # a call that takes more seconds has probably compiled a large program
MOST_PARTS = 1000  # longest list whose members may be tables
ALIKE = (  # arguments with the same columns
    ("predictions.at_targets", "targets"),
    ("locations[1]", "targets"),
    ("whiten.mean", "targets"),
    ("targets", "names"),
    ("thetas", "names"),
)
SOURCE = "_source"  # attribute of a result that describes its call


def recorded(function: Callable[Arguments, Outcome]) -> Callable[Arguments, Outcome]:
    """Decorate a function: check pandas arguments by `rows_in_one_order`, compute in
    `full_precision`, and record the call in its result (not under jit or vmap)."""

    checked = full_precision(rows_in_one_order(function))

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Outcome:
        started = time.monotonic()
        result: Any = checked(*args, **kwargs)
        if not result.traced:
            object.__setattr__(result, SOURCE, _described(function, args, kwargs))
            if time.monotonic() - started > COMPILED:
                make_room()
        return result

    return call


def rows_in_one_order(function: Callable[Arguments, Outcome]) -> Callable[Arguments, Outcome]:
    """Decorate a function: ValueError if pandas arguments order the same rows differently, or
    two that are `ALIKE` have the same columns in different orders."""
    names = tuple(inspect.signature(function).parameters)

    @functools.wraps(function)
    def call(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Outcome:
        in_one_order(dict(zip(names, args, strict=False)) | kwargs)
        return function(*args, **kwargs)

    return call


def in_one_order(arguments: Mapping[str, Any]) -> None:
    """Raise ValueError if two pandas arguments have the same index labels in different orders, or
    two that are `ALIKE` the same columns in different orders."""
    tables: dict[str, Any] = {}
    for name, value in arguments.items():
        # rows of a list of draws are draws, not observations
        several = name != "draws" and isinstance(value, list | tuple) and len(value) <= MOST_PARTS
        parts = dict(enumerate(value)) if several else {None: value}
        parts = value if isinstance(value, Mapping) else parts
        for label, part in parts.items():
            whole = name if label is None else f"{name}[{label!r}]"
            fields = {"": part}
            if type(part).__module__.startswith("jaxcal") and hasattr(part, "__dict__"):
                # of Draws, .. and what `jaxcal.read.convert.remember` keeps
                fields = {f".{field.lstrip('_')}": table for field, table in vars(part).items()}
            for field, table in fields.items():
                if type(table).__module__.startswith("pandas") and hasattr(table, "index"):
                    tables[whole + field] = table
    firsts: dict[str, Any] = {}  # one table of each index
    for name, table in tables.items():
        there = table.index
        for first, here in firsts.items():
            if name.startswith("locations") != first.startswith("locations"):
                continue  # locations are other rows
            if here.equals(there):
                break
            if len(here) == len(there) and here.is_unique and here.difference(there).empty:
                raise ValueError(
                    f"{name}: its index has the labels of {first} in another order, and rows are "
                    f"taken as they stand: pass .loc of that index, or .to_numpy() if the rows do "
                    f"belong together"
                )
        else:
            firsts[name] = there
    columns = {name: [*map(str, getattr(table, "columns", ()))] for name, table in tables.items()}
    said: Any = arguments.get("names")
    listed = isinstance(said, list | tuple) or (not isinstance(said, str) and np.ndim(said) == 1)
    columns["names"] = [*map(str, said)] if listed else []
    for name, other in ALIKE:
        got, wanted = columns.get(name, []), columns.get(other, [])
        if got != wanted and sorted(got) == sorted(wanted):
            raise ValueError(
                f"{name}: wanted the columns of {other} in their order, {wanted}, got {got}"
            )


def provenance(result: Any, dtype: DTypeLike) -> Contents:
    """Return versions, class, dtype and call (None if not known) of a result."""
    unknown = {"function": None, "key": None, "n": None, "options": None}
    here = {
        "jaxcal": import_module("jaxcal").__version__,
        "jax": jax.__version__,
        "result": type(result).__name__,
        "dtype": str(dtype),
    }
    return here | getattr(result, SOURCE, unknown)  # a loaded result keeps its versions


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
    """Return the shape of an array or list, or the batch shape of predictions; () for others."""
    for name in ("batch_shape", "shape"):
        if isinstance(shape := getattr(value, name, None), tuple) and shape:
            return shape
    return (len(value),) if isinstance(value, list | tuple) else ()


def _plain_key(key: Any) -> Any:
    """Return a random key as an integer or a list of integers; None if it is traced or absent."""
    if key is None or isinstance(key, int | Tracer):
        return key if isinstance(key, int) else None
    typed = hasattr(key, "dtype") and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    return np.asarray(jax.random.key_data(key) if typed else key).tolist()


def _in_short(value: Any) -> Any:
    """Return short values (numbers, strings) unchanged and longer ones abbreviated."""
    if value is None or isinstance(value, bool | int | float | str):
        return value if not isinstance(value, float) or np.isfinite(value) else str(value)
    if isinstance(shape := getattr(value, "shape", None), tuple):
        return f"{getattr(value, 'dtype', 'array')}{list(shape)}"
    if callable(value) and hasattr(value, "__name__"):
        return value.__name__
    words = " ".join(repr(value).split())
    return words if len(words) <= 100 and " at 0x" not in words else type(value).__name__
