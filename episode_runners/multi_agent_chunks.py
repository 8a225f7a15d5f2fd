"""Chunks that a multi-agent runner has sampled, and new episodes of its environments."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from episode_runners.multi_agent_stats import ReturnCounter
from episodes.facts.facts import new_id
from episodes.multi_agent import MultiAgentEpisode

__all__ = ["NewEpisodes", "SampledChunks"]


class SampledChunks:
    """Chunks of a runner that `sample` or `take` will return, with the returns of the episodes that they belong to.

    Args:
        num_envs: number of copies of the environment.
        lookback: minimum number of earlier env steps that a continued chunk contains.

    Attributes:
        lookback: the argument `lookback`.
        taken: chunks that ended or were cut in this call.
        interrupted: chunks of calls that failed or were interrupted.
        has_failed: whether the last call failed, and its chunks are not in `interrupted` yet.
        in_step: (copy, env step before it) for each step that is being recorded.
        counters: the returns of the ongoing episode of each copy.
    """

    __slots__ = ("counters", "has_failed", "in_step", "interrupted", "lookback", "taken")

    def __init__(self, num_envs: int, lookback: int) -> None:
        self.lookback = lookback
        self.taken: list[MultiAgentEpisode] = []
        self.interrupted: list[MultiAgentEpisode] = []
        self.has_failed = False
        self.in_step: list[tuple[int, int]] = []
        self.counters = [ReturnCounter() for _ in range(num_envs)]

    def begin(self) -> None:
        """Begin with new episodes in all copies: drop the chunks of this call, and count returns from 0."""
        self.taken = []
        self.counters = [ReturnCounter() for _ in self.counters]

    def add(self, i: int, chunk: MultiAgentEpisode) -> None:
        """Add a chunk of copy `i`, which ended or was cut, and its rewards to the returns of its episode."""
        self.counters[i].add(chunk)
        self.taken.append(chunk)


class NewEpisodes:
    """Maker of episodes without observations, whose spaces are added when their agents appear.

    Args:
        mapping_fn: `(agent_id, episode) -> module_id`, or None.
        missing_final_observation: "raise" or "repeat"; see `MultiAgentEpisode`.
        generator: the source of the ids of episodes.

    Attributes:
        mapping_fn, missing_final_observation, generator: the arguments.
    """

    __slots__ = ("generator", "mapping_fn", "missing_final_observation")

    def __init__(
        self,
        mapping_fn: Callable[[Any, Any], Any] | None,
        missing_final_observation: str,
        generator: np.random.Generator,
    ) -> None:
        self.mapping_fn, self.generator = mapping_fn, generator
        self.missing_final_observation = missing_final_observation

    def make(self, is_seeded: bool) -> MultiAgentEpisode:
        """Return a new episode.

        With a seed, the first half of its id follows from the seed, so that functions that choose modules by it are
        reproducible. The other half is random, so that ids never repeat.
        """
        number = self.generator.integers(2**64, dtype=np.uint64)
        return MultiAgentEpisode(
            id_=f"{number:016x}{new_id()[16:]}" if is_seeded else None,
            observation_space={},
            action_space={},
            agent_to_module_mapping_fn=self.mapping_fn,
            missing_final_observation=self.missing_final_observation,
        )
