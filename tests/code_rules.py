"""Facts about the source code that the rules in test_house.py check: public names and reads of private names."""

from __future__ import annotations

import ast
import gc
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum
from functools import cache
from itertools import chain
from pathlib import Path
from types import FunctionType
from typing import Any

import gymnasium

ROOT = Path(__file__).parent.parent
PACKAGES = ("episodes", "connectors", "episode_runners", "episode_learners")
SPACE_CLASSES = frozenset(name for name in gymnasium.spaces.__all__ if name[0].isupper()) - {"Space"}
_DEFINING = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Attribute, ast.Assign, ast.AnnAssign)
NAMED_TUPLE = frozenset({"_replace", "_fields", "_make", "_asdict"})  # public despite the underscore


def sources() -> list[Path]:
    """Return all Python files of the library."""
    return sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))


@cache
def parsed(file: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    with _no_collection():
        return ast.parse(file.read_text())


@contextmanager
def _no_collection() -> Iterator[None]:
    """Turn the garbage collection off: it would visit all syntax trees again and again, for most of the time."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@cache
def _nodes_by_type(file: Path) -> dict[type[ast.AST], list[ast.AST]]:
    """Return all syntax nodes of a file by their type, in a quarter of the time of `ast.walk`."""
    found: dict[type[ast.AST], list[ast.AST]] = {}
    waiting: list[ast.AST] = [parsed(file)]
    with _no_collection():
        while waiting:
            node = waiting.pop()
            found.setdefault(type(node), []).append(node)
            for name in node._fields:
                value = getattr(node, name, None)
                if isinstance(value, list):
                    waiting += [part for part in value if isinstance(part, ast.AST)]
                elif isinstance(value, ast.AST):
                    waiting.append(value)
    return found


def nodes(file: Path, *kinds: type[ast.AST]) -> Iterator[ast.AST]:
    """Yield the syntax nodes of a file that have one of the types `kinds`."""
    by_type = _nodes_by_type(file)
    return chain.from_iterable(by_type.get(kind, ()) for kind in kinds)


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


def public_signatures() -> list[str]:
    """Return all public names with their arguments and defaults, and those of the public methods of classes."""
    lines = []
    for path in public_names():
        package, _, name = path.rpartition(".")
        value = getattr(importlib.import_module(package), name)
        lines.append(path + _arguments(value))
        if inspect.isclass(value):
            lines += [f"{path}.{method}{_arguments(function)}" for method, function in _own_methods(value)]
    return lines


def _own_methods(cls: type) -> list[tuple[str, Any]]:
    """Return the public methods, class methods and properties of a class that this library defines, by name."""
    own = [base for base in reversed(cls.__mro__) if base.__module__.partition(".")[0] in PACKAGES]
    found = {name: value for base in own for name, value in vars(base).items() if not name.startswith("_")}
    kinds = (FunctionType, classmethod, staticmethod, property)
    return sorted((name, value) for name, value in found.items() if isinstance(value, kinds))


def _arguments(value: Any) -> str:
    """Return the arguments of a function or constructor of this library, without annotations, or "" without any."""
    value = getattr(value, "__func__", value)
    if inspect.isclass(value):
        init = value.__init__ if "__init__" in {name for base in value.__mro__[:-1] for name in vars(base)} else None
        is_own = init is not None and (getattr(init, "__module__", None) or "").partition(".")[0] in PACKAGES
        value = init if is_own and not issubclass(value, (Enum, BaseException)) else None
    if not isinstance(value, FunctionType):
        return ""
    signature = inspect.signature(value)
    parameters = [
        parameter.replace(annotation=parameter.empty, default=_Shown.of(parameter.default))
        for parameter in signature.parameters.values()
    ]
    return str(inspect.Signature(parameters))


class _Shown:
    """Default of an argument, shown as plain values are written, and else as the name of its class."""

    def __init__(self, text: str) -> None:
        self.text = text

    @staticmethod
    def of(default: Any) -> Any:
        is_plain = default is None or type(default) in (bool, int, float, str, tuple, list, dict)
        if default is inspect.Parameter.empty or is_plain:
            return default
        return _Shown(getattr(default, "__name__", f"<{type(default).__name__}>"))

    def __repr__(self) -> str:
        return self.text


def share_of_any() -> float:
    """Return the share of the parameters of all functions that are typed `Any`, which tells a reader nothing.

    A union with `Any` and an alias of `Any` count too.
    """
    are_any = [
        is_any(parameter.annotation, file)  # type: ignore[attr-defined]
        for file in sources()
        for parameter in nodes(file, ast.arg)
        if parameter.annotation is not None  # type: ignore[attr-defined]
    ]
    return sum(are_any) / len(are_any)


def is_any(annotation: ast.expr | None, file: Path) -> bool:
    """Return True if an annotation in a file is `Any`, an alias of it, or a union that contains it."""
    match annotation:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return _means_any(name, file)
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return is_any(left, file) or is_any(right, file)
        case ast.Subscript(value=ast.Name(id="Optional" | "Union"), slice=ast.Tuple(elts=parts)):
            return any(is_any(part, file) for part in parts)
        case ast.Subscript(value=ast.Name(id="Optional"), slice=part):
            return is_any(part, file)
        case ast.Subscript(value=ast.Name(id="Annotated"), slice=ast.Tuple(elts=[part, *_])):
            return is_any(part, file)
        case ast.Constant(value=str(text)):
            return text.isidentifier() and _means_any(text, file)
    return False


@cache
def _means_any(name: str, file: Path) -> bool:
    """Return True if a name in a file is "Any", or an alias of it that is defined there or imported."""
    if name == "Any":
        return True
    for node in parsed(file).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            return is_any(node.value, file)  # type: ignore[attr-defined]
    module, original = _imports(file).get(name, ("", ""))
    path = ROOT / module.replace(".", "/")
    source = next((each for each in (path.with_suffix(".py"), path / "__init__.py") if each.exists()), None)
    return original == "Any" or (source is not None and _means_any(original, source))


@cache
def _imports(file: Path) -> dict[str, tuple[str, str]]:
    """Return the module, and the name there, of each name that a file imports by `from ... import`."""
    return {
        alias.asname or alias.name: (node.module or "", alias.name)  # type: ignore[attr-defined]
        for node in nodes(file, ast.ImportFrom)
        for alias in node.names  # type: ignore[attr-defined]
    }


def tests_of_space_classes() -> dict[str, list[int]]:
    """Return the lines that compare a value with a class of spaces of Gymnasium, by file.

    These are `isinstance`, `issubclass`, `is`, `==`, `in`, `case`, dictionaries by class, and assigned
    tuples of such classes. `Space` itself is no kind of space.
    """
    found: dict[str, list[int]] = {}
    for file in sources():
        names = _names_of_space_classes(file)
        for node in nodes(file, ast.Call, ast.Compare, ast.MatchClass, ast.Dict, ast.Assign):
            if any(_is_space_class(part, names) for part in _compared_classes(node)):
                found.setdefault(str(file.relative_to(ROOT)), []).append(node.lineno)  # type: ignore[attr-defined]
    return found


def _names_of_space_classes(file: Path) -> frozenset[str]:
    """Return the names by which a file refers to classes of spaces directly: `from gymnasium.spaces import Text`."""
    imports = (node for node in nodes(file, ast.ImportFrom) if (node.module or "").startswith("gymnasium.spaces"))  # type: ignore[attr-defined]
    return frozenset(alias.asname or alias.name for node in imports for alias in node.names)  # type: ignore[attr-defined]


def _compared_classes(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions in a node with which a value is compared, and the elements of tuples and unions of them."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "issubclass"):
        yield from (part for part in ast.walk(node.args[1]) if isinstance(part, ast.expr))
    elif isinstance(node, ast.Compare):
        yield from node.comparators
    elif isinstance(node, ast.MatchClass):
        yield node.cls
    elif isinstance(node, ast.Dict):
        yield from (key for key in node.keys if key is not None)
    elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple | ast.List | ast.Set):
        yield from node.value.elts


def _is_space_class(node: ast.expr, names: frozenset[str]) -> bool:
    if isinstance(node, ast.Attribute):
        owner = node.value
        is_module = isinstance(owner, ast.Name | ast.Attribute) and ast.unparse(owner) in ("spaces", "gym.spaces")
        return is_module and node.attr in SPACE_CLASSES
    return isinstance(node, ast.Name) and node.id in names & SPACE_CLASSES


def class_attributes() -> dict[str, frozenset[str]]:
    """Return the names that each class and its base classes in the library assign on `self`, by the class's name."""
    own: dict[str, set[str]] = {}
    bases: dict[str, list[str]] = {}
    for file in sources():
        for node in nodes(file, ast.ClassDef):
            stores = [part for part in ast.walk(node) if isinstance(part, ast.Attribute) and _is_stored(part)]
            own.setdefault(node.name, set()).update(part.attr for part in stores)  # type: ignore[attr-defined]
            bases[node.name] = [_last_name(base) for base in node.bases]  # type: ignore[attr-defined]

    def assigned(name: str) -> set[str]:
        return own.get(name, set()).union(*(assigned(base) for base in bases.get(name, []) if base != name))

    return {name: frozenset(assigned(name)) for name in own}


def _is_stored(node: ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Store) and isinstance(node.value, ast.Name) and node.value.id == "self"


def _last_name(node: ast.expr) -> str:
    """Return the last name of a base class: `Generic` of `typing.Generic[T]`."""
    node = node.value if isinstance(node, ast.Subscript) else node
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


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
    for node in nodes(file, ast.Attribute, ast.Subscript, ast.Call, ast.ImportFrom, ast.Import):
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
    for node in nodes(file, *_DEFINING):
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
