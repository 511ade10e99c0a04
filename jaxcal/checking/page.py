"""A report as one HTML page that holds its figures."""

import html
from typing import Any

from jaxcal.results import Result, shown
from jaxcal.squared_ce import Report

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


def of_report(report: Any) -> str:
    """The page of a `CheckReport`: the verdict, why these tests, each with its figure, limits."""
    title = f"Check of {report.kind}"
    rows = [
        [name, f"{float(p):.3g}", f"{float(q):.3g}"]
        for name, p, q in zip(report.names, report.p_values, report.p_adjusted, strict=True)
    ]
    parts = [
        _tag("h1", title),
        f'<p class="verdict">{html.escape(_sentence(report.verdict_in_words()))}</p>',
        _tag("p", f"n = {report.n} observations; p = {float(report.p_value):.3g}."),
        *_warnings(report),
        _tag("h2", "Why these tests"),
        _tag("p", _sentence(f"the predictions are {report.kind}: {report.why}")),
        _table(["test", "p-value", "p-value (Holm)"], rows),
        _tag("p", _sentence(f"the p-value of the verdict is {report.correction()}")),
        _tag("h2", "What this can and cannot see"),
        _list(report.limits()),
        _tag("h2", "Results"),
        *(_section(result) for result in (*report.tests, *report.estimates)),
        _tag("h2", "How it was made"),
        _table(["", ""], _sources(report), head=False),
    ]
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>'
        f"{html.escape(title)}</title><style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(parts)
        + "\n</body></html>\n"
    )


def _warnings(report: Any) -> list[str]:
    """Warnings of the tests and estimates; they stand first on the page."""
    texts = [text for one in (*report.tests, *report.estimates) for text in one.warnings()]
    return [_tag("h2", "Before you rely on it"), _list(texts)] if texts else []


def _list(texts: list[str]) -> str:
    return "<ul>" + "".join(_tag("li", text) for text in texts) + "</ul>"


def _sources(report: Any) -> list[list[str]]:
    """Versions, and the call as far as it is known: that of the check, or else of its test."""
    recorded = report if report.provenance["function"] else report.tests[0]
    return [[name, str(value)] for name, value in recorded.provenance.items()]


def _section(result: Result) -> str:
    """The figure of a result, and its report as text."""
    # the figure of a calibration error compares estimators, of which a check fits one
    drawing = None if isinstance(result, Report) else result._figure()
    alt = f"Figure of {type(result).__name__}"
    picture = "" if drawing is None else f"<p>{shown.image(drawing, dpi=110, alt=alt)}</p>"
    return f"{picture}<pre>{html.escape(repr(result))}</pre>"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."


def _tag(name: str, text: str) -> str:
    return f"<{name}>{html.escape(text)}</{name}>"


def _table(heads: list[str], rows: list[list[str]], *, head: bool = True) -> str:
    top = "<tr>" + "".join(_tag("th", text) for text in heads) + "</tr>" if head else ""
    body = ["<tr>" + "".join(_tag("td", cell) for cell in row) + "</tr>" for row in rows]
    return f"<table>{top}{''.join(body)}</table>"
