"""Results in notebooks and tables: the report with a small figure, and a data frame."""

import base64
import html
import io
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from jaxcal.results.parts import plain
from jaxcal.typing import Contents


def figure(result: Any, names: Sequence[str], *, panel: tuple[float, float] = (4.8, 3.2)) -> Any:
    """Return a matplotlib figure with one panel per function of `jaxcal.plots`."""
    from matplotlib.figure import Figure

    plots = import_module("jaxcal.plots")  # imported late: plots depend on results
    whole = Figure(figsize=(panel[0] * len(names), panel[1]), layout="constrained")
    for name, ax in zip(names, np.ravel(whole.subplots(1, len(names))), strict=True):
        getattr(plots, name)(result, ax=ax)
    return whole


def image(drawing: Any, *, dpi: int = 80, alt: str = "") -> str:
    """Return a matplotlib figure as an HTML image with embedded PNG."""
    buffer = io.BytesIO()
    drawing.savefig(buffer, format="png", dpi=dpi)
    data = base64.b64encode(buffer.getvalue()).decode()
    return f'<img alt="{html.escape(alt)}" src="data:image/png;base64,{data}">'


STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 52rem; margin: 2rem auto; padding: 0 1rem;
  color: #111; background: #fff; }
h1 { font-size: 1.6rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
.verdict { border-left: .4rem solid #111; padding: .4rem 1rem; font-size: 1.15rem; }
table { border-collapse: collapse; } th, td { padding: .2rem 1.2rem .2rem 0; text-align: left;
  border-bottom: 1px solid #ccc; }
pre { background: #f5f5f5; padding: .8rem; overflow-x: auto; font-size: .8rem; line-height: 1.35;
  white-space: pre-wrap; }
img { max-width: 100%; } li { margin: .3rem 0; }
"""


def page(title: str, body: str) -> str:
    """Return a self-contained HTML page."""
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>'
        f"{html.escape(title)}</title><style>{STYLE}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def in_html(result: Any) -> str:
    """Return the report as HTML, with a figure for a single concrete result. Never raises."""
    text = f"<pre>{html.escape(repr(result))}</pre>"
    if result.traced or result.batch_shape:
        return text
    try:
        drawing = result._figure()
        alt = type(result).__name__
        return text if drawing is None else f"<div>{text}{image(drawing, alt=alt)}</div>"
    except Exception:  # without a figure the notebook still shows the numbers
        return text


def to_frame(result: Any, rows: Sequence[str]) -> Any:
    """Return a pandas data frame; an ImportError says what to install."""
    try:
        import pandas as pd  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ImportError("to_frame needs pandas: pip install pandas") from None
    if rows and not result.batch_shape:
        return pd.DataFrame({name: np.asarray(getattr(result, name)) for name in rows})
    shape = result.batch_shape
    columns = {
        name: np.ravel(np.broadcast_to(np.asarray(value), shape))
        for name, value in _flat(plain(result.to_dict()))
        if np.shape(value) in ((), shape) and not isinstance(value, dict)
    }
    return pd.DataFrame(columns)


def _flat(content: Contents, before: str = "") -> list[tuple[str, Any]]:
    pairs = []
    for name, value in content.items():
        inner = isinstance(value, dict)
        pairs += _flat(value, f"{before}{name}.") if inner else [(before + name, value)]
    return pairs
