"""Docstrings as the reference shows them: constructors of modules, links, mathematics, examples."""

import re
from typing import Any

import griffe
from public_names import with_links

HEADS = re.compile(r"^(\s*)(Cost|Source):", re.MULTILINE)
MATH = re.compile(r":math:`(.+?)`", re.DOTALL)


class Docstrings(griffe.Extension):
    """Brings the package's docstrings into the form of a page."""

    def on_class(self, *, cls: griffe.Class, **_: Any) -> None:
        """A class without a constructor gets one of its annotated fields, as Equinox does."""
        takes_fields = cls.docstring is not None and "Args:" in cls.docstring.value
        if "__init__" in cls.members or not takes_fields:
            return
        parameters = [griffe.Parameter("self", kind=griffe.ParameterKind.positional_or_keyword)]
        parameters += [_parameter(one) for one in cls.attributes.values() if _is_field(one)]
        if parameters[1:]:
            cls.set_member("__init__", griffe.Function("__init__", parameters=_ordered(parameters)))

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Bring a docstring from what editors show to what a page shows."""
        if obj.docstring is None:
            return
        text = obj.docstring.value
        text = re.sub(r"^(\s*)Example:", r"\1Examples:", text, flags=re.MULTILINE)
        text = HEADS.sub(r"\1**\2:**", text)
        place = ".".join(obj.path.split(".")[:2])
        obj.docstring.value = _linked(MATH.sub(r"$\1$", text), place)


def _linked(text: str, place: str) -> str:
    """A docstring with links to public names; examples stay as they are."""
    words, head, example = text.partition("Examples:")
    lines = [re.match(r"(\s*)(.*)", line, re.DOTALL) for line in words.split("\n")]
    linked = [line[1] + with_links(line[2], place) for line in lines if line]
    return "\n".join(linked) + head + example


def _is_field(one: griffe.Attribute) -> bool:
    only_of_class = "class-attribute" in one.labels and "instance-attribute" not in one.labels
    private, described = one.name.startswith("_"), one.annotation is not None
    return described and not private and not only_of_class and "property" not in one.labels


def _parameter(one: griffe.Attribute) -> griffe.Parameter:
    default = one.value
    if isinstance(default, griffe.ExprCall) and str(default.function).endswith("field"):
        options = [part for part in default.arguments if isinstance(part, griffe.ExprKeyword)]
        default = next((part.value for part in options if part.name == "default"), None)
    kind = griffe.ParameterKind.positional_or_keyword
    return griffe.Parameter(one.name, annotation=one.annotation, kind=kind, default=default)


def _ordered(parameters: list[griffe.Parameter]) -> griffe.Parameters:
    return griffe.Parameters(*sorted(parameters, key=lambda one: one.default is not None))
