"""The rules of the house: what may import what, which names are public, and how long a function may get."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests import code_rules
from tests.code_rules import PACKAGES, ROOT

PUBLIC_API = ROOT / "tests" / "public_api.txt"
SOURCES = code_rules.sources()

MAX_SUBPACKAGES = 14  # directly in episodes/, for what an episode is and where it is kept
BESIDE = {"command", "converters", "inspect", "transport"}  # what is done with episodes, each a subject of its own
MAX_LAYERS = 9  # of all of them
MOST_BODY_LINES = 40
MOST_FILE_LINES = 400
MOST_NOUN_LINES = 600
NOUNS = {  # files that hold one class which says one thing, whole
    "episodes/single_agent/episode.py",
    "episodes/multi_agent/episode.py",
    "episodes/pack/pack.py",
    "episodes/replay/buffer.py",
    "episodes/replay/replay_recorder.py",
    "episodes/replay/ring/linked_ring.py",
    "episodes/recorder/vector_recorder.py",
    "episodes/storage/dataset.py",
    "episodes/transport/receiver.py",
    "episode_runners/single_agent.py",
    "episode_runners/multi_agent.py",
    "episode_runners/remote/group.py",
}

SINGLE_SUBCLASS_BASES = {  # bases with a single subclass that no package exports, and why they are there
    "TrackGetters": "the getters of an episode, documented together, beside a noun that is long without them",
    "MultiAgentGetters": "likewise for multi-agent episodes",
    "StoredBatch": "a record batch that is here; the other one is elsewhere, and its tracks come when they are read",
    "TypedColumn": "a column whose values are one array; those of a joined one become it when they are read",
}


def test_imports_point_down_only() -> None:
    # in a process of its own: import-linter configures logging, which closes the handlers of everybody else
    code = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True, no_logo=True))"
    linted = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert linted.returncode == 0, linted.stdout + linted.stderr


@pytest.mark.parametrize(
    "heavy",
    ["torch", "pandas", "ray", "pyarrow", "zmq", "matplotlib", "pettingzoo", "typer", "jinja2", "duckdb", "fsspec"],
)
def test_importing_episodes_loads_nothing_heavy(heavy: str, episodes_imports: frozenset[str]) -> None:
    assert heavy not in episodes_imports


@pytest.mark.parametrize("room", ["multi_agent", "recorder", "returns", "storage", "replay", "inspect", "converters"])
def test_importing_episodes_loads_no_room_before_it_is_asked_for(room: str, episodes_imports: frozenset[str]) -> None:
    assert f"episodes.{room}" not in episodes_imports


def test_what_is_imported_when_asked_for_is_there_as_if_it_had_been_imported() -> None:
    import episodes

    assert set(episodes.__all__) <= set(dir(episodes))
    assert episodes.VectorRecorder is importlib.import_module("episodes.recorder").VectorRecorder
    with pytest.raises(AttributeError, match="module 'episodes' has no attribute 'Episode'"):
        episodes.Episode  # type: ignore[attr-defined]  # noqa: B018


@pytest.fixture(scope="session")
def episodes_imports() -> frozenset[str]:
    """What a fresh interpreter has loaded after `import episodes`."""
    script = "import sys, episodes; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    return frozenset(found.stdout.split())


def test_the_public_names_are_those_of_the_checked_in_list() -> None:
    listed = PUBLIC_API.read_text().split()
    assert code_rules.public_names() == listed, "if this is meant: make api"


@pytest.mark.parametrize("name", code_rules.public_names())
def test_every_public_name_is_there_and_says_what_it_is(name: str) -> None:
    package, _, attribute = name.rpartition(".")
    value = getattr(importlib.import_module(package), attribute)
    if callable(value):
        assert value.__doc__
        assert value.__doc__.strip()


@pytest.mark.parametrize("package", sorted(code_rules.public_packages()))
def test_every_package_says_what_is_public(package: str) -> None:
    names = importlib.import_module(package).__all__
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_carries_its_types(package: str) -> None:
    assert (ROOT / package / "py.typed").exists()


def test_the_house_of_episodes_is_seen_at_a_glance() -> None:
    rooms = code_rules.rooms("episodes")
    assert rooms >= BESIDE
    assert len(rooms - BESIDE) <= MAX_SUBPACKAGES
    assert code_rules.num_floors("episodes") <= MAX_LAYERS


@pytest.mark.parametrize("package", PACKAGES)
def test_every_row_of_a_contract_names_rooms_that_are_there(package: str) -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    rows = next(contract["layers"] for contract in contracts if contract["id"] == package)
    named = {name.strip() for row in rows for name in row.split("|")} - {"__main__"}
    assert {name for name in named if not name.startswith("(")} <= code_rules.rooms(package)
    assert code_rules.rooms(package) <= {name.strip("()") for name in named}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_room_stands_in_the_picture_of_its_package(package: str) -> None:
    _, inside = (ROOT / "ARCHITECTURE.md").read_text().split(f"Inside `{package}`, from the top:")
    picture = inside.split("```")[1]
    assert code_rules.rooms(package) <= set(re.findall(r"\w+", picture))


def test_no_base_is_there_for_one_class_alone() -> None:
    assert code_rules.lonely_bases() <= set(SINGLE_SUBCLASS_BASES)


def test_no_module_reads_the_private_names_of_another() -> None:
    assert not code_rules.foreign_private_reads(SOURCES)


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_file_and_no_function_grows_a_tail(file: Path) -> None:
    is_noun = str(file.relative_to(ROOT)) in NOUNS
    assert len(file.read_text().splitlines()) <= (MOST_NOUN_LINES if is_noun else MOST_FILE_LINES)
    functions = code_rules.nodes(file, ast.FunctionDef, ast.AsyncFunctionDef)
    lengths = {function.name: code_rules.body_lines(function) for function in functions}
    assert not {name: lines for name, lines in lengths.items() if lines > MOST_BODY_LINES}


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_mistake_of_a_user_is_met_by_a_bare_assert(file: Path) -> None:
    assert not [node.lineno for node in code_rules.nodes(file, ast.Assert)]


if __name__ == "__main__":
    PUBLIC_API.write_text("\n".join(code_rules.public_names()) + "\n")
