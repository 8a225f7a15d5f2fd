"""The README's examples run as they stand, top to bottom, each page in one namespace."""

from __future__ import annotations

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXAMPLE = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?:|#)([^)#\s]+)")
TEST = re.compile(r'\]\((\S+) "(test_\w+)"\)')  # [test](file "name")
OPTIONS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS


def examples(page: Path) -> list[str]:
    """The fenced interactive sessions of a page."""
    return EXAMPLE.findall(page.read_text())


def test_the_readme_has_examples() -> None:
    assert len(examples(ROOT / "README.md")) >= 2


def test_the_examples_of_the_readme_run_and_print_what_they_say() -> None:
    page = ROOT / "README.md"
    parser, report = doctest.DocTestParser(), []
    runner = doctest.DocTestRunner(optionflags=OPTIONS, verbose=False)
    source = "\n".join(examples(page))
    runner.run(parser.get_doctest(source, {}, page.name, str(page), 0), out=report.append)
    assert runner.summarize(verbose=False).attempted > 0
    assert not report, "".join(report)


@pytest.mark.parametrize("page", ["README.md", "ARCHITECTURE.md", "CHANGELOG.md"])
def test_every_link_of_a_page_leads_somewhere(page: str) -> None:
    missing = [target for target in LINK.findall((ROOT / page).read_text()) if not (ROOT / target).exists()]
    assert not missing


def test_every_test_that_the_readme_names_is_there() -> None:
    named = TEST.findall((ROOT / "README.md").read_text())
    assert named
    assert not [name for file, name in named if f"def {name}(" not in (ROOT / file).read_text()]
