"""`TracedHistory`: the past observations, actions and rewards that views read while an actor is exported."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from connectors.export.traced_array import NotTraceable, TracedArray
from episodes.history import History, HistorySpaces, back, zeroed
from episodes.tracks import nested

__all__ = ["TracedHistory"]

OBSERVATIONS, ACTIONS, REWARDS, TIME = "observations", "actions", "rewards", "t"


class TracedHistory(History):
    """History of B observations, made of tensors that are inputs of a traced graph. Views read it.

    Args:
        spaces: the spaces of what is stored.
        tracks: "observations" [B, L + 1, ...] with the newest last; if they are read, "actions" [B, L, ...] and
            "rewards" [B, L].
        t: the time step of each observation, int64 [B].
        reach: how many items of each track were read back, by track. Reading updates it.
        before: how many steps before the newest observation each of the R rows of a window is.
    """

    def __init__(
        self,
        spaces: HistorySpaces,
        tracks: dict[str, Any],
        t: Tensor,
        reach: dict[str, int],
        before: tuple[int, ...] = (0,),
    ) -> None:
        super().__init__(spaces)
        self._tracks, self._t, self.reach, self._before = tracks, t, reach, before

    def __len__(self) -> int:
        raise NotTraceable("len(history) is not known; write reshape(-1, ...)")

    @property
    def t(self) -> Any:
        self.reach[TIME] = 1
        return TracedArray((self._t[:, None] - torch.tensor(self._before)).clamp(min=0).reshape(-1))

    @property
    def depth(self) -> Any:  # type: ignore[override]
        return self.t

    def newest(self) -> Any:
        return nested.map_leaves(lambda leaf: leaf[:, 0], self._items(OBSERVATIONS, 1, 1))

    def last_observations(self, k: int) -> Any:
        return self._items(OBSERVATIONS, k, 1)

    def last_steps(self, track: str, k: int) -> Any:
        if track not in (ACTIONS, REWARDS):
            raise NotTraceable(f"history.extra({track!r}): an exported policy does not store outputs of earlier steps")
        return self._items(track, k, 0)

    def _items(self, track: str, k: int, newest: int) -> Any:
        """Return the `k` newest items of a track, such as "actions", for each row: [B * R, k, ...], zeros before the
        start.
        """
        furthest = max(self._before)
        self.reach[track] = max(self.reach.get(track, 0), furthest + k - newest)
        if furthest:
            self.reach[TIME] = 1

        def read(leaf: Tensor) -> TracedArray:
            """Return the `k` newest items of one array of the track for each row, zeros before the start."""
            length = leaf.shape[1]
            windows: list[Tensor] = []  # by offset
            for offset in range(furthest + 1):
                window = leaf[:, max(length - offset - k, 0) : max(length - offset, 0)]
                missing = k - window.shape[1]
                if missing:
                    zeros = leaf.new_zeros(()).expand(leaf.shape[0], missing, *leaf.shape[2:])
                    window = torch.cat([zeros, window], 1)
                if offset:  # rows before the start repeat the first one
                    exists = (self._t >= offset).reshape(-1, *[1] * (window.ndim - 1))
                    window = torch.where(exists, window, windows[-1])
                windows.append(window)
            if len(self._before) == 1:
                return TracedArray(windows[furthest])
            rows = [windows[offset] for offset in self._before]
            return TracedArray(torch.stack(rows, 1).reshape(-1, k, *leaf.shape[2:]))

        return nested.map_leaves(read, self._tracks[track])

    def rewards(self, k: int) -> Any:
        return self.last_steps(REWARDS, k)

    def flat_actions(self, k: int) -> Any:
        flatten = self.spaces.flat_actions
        items = nested.map_leaves(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), self.last_steps(ACTIONS, k))
        return zeroed(flatten(items).reshape(-1, k, flatten.size), ~self.stepped(k))

    def _reaches(self, num_steps: int) -> bool:
        return not num_steps

    def window(self, k: int) -> TracedHistory:
        before = tuple(offset + int(i) for offset in self._before for i in back(k))
        return TracedHistory(self.spaces, self._tracks, self._t, self.reach, before)

    @property
    def infos(self) -> Any:
        raise NotTraceable("history.infos: an exported policy gets no infos")

    def episode(self, i: int) -> Any:
        raise NotTraceable("history.episode: an exported policy has no episodes")

    @property
    def agent_ids(self) -> Any:
        raise NotTraceable("history.agent_ids: an exported policy does not get the agents' ids")

    @property
    def module_ids(self) -> Any:
        raise NotTraceable("history.module_ids: an exported policy does not get the modules' ids")
