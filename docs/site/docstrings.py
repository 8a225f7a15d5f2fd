"""A griffe extension for mkdocstrings: it fences the examples of docstrings and separates joint parameters."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import griffe

sys.path.insert(0, str(Path(__file__).parent))
from generate import with_references

JOINT_PARAMETERS = re.compile(r"^(\s+)(\w+(?:, \w+)+): (.*)$")
SECTION = re.compile(r"^(Args|Attributes|Raises|Yields|Returns):\s*$")


def prepared(text: str) -> str:
    """Return the docstring with `>>>` examples in fences and `a, b: text` as two parameters."""
    lines: list[str] = []
    in_example, section = False, ""
    for line in text.split("\n"):
        if line.startswith(">>>") and not in_example:
            if lines and lines[-1]:
                lines.append("")
            lines.append("```pycon")
            in_example, section = True, ""
        elif in_example and not line.strip():
            lines.append("```")
            in_example = False
        if not in_example and line and not line.startswith(" "):
            match = SECTION.match(line)
            section = match[1] if match else ""
        if section == "Args" and (match := JOINT_PARAMETERS.match(line)):
            indent, names, rest = match.groups()
            *first_names, last = names.split(", ")
            lines += [*(f"{indent}{other}: see `{last}`." for other in first_names), f"{indent}{last}: {rest}"]
        else:
            lines.append(line)
    return "\n".join([*lines, "```"] if in_example else lines)


class Docstrings(griffe.Extension):
    """Extension that rewrites every docstring after it is loaded."""

    def on_object(self, *, obj: Any, **kwargs: Any) -> None:
        if obj.docstring and not obj.is_alias:
            obj.docstring.value = with_references(prepared(obj.docstring.value))

    def on_function(self, *, func: Any, **kwargs: Any) -> None:
        if any("composite" in str(decorator.value) for decorator in func.decorators):
            del func.parameters["draw"]  # Hypothesis passes this argument
