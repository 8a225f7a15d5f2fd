"""`StepLog`: episode and time of the newest steps of a ring, kept for a while after the steps are evicted."""

from __future__ import annotations

import numpy as np

from episodes.batch.origin import EpisodeKey
from episodes.replay.ring.episode_table import EpisodeTable, TableChange
from episodes.replay.ring.track_ring import positions, put

_FEW = 1024  # up to this number, ids of forgotten steps are kept


class StepLog:
    """Log of the episode and time of the newest `size` steps, evicted steps included. A step takes 16 bytes.

    The values are those of the steps' links, so each addition costs one contiguous copy. Ids are stored only if they do
    not follow from the serial number. All writes may be repeated.
    """

    __slots__ = ("_first", "_named", "_serials", "_t", "_too_many", "size")

    def __init__(self, size: int) -> None:
        self.size = size
        self._serials, self._t = np.zeros((2, size), np.int64)
        self._first: int | None = None  # index of the first recorded step
        self._named: dict[int, str | EpisodeKey | None] = {}  # by serial number; None: as it follows from that
        self._too_many = _FEW

    def name(self, table: EpisodeTable, change: TableChange) -> None:
        """Record the id of each episode that `change` added to `table`. The change was applied to `table` before."""
        if change.facts is not None:
            self._name(table, change.opened)
        elif change.ids is not None:
            self._named.update(zip(range(change.serial, change.serial + len(change.opened)), change.ids, strict=True))

    def _name(self, table: EpisodeTable, entries: np.ndarray) -> None:
        """Record the ids of the episodes at `entries` of the table."""
        for entry, serial in zip(entries.tolist(), table.serials[entries].tolist(), strict=True):
            self._named[serial] = table.key_of(entry)

    def write(self, number: int, serials: np.ndarray, t: np.ndarray) -> None:
        """Record the episodes (serial numbers) and times of k new steps, the first with step index `number`."""
        self._first = number if self._first is None else self._first
        head = number + len(t)
        number, serials, t = max(number, head - self.size), serials[-self.size :], t[-self.size :]
        put(self._serials, self.size, number % self.size, serials)
        put(self._t, self.size, number % self.size, t)
        if len(self._named) > self._too_many:
            self._drop_old_ids(head)

    def _drop_old_ids(self, head: int) -> None:
        """Remove the ids of old episodes, which no step in the log refers to."""
        first = self._oldest_logged(head)
        oldest = self._serials[positions(first, head - first, self.size)].min()
        self._named = {serial: key_of for serial, key_of in self._named.items() if serial >= oldest}
        self._too_many = max(2 * len(self._named), _FEW)

    def begin(self, number: int, entries: np.ndarray, t: np.ndarray, table: EpisodeTable) -> None:
        """Restart the log with the k stored steps, of which the first has the step index `number`."""
        self._first, self._named = None, {}
        self._name(table, table.order)
        self.write(number, table.serials[entries], t)

    def _oldest_logged(self, head: int) -> int:
        """Return the index of the oldest logged step, if the next step to be added has the index `head`."""
        return head if self._first is None else max(self._first, head - self.size)

    def find(self, numbers: np.ndarray, head: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return a mask [n] of the logged steps among `numbers` [n], and the episode serials and times of these steps.

        The newest step is `head` - 1.
        """
        known = (numbers >= self._oldest_logged(head)) & (numbers < head)
        at = numbers[known] % self.size
        return known, self._serials[at], self._t[at]

    def key_of(self, serial: int, table: EpisodeTable) -> EpisodeKey:
        """Return the `EpisodeKey` of the episode with the serial number `serial`."""
        named = self._named.get(serial) or table.names.id_of(serial)
        return EpisodeKey(named) if isinstance(named, str) else named
