"""Names of tests: short enough to read in a report, and one test per name."""

import ast
from pathlib import Path

TESTS = Path(__file__).parents[1]
LONGEST = 60


def names_in(source):
    """Names of the tests that `source` defines."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef):
            prefix = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
            for function in node.body:
                is_function = isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
                if is_function and function.name.startswith("test_"):
                    yield prefix + function.name


def problems(source):
    """Names over the limit, and names that a second definition hides."""
    names = list(names_in(source))
    long = [name for name in names if len(name.rpartition(".")[2]) > LONGEST]
    return long, sorted({name for name in names if names.count(name) > 1})


def test_names_of_tests_are_short_and_stand_once_in_a_file():
    files = sorted(TESTS.rglob("test_*.py"))
    assert len(files) > 100
    wrong = {file.name: names for file in files if any(names := problems(file.read_text("utf-8")))}
    assert wrong == {}


def test_long_and_repeated_names_are_found():
    long = "test_" + "a" * (LONGEST - 4)
    source = f"def {long}(): ...\ndef test_a(): ...\ndef test_b(): ...\ndef test_a(): ...\n"
    assert problems(source) == ([long], ["test_a"])
    assert problems("def test_a(): ...\nclass TestA:\n    def test_a(self): ...\n") == ([], [])
