"""Conversion of arguments to keys, arrays and integers."""

import math
import operator
import re
import reprlib
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jaxtyping import Array, PyTree

from jaxcal.typing import Key

SHORT = reprlib.Repr()
SHORT.maxother = SHORT.maxstring = 60
MOST = 2**31 - 1  # largest count: shapes and indices have 32 bits
DIGIT = 2**32  # range of one word of a threefry key
ENCODED = "inputs", "xs", "summaries"  # arguments whose categories have to be columns of 0 and 1


def key(value: object, name: str = "key") -> Key:
    """Return a typed random key from a typed key, a legacy ``PRNGKey`` array or an integer seed.

    A seed from 0 to 2**32 - 1, or a traced seed, gives ``jax.random.key(seed)``. Other seeds are
    split into 32-bit words, as two's complement: the lowest word gives a key, into which higher
    words are folded. So no seed is truncated, and no key depends on the float type. TypeError for
    anything else, ValueError for a batch of keys.
    """
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return _seeded(int(value))
    dtype = getattr(value, "dtype", None)
    if dtype is not None and isinstance(value, np.ndarray | jax.Array):
        if jnp.issubdtype(dtype, jnp.integer) and value.ndim == 0:
            return jax.random.key(value) if isinstance(value, Tracer) else _seeded(int(value))
        if dtype == jnp.uint32:
            value = _legacy(value, name)
            dtype = value.dtype
        if jnp.issubdtype(dtype, jax.dtypes.prng_key):
            if value.shape != ():
                raise ValueError(f"{name}: wanted one key, got a batch of shape {value.shape}")
            return jnp.asarray(value)
    raise TypeError(
        f"{name}: wanted a random key such as jax.random.key(0), a legacy jax.random.PRNGKey or an "
        f"integer seed, got {say(value)}"
    )


def _seeded(seed: int) -> Key:
    typed, rest = jax.random.key(np.uint32(seed % DIGIT)), seed // DIGIT
    while rest:
        typed = jax.random.fold_in(typed, np.uint32(rest % DIGIT))
        rest = 0 if rest == -1 else rest // DIGIT
    return typed


def _legacy(value: object, name: str) -> Array:
    try:
        return jax.random.wrap_key_data(jnp.asarray(value))
    except TypeError:
        raise TypeError(
            f"{name}: {say(value)} is not the data of a key of the default generator; pass "
            f"jax.random.key(seed)"
        ) from None


def flag(value: object, name: str) -> bool:
    """Return True or False, also from NumPy, or raise TypeError."""
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{name}: wanted True or False, got {say(value)}")
    return bool(value)


def choice(value: object, name: str, among: tuple[str | None, ...]) -> Any:
    """Return the value if it is one of ``among``, or raise ValueError."""
    if not (value is None or isinstance(value, str)) or value not in among:
        *words, last = map(repr, among)
        raise ValueError(f"{name}: wanted {', '.join(words)} or {last}, got {SHORT.repr(value)}")
    return value


def function(value: object, name: str, takes: str) -> Any:
    """Return a function or a callable instance, or raise TypeError; classes are not accepted."""
    if isinstance(value, type) or not callable(value):
        raise TypeError(f"{name}: wanted a function of {takes}, got {say(value)}")
    return value


def returned(value: object, name: str, of: str) -> Array:
    """Return a number from a user's function as an array []; TypeError if it is not a number."""
    if not isinstance(value, jax.Array | np.generic | float | int) or jnp.shape(value) != ():
        raise TypeError(f"{name}: wanted one number for {of}, got {say(value)}")
    return jnp.asarray(value)


def integer(value: Any, name: str, *, least: int = 1, most: int = MOST) -> int:
    """Return an integer (no boolean) from ``least`` to ``most`` as an int; else ValueError."""
    try:
        if isinstance(value, bool | np.bool_):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or not least <= number <= most:
        few = most == MOST and (number is None or number < least)
        range_ = f"of at least {least}" if few else f"from {least} to {most}"
        raise ValueError(f"{name}: wanted a whole number {range_}, got {SHORT.repr(value)}")
    return number


def number(
    value: object, name: str, *, above: float | int = -math.inf, below: float | int = math.inf
) -> Array:
    """Return a finite number, shape [], in the open interval (above, below), or raise an error.

    The value of a tracer is not checked.
    """
    if isinstance(value, bool | str | type) or value is None:
        raise TypeError(f"{name}: wanted {_number(above, below)}, got {say(value)}")
    exact = array(value, name)
    scalar = floats(value, name)
    if scalar.shape != ():
        raise ValueError(f"{name}: wanted {_number(above, below)}, got shape {scalar.shape}")
    if not isinstance(exact, Tracer) and not above < float(exact) < below:
        raise ValueError(f"{name}: wanted {_number(above, below)}, got {float(exact)}")
    return scalar


def real(
    value: Any, name: str, *, above: float | int = -math.inf, below: float | int = math.inf
) -> float:
    """Return a finite number in (above, below) as a Python float; TypeError for a tracer.

    Python numbers are checked without JAX, so that no backend starts before devices are chosen.
    """
    if type(value) in (int, float) and above < value < below and abs(value) < 1e308:
        return float(value)
    if isinstance(value, Tracer):
        raise TypeError(f"{name}: its value must be concrete, but it is traced: keep it out of jit")
    number(value, name, above=above, below=below)
    return float(value)


def _number(above: float | int, below: float | int) -> str:
    if above == 0 and below == math.inf:
        return "a positive number"
    if math.isfinite(above) and math.isfinite(below):
        return f"a number in ({above:g}, {below:g})"
    return "a finite number"


def floats(value: Any, name: str) -> Array:
    """Return an array of float32 or float64; integers become JAX's default float.

    Python numbers stay weakly typed. Errors are those of `array`, and TypeError for float16,
    bfloat16, booleans and complex numbers.
    """
    if type(value) in (int, float) and abs(value) < 1e308:
        return jnp.asarray(float(value))
    entries = array(value, name)
    if jnp.issubdtype(entries.dtype, jnp.integer):
        return jnp.asarray(entries.astype(jnp.result_type(float)))  # int32 would wrap from 2^31
    if entries.dtype in (jnp.float16, jnp.bfloat16):
        raise TypeError(
            f"{name}: {entries.dtype} keeps about three digits, fewer than the cancellation inside "
            f"the statistic needs; convert to float32"
        )
    if not jnp.issubdtype(entries.dtype, jnp.floating):
        remedy = (
            "; take its real part" if jnp.issubdtype(entries.dtype, jnp.complexfloating) else ""
        )
        raise TypeError(f"{name}: wanted float32 or float64, got {entries.dtype}{remedy}")
    return jnp.asarray(entries)


def numbers(value: object, name: str) -> Array:
    """Return integers and booleans as an array of their type, other numbers as `floats` does, and
    integers beyond JAX's type too."""
    entries = array(value, name)
    whole = jnp.issubdtype(entries.dtype, jnp.integer)
    if whole and isinstance(entries, np.ndarray) and entries.size:
        limits = np.iinfo(jax.dtypes.canonicalize_dtype(entries.dtype))
        whole = limits.min <= entries.min() and entries.max() <= limits.max
    return jnp.asarray(entries) if whole or entries.dtype == bool else floats(entries, name)


def array(value: object, name: str) -> jax.Array | np.ndarray:
    """Return numbers or booleans of any library as an array of their type, or raise an error.

    JAX arrays stay unchanged; lists, PyTorch tensors (detached), pandas and Arrow objects become
    NumPy arrays. ValueError for masked or missing entries and ragged lists, else TypeError.
    """
    if isinstance(value, jax.Array):
        entries = value
    elif hasattr(value, "detach"):
        entries = _tensor(value, name)
    else:
        _complete(value, name)
        entries = _rectangular(_entries(value, name), name)
    if isinstance(entries, np.ndarray) and entries.dtype == object:
        entries = _unboxed(entries, value, name)
    kind = entries.dtype
    if not (jnp.issubdtype(kind, jnp.number) or jnp.issubdtype(kind, jnp.bool_)):
        what = "strings" if getattr(kind, "kind", "") in "SUT" else str(kind)
        raise _no_numbers(name, f"{what}: {say(value)}", strings=what == "strings")
    if isinstance(entries, np.ndarray):
        wide = {np.dtype(np.longdouble): np.float64, np.dtype(np.clongdouble): np.complex128}
        entries = entries.astype(wide.get(kind, kind.newbyteorder("=")), copy=False)
    return entries


def _tensor(value: Any, name: str) -> np.ndarray:
    tensor = value.detach().cpu()
    if "bfloat16" in str(value.dtype):
        raise TypeError(f"{name}: bfloat16 keeps about three digits; convert with .float()")
    try:
        return np.asarray(tensor.resolve_conj().resolve_neg().numpy())
    except (TypeError, RuntimeError, AttributeError) as error:
        raise TypeError(f"{name}: this tensor is no dense array of numbers ({error})") from None


def _complete(value: Any, name: str) -> None:
    if isinstance(value, np.ma.MaskedArray):
        masked = int(np.ma.count_masked(value))
        kind, size = "masked", value.size
    elif type(value).__module__.startswith("pandas") and hasattr(value, "isna"):
        frame: Any = value if hasattr(value, "columns") else sys.modules["pandas"].DataFrame(value)
        gaps = np.asarray(frame.isna())
        unordered = [getattr(kind, "ordered", None) is False for kind in frame.dtypes]
        if name in ENCODED and any(unordered):
            raise _no_numbers(name, "categories without an order", strings=True)
        # NaN in a NumPy column is a number, which results report; NA is missing
        boxed = [not isinstance(kind, np.dtype) or kind.hasobject for kind in frame.dtypes]
        masked, size, kind = int(np.sum(gaps[:, boxed])), gaps.size, "missing (NA)"
    elif type(value).__module__.startswith("pyarrow"):
        columns = getattr(value, "columns", [value])
        masked = sum(int(getattr(column, "null_count", 0)) for column in columns)
        kind, size = "missing (null)", sum(len(column) for column in columns)
    else:
        return
    if masked:
        raise ValueError(
            f"{name}: {masked} of {size} entries are {kind}, and nothing is filled in for them: "
            f"leave these observations out of every argument"
        )


def _rectangular(value: object, name: str) -> Any:
    try:
        return np.asarray(value)
    except jax.errors.TracerArrayConversionError:  # a list of traced numbers
        return jnp.asarray(value)
    except (ValueError, TypeError, OverflowError, RuntimeError) as error:
        raise ValueError(f"{name}: wanted a rectangular array of numbers ({error})") from None


def _unboxed(objects: np.ndarray, value: object, name: str) -> np.ndarray:
    """Return an array of Python objects as an array of numbers; an error if one is no number."""
    entries = objects.ravel().tolist()
    if any(entry is None or type(entry).__name__ in ("NAType", "NaTType") for entry in entries):
        missing = sum(not isinstance(entry, int | float) for entry in entries)
        if objects.ndim:
            raise ValueError(
                f"{name}: {missing} of {objects.size} entries are missing (None or NA): leave "
                f"these observations out of every argument"
            )
    if objects.ndim and all(isinstance(entry, int | float | np.number) for entry in entries):
        unboxed = np.asarray(entries)
        if unboxed.dtype != object:
            return unboxed.reshape(objects.shape)
        raise TypeError(f"{name}: holds integers beyond 64 bits; convert to float")
    raise _no_numbers(name, say(value), strings=any(isinstance(entry, str) for entry in entries))


def _no_numbers(name: str, what: str, *, strings: bool) -> TypeError:
    classes = (
        "; classes are the numbers 0, .., m - 1 of the columns of the predictions, such as "
        "np.searchsorted(model.classes_, labels) for scikit-learn"
    )
    columns = "; encode categories as columns of 0 and 1, as pandas.get_dummies(..) does"
    remedies = {"targets": classes} | dict.fromkeys(ENCODED, columns)
    remedy = remedies.get(name, "") if strings else ""
    return TypeError(f"{name}: wanted an array of numbers, got {what}{remedy}")


def _entries(value: object, name: str) -> Any:
    """Return a list with its arrays converted by `array`, since NumPy would ignore masks."""
    if not isinstance(value, list | tuple) or all(isinstance(x, int | float) for x in value):
        return value
    plain = [x.as_py() if hasattr(x, "as_py") else x for x in value]  # Arrow scalars
    return [array(x, name) if brought(x) else _entries(x, name) for x in plain]


def column_names(value: Any) -> list[Any]:
    """Return the names of the columns of a data frame, table or series; [] for anything else."""
    if type(value).__module__.partition(".")[0] not in ("pandas", "pyarrow", "polars"):
        return []
    alone = [getattr(value, "name", None)]
    return list(getattr(value, "column_names", getattr(value, "columns", alone)))


def input_names(value: Any, q: int, fitted: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return names of q inputs: column names of a data frame, or else "input 0", .. ``fitted``:
    names in an earlier fit. If any column has one of these, the first columns must be ``fitted``
    in this order, else ValueError."""
    names = tuple(column_names(value))
    if set(names) & set(fitted) and names[: len(fitted)] != fitted:
        raise ValueError(f"inputs: wanted the columns {fitted} of the fit, got {names}")
    strings = len(names) == q and all(isinstance(name, str) and name for name in names)
    return names if strings else tuple(f"input {k}" for k in range(q))


def class_columns(value: Any, name: str) -> list[int] | None:
    """Return, for each class 0, 1, .., the index of its column in a data frame or table. Columns
    are named by numbers, or by texts that differ in one number ("p0", "p1", ..). None, if no
    reordering is needed: for other names, and for texts whose numbers ascend. Otherwise ValueError
    unless the numbers are 0, 1, .."""
    names = [str(word) for word in column_names(value)]
    words = [{"False": "0", "True": "1"}.get(word, word) for word in names]
    words = [re.sub(r"^(-?\d+)\.0$", r"\1", word) for word in words]
    if not any(re.fullmatch(r"-?\d+", word) for word in words):
        parts = [re.split(r"(\d+)", word) for word in words]  # numbers at 1, 3, ..
        if not parts or len({len(part) for part in parts}) > 1:
            return None
        differ = [k for k, texts in enumerate(zip(*parts, strict=True)) if len(set(texts)) > 1]
        if len(differ) != 1 or differ[0] % 2 == 0:
            return None
        words = [str(int(part[differ[0]])) for part in parts]
        if sorted(words, key=int) == words:
            return None
    wanted = [str(k) for k in range(len(words))]
    if sorted(words) != sorted(wanted):
        raise ValueError(
            f"{name}: wanted columns named after the classes 0, .., {len(words) - 1}, got "
            f"{SHORT.repr(names)}, from which classes cannot be read: rename them, or pass "
            f".to_numpy() with one column per class, in their order"
        )
    return [words.index(word) for word in wanted]


def brought(value: object) -> bool:
    """Return whether this is an array, a tensor or a pandas or Arrow object."""
    if isinstance(value, np.ndarray) or hasattr(value, "detach"):
        return True
    return type(value).__module__.startswith(("pandas", "pyarrow")) and hasattr(value, "__len__")


def leaves(tree: PyTree, name: str) -> Any:
    """Return a pytree with NumPy arrays, tensors, pandas and Arrow objects converted by `array`."""

    def one(path: Any, leaf: PyTree) -> Any:
        return array(leaf, name + jax.tree_util.keystr(path)) if brought(leaf) else leaf

    return jax.tree_util.tree_map_with_path(one, tree)


def remember(module: Any, **arguments: Any) -> None:
    """Keep data frames among the arguments of a module as attributes that are no fields, so that
    `jaxcal.results.in_one_order` sees the index and the columns that arrays have lost."""
    for path, leaf in jax.tree_util.tree_leaves_with_path(arguments):
        if type(leaf).__module__.startswith("pandas"):
            name = path[0].key + jax.tree_util.keystr(path[1:])
            object.__setattr__(module, f"_{name}", leaf)


def say(value: Any) -> str:
    """Return a short description of the actual value, for error messages."""
    if value is None:
        return "None"
    if isinstance(value, type):
        return f"the class {value.__name__} (call it: {value.__name__}(..))"
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return f"an array of shape {tuple(value.shape)} and type {value.dtype}"
    if hasattr(value, "shape") and hasattr(value, "dtypes"):
        kinds = ", ".join(sorted(map(str, set(value.dtypes))))
        return f"a {type(value).__name__} of shape {tuple(value.shape)} with columns of {kinds}"
    return f"{type(value).__name__} {SHORT.repr(value)}"
