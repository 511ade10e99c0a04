"""Public names by the place where a user finds them, what they return, and links to them."""

import re
from collections.abc import Iterator
from importlib import import_module
from inspect import get_annotations, isclass
from pathlib import Path
from typing import Any, get_args

ROOT = Path(__file__).resolve().parents[3]
NAME = re.compile(r"(?<![`\[\w])`([A-Za-z_][\w.]*)(?:\(\))?`(?![`\]])")
CODE = re.compile(r"(^```.*?^```|^(?: {4}|\t).*?$)", re.MULTILINE | re.DOTALL)


def public() -> dict[str, list[str]]:
    """Names of `tests/api.txt` by place: `jaxcal`, then its subpackages."""
    places: dict[str, list[str]] = {}
    for line in (ROOT / "tests/api.txt").read_text(encoding="utf-8").splitlines():
        name = line.partition("(")[0]
        places.setdefault(name.rpartition(".")[0], []).append(name)
    return dict(sorted(places.items()))


def described(annotation: Any) -> Iterator[type]:
    """Classes of jaxcal in an annotation whose docstrings list attributes, then those of their
    fields."""
    for part in get_args(annotation):
        yield from described(part)
    ours = isclass(annotation) and annotation.__module__.startswith("jaxcal.")
    if ours and "Attributes:" in (annotation.__doc__ or ""):
        yield annotation
        for field in get_annotations(annotation).values():
            yield from described(field)


def returned(places: dict[str, list[str]]) -> dict[str, list[str]]:
    """Full paths of the classes without a public name by the first function that returns them."""
    values = {
        name: getattr(import_module(place), name.rpartition(".")[2])
        for place, names in places.items()
        for name in names
    }
    shown = [value for value in values.values() if isclass(value)]
    by_function: dict[str, list[str]] = {}
    for name, value in values.items():
        if isclass(value):
            continue
        for kind in described(value.__annotations__.get("return")):
            if kind not in shown:
                shown.append(kind)
                by_function.setdefault(name, []).append(f"{kind.__module__}.{kind.__name__}")
    return by_function


PLACES = public()
RETURNED = returned(PLACES)
ANCHORS = {name: name for names in (PLACES, *PLACES.values()) for name in names}
for _path in (path for paths in RETURNED.values() for path in paths):
    _place = ".".join(_path.split(".")[:2])
    _home = _place if _place in PLACES else "jaxcal"
    ANCHORS.setdefault(f"{_home}.{_path.rpartition('.')[2]}", _path)


def full_name(name: str, place: str = "jaxcal") -> str | None:
    """The entry of the reference that a word means on a page about a place, or None."""
    for candidate in (f"{place}.{name}", name, f"jaxcal.{name}"):
        if candidate in ANCHORS and candidate != "jaxcal":
            return ANCHORS[candidate]
    return None


def with_links(text: str, place: str = "jaxcal") -> str:
    """Markdown whose public names in backticks link to the reference; code blocks stay."""

    def link(match: re.Match[str]) -> str:
        name = full_name(match[1], place)
        return match[0] if name is None else f"[{match[0]}][{name}]"

    parts = CODE.split(text)
    return "".join(part if k % 2 else NAME.sub(link, part) for k, part in enumerate(parts))
