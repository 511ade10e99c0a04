"""Every public signature, as agreed: what changes for a user changes `api.txt` too."""

import inspect
from pathlib import Path

from api import PACKAGES, public

import jaxcal

GOLDEN = Path(__file__).parents[1] / "api.txt"
# what a function takes by position: a key where it draws, predictions, targets; all else by name
BY_POSITION = {"key", "predictions", "targets"}
# other things than predictions and their targets, with the words of their part of the field
ALSO = {
    "jaxcal.kcsd": {"inputs"},
    "jaxcal.kcsd_test": {"inputs"},
    "jaxcal.ksd": {"model"},
    "jaxcal.ksd_test": {"model"},
    "jaxcal.compare": {"models"},
}


def signature(value):
    """The arguments as one line; defaults by their repr, without addresses and types."""
    shown = []
    star = False
    for one in inspect.signature(value).parameters.values():
        if one.kind is one.KEYWORD_ONLY and not star:
            shown.append("*")
            star = True
        prefix = {one.VAR_POSITIONAL: "*", one.VAR_KEYWORD: "**"}.get(one.kind, "")
        star = star or one.kind is one.VAR_POSITIONAL
        default = one.default
        if default is one.empty:
            shown.append(prefix + one.name)
        elif isinstance(default, str | int | float | bool | None):
            shown.append(f"{one.name}={default!r}")
        else:
            shown.append(f"{one.name}={type(default).__name__}")
    return ", ".join(shown)


def test_every_public_subpackage_is_looked_at():
    modules = {name for name in jaxcal.__all__ if inspect.ismodule(getattr(jaxcal, name))}
    assert modules <= set(PACKAGES.split())


def test_signatures_are_those_agreed():
    lines = [f"{name}({signature(value)})" for name, value in sorted(public().items())]
    now = "\n".join(lines) + "\n"
    if GOLDEN.read_text() != now:
        agreed = set(GOLDEN.read_text().splitlines())
        changed = "\n".join(sorted(set(lines) ^ agreed))
        raise AssertionError(
            f"if this is meant, write it to {GOLDEN.name} and the changelog:\n{changed}"
        )


def test_top_level_functions_take_key_predictions_targets():
    for name in jaxcal.__all__:
        value = getattr(jaxcal, name)
        if not inspect.isfunction(value):
            continue
        values = [
            one.name
            for one in inspect.signature(value).parameters.values()
            if one.kind is one.POSITIONAL_OR_KEYWORD
        ]
        allowed = BY_POSITION | ALSO.get(f"jaxcal.{name}", set()) | EXCEPTIONS.get(name, set())
        assert set(values) <= allowed, (name, values)
        order = [one for one in values if one in BY_POSITION]
        assert order == [one for one in ("key", "predictions", "targets") if one in order], name


EXCEPTIONS = {"explain": {"result"}, "load": {"path"}, "skce_interval": {"result"}}


def test_one_name_for_one_thing_and_one_order():
    """What is predicted and what came true have one name; a key by position is the first."""
    other = {"probabilities", "labels", "probs", "logits", "y_true", "distance"}
    for name, value in public().items():
        if inspect.isclass(value):
            continue
        kinds = inspect.signature(value).parameters
        parameters = [one for one in kinds if kinds[one].kind is not inspect.Parameter.KEYWORD_ONLY]
        assert not other & set(kinds), name
        order = [one for one in ("key", "predictions", "targets") if one in parameters]
        assert [one for one in parameters if one in order] == order, name
        assert "key" not in parameters[1:], name
