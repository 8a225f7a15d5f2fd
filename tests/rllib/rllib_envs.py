"""Environments and configs of the checks of `install`."""

from __future__ import annotations

import re
import time
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from ray.rllib.algorithms.dqn import DQNConfig
from ray.rllib.algorithms.impala import IMPALAConfig
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.algorithms.sac import SACConfig
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.connectors.env_to_module import MeanStdFilter
from ray.rllib.core.rl_module.default_model_config import DefaultModelConfig
from ray.rllib.env.multi_agent_env import MultiAgentEnv

from connectors.moments import Moments
from episode_runners.rllib import install
from episode_runners.rllib.pipelines import connector_in

OBSERVED = spaces.Box(-1, 100, (2,), np.float32)


class Scripted(gym.Env):
    """Environment whose observations, rewards and lengths do not depend on the actions.

    Copies count from 0 in the order in which they are made. Copy k has episodes of 5 to 15 steps. It raises an error at
    each step whose number is a multiple of `raises_every`.
    """

    num_copies = 0

    def __init__(self, config: Any = None) -> None:
        self.observation_space, self.action_space = OBSERVED, spaces.Discrete(2)
        self.copy, self.num_episodes, self.num_steps = Scripted.num_copies % 3, 0, 0
        self.raises_every = (config or {}).get("raises_every")
        Scripted.num_copies += 1

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        self.t, self.num_episodes = 0, self.num_episodes + 1
        self.length = 5 + (self.num_episodes * 7 + self.copy * 3) % 11
        return self.observed(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.t, self.num_steps = self.t + 1, self.num_steps + 1
        if self.raises_every and self.num_steps % self.raises_every == 0:
            raise ValueError("a planned failure")
        return self.observed(), float(self.t % 3), self.t >= self.length, False, {"t": self.t}

    def observed(self) -> np.ndarray:
        return np.array([self.t, self.length], np.float32)


class ScriptedAgents(MultiAgentEnv):
    """The same with two agents. Agent "b" observes every second step and the last one."""

    def __init__(self, config: Any = None) -> None:
        super().__init__()
        self.script = Scripted(config)
        self.agents = self.possible_agents = ["a", "b"]
        self.observation_spaces = dict.fromkeys(self.agents, OBSERVED)
        self.action_spaces = dict.fromkeys(self.agents, spaces.Discrete(2))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        observation, _ = self.script.reset()
        return dict.fromkeys(self.agents, observation), {}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        observation, reward, terminated, _, _ = self.script.step(0)
        agents = self.agents if terminated or self.script.t % 2 == 0 else ["a"]
        rewards = dict.fromkeys(agents, reward)
        return dict.fromkeys(agents, observation), rewards, {"__all__": terminated}, {"__all__": False}, {}


class SameObservations(ScriptedAgents):
    """The same with both agents in each step, and observations of zeros."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.script.reset()
        return dict.fromkeys(self.agents, np.zeros(2, np.float32)), {}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        _, reward, terminated, _, _ = self.script.step(0)
        observed = dict.fromkeys(self.agents, np.zeros(2, np.float32))
        return observed, dict.fromkeys(self.agents, reward), {"__all__": terminated}, {"__all__": False}, {}


class Continuous(Scripted):
    """The scripted environment with continuous actions."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.action_space = spaces.Box(-1.0, 1.0, (1,))


class ContinuousAgents(ScriptedAgents):
    """The scripted environment of two agents with continuous actions."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.action_spaces = dict.fromkeys(self.agents, spaces.Box(-1.0, 1.0, (1,)))


class Drawn(Scripted):
    """The scripted environment with 5 ms for a step, and a random number of each episode in its infos."""

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict[str, Any]]:
        gym.Env.reset(self, seed=seed)
        observation, _ = super().reset()
        self.drawn = int(self.np_random.integers(2**60))
        return observation, {"drawn": self.drawn}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        time.sleep(0.005)
        observation, reward, terminated, truncated, _ = super().step(action)
        return observation, reward, terminated, truncated, {"drawn": self.drawn}


class DrawnAgents(ScriptedAgents):
    """The same with two agents."""

    def __init__(self, config: Any = None) -> None:
        super().__init__(config)
        self.script = Drawn(config)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[dict[str, Any], dict[str, Any]]:
        observation, info = self.script.reset(seed=seed)
        return dict.fromkeys(self.agents, observation), dict.fromkeys(self.agents, info)


class Chunk(NamedTuple):
    """A part of an episode that a learner received."""

    key: tuple[Any, ...]  # ids of its episode
    start: int  # number of its first step
    stop: int
    drawn: int  # random number of the episode
    versions: frozenset[int]  # of the policies that acted


RECEIVED: list[Chunk] = []


class Receive(ConnectorV2):
    """Learner connector that stores the chunks that a learner in this process receives in `RECEIVED`."""

    def __call__(self, *, batch: Any, episodes: Any, **arguments: Any) -> Any:
        for part in episodes:
            key = (part.multi_agent_episode_id, part.agent_id, part.id_)
            start = part.t_started
            versions = frozenset(part.get_policy_versions().tolist())
            RECEIVED.append(Chunk(key, start, start + len(part), part.get_infos(0).get("drawn", -1), versions))
        return batch


class SlowCartPole(gym.Wrapper):
    """CartPole that takes 5 ms for a step, so that a call of `sample` takes a second."""

    def __init__(self, config: Any) -> None:
        super().__init__(gym.make("CartPole-v1"))

    def step(self, action: Any) -> Any:
        time.sleep(0.005)
        return self.env.step(action)


def ppo(env: Any = "CartPole-v1", *, num_envs: int = 4, **model: Any) -> PPOConfig:
    """Return the config of a small, seeded run of PPO in this process."""
    return (
        PPOConfig()
        .environment(env)
        .env_runners(num_env_runners=0, num_envs_per_env_runner=num_envs)
        .training(train_batch_size_per_learner=400, minibatch_size=100, num_epochs=2)
        .rl_module(model_config=DefaultModelConfig(fcnet_hiddens=[32], vf_share_layers=True, **model))
        .debugging(seed=1)
    )


def multi_agent(config: PPOConfig, env: Any = ScriptedAgents) -> PPOConfig:
    """Return the config with two agents and a module for each."""
    return config.environment(env).multi_agent(
        policies={"p", "q"}, policy_mapping_fn=lambda agent_id, episode, **kwargs: "p" if agent_id in ("a", 0) else "q"
    )


def filtered(kind: str, agents: bool) -> Any:
    """Return an installed config of an algorithm, with a filter of observations that are whole numbers.

    Args:
        kind: "PPO", "DQN", "SAC" or "IMPALA".
        agents: whether there are two agents.
    """
    config: Any = ppo() if kind == "PPO" else {"DQN": DQNConfig, "SAC": SACConfig, "IMPALA": IMPALAConfig}[kind]()
    env = (Scripted, ScriptedAgents, Continuous, ContinuousAgents)[2 * (kind == "SAC") + agents]
    config = multi_agent(config, env) if agents else config.environment(env)
    config.env_runners(num_env_runners=0, num_envs_per_env_runner=2)
    config.env_runners(env_to_module_connector=lambda *_: MeanStdFilter(multi_agent=agents, clip_by_value=1e9))
    if kind != "PPO":
        config.reporting(min_sample_timesteps_per_iteration=40, min_time_s_per_iteration=0)
    if kind in ("DQN", "SAC"):
        buffer = "MultiAgentPrioritizedEpisodeReplayBuffer" if agents else "PrioritizedEpisodeReplayBuffer"
        config.training(replay_buffer_config={"type": buffer, "capacity": 1000, "alpha": 0.6, "beta": 0.4})
        config.training(num_steps_sampled_before_learning_starts=10**6)
    return install(config)


def numbers_of(result: dict[Any, Any], path: str = "") -> dict[str, float]:
    """Return the numbers of a nested result by path, without timers and throughputs."""
    numbers: dict[str, float] = {}
    for key, value in result.items():
        name = f"{path}/{key}"
        if isinstance(value, dict):
            numbers |= numbers_of(value, name)
        elif not any(word in name for word in ("timer", "throughput", "sec_mean", "connector", "env_to_module")):
            numbers[name] = float(value)
    return {name: value for name, value in numbers.items() if not name.endswith(("/sample", "/time_between_sampling"))}


def filter_state(runner: Any) -> Any:
    """Return the state of the env-to-module pipeline of an env runner."""
    return connector_in(runner._env_to_module).pipeline.get_state()


def counts_of(algorithm: Any) -> list[int]:
    """Return the number of observations in the filters of each env runner, the local one first."""
    states = algorithm.env_runner_group.foreach_env_runner(lambda runner: repr(filter_state(runner)))
    return [sum(map(int, re.findall(r"'count': (\d+)", state))) for state in states]


def observations_of(runner: Any) -> int:
    """Return the number of observations that a remote env runner's filters have learned from."""
    sampled = connector_in(runner._env_to_module).get_state()["__shared__"]["sampled"]
    return sum(moments.count for moments in sampled.values())


def moments_of(runner: Any) -> dict[tuple[Any, ...], Moments]:
    """Return the statistics of the filters of an env runner."""
    shared = runner.env_to_module_connector.shared
    return shared.statistics(shared.get_state())


def log_distance(*, episode: Any, env_runner: Any, metrics_logger: Any, **_: Any) -> None:
    """Callback `on_episode_end` that logs, in an evaluation, how far the observations that a policy received are from
    whole numbers, if the statistics of the env runner's filters are undone. It also logs the smallest number of
    observations in these statistics.
    """
    if not env_runner.config.in_evaluation:
        return
    known = moments_of(env_runner)
    metrics_logger.log_value("num_observed", min(moments.count for moments in known.values()), reduce="min")
    for path, moments in known.items():
        part = episode.agent_episodes[next(name for name in "ab" if name in path)] if len(known) > 1 else episode
        raw = part.get_observations() * moments.deviation() + moments.mean
        metrics_logger.log_value("distance", float(np.abs(raw - np.rint(raw)).max()), reduce="max")
