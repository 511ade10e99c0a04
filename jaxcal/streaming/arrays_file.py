"""Read the arrays of a test from a .npz file that another language or library saved.

A file that cannot be used raises `BadFile`, which names the file, the array and what was wanted.
"""

import struct
import zipfile
import zlib
from collections.abc import Iterable
from pathlib import Path

import numpy as np

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
