"""Queue in which a sender collects small episodes or packs, to send them as one message."""

from __future__ import annotations

import time
from operator import itemgetter
from typing import Any

from episodes.facts.facts import FACTS, FactKind
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.small_episodes import SmallEpisodes
from episodes.tracks.infos.info_column import TypedColumn
from episodes.tracks.infos.infos import Infos
from episodes.transport.facts_codec import version_bounds
from episodes.transport.wire import Schemas, arrays_of, schema_key

_ids_of: Any = itemgetter(*[i for i, kind in enumerate(FACTS.values()) if kind in (FactKind.ID, FactKind.OPTIONAL_ID)])
"""Function that returns the metadata columns of a pack that may have dtype object: the id columns."""


class _Queued:
    """Items that are queued, and those of them that are sent next, in one object that is replaced by one assignment."""

    __slots__ = ("alike", "episodes", "joined", "nbytes", "number", "packs")

    def __init__(
        self, joined: list[EpisodePack], number: int, packs: list[EpisodePack], nbytes: int, episodes: SmallEpisodes
    ) -> None:
        self.joined, self.number = joined, number  # packs that are sent as one message next, and its number
        self.packs, self.nbytes, self.episodes = packs, nbytes, episodes  # bytes of `packs`, at least
        self.alike: Any = None  # schema key and policy versions of `packs`

    def __bool__(self) -> bool:
        return bool(self.joined or self.packs or len(self.episodes))


class SendQueue:
    """Queue of small episodes (or small packs) of equal dtypes and shapes that a sender will send as one message.

    An episode or pack is small if it has at most a quarter of the bytes that are sent together. Queued packs also have
    the same policy versions, and no custom data or info values of other types than numbers and strings.

    An interrupt at any instruction leaves each item queued, or in the sender's messages, but not both: see `mend`.

    Args:
        coalesce: bytes of episodes to send together; 0 queues no episodes.
        join: bytes of packs to send together; 0 queues no packs.
        max_delay: seconds after which the queue is sent even if it is not full, counted from its oldest item.
        schemas: the sender's schemas.

    Attributes:
        takes_episodes, takes_packs: Whether small episodes, or small packs, are queued.
    """

    def __init__(self, coalesce: int, join: int, max_delay: float, schemas: Schemas) -> None:
        self._coalesce, self._join, self._max_delay, self._schemas = coalesce, join, max_delay, schemas
        self.takes_episodes, self.takes_packs = coalesce > 0, join > 0
        self._now = _Queued([], 0, [], 0, SmallEpisodes())
        self._since = 0.0  # time at which the oldest was added, or 0 if the queue is empty

    def __bool__(self) -> bool:
        """Return True if the queue contains episodes or packs."""
        return bool(self._now)

    @property
    def is_full(self) -> bool:
        """Whether the queue has reached its size limit, so that it must be sent before more is added."""
        now = self._now
        return bool(now.joined) or now.nbytes >= self._join > 0 or now.episodes.nbytes >= self._coalesce > 0

    @property
    def is_late(self) -> bool:
        """Whether the oldest queued item has waited for `max_delay` seconds or more, which
        makes sending the queue due."""
        return self._since != 0.0 and time.monotonic() - self._since >= self._max_delay

    def is_due(self, is_idle: bool) -> bool:
        """Return True if it is time to send the queue. `is_idle` is True if all earlier messages are acknowledged.

        If `is_idle` is True, queued packs are sent at once; queued episodes still wait for more.
        """
        now = self._now
        if now.packs:
            return is_idle or now.nbytes >= self._join or self.is_late
        return self.is_full or self.is_late

    def take(self, episodes: object) -> bool:
        """Add a small episode or pack to the queue. Return False if it is too large or differs from the queued
        ones in dtypes or shapes."""
        took = self._take_pack(episodes) if isinstance(episodes, EpisodePack) else self._take_episode(episodes)
        if took and self._since == 0.0:
            self._since = time.monotonic()
        return took

    def _take_episode(self, episode: object) -> bool:
        """Queue a small episode, to be packed with the queued episodes. Return False if that is not possible."""
        now = self._now
        if not self._coalesce or not isinstance(episode, SingleAgentEpisode) or now.packs:
            return False
        if not now:
            now.episodes.accept_like([episode])
        return now.episodes.take([episode], self._coalesce // 4)

    def _take_pack(self, pack: EpisodePack) -> bool:
        """Queue a small pack, to be sent with the packs that are queued. Return False if it must be sent alone, or
        if the queue must be sent before.
        """
        now = self._now
        if not self._join or len(now.episodes):
            return False
        arrays = arrays_of(pack)
        nbytes = sum([array.nbytes for array in arrays]) + _infos_nbytes(pack.infos)
        if nbytes > self._join // 4 or not _is_plain(pack):
            return False
        alike = schema_key(pack, arrays), version_bounds([pack])
        if not now.packs:
            self._schemas.of([pack])  # raises if the pack cannot be encoded
        elif alike != now.alike:
            return False
        now.nbytes += nbytes
        now.alike = alike
        now.packs.append(pack)
        return True

    def together(self, number: int) -> list[EpisodePack]:
        """Return the packs that form the next message. Until `clear` is called, the same packs are returned again.

        Args:
            number: number of the message.
        """
        now = self._now
        if now.joined:
            now.number = number
        elif now.packs:
            self._now = _Queued(now.packs, number, [], 0, now.episodes)
        elif (pack := now.episodes.pack()) is not None:
            self._now = _Queued([pack], number, [], 0, now.episodes.emptied())
        return self._now.joined

    def halve(self) -> bool:
        """Move half of the next message back to the queue, because the message is too large.
        Return False if it is a single episode."""
        now = self._now
        packs = now.joined if len(now.joined) > 1 else [half for pack in now.joined for half in _halves(pack)]
        half = len(packs) // 2
        if half:
            self._now = _Queued(packs[:half], now.number, packs[half:] + now.packs, now.nbytes, now.episodes)
        return half > 0

    def clear(self) -> None:
        """Remove the packs of the message that was just sent from the queue."""
        now = self._now
        after = _Queued([], 0, now.packs, now.nbytes, now.episodes)
        after.alike = now.alike
        self._now = after
        if not after:
            self._since = 0.0

    def mend(self, number: int) -> None:
        """Repair the queue after an interrupted call. All messages before `number` are sent."""
        if self._now.joined and self._now.number < number:
            self.clear()
        self._since = time.monotonic() if self else 0.0


def _halves(pack: EpisodePack) -> list[EpisodePack]:
    """Split a pack into two packs with half of its episodes each. A pack of one episode is returned as the only one."""
    half = len(pack) // 2
    return [pack[:half], pack[half:]] if half else [pack]


def _infos_nbytes(infos: Infos) -> int:
    """Return the size in bytes of the info values that are stored as typed arrays."""
    columns = [column for column in infos.columns.values() if isinstance(column, TypedColumn)]
    return sum(column.values.nbytes + (0 if column.mask is None else column.mask.nbytes) for column in columns)


def _is_plain(pack: EpisodePack) -> bool:
    """Return True if a pack can certainly be encoded: its ids and infos are numbers or strings,
    and it has no custom data."""
    facts, infos = pack.facts, pack.infos
    for column in _ids_of(facts):
        if column is not None and column.dtype.kind not in "Uiu":
            return False
    return facts.custom_data is None and not infos.holds_objects
