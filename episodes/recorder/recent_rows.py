"""Storage of the newest vector steps, from which connectors read past observations and actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from episodes.recorder.recorded_rows import RecordedRows, ResetInfo
from episodes.tracks import nested

if TYPE_CHECKING:
    from episodes.data_types import NestedArrays

_FEWEST = 32  # older rows are dropped when there are this many, so that it happens rarely


class RecentRows:
    """Newest observations of N environments and up to `depth` earlier vector steps, for connectors that look back.

    A `ReplayRecorder` needs it, since its rows are in a ring in another order. A `VectorRecorder` has its rows itself.

    Attributes:
        depth: number of rows before the newest one that are kept. Reading more of them raises it for later rows.
    """

    def __init__(
        self, num_envs: int, observation_space: spaces.Space | None, action_space: spaces.Space | None, depth: int = 0
    ) -> None:
        self.depth = depth
        self._resets: list[tuple[np.ndarray, dict[str, Any]]] = []  # environments [k] and infos of resets in the row
        self._kinds = (num_envs, observation_space, action_space)
        self._kept: RecordedRows | None = None
        self._observations: Any = None  # of the newest row
        self._info: dict[str, Any] = {}

    @property
    def keeps_earlier_rows(self) -> bool:
        """Whether earlier vector steps must be stored, because some connector has read earlier steps."""
        return self._kept is not None

    def begin(self, observations: NestedArrays, info: dict[str, Any]) -> None:
        """Store the observations [N, ...] of the first reset."""
        self._observations, self._info, self._kept = observations, info, None
        self._resets.clear()
        if self.depth:
            self._kept = self.rows()

    def replace(self, observations: NestedArrays, info: dict[str, Any], envs: np.ndarray) -> None:
        """Replace the newest observations of the reset environments `envs` [k], given `observations` [N, ...]."""
        rows = nested.map_leaves(lambda leaf: leaf[envs], observations)
        self._observations = nested.with_rows(self._observations, envs, rows)
        self._resets.append((envs, info))
        if self._kept is not None:
            at = self._kept.num_rows - 1
            self._kept.replace_observations(at, envs, observations)
            infos = self._kept.infos
            infos.resets.append(ResetInfo(at, envs, infos.add(info)))

    def write(self, rows: tuple[Any, ...], extras: Mapping[str, Any]) -> None:
        """Write one vector step [N, ...], which becomes visible with the next `commit`."""
        earlier = self.keep_earlier_rows()
        earlier.write(earlier.num_rows, rows, extras, earlier.num_rows - 1)

    def commit(self, observations: NestedArrays, info: dict[str, Any]) -> None:
        """Record that the last written vector step, with these observations and this info, is the newest step."""
        self._observations, self._info = observations, info
        self._resets.clear()
        rows = self._kept
        if rows is None:
            return
        rows.commit(rows.infos.add(info))
        if rows.num_rows >= max(_FEWEST, 2 * self.depth + 2):
            rows.keep(rows.num_rows - 1 - self.depth)

    def rows(self) -> RecordedRows:
        """Return the stored vector steps: only the newest one if no connector has looked further back."""
        if self._kept is not None:
            return self._kept
        rows = RecordedRows(*self._kinds)
        rows.begin(self._observations, self._info)
        rows.infos.resets += [ResetInfo(0, envs, rows.infos.add(info)) for envs, info in self._resets]
        return rows

    def keep_earlier_rows(self) -> RecordedRows:
        """Start to store earlier vector steps, unless they are stored already, and return the stored rows."""
        if self._kept is None:
            self._kept = self.rows()
        return self._kept

    def recent(self, track: str, num_items: int, ages: np.ndarray) -> tuple[Any, np.ndarray]:
        """Return the newest items of a time series, [k, N, ...], and a mask [k, N] of the items in ongoing episodes.

        From then on, at least as many vector steps are kept as this call has read. See `OngoingEpisodes.recent`. `ages`
        are the numbers of steps of the ongoing episodes, [N].
        """
        if track == "observations" and num_items == 1:
            newest = nested.map_leaves(lambda leaf: np.asarray(leaf)[None], self._observations)
            return newest, np.ones((1, len(ages)), bool)
        self.depth = max(self.depth, num_items - 1)
        return self.keep_earlier_rows().recent(track, num_items, ages)
