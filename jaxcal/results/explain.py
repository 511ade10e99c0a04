"""What the names at the end of warnings mean: cause, consequence, what to do."""

import re
from collections.abc import Iterable
from importlib import resources

NAME = re.compile(r" \[([a-z0-9]+(?:-[a-z0-9]+)*)\]$")


def names(sentences: Iterable[str]) -> list[str]:
    """The names at the ends of sentences, each once."""
    matches = [NAME.search(text) for text in sentences]
    return list(dict.fromkeys(match[1] for match in matches if match))


def pointer(sentences: Iterable[str]) -> list[str]:
    """A line on where these warnings are explained; none where no sentence has a name."""
    listed = names(sentences)
    return [f"  explained: python -m jaxcal explain {' '.join(listed)}"] if listed else []


def explanations() -> dict[str, str]:
    """The explanation of every name."""
    text = resources.files("jaxcal.results").joinpath("warnings.md").read_text(encoding="utf-8")
    parts = re.split(r"^(#+) (.+)\n", text, flags=re.MULTILINE)[1:]
    sections = zip(parts[::3], parts[1::3], parts[2::3], strict=True)
    return {head: body.strip() for depth, head, body in sections if depth == "###"}
