"""Subclasses of RLlib's env runners that sample with the runners of this library."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import gymnasium as gym
import ray
from gymnasium.wrappers.vector import DictInfoToList
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.env.env_runner import EnvRunner as RLlibEnvRunner
from ray.rllib.env.multi_agent_env_runner import MultiAgentEnvRunner as RLlibMultiAgentEnvRunner
from ray.rllib.env.single_agent_env_runner import SingleAgentEnvRunner as RLlibSingleAgentEnvRunner

from episode_runners.multi_agent import MultiAgentEnvRunner
from episode_runners.multi_agent_pipelines import seed_of_module
from episode_runners.rllib.connector_functions import use_settings_of
from episode_runners.rllib.conversion import rllib_episodes
from episode_runners.rllib.episode_counts import EpisodeCounts, log_multi_agent_steps
from episode_runners.rllib.events import hooks_of
from episode_runners.rllib.learners import EpisodesLearner
from episode_runners.rllib.module_policy import ModulePolicy
from episode_runners.rllib.pipelines import check_restored_connectors, connector_in
from episode_runners.seeds import independent_seed
from episode_runners.single_agent import SingleAgentEnvRunner
from episodes.errors import EpisodeStateError, InvalidArgument
from episodes.multi_agent import MultiAgentEpisode

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

    from episodes.single_agent import SingleAgentEpisode

__all__ = ["EpisodesEnvRunner", "EpisodesMultiAgentEnvRunner"]

logger = logging.getLogger("ray.rllib")


class EnvironmentFailed(Exception):
    """Error that wraps an exception of an environment, so that RLlib can distinguish it from other errors."""


@contextmanager
def environment_errors() -> Iterator[None]:
    """Context manager that replaces exceptions in its block by `EnvironmentFailed`."""
    try:
        yield
    except Exception as error:
        raise EnvironmentFailed from error


def _is_whole(chunk: SingleAgentEpisode | MultiAgentEpisode) -> bool:
    """Return True if a chunk of a single-agent or multi-agent episode has the episode's first and last step."""
    return chunk.is_done and len(chunk) == (chunk.env_t if isinstance(chunk, MultiAgentEpisode) else chunk.t)


def _interrupted_episodes(runner: SingleAgentEnvRunner | MultiAgentEnvRunner) -> list[Any]:
    """Return the episodes that a runner sampled before an environment failed: none if its first reset failed."""
    try:
        return list(runner.take())
    except EpisodeStateError:
        return []


def _seed_of_actor(seed: int, in_evaluation: bool) -> int:
    """Return the seed of the environments of a remote env runner, unrelated to the seeds of all others.

    RLlib's seeds of remote env runners are successive numbers, with which environments of two runners would have the
    same seed. An actor that Ray has started again gets a random seed, so that it does not repeat its first episodes.

    Args:
        seed: RLlib's seed of the env runner.
        in_evaluation: whether it evaluates.
    """
    if ray.get_runtime_context().was_current_actor_reconstructed:
        return secrets.randbits(31)
    return independent_seed(seed, int(in_evaluation))


class Guarded:
    """Mixin for wrappers of an environment `env` whose exceptions are raised as `EnvironmentFailed`."""

    env: Any

    def reset(self, **arguments: Any) -> Any:
        with environment_errors():
            return self.env.reset(**arguments)

    def step(self, actions: object) -> Any:
        with environment_errors():
            return self.env.step(actions)


class GuardedVectorEnv(Guarded, gym.vector.VectorWrapper):
    """Vector environment whose exceptions are raised as `EnvironmentFailed`."""


class GuardedMultiAgentEnv(Guarded):
    """Environment of several agents whose exceptions are raised as `EnvironmentFailed`."""

    def __init__(self, env: object) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["env"], name)


class EpisodesRunner(RLlibEnvRunner):
    """Base class of RLlib env runners that sample with this library.
    Environments, module and callbacks are made by RLlib.
    """

    config: Any
    env: Any
    module: Any
    num_envs: int
    worker_index: int
    _env_to_module: Any
    _weights_seq_no: int
    _seed: int | None
    _log_episode_metrics: Any
    _runner: Any = None  # a runner of this library, for the environments `_envs`
    _envs: Any = None
    _needs_reset = False  # of all environments, before the next step
    _num_runners = 0  # runners made so far, one after each restart of the environments
    evaluates_next = False  # the next `sample` belongs to an evaluation on the env runner of training

    def __init__(self, *, config: AlgorithmConfig, **kwargs: Any) -> None:
        self._counts = EpisodeCounts()
        config = config.copy(copy_frozen=False)
        use_settings_of(config)
        super().__init__(config=config, **kwargs)
        if self._env_to_module is not None:
            connector_in(self._env_to_module).shared.is_local = self.worker_index == 0
        if self._seed is not None and self.worker_index:
            self._seed = _seed_of_actor(self._seed, config.in_evaluation)

    @property
    def env_to_module_connector(self) -> Any:
        """RLlib connector that contains this library's env-to-module pipeline."""
        return connector_in(self._env_to_module)

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state of this env runner.

        Raises:
            StateMismatch: the state is of an env runner without `install`, and contains states of connectors.
        """
        for pipeline in ("env_to_module", "module_to_env"):
            check_restored_connectors(getattr(self, f"_{pipeline}", None), state.get(f"{pipeline}_connector"))
        super().set_state(state)  # type: ignore[misc]  # of RLlib's subclass

    def restore_from_path(self, path: str | Path, *args: Any, **kwargs: Any) -> None:
        """Restore the state of this env runner from a checkpoint's folder.

        Raises:
            StateMismatch: the checkpoint was written without `install`, and contains states of connectors.
        """
        for pipeline in ("env_to_module", "module_to_env"):
            folders = Path(path, f"{pipeline}_connector").glob("*/")
            check_restored_connectors(getattr(self, f"_{pipeline}", None), [folder.name for folder in folders])
        super().restore_from_path(path, *args, **kwargs)  # type: ignore[misc]  # of RLlib's subclass

    def _make_runner(self, seed: int | None) -> Any:
        """Return this library's runner for the current environments.

        If `config.restart_failed_sub_environments` is set, their exceptions must be raised as `EnvironmentFailed`,
        upon which `_sample` restarts them.
        """
        raise NotImplementedError

    def _count_steps(self, episodes: list[Any], num_episodes: int) -> None:
        """Log the steps of sampled chunks, and the number of episodes that ended, under RLlib's metrics."""
        raise NotImplementedError

    def _in_ending_order(self, sampled: list[Any]) -> list[Any]:
        """Return the sampled chunks in the order in which they ended, on which RLlib's smoothed metrics depend."""
        return sampled

    def _sample(
        self,
        *,
        num_timesteps: int | None = None,
        num_episodes: int | None = None,
        explore: bool,
        random_actions: bool = False,
        force_reset: bool = False,
    ) -> list[Any]:
        """Sample episodes with this library's runner.

        With `config.restart_failed_sub_environments`, all environments are restarted if one fails. The steps that
        were sampled before the failure are part of the result. If `num_episodes` is given, only those of whole
        episodes are.
        """
        options = {"explore": explore, "random_actions": random_actions}
        learns = not (self.config.in_evaluation or self.evaluates_next)
        self.evaluates_next = False
        interrupted: list[Any] = []
        began = perf_counter()
        while True:
            runner = self._current_runner()
            runner.update_stats = "always" if learns else False
            force_reset, self._needs_reset = force_reset or self._needs_reset, False
            counts = {"num_timesteps": num_timesteps, "num_episodes": num_episodes}
            try:
                sampled = runner.sample(**counts, force_reset=force_reset, **options)
                break
            except EnvironmentFailed as error:
                message = "An environment failed. All environments are restarted, and their samples are kept."
                logger.error(message, exc_info=error.__cause__)
                self._runner = None
                self.make_env()
                recovered = _interrupted_episodes(runner)
                if num_episodes is None:
                    interrupted += recovered
                    num_timesteps = max((num_timesteps or 0) - sum(map(len, recovered)), 1)
                    continue
                whole = [episode for episode in recovered if _is_whole(episode)][:num_episodes]
                interrupted += whole
                num_episodes -= len(whole)
                if not num_episodes:
                    sampled = []
                    break
        sampled = list(sampled)
        episodes = [*interrupted, *sampled]
        num_steps = sum(map(len, episodes))
        in_order = [*interrupted, *(self._in_ending_order(sampled) if sampled else [])]
        num_ended = self._counts.add(in_order, (perf_counter() - began) * self.num_envs / max(num_steps, 1))
        self._count_steps(episodes, num_ended)
        return episodes

    def sample(self, **arguments: Any) -> list[Any]:
        """Return sampled episodes in the form the learner needs: this library's, or RLlib's classes.

        Args:
            arguments: as in RLlib.
        """
        episodes = super().sample(**arguments)
        if issubclass(self.config.learner_class, EpisodesLearner):
            return episodes
        return rllib_episodes(episodes, self.config.policy_mapping_fn)

    def _current_runner(self) -> Any:
        """Return this library's runner of the current environments, which is created if the environments are new."""
        if self._runner is None or self._envs is not self.env:
            self._runner, self._envs = self._make_runner(self._next_seed()), self.env
        self._runner.policy_version = self._weights_seq_no
        return self._runner

    def _next_seed(self) -> int | None:
        """Return the seed of the next runner, or None if no seed is configured.

        It is the env runner's seed for the first runner, and a derived seed for each later runner.
        """
        num_before, self._num_runners = self._num_runners, self._num_runners + 1
        if self._seed is None or not num_before:
            return self._seed
        return independent_seed(self._seed, num_before)

    def get_metrics(self) -> Any:
        """Log the episodes that ended since the last call, and return the reduced metrics under RLlib's keys."""
        for arguments in self._counts.take():
            self._log_episode_metrics(*arguments)
        return self.metrics.reduce()


class EpisodesEnvRunner(EpisodesRunner, RLlibSingleAgentEnvRunner):
    """RLlib's `SingleAgentEnvRunner`, sampling with this library's runner of the same name.

    `sample` returns this library's episodes.
    """

    def _make_runner(self, seed: int | None) -> SingleAgentEnvRunner:
        """Return a `SingleAgentEnvRunner` for the environments.

        If `config.restart_failed_sub_environments` is set, they are wrapped in `GuardedVectorEnv`, so that `_sample`
        restarts them after an exception.
        """
        env: Any = self.env
        while isinstance(env, DictInfoToList):  # RLlib's sampling loop needs lists of infos
            env = env.env
        if self.config.restart_failed_sub_environments:
            env = GuardedVectorEnv(env)
        policy = None if self.module is None else ModulePolicy(lambda: self.module, self._num_steps_of_all)
        module_to_env = connector_in(self._module_to_env).pipeline
        module_to_env.seed(seed)
        return SingleAgentEnvRunner(
            env,
            policy,
            env_to_module=connector_in(self._env_to_module).pipeline,
            module_to_env=module_to_env,
            hooks=hooks_of(self, self._callbacks, self._counts),
            seed=seed,
            len_lookback_buffer=self.config.episode_lookback_horizon or 0,
            check_pipeline=False,
        )

    def _in_ending_order(self, sampled: list[Any]) -> list[Any]:
        return [sampled[i] for i in self._runner.ending_order.tolist()]

    def _num_steps_of_all(self) -> int:
        return self.num_env_steps_sampled_lifetime

    def _count_steps(self, episodes: list[Any], num_episodes: int) -> None:
        self._increase_sampled_metrics(sum(map(len, episodes)), num_episodes)


class EpisodesMultiAgentEnvRunner(EpisodesRunner, RLlibMultiAgentEnvRunner):
    """RLlib's `MultiAgentEnvRunner`, sampling with this library's runner of the same name.

    `sample` returns this library's episodes.
    """

    def _make_runner(self, seed: int | None) -> MultiAgentEnvRunner:
        """Return a `MultiAgentEnvRunner` for the environments.

        If `config.restart_failed_sub_environments` is set, they are wrapped in `GuardedMultiAgentEnv`, so that
        `_sample` restarts them after an exception.

        Raises:
            InvalidArgument: the environments run in other processes.
        """
        if not hasattr(self.env, "envs"):
            raise InvalidArgument(
                "install(config): environments of several agents must live in the process of their runner; set "
                'config.env_runners(gym_env_vectorize_mode="sync")'
            )
        envs = iter([env.unwrapped for env in self.env.envs])
        guards = self.config.restart_failed_sub_environments
        self._policies: dict[Any, Any] = {}
        self._update_modules()
        return MultiAgentEnvRunner(
            (lambda: GuardedMultiAgentEnv(next(envs))) if guards else (lambda: next(envs)),
            self._policies,
            num_envs=len(self.env.envs),
            agent_to_module_mapping_fn=lambda agent_id, episode: self.config.policy_mapping_fn(agent_id, episode),
            env_to_module=connector_in(self._env_to_module).pipeline,
            module_to_env=connector_in(self._module_to_env).pipeline,
            hooks=hooks_of(self, self._callbacks, self._counts),
            seed=seed,
            len_lookback_buffer=self.config.episode_lookback_horizon or 0,
            check_pipeline=False,
        )

    def _current_runner(self) -> Any:
        if self._runner is not None:
            self._update_modules()
        return super()._current_runner()

    def _update_modules(self) -> None:
        """Add and remove policies and pipelines so that the runner has the modules of RLlib's env runner."""
        module_ids = list(self.module.keys()) if self.module is not None else [DEFAULT_MODULE_ID]
        for module_id in [module_id for module_id in self._policies if module_id not in module_ids]:
            del self._policies[module_id]
            self._needs_reset = True  # ongoing episodes may have agents of this module
        for module_id in module_ids:
            if module_id not in self._policies:
                find = lambda module_id=module_id: self.module[module_id]  # noqa: E731
                self._policies[module_id] = ModulePolicy(find, lambda: self.num_env_steps_sampled_lifetime)
        connector_in(self._env_to_module).add_modules(module_ids)
        connector_in(self._module_to_env).add_modules(module_ids)
        for module_id in module_ids:
            connector_in(self._module_to_env).pipeline.modules[module_id].seed(seed_of_module(self._seed, module_id))

    def _count_steps(self, episodes: list[Any], num_episodes: int) -> None:
        log_multi_agent_steps(self.metrics.log_value, episodes, num_episodes)
