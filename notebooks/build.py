"""Executed notebooks from their sources: one command makes them, and one says whether they agree.

    python notebooks/build.py [NAME ...]            execute sources, write NAME.ipynb beside NAME.py
    python notebooks/build.py --text [NAME ...]     new words and names of variables, runs nothing
    python notebooks/build.py --check [NAME ...]    compare them without running; exit 1 where not

A source is a Python script in the percent format (``# %%`` starts a cell) that also runs as it is.
Making needs the extra ``notebooks``; comparing needs jupytext alone and takes seconds.
"""

import argparse
import ast
import re
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent
LARGEST = 500_000  # bytes of one executed notebook
SECONDS = 3600  # for one cell
# what a machine leaves in outputs: its folders, addresses in memory
TRACES = re.compile(r"(?<![\w.:/])/(?:home|root|tmp|usr|opt|work|Users)/\S+|\b0x[0-9a-f]{6,}\b")


def sources(names: Sequence[str] = ()) -> list[Path]:
    """The notebooks' sources, all or those named (``first_steps`` or a path to it)."""
    by_stem = {path.stem: path for path in sorted(FOLDER.glob("*.py")) if path.name != "build.py"}
    wanted = [Path(name).stem for name in names] or list(by_stem)
    if missing := [name for name in wanted if name not in by_stem]:
        raise SystemExit(f"no notebook {', '.join(missing)} here; there are {', '.join(by_stem)}")
    return [by_stem[name] for name in wanted]


def read(source: Path) -> Any:
    """A source as a notebook that was not run: cells with fixed names, and nothing of a machine."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of packages below jupytext
        import jupytext

        notebook = jupytext.read(source, fmt="py:percent")
    for k, cell in enumerate(notebook.cells):
        cell.id, cell.metadata = f"cell-{k:02d}", {}
        cell.source = cell.source.strip("\n")  # blank lines that a formatter puts around functions
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python", "file_extension": ".py"},
    }
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    return notebook


def execute(notebook: Any, folder: Path) -> Any:
    """Run all cells in a fresh process on the CPU, at the notebook's full size."""
    import os

    from nbclient import NotebookClient

    environment = {k: v for k, v in os.environ.items() if k not in ("JAXCAL_QUICK", "MPLBACKEND")}
    # tqdm asks for widgets, which a notebook that is only read does not need
    environment |= {"JAX_PLATFORMS": "cpu", "PYTHONWARNINGS": "ignore:IProgress not found"}
    client = NotebookClient(
        notebook,
        timeout=SECONDS,
        startup_timeout=SECONDS,
        kernel_name="python3",
        record_timing=False,
        extra_arguments=["--matplotlib=inline"],  # a figure at the end of a cell is shown
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env=environment)
    return notebook


def make(source: Path, *, text_only: bool = False) -> Path:
    """Write the notebook of one source, executed; `check` then says what is wrong with it.

    With ``text_only`` outputs are those of the notebook that is there, whose code must be the
    same but for names of variables.
    """
    import nbformat

    notebook = _with_old_outputs(source) if text_only else execute(read(source), source.parent)
    for cell in notebook.cells:
        cell.metadata = {}  # what the run noted about times
        for output in cell.get("outputs", ()):
            if "metadata" in output:
                output.metadata = {}
    text = nbformat.writes(notebook, version=nbformat.NO_CONVERT) + "\n"
    target = source.with_suffix(".ipynb")
    target.write_text(text, encoding="utf-8")
    return target


def _with_old_outputs(source: Path) -> Any:
    """The source as a notebook, with the outputs of the notebook beside it."""
    import nbformat

    result = nbformat.reads(source.with_suffix(".ipynb").read_text(encoding="utf-8"), as_version=4)
    notebook = read(source)
    old, new = ([c for c in nb.cells if c.cell_type == "code"] for nb in (result, notebook))
    if len(old) != len(new) or not same_but_for_names(
        *("\n".join(c.source for c in cells) for cells in (old, new))
    ):
        raise SystemExit(f"{source.name}: its code has changed, so it has to run")
    for ours, theirs in zip(new, old, strict=True):
        ours.outputs, ours.execution_count = theirs.outputs, theirs.execution_count
    return notebook


def same_but_for_names(old: str, new: str) -> bool:
    """Whether two programs differ in the names of their variables alone: they do the same."""
    trees = ast.parse(old), ast.parse(new)
    names = [_names(tree) for tree in trees]
    pairs = {(a.id, b.id) for a, b in zip(*names, strict=False)}
    one_to_one = len({a for a, _ in pairs}) == len({b for _, b in pairs}) == len(pairs)
    assigned = {name.id for name in names[0] if isinstance(name.ctx, ast.Store)}
    if not one_to_one or any(a != b and a not in assigned for a, b in pairs):
        return False
    for name in (*names[0], *names[1]):
        name.id = ""
    return ast.dump(trees[0]) == ast.dump(trees[1])


def _names(tree: ast.AST) -> list[ast.Name]:
    """All names; variables of a function are marked as its own."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for k, function in enumerate(functions):
        inside = [node for node in ast.walk(function) if isinstance(node, ast.Name)]
        variables = {name.id for name in inside if isinstance(name.ctx, ast.Store)}
        for name in inside:
            if name.id in variables and "@" not in name.id:
                name.id = f"{name.id}@{k}"
    return [node for node in ast.walk(tree) if isinstance(node, ast.Name)]


def check(source: Path) -> list[str]:
    """What is wrong with the executed notebook of one source; empty where nothing is."""
    import nbformat

    target = source.with_suffix(".ipynb")
    again = f"run python notebooks/build.py {source.stem}"
    if not target.exists():
        return [f"{target.name} is missing: {again}"]
    text = target.read_text(encoding="utf-8")
    result, wanted = nbformat.reads(text, as_version=4), read(source)
    faults = outputs_faults(result) + size_faults(text)
    if len(result.cells) != len(wanted.cells):
        faults.append(f"{len(result.cells)} cells, its source has {len(wanted.cells)}: {again}")
    for k, (ours, theirs) in enumerate(zip(result.cells, wanted.cells, strict=False)):
        if (ours.cell_type, ours.source) != (theirs.cell_type, theirs.source):
            first = theirs.source.partition("\n")[0]
            faults.append(f"cell {k} is not that of the source ({first!r}): {again}")
    return [f"{target.name}: {fault}" for fault in faults]


def outputs_faults(notebook: Any) -> list[str]:
    """Cells that did not run in order, errors, warnings, and traces of the machine."""
    faults = []
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for k, cell in enumerate(code, start=1):
        if cell.execution_count != k:
            faults.append(f"code cell {k} has the number {cell.execution_count}: not run in order")
        for output in cell.outputs:
            if output.output_type == "error":
                faults.append(f"code cell {k} raised {output.ename}: {output.evalue}")
            elif output.get("name") == "stderr":
                faults.append(f"code cell {k} wrote to stderr: {output.text.strip()!r}")
            words = "".join(map(str, (output.get("text", ""), text_of(output))))
            faults += [f"code cell {k} shows {t!r}" for t in sorted(set(TRACES.findall(words)))]
    return faults


def text_of(output: Any) -> str:
    """The words of an output; images are left out."""
    kinds = output.get("data", {})
    return " ".join(str(kinds[kind]) for kind in kinds if kind.startswith("text/"))


def size_faults(text: str) -> list[str]:
    size = len(text.encode())
    return [f"{size} bytes, more than {LARGEST}"] if size > LARGEST else []


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="notebooks; all by default")
    parser.add_argument("--check", action="store_true", help="compare without running")
    parser.add_argument("--text", action="store_true", help="keep outputs; names may change")
    chosen = parser.parse_args(arguments)
    paths = sources(chosen.names)
    if not chosen.check:
        for source in paths:
            target = make(source, text_only=chosen.text)
            print(f"{target.name}: {target.stat().st_size // 1000} kB", flush=True)
    faults = [fault for source in paths for fault in check(source)]
    if not chosen.names:
        stems = {path.stem for path in paths}
        for target in sorted(FOLDER.glob("*.ipynb")):
            if target.stem not in stems:
                faults.append(f"{target.name} has no source {target.stem}.py")
    print("\n".join(faults) or f"{len(paths)} notebooks agree with their sources")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main())
