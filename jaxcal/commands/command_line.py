"""Parse command line options, with errors that say what was wanted, and write output files."""

import argparse
import json
import math
import os
import platform
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # JAX is imported only for computations
    from jaxcal.results import Result

CACHE = "JAX_COMPILATION_CACHE_DIR"


def output(text: str) -> Path:
    """Return the path of a file that can be written; ArgumentTypeError otherwise."""
    path = Path(text)
    if text == "-":
        raise argparse.ArgumentTypeError("wanted the name of a file; --json alone takes '-'")
    try:
        if path.is_dir():
            raise argparse.ArgumentTypeError(f"{text} is a folder; wanted the name of a file")
        if not path.parent.is_dir():
            raise argparse.ArgumentTypeError(f"the folder {path.parent} does not exist")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise argparse.ArgumentTypeError(f"{text} cannot be written: permission denied")
    except OSError as error:  # such as a name that is too long
        raise argparse.ArgumentTypeError(f"{text}: {error.strerror}") from None
    return path


def json_output(text: str) -> Path | str:
    """Return the path of a writable file, or "-" for standard output."""
    return text if text == "-" else output(text)


def level(text: str) -> float:
    """Parse the level of a test, a number above 0 and below 1/2; ArgumentTypeError otherwise."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 0.5:
        raise argparse.ArgumentTypeError(
            f"wanted a probability above 0 and below 1/2, got {text!r}"
        )
    return value


def figure(text: str) -> Path:
    """Return the path of a writable file with a suffix that matplotlib can draw, such as .png."""
    from matplotlib.backend_bases import FigureCanvasBase

    path = output(text)
    if path.suffix.lower().removeprefix(".") not in FigureCanvasBase.get_supported_filetypes():
        raise argparse.ArgumentTypeError(
            f"{text} is no figure that can be drawn; wanted a name with .png, .pdf or .svg"
        )
    return path


def source(text: str) -> Path | str:
    """Return the path of a file or folder; a URI such as s3://bucket/folder is returned as text."""
    return text if "://" in text else Path(text)


def share(text: str) -> tuple[int, int]:
    """Return (i, N) from "i/N" with 1 <= i <= N; ArgumentTypeError otherwise."""
    i, slash, n = text.partition("/")
    if not (slash and i.isdecimal() and n.isdecimal() and 1 <= int(i) <= int(n)):
        raise argparse.ArgumentTypeError(f"wanted i/N with i from 1 to N, got {text[:40]!r}")
    return int(i), int(n)


def whole(smallest: int, largest: int, *, even: bool = False) -> Callable[[str], int]:
    """Return a parser of (even) integers in a range, which raises ArgumentTypeError for others."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = smallest - 1
        if not smallest <= value <= largest:
            raise argparse.ArgumentTypeError(
                f"wanted a whole number from {smallest} to {largest}, got {text[:40]!r}"
            )
        if even and value % 2:
            raise argparse.ArgumentTypeError(
                f"a cosine and a sine share a frequency; {text} is odd"
            )
        return value

    return parse


def overwritten(*files: Path | str | None) -> str | None:
    """Return an error message if two of the files have the same path, None otherwise."""
    names = [path.resolve() for path in files if isinstance(path, Path)]
    twice = [name for index, name in enumerate(names) if name in names[:index]]
    return f"{twice[0]}: one name for two files" if twice else None


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Return a context that adds ``path`` to an OSError without a file name (e.g. disk full)."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror or str(error), error.filename or path) from None


def in_its_type(result: "Result") -> AbstractContextManager[None]:
    """Return a context that enables float64 if the result has float64 arrays, and disables it
    otherwise: reports compute from these arrays."""
    import jax

    kinds = (getattr(leaf, "dtype", None) for leaf in jax.tree.leaves(result))
    return jax.enable_x64(any(kind == "float64" for kind in kinds))


def write_json(result: "Result", path: Path | str, settings: dict[str, Any]) -> None:
    """Write ``settings`` and the numbers and warnings of a result, except long arrays, as JSON.

    Non-finite numbers become null. The ``path`` "-" is standard output."""
    text = json.dumps(_finite(settings | result.to_dict()), indent=2, allow_nan=False)
    if isinstance(path, str):
        print(text, flush=True)
    else:
        path.write_text(text + "\n", encoding="utf-8")


def keep_programs() -> None:
    """Keep compiled programs in the user's cache folder between processes, unless JAX is already
    imported, the environment names a cache folder, or the folder cannot be written."""
    if "jax" in sys.modules or os.environ.get(CACHE):
        return
    try:
        folder = _cache_folder()
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # a home that cannot be written, or none
        return
    if os.access(folder, os.W_OK):
        os.environ[CACHE] = str(folder)
        os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
        # on some machines XLA writes an error to stderr for each program that it reads
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")


def _cache_folder() -> Path:
    """Return the cache folder by the platform's convention. Each kind of processor has its own, as
    machines that share a home folder may have different instruction sets."""
    base = {"win32": "LOCALAPPDATA", "darwin": ""}.get(sys.platform, "XDG_CACHE_HOME")
    stated = Path(os.environ.get(base, ""))
    usual = {"win32": "AppData/Local", "darwin": "Library/Caches"}.get(sys.platform, ".cache")
    processor = platform.processor()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(errors="replace").splitlines()
        processor = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    kind = f"{platform.machine()}-{zlib.crc32(processor.encode()):08x}"
    return (stated if stated.is_absolute() else Path.home() / usual) / "jaxcal" / kind


def _finite(value: object) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def drop_output() -> None:
    """Redirect standard output to the null device, so that Python's flush at exit does not fail."""
    try:
        descriptor = sys.stdout.fileno()
    except (AttributeError, OSError, ValueError):  # no stream, or none with a file
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)
