"""`EpisodesHistory`: newest observations of growing episodes and their preceding steps, as input of connectors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from episodes.errors import TrackMismatch
from episodes.history import History, HistorySpaces, back
from episodes.single_agent.episode import SingleAgentEpisode
from episodes.tracks import nested
from episodes.tracks.stacking import object_array

__all__ = ["EpisodesHistory", "check_single_shape"]

_TRACKS = ("observations", "actions", "rewards")  # others are extra model outputs


class EpisodesHistory(History):
    """Batch of the newest observations of B growing episodes and of their preceding steps, read by connectors.

    Args:
        before: number of steps [B] between each row and its episode's newest observation, 0 if None.
    """

    def __init__(
        self,
        episodes: Sequence[SingleAgentEpisode],
        spaces: HistorySpaces,
        lookback: int | None = None,
        *,
        before: np.ndarray | None = None,
    ) -> None:
        super().__init__(spaces, lookback)
        self.episodes = episodes
        self._before = np.zeros(len(episodes), np.int64) if before is None else before

    def __len__(self) -> int:
        return len(self.episodes)

    @cached_property
    def depth(self) -> np.ndarray:
        num_items = [len(episode.rewards) + episode.rewards.lookback for episode in self.episodes]
        return np.array(num_items, np.int64) - self._before

    @property
    def t(self) -> np.ndarray:
        return np.array([episode.t for episode in self.episodes], np.int64) - self._before

    def newest(self) -> Any:
        for episode in self.episodes:
            check_single_shape(episode, "observations")
        pairs = zip(self.episodes, self._before.tolist(), strict=True)
        return nested.stack([episode.observations.get(-1 - before) for episode, before in pairs])

    def last_observations(self, k: int) -> Any:
        return self._items([episode.observations for episode in self.episodes], k, self.depth + 1)

    def last_steps(self, track: str, k: int) -> Any:
        return self._items([_step_track(episode, track) for episode in self.episodes], k, self.depth)

    def _items(self, tracks: list[Any], k: int, num_items: np.ndarray) -> Any:
        """Return the last `k` items of each of B time series, [B, k, ...], padded in front with zeros.

        Returns None if all time series are empty.

        Args:
            num_items: number of items [B] that each row may read.
        """
        counts = np.minimum(np.where([track is not None for track in tracks], num_items, 0), k).tolist()
        example = next((track.get(-1) for track, count in zip(tracks, counts, strict=True) if count), None)
        if example is None:
            return None
        zero = nested.map_leaves(lambda leaf: np.zeros_like(np.asarray(leaf)), example)
        rows: list[Any] = []
        for track, before, count in zip(tracks, self._before.tolist(), counts, strict=True):
            rows += [zero] * (k - count)
            rows += [track.get(-1 - before - i) for i in range(count - 1, -1, -1)]
        return nested.map_leaves(lambda leaf: leaf.reshape(len(tracks), k, *leaf.shape[1:]), nested.stack(rows))

    def window(self, k: int) -> EpisodesHistory:
        backs = np.minimum(back(k), self.depth[:, None])
        episodes = [episode for episode in self.episodes for _ in range(k)]
        return EpisodesHistory(episodes, self.spaces, self._left(k), before=(self._before[:, None] + backs).ravel())

    @property
    def infos(self) -> list[dict[str, Any]]:
        pairs = zip(self.episodes, self._before.tolist(), strict=True)
        return [episode.get_infos(-1 - before) for episode, before in pairs]

    @property
    def agent_ids(self) -> np.ndarray:
        return object_array([episode.agent_id for episode in self.episodes])

    @property
    def module_ids(self) -> np.ndarray:
        return object_array([episode.module_id for episode in self.episodes])

    def episode(self, i: int) -> SingleAgentEpisode:
        """Return the episode of batch row `i`, without the steps after the row's observation."""
        episode, before = self.episodes[i], int(self._before[i])
        return episode if not before else episode[: len(episode) - before]


def _step_track(episode: SingleAgentEpisode, track: str) -> Any:
    """Return a time series with one item per step by its name: "actions", "rewards", or an extra output's name (None
    if missing).
    """
    if track == "actions":
        return episode.actions
    return episode.rewards if track == "rewards" else episode.extra_model_outputs.get(track)


def check_single_shape(episode: SingleAgentEpisode, track: str) -> None:
    """Raise `TrackMismatch` if a time series of an episode is ragged.

    Args:
        episode: a `SingleAgentEpisode`.
        track: "observations", "actions", "rewards", or the key of an extra model output.
    """
    tracks = episode.tracks
    column = getattr(tracks, track) if track in _TRACKS else tracks.extra.get(track)
    if column is not None and column.ragged is not None:
        raise TrackMismatch(
            f"episode {episode.id_}: the track {track!r} is ragged (its items have different lengths), and this "
            "pipeline makes arrays of one shape for a policy; make a token batch of them "
            "(connectors.learner.TokenColumns, episode_learners.TokenGRPO), or record items of one shape"
        )
