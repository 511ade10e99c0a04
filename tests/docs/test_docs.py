"""The README and the documentation: links lead somewhere, examples run, nothing is missing."""

import json
import re
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path

import errors
import evidence
import jax
import pages
import pytest
from api import public
from optional import with_packages
from public_names import PLACES, full_name, with_links
from quick import quick_first

from jaxcal.__main__ import main

ROOT = Path(__file__).parents[2]
WRITTEN = sorted((ROOT / "notebooks/docs").glob("*.md"))
PAGES = {path.relative_to(ROOT).as_posix(): path for path in (ROOT / "README.md", *WRITTEN)}
LINK = re.compile(r"\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^( *)```python\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def prose(text):
    """A page without its code."""
    return re.sub(r"```.*?^```|`[^`\n]*`", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(path):
    """What a link may name after # on a page: ids given by hand, and those of headings."""
    text = path.read_text(encoding="utf-8")
    by_hand = set(re.findall(r"\{ ?#([\w-]+) ?\}", text))
    headings = re.findall(r"^#+ (.+?)(?: \{.*)?$", text, re.MULTILINE)
    return by_hand | {
        re.sub(r"[^\w\s-]", "", one).strip().lower().replace(" ", "-") for one in headings
    }


@pytest.mark.parametrize("name", PAGES)
def test_links_to_files_lead_somewhere(name):
    for target in LINK.findall(prose(PAGES[name].read_text(encoding="utf-8"))):
        if re.match(r"\w+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (PAGES[name].parent / file).resolve() if file else PAGES[name]
        # the source distribution has no figures of studies, which their plot.py draws again
        drawn = path.suffix == ".png" and (path.parent / "plot.py").exists()
        assert path.exists() or drawn, target
        assert not anchor or anchor in anchors(path), target


def test_the_reference_has_every_public_name():
    result = pages.generated()
    for name in public():
        place = name.rpartition(".")[0]
        assert pages.entry(name) in result[f"reference/{place}.md"], name
    assert sum(len(names) for names in PLACES.values()) == len(public())


def test_a_function_with_the_name_of_its_module_is_shown_itself():
    assert pages.entry("jaxcal.kccsd_test") == "::: jaxcal.kccsd_test"
    assert "::: jaxcal.ckce.compare.compare\n" in pages.entry("jaxcal.compare")


def test_results_follow_the_first_function_that_returns_them():
    page = pages.generated()["reference/jaxcal.dce.md"]
    entries = [line.removeprefix("::: ") for line in page.splitlines() if line.startswith(":::")]
    after = entries[entries.index("jaxcal.dce.lower_distance") + 1 :]
    assert after[0] == "jaxcal.dce.lower.LowerDistance"
    assert len(entries) == len(set(entries))
    assert full_name("LowerDistance", "jaxcal.dce") == "jaxcal.dce.lower.LowerDistance"


def test_every_notebook_and_study_has_a_page():
    result = pages.generated()
    assert {f"notebooks/{path.stem}.md" for path in (ROOT / "notebooks").glob("*.ipynb")} <= set(
        result
    )
    studies = {path.parent.name for path in (ROOT / "experiments").glob("*/README.md")}
    assert {f"studies/{name}.md" for name in studies} <= set(result)


@pytest.mark.parametrize("name", PAGES)
def test_tables_of_evidence_are_those_of_the_committed_results(name):
    text = PAGES[name].read_text(encoding="utf-8")
    assert evidence.filled(text) == text, "run python notebooks/docs/hooks/evidence.py"


def test_numbers_in_sentences_are_those_of_the_committed_results():
    near, cells = evidence.near_best()
    (level,) = [line for line in evidence.level().splitlines() if "KSD; `Wild`" in line]
    intervals = [line for line in evidence.intervals().splitlines() if "calibration error" in line]
    readme = PAGES["README.md"].read_text(encoding="utf-8")
    for text in (readme, PAGES["notebooks/docs/which_test.md"].read_text(encoding="utf-8")):
        assert f"{near} of {cells} cells" in text
    for line in (level, *intervals):
        assert re.findall(r"[.\d]+ to [.\d]+", line)[0] in readme, line


def test_changed_results_would_be_noticed():
    page = PAGES["notebooks/docs/validation.md"].read_text(encoding="utf-8")
    assert evidence.filled(page.replace(".032 to .066", ".032 to .065")) != page.replace(
        ".032 to .066", ".032 to .065"
    )
    assert evidence.duration(0.00024) == "240 µs"
    assert evidence.duration(6600) == "1.8 h"


def test_the_cost_model_is_near_what_was_measured():
    """The share of the product's rate cannot exceed b / (b + e), and large n comes near it."""
    numbers = evidence.measured("cost model")
    bound = evidence.DRAWS / (evidence.DRAWS + numbers[evidence.PRICE])
    rate = numbers["multiplications a second, product"]
    shares = [
        n**2 * evidence.DRAWS / 2 / numbers[f"seconds, n = {n}"] / rate for n in (1024, 4096, 8192)
    ]
    assert shares == sorted(shares)
    assert 0.6 * bound < shares[-1] < bound


def test_the_readme_is_short():
    assert len(PAGES["README.md"].read_text(encoding="utf-8").splitlines()) < 150


@pytest.mark.slow
def test_errors_are_listed_by_their_argument():
    listed = errors.messages()
    assert any("observations, got shape" in text for text in listed["targets"])
    assert list(listed)[-1] == errors.SHARED
    assert "## targets { #targets }" in errors.page()


def test_names_and_files_become_links():
    assert full_name("Wild", "jaxcal.nulls") == "jaxcal.nulls.Wild"
    assert (
        with_links("`kccsd_test` of `nothing`") == "[`kccsd_test`][jaxcal.kccsd_test] of `nothing`"
    )
    assert with_links("```\n`kccsd_test`\n```") == "```\n`kccsd_test`\n```"
    text = "see [one](../first_steps.ipynb), `experiments/level` and [more](../../CHANGELOG.md)"
    assert pages.linked(text, "which_test.md") == (
        "see [one](notebooks/first_steps.md), [`experiments/level`](studies/level.md) and "
        "[more](changelog.md)"
    )


def test_the_navigation_fills_folders_and_keeps_missing_pages():
    entries = ["index.md", {"More": ["there.md", "absent.md"]}, {"All": "notebooks/"}]
    there = {"index.md", "there.md", "notebooks/b.md", "notebooks/index.md", "notebooks/a.png"}
    assert pages.navigation(entries, there) == [
        "index.md",
        {"More": ["there.md", "absent.md"]},
        {"All": ["notebooks/index.md", "notebooks/b.md"]},
    ]


CODE_OR_TEXT = re.compile(r"^( *)```(python|text)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
NUMBER = re.compile(r"[-+]?\d*\.?\d+(?:e[-+]?\d+)?")
BLOCKS = {
    f"{path.stem}:{k}": textwrap.dedent(code)
    for path in PAGES.values()
    for k, (_, code) in enumerate(BLOCK.findall(path.read_text(encoding="utf-8")))
}
PRINTED = dict.fromkeys(BLOCKS, "")  # what pages say that their code prints
for path in PAGES.values():
    k = -1
    for _, kind, text in CODE_OR_TEXT.findall(path.read_text(encoding="utf-8")):
        if kind == "python":
            k += 1
        elif k >= 0:
            PRINTED[f"{path.stem}:{k}"] += textwrap.dedent(text)
# settings of a process, or threads that settings of this one do not reach
ALONE = re.compile(r"jax_num_cpu_devices|jax_enable_x64|sys.argv|dask")
OPTIONAL = re.compile(r"^(?:import|from) (torch|sbi|sklearn|arviz|dask|blackjax)\b", re.MULTILINE)


def packages(name):
    return OPTIONAL.findall(BLOCKS[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", with_packages(quick_first(BLOCKS, {"README:0"}), packages))
def test_an_example_runs_by_itself_as_users_run_it(name, tmp_path, monkeypatch, capsys):
    """In float32, with the promotion that JAX has by default; it prints what the page says."""
    code = BLOCKS[name]
    if "import pyarrow" in code:
        pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    if ALONE.search(code):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        printed = done.stdout
    else:
        x64, ranks = jax.enable_x64(False), jax.numpy_rank_promotion("allow")
        with x64, ranks, jax.numpy_dtype_promotion("standard"), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of other libraries
            exec(compile(code, name, "exec"), {"__name__": "__main__"})
        printed = capsys.readouterr().out
    if shown := PRINTED[name]:
        assert NUMBER.sub("", printed).split() == NUMBER.sub("", shown).split()
        numbers = [list(map(float, NUMBER.findall(text))) for text in (printed, shown)]
        assert numbers[0] == pytest.approx(numbers[1], rel=0.02, abs=0.002)


@pytest.mark.slow
def test_arrays_of_other_languages_are_tested_from_a_shell(tmp_path, monkeypatch, capsys):
    page = PAGES["notebooks/docs/other_libraries.md"].read_text(encoding="utf-8")
    (command,) = re.findall(r"^python -m jaxcal (check .*)$", page, re.MULTILINE)
    (code,) = [code for code in BLOCKS.values() if "np.savez" in code]
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    assert main(command.split()) == 0
    assert "verdict" in capsys.readouterr().out
    assert json.loads(Path("result.json").read_text())["verdict"] == "not rejected"
    assert "data:image/png" in Path("result.html").read_text()
