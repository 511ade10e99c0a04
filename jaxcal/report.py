"""A result as the command line writes it: in its own type, and as JSON."""

import json
import math
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax

from jaxcal.results import Result
from jaxcal.typing import Contents


def in_its_type(result: Result) -> AbstractContextManager[None]:
    """Float64 as long as this lasts where the result holds any: reports compute a little, too."""
    kinds = (getattr(leaf, "dtype", None) for leaf in jax.tree.leaves(result))
    return jax.enable_x64(any(kind == "float64" for kind in kinds))


def write_json(result: Result, path: Path | str, settings: Contents) -> None:
    """Every number of the result but the draws of the null; what is not finite becomes null.

    ``path`` "-" is standard output.
    """
    text = json.dumps(_finite(settings | result.to_dict()), indent=2, allow_nan=False)
    if isinstance(path, str):
        print(text, flush=True)
    else:
        path.write_text(text + "\n", encoding="utf-8")


def _finite(value: object) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
