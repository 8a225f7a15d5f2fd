"""What a receiver has taken from whom, in a file that outlives the process, though not the machine."""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import time
from typing import NamedTuple

from episodes.errors import InvalidArgument, UnreadableData

_MAGIC = b"REjournal1\n"
_SLOT = struct.Struct("<8sQQd")  # sender, packs taken, packs done with, time
_FIRST = 64  # where the slots begin
_SLOTS = 4096


class Place(NamedTuple):
    """How far a sender's row of messages has come."""

    taken: int  # the number of the next message
    done: int  # likewise, of those that the receiver's user came back from


class Journal:
    """A slot for each sender in a mapped file. What is written there is there after kill -9: the system holds it.

    The sender that was silent longest gives up its slot when all are used.

    Raises:
        InvalidArgument: another receiver uses the file.
        UnreadableData: a file of something else.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            size = os.fstat(handle).st_size
            if size and os.pread(handle, len(_MAGIC), 0) not in (_MAGIC, bytes(len(_MAGIC))):
                raise UnreadableData(f"{os.fspath(path)} is no journal of a receiver; give another path")
            os.ftruncate(handle, _FIRST + _SLOTS * _SLOT.size)
            self._map = mmap.mmap(handle, _FIRST + _SLOTS * _SLOT.size)
        except BlockingIOError:
            os.close(handle)
            raise InvalidArgument(f"{os.fspath(path)} is the journal of another receiver; give each its own") from None
        except BaseException:
            os.close(handle)
            raise
        self._handle = handle
        self._map[: len(_MAGIC)] = _MAGIC
        slots = [_SLOT.unpack_from(self._map, _FIRST + i * _SLOT.size) for i in range(_SLOTS)]
        self._slots = {sender: i for i, (sender, taken, _, _) in enumerate(slots) if taken}
        self._free = [i for i, (_, taken, _, _) in reversed(list(enumerate(slots))) if not taken]
        self.num_in_hand = sum(taken - done for _, taken, done, _ in slots)
        """Packs that were given to a user who did not come back: lost, if the user did nothing with them."""
        for i, (sender, taken, done, when) in enumerate(slots):
            if done != taken:  # counted now, and by nobody again
                _SLOT.pack_into(self._map, self._at(i), sender, taken, taken, when)

    def place(self, sender: bytes) -> Place | None:
        """How far a sender has come; None where it is not known."""
        slot = self._slots.get(sender)
        return None if slot is None else Place(*_SLOT.unpack_from(self._map, self._at(slot))[1:3])

    def note(self, sender: bytes, taken: int, done: int) -> None:
        """Write down how far a sender has come: less than a microsecond."""
        slot = self._slots.get(sender)
        if slot is None:
            slot = self._slots[sender] = self._free.pop() if self._free else self._oldest()
        _SLOT.pack_into(self._map, self._at(slot), sender, taken, done, time.time())

    def _oldest(self) -> int:
        times = {sender: _SLOT.unpack_from(self._map, self._at(slot))[3] for sender, slot in self._slots.items()}
        return self._slots.pop(min(times, key=times.__getitem__))

    @staticmethod
    def _at(slot: int) -> int:
        return _FIRST + slot * _SLOT.size

    def close(self) -> None:
        self._map.close()
        os.close(self._handle)
