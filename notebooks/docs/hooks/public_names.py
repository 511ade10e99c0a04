"""Public names by the place where a user finds them, and links to them."""

import re
from pathlib import Path

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


PLACES = public()
NAMES = {name for names in PLACES.values() for name in names} | PLACES.keys()


def full_name(name: str, place: str = "jaxcal") -> str | None:
    """The public name that a word means on a page about a place; None where it means none."""
    for candidate in (f"{place}.{name}", name, f"jaxcal.{name}"):
        if candidate in NAMES and candidate != "jaxcal":
            return candidate
    return None


def with_links(text: str, place: str = "jaxcal") -> str:
    """Markdown whose public names in backticks link to the reference; code blocks stay."""

    def link(match: re.Match[str]) -> str:
        name = full_name(match[1], place)
        return match[0] if name is None else f"[{match[0]}][{name}]"

    parts = CODE.split(text)
    return "".join(part if k % 2 else NAME.sub(link, part) for k, part in enumerate(parts))
