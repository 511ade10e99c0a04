"""Read the arrays of a test from a .npz file that another language or library saved.

A file that cannot be used raises `BadFile`, which names the file, the array and what was wanted.
"""

import struct
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

import numpy as np

from jaxcal.read import Scores

NAMES = ("targets", "scores", "node_scores", "nodes", "features")
SHAPES = {"scores": "n d", "node_scores": "n m d", "nodes": "m d", "features": "n q"}
MEANING = {
    "scores": ", one score per target",
    "node_scores": ", for each target the scores of its prediction at the same m points",
    "nodes": ", the m points of 'node_scores'",
    "features": ", one row per target",
}
# exceptions of the readers of zip and npy for a damaged or hostile archive
UNREADABLE = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    ValueError,
    OSError,
    EOFError,
    KeyError,
    RuntimeError,  # encrypted, or compressed in a way that Python cannot undo
    MemoryError,  # a header that claims more numbers than there is memory
)


class BadFile(Exception):
    """Raised for a file that cannot be used; the message is one sentence."""


# scores of predictions; targets [n, d]; features [n, q], or None; sentences about likely mistakes
Scored: TypeAlias = tuple[Scores, np.ndarray, np.ndarray | None, list[str]]


def read(path: Path) -> Scored:
    """Return the checked arrays of the file ``path``, in the widest float type among them: either
    scores at nodes or features.

    Scores may hold NaN or infinity, which the test reports; everything else must be finite. If
    d = 1, arrays in the file may lack the last axis. Raises BadFile.
    """
    raw, others = load(path, NAMES)
    arrays = {name: _floats(path, name, array) for name, array in raw.items()}
    contents = "the file holds " + (", ".join(sorted([*arrays, *others])) or "no arrays")
    for name in ("targets", "scores"):
        if name not in arrays:
            raise BadFile(f"{path}: the array '{name}' is missing; {contents}")
    if ("node_scores" in arrays) == ("features" in arrays):
        which = "both" if "features" in arrays else "neither"
        raise BadFile(
            f"{path}: to tell predictions apart, one of the arrays 'node_scores' and 'features' "
            f"is wanted, got {which}; {contents}"
        )
    if "features" in arrays and arrays.pop("nodes", None) is not None:
        others = (*others, "nodes")
    kind = np.result_type(*arrays.values())
    arrays = {name: array.astype(kind) for name, array in arrays.items()}
    for name in ("targets", "nodes", "features"):
        if name in arrays and (bad := int(np.sum(~np.isfinite(arrays[name])))):
            raise BadFile(f"{path}: '{name}' holds {bad} values that are NaN or infinite")
    return _shaped(path, arrays, others)


def load(path: Path, names: Iterable[str]) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Return a file's arrays with these ``names``, and the names of all others; raises BadFile."""
    names = tuple(names)
    try:
        file = path.open("rb")
    except FileNotFoundError:
        raise BadFile(f"{path}: no such file") from None
    except IsADirectoryError:
        raise BadFile(f"{path}: a folder; wanted a .npz file") from None
    except OSError as error:
        raise BadFile(f"{path}: cannot be opened ({error.strerror})") from None
    with file:
        try:
            archive = np.load(file, allow_pickle=False)
        except UNREADABLE:
            raise BadFile(
                f"{path}: not a whole .npz archive (cut off, damaged, or another kind of file)"
            ) from None
        if isinstance(archive, np.ndarray):
            raise BadFile(
                f"{path}: one array without a name (.npy); wanted a .npz file with named arrays"
            )
        arrays = {name: _member(path, archive, name) for name in names if name in archive}
        return arrays, tuple(name for name in archive.files if name not in names)


def _member(path: Path, archive: np.lib.npyio.NpzFile, name: str) -> np.ndarray:
    try:
        array = archive[name]
    except UNREADABLE as error:
        if "allow_pickle" in str(error):
            raise BadFile(
                f"{path}: '{name}' holds pickled objects, which are never loaded; save it as "
                f"numbers, float32 or float64"
            ) from None
        raise BadFile(f"{path}: the array '{name}' is damaged and cannot be read") from None
    if not isinstance(array, np.ndarray):
        raise BadFile(f"{path}: '{name}' is not an array")
    return array


def _floats(path: Path, name: str, array: np.ndarray) -> np.ndarray:
    if array.dtype.kind != "f" or array.dtype.itemsize not in (4, 8):
        hint = {
            "i": "; convert measurements to float64, but counts and classes have no score",
            "u": "; convert measurements to float64, but counts and classes have no score",
            "f": "; the statistic needs about seven digits",
        }.get(array.dtype.kind, "")
        raise BadFile(f"{path}: '{name}' is {array.dtype}; wanted float32 or float64{hint}")
    return array


def _shaped(path: Path, arrays: dict[str, np.ndarray], ignored: tuple[str, ...]) -> Scored:
    """Return the arrays, with a last axis added if d = 1; BadFile if lengths disagree."""
    targets = arrays["targets"]
    if targets.ndim not in (1, 2) or targets.size == 0:
        raise BadFile(
            f"{path}: 'targets' has shape {targets.shape}; wanted [n, d], or [n] where a target is "
            f"one number"
        )
    if (n := targets.shape[0]) < 2:
        raise BadFile(f"{path}: 'targets' holds {n} observation; a test needs at least 2")
    lengths = {"n": n, "d": targets.size // n}
    full = {"targets": targets.reshape(n, -1)}
    for name, axes in SHAPES.items():
        if name in arrays:
            full[name] = _fitted(path, name, arrays[name], axes.split(), lengths)
    notes = [f"the array '{name}' is not used [unused-array]" for name in ignored]
    if n < (d := lengths["d"]):
        notes.append(
            f"'targets' of shape {targets.shape} is read as {n} observations of {d} numbers each; "
            f"if these are {d} observations, save every array with its first two axes swapped"
            " [wide-targets]"
        )
    scores = Scores(full["scores"], full.get("node_scores"), full.get("nodes"))
    return scores, full["targets"], full.get("features"), notes


def _fitted(
    path: Path, name: str, array: np.ndarray, axes: list[str], lengths: dict[str, int]
) -> np.ndarray:
    """Return the array, with a missing last axis added; BadFile unless it fits ``lengths``."""
    shape = array.shape
    if array.ndim == len(axes) - 1 and lengths.get(axes[-1], 1) == 1:
        array = array[..., None]
    agrees = [lengths.get(axis, got) == got for axis, got in zip(axes, array.shape, strict=False)]
    if array.ndim != len(axes) or array.size == 0 or not all(agrees):
        wanted = ", ".join(f"{lengths.get(axis, axis)}" for axis in axes)
        raise BadFile(f"{path}: '{name}' has shape {shape}; wanted [{wanted}]{MEANING[name]}")
    lengths.update(zip(axes, array.shape, strict=True))
    return array
