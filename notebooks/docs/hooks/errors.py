"""Every error that the package raises on purpose, read out of its source."""

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "jaxcal"
ARGUMENT = re.compile(r"([A-Za-z_][\w.]*|'[\w ]+'|\{[^}]*\}): (.+)", re.DOTALL)
KINDS = {"ValueError", "TypeError", "AttributeError", "ImportError", "BadFile", "Unusable"}
SHARED = "of several arguments"  # or of files


def literal(node: ast.expr) -> str:
    """A string as it is written, values in braces as an ellipsis."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else "{}" for part in node.values
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return literal(node.left)
    return ""


def messages() -> dict[str, list[str]]:
    """Messages of errors by the argument that they name, each once."""
    by_argument: dict[str, set[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Raise) or not isinstance(node.exc, ast.Call):
                continue
            if getattr(node.exc.func, "id", "") not in KINDS or not node.exc.args:
                continue
            text = literal(node.exc.args[0])
            if match := ARGUMENT.match(text):
                name = SHARED if match[1].startswith("{") else match[1].strip("'")
                by_argument.setdefault(name, set()).add(match[2])
            elif text.strip("{} "):
                by_argument.setdefault(SHARED, set()).add(text)
    order = sorted(by_argument, key=lambda name: (name == SHARED, name.lower()))
    return {name: sorted(by_argument[name]) for name in order}


def page() -> str:
    """A section an argument, a line a message."""
    lines = []
    for name, texts in messages().items():
        lines.append(f"\n## {name} {{ #{re.sub(r'[^a-z0-9]+', '-', name.lower())} }}\n")
        lines += [f"- `` {' '.join(text.replace('{}', '…').split())} ``" for text in texts]
    return "\n".join(lines) + "\n"
