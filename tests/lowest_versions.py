"""Print the lowest versions that pyproject.toml declares, as requirements for pip: `make test-lowest` installs them.

Run `python -m tests.lowest_versions EXTRA ...` for the dependencies and some extras. Only the standard library is
used, since nothing is installed yet.
"""

from __future__ import annotations

import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PINNED = frozenset({"torch"})  # at the version of constraints.txt: old builds without CUDA are not on package indices
TOOLS = ("pytest", "psutil")  # of the tests, at the versions of constraints.txt
_REQUIREMENT = re.compile(r"([\w.-]+)(\[[\w,-]+\])?(?:>=([\w.]+))?")


def lowest_versions(extras: Iterable[str]) -> list[str]:
    """Return the dependencies of the project and of some extras, each as `name==version` with its lowest version. The
    tools of the tests are added.

    Raises:
        KeyError: pyproject.toml has no such extra.
        ValueError: a dependency has no lower bound.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    of_extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *(each for extra in extras for each in _with_extras(extra, of_extras))]
    return sorted({_lowest(requirement) for requirement in needed} | {_pinned(tool) for tool in TOOLS})


def _with_extras(extra: str, of_extras: dict[str, list[str]]) -> Iterator[str]:
    """Yield the requirements of an extra, and those of the project's other extras that it names."""
    for requirement in of_extras[extra]:
        if requirement.startswith("rl-episodes["):
            for named in requirement.removeprefix("rl-episodes[").rstrip("]").split(","):
                yield from _with_extras(named, of_extras)
        else:
            yield requirement


def _lowest(requirement: str) -> str:
    """Return `name==version` with the lower bound of a requirement."""
    match = _REQUIREMENT.fullmatch(requirement)
    if match is None or match[3] is None:
        raise ValueError(f"{requirement}: it has no lower bound; declare it as name>=version")
    if match[1] in PINNED:
        return _pinned(match[1])
    return f"{match[1]}{match[2] or ''}=={match[3]}"


def _pinned(name: str) -> str:
    """Return `name==version` with the version of constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return next(line for line in lines if line.startswith(f"{name}=="))


if __name__ == "__main__":
    print("\n".join(lowest_versions(sys.argv[1:])))
