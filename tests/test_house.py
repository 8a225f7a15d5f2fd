"""Rules of the code: layers of imports, light imports, public names, reads of private names.

`python -m tests.test_house` writes the list of public names and their arguments, tests/public_api.txt.
"""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from tests import code_rules
from tests.code_rules import PACKAGES, ROOT

PUBLIC_API = ROOT / "tests" / "public_api.txt"
HEAVY = {"torch", "pandas", "ray", "pyarrow", "zmq", "matplotlib", "pettingzoo", "typer", "jinja2", "duckdb", "fsspec"}
MOST_ATTRIBUTES = 20  # of a class, with those of its base classes
LARGER = {
    "LinkedRing": 22,  # one update of its attributes replaces all contents, so that no interrupt leaves a part
}
# Packages of `episodes`.
LAZY = {"multi_agent", "recorder", "returns", "storage", "replay", "inspect", "converters", "tokens"}


def test_imports_follow_the_layers() -> None:
    # In a process of its own: import-linter configures logging and closes the handlers of other libraries.
    code = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True, no_logo=True))"
    linted = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert linted.returncode == 0, linted.stdout + linted.stderr


def test_import_of_episodes_is_light() -> None:
    script = "import sys, episodes; print(*sys.modules)"
    printed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT)
    modules = set(printed.stdout.split())
    assert not HEAVY & modules
    assert not {f"episodes.{name}" for name in LAZY} & modules


@pytest.mark.parametrize("package", ["episodes", "connectors", "connectors.learner", "episode_learners"])
def test_lazy_names_behave_like_imported_names(package: str) -> None:
    module = importlib.import_module(package)
    assert set(module.__all__) <= set(dir(module))
    for name in module.__all__:
        assert getattr(module, name) is vars(module)[name]
    assert importlib.import_module("episodes").replay is importlib.import_module("episodes.replay")
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Episode'"):
        module.Episode  # noqa: B018


def test_public_names_and_arguments_equal_the_list() -> None:
    assert code_rules.public_signatures() == PUBLIC_API.read_text().splitlines(), "if this is intended: make api"


def test_public_names_have_docstrings() -> None:
    for name in code_rules.public_names():
        package, _, attribute = name.rpartition(".")
        value = getattr(importlib.import_module(package), attribute)
        assert not callable(value) or (value.__doc__ or "").strip(), name


def test_public_objects_have_one_path() -> None:
    # RLlib's names for the same objects are aliases: they differ from the object's own name.
    paths: dict[int, list[str]] = {}
    for path in code_rules.public_names():
        package, _, name = path.rpartition(".")
        value = getattr(importlib.import_module(package), name)
        if getattr(value, "__name__", None) == name:
            paths.setdefault(id(value), []).append(path)
    assert not [group for group in paths.values() if len(group) > 1]


def test_public_packages_list_names_once_and_are_typed() -> None:
    for package in code_rules.public_packages():
        names = importlib.import_module(package).__all__
        assert len(set(names)) == len(names), package
    assert all((ROOT / package / "py.typed").exists() for package in PACKAGES)


def test_modules_read_no_private_names_of_others() -> None:
    assert not code_rules.foreign_private_reads()


def test_classes_of_spaces_are_tested_in_the_table_alone() -> None:
    assert not code_rules.tests_of_space_classes(), "ask episodes/tracks/space_kinds.py"


def test_classes_have_few_attributes() -> None:
    counts = {name: len(attributes) for name, attributes in code_rules.class_attributes().items()}
    larger = {name: count for name, count in counts.items() if count > MOST_ATTRIBUTES}
    assert larger == LARGER, (
        "give what belongs together to a part with a name of its own; a smaller one leaves the list"
    )


def test_few_parameters_have_any_type() -> None:
    assert code_rules.share_of_any() < 0.06, "name the type of what comes, or take any `object`"


def test_rule_on_any_sees_unions_and_aliases(tmp_path: Path) -> None:
    file = tmp_path / "functions.py"
    file.write_text(
        "from typing import Annotated, Any, Any as Anything, Optional, Union\n"
        "Rows = Any | None\nNested = Annotated[Any, 1]\nNames = dict[str, Any]\n"
        "def yes(a: Any, b: Any | None, c: Anything, d: Rows, e: Nested, f: Optional[Any], g: Union[int, Any], "
        "h: 'Any', i: typing.Any): ...\n"
        "def no(a: int, b: Names, c: list[Any], d: 'Names', e: Optional[int], f: object): ...\n"
    )
    found = {
        node.name: [code_rules.is_any(each.annotation, file) for each in node.args.args]  # type: ignore[attr-defined]
        for node in code_rules.nodes(file, ast.FunctionDef)
    }
    assert found == {"yes": [True] * 9, "no": [False] * 6}


def test_library_has_no_assert_statements() -> None:
    # python -O removes them, and a user's mistake deserves an error with a message.
    assert not [
        f"{file.relative_to(ROOT)}:{node.lineno}"
        for file in code_rules.sources()
        for node in code_rules.nodes(file, ast.Assert)
        if isinstance(node, ast.Assert)
    ]


if __name__ == "__main__":
    PUBLIC_API.write_text("\n".join(code_rules.public_signatures()) + "\n")
