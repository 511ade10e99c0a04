"""The shape of the package: one-way imports, a light start, docstrings, no global side effects."""

import ast
import inspect
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import jax
import pytest

import jaxcal

PACKAGE = Path(jaxcal.__file__).parent
MODULES = {path: ast.parse(path.read_text()) for path in sorted(PACKAGE.rglob("*.py"))}

# from the words every stage shares to the command line; a module may import itself and what is
# to its left
ORDER = ["typing", "numerics", "results", "read", "kernels", "divergences"]
ORDER += ["statistics", "engine", "nulls", "whitening", "moments", "fit"]
ORDER += ["stein", "entries", "mcmc", "skce"]
ORDER += ["ucme", "coverage"]
ORDER += ["candidates", "measures"]
ORDER += ["ckce", "squared_ce", "dce", "repairing", "plots", "sbi"]
ORDER += ["streaming", "checking", "commands"]
ORDER += ["__init__", "__main__"]
HEAVY = {"numpyro", "optax", "matplotlib", "torch", "scipy", "sbi", "arviz", "pandas"}
DEMO = {"commands/demo.py"}
MAY_BE_HEAVY = {"plots", *DEMO}  # reached through functions that import them


def stage(path):
    return path.relative_to(PACKAGE).with_suffix("").parts[0]


def name(path):
    return str(path.relative_to(PACKAGE))


def imported_stages(tree):
    """The parts of jaxcal that a module names, whatever the form of the import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                parts = alias.name.split(".")
                if parts[0] == "jaxcal":
                    yield parts[1] if len(parts) > 1 else "__init__"
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            parts = (node.module or "").split(".")
            if parts[0] != "jaxcal":
                continue
            if len(parts) > 1:
                yield parts[1]
            else:
                yield from (a.name if a.name in ORDER else "__init__" for a in node.names)


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("import jaxcal.nulls", ["nulls"]),
        ("from jaxcal import nulls, kccsd_test", ["nulls", "__init__"]),
        ("from jaxcal.kernels.points import gram", ["kernels"]),
        ("def f():\n    import jaxcal", ["__init__"]),
        ("import jax\nfrom jax import numpy", []),
    ],
)
def test_the_reader_of_imports_reads_every_form(source, wanted):
    assert list(imported_stages(ast.parse(source))) == wanted


def test_imports_follow_the_data_flow():
    homeless = {stage(path) for path in MODULES} - set(ORDER)
    assert not homeless, "say in ORDER where they belong"
    backwards = [
        f"{name(path)} imports {there}"
        for path, tree in MODULES.items()
        for there in imported_stages(tree)
        if ORDER.index(there) > ORDER.index(stage(path))
    ]
    assert not backwards


def at_module_level(tree):
    """Import statements outside of functions, those for type checkers alone among them."""
    todo = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        todo.extend(child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt))


def imported_modules(path, modules):
    """The modules of jaxcal that one imports, also for type checkers alone."""
    imported = set()
    for node in at_module_level(MODULES[path]):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif (node.module or "").startswith("jaxcal"):
            whole = {f"{node.module}.{alias.name}" for alias in node.names}
            imported |= whole & set(modules) or {node.module}
    return imported & set(modules) - {"jaxcal", modules_name(path)}


def modules_name(path):
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts).removesuffix(".__init__")


def test_no_modules_import_each_other():
    names = {modules_name(path): path for path in MODULES if path != PACKAGE / "__init__.py"}
    left = {module: imported_modules(path, names) for module, path in names.items()}
    while ready := {module for module, imported in left.items() if not imported & set(left)}:
        left = {module: imported for module, imported in left.items() if module not in ready}
    assert not left


def test_subpackages_and_modules_of_the_top_level_stay_few():
    top = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    top |= {path.name for path in PACKAGE.glob("*.py")} - {"__init__.py", "__main__.py"}
    assert len(top) <= 29


def test_the_top_level_has_few_layers_of_imports():
    left = {part: set() for part in map(stage, MODULES) if part != "__init__"}
    for path, tree in MODULES.items():
        if path != PACKAGE / "__init__.py":
            left[stage(path)] |= set(imported_stages(tree)) - {stage(path), "__init__"}
    layers = 0
    while ready := {part for part, imported in left.items() if not imported & set(left)}:
        left = {part: imported for part, imported in left.items() if part not in ready}
        layers += 1
    assert not left
    assert layers <= 13


def at_import(tree):
    """Imports that run when the module is imported: those outside of functions."""
    todo = list(tree.body)
    while todo:
        node = todo.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            todo.extend(node.orelse)  # the rest is read by type checkers alone
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield (node.module or "").split(".")[0]
        todo.extend(child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt))


def test_heavy_libraries_are_imported_where_they_are_used():
    heavy = {
        name(path): HEAVY & set(at_import(tree))
        for path, tree in MODULES.items()
        if not {stage(path), name(path)} & MAY_BE_HEAVY
    }
    assert not {where: libraries for where, libraries in heavy.items() if libraries}


@pytest.mark.slow
def test_a_fresh_import_is_light_and_changes_nothing():
    code = """
        import json, sys
        import jaxcal, jaxcal.__main__
        early = "jax" in sys.modules
        import jax
        before = dict(jax.config.values)
        jaxcal.kccsd_test
        changed = [k for k, v in jax.config.values.items() if k in before and before[k] != v]
        print(json.dumps([sorted(sys.modules), changed, early]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True
    )
    loaded, changed, early = json.loads(done.stdout)
    assert not early  # so that the command line can be interrupted, and say where programs are kept
    assert "jaxcal.stein.calibration" in loaded
    assert not {"numpyro", "optax", "matplotlib", "torch"} & set(loaded)
    assert "jaxcal.commands.demo" not in loaded
    assert changed == []


@pytest.mark.slow
def test_imports_leave_the_choice_of_devices_open():
    code = """
        import importlib, pkgutil
        import jax, jaxcal
        for module in pkgutil.walk_packages(jaxcal.__path__, "jaxcal."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
        jax.config.update("jax_num_cpu_devices", 3)  # an error once a backend runs
        print(jax.device_count())
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    settings = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    done = subprocess.run(command, capture_output=True, text=True, env=settings, check=False)
    assert done.stdout.split() == ["3"], done.stderr


DERIVATIVES = {"grad", "value_and_grad", "vjp", "jvp", "jacfwd", "jacrev", "hessian", "linearize"}
# scores of densities; kernels and their profiles; the engine's own backward pass; an equation
DIFFERENTIATE = {
    "kernels/bandwidths.py",
    "read/scores.py",
    "statistics/stein.py",
    "divergences/fisher.py",
    "engine/__init__.py",
    "moments/stein.py",
    "entries/calibration.py",
    "repairing/fit.py",
}


def test_only_scores_differentiates_a_density():
    differentiating, differentiating_densities = set(), set()
    for path, tree in MODULES.items():
        attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
        derivatives = {node.attr for node in attributes if ast.unparse(node.value) == "jax"}
        if not derivatives & DERIVATIVES or name(path) in DEMO:  # which trains its models
            continue
        differentiating.add(name(path))
        if {node.attr for node in attributes} & {"log_prob", "log_density"}:
            differentiating_densities.add(name(path))
    assert differentiating <= DIFFERENTIATE
    assert differentiating_densities <= {"read/scores.py"}


def test_public_names_have_docstrings():
    undocumented = [name(path) for path, tree in MODULES.items() if not ast.get_docstring(tree)]
    undocumented += [
        f"{name(path)}: {node.name}"
        for path, tree in MODULES.items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
        if not ast.get_docstring(node)
    ]
    undocumented += [
        public for public in jaxcal.__all__ if not inspect.getdoc(getattr(jaxcal, public))
    ]
    assert not undocumented


def test_no_module_sets_global_configuration():
    assert not [
        f"{name(path)}, line {node.lineno}: {ast.unparse(node.func)}"
        for path, tree in MODULES.items()
        if name(path) not in {"__main__.py", *DEMO}
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("config.update")
    ]


def test_modules_hold_one_idea():
    lines = {name(path): len(path.read_text().splitlines()) for path in MODULES}
    assert not {where: count for where, count in lines.items() if count > 400}


def test_tests_run_in_float64():
    assert jax.config.read("jax_enable_x64")


def test_child_processes_share_the_folder_of_compiled_programs():
    assert jax.config.jax_compilation_cache_dir == os.environ["JAX_COMPILATION_CACHE_DIR"]
