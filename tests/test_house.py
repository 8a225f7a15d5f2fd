"""The rules of the house: what may import what, which names are public, and how long a function may get."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

ROOT = Path(__file__).parent.parent
PACKAGES = ("episodes", "connectors", "runners", "learners")
SOURCES = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
PUBLIC_API = ROOT / "tests" / "public_api.txt"

MOST_FILE_LINES = 400
MOST_BODY_LINES = 40


def public_packages() -> Iterator[str]:
    """Names of the packages and of all packages inside them."""
    for name in PACKAGES:
        yield name
        path = importlib.import_module(name).__path__
        yield from (module.name for module in pkgutil.walk_packages(path, f"{name}.") if module.ispkg)


def public_names() -> list[str]:
    """Everything a user may import from a package, as `package.Name`."""
    return sorted(
        f"{package}.{name}" for package in public_packages() for name in importlib.import_module(package).__all__
    )


def functions(file: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of a file."""
    nodes = ast.walk(ast.parse(file.read_text()))
    return (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def body_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Lines of a function without its signature and docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


def test_imports_point_down_only(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    broken = lint_imports(config_filename="pyproject.toml", no_cache=True, no_logo=True)
    assert not broken, capsys.readouterr().out


@pytest.mark.parametrize("heavy", ["torch", "ray", "pyarrow", "zmq", "matplotlib", "pettingzoo"])
def test_importing_episodes_loads_nothing_heavy(heavy: str, episodes_imports: frozenset[str]) -> None:
    assert heavy not in episodes_imports


@pytest.fixture(scope="session")
def episodes_imports() -> frozenset[str]:
    """What a fresh interpreter has loaded after `import episodes`."""
    script = "import sys, episodes; print(*sys.modules)"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    return frozenset(found.stdout.split())


def test_the_public_names_are_those_of_the_checked_in_list() -> None:
    listed = PUBLIC_API.read_text().split()
    assert public_names() == listed, "if this is meant: make api"


@pytest.mark.parametrize("name", public_names())
def test_every_public_name_is_there_and_says_what_it_is(name: str) -> None:
    package, _, attribute = name.rpartition(".")
    value = getattr(importlib.import_module(package), attribute)
    if callable(value):
        assert value.__doc__
        assert value.__doc__.strip()


@pytest.mark.parametrize("package", sorted(public_packages()))
def test_every_package_says_what_is_public(package: str) -> None:
    names = importlib.import_module(package).__all__
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_package_carries_its_types(package: str) -> None:
    assert (ROOT / package / "py.typed").exists()


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_file_and_no_function_grows_a_tail(file: Path) -> None:
    assert len(file.read_text().splitlines()) <= MOST_FILE_LINES
    long = [f"{f.name}: {body_lines(f)} lines" for f in functions(file) if body_lines(f) > MOST_BODY_LINES]
    assert not long


@pytest.mark.parametrize("file", SOURCES, ids=lambda file: str(file.relative_to(ROOT)))
def test_no_mistake_of_a_user_is_met_by_a_bare_assert(file: Path) -> None:
    bare = [node.lineno for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Assert)]
    assert not bare


if __name__ == "__main__":
    PUBLIC_API.write_text("\n".join(public_names()) + "\n")
