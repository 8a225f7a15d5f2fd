"""Editable episode objects, for connectors that change single episodes although the data are stored as arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import copy
from typing import Any, overload

from episodes.pack import EpisodePack
from episodes.single_agent import SingleAgentEpisode


class EditableEpisodes(Sequence[SingleAgentEpisode]):
    """Sequence of editable copies of the episodes of a pack or recorder. The original data stay unchanged.

    The episodes are views of the source. A track (a data array) is copied before it is written to.
    """

    def __init__(self, source: Sequence[SingleAgentEpisode]) -> None:
        self._source = source
        self._made: dict[int, SingleAgentEpisode] = {}
        self._as_made: dict[int, list[Any]] = {}

    def __len__(self) -> int:
        return len(self._source)

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
        if not self._made and not isinstance(self._source, EpisodePack):  # a recorder's cost less all at once
            for position, episode in enumerate(self._source[:]):
                self._keep(position, episode)
        return (self._episode(i) for i in range(len(self)))

    def _episode(self, position: int) -> SingleAgentEpisode:
        if position not in self._made:
            self._keep(position, self._source[position])
        return self._made[position]

    def _keep(self, position: int, episode: SingleAgentEpisode) -> None:
        if type(episode) is SingleAgentEpisode:
            episode = copy(episode)  # the setters of a view of a pack raise
        self._made[position] = episode
        self._as_made[position] = _settable_attributes(episode)

    @property
    def changed(self) -> bool:
        """Whether a connector has changed any of the episodes."""
        return not all(
            _same_objects(_settable_attributes(episode), self._as_made[i]) for i, episode in self._made.items()
        )

    def packed(self) -> EpisodePack:
        """Return all episodes, with the changes made to them, as one `EpisodePack`. A pack without changes is returned
        itself.
        """
        if not self.changed and isinstance(self._source, EpisodePack):
            return self._source
        return EpisodePack.from_episodes(list(self))


def _settable_attributes(episode: SingleAgentEpisode) -> list[Any]:
    """Return a list of everything that a connector can set on an episode, to detect later whether it was changed."""
    extra = episode.extra_model_outputs
    tracks = [episode.observations, episode.actions, episode.rewards, *extra.values()]
    identity = (episode.id_, episode.custom_data)
    return [*tracks, tuple(extra), episode.is_terminated, episode.is_truncated, *identity]


def _same_objects(a: list[Any], b: list[Any]) -> bool:
    """Return True if two lists contain the same objects. Bools and tuples are compared by value."""
    return len(a) == len(b) and all(
        x is y or (isinstance(x, (bool, tuple)) and x == y) for x, y in zip(a, b, strict=True)
    )
