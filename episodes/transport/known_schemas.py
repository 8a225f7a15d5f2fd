"""`KnownSchemas`: schemas of packs that a receiver's senders have sent."""

from __future__ import annotations

from collections import OrderedDict

from episodes.errors import TrackMismatch, UnreadableData
from episodes.pack import EpisodePack
from episodes.storage.track_schema import Fields, check_same
from episodes.transport.wire import MOST_SPACE_ITEMS, PackLayout, expected_fields, id_of, layouts_of

__all__ = ["KnownSchemas"]

_MOST_SCHEMAS = 1024
_MOST_SCHEMA_BYTES = 1 << 20
_MOST_ITEMS = MOST_SPACE_ITEMS  # of the spaces of all schemas together
_MOST_WORDS = 1000  # characters of the reason why a schema is rejected


class KnownSchemas(OrderedDict[int, tuple[PackLayout, ...] | str]):
    """Dict by schema id of the layouts of packs, or of the reason why packs of the schema are rejected.

    If there are too many schemas, the oldest are dropped.

    Args:
        like: the expected packs, as `EpisodeReceiver` takes them.

    Raises:
        WrongType: `like` is not a pack or a list of packs.
    """

    def __init__(self, like: EpisodePack | list[EpisodePack] | None) -> None:
        super().__init__()
        self._like = expected_fields(like)

    def register(self, schema_id: int, schema: bytes) -> bool:
        """Store the layouts of a schema (dtypes, shapes and spaces), or the reason why its packs are rejected. Return
        False if the schema is broken.
        """
        if len(schema) > _MOST_SCHEMA_BYTES or id_of(schema) != schema_id:
            return False
        try:
            layouts = layouts_of(schema)
            self[schema_id] = self._mismatch(layouts) or layouts
            is_valid = True
        except UnreadableData as error:
            self[schema_id] = str(error)[:_MOST_WORDS]
            is_valid = False
        while len(self) > _MOST_SCHEMAS or (len(self) > 1 and self._num_space_items() > _MOST_ITEMS):
            self.popitem(last=False)
        return is_valid

    def _num_space_items(self) -> int:
        """Return the total number of numbers in the arrays (such as bounds) of all stored spaces,
        by which their memory is limited."""
        return sum(layout.num_space_items for known in self.values() if not isinstance(known, str) for layout in known)

    def _mismatch(self, layouts: tuple[PackLayout, ...]) -> str:
        """Return a text with the first difference between received packs and the expected packs
        `like`, or "" if they match."""
        for layout in layouts if self._like else ():
            differences = [_difference(expected, layout.fields) for expected in self._like]
            if all(differences):
                return differences[0]
        return ""


def _difference(expected: Fields, received: Fields) -> str:
    """Return a text with the first difference between two schemas, dicts of dtypes and shapes by
    path, or "" if they are equal."""
    try:
        check_same(expected, received, "receiver")
    except TrackMismatch as error:
        return str(error)
    return ""
