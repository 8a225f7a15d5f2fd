"""Facts about the source code that the rules in test_house.py check: public names and reads of private names."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGES = ("episodes", "connectors", "episode_runners", "episode_learners")
NAMED_TUPLE = frozenset({"_replace", "_fields", "_make", "_asdict"})  # public despite the underscore


def sources() -> list[Path]:
    """Return all Python files of the library."""
    return sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def nodes(file: Path, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
    """Yield the syntax nodes of a file that have one of the types `kinds`."""
    return (node for node in ast.walk(parsed(file)) if isinstance(node, kinds))


def public_packages() -> Iterator[str]:
    """Yield the dotted names of all packages."""
    for name in PACKAGES:
        yield name
        path = importlib.import_module(name).__path__
        yield from (module.name for module in pkgutil.walk_packages(path, f"{name}.") if module.ispkg)


def public_names() -> list[str]:
    """Return all names in `__all__` of all packages, as `package.Name`, sorted."""
    return sorted(
        f"{package}.{name}" for package in public_packages() for name in importlib.import_module(package).__all__
    )


def foreign_private_reads() -> list[str]:
    """Return the reads of `x._name`, where x is not self and the file defines no `_name`, as `file:line name`.

    `x.__dict__["_name"]`, `getattr(x, "_name")` and imports count as reads.
    """
    return [
        f"{file.relative_to(ROOT)}:{line} {name}"
        for file in sources()
        for line, name, is_own in _private_reads(file)
        if not is_own and name not in _defined_names(file)
    ]


def _private_reads(file: Path) -> Iterator[tuple[int, str, bool]]:
    """Yield line, name, and whether the object is self, cls or super(), of each read of a private name."""
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            yield node.lineno, node.attr, _is_own(node.value)
        elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
            key = node.slice.value if isinstance(node.slice, ast.Constant) else None
            if node.value.attr == "__dict__" and isinstance(key, str) and _is_private(key):
                yield node.lineno, key, _is_own(node.value.value)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "getattr":
            key = node.args[1].value if isinstance(node.args[1], ast.Constant) else None
            if isinstance(key, str) and _is_private(key):
                yield node.lineno, key, _is_own(node.args[0])
        elif isinstance(node, ast.ImportFrom | ast.Import):
            module = [] if isinstance(node, ast.Import) else (node.module or "").split(".")
            names = [part for alias in node.names for part in alias.name.split(".")]
            yield from ((node.lineno, name, False) for name in module + names if _is_private(name))


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in NAMED_TUPLE


def _is_own(owner: ast.expr) -> bool:
    called = owner.func if isinstance(owner, ast.Call) else owner
    return isinstance(called, ast.Name) and called.id in ("self", "cls", "super")


@cache
def _defined_names(file: Path) -> frozenset[str]:
    """Return the names of functions, classes, attributes of self, slots and variables that a file defines."""
    names: set[str] = set()
    for node in ast.walk(parsed(file)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and _is_own(node.value):
            names.add(node.attr)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            assigned = {target.id for target in targets if isinstance(target, ast.Name)}
            names |= assigned
            if "__slots__" in assigned and node.value is not None:
                names |= {str(part.value) for part in ast.walk(node.value) if isinstance(part, ast.Constant)}
    return frozenset(names)
