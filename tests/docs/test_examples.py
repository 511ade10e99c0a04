"""Docstrings of public names: Google layout with every argument, and examples that run."""

import doctest
import importlib
import inspect
import re

import jax
import pytest
from api import public
from optional import with_packages
from public_names import RETURNED
from quick import quick_first

PUBLIC = public()
QUICK = {
    "jaxcal.calibration_test",
    "jaxcal.ckce.ckce",
    "jaxcal.kccsd_test",
    "jaxcal.kernels.Gaussian",
    "jaxcal.measures.ece",
    "jaxcal.skce_test",
}
# classes that users are handed, and do not call
HANDED = ["jaxcal.TestResult"]
HANDED += ["jaxcal.nulls.Needs", "jaxcal.nulls.Outcome", "jaxcal.nulls.Sums"]
SECTIONS = ("Args", "Attributes", "Returns", "Yields", "Raises", "Cost", "Source", "Example")


def sections(text):
    """The lines of each section of a docstring, by its head; the text before is 'Summary'."""
    parts, head = {"Summary": []}, "Summary"
    for line in inspect.cleandoc(text).splitlines():
        match = re.match(rf"({'|'.join(SECTIONS)}):(.*)", line)
        if match:
            head = match[1]
            parts[head] = [match[2]] if match[2].strip() else []
        else:
            parts[head].append(line)
    return parts


def described(lines):
    """Names of the arguments that a section explains, those of a line at the first indentation."""
    heads = [re.match(r"    (\*{0,2}\w+(?:, \*{0,2}\w+)*): ", line) for line in lines]
    return [name for head in heads if head for name in head[1].split(", ")]


def arguments(value):
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    parameters = inspect.signature(value).parameters.values()
    return [stars.get(one.kind, "") + one.name for one in parameters]


def complaints(value):
    """What the docstring of a public function or class lacks."""
    text = inspect.getdoc(value) or ""
    if inspect.isclass(value) and (not vars(value).get("__doc__")):
        return ["has no docstring of its own"]
    parts = sections(text)
    lacks = []
    summary = parts["Summary"]
    if not summary[0].endswith((".", "?")) or (len(summary) > 1 and summary[1]):
        lacks.append("has no first line that is a sentence")
    wanted = [] if getattr(value, "_is_protocol", False) else arguments(value)
    explained = described(parts.get("Args", [])) + described(parts.get("Attributes", []))
    if explained != wanted and wanted:
        lacks.append(f"explains {explained}, its arguments are {wanted}")
    draws = "ax" in wanted  # and returns it, as `jaxcal.plots` says once
    if not inspect.isclass(value) and not draws and not {"Returns", "Yields"} & set(parts):
        lacks.append("does not say what it returns")
    if not any(line.strip().startswith(">>>") for line in parts.get("Example", [])):
        lacks.append("has no example")
    return lacks


def test_docstrings_explain_every_argument_and_give_an_example():
    lacks = {name: complaints(value) for name, value in PUBLIC.items()}
    for name in HANDED:
        lacks[name].remove("has no example")
    assert not {name: what for name, what in lacks.items() if what}


def test_results_explain_every_attribute():
    for path in (path for paths in RETURNED.values() for path in paths):
        module, _, name = path.rpartition(".")
        lacks = complaints(getattr(importlib.import_module(module), name))
        assert set(lacks) <= {"has no example"}, path


def test_the_rule_finds_what_is_missing():
    def good(a, *, b=1, **options):
        """Return one.

        Args:
            a: First,
                on two lines.
            b: Second.
            **options: Others.

        Returns:
            One.

        Example:
            >>> 1
            1
        """

    assert not complaints(good)
    for part in ("b: Second.", "Returns:", ">>> 1", "Return one.", "**options: Others."):

        def bad(a, *, b=1, **options): ...

        bad.__doc__ = good.__doc__.replace(part, "and so on")
        assert len(complaints(bad)) == 1, part


def has_example(value):
    return ">>>" in (inspect.getdoc(value) or "")


EXAMPLES = sorted(name for name, value in PUBLIC.items() if has_example(value))


def packages(name):
    return re.findall(r"import (torch)\b", inspect.getdoc(PUBLIC[name]) or "")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", with_packages(quick_first(EXAMPLES, QUICK & set(EXAMPLES)), packages)
)
def test_the_example_runs_as_users_run_it(name):
    """In float32, with the promotion that JAX has by default."""
    if "import pyarrow" in (inspect.getdoc(PUBLIC[name]) or ""):
        pytest.importorskip("pyarrow")
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE)
    cases = doctest.DocTestFinder(exclude_empty=True).find(PUBLIC[name], name, module=False)
    settings = (
        jax.enable_x64(False),
        jax.numpy_rank_promotion("allow"),
        jax.numpy_dtype_promotion("standard"),
    )
    with settings[0], settings[1], settings[2]:
        output = []
        results = [runner.run(case, out=output.append) for case in cases if case.examples]
    assert sum(result.attempted for result in results)
    assert not any(result.failed for result in results), "".join(output)
