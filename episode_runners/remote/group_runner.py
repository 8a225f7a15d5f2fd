"""`GroupRunner`: lets trainers use a group of remote runners like a single runner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from time import perf_counter
from typing import Any

import numpy as np

from connectors.actor import Actor
from episode_runners.remote.actor import RunnerSample
from episode_runners.remote.group import RayRunnerGroup
from episode_runners.single_agent import SingleAgentEnvRunner
from episode_runners.stats import CollectStats
from episodes.closeable import Closeable
from episodes.errors import InvalidArgument
from episodes.pack import EpisodePack

__all__ = ["GroupRunner"]


class GroupRunner(Closeable):
    """Adapter that lets a trainer use a `RayRunnerGroup` of remote runners like a single runner.

    The runners are sent the policy's weights whenever `policy_version` has changed.

    Args:
        local: a runner of the policy that is trained, with environments and pipelines like those of the group. This
            runner does not sample. Evaluations copy it, and its pipelines have the merged statistics of the group.
        group: a group of single-agent runners, which is closed with this object.
        is_asynchronous: let `sample` return the next sample of any runner, for algorithms that learn from older
            policies; otherwise it returns the joined samples of all runners.

    Attributes:
        stats: statistics of the last call of `sample`.
        workers: index of the remote runner of each episode of the last sample, by the episode's id.
        num_steps, num_episodes: counts of all calls.
        policy_version: version of the policy's weights; set it after each update.
    """

    def __init__(self, local: SingleAgentEnvRunner, group: RayRunnerGroup, *, is_asynchronous: bool = False) -> None:
        self.local, self.group, self.is_asynchronous = local, group, is_asynchronous
        self.policy: Any = local.policy
        self.env_to_module, self.module_to_env = local.env_to_module, local.module_to_env
        self.num_envs = local.num_envs
        self.stats = CollectStats()
        self.workers: dict[str, int] = {}
        self.num_steps = self.num_episodes = 0
        self.policy_version = 0
        self._sent_version: int | None = None  # policy version of the group's weights
        self._samples: tuple[Iterator[RunnerSample], tuple[int | None, int | None]] | None = None  # and their counts

    def sample(self, *, num_timesteps: int | None = None, num_episodes: int | None = None) -> EpisodePack:
        """Return the episodes of all remote runners or, if `is_asynchronous`, of the runner that finishes next.

        Args:
            num_timesteps, num_episodes: steps or episodes of the sample. Exactly one is given.

        Raises:
            InvalidArgument, RunnerLost, EpisodeStateError: as in `RayRunnerGroup.sample`.
        """
        started = perf_counter()
        if self._sent_version != self.policy_version:
            self.group.set_weights(self.policy, self.policy_version)
            self._sent_version = self.policy_version
        if self.is_asynchronous:
            samples = [next(self._async_samples(num_timesteps, num_episodes))]
        else:
            samples = self.group.sample(num_timesteps=num_timesteps, num_episodes=num_episodes)
        stats = [sample.stats for sample in samples]
        steps, seconds = sum(run.num_steps for run in stats), perf_counter() - started
        joined = (np.concatenate([getattr(run, name) for run in stats]) for name in ("returns", "lengths"))
        self.stats = CollectStats(steps, seconds, *joined)
        self.num_steps += steps
        self.num_episodes += self.stats.num_episodes
        self.workers = {id_: sample.index for sample in samples for id_ in sample.data.ids.tolist()}
        return EpisodePack.concat([sample.data for sample in samples])

    def _async_samples(self, num_timesteps: int | None, num_episodes: int | None) -> Iterator[RunnerSample]:
        """Return the endless iterator of the group's samples, which the first call creates.

        Raises:
            InvalidArgument: the counts differ from the first call's.
        """
        request = num_timesteps, num_episodes
        if self._samples is None:
            self._samples = self.group.sample_async(num_timesteps=num_timesteps, num_episodes=num_episodes), request
        samples, counts = self._samples
        if request != counts:
            raise InvalidArgument(
                f"sample{request}: samples of {counts} are pending; request the same counts in each call"
            )
        return samples

    def for_evaluation(self, num_envs: int | None = None, *, seed: int | None = None, hooks: Sequence[Any] = ()) -> Any:
        """Return a local runner for evaluation with `num_envs` environments and the merged
        statistics of all remote runners.
        """
        self._update_statistics()
        return self.local.for_evaluation(num_envs, seed=seed, hooks=hooks)

    @property
    def actor(self) -> Actor:
        """Policy with its pipelines, which have the merged statistics of all remote runners."""
        self._update_statistics()
        return self.local.actor

    def _update_statistics(self) -> None:
        """Set the statistics of the local env-to-module pipeline to the merged statistics of all remote runners."""
        learned = self.group.statistics()
        if learned is not None:
            self.env_to_module.set_state(learned)

    def get_state(self) -> dict[str, Any]:
        """Return the merged statistics and the counts of the remote runners.
        A single runner can restore this state, too.
        """
        self._update_statistics()
        counts = {self.local.steps_counted: self.num_steps, "num_episodes": self.num_episodes}
        return self.local.get_state() | counts

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `get_state` returned.
        All runners start new episodes, with seeds derived from the state.
        """
        self.local.set_state(state)
        self.num_steps, self.num_episodes = state[self.local.steps_counted], state["num_episodes"]
        self.group.restart_episodes(self.num_steps, state["env_to_module"])
        self._sent_version, self._samples = None, None

    def close(self) -> None:
        """Close the local runner and the group of remote runners. Further calls do nothing."""
        try:
            self.local.close()
        finally:
            self.group.close()
