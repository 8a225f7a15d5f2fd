"""The examples on all pages run from top to bottom, each page in one namespace. Links have targets."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLE = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
ANCHOR = re.compile(r"\]\((?!https?:)([^)#\s]*\.md)?#([^)\s]+)")
TEST = re.compile(r'\]\((\S+) "(test_\w+)"\)')  # [test](file "name")
HOW_TOS = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs" / "how_to").glob("*.md"))
ALL_PAGES = sorted(str(page.relative_to(ROOT)) for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
PAGES = [name for name in ALL_PAGES if EXAMPLE.search((ROOT / name).read_text())]
OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def examples(page: Path) -> list[str]:
    """Return the fenced interactive sessions of a page."""
    return EXAMPLE.findall(page.read_text())


def test_readme_has_examples() -> None:
    assert examples(ROOT / "README.md")


def test_front_page_fits_a_phone() -> None:
    """Code blocks do not wrap, and tables are as wide as their columns: both would be scrolled sideways."""
    text = (ROOT / "README.md").read_text()
    blocks = re.findall(r"^```\w*\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert [line for block in blocks for line in block.splitlines() if len(line) > 48] == []
    assert [line for line in text.splitlines() if line.startswith("|") and line.count("|") > 3] == []
    assert [code for code in re.findall(r"`([^`\n]+)`", text) if max(map(len, code.split())) > 40] == []


@pytest.mark.parametrize("name", PAGES)
def test_page_examples_run(name: str) -> None:
    page = ROOT / name
    parser, report = doctest.DocTestParser(), []
    runner = doctest.DocTestRunner(optionflags=OPTIONS, verbose=False)
    source = "\n".join(examples(page))
    runner.run(parser.get_doctest(source, {}, page.name, str(page), 0), out=report.append)
    assert runner.summarize(verbose=False).attempted > 0
    assert not report, "".join(report)


@pytest.mark.parametrize("name", ALL_PAGES)
def test_page_links_have_targets(name: str) -> None:
    page = ROOT / name
    missing = [target for target in LINK.findall(page.read_text()) if not (page.parent / target).exists()]
    assert not missing


def anchors(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as the site and code hosts make them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\- ]", "", heading).strip().lower()) for heading in headings}


@pytest.mark.parametrize("name", ALL_PAGES)
def test_page_anchors_are_headings(name: str) -> None:
    page = ROOT / name
    targets = ANCHOR.findall(page.read_text())
    assert not [
        (file, anchor) for file, anchor in targets if anchor not in anchors(page.parent / file if file else page)
    ]


def test_index_of_how_tos_links_every_page() -> None:
    index = ROOT / "docs" / "how_to" / "index.md"
    linked = {str((index.parent / target).resolve().relative_to(ROOT)) for target in LINK.findall(index.read_text())}
    assert set(HOW_TOS) - {"docs/how_to/index.md"} <= linked


@pytest.mark.parametrize("name", ["docs/comparison.md", "docs/moving_from_rllib.md"])
def test_page_names_existing_tests(name: str) -> None:
    page = ROOT / name
    named = TEST.findall(page.read_text())
    assert named
    assert not [test for file, test in named if f"def {test}(" not in (page.parent / file).read_text()]
