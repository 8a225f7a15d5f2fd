"""`GroupRunner`: a group of runners in the place of one, for trainers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from connectors.actor import Actor
from episode_runners.closeable import Closeable
from episode_runners.remote.actor import RunnerSample
from episode_runners.remote.group import RayRunnerGroup
from episode_runners.single_agent import SingleAgentEnvRunner
from episode_runners.stats import CollectStats
from episodes.errors import InvalidArgument
from episodes.pack import EpisodePack

__all__ = ["GroupRunner"]


class GroupRunner(Closeable):
    """Samples with a `RayRunnerGroup` as a trainer does with one runner.

    Whenever `policy_version` was told anew, the runners get the weights that the policy has then.

    Args:
        local: a runner of the policy that learns, with environments and pipelines like those of the group. It samples
            nothing: evaluation copies it, and it keeps what all pipelines have learned.
        group: of single-agent runners; closed with this one.
        is_asynchronous: `sample` gives the next sample that any runner has ready, which the others need not wait for;
            else one of each, joined. For algorithms that learn from what older weights did.

    Attributes:
        stats: of the last call of `sample`.
        num_steps, num_episodes: of all calls.
    """

    def __init__(self, local: SingleAgentEnvRunner, group: RayRunnerGroup, *, is_asynchronous: bool = False) -> None:
        self.local, self.group, self.is_asynchronous = local, group, is_asynchronous
        self.policy, self.env_to_module, self.module_to_env = local.policy, local.env_to_module, local.module_to_env
        self.num_envs = local.num_envs
        self.stats = CollectStats()
        self.num_steps = self.num_episodes = 0
        self.policy_version = 0
        self._given: int | None = None  # the version that the group has
        self._samples: Iterator[RunnerSample] | None = None
        self._asked: tuple[int | None, int | None] = (None, None)

    def sample(self, *, num_timesteps: int | None = None, num_episodes: int | None = None) -> EpisodePack:
        """Episodes of all runners together; where it is asynchronous, of one, which others follow.

        Errors are those of the group's `sample`.
        """
        started = perf_counter()
        if self._given != self.policy_version:
            self.group.set_weights(self.policy, self.policy_version)
            self._given = self.policy_version
        if self.is_asynchronous:
            samples = [next(self._going_on(num_timesteps, num_episodes))]
        else:
            samples = self.group.sample(num_timesteps=num_timesteps, num_episodes=num_episodes)
        own = [sample.stats for sample in samples]
        steps, seconds = sum(stats.num_steps for stats in own), perf_counter() - started
        joined = (np.concatenate([getattr(stats, name) for stats in own]) for name in ("returns", "lengths"))
        self.stats = CollectStats(steps, seconds, *joined)
        self.num_steps += steps
        self.num_episodes += self.stats.num_episodes
        return EpisodePack.concat([sample.data for sample in samples])

    def _going_on(self, num_timesteps: int | None, num_episodes: int | None) -> Iterator[RunnerSample]:
        asked = num_timesteps, num_episodes
        if self._samples is None:
            self._samples, self._asked = (
                self.group.sample_async(num_timesteps=num_timesteps, num_episodes=num_episodes),
                asked,
            )
        if asked != self._asked:
            raise InvalidArgument(f"sample{asked}: samples of {self._asked} are under way; ask for as much each time")
        return self._samples

    def for_evaluation(self, num_envs: int | None = None, *, seed: int | None = None, hooks: Sequence[Any] = ()) -> Any:
        """As a runner's; with what the pipelines of all runners have learned."""
        self._learn()
        return self.local.for_evaluation(num_envs, seed=seed, hooks=hooks)

    @property
    def actor(self) -> Actor:
        """The policy with the pipelines and the statistics of all runners."""
        self._learn()
        return self.local.actor

    def _learn(self) -> None:
        """Let the local pipeline know what those of the runners have learned."""
        learned = self.group.statistics()
        if learned is not None:
            self.env_to_module.set_state(learned)

    def get_state(self) -> dict[str, Any]:
        """As a runner's, which can go on from it too."""
        self._learn()
        counts = {self.local.steps_counted: self.num_steps, "num_episodes": self.num_episodes}
        return self.local.get_state() | counts

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore what `get_state` gave. All runners begin new episodes, seeded by their seeds and the steps."""
        self.local.set_state(state)
        self.num_steps, self.num_episodes = state[self.local.steps_counted], state["num_episodes"]
        self.group.begin_anew(self.num_steps, state["env_to_module"])
        self._given, self._samples = None, None

    def close(self) -> None:
        """Close the local runner and the group; may be called again."""
        try:
            self.local.close()
        finally:
            self.group.close()
