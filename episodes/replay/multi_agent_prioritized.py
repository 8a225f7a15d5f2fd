"""`MultiAgentPrioritizedEpisodeReplayBuffer`: the steps of each module drawn in proportion to their priorities."""

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
    """A `MultiAgentEpisodeReplayBuffer` whose modules have a `PrioritizedEpisodeReplayBuffer` each.

    `sample` draws by priority, module by module, with `weights` of each module's own. `sample_synchronized` draws env
    steps, each equally likely.

    Args:
        alpha, beta, min_priority: of all modules, see `PrioritizedEpisodeReplayBuffer`.

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
        self._module_buffer(1)  # what makes no sense is an error now

    def _module_buffer(self, capacity: int) -> PrioritizedEpisodeReplayBuffer:
        return PrioritizedEpisodeReplayBuffer(capacity, **self._options)

    def set_beta(self, beta: float) -> None:
        """Let the weights of later draws correct more (1: fully) or less (0: not at all), of all modules."""
        PrioritizedEpisodeReplayBuffer(1).set_beta(beta)
        self._options["beta"] = beta
        for module_id in self.modules:
            self._prioritized(module_id).set_beta(beta)

    def update_priorities(
        self, indices: Mapping[Hashable, np.ndarray], priorities: Mapping[Hashable, np.ndarray]
    ) -> None:
        """Set the priorities of the steps with these numbers (`batch.indices` of `sample`), by module.

        Raises:
            UnknownKey: a module that there is not, or that has indices and no priorities or the other way round.
            WrongType, ShapeMismatch, InvalidArgument, StepOutOfRange: as
                `PrioritizedEpisodeReplayBuffer.update_priorities`. No priority is changed then.
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
        """Everything that is stored, the priorities and the generator's state."""
        return super().get_state() | {"options": dict(self._options)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go on, bit for bit, where `get_state` was called.

        Raises:
            InvalidArgument: another capacity.
            StateMismatch: the state of a buffer without priorities.
        """
        if not isinstance(state, dict) or "options" not in state:
            raise StateMismatch("a state without priorities; restore it into a MultiAgentEpisodeReplayBuffer")
        super().set_state(state)

    def _build_contents(self, state: dict[str, Any]) -> dict[str, Any]:
        return super()._build_contents(state) | {"_options": dict(state["options"])}
