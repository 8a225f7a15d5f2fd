"""Every kind of environment that the library supports passes its check."""

from __future__ import annotations

import copy
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import gymnasium as gym
import numpy as np
import pettingzoo
import pytest
from gymnasium.vector import AutoresetMode
from mpe2 import simple_spread_v3

import episode_learners
import episode_runners
from benchmarks.torch_cartpole import ACTION_SPACE, OBSERVATION_SPACE, TorchCartPole
from episode_runners import make_vector_env
from episode_runners.environments import EnvPoolVectorEnv, TorchVectorEnv
from episode_runners.multi_agent_envs import as_multi_agent_env
from episode_runners.random_actions import sample_random_action
from episode_runners.serial_envs import SerialVectorEnv
from episodes import MultiAgentEpisode, storage
from episodes.storage import RecordEpisodes
from episodes.storage.record_episodes import RecordVectorEpisodes
from episodes.testing import check_vector_env

MODES = list(AutoresetMode)
ENVS = {
    "CartPole": "CartPole-v1",
    "FrozenLake": "FrozenLake-v1",  # Discrete observations
    "Blackjack": "Blackjack-v1",  # a Tuple of them
    "MountainCar": lambda: gym.make("MountainCarContinuous-v0", max_episode_steps=30),  # truncated only
}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("env", ENVS)
def test_vector_env_passes_check_vector_env(env: str, mode: AutoresetMode) -> None:
    made = make_vector_env(ENVS[env], 2, autoreset_mode=mode)
    check_vector_env(made, num_steps=70)
    made.close()


@pytest.mark.parametrize("mode", MODES)
def test_async_vector_env_passes_check_vector_env(mode: AutoresetMode) -> None:
    made = make_vector_env("CartPole-v1", 2, vectorization="async", autoreset_mode=mode)
    check_vector_env(made, num_steps=50)
    made.close()


def test_native_vector_env_passes_check_vector_env() -> None:
    check_vector_env(make_vector_env("CartPole-v1", 3, vectorization="vector_entry_point"), num_steps=50)


WRAPPERS: dict[str, Callable[[Path], Any]] = {  # of one environment, and of many
    "RecordEpisodes": lambda path: lambda: RecordEpisodes(gym.make("CartPole-v1"), path / str(uuid4())),
    "RecordVectorEpisodes": lambda path: RecordVectorEpisodes(make_vector_env("CartPole-v1", 2), path),
    "WithoutVelocities": lambda path: "episode_learners.environments:CartPoleWithoutVelocities-v1",
}


@pytest.mark.parametrize("name", WRAPPERS)
def test_wrapped_env_passes_check_vector_env(name: str, tmp_path: Path) -> None:
    made = make_vector_env(WRAPPERS[name](tmp_path), 2)
    check_vector_env(made, num_steps=50)
    made.close()


def test_every_environment_adapter_is_checked() -> None:
    shipped = set()
    for package in (episode_runners, episode_learners, storage):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                members = vars(importlib.import_module(module.name)).values()
                shipped |= {kind.__name__ for kind in members if is_env(kind) and kind.__module__ == module.name}
    internal = {"_Filmed", "CheckedEnv", "GuardedVectorEnv", "RestartedEnv"}  # wrappers that the library adds itself
    assert shipped - internal == {
        *WRAPPERS,
        "SerialVectorEnv",
        "ProcessVectorEnv",
        "EnvPoolVectorEnv",
        "TorchVectorEnv",
    }
    assert isinstance(make_vector_env("CartPole-v1", 2), SerialVectorEnv)


def is_env(kind: Any) -> bool:
    return inspect.isclass(kind) and issubclass(kind, (gym.Env, gym.vector.VectorEnv))


POOLS = {
    "CartPole-v1": 12,  # a time limit at which poles fall, too
    "Pendulum-v1": 7,
    "FrozenLake-v1": None,
}
LARGE_POOLS = {"CheetahRun-v1": 9, "HalfCheetah-v4": 9, "Pong-v5": 9}  # the first one has Dict observations


@pytest.mark.parametrize("task", [*POOLS, *(pytest.param(task, marks=pytest.mark.slow) for task in LARGE_POOLS)])
def test_envpool_adapter_passes_check_vector_env(task: str) -> None:
    limit = (POOLS | LARGE_POOLS)[task]
    made = EnvPoolVectorEnv(task, 2, max_episode_steps=limit, pool_kwargs={"num_threads": 1})
    check_vector_env(made, num_steps=60 if task in POOLS else 25)
    made.close()


SIMULATORS = {"final": {}, "logs": {"info_keys": ("log",)}, "repeated": {"missing_final_observation": "repeat"}}


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", SIMULATORS)
def test_torch_adapter_passes_check_vector_env(name: str, device: str) -> None:
    simulator = TorchCartPole(3, device, limit=15, gives_final=name != "repeated")
    made = TorchVectorEnv(simulator, OBSERVATION_SPACE, ACTION_SPACE, **SIMULATORS[name])
    check_vector_env(made, num_steps=60)
    made.close()


class Countdown:
    """Multi-agent environment with plain dicts: agents enter late, skip env steps, and end at different times."""

    observation_spaces = {name: gym.spaces.Box(0, 9, (1,), np.float32) for name in ("early", "late")}
    action_spaces = {name: gym.spaces.Discrete(2) for name in ("early", "late")}

    def reset(self, seed: int | None = None) -> tuple[dict[str, Any], dict[str, Any]]:
        self.t = 0
        return {"early": np.zeros(1, np.float32)}, {}

    def step(self, actions: dict[str, Any]) -> tuple[dict[str, Any], ...]:
        self.t += 1
        agents = ("early",) if self.t % 3 and self.t <= 7 else ()
        agents += ("late",) if self.t >= 2 else ()
        observations = {name: np.full(1, self.t, np.float32) for name in agents}
        ended = {"early": self.t == 7, "late": False, "__all__": self.t == 9}
        return observations, dict.fromkeys(observations, 1.0), ended, {"__all__": False}, {}


AGENTS = {
    "plain dicts": Countdown,
    "simple_spread": simple_spread_v3.parallel_env,
    "knights_archers_zombies": partial(pettingzoo.make, "parallel", "butterfly/knights_archers_zombies_v11"),
    "tic_tac_toe": partial(pettingzoo.make, "aec", "classic/tictactoe_v3"),
    "connect_four": partial(pettingzoo.make, "aec", "classic/connect_four_v3"),
    "leduc_holdem": partial(pettingzoo.make, "aec", "classic/leduc_holdem_v4"),
}


@pytest.mark.parametrize("name", AGENTS)
def test_multi_agent_env_steps_equal_cut_and_joined(name: str) -> None:
    whole, chunks, env = played(AGENTS[name], num_steps=40, cut_every=7)
    assert len(whole) > 1
    for agent_id, agent_episode in whole.agent_episodes.items():
        space = env.space("observation_space", agent_id)
        assert all(space.contains(observation) for observation in agent_episode.get_observations())
        assert len(agent_episode.get_rewards()) == len(agent_episode) == len(agent_episode.get_observations()) - 1
    for later in chunks[1:]:
        chunks[0].concat_episode(later)
    assert chunks[0].equals(whole)
    whole.to_numpy().validate()


def played(make: Callable[[], Any], num_steps: int, cut_every: int) -> tuple[MultiAgentEpisode, list[Any], Any]:
    """Run random legal actions, and return an uncut episode and an episode that is cut every few env steps."""
    env = as_multi_agent_env(make())
    observations, infos = env.reset(seed=0)
    whole = MultiAgentEpisode("game")
    chunks = [MultiAgentEpisode("game")]
    for episode in (whole, chunks[0]):
        episode.add_env_reset(observations=copy.deepcopy(observations), infos=copy.deepcopy(infos))
    spaces: dict[Any, Any] = {}
    for t in range(num_steps):
        actions = {}
        for agent_id in whole.get_agents_to_act():
            if agent_id not in spaces:
                spaces[agent_id] = copy.deepcopy(env.space("action_space", agent_id))
                spaces[agent_id].seed(len(spaces))
            observed = {agent_id: observations.get(agent_id), "info": infos.get(agent_id)}
            actions[agent_id] = sample_random_action(spaces[agent_id], observed[agent_id], observed["info"])
        step = env.step(actions)
        if t % cut_every == cut_every - 1:
            chunks.append(chunks[-1].cut(2))
        for episode in (whole, chunks[-1]):
            copies = copy.deepcopy((step.observations, actions, step.rewards, step.infos))
            episode.add_env_step(*copies, terminateds=step.terminateds, truncateds=step.truncateds)
        observations, infos = step.observations, step.infos
        if step.is_over or whole.is_done:
            break
    env.close()
    assert np.isfinite(whole.get_return())
    return whole, chunks, env
