"""Changes of several parts that something may break off, such as Ctrl-C, and that happen whole or not at all."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

MOST_TRIES = 10


def finish(change: Callable[[], None]) -> None:
    """Make a change, again when something breaks it off: one that does the same however often it is begun.

    Where it is broken off each time, by a stack that is full, say, the error that is being handled tells so.
    """
    for _ in range(MOST_TRIES):
        try:
            change()
            return
        except BaseException:  # such as a second Ctrl-C; the first is raised by whoever calls
            continue
    error = sys.exception()
    if error is not None:
        error.add_note(
            "what it broke off could not be brought to its end, nor taken back: the episode may be half changed"
        )


def make_whole(change: Callable[[], None]) -> None:
    """Make such a change to its end, and raise then what broke it off."""
    try:
        change()
    except BaseException:
        finish(change)
        raise


def restoring(whose: Any) -> Callable[[], None]:
    """What gives the slots of an object the values that they have now; `custom_data` its items too."""
    names = [name for cls in type(whose).__mro__ for name in getattr(cls, "__slots__", ()) if name != "__weakref__"]
    slots = {name: getattr(whose, name) for name in names}
    items = dict(slots.get("custom_data", ()))

    def restore() -> None:
        for name, value in slots.items():
            setattr(whose, name, value)
        if "custom_data" in slots:
            whose.custom_data.clear()
            whose.custom_data.update(items)

    return restore
