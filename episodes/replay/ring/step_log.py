"""`StepLog`: which step of which episode each of the newest steps was, also of those that made way."""

from __future__ import annotations

import numpy as np

from episodes.batch.origin import EpisodeKey
from episodes.replay.ring.episode_table import EpisodeTable, TableChange
from episodes.replay.ring.track_ring import positions, put

_FEW = 1024  # names that nobody needs may be kept


class StepLog:
    """Serial number of the episode and time of the newest `size` steps by number, 16 bytes each, in a ring.

    What is written is what was worked out for the steps' links anyway: one contiguous copy for each lot of steps. Names
    of episodes are kept where they do not follow from the serial number. All writing may be done twice.
    """

    __slots__ = ("_first", "_named", "_serials", "_t", "_too_many", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._serials, self._t = np.zeros((2, size), np.int64)
        self._first: int | None = None  # number of the first step that was ever written
        self._named: dict[int, str | EpisodeKey | None] = {}  # by serial number; None: as it follows from that
        self._too_many = _FEW

    def name(self, table: EpisodeTable, change: TableChange) -> None:
        """Remember who the episodes are that came."""
        if change.facts is not None:
            self._name(table, change.opened)
        elif change.ids is not None:
            self._named.update(zip(range(change.serial, change.serial + len(change.opened)), change.ids, strict=True))

    def _name(self, table: EpisodeTable, entries: np.ndarray) -> None:
        for entry, serial in zip(entries.tolist(), table.serials[entries].tolist(), strict=True):
            self._named[serial] = table.key_of(entry)

    def write(self, number: int, serials: np.ndarray, t: np.ndarray) -> None:
        """Write down steps [k] from a number on; of more than fit, the last ones."""
        self._first = number if self._first is None else self._first
        head = number + len(t)
        number, serials, t = max(number, head - self.size), serials[-self.size :], t[-self.size :]
        put(self._serials, self.size, number % self.size, serials)
        put(self._t, self.size, number % self.size, t)
        if len(self._named) > self._too_many:
            self._drop_old_ids(head)

    def _drop_old_ids(self, head: int) -> None:
        first = self._reaches(head)
        oldest = self._serials[positions(first, head - first, self.size)].min()
        self._named = {serial: key_of for serial, key_of in self._named.items() if serial >= oldest}
        self._too_many = max(2 * len(self._named), _FEW)

    def begin(self, number: int, entries: np.ndarray, t: np.ndarray, table: EpisodeTable) -> None:
        """Forget all but steps [k] from a number on, which are of these entries of the table."""
        self._first, self._named = None, {}
        self._name(table, table.order)
        self.write(number, table.serials[entries], t)

    def _reaches(self, head: int) -> int:
        """Number of the oldest step that is known."""
        return head if self._first is None else max(self._first, head - self.size)

    def find(self, numbers: np.ndarray, head: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Which of the steps are known [n], where the newest has number `head` - 1; serials and times of those."""
        known = (numbers >= self._reaches(head)) & (numbers < head)
        at = numbers[known] % self.size
        return known, self._serials[at], self._t[at]

    def key_of(self, serial: int, table: EpisodeTable) -> EpisodeKey:
        """Whose episode had this number."""
        named = self._named.get(serial) or table.names.id_of(serial)
        return EpisodeKey(named) if isinstance(named, str) else named
