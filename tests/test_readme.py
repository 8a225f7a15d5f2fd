"""The examples of the README and of the pages in docs run as they stand, top to bottom, each page in one namespace."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLE = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
TEST = re.compile(r'\]\((\S+) "(test_\w+)"\)')  # [test](file "name")
HOW_TOS = sorted(str(page.relative_to(ROOT)) for page in (ROOT / "docs" / "how_to").glob("*.md"))
PAGES = ["README.md", "docs/moving_from_rllib.md", "docs/moving_from_tianshou.md", *HOW_TOS]
OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def examples(page: Path) -> list[str]:
    """The fenced interactive sessions of a page."""
    return EXAMPLE.findall(page.read_text())


def test_the_readme_has_examples() -> None:
    assert len(examples(ROOT / "README.md")) >= 2


@pytest.mark.parametrize("name", PAGES)
def test_the_examples_of_a_page_run_and_print_what_they_say(name: str) -> None:
    page = ROOT / name
    parser, report = doctest.DocTestParser(), []
    runner = doctest.DocTestRunner(optionflags=OPTIONS, verbose=False)
    source = "\n".join(examples(page))
    runner.run(parser.get_doctest(source, {}, page.name, str(page), 0), out=report.append)
    assert runner.summarize(verbose=False).attempted > 0
    assert not report, "".join(report)


@pytest.mark.parametrize("name", [*PAGES, "ARCHITECTURE.md", "CHANGELOG.md", "docs/format.md"])
def test_every_link_of_a_page_leads_somewhere(name: str) -> None:
    page = ROOT / name
    missing = [target for target in LINK.findall(page.read_text()) if not (page.parent / target).exists()]
    assert not missing


def test_the_readme_links_every_how_to() -> None:
    assert set(HOW_TOS) <= set(LINK.findall((ROOT / "README.md").read_text()))


@pytest.mark.parametrize("name", ["README.md", "docs/moving_from_rllib.md"])
def test_every_test_that_a_page_names_is_there(name: str) -> None:
    page = ROOT / name
    named = TEST.findall(page.read_text())
    assert named
    assert not [test for file, test in named if f"def {test}(" not in (page.parent / file).read_text()]
