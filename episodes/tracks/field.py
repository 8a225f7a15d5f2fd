"""Names of an episode's time series, with their numbers of items: T + 1 (one per observation) or T (one per step)."""

from __future__ import annotations

from typing import Any

from episodes.errors import WrongType
from episodes.tracks import nested

EXTRA = "extra_model_outputs"


class Field:
    """Name of one time series of an episode, such as "rewards", and whether it has one item per step (T)
    or per observation (T + 1).

    Attributes:
        name: key in `Tracks`, or in its `extra`.
        more: 1 for tracks with an item per observation (L + T + 1 items), 0 for tracks with an item per step (L + T).
        holds: "arrays" or "infos".
        is_extra: True for an extra model output, whose name the user chose.
        label: the name in error messages.
        path: first part of the paths of the track's arrays.
    """

    __slots__ = ("holds", "is_extra", "label", "more", "name", "path")

    def __init__(self, name: str, num_more: int, holds: str, is_extra: bool) -> None:
        self.name, self.more, self.holds, self.is_extra = name, num_more, holds, is_extra
        self.label = f"{EXTRA}[{name!r}]" if is_extra else name
        self.path = f"{EXTRA}/{nested.escape(name)}" if is_extra else name

    def __repr__(self) -> str:
        return f"Field({self.label})"

    def __reduce__(self) -> Any:
        return field_of, (self.name, self.more, self.holds, self.is_extra)


_KNOWN: dict[tuple[Any, ...], Field] = {}


def field_of(name: str, num_more: int, holds: str = "arrays", is_extra: bool = False) -> Field:
    """Return the cached `Field` with these attributes. Equal arguments return the same object,
    so fields can be compared with `is`."""
    key = name, num_more, holds, is_extra
    field = _KNOWN.get(key)
    if field is None:
        field = _KNOWN.setdefault(key, Field(*key))
    return field


OBSERVATIONS = field_of("observations", 1)
INFOS = field_of("infos", 1, "infos")
ACTIONS = field_of("actions", 0)
REWARDS = field_of("rewards", 0)
UNNAMED = field_of("track", 0)


def extra_field(key: str) -> Field:
    """Return the cached `Field` of the extra model output named `key`. The same key returns the same object.

    Raises:
        WrongType: the key is not a string.
    """
    if not isinstance(key, str):
        raise WrongType(f"extra model output {key!r}: the keys of a policy's outputs are strings; give it a name")
    return field_of(key, 0, is_extra=True)
