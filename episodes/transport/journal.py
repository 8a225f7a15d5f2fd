"""File in which a receiver counts the messages that it has taken from each sender, so that it
can continue after a crash.

    header    64 bytes: b"REjournal2\\n" and zeros
    slots     4,096 slots of 96 bytes, one for each sender
    slot      two records of 48 bytes, which are written in turns
    record    sender (8 bytes) | taken (uint64) | done (uint64) | turn (float64) | 8 zeros | CRC-32 of these (uint64)

The turn of a record is one more than that of the record written before it. So the order of the records follows from the
file, and not from the clock of a machine.

A process may be killed in the middle of a write. Only one record is written at a time, so the other one is then whole,
and holds the state before the message that was not returned yet.
"""

from __future__ import annotations

import mmap
import os
import struct
import warnings
import zlib
from pathlib import Path
from typing import NamedTuple

from episodes.errors import UnreadableData
from episodes.format_versions import JOURNAL, check_magic
from episodes.storage.files import local_path
from episodes.storage.ownership import Owner

_KIND = b"REjournal"  # and the version of the format
_MAGIC = b"%s%d\n" % (_KIND, JOURNAL)
_REMEDY = "finish its messages with the version that wrote it, then remove the file"
_RECORD = struct.Struct("<8sQQd8x")  # sender, messages taken, messages finished, turn
_SUM = struct.Struct("<Q")
_RECORD_SIZE = _RECORD.size + _SUM.size
_FIRST = 64  # where the slots begin
_SLOTS, _SLOT_SIZE = 4096, 2 * _RECORD_SIZE
_SIZE = _FIRST + _SLOTS * _SLOT_SIZE
_EMPTY = bytes(_RECORD_SIZE)
_MOST_MESSAGES = 1 << 62  # of one sender
_MOST_TURNS = (
    2.0**52
)  # up to here, a float64 holds each integer; turns outside are forged, and the first to lose a slot


class Progress(NamedTuple):
    """Counts of one sender's messages: the number that the receiver has taken, and the number that
    its user has finished with."""

    num_taken: int  # messages that were taken; the number of the next message
    num_done: int  # messages that the receiver's user was done with


class _Slot:
    """Slot of one sender in the journal file: its index, and the sender's newest message counts."""

    __slots__ = ("index", "num_writes", "progress", "turn")

    def __init__(self, index: int) -> None:
        self.index, self.num_writes = index, 0
        self.progress, self.turn = Progress(0, 0), 0.0


class Journal:
    """Memory-mapped file that counts the messages taken from each sender. It survives a killed process.

    If all slots are used, a new sender takes the slot of the sender that was silent for the longest time.

    Args:
        path: the file, which is created if it does not exist.

    Raises:
        InvalidArgument: another receiver uses the file.
        UnreadableData: the file is not a journal, or a slot has no valid record.

    Warns:
        RuntimeWarning: one of the two records of a slot is damaged, so the sender's last message may come twice.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        name = str(local_path(path))
        if os.path.exists(name) and not os.path.isfile(name):  # a pipe would block, a device has no end
            raise UnreadableData(f"{name} is not a journal of a receiver; give another path")
        self._owner = Owner(
            f"the journal {name}",
            Path(os.path.realpath(name)),
            refusal=f"{name} is the journal of another receiver; each receiver needs a separate journal",
            remedy="make a receiver with a separate journal there",
            mode=0o600,
        )
        self._owner.claim()
        try:
            with open(name, "r+b", buffering=0) as file:
                size, head = os.fstat(file.fileno()).st_size, file.read(_FIRST) or b""
                check_magic(head, _KIND, JOURNAL, f"{name}, a journal", _REMEDY)
                if size not in (0, _SIZE) or head.strip(b"\0") not in (_MAGIC, b""):
                    raise UnreadableData(f"{name} is not a journal of a receiver; give another path")
                file.truncate(_SIZE)
                self._map = mmap.mmap(file.fileno(), _SIZE)
        except BaseException:
            self._owner.release()
            raise
        self._slots: dict[bytes, _Slot] = {}
        self._free: list[int] = []
        self._turn = 0.0  # of the newest record
        try:
            self._read_slots(name)
        except BaseException:
            self.close()
            raise
        self._map[: len(_MAGIC)] = _MAGIC
        self.num_in_use = sum(slot.progress.num_taken - slot.progress.num_done for slot in self._slots.values())
        """Messages that were returned to a user who did not call again: lost, if the user did nothing with them."""
        for sender, slot in self._slots.items():
            if slot.progress.num_done != slot.progress.num_taken:  # counted now, and not by the next receiver
                self._write(slot, sender, slot.progress.num_taken, slot.progress.num_taken, slot.turn)

    def _read_slots(self, name: str) -> None:
        """Read the progress of all senders. If one of a slot's two records is damaged, the other one counts, with a
        warning.

        Args:
            name: name of the file, for messages.

        Raises:
            UnreadableData: both records of a slot are damaged, or two slots are of one sender.
        """
        for index in reversed(range(_SLOTS)):
            start = _FIRST + index * _SLOT_SIZE
            if self._map[start : start + _SLOT_SIZE] == _EMPTY + _EMPTY:
                self._free.append(index)
                continue
            records = [_read_record(self._map, start), _read_record(self._map, start + _RECORD_SIZE)]
            valid = [record for record in records if record]
            if not valid and () not in records:
                raise UnreadableData(
                    f"{name}: slot {index} is damaged, so it is not known which messages of a sender were taken; "
                    "remove the file, and take messages that were sent again for new ones"
                )
            if None in records:
                warnings.warn(
                    f"{name}: a record of slot {index} is damaged; the last message of its sender may come twice",
                    RuntimeWarning,
                    stacklevel=4,
                )
            if not valid:  # the first write was cut off: nothing was taken yet
                self._free.append(index)
                continue
            progress, sender, turn = max(
                (Progress(num_taken, num_done), sender, turn) for sender, num_taken, num_done, turn in valid
            )
            if sender in self._slots or len({record[0] for record in valid}) > 1:
                raise UnreadableData(f"{name}: slot {index} and another one are of the same sender; remove the file")
            slot = self._slots[sender] = _Slot(index)
            slot.progress, slot.turn = progress, turn if 0 <= turn < _MOST_TURNS else 0.0
            self._turn = max(self._turn, slot.turn)
            slot.num_writes = 1 - records.index(
                (sender, progress.num_taken, progress.num_done, turn)
            )  # the next write replaces the other record

    def progress_of(self, sender: bytes) -> Progress | None:
        """Return the message counts of a sender, or None if the sender is unknown."""
        slot = self._slots.get(sender)
        return None if slot is None else slot.progress

    def note(self, sender: bytes, num_taken: int, num_done: int) -> None:
        """Write the message counts of a sender to the file: how many were taken, and how many of these
        the user has finished with.

        Raises:
            EpisodeStateError: this is a process that was forked from the journal's.
        """
        self._owner.check()
        slot = self._slots.get(sender)
        if slot is None:
            slot = self._new_slot()
            self._slots[sender] = slot
        self._turn += 1
        self._write(slot, sender, num_taken, num_done, self._turn)

    def _write(self, slot: _Slot, sender: bytes, num_taken: int, num_done: int, turn: float) -> None:
        """Write a sender's progress into the older record of its slot. If the process is killed meanwhile, the other
        one is valid.
        """
        record = _RECORD.pack(sender, num_taken, num_done, turn)
        start = _FIRST + slot.index * _SLOT_SIZE + (slot.num_writes & 1) * _RECORD_SIZE
        self._map[start : start + _RECORD_SIZE] = record + _SUM.pack(zlib.crc32(record))
        slot.num_writes += 1
        slot.progress, slot.turn = Progress(num_taken, num_done), turn

    def _new_slot(self) -> _Slot:
        """Return a free slot. If all are taken, the sender that was silent for longest loses its slot."""
        if self._free:
            return _Slot(self._free.pop())
        oldest = min(self._slots, key=lambda sender: self._slots[sender].turn)
        index = self._slots.pop(oldest).index
        start = _FIRST + index * _SLOT_SIZE
        self._map[start : start + _SLOT_SIZE] = _EMPTY + _EMPTY
        return _Slot(index)

    def close(self) -> None:
        """Close the file. Closing it again has no effect."""
        if not self._map.closed:
            self._map.close()
            self._owner.release()


def _read_record(data: mmap.mmap, start: int) -> tuple[bytes, int, int, float] | tuple[()] | None:
    """Read the record at byte `start` of the journal: (sender, num_taken, num_done, turn),
    or () if unused, or None if damaged."""
    record = data[start : start + _RECORD_SIZE]
    if record == _EMPTY:
        return ()
    sender, num_taken, num_done, turn = _RECORD.unpack_from(record)
    is_valid = _SUM.unpack_from(record, _RECORD.size)[0] == zlib.crc32(record[: _RECORD.size])
    return (sender, num_taken, num_done, turn) if is_valid and num_done <= num_taken <= _MOST_MESSAGES else None
