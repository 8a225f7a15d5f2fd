"""RLlib's env runners, which sample with the runners of this library."""

from __future__ import annotations

from typing import Any

from gymnasium.wrappers.vector import DictInfoToList
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner as RLlibSingleAgentEnvRunner

from episode_runners.rllib.module_policy import ModulePolicy
from episode_runners.rllib.pipelines import EnvToModuleInRLlib, ModuleToEnvInRLlib, pipeline_in
from episode_runners.single_agent import SingleAgentEnvRunner

__all__ = ["EpisodesEnvRunner"]


class EpisodesEnvRunner(RLlibSingleAgentEnvRunner):
    """RLlib's `SingleAgentEnvRunner`, whose steps are sampled by this library's `SingleAgentEnvRunner`.

    RLlib makes the environments, the module, states, metrics and callbacks. `sample` returns this library's episodes.
    """

    _runner: SingleAgentEnvRunner | None = None  # of the environments `_envs`
    _envs: Any = None

    def __init__(self, *, config: Any, **kwargs: Any) -> None:
        self._ended: list[tuple[int, float, float]] = []  # lengths, returns and seconds of episodes to be logged
        super().__init__(config=config, **kwargs)

    def _sample(
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        explore: bool,
        random_actions: bool = False,
        force_reset: bool = False,
    ) -> list[Any]:
        runner = self._current_runner()
        runner.policy_version = self._weights_seq_no
        pack = runner.sample(
            num_timesteps=num_timesteps,
            num_episodes=num_episodes,
            explore=explore,
            random_actions=random_actions,
            force_reset=force_reset,
        )
        self._count(runner)
        return list(pack)

    def _current_runner(self) -> SingleAgentEnvRunner:
        """Return the runner of the current environments."""
        if self._runner is None or self._envs is not self.env:
            self._runner, self._envs = self._make_runner(), self.env
        if isinstance(self._runner.policy, ModulePolicy):
            self._runner.policy.num_env_steps = self.num_env_steps_sampled_lifetime
        return self._runner

    def _make_runner(self) -> SingleAgentEnvRunner:
        env: Any = self.env
        while isinstance(env, DictInfoToList):  # RLlib's own loop needs lists of infos
            env = env.env
        return SingleAgentEnvRunner(
            env,
            None if self.module is None else ModulePolicy(lambda: self.module),
            env_to_module=pipeline_in(self._env_to_module, EnvToModuleInRLlib),
            module_to_env=pipeline_in(self._module_to_env, ModuleToEnvInRLlib),
            seed=self._seed,
            len_lookback_buffer=self.config.episode_lookback_horizon or 0,
            check_pipeline=False,
        )

    def _count(self, runner: SingleAgentEnvRunner) -> None:
        """Count the steps of the last `sample` under RLlib's keys."""
        stats = runner.stats
        self._increase_sampled_metrics(stats.num_steps, stats.num_episodes)
        seconds = stats.seconds / max(stats.num_steps, 1)
        lengths, returns = stats.lengths.tolist(), stats.returns.tolist()
        self._ended += [(length, value, seconds * length) for length, value in zip(lengths, returns, strict=True)]

    def get_metrics(self) -> Any:
        """Return the metrics since the last call, under RLlib's keys."""
        ended, self._ended = self._ended, []
        for length, value, seconds in ended:
            self._log_episode_metrics(length, value, seconds)
        return self.metrics.reduce()
