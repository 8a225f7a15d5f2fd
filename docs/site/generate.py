"""Write the pages of the documentation site as plain Markdown to build/pages.

The pages come from docs/, from root files (README, ARCHITECTURE, CHANGELOG, CONTRIBUTING) and from the notebooks with
their stored outputs. Each public package has a reference page. The library is not imported: `ast` reads the names in
`__all__`, and griffe finds the objects. The exit status is 1 if a link has no target or a public name has no object.
"""

from __future__ import annotations

import ast
import base64
import json
import os
import posixpath
import re
import shutil
import sys
from pathlib import Path

import griffe

ROOT = Path(__file__).parents[2]
TARGET = ROOT / "build" / "pages"
PACKAGES = ("episodes", "connectors", "episode_runners", "episode_learners")
ROOT_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "ARCHITECTURE.md": "architecture.md",
    "CONTRIBUTING.md": "contributing.md",
}
# Weights of pages in the search, by folder. Pages that explain how to use the library come before decisions.
SEARCH_BOOSTS = {"concepts": 2, "how_to": 2, "decisions": 0.5}
# These functions take (*args, **options) and document the options by name.
LAX_PARAMETERS = {"episodes.testing.strategies.episodes"}

FENCE = re.compile(r"(^```.*?^```\s*?$)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?\[(?:[^\[\]]|\[[^\]]*\])*\])\(((?!https?:|mailto:|#)[^)#\s]+)(#[^)\s]*)?( \"[^\"]*\")?\)")
NAME = re.compile(r"(?<![\[`\w])`([A-Za-z_]\w*(?:\.\w+)*)(\([^`]*\))?`(?![\]`])")

LOADER = griffe.GriffeLoader(search_paths=[str(ROOT)])

problems: list[str] = []


def public_names() -> dict[str, list[str]]:
    """Return the names in `__all__` of each package that has any, by package."""
    names = {}
    for top in PACKAGES:
        for file in sorted((ROOT / top).rglob("__init__.py")):
            for node in ast.parse(file.read_text()).body:
                if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "__all__":
                    names[".".join(file.parent.relative_to(ROOT).parts)] = ast.literal_eval(node.value)
    return {package: listed for package, listed in names.items() if listed}


def canonical_paths() -> dict[str, str]:
    """Map each public path to the path under which its object is documented: the shortest one in the same package."""
    for top in PACKAGES:
        LOADER.load(top)
    LOADER.resolve_aliases(implicit=True)
    paths_of: dict[str, list[str]] = {}
    for package, names in public_names().items():
        for name in names:
            try:
                target = LOADER.modules_collection[f"{package}.{name}"].canonical_path
            except KeyError:
                problems.append(f"{package}.{name} is in __all__, but griffe does not find it")
            else:
                paths_of.setdefault(target, []).append(f"{package}.{name}")

    def order(path: str, start: str) -> tuple[bool, int, str]:
        return path.split(".")[0] != start.split(".")[0], path.count("."), path

    return {
        path: min(paths, key=lambda other: order(other, start)) for start, paths in paths_of.items() for path in paths
    }


CANONICAL = canonical_paths()
BY_NAME: dict[str, set[str]] = {}
for _path in CANONICAL.values():
    BY_NAME.setdefault(_path.rpartition(".")[2], set()).add(_path)


def with_references(text: str) -> str:
    """Return the text with public names in backticks, such as `EpisodePack`, as references to their entries."""

    def reference_to(match: re.Match[str]) -> str:
        name = match[1]
        targets = {CANONICAL[name]} if name in CANONICAL else BY_NAME.get(name, set())
        is_word = name.islower() and "_" not in name and "." not in name  # `gae` and `read` are also ordinary words
        return match[0] if len(targets) != 1 or is_word else f"[{match[0]}][{next(iter(targets))}]"

    def line(text: str) -> str:
        if text.startswith("#"):  # headings have no links
            return text
        parts = re.split(r"(\[[^\]]*\](?:\([^)]*\)|\[[^\]]*\]))", text)
        return "".join(part if part.startswith("[") else NAME.sub(reference_to, part) for part in parts)

    parts = FENCE.split(text)
    return "".join(p if p.startswith("```") else "\n".join(map(line, p.split("\n"))) for p in parts)


def with_links(text: str, uri: str, source: str, pages: set[str]) -> str:
    """Return the page with links between files of the repository turned into links between pages of the site.

    Args:
        text: the Markdown of the page.
        uri: the page's path in the site.
        source: the page's path in the repository.
        pages: all paths of the site.
    """
    forge, ref = os.environ.get("DOCS_REPO_URL", "").rstrip("/"), os.environ.get("DOCS_REF", "main")

    def link(match: re.Match[str]) -> str:
        words, target, anchor, title = match[1], match[2], match[3] or "", match[4] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        page = ROOT_PAGES.get(path) or path.removeprefix("docs/").replace(".ipynb", ".md")
        if page in pages:
            return f"{words}({posixpath.relpath(page, posixpath.dirname(uri) or '.')}{anchor}{title})"
        if not (ROOT / path).exists():
            problems.append(f"{source}: the link to {target} has no target")
        if forge:
            return f"{words}({forge}/blob/{ref}/{path}{anchor}{title})"
        inner = re.sub(r"`([^`]*)`", r"<code>\1</code>", words[1:-1])
        return f'<span class="source" title="{path}">{inner}</span>'

    return "".join(p if p.startswith("```") else LINK.sub(link, p) for p in FENCE.split(text))


def notebook_page(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return a notebook with its stored outputs as Markdown, and its pictures by file name."""
    text, pictures = [], {}
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            text.append(source)
            continue
        text.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "text/html" in data:
                body = re.sub(r"\n\s*\n", "\n", "".join(data["text/html"]))
                # The theme's styles do not reach into a shadow root.
                text.append(f'<div class="output"><template shadowrootmode="open">{body}</template></div>')
            elif "image/png" in data:
                name = f"{path.stem}_{len(pictures)}.png"
                pictures[name] = base64.b64decode("".join(data["image/png"]))
                text.append(f"![output of the cell above]({name})")
            else:
                printed = "".join(output.get("text") or data.get("text/plain", "") or output.get("evalue", ""))
                text.append(f"```text\n{printed.rstrip()}\n```" if printed.strip() else "")
    return "\n\n".join(text) + "\n", pictures


def is_class(path: str) -> bool:
    """Return whether a public path is that of a class."""
    package, _, name = path.rpartition(".")
    return LOADER.modules_collection[package][name].is_class


def reference_pages() -> dict[str, str]:
    """Return a page for each public package with its functions, a page for each class, and an index."""
    pages, rows = {}, []
    for package, names in public_names().items():
        local = [name for name in names if CANONICAL.get(f"{package}.{name}") == f"{package}.{name}"]
        others = [name for name in names if name not in local and f"{package}.{name}" in CANONICAL]
        doc = ast.get_docstring(ast.parse((ROOT / package.replace(".", "/") / "__init__.py").read_text())) or ""
        if not doc:
            problems.append(f"the public package {package} has no docstring")
        text = [f"# {package}\n\n{doc}\n"]
        if others:
            links = ", ".join(f"[`{name}`][{CANONICAL[f'{package}.{name}']}]" for name in others)
            text.append(f"Also available here: {links}.\n")
        classes = [name for name in local if is_class(f"{package}.{name}")]
        if classes:
            text.append("| class | what it is |\n|---|---|")
            text += [f"| [`{name}`]({package}/{name}.md) | {first_sentence(f'{package}.{name}')} |" for name in classes]
            text.append("")
        for name in classes:
            pages[f"reference/{package}/{name}.md"] = f"::: {package}.{name}\n    options: {{heading_level: 1}}\n"
        for path in (f"{package}.{name}" for name in local if name not in classes):
            lax = "\n    options:\n      docstring_options: {warn_unknown_params: false, warn_missing_types: false}"
            text.append(f"::: {path}{lax if path in LAX_PARAMETERS else ''}\n")
        pages[f"reference/{package}.md"] = "\n".join(text)
        rows.append(f"| [{package}]({package}.md) | {doc.splitlines()[0] if doc else ''} | {len(names)} |")
    total = sum(map(len, public_names().values()))
    pages["reference/index.md"] = (
        f"# Reference\n\nThe public API consists of the names in `__all__`: {total} names in {len(rows)} packages. "
        "A name that several packages export is documented under its shortest path.\n\n"
        "| package | contents | names |\n|---|---|---|\n" + "\n".join(rows) + "\n"
    )
    return pages


def first_sentence(path: str) -> str:
    """Return the first sentence of the docstring of a public object, without line breaks, for a cell of a table."""
    package, _, name = path.rpartition(".")
    docstring = LOADER.modules_collection[package][name].docstring
    first = docstring.value.strip().partition("\n\n")[0] if docstring else ""
    return re.split(r"(?<=[.:])\s", " ".join(first.split()))[0].rstrip(":.").replace("|", "\\|")


def navigation() -> str:
    """Return mkdocs.yml with the reference pages filled in."""
    text = (Path(__file__).parent / "mkdocs.yml").read_text()
    lines = []
    for package, names in public_names().items():
        lines += [f"      - {package}:", f"          - reference/{package}.md"]
        for name in names:
            if (path := f"{package}.{name}") == CANONICAL.get(path) and is_class(path):
                lines.append(f"          - {name}: reference/{package}/{name}.md")
    return text.replace("      # reference pages", "\n".join(lines))


def main() -> int:
    """Write all pages and the configuration of mkdocs, and return the exit status."""
    shutil.rmtree(TARGET, ignore_errors=True)
    shutil.copytree(ROOT / "docs", TARGET, ignore=shutil.ignore_patterns("site"))
    (TARGET / "assets").mkdir(exist_ok=True)
    shutil.copy(Path(__file__).parent / "site.css", TARGET / "assets" / "site.css")
    sources = {str(p.relative_to(TARGET)): f"docs/{p.relative_to(TARGET)}" for p in TARGET.rglob("*.md")}
    for file, uri in ROOT_PAGES.items():
        sources[uri] = file
        shutil.copy(ROOT / file, TARGET / uri)
    (TARGET / "notebooks").mkdir(exist_ok=True)
    for path in sorted((ROOT / "notebooks").glob("[0-9]*.ipynb")):
        text, pictures = notebook_page(path)
        (TARGET / "notebooks" / f"{path.stem}.md").write_text(text)
        sources[f"notebooks/{path.stem}.md"] = f"notebooks/{path.name}"
        for name, content in pictures.items():
            (TARGET / "notebooks" / name).write_bytes(content)
    pages = {str(p.relative_to(TARGET)) for p in TARGET.rglob("*") if p.is_file()}
    for uri, source in sources.items():
        page = TARGET / uri
        text = with_references(with_links(page.read_text(), uri, source, pages))
        page.write_text(f"---\nsearch:\n  boost: {SEARCH_BOOSTS.get(posixpath.dirname(uri), 1)}\n---\n\n{text}")
    (TARGET / "reference").mkdir(exist_ok=True)
    for uri, text in reference_pages().items():
        (TARGET / uri).parent.mkdir(exist_ok=True)
        (TARGET / uri).write_text(with_references(text))
    (ROOT / "build" / "mkdocs.yml").write_text(navigation())
    print(*problems, sep="\n", file=sys.stderr)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
