"""Ongoing episodes of the N environments of a recorder. An episode is built when it is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, overload

import numpy as np

from episodes.errors import StepOutOfRange
from episodes.single_agent import SingleAgentEpisode


class Recording(Protocol):
    """Interface of recorders from which ongoing episodes can be read."""

    num_envs: int

    @property
    def ages(self) -> np.ndarray: ...

    @property
    def depths(self) -> np.ndarray: ...

    def ongoing(self, env: int) -> SingleAgentEpisode: ...

    def recent(self, track: str, num_items: int) -> tuple[Any, np.ndarray]: ...


class OngoingEpisodes(Sequence[SingleAgentEpisode]):
    """Sequence of the ongoing episodes of N environments. An episode's data is copied when it is read."""

    __slots__ = ("_read_all", "_recorder")

    def __init__(self, recorder: Recording, read_all: Callable[[], list[SingleAgentEpisode]] | None = None) -> None:
        self._recorder = recorder
        self._read_all = read_all  # reads all episodes at once, if that costs less than one by one

    def __len__(self) -> int:
        return self._recorder.num_envs

    @overload
    def __getitem__(self, env: int) -> SingleAgentEpisode: ...
    @overload
    def __getitem__(self, env: slice) -> list[SingleAgentEpisode]: ...
    def __getitem__(self, env: int | slice) -> SingleAgentEpisode | list[SingleAgentEpisode]:
        """Return the ongoing episode of one environment, or a list of episodes for a slice.

        It contains the steps since the last take, with all available lookback.

        Raises:
            StepOutOfRange: there is no environment with this index.
        """
        num_envs = len(self)
        if isinstance(env, slice):
            if self._read_all is not None:
                return self._read_all()[env]
            return [self._recorder.ongoing(i) for i in range(*env.indices(num_envs))]
        index = env + num_envs if env < 0 else env
        if not 0 <= index < num_envs:
            raise StepOutOfRange(f"ongoing episode {env}: there are environments 0..{num_envs - 1}")
        return self._recorder.ongoing(int(index))

    @property
    def ages(self) -> np.ndarray:
        """Number of steps in each environment's ongoing episode, int [N]: 0 after a reset.

        An ended episode counts until the reset.
        """
        return self._recorder.ages

    @property
    def depths(self) -> np.ndarray:
        """Number of past steps of each ongoing episode that `recent` can return, int [N]."""
        return self._recorder.depths

    def recent(self, track: str, num_items: int) -> tuple[Any, np.ndarray]:
        """Return the newest items of a time series, [k, N, ...], and a mask [k, N] of the valid items.

        Items from before the start of an ongoing episode are zeros and not valid. If an extra model output was never
        recorded, the items are None and the mask is False. From then on, the recorder keeps `num_items` rows at each
        take. If all items are valid, they are views: read them before the next step is recorded.

        Args:
            track: "observations", "actions", "rewards", or the key of an extra model output.
            num_items: number of rows k.
        """
        return self._recorder.recent(track, num_items)
