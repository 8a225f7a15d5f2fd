"""`RecorderHistory`: newest observations of all environments and the steps before them, for acting."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from episodes.history import History, HistorySpaces, back
from episodes.recorder.ongoing import OngoingEpisodes
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested

__all__ = ["RecorderHistory"]


class RecorderHistory(History):
    """Batch of the newest observations of N environments and of their preceding steps, read by connectors.

    It goes back to the first stored step: the steps since the last `take`, and the lookback before them.
    """

    def __init__(self, episodes: OngoingEpisodes, spaces: HistorySpaces, lookback: int | None = None) -> None:
        super().__init__(spaces, lookback)
        self.episodes = episodes

    def __len__(self) -> int:
        return len(self.episodes)

    @cached_property
    def depth(self) -> np.ndarray:
        return self.episodes.depths

    @property
    def t(self) -> np.ndarray:
        return self.episodes.ages.copy()

    def newest(self) -> Any:
        rows, _ = self.episodes.recent("observations", 1)
        return _newest(rows) if type(rows) is np.ndarray else nested.map_leaves(_newest, rows)

    def last_observations(self, k: int) -> Any:
        return self.last("observations", k)

    def last_steps(self, track: str, k: int) -> Any:
        return self.last(track, k)

    def last(self, track: str, k: int) -> Any:
        """Return the last `k` items of a time series, [N, k, ...], zeros before the start. None if never recorded."""
        rows, _ = self.episodes.recent(track, k)  # [k, N, ...]
        if rows is None:
            return None
        return _by_environment(rows) if type(rows) is np.ndarray else nested.map_leaves(_by_environment, rows)

    def window(self, k: int) -> History:
        backs = np.minimum(back(k), self.depth[:, None])
        return _EarlierRows(self, np.repeat(np.arange(len(self)), k), backs.ravel(), self._left(k))

    @property
    def infos(self) -> list[dict[str, Any]]:
        return [episode.get_infos(-1) for episode in self.episodes]

    def episode(self, i: int) -> SingleAgentEpisode:
        """Return the ongoing episode of environment `i`, from its start or the last `take` on."""
        return self.episodes[i]


class _EarlierRows(History):
    """Batch of observations of the ongoing episodes, a given number of steps before the newest observations."""

    def __init__(self, of: RecorderHistory, envs: np.ndarray, before: np.ndarray, lookback: int | None) -> None:
        super().__init__(of.spaces, lookback)
        self._of = of
        self._envs = envs  # [B]
        self._before = before  # [B]

    @cached_property
    def depth(self) -> np.ndarray:
        return self._of.depth[self._envs] - self._before

    @property
    def t(self) -> np.ndarray:
        return self._of.t[self._envs] - self._before

    def newest(self) -> Any:
        return nested.map_leaves(lambda leaf: leaf[:, 0], self._last("observations", 1))

    def last_observations(self, k: int) -> Any:
        return self._last("observations", k)

    def last_steps(self, track: str, k: int) -> Any:
        return self._last(track, k)

    def _last(self, track: str, k: int) -> Any:
        """Return the `k` items of a track up to each earlier row, [rows, k, ...], or None if the recorder has no such
        track.
        """
        reach = int(self._before.max(initial=0)) + k
        rows = self._of.last(track, reach)  # [N, reach, ...]
        if rows is None:
            return None
        columns = (reach - 1 - self._before)[:, None] - back(k)
        return nested.map_leaves(lambda leaf: leaf[self._envs[:, None], columns], rows)

    def window(self, k: int) -> History:
        backs = np.minimum(back(k), self.depth[:, None])
        before = (self._before[:, None] + backs).ravel()
        return _EarlierRows(self._of, np.repeat(self._envs, k), before, self._left(k))

    @property
    def infos(self) -> list[dict[str, Any]]:
        return [self.episode(i).get_infos(-1) for i in range(len(self))]

    def episode(self, i: int) -> SingleAgentEpisode:
        """Return the ongoing episode of batch row `i`, without the steps after the row's observation."""
        episode, before = self._of.episode(int(self._envs[i])), int(self._before[i])
        return episode if not before else episode[: len(episode) - before]


def _newest(rows: np.ndarray) -> np.ndarray:
    """Return the last item [N, ...] of `rows` [k, N, ...] as a view, read-only if it is memory of the recorder."""
    newest = rows[-1]
    newest.flags.writeable = rows.flags.owndata
    return newest


def _by_environment(rows: np.ndarray) -> np.ndarray:
    """Return `rows` [k, N, ...] as a view [N, k, ...], read-only if it is memory of the recorder."""
    swapped = rows.swapaxes(0, 1)
    swapped.flags.writeable = rows.flags.owndata
    return swapped
