"""The work of ``python -m jaxcal test``: arrays to a result, to JSON and to a figure."""

import json
import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxcal import nulls, plots
from jaxcal.arrays_file import TestArrays
from jaxcal.calibration import kccsd_test
from jaxcal.divergences.fisher import Fisher
from jaxcal.divergences.vectors import Vectors
from jaxcal.models import Scores
from jaxcal.results import Result, TestResult
from jaxcal.typing import Contents


class Unusable(Exception):
    """One sentence about options that do not fit the data."""


def run(
    arrays: TestArrays,
    *,
    null: str,
    draws: int | None,
    coordinates: bool,
    seed: int,
    level: float = 0.05,
) -> TestResult:
    """The KCCSD test of arrays, computed in the type they have. Raises Unusable."""
    kind = getattr(nulls, null)
    chosen = kind() if draws is None else kind(n_draws=draws)
    # float64 for as long as this lasts: a program may, an import may not
    with jax.enable_x64(arrays.targets.dtype == "float64"):
        node_scores, nodes, features = (
            None if array is None else jnp.asarray(array)
            for array in (arrays.node_scores, arrays.nodes, arrays.features)
        )
        try:
            result = kccsd_test(
                seed,
                Scores(jnp.asarray(arrays.scores), node_scores, nodes),
                arrays.targets,
                divergence=Fisher() if features is None else Vectors(features),
                null=chosen,
                level=level,
                coordinates=coordinates,
            )
            return jax.block_until_ready(result)
        except ValueError as error:  # such as too few observations for blocks
            raise Unusable(" ".join(str(error).split())) from None


def in_its_type(result: Result) -> AbstractContextManager[None]:
    """Float64 as long as this lasts where the result holds any: reports compute a little, too."""
    kinds = (getattr(leaf, "dtype", None) for leaf in jax.tree.leaves(result))
    return jax.enable_x64(any(kind == "float64" for kind in kinds))


def write_json(
    result: Result, path: Path | str, settings: Contents, notes: Sequence[str] = ()
) -> None:
    """Every number of the result but the draws of the null; what is not finite becomes null.

    ``path`` "-" is standard output. ``notes`` on the file go in front of the warnings of the
    result.
    """
    content = settings | result.to_dict()
    content["warnings"] = [*notes, *content["warnings"]]
    text = json.dumps(_finite(content), indent=2, allow_nan=False)
    if isinstance(path, str):
        print(text, flush=True)
    else:
        path.write_text(text + "\n", encoding="utf-8")


def write_figure(result: TestResult, path: Path) -> None:
    """The null, the contributions and, where there are any, the coordinates side by side."""
    from matplotlib.figure import Figure

    panels = 2 if result.coordinates is None else 3
    figure = Figure(figsize=(5.2 * panels, 4), layout="constrained")
    axes = figure.subplots(1, panels)
    plots.null_histogram(result, ax=axes[0])
    plots.contributions(result, ax=axes[1])
    if result.coordinates is not None:
        plots.coordinates(result, ax=axes[2])
    figure.savefig(path, dpi=150)


def _finite(value: object) -> Any:
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
