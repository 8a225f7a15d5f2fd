"""Groups of conversations or sessions that are complete when they have a number of members."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from itertools import islice
from threading import RLock
from typing import Any, Generic, Protocol, TypeVar

from episodes.facts.facts import random_ids
from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode
from episodes.tokens.names import GROUP, GROUP_ID, GROUP_SIZE
from episodes.tracks.validation import checked_count


class Member(Protocol):
    """Episode or session with custom data, in which its group is stored."""

    @property
    def custom_data(self) -> dict[str, Any]: ...


M = TypeVar("M", bound=Member)


class MemberGroups(Generic[M]):
    """Queue of groups. Members are added when they end, and a group is complete when it has `size` members.

    Each taken group has an id, which `custom_data` of its members holds together with the number of members. All
    methods may be called from several threads.

    Args:
        size: number of members of a complete group.
        on_taken: function that is called with each member that is taken.
    """

    def __init__(self, size: int, on_taken: Callable[[M], None] | None = None) -> None:
        self.size, self._on_taken = size, on_taken
        self.incomplete: dict[Hashable, list[M]] = {}
        self.complete: deque[list[M]] = deque()
        self._waiters: list[asyncio.Future[None]] = []
        self.lock = RLock()

    def add(self, member: M) -> None:
        """Add a member to its group, the value of `custom_data["group"]`. Without one, it is complete by itself."""
        group = member.custom_data.get(GROUP)
        with self.lock:
            members = [member] if group is None else [*self.incomplete.pop(group, ()), member]
            if group is not None and len(members) < self.size:
                self.incomplete[group] = members
            else:
                self._complete(members)

    def _complete(self, members: list[M]) -> None:
        """Give the members a group id, unless they have no group, and queue them for `take`."""
        if members[0].custom_data.get(GROUP) is not None:
            group_id = random_ids(1).item()
            for member in members:
                member.custom_data.update({GROUP_ID: group_id, GROUP_SIZE: len(members)})
        self.complete.append(members)
        for waiter in self._waiters:
            waiter.get_loop().call_soon_threadsafe(_wake, waiter)

    def complete_all(self, excluded: Iterable[Hashable]) -> None:
        """Make incomplete groups complete with the members that they have, except groups without members and the
        groups `excluded`."""
        with self.lock:
            excluded = set(excluded)
            for group in [group for group, members in self.incomplete.items() if members and group not in excluded]:
                self._complete(self.incomplete.pop(group))

    def drop(self, group: Hashable) -> list[M]:
        """Forget an incomplete group, and return its members."""
        with self.lock:
            return self.incomplete.pop(group, [])

    def note_failure(self, group: Hashable) -> None:
        """Record that a member failed, so that `missing` has its group."""
        if group is not None:
            with self.lock:
                self.incomplete.setdefault(group, [])

    def missing(self) -> dict[Hashable, int]:
        """Return a dict from each incomplete group to the number of members that it lacks."""
        with self.lock:
            return {group: self.size - len(members) for group, members in self.incomplete.items()}

    def take(
        self, num_groups: int | None, episode_of: Callable[[M], SingleAgentEpisode], *, exactly: bool = False
    ) -> EpisodePack | None:
        """Remove at most `num_groups` complete groups, and return their episodes as a pack, or None if there are none.

        If `episode_of` or packing fails, no group is removed.

        Args:
            num_groups: the largest number of groups; None for all.
            episode_of: function that returns the episode of a member.
            exactly: return None if there are fewer groups.
        """
        with self.lock:
            num = len(self.complete) if num_groups is None else checked_count("num_groups", num_groups)
            groups = list(islice(self.complete, num))
            if not groups or (exactly and len(groups) < num):
                return None
            pack = EpisodePack.from_episodes([episode_of(member) for members in groups for member in members])
            for members in groups:
                self.complete.popleft()
                if self._on_taken is not None:
                    list(map(self._on_taken, members))
            return pack

    async def wait_for(self, num_groups: int, episode_of: Callable[[M], SingleAgentEpisode]) -> EpisodePack:
        """Wait until `num_groups` groups are complete, and take them."""
        checked_count("num_groups", num_groups)
        while True:
            with self.lock:
                pack = self.take(num_groups, episode_of, exactly=True)
                if pack is not None:
                    return pack
                waiter = asyncio.get_running_loop().create_future()
                self._waiters.append(waiter)
            try:
                await waiter
            finally:
                with self.lock:
                    self._waiters.remove(waiter)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_waiters", "lock")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _waiters=[], lock=RLock())  # tasks and locks are of one process


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
