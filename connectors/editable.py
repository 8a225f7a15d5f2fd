"""Ordinary episodes out of a pack, for pieces that go through them one by one and may change them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode


class EditableEpisodes(Sequence[SingleAgentEpisode]):
    """A pack's episodes, each made when it is first read and then kept, so that what is written to it stays.

    The pack itself, and the caller's episodes, are not changed: an episode of a pack copies what is written to.
    """

    def __init__(self, pack: EpisodePack) -> None:
        self._pack = pack
        self._made: dict[int, SingleAgentEpisode] = {}
        self._as_made: dict[int, list[Any]] = {}

    def __len__(self) -> int:
        return len(self._pack)

    @overload
    def __getitem__(self, index: int) -> SingleAgentEpisode: ...
    @overload
    def __getitem__(self, index: slice) -> list[SingleAgentEpisode]: ...
    def __getitem__(self, index: int | slice) -> SingleAgentEpisode | list[SingleAgentEpisode]:
        if isinstance(index, slice):
            return [self._episode(i) for i in range(*index.indices(len(self)))]
        position = range(len(self))[index]
        return self._episode(position)

    def __iter__(self) -> Iterator[SingleAgentEpisode]:
        return (self._episode(i) for i in range(len(self)))

    def _episode(self, position: int) -> SingleAgentEpisode:
        if position not in self._made:
            self._made[position] = episode = self._pack[position]
            self._as_made[position] = _tracks(episode)
        return self._made[position]

    def packed(self) -> EpisodePack:
        """The pack with what was written to its episodes; the same object where nothing was."""
        if all(_same(_tracks(episode), self._as_made[i]) for i, episode in self._made.items()):
            return self._pack
        return EpisodePack.from_episodes(list(self))


def _tracks(episode: SingleAgentEpisode) -> list[Any]:
    """What setters replace: the tracks themselves, the flags, the names of the extra outputs."""
    extra = episode.extra_model_outputs
    tracks = [episode.observations, episode.actions, episode.rewards, *extra.values()]
    return [*tracks, tuple(extra), episode.is_terminated, episode.is_truncated]


def _same(a: list[Any], b: list[Any]) -> bool:
    return len(a) == len(b) and all(
        x is y or (isinstance(x, (bool, tuple)) and x == y) for x, y in zip(a, b, strict=True)
    )
