"""`Recordings`: the recorders of a single-agent runner, which write rows into packs or into a replay buffer."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import numpy as np

from episode_runners.stats import RunningReturns
from episodes.errors import WrongType
from episodes.pack import EpisodePack
from episodes.recorder.vector_recorder import VectorRecorder
from episodes.replay import EpisodeReplayBuffer
from episodes.replay.replay_recorder import ReplayRecorder
from episodes.replay.stored_outputs import checked_output_names

__all__ = ["Recordings"]


class Recordings:
    """Recorders of a runner's rows, with the returns of the episodes and the packs of interrupted calls.

    Args:
        packs: the recorder into packs.

    Attributes:
        packs: the argument `packs`.
        sink: the recorder of the current rows: `packs`, or one that writes into `buffer`.
        buffer: the replay buffer that gets the current rows, or None.
        returns: counter of the returns of ongoing episodes.
        interrupted: steps of calls that failed or were interrupted.
        was_greedy: whether the newest steps of each environment took the most likely actions, bool [N, L].
    """

    __slots__ = ("buffer", "interrupted", "packs", "returns", "sink", "was_greedy")

    def __init__(self, packs: VectorRecorder) -> None:
        self.packs = packs
        self.sink: VectorRecorder | ReplayRecorder = packs
        self.buffer: EpisodeReplayBuffer | None = None
        self.returns = RunningReturns(packs.num_envs, packs.autoreset_mode)
        self.interrupted: list[EpisodePack] = []
        self.was_greedy = np.zeros((0, 0), bool)

    def record_into_packs(self, needs_reset: bool) -> bool:
        """Record the next steps into packs, and return whether all environments must be reset first.

        They must be if `needs_reset` is True, or if a replay buffer had the ongoing episodes and stores them no more.
        """
        if isinstance(self.sink, ReplayRecorder) and not needs_reset:
            if self.sink.is_reset:
                self.sink.hand_over_to(self.packs)
            else:
                needs_reset = True
        self.sink, self.buffer = self.packs, None
        return needs_reset

    def keys_of(self, buffer: EpisodeReplayBuffer, keys: Collection[str] | None) -> list[str]:
        """Return the names of the policy outputs to store in `buffer`. The arguments are those of `continue_in`."""
        if not isinstance(buffer, EpisodeReplayBuffer):
            raise WrongType(
                f"sample_into cannot write into a {type(buffer).__name__}; give an EpisodeReplayBuffer, "
                "or add the pack of sample()"
            )
        return list(buffer.extra_model_outputs) if keys is None else checked_output_names(keys)

    def continue_in(self, buffer: EpisodeReplayBuffer, keys: Collection[str] | None) -> bool:
        """Continue the ongoing episodes in `buffer` with the policy outputs `keys`, and return True.

        Return False if these episodes are not in the buffer. Then call `record_into`.

        Args:
            buffer: the replay buffer.
            keys: names of the policy outputs to store. None: those that the buffer stores already.

        Raises:
            TrackMismatch: the buffer stores other outputs than `keys`.
            WrongType: the object is not an `EpisodeReplayBuffer`, or `keys` is text.
        """
        keys, sink = self.keys_of(buffer, keys), self.sink
        if isinstance(sink, ReplayRecorder) and self.buffer is buffer and sink.is_reset:
            if keys != sink.keys:
                sink.store_outputs(keys)
            return True
        return False

    def record_into(self, buffer: EpisodeReplayBuffer, keys: Collection[str] | None) -> None:
        """Record the next steps into `buffer`, after a reset. The arguments are those of `continue_in`."""
        packs = self.packs
        self.sink = buffer.recorder(
            packs.num_envs,
            autoreset_mode=packs.autoreset_mode,
            observation_space=packs.observation_space,
            action_space=packs.action_space,
            len_lookback_buffer=packs.len_lookback_buffer,
            keys=self.keys_of(buffer, keys),
        )
        self.buffer = buffer

    def reset(self, observations: Any, infos: dict[str, Any], mask: np.ndarray | None = None) -> None:
        """Record the first observations of the environments in `mask`, bool [N]. None: all environments."""
        if self.buffer is not None:
            self.returns.reset(np.ones(self.packs.num_envs, bool) if mask is None else mask)
        self.sink.reset(observations, infos, mask)

    def count_steps(self) -> int:
        """Return the number of steps that were recorded into the current pack, or into any buffer."""
        return self.packs.count_steps() if self.buffer is None else self.returns.count_steps()
