"""What a track holds: its name, and whether it has an item for each observation or for each step."""

from __future__ import annotations

from typing import Any

from episodes.errors import WrongType
from episodes.tracks import nested

EXTRA = "extra_model_outputs"


class Field:
    """The name and the kind of a track. There is one object of each, made by `field_of`: compare with `is`.

    Attributes:
        name: in `Tracks`, or in its `extra`.
        more: 1 for observed tracks (L + T + 1 items), 0 for stepped ones (L + T).
        holds: "arrays" or "infos".
        is_extra: True for an extra model output, whose name is the user's.
        label: the name as error messages say it.
        path: the name as the first parts of the paths of its arrays.
    """

    __slots__ = ("holds", "is_extra", "label", "more", "name", "path")

    def __init__(self, name: str, more: int, holds: str, is_extra: bool) -> None:
        self.name, self.more, self.holds, self.is_extra = name, more, holds, is_extra
        self.label = f"{EXTRA}[{name!r}]" if is_extra else name
        self.path = f"{EXTRA}/{nested.escape(name)}" if is_extra else name

    def __repr__(self) -> str:
        return f"Field({self.label})"

    def __reduce__(self) -> Any:
        return field_of, (self.name, self.more, self.holds, self.is_extra)


_KNOWN: dict[tuple[Any, ...], Field] = {}


def field_of(name: str, more: int, holds: str = "arrays", is_extra: bool = False) -> Field:
    """The one field of this name and kind."""
    key = name, more, holds, is_extra
    field = _KNOWN.get(key)
    if field is None:
        field = _KNOWN.setdefault(key, Field(*key))
    return field


_EXTRA: dict[str, Field] = {}  # those of extra model outputs by key: an episode asks for each

OBSERVATIONS = field_of("observations", 1)
INFOS = field_of("infos", 1, "infos")
ACTIONS = field_of("actions", 0)
REWARDS = field_of("rewards", 0)
UNNAMED = field_of("track", 0)


def extra_field(key: str) -> Field:
    """The field of an extra model output.

    Raises:
        WrongType: a key that is no string.
    """
    if not isinstance(key, str):
        raise WrongType(f"extra model output {key!r}: the keys of a policy's outputs are strings; give it a name")
    field = _EXTRA.get(key)
    if field is not None:
        return field
    return _EXTRA.setdefault(key, field_of(key, 0, "arrays", True))
