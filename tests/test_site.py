"""The sources of the documentation site. `make docs` builds the site itself."""

from __future__ import annotations

import re
from pathlib import Path

import episodes

ROOT = Path(__file__).parent.parent


def test_navigation_lists_every_page_once() -> None:
    listed = re.findall(r"[\w/]+\.md", (ROOT / "docs" / "site" / "mkdocs.yml").read_text())
    docs = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    notebooks = {f"notebooks/{path.stem}.md" for path in (ROOT / "notebooks").glob("[0-9]*.ipynb")}
    root_pages = {"index.md", "changelog.md", "architecture.md", "contributing.md"}
    assert sorted(listed) == sorted(docs | notebooks | root_pages | {"reference/index.md"})


def test_search_keeps_names_with_underscores_whole() -> None:
    settings = (ROOT / "docs" / "site" / "mkdocs.yml").read_text()
    separator = re.search(r"separator: '(.+)'", settings)
    assert separator is not None
    assert re.split(separator[1], "pack.get_observations(n_step=3)")[:2] == ["pack", "get_observations"]


def test_changelog_and_citation_have_the_version_of_the_package() -> None:
    assert f"\n## {episodes.__version__} " in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {episodes.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_root_pages_are_short() -> None:
    limits = {"README.md": 9_000, "ARCHITECTURE.md": 14_000, "CHANGELOG.md": 10_000}
    assert not [name for name, limit in limits.items() if (ROOT / name).stat().st_size > limit]
