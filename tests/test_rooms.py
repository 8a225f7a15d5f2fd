"""Rooms: packages that can be absent, because what is above them imports them only when it uses them.

The rooms are taken away in processes of their own. What tests import is read from their source.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.code_rules import ROOT, parsed, sources

ROOMS = {
    "episodes.transport": set[str](),
    "episodes.converters": {  # RLlib's episodes are converted
        "episode_runners.rllib.configs",
        "episode_runners.rllib.conversion",
        "episode_runners.rllib.env_runners",
    },
    "episodes.inspect": {"connectors.notebook_cards", "episode_learners.run_summary"},  # pictures
    "episodes.command": {"episodes.__main__", "episode_learners.__main__"},  # commands
    "connectors.export": set[str](),
    "episode_runners.rllib": set[str](),
}
"""Packages that can be absent, each with the modules outside of it that cannot be imported then."""

TESTS = {  # folders and files of tests that may import a room when they are collected
    "tests/command": tuple(ROOMS),
    "tests/connectors/test_export": ("connectors.export",),
    "tests/connectors/test_traced_array": ("connectors.export",),
    "tests/converters": tuple(ROOMS),
    "tests/episodes/transport": ("episodes.transport",),
    "tests/inspection": ("episodes.inspect", "episodes.command"),
    "tests/learners/test_command_line": ("episodes.command",),
    "tests/learners/test_frames": ("episodes.command", "episodes.inspect"),
    "tests/learners/test_explain_update": ("episodes.inspect",),
    "tests/learners/test_learned_tracks": ("episodes.inspect",),
    "tests/learners/test_run_findings": ("episodes.inspect",),
    "tests/learners/test_stored_runs": ("episodes.command",),
    "tests/public_reports/test_files": ("episodes.converters",),
    "tests/rllib": ("episode_runners.rllib",),
    # Tables of all places where one rule holds
    "tests/contracts/test_ragged_contract": tuple(ROOMS),
    "tests/storage/test_places": tuple(ROOMS),
}

IMPORT_ALL_BUT = """
import sys, warnings
from importlib import import_module
from pathlib import Path

warnings.simplefilter("ignore")
rooms = sys.argv[1:]

def is_inside(name):
    return any(name == room or name.startswith(room + ".") for room in rooms)

class Absent:
    def find_spec(self, name, path=None, target=None):
        if is_inside(name):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
for package in ("episodes", "connectors", "episode_runners", "episode_learners"):
    for file in sorted(Path(package).rglob("*.py")):
        name = ".".join(file.with_suffix("").parts).removesuffix(".__init__")
        if not is_inside(name):
            try:
                import_module(name)
            except ModuleNotFoundError as error:
                if not is_inside(error.name):
                    raise
                print("fails", name)
"""
USE = """
import episodes
pack = episodes.EpisodePack.from_episodes([episodes.SingleAgentEpisode.from_arrays([0, 1], [0], [1.0])])
print("shown", pack._repr_html_(), pack[0]._repr_html_())
"""


def failing(*rooms: str) -> tuple[set[str], str]:
    """Return the modules that cannot be imported in a process without the rooms, and what the process prints last."""
    command = [sys.executable, "-c", IMPORT_ALL_BUT + USE, *rooms]
    process = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=600)
    assert process.returncode == 0, process.stderr
    lines = process.stdout.splitlines()
    return {line.removeprefix("fails ") for line in lines if line.startswith("fails ")}, lines[-1]


def test_all_rooms_can_be_absent() -> None:
    # Whatever fails without one room fails here too.
    expected = {module for modules in ROOMS.values() for module in modules if not _is_in(module, ROOMS)}
    assert failing(*ROOMS) == (expected, "shown None None")


@pytest.mark.slow
@pytest.mark.parametrize("room", ROOMS)
def test_room_can_be_absent(room: str) -> None:
    assert failing(room)[0] == ROOMS[room]


def test_tests_import_only_their_rooms() -> None:
    needing = {room: _needing(room) for room in ROOMS}
    tests = {test for found in needing.values() for test in found if test.rpartition("/")[2].startswith("test_")}
    wrong = {
        f"{test} imports {room}"
        for test in tests
        for room in ROOMS
        if test in needing[room] and not any(test.startswith(start) and room in TESTS[start] for start in TESTS)
    }
    assert not wrong, "import the room inside the tests that use it"
    assert all(any(test.startswith(start) for test in tests) for start in TESTS)


def _needing(room: str) -> set[str]:
    """Return the files of tests that cannot be imported without a room."""
    found, waiting = set[str](), {name for name in _importers() if _is_in(name, [room])}
    while waiting:
        name = waiting.pop()
        found.add(name)
        waiting |= _importers().get(name, set()) - found
    return {f"{name.replace('.', '/')}.py" for name in found if name.startswith("tests.")}


def _is_in(module: str, rooms: Iterable[str]) -> bool:
    return any(module == room or module.startswith(f"{room}.") for room in rooms)


@cache
def _importers() -> dict[str, set[str]]:
    """Return all modules that an import runs, and names that may be modules, each with the modules that import it."""
    found = defaultdict[str, set[str]](set)
    for file in [*sources(), *(ROOT / "tests").rglob("*.py")]:
        module = ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for name in (module.rpartition(".")[0], *_imports(file)):
            while name:  # an import of a.b.c imports a and a.b too
                found[name].add(module)
                name = name.rpartition(".")[0]
    return dict(found)


def _imports(file: Path) -> Iterator[str]:
    """Yield the modules, and names that may be modules, that a file imports when it is imported itself."""
    waiting: list[ast.AST] = [parsed(file)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            waiting += node.orelse
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        elif isinstance(node, ast.stmt | ast.Module | ast.ExceptHandler):
            waiting += ast.iter_child_nodes(node)
