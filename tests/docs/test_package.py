"""What is shipped: the wheel, the source distribution, and the files around the package."""

import importlib
import re
import tarfile
import tomllib
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from api import PLACES
from conftest import pytest_collection_modifyitems
from hatchling.builders.sdist import SdistBuilder
from hatchling.builders.wheel import WheelBuilder

import jaxcal

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PYTHONS = ["3.11", "3.12", "3.13"]
LICENSES = ROOT / "jaxcal" / "data" / "LICENSES.md"


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The unpacked source distribution."""
    folder = tmp_path_factory.mktemp("sdist")
    (archive,) = SdistBuilder(str(ROOT)).build(directory=str(folder))
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return folder / f"jaxcal-{jaxcal.__version__}"


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """The wheel, as it is built from the source distribution: name of a file to its text."""
    folder = tmp_path_factory.mktemp("wheel")
    (archive,) = WheelBuilder(str(sdist)).build(directory=str(folder), versions=["standard"])
    with zipfile.ZipFile(archive) as file:
        return {name: file.read(name).decode() for name in file.namelist()}


def files(folder):
    """Files of a folder of the repository, without what running it leaves there."""
    left = {"__pycache__", ".ipynb_checkpoints", "quick"}
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(ROOT)) for path in paths if not left & set(path.parts)}


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    metadata = f"jaxcal-{jaxcal.__version__}.dist-info/"
    assert {name for name in wheel if not name.startswith(metadata)} == files(ROOT / "jaxcal")
    assert {"jaxcal/py.typed", "jaxcal/data/seattle_weather.csv"} <= set(wheel)
    assert wheel[f"{metadata}licenses/LICENSE"] == (ROOT / "LICENSE").read_text()
    assert wheel[f"{metadata}licenses/jaxcal/data/LICENSES.md"] == LICENSES.read_text()
    assert "jaxcal = jaxcal.__main__:main" in wheel[f"{metadata}entry_points.txt"]
    assert "Version: " + jaxcal.__version__ in wheel[f"{metadata}METADATA"]


def test_the_source_distribution_holds_what_its_tests_read(sdist):
    shipped = {str(path.relative_to(sdist)) for path in sdist.rglob("*") if path.is_file()}
    for folder in ("jaxcal", "tests", "notebooks", ".ci", ".github"):
        assert files(ROOT / folder) <= shipped
    assert {"pyproject.toml", "README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE"} <= shipped
    assert {"experiments/runner.py", "experiments/level/results.csv"} <= shipped
    assert not [name for name in shipped if name.startswith("experiments") and ".png" in name]


def test_files_of_data_from_elsewhere_have_a_named_licence(wheel):
    text = LICENSES.read_text()
    foreign = [ROOT / name for name in files(ROOT / "jaxcal" / "data") if name.endswith(".csv")]
    foreign += ROOT.glob("experiments/*/published*.csv")
    assert len(foreign) == 3
    for path in foreign:
        assert f"`{path.relative_to(ROOT)}`" in text


def test_names_of_0_1_are_public_or_in_the_table_of_moves():
    rows = re.findall(r"^\| (.+?) \| ", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    old = [set(re.findall(r"\w+", row)) for row in rows]  # words of each cell of the column "old"
    public = {place: importlib.import_module(place).__all__ for place in PLACES}
    names = (ROOT / "tests" / "names_0_1.txt").read_text().split()
    places = [full.rpartition(".")[::2] for full in names]
    gone = [(place, name) for place, name in places if name not in public.get(place, ())]
    words = {full: {full[0].rpartition(".")[2], full[1]} for full in gone}
    assert len(gone) > 100
    assert [full for full in gone if not any(words[full] <= cell for cell in old)] == []


def test_the_citation_has_this_version_and_the_five_papers():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert str(citation["version"]) == jaxcal.__version__
    assert citation["license"] == PROJECT["license"]
    papers = citation["references"]
    assert [len(paper["authors"]) for paper in papers] == [4, 3, 2, 2, 4]
    for paper in papers:  # where its method is in the library
        names = re.findall(r"[a-z_]+(?:\.[a-z_]+)*", paper["notes"])
        for name in names:
            value = jaxcal
            for part in name.removeprefix("jaxcal.").split("."):
                value = getattr(value, part)


def test_the_conda_recipe_asks_for_what_pyproject_asks_for():
    recipe = yaml.safe_load((ROOT / ".github" / "conda" / "recipe.yaml").read_text())
    assert recipe["context"]["version"] == jaxcal.__version__
    assert recipe["context"]["python_min"] == PROJECT["requires-python"].removeprefix(">=")
    python, *run = recipe["requirements"]["run"]
    assert python.startswith("python ")
    run = [line.replace("matplotlib-base", "matplotlib").replace(" ", "") for line in run]
    assert run == PROJECT["dependencies"]


def test_hosted_runs_cover_all_systems_with_the_local_command():
    claimed = re.findall(r"Python :: (3\.\d+)", "\n".join(PROJECT["classifiers"]))
    assert claimed == PYTHONS
    (job,) = workflow("ci.yml")["jobs"].values()
    assert job["strategy"]["matrix"] == {"os": ["ubuntu-latest", "macos-latest"], "python": PYTHONS}
    assert "bash .ci/run all" in [step.get("run") for step in job["steps"]]
    (newest,) = workflow("newest.yml")["jobs"].values()
    assert "bash .ci/optional all" in [step.get("run") for step in newest["steps"]]
    release = workflow("release.yml")
    assert release["jobs"]["publish"]["needs"] == "test"
    assert release["jobs"]["test"]["needs"] == "build"
    # the one job that may publish runs no code of the repository
    assert release["permissions"] == {"contents": "read"}
    publish = release["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert not [step for step in publish["steps"] if "run" in step or "checkout" in step["uses"]]


def workflow(name):
    return yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())


def test_every_test_of_the_run_has_its_packages():
    """Those with the marker `optional` run in .ci/optional; a missing package is an error."""
    run, optional = ((ROOT / ".ci" / name).read_text() for name in ("run", "optional"))
    assert 'bash .ci/optional test "$work/optional" "$part"' in run
    commands = re.findall(r"pytest -q(?:[^\n]|(?<=\\)\n)*", run + optional)
    assert len(commands) == 7
    assert [c for c in commands if not re.search("--no-missing-packages|--collect-only", c)] == []


class Item(str):
    """A test by its name, slow where that ends so."""

    nodeid = property(str)

    def get_closest_marker(self, name):
        return self.endswith(name)


def test_three_parts_of_slow_tests_are_all_of_them():
    """As conftest.py chooses; quick tests and those of notebooks are in each part."""
    names = [f"tests/unit/test_{k}_{kind}" for k in range(5) for kind in ("slow", "quick")]
    tests = [*map(Item, names), Item("tests/docs/test_notebooks.py::slow")]
    parts = [list(tests) for _ in range(3)]
    hook = SimpleNamespace(pytest_deselected=lambda items: None)
    for k, part in enumerate(parts):
        config = SimpleNamespace(hook=hook, getoption={"--part": f"{k}/3"}.get)
        pytest_collection_modifyitems(config, part)
    assert [len(part) for part in parts] == [8, 8, 7]
    assert [sum(test in part for part in parts) for test in tests] == [1, 3] * 5 + [3]


@pytest.mark.parametrize("name", ["run", "optional"])
def test_the_run_needs_no_option_of_gnu_tools_alone(name):
    """macOS has bash 3.2 and BSD tools."""
    text = (ROOT / ".ci" / name).read_text()
    gnu = r"xargs -r|readlink -f|sed -i|mapfile|declare -A|date -d|\$\{\w+[,^]"
    assert not re.findall(gnu, text)
