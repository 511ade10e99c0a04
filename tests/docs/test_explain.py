"""Every warning ends in a name, and every name is explained: cause, consequence, what to do."""

import ast
import re
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import numpyro.distributions as dist
import pytest

import jaxcal
from jaxcal.__main__ import main
from jaxcal.results.notes import CODE, REASONS, TABLE, codes, counted, explanations, pointer
from jaxcal.sbi.suspicions import SENTENCES

PACKAGE = Path(jaxcal.__file__).parent
# functions of the package whose texts are warnings
SPEAK = re.compile(r"_sentences|findings|about_\w+|_why|too_few|_summarized")
INSIDE = {  # parts of sentences, which end in a name where they are put together
    "not a number for {}, which is left out of the others' ranking: ",
    "xs do: are thetas and xs swapped? If not, ",
}
SECTIONS = explanations()


def sentences():
    """The literal texts of all warnings, with where they stand; values in braces."""
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef) and SPEAK.fullmatch(function.name):
                body = function.body[1:] if ast.get_docstring(function) else function.body
                place = f"{path.relative_to(PACKAGE)}: {function.name}"
                yield from ((place, text) for text in texts(body))


def texts(node):
    """Strings below a node, an f-string as one, without those inside of its braces or of calls."""
    if isinstance(node, list):
        return [text for one in node for text in texts(one)]
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    if isinstance(node, ast.JoinedStr):
        parts = [p.value if isinstance(p, ast.Constant) else "{}" for p in node.values]
        return ["".join(map(str, parts))]
    if isinstance(node, ast.Call | ast.Compare | ast.Subscript):
        return []
    return [text for child in ast.iter_child_nodes(node) for text in texts(child)]


SAID = [(where, text) for where, text in sentences() if len(text) > 40]
SAID += [("notes.TABLE", f"{one.sentence} [{name}]") for name, one in TABLE.items()]
SAID += [("suspicions.SENTENCES", f"{text} [{name}]") for name, text in SENTENCES.items()]


@pytest.mark.parametrize("name", [name for name, one in TABLE.items() if "{}" in one.sentence])
def test_numbers_and_words_of_a_sentence_agree(name):
    """1 target lies, 2 targets lie; of what is named by a list, one or several."""
    sentence = TABLE[name].sentence
    for one, several in ((1, 2), (np.int64(1), np.int64(0)), ("3", "3, 4")):
        said, others = counted(sentence, one), counted(sentence, several)
        assert not re.search(r"[{}|]", said + others)
        assert not re.match(rf"{one} (\w+ )?\w+s (are|have|lie|repeat|that)\b", said)
        if sentence.startswith("{} "):
            assert said.split(" ", 1)[1] != others.split(" ", 1)[1]


def test_every_warning_ends_in_a_name():
    assert len(SAID) > 80
    assert [one for one in SAID if one[1] not in INSIDE and not CODE.search(one[1])] == []


def test_names_have_sections_and_sections_have_warnings():
    code = "\n".join(path.read_text(encoding="utf-8") for path in PACKAGE.rglob("*.py"))
    used = set(re.findall(r" \[([a-z][a-z-]{3,})\]\"", code))
    used |= set(TABLE) | set(SENTENCES)
    assert used == set(SECTIONS)
    assert set(codes(text for _, text in SAID)) <= used


def test_every_reason_of_a_test_has_its_line():
    page = (PACKAGE / "results/warnings.md").read_text(encoding="utf-8")
    tree = ast.parse((PACKAGE / "results/report.py").read_text(encoding="utf-8"))
    (function,) = [one for one in ast.walk(tree) if getattr(one, "name", "") == "no_verdict"]
    said = [text for text in texts(function.body[1:]) if len(text) > 20]
    reasons = [text.format(24).partition(" (")[0] for text in (*REASONS.values(), *said)]
    assert len(reasons) == 13
    assert [text for text in reasons if f"| {text} |" not in page] == []


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_says_cause_consequence_and_what_to_do(name):
    heads = [line.split(":")[0] for line in SECTIONS[name].splitlines() if line.startswith("- ")]
    assert heads == ["- Cause", "- Consequence", "- What to do"]


@pytest.mark.slow
def test_a_report_points_to_the_explanation_once():
    centers = jnp.linspace(-1.0, 1.0, 12)
    targets = (centers + 0.3).at[3].set(jnp.nan)
    result = jaxcal.kccsd_test(0, dist.Normal(centers, 1.0), targets)
    assert codes(result.warnings())[0] == "nonfinite-targets"
    listed = " ".join(codes(result.warnings()))
    assert str(result).splitlines()[-1] == f"  explained: python -m jaxcal explain {listed}"
    assert pointer(["no name at the end", "classes [0, 1]"]) == []


def test_the_command_line_explains(capsys):
    assert main(["explain", "repeated-rows", "[overflow]"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"repeated-rows\n{SECTIONS['repeated-rows']}\n\noverflow\n- Cause")
    assert main(["explain"]) == 0
    assert capsys.readouterr().out.count("- Cause: ") == len(SECTIONS)
    assert main(["explain", "rows"]) == 2
    assert "no warning has this name; there are nonfinite-targets" in capsys.readouterr().err
