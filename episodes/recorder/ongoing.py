"""`OngoingEpisodes`: the episodes that a recorder is in the middle of, made only when someone looks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, overload

import numpy as np

from episodes.errors import StepOutOfRange
from episodes.single_agent import SingleAgentEpisode


class Recording(Protocol):
    """What `OngoingEpisodes` looks into: a recorder."""

    num_envs: int

    @property
    def ages(self) -> np.ndarray: ...

    @property
    def depths(self) -> np.ndarray: ...

    def ongoing(self, env: int) -> SingleAgentEpisode: ...

    def recent(self, track: str, num_items: int) -> tuple[Any, np.ndarray]: ...


class OngoingEpisodes(Sequence[SingleAgentEpisode]):
    """The ongoing episode of each environment. It follows the recorder: nothing is copied until it is read."""

    __slots__ = ("_read_all", "_recorder")

    def __init__(self, recorder: Recording, read_all: Callable[[], list[SingleAgentEpisode]] | None = None) -> None:
        self._recorder = recorder
        self._read_all = read_all  # where reading all of them at once costs less than one by one

    def __len__(self) -> int:
        return self._recorder.num_envs

    @overload
    def __getitem__(self, env: int) -> SingleAgentEpisode: ...
    @overload
    def __getitem__(self, env: slice) -> list[SingleAgentEpisode]: ...
    def __getitem__(self, env: int | slice) -> SingleAgentEpisode | list[SingleAgentEpisode]:
        """The ongoing chunk of an environment, finalized: its steps since the last take, all there is as lookback."""
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
        """Steps so far [N] of the ongoing episodes (the newest ended one counts until its reset); 0 = just reset."""
        return self._recorder.ages

    @property
    def depths(self) -> np.ndarray:
        """How many of those steps [N] are at hand, those of the lookback included."""
        return self._recorder.depths

    def recent(self, track: str, num_items: int) -> tuple[Any, np.ndarray]:
        """The newest rows of a track, oldest first: nested arrays [k, N, ...], and whether they are valid, bool [k, N].

        Invalid are items from before the ongoing episode's start; they are zeros. An extra model output that was
        never recorded gives None, and nothing is valid. What is asked for once is kept over every later take. The rows
        are views where all are valid: read them before the recorder goes on.

        Args:
            track: "observations", "actions", "rewards", or the key of an extra model output.
        """
        return self._recorder.recent(track, num_items)
