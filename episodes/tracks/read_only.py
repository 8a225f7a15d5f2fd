"""Read-only views of arrays. Finished episodes and packs consist of them."""

from __future__ import annotations

from typing import Any


def read_only(array: Any) -> Any:
    """Return a read-only view of an array, or the array (or `Ragged`) itself if it is read-only."""
    if array.flags.writeable:
        array = array.view()
        array.setflags(write=False)
    return array
