"""What waits at a sender, so that small episodes and small packs travel together."""

from __future__ import annotations

import time
from operator import itemgetter
from typing import Any

from episodes.facts.facts import FACTS, Kind
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.small_episodes import SmallEpisodes
from episodes.tracks.infos.info_columns import ColumnInfos, TypedColumn
from episodes.tracks.infos.infos import EmptyInfos, Infos
from episodes.transport.facts_codec import bounds_of
from episodes.transport.wire import Schemas, arrays_of, schema_key

_ids_of: Any = itemgetter(*[i for i, kind in enumerate(FACTS.values()) if kind in (Kind.ID, Kind.OPTIONAL_ID)])
"""The columns of facts that may hold objects."""


class SendQueue:
    """Small episodes, as copies, or small packs: they are alike, and arrive as one pack.

    A quarter of what goes together is small.

    Args:
        coalesce, join: bytes of episodes and of packs that go together; 0: none wait.
        max_delay: seconds that the oldest waits at the most.
        schemas: of the sender.
    """

    def __init__(self, coalesce: int, join: int, max_delay: float, schemas: Schemas) -> None:
        self._coalesce, self._join, self._max_delay, self._schemas = coalesce, join, max_delay, schemas
        self._episodes = SmallEpisodes()
        self._packs: list[EpisodePack] = []
        self._nbytes = 0  # of the packs
        self._alike: Any = None  # what they look like, and their policy versions
        self._since = 0.0  # when the oldest came; 0: nothing waits
        self._joined: list[EpisodePack] = []  # what could not be sent yet

    def __bool__(self) -> bool:
        """Whether anything waits."""
        return bool(self._joined or self._packs or len(self._episodes))

    @property
    def is_full(self) -> bool:
        """Whether nothing more is taken."""
        return bool(self._joined) or self._nbytes >= self._join > 0 or self._episodes.nbytes >= self._coalesce > 0

    @property
    def is_late(self) -> bool:
        """Whether the oldest has waited long enough."""
        return self._since != 0.0 and time.monotonic() - self._since >= self._max_delay

    def is_due(self, is_idle: bool) -> bool:
        """Whether it is time to go; packs do not wait where nothing is on its way."""
        if self._packs:
            return is_idle or self._nbytes >= self._join or self.is_late
        return self.is_full or self.is_late

    def take(self, one: Any) -> bool:
        """Take an episode or a pack, if it is small and like those that wait."""
        took = self._take_pack(one) if isinstance(one, EpisodePack) else self._take_episode(one)
        if took and self._since == 0.0:
            self._since = time.monotonic()
        return took

    def _take_episode(self, one: Any) -> bool:
        if not self._coalesce or not isinstance(one, SingleAgentEpisode) or self._packs:
            return False
        if not self:
            self._episodes.accept_like([one])
        return self._episodes.take([one], self._coalesce // 4)

    def _take_pack(self, pack: EpisodePack) -> bool:
        if not self._join or len(self._episodes):
            return False
        arrays = arrays_of(pack)
        nbytes = sum([array.nbytes for array in arrays]) + _infos_nbytes(pack.infos)
        if nbytes > self._join // 4 or not _is_plain(pack):
            return False
        alike = schema_key(pack, arrays), bounds_of([pack])
        if not self._packs:
            self._schemas.of([pack])  # an error for what cannot travel
        elif alike != self._alike:
            return False
        self._nbytes += nbytes  # no call but the one that appends, so that an interrupt leaves all or nothing
        self._alike = alike
        self._packs.append(pack)
        return True

    def together(self) -> list[EpisodePack]:
        """All of it, as packs that travel as one: the same list until `clear`, an empty one where nothing waits."""
        if not self._joined:
            packs = self._packs
            if not packs:
                pack = self._episodes.pack()
                packs = [pack] if pack is not None else []
                self._episodes.clear()
            self._joined, self._packs, self._nbytes = packs, [], 0
        return self._joined

    def halve(self) -> bool:
        """From now on, what goes together is half of it, and then the rest; False where it is one episode or none."""
        packs = self._joined if len(self._joined) > 1 else [one for pack in self._joined for one in _halves(pack)]
        half = len(packs) // 2
        if half:
            self._joined, self._packs = packs[:half], packs[half:] + self._packs
        return half > 0

    def clear(self) -> None:
        """Forget what went together: it was sent."""
        self._joined, self._since = [], 0.0


def _halves(pack: EpisodePack) -> list[EpisodePack]:
    """A pack as two, if it has several episodes."""
    half = len(pack) // 2
    return [pack[:half], pack[half:]] if half else [pack]


def _infos_nbytes(infos: Infos) -> int:
    """The bytes of plain infos."""
    if not isinstance(infos, ColumnInfos):
        return 0
    columns = [column for column in infos.columns.values() if isinstance(column, TypedColumn)]
    return sum(own.values.nbytes + (0 if own.mask is None else own.mask.nbytes) for own in columns)


def _is_plain(pack: EpisodePack) -> bool:
    """Whether nothing can go wrong when the pack is encoded later: all of it is numbers and texts."""
    facts, infos = pack.facts, pack.infos
    for column in _ids_of(facts):
        if column is not None and column.dtype.kind not in "Uiu":
            return False
    return facts.custom_data is None and (type(infos) is EmptyInfos or not infos.holds_objects)
