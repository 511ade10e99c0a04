"""Executed notebooks are those of their sources, and the check that says so can fail."""

import importlib.util
import sys
from pathlib import Path

import pytest
from optional import with_packages
from scripts import smoke

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
nbformat = pytest.importorskip("nbformat", reason="comparing notebooks needs jupytext")
pytest.importorskip("jupytext")

spec = importlib.util.spec_from_file_location("notebooks_build", NOTEBOOKS / "build.py")
assert spec is not None
assert spec.loader is not None
build = importlib.util.module_from_spec(spec)
sys.modules[spec.name] = build
spec.loader.exec_module(build)

SOURCE = """# %% [markdown]
# # A title
#
# and a line

# %%
x = 2


# %%
print(x)
"""


@pytest.fixture
def notebook(tmp_path):
    """A source and its notebook as if it had been run."""
    source = tmp_path / "story.py"
    source.write_text(SOURCE)
    notebook = build.read(source)
    notebook.cells[1].execution_count, notebook.cells[2].execution_count = 1, 2
    notebook.cells[2].outputs = [nbformat.v4.new_output("stream", name="stdout", text="2\n")]
    write(source, notebook)
    return source, notebook


def write(source, notebook):
    source.with_suffix(".ipynb").write_text(nbformat.writes(notebook))


@pytest.mark.parametrize("source", build.sources(), ids=lambda path: path.stem)
def test_every_executed_notebook_is_that_of_its_source(source):
    assert build.check(source) == []


def packages(source):
    text = source.read_text()
    names = ["torch", "sbi"] if "import torch" in text else []
    return [*names, *["sklearn"] * ("from sklearn" in text)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "source", with_packages(build.sources(), packages), ids=lambda path: path.stem
)
def test_every_notebook_runs_at_smoke_size(source, tmp_path):
    smoke(source, output=tmp_path / "said.txt", JAXCAL_QUICK="1")


def test_every_notebook_has_a_source_and_a_line_in_the_readme():
    names = {source.stem for source in build.sources()}
    assert {path.stem for path in NOTEBOOKS.glob("*.ipynb")} <= names
    told = (NOTEBOOKS / "README.md").read_text()
    assert [name for name in sorted(names) if f"| `{name}` |" not in told] == []


def test_a_notebook_that_agrees_passes(notebook):
    assert build.check(notebook[0]) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [("x = 2", "x = 3"), ("and a line", "and another"), ("# %%\nprint(x)\n", "")],
)
def test_a_changed_source_is_found(notebook, old, new):
    source, _ = notebook
    source.write_text(SOURCE.replace(old, new))
    assert any("run python notebooks/build.py story" in fault for fault in build.check(source))


@pytest.mark.parametrize(
    ("output", "says"),
    [
        (("stream", {"name": "stderr", "text": "W0000 no accelerator"}), "wrote to stderr"),
        (("error", {"ename": "ValueError", "evalue": "x", "traceback": []}), "raised ValueError"),
        (("stream", {"name": "stdout", "text": "in /home/someone/file\n"}), "/home/someone"),
        (("display_data", {"data": {"text/plain": "<f at 0x7f12ab34cd>"}}), "0x7f12ab34cd"),
        (("display_data", {"data": {"image/png": "A" * 600_000}}), "more than 500000"),
    ],
)
def test_outputs_that_must_not_be_committed_are_found(notebook, output, says):
    source, notebook = notebook
    kind, content = output
    notebook.cells[2].outputs = [nbformat.v4.new_output(kind, **content)]
    write(source, notebook)
    assert any(says in fault for fault in build.check(source))


def test_new_words_keep_the_outputs_of_the_same_code_alone(notebook):
    source, _ = notebook
    source.write_text(SOURCE.replace("and a line", "and another"))
    build.make(source, text_only=True)
    assert build.check(source) == []
    assert '"2\\n"' in source.with_suffix(".ipynb").read_text()
    source.write_text(SOURCE.replace("x = 2", "x = 3"))
    with pytest.raises(SystemExit, match="its code has changed, so it has to run"):
        build.make(source, text_only=True)


def test_a_notebook_that_was_not_run_in_order_is_found(notebook):
    source, notebook = notebook
    notebook.cells[2].execution_count = 7
    write(source, notebook)
    assert any("not run in order" in fault for fault in build.check(source))
    source.with_suffix(".ipynb").unlink()
    assert build.check(source) == ["story.ipynb is missing: run python notebooks/build.py story"]


def test_a_name_that_is_no_notebook_is_refused():
    with pytest.raises(SystemExit, match=r"no notebook nothing here; there are .*first_steps"):
        build.main(["--check", "nothing"])


@pytest.mark.parametrize(
    ("new", "same"),
    [
        ("y = 2\ndef f(z):\n    w = z + y\n    return w\nf(y)", True),
        ("x = 2\ndef f(z):\n    v = z + x\n    return v\nf(x)", True),
        ("x = 3\ndef f(z):\n    w = z + x\n    return w\nf(x)", False),  # another number
        ("y = 2\ndef f(z):\n    w = z + x\n    return w\nf(y)", False),  # of two names one
        ("x = 2\ndef f(z):\n    x = z + x\n    return x\nf(x)", False),  # two names became one
        ("x = 2\ndef f(z):\n    w = z + x\n    return w\ng(x)", False),  # another function
        ("x = 2\ndef f(z):\n    w = z - x\n    return w\nf(x)", False),
    ],
)
def test_new_names_of_variables_change_no_output(new, same):
    old = "x = 2\ndef f(z):\n    w = z + x\n    return w\nf(x)"
    assert build.same_but_for_names(old, new) == same
