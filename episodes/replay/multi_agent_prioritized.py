"""Multi-agent replay buffer with prioritized sampling of each module's steps."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, cast

import numpy as np

from episodes.errors import StateMismatch, UnknownKey
from episodes.replay.multi_agent_buffer import MultiAgentEpisodeReplayBuffer
from episodes.replay.prioritized import PrioritizedEpisodeReplayBuffer
from episodes.replay.samples_per_insert import SamplesPerInsert
from episodes.tracks.validation import checked_mapping


class MultiAgentPrioritizedEpisodeReplayBuffer(MultiAgentEpisodeReplayBuffer):
    """Multi-agent replay buffer with a `PrioritizedEpisodeReplayBuffer` for each module.

    `sample` samples each module by priority, with `weights` per module. `sample_synchronized` samples env steps
    uniformly.

    Args:
        capacity: maximum number of env steps.
        alpha: exponent of the priorities of all modules. 0 samples uniformly.
        beta: exponent of the importance weights, see `set_beta`.
        min_priority: smaller priorities count as this one.
        seed: seed of the random generator. None for a random seed.
        limit: limits how often steps are sampled.

    >>> buffer = MultiAgentPrioritizedEpisodeReplayBuffer(1000, alpha=0.6, beta=0.4)
    >>> # batches = buffer.sample(32); errors = {module_id: ...}
    >>> # buffer.update_priorities({module_id: batch.indices for module_id, batch in batches.items()}, errors)
    """

    def __init__(
        self,
        capacity: int = 10_000,
        *,
        alpha: float = 0.6,
        beta: float = 0.4,
        min_priority: float = 1e-6,
        seed: int | None = None,
        limit: SamplesPerInsert | None = None,
    ) -> None:
        super().__init__(capacity, seed=seed, limit=limit)
        self._options: dict[str, Any] = {"alpha": alpha, "beta": beta, "min_priority": min_priority}
        self._module_buffer(1)  # raises an error for wrong arguments

    def _module_buffer(self, capacity: int) -> PrioritizedEpisodeReplayBuffer:
        return PrioritizedEpisodeReplayBuffer(capacity, **self._options)

    def set_beta(self, beta: float) -> None:
        """Set the importance weight exponent `beta` of all modules: 1 corrects the sampling fully, 0 not at all."""
        PrioritizedEpisodeReplayBuffer(1).set_beta(beta)
        self._options["beta"] = beta
        for module_id in self.modules:
            self._prioritized(module_id).set_beta(beta)

    def update_priorities(self, indices: Mapping[Any, np.ndarray], priorities: Mapping[Any, np.ndarray]) -> None:
        """Set the priorities of sampled steps. Both arguments are dicts from module id to array.

        Args:
            indices: step indices by module id (`batch.indices` of `sample`).
            priorities: numbers of the same shapes, by module id.

        Raises:
            UnknownKey: there is no such module, or the two have different modules.
            WrongType, ShapeMismatch, InvalidArgument, StepOutOfRange: as
                `PrioritizedEpisodeReplayBuffer.update_priorities`. No priority is changed.
        """
        indices = checked_mapping("indices", indices, "of step indices by module id")
        priorities = checked_mapping("priorities", priorities, "of priorities by module id")
        if indices.keys() != priorities.keys():
            raise UnknownKey(f"indices of modules {list(indices)}, priorities of {list(priorities)}; give both of each")
        buffers = {module_id: self._prioritized(module_id) for module_id in indices}
        with self.lock:
            checked = [b.checked_priorities(indices[m], priorities[m]) for m, b in buffers.items()]
            for buffer, arrays in zip(buffers.values(), checked, strict=True):
                buffer.set_checked_priorities(*arrays)

    def _prioritized(self, module_id: Hashable) -> PrioritizedEpisodeReplayBuffer:
        return cast(PrioritizedEpisodeReplayBuffer, self._buffer(module_id))

    def get_state(self) -> dict[str, Any]:
        """Return a checkpoint: all stored steps, priorities and the random generator's state, as a dict of copies."""
        return super().get_state() | {"options": dict(self._options)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the buffer from a dict that `get_state` returned. After an error, the buffer is unchanged.

        Raises:
            InvalidArgument: the state has another capacity.
            StateMismatch: the state belongs to a buffer without priorities, or is malformed.
        """
        if not isinstance(state, dict) or "options" not in state:
            raise StateMismatch("a state without priorities; restore it into a MultiAgentEpisodeReplayBuffer")
        super().set_state(state)

    def _build_contents(self, state: dict[str, Any]) -> dict[str, Any]:
        return super()._build_contents(state) | {"_options": dict(state["options"])}
