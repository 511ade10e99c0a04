"""Pages that are made of what the repository holds: notebooks, studies, changelog, reference.

Pages link to files as they lie in the repository, so that links work there too; the build turns
them into links between pages.
"""

import base64
import json
import posixpath
import re
from pathlib import Path
from typing import Any

import errors
from public_names import CODE, PLACES, RETURNED, ROOT, with_links

NOTEBOOKS, STUDIES = ROOT / "notebooks", ROOT / "experiments"
REPOSITORY = {  # files of the repository that are pages, by their path there
    "CHANGELOG.md": "changelog.md",
    "README.md": "index.md",
    "jaxcal/results/warnings.md": "warnings.md",
    "experiments/README.md": "studies/index.md",
    "experiments": "studies/index.md",
    "notebooks/README.md": "notebooks/index.md",
    "notebooks": "notebooks/index.md",
    "jaxcal/data/LICENSES.md": "third_party.md",
}
OUTSIDE = "outside:"  # of the site: a file of the repository without a page
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)]*)?\))")
STUDY = re.compile(r"(?<!\[)`experiments/(\w+)/?`(?!\])")


def notebooks() -> list[str]:
    """Names of the executed notebooks."""
    return sorted(path.stem for path in NOTEBOOKS.glob("*.ipynb"))


def studies() -> list[str]:
    """Names of the studies that have a page."""
    return sorted(path.parent.name for path in STUDIES.glob("*/README.md"))


def notebook_page(name: str) -> tuple[str, dict[str, bytes]]:
    """A notebook as Markdown, with its figures by the names under which the page shows them."""
    figures: dict[str, bytes] = {}
    parts = []
    cells = json.loads((NOTEBOOKS / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    for cell in cells:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/png" in data:
                figure = f"{name}_{len(figures)}.png"
                figures[figure] = base64.b64decode("".join(data["image/png"]))
                parts.append(f"![Output of the cell above]({figure})")
            elif text := "".join(output.get("text", "") or data.get("text/plain", "")):
                parts.append(f"```text\n{text.rstrip()}\n```")
    return "\n\n".join(parts) + "\n", figures


def study_page(name: str) -> str:
    """The README of a study, with the command line where its files are."""
    text = (STUDIES / name / "README.md").read_text(encoding="utf-8")
    head, _, rest = text.partition("\n")
    return f"{head}\n\n*Files: `experiments/{name}/`.*\n{rest}"


def reference_page(place: str, names: list[str]) -> str:
    """Everything public of one place, from its docstrings; after a function what it returns."""
    module = f"::: {place}\n    options: {{ members: false, show_root_heading: false }}"
    entries = [part for name in names for part in (entry(name), *result_entries(name))]
    return "\n\n".join([f"# `{place}`", module, *entries]) + "\n"


def result_entries(name: str) -> list[str]:
    """What shows the classes that a function returns, one level below it."""
    return [
        f"::: {path}\n    options: {{ heading: {path.rpartition('.')[2]}, heading_level: 3 }}"
        for path in RETURNED.get(name, [])
    ]


def entry(name: str) -> str:
    """What makes mkdocstrings show a public name. Of a function that has the name of its module it
    would show the module, so that such a function is asked for by its full path."""
    place, _, last = name.rpartition(".")
    folder = ROOT / place.replace(".", "/")
    files = [folder / f"{last}.py"] if place != "jaxcal" else sorted(folder.glob(f"*/{last}.py"))
    for file in files:
        if file.exists() and f"\ndef {last}(" in file.read_text(encoding="utf-8"):
            path = ".".join(file.relative_to(ROOT).with_suffix("").parts)
            options = f"options: {{ heading: {name}, toc_label: {last} }}"
            return f"[](){{ #{name} }}\n\n::: {path}.{last}\n    {options}"
    return f"::: {name}"


def reference_index(places: dict[str, list[str]]) -> str:
    """All public names on one page."""
    rows = []
    for place, names in places.items():
        links = ", ".join(f"[`{name.removeprefix(place + '.')}`][{name}]" for name in names)
        rows.append(f"| [`{place}`]({place}.md) | {links} |")
    head = "# Reference\n\nEvery public name. Each has an example that the tests run.\n"
    return "\n".join([head, "| place | names |", "|---|---|", *rows]) + "\n"


def generated() -> dict[str, str | bytes]:
    """Every page and figure that is not written by hand, by its place on the site."""
    whole = {page: path for path, page in REPOSITORY.items() if path.endswith(".md")}
    pages: dict[str, str | bytes] = {
        page: (ROOT / path).read_text(encoding="utf-8") for page, path in whole.items()
    }
    for name in notebooks():
        page, figures = notebook_page(name)
        pages[f"notebooks/{name}.md"] = page
        pages |= {f"notebooks/{figure}": content for figure, content in figures.items()}
    for name in studies():
        pages[f"studies/{name}.md"] = study_page(name)
    pages["reference/index.md"] = reference_index(PLACES)
    for place, names in PLACES.items():
        pages[f"reference/{place}.md"] = reference_page(place, names)
    return pages


def site_path(path: str) -> str | None:
    """Where a file of the repository is on the site; None where it is not."""
    if path.startswith("notebooks/docs/"):
        return path.removeprefix("notebooks/docs/")
    if match := re.fullmatch(r"notebooks/(\w+)\.(?:ipynb|py)", path):
        return f"notebooks/{match[1]}.md"
    if match := re.fullmatch(r"experiments/(\w+)(?:/README\.md)?", path):
        return f"studies/{match[1]}.md" if match[1] in studies() else None
    if match := re.fullmatch(r"experiments/(\w+)/(\w+\.png)", path):
        return f"studies/{match[1]}_{match[2]}"
    return REPOSITORY.get(path)


def repository_path(page: str) -> str:
    """The file of the repository that a page of the site was made of."""
    for path, place in REPOSITORY.items():
        if place == page and path.endswith(".md"):
            return path
    if match := re.fullmatch(r"studies/(\w+)\.md", page):
        return f"experiments/{match[1]}/README.md"
    if match := re.fullmatch(r"notebooks/(\w+)\.md", page):
        return f"notebooks/{match[1]}.ipynb"
    return f"notebooks/docs/{page}"


def linked(markdown: str, page: str) -> str:
    """Links to files of the repository as links between pages; names of studies become links."""
    here = posixpath.dirname(repository_path(page))
    there = posixpath.dirname(page)

    def target(match: re.Match[str]) -> str:
        if re.match(r"\w+:", match[2]):
            return match[0]
        file = posixpath.normpath(posixpath.join(here, match[2]))
        place = site_path(file)
        if place is None:
            return f"]({OUTSIDE})" if (ROOT / file).exists() else match[0]
        return match[1] + posixpath.relpath(place, there) + match[3]

    def study(match: re.Match[str]) -> str:
        if match[1] not in studies() or page == f"studies/{match[1]}.md":
            return match[0]
        return f"[{match[0]}]({posixpath.relpath(f'studies/{match[1]}.md', there)})"

    parts = CODE.split(markdown)
    parts[::2] = [STUDY.sub(study, LINK.sub(target, part)) for part in parts[::2]]
    return re.sub(rf"\[([^]]*)\]\({OUTSIDE}\)", r"\1", "".join(parts))


def on_files(files: Any, config: Any) -> Any:
    """Add what is generated, and complete the navigation."""
    from mkdocs.structure.files import File

    for path, content in generated().items():
        files.append(File.generated(config, path, content=content))
    for name in studies():
        for figure in (STUDIES / name).glob("*.png"):
            place = f"studies/{name}_{figure.name}"
            files.append(File.generated(config, place, abs_src_path=str(figure)))
    config.nav = navigation(config.nav, {file.src_uri for file in files})
    return files


def navigation(entries: list[Any], pages: set[str]) -> list[Any]:
    """The navigation with its folders filled. The build warns of a page that is not there."""
    full: list[Any] = []
    for entry in entries:
        if isinstance(entry, str):
            full.append(entry)
            continue
        (title, content), *_ = entry.items()
        if isinstance(content, str) and content not in pages:
            inside = [p for p in pages if p.startswith(content) and p.endswith(".md")]
            inside.sort(key=lambda p: (not p.endswith("/index.md"), p.removesuffix(".md")))
            content = inside
        full.append({title: content if isinstance(content, str) else navigation(content, pages)})
    return full


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Turn links to files of the repository into links between pages."""
    if page.file.src_uri.startswith("reference/"):
        return markdown
    if page.file.src_uri == "errors.md":
        markdown = markdown.replace("<!-- messages -->", errors.page())
    return with_links(linked(markdown, page.file.src_uri))


def on_post_build(config: Any) -> None:
    """Every public name has its place in the reference, or the build fails."""
    from mkdocs.exceptions import PluginError

    for place, names in PLACES.items():
        page = Path(config.site_dir, "reference", place, "index.html").read_text(encoding="utf-8")
        missing = [name for name in names if f'id="{name}"' not in page]
        if missing:
            raise PluginError(f"the reference of {place} lacks {', '.join(missing)}")
