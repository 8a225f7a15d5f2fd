"""The house in numbers: rooms and floors, bases of one class alone, reads of other modules' private names."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TypeVar

ROOT = Path(__file__).parent.parent
PACKAGES = ("episodes", "connectors", "episode_runners", "episode_learners")
NAMED_TUPLE = frozenset({"_replace", "_fields", "_make", "_asdict"})  # public, for all their underscores

Node = TypeVar("Node", bound=ast.AST)
Function = ast.FunctionDef | ast.AsyncFunctionDef


def sources(*packages: str) -> list[Path]:
    """Every Python file of the packages (all four by default)."""
    return sorted(file for package in packages or PACKAGES for file in (ROOT / package).rglob("*.py"))


@cache
def parsed(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def nodes(file: Path, *kinds: type[Node]) -> Iterator[Node]:
    """The nodes of some kinds, wherever they stand in the file."""
    return (node for node in ast.walk(parsed(file)) if isinstance(node, kinds))


def body_lines(function: Function) -> int:
    """Lines of a function without its signature and docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


# --- public names -----------------------------------------------------------------------------------------------------


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


# --- rooms and floors -------------------------------------------------------------------------------------------------


def room(package: str, file: Path) -> str:
    """What lies directly in the package: a folder, or a file without its suffix."""
    return file.relative_to(ROOT / package).parts[0].removesuffix(".py")


def rooms(package: str) -> set[str]:
    return {room(package, file) for file in sources(package)} - {"__init__", "__main__"}


def imported(file: Path) -> Iterator[str]:
    """Dotted names of the modules that a file imports, and of what it imports from them."""
    for node in nodes(file, ast.Import):
        yield from (alias.name for alias in node.names)
    for node in nodes(file, ast.ImportFrom):
        if node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def rooms_below(package: str) -> dict[str, set[str]]:
    """The rooms that each room imports."""
    below: dict[str, set[str]] = {name: set() for name in rooms(package)}
    for file in sources(package):
        inside = (name.split(".")[1] for name in imported(file) if name.startswith(f"{package}."))
        below.get(room(package, file), set()).update(set(inside) & set(below))
    return {name: others - {name} for name, others in below.items()}


def num_floors(package: str) -> int:
    """Rooms on the longest way down through imports."""
    below = rooms_below(package)

    @cache
    def floor(name: str) -> int:
        return 1 + max(map(floor, below[name]), default=0)

    return max(map(floor, below), default=0)


# --- bases ------------------------------------------------------------------------------------------------------------


def lonely_bases() -> set[str]:
    """Classes that exactly one other derives from, and that no package exports."""
    classes = [node for file in sources() for node in nodes(file, ast.ClassDef)]
    bases = Counter(ast.unparse(base).split("[")[0].split(".")[-1] for node in classes for base in node.bases)
    exported = {name.rpartition(".")[2] for name in public_names()}
    return {node.name for node in classes if bases[node.name] == 1} - exported


# --- private names ----------------------------------------------------------------------------------------------------


def foreign_private_reads(files: Iterable[Path]) -> Counter[tuple[str, str]]:
    """How often a file reads `x._name`, where x is not self and the file defines no `_name`: by file and name."""
    return Counter(
        (str(file.relative_to(ROOT)), node.attr)
        for file in files
        for node in nodes(file, ast.Attribute)
        if is_private(node.attr) and not is_own(node.value) and node.attr not in defined_names(file)
    )


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in NAMED_TUPLE


def is_own(owner: ast.expr) -> bool:
    """Whether an expression is self, cls or super()."""
    called = owner.func if isinstance(owner, ast.Call) else owner
    return isinstance(called, ast.Name) and called.id in ("self", "cls", "super")


@cache
def defined_names(file: Path) -> frozenset[str]:
    """Names of the functions, classes, attributes of self, slots and variables that a file defines."""
    names = {node.name for node in nodes(file, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)}
    for node in nodes(file, ast.Attribute):
        if isinstance(node.ctx, ast.Store) and is_own(node.value):
            names.add(node.attr)
    for node in nodes(file, ast.Assign, ast.AnnAssign):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        assigned = {target.id for target in targets if isinstance(target, ast.Name)}
        names |= assigned
        if "__slots__" in assigned and node.value is not None:
            names |= {str(part.value) for part in ast.walk(node.value) if isinstance(part, ast.Constant)}
    return frozenset(names)
