"""History of observations on disk, from which views (such as frame stacking) compute the policy's input."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from episodes.columns import Columns
from episodes.history import History, HistorySpaces, back, zeroed
from episodes.single_agent import SingleAgentEpisode
from episodes.storage.sampling.infos import StoredInfos
from episodes.storage.sampling.located_items import LocatedItems
from episodes.storage.sampling.step_index import LocatedSteps
from episodes.storage.sampling.stored_tracks import StoredTracks
from episodes.tracks import nested


class StoredHistory(History):
    """History of B observations of a data set, which gives access to the earlier observations
    and steps of their episodes.

    The observation before the step at position k has position k. The history goes back to the episode's first step, or
    to the beginning of its lookback.
    """

    def __init__(
        self,
        tracks: StoredTracks,
        numbers: np.ndarray,
        episodes: np.ndarray,
        spaces: HistorySpaces,
        lookback: int | None = None,
    ) -> None:
        super().__init__(spaces, lookback)
        self._tracks = tracks
        self._draw = LocatedItems(tracks, LocatedSteps(tracks.table, numbers, episodes, numbers))

    @cached_property
    def depth(self) -> np.ndarray:
        return self._draw.before

    @property
    def t(self) -> np.ndarray:
        return self._draw.t

    def newest(self) -> Any:
        draw = self._draw
        take = (lambda place: draw.at(place, draw.numbers)) if self._tracks.table.is_joined else draw.items
        return nested.map_leaves(take, self._tracks.structure[Columns.OBS])

    def last_observations(self, k: int) -> Any:
        return self._last(self._tracks.structure[Columns.OBS], back(k), ~self.observed(k))

    def last_steps(self, track: str, k: int) -> Any:
        places = self._tracks.structure.get(track)
        return None if places is None else self._last(places, back(k) + 1, ~self.stepped(k))

    def _last(self, places: Any, backs: np.ndarray, missing: np.ndarray) -> Any:
        """Return earlier items [B, k, ...]: those `backs` positions before each observation,
        with zeros where the mask `missing` is True."""
        numbers = self._draw.numbers[:, None] - np.where(missing, 0, backs)
        at_end = numbers == self._draw.ends[:, None]  # steps have no item there; what is missing is blanked
        clipped = numbers - (at_end & missing)
        return zeroed(nested.map_leaves(lambda place: self._draw.at(place, clipped), places), missing)

    def window(self, k: int) -> StoredHistory:
        numbers = self._draw.numbers[:, None] - np.minimum(back(k), self.depth[:, None])
        episodes = np.repeat(self._draw.episodes, k)
        return StoredHistory(self._tracks, numbers.ravel(), episodes, self.spaces, self._left(k))

    @property
    def infos(self) -> list[dict[str, Any]]:
        return StoredInfos.of(self._tracks).dicts(self._draw.numbers, self._draw.episodes)

    @property
    def agent_ids(self) -> np.ndarray:
        return self._tracks.facts("agent_ids")[self._draw.episodes]

    @property
    def module_ids(self) -> np.ndarray:
        return self._tracks.facts("module_ids")[self._draw.episodes]

    def episode(self, i: int) -> SingleAgentEpisode:
        """Return the episode of the history's observation `i`, up to that observation."""
        return self._tracks.episode(int(self._draw.episodes[i]), int(self._draw.numbers[i]))
