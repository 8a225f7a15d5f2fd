"""Simulators in torch: the runner records the steps that happened inside the simulator."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from mpe2 import simple_spread_v3

from benchmarks.torch_cartpole import ACTION_SPACE, OBSERVATION_SPACE, TorchCartPole
from connectors import RolloutBuffer, rollout_to_episodes
from connectors.rollout.buffer import add_advantages
from connectors.rollout.fragments import BlockEdge
from episode_learners import MLPPolicy
from episode_runners import SingleAgentEnvRunner
from episode_runners.environments import TorchVectorEnv, fill_rollout
from episodes.errors import InvalidArgument, ShapeMismatch, TrackMismatch, UnknownKey, WrongType
from episodes.pack import EpisodePack
from episodes.testing import check_vector_env

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


class Watched(TorchCartPole):
    """Simulator that records each step: (observation before, after, rewards, ended, time-out)."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.happened: list[Any] = []

    def step(self, actions: torch.Tensor) -> Any:
        before = self.state.clone()
        row = super().step(actions)
        after = self.extras.get("final_obs", self.state)
        self.happened.append(
            [part.cpu().numpy().copy() for part in (before, after, row[1], row[2], row[3]["time_outs"])]
        )
        return row

    def episodes(self) -> list[tuple[Any, ...]]:
        """Return observations, rewards and both flags of each episode, environment by environment."""
        extras = []
        for env in range(self.num_envs):
            observations, rewards = [], []
            for before, after, reward, ended, late in self.happened:
                observations.append(before[env])
                rewards.append(reward[env])
                if ended[env] or after is self.happened[-1][1]:
                    flags = (bool(ended[env] and not late[env]), bool(late[env]))
                    extras.append((np.stack([*observations, after[env]]), np.stack(rewards), *flags))
                    observations, rewards = [], []
        return extras


def adapted(simulator: Any, **kwargs: Any) -> TorchVectorEnv:
    return TorchVectorEnv(simulator, OBSERVATION_SPACE, ACTION_SPACE, **kwargs)


def runner_of(env: TorchVectorEnv) -> SingleAgentEnvRunner:
    return SingleAgentEnvRunner(env, MLPPolicy(OBSERVATION_SPACE, ACTION_SPACE), seed=0)


@pytest.mark.parametrize("device", DEVICES)
def test_simulator_episodes_equal_its_log(device: str) -> None:
    simulator = Watched(16, device, limit=15)
    pack = runner_of(adapted(simulator)).sample(num_timesteps=16 * 50)
    extras = simulator.episodes()
    assert len(pack) == len(extras)
    assert {episode.ending.name for episode in pack} == {"TERMINATED", "TRUNCATED", "OPEN"}
    for episode, (observations, rewards, terminated, truncated) in zip(pack, extras, strict=True):
        assert np.array_equal(episode.get_observations(), observations)
        assert np.array_equal(episode.get_rewards(), rewards)
        assert (episode.is_terminated, episode.is_truncated) == (terminated, truncated)


@pytest.mark.parametrize("device", DEVICES)
def test_fill_rollout_equals_log_of_simulator(device: str) -> None:
    simulator = Watched(16, device, limit=15)
    env, policy = adapted(simulator), MLPPolicy(OBSERVATION_SPACE, ACTION_SPACE).to(device)
    buffer, edge, chunks = RolloutBuffer(16, 25, 4, 1, device), BlockEdge(16, "SameStep"), []
    for _ in range(2):
        rollout = fill_rollout(env, policy, buffer.start_rollout())
        buffer.add(rollout)
        values = policy.compute_values({"obs": rollout["obs"].flatten(0, 1)})
        assert torch.allclose(rollout["value"].flatten(), values, atol=1e-5)
        chunks.append(rollout_to_episodes(add_advantages(buffer.get(flatten=False), gamma=0.9, lambda_=1.0), edge))
    whole = EpisodePack.concat(chunks)
    extras = {observations.tobytes(): tuple(flags) for observations, _, *flags in simulator.episodes()}
    begun_and_ended = [episode for episode in whole if episode.is_done and not episode.t_started]
    assert {episode.ending.name for episode in begun_and_ended} == {"TERMINATED", "TRUNCATED"}
    for episode in begun_and_ended:
        flags = extras[episode.get_observations().tobytes()]
        assert flags == (episode.is_terminated, episode.is_truncated)


def test_fill_rollout_without_last_observations_repeats() -> None:
    env = adapted(TorchCartPole(4, limit=5, gives_final=False), missing_final_observation="repeat")
    rollout = fill_rollout(
        env, MLPPolicy(OBSERVATION_SPACE, ACTION_SPACE), RolloutBuffer(4, 12, 4, 1, "cpu").start_rollout()
    )
    final = rollout.get_non_tensor("final")
    assert torch.equal(final.obs, rollout["obs"].flatten(0, 1)[final.rows])
    with pytest.raises(InvalidArgument, match="the rollout has 3 environments"):
        fill_rollout(env, None, RolloutBuffer(3, 12, 4, 1, "cpu").start_rollout())


@pytest.mark.parametrize("device", DEVICES)
def test_returned_rows_survive_reused_tensors(device: str) -> None:
    env = adapted(TorchCartPole(4, device, limit=3), info_keys=("log", "time_outs"))
    first, _ = env.reset(seed=0)
    copied = first.copy()
    rows = [env.step(np.zeros(4, int)) for _ in range(3)]
    assert np.array_equal(first, copied)
    assert rows[0][4]["log"] != rows[1][4]["log"]
    assert [row[3].any() for row in rows] == [False, False, True]


class Nothing(TorchCartPole):
    """Simulator whose last observations are None."""

    def step(self, actions: torch.Tensor) -> Any:
        *row, extras = super().step(actions)
        return *row, {**extras, "final_obs": None}


@pytest.mark.parametrize("simulator", [TorchCartPole(4, limit=5, gives_final=False), Nothing(4, limit=5)])
def test_simulator_without_last_observations_raises(simulator: Any) -> None:
    with pytest.raises(TrackMismatch, match=r"no 'final_obs' \(it has .*'log'.*missing_final_observation=\"repeat\""):
        runner_of(adapted(simulator)).sample(num_timesteps=100)


def test_bfloat16_rows_are_recorded_as_float32() -> None:
    class Short(TorchCartPole):
        def step(self, actions: torch.Tensor) -> Any:
            observations, rewards, *remaining = super().step(actions)
            return observations, rewards.bfloat16(), *remaining

    assert set(runner_of(adapted(Short(4))).sample(num_timesteps=400).rewards.tolist()) == {1.0}


def test_missing_last_observation_repeats_if_asked() -> None:
    simulator = TorchCartPole(4, limit=5, gives_final=False)
    pack = runner_of(adapted(simulator, missing_final_observation="repeat")).sample(num_timesteps=100)
    for episode in pack:
        last, before = episode.get_observations([-1, -2])
        assert np.array_equal(last, before) == episode.is_done


def test_infos_of_last_step_belong_to_ended_episode() -> None:
    pack = runner_of(adapted(TorchCartPole(4, limit=5), info_keys=("log",))).sample(num_timesteps=100)
    for episode in pack:
        assert [("log" in info) for info in episode.get_infos()] == [False] + [True] * len(episode)


def test_simulator_may_be_stepped_outside_of_runner() -> None:
    simulator = TorchCartPole(4)
    runner_of(adapted(simulator)).sample(num_timesteps=8)
    simulator.state.add_(1)
    assert not simulator.state.is_inference()


class FiveFold:
    """Simulator with grouped observations, two flags, other names of last observations, and no time-outs."""

    def __init__(self, simulator: TorchCartPole) -> None:
        self.simulator = simulator

    def reset(self) -> Any:
        return {"policy": self.simulator.reset()[0], "critic": torch.zeros(4, 9)}

    def step(self, actions: torch.Tensor) -> Any:
        observations, rewards, dones, extras = self.simulator.step(actions)
        late = extras["time_outs"]
        grouped = {"policy": observations, "critic": torch.zeros(4, 9)}
        return grouped, rewards, dones & ~late, late.int(), {"before_reset": {"policy": extras["final_obs"]}}


def test_simulator_with_five_results_and_groups_works() -> None:
    simulator = FiveFold(TorchCartPole(4, limit=5))
    names = {"observation_key": "policy", "final_observations": "before_reset"}
    check_vector_env(adapted(simulator, num_envs=4, **names), num_steps=40, reproducible=False)
    with pytest.raises(
        UnknownKey, match=r"observation_key='actor': the simulator's observations are a dict with \['policy'"
    ):
        adapted(simulator, num_envs=4, observation_key="actor").reset()
    with pytest.raises(InvalidArgument, match="FiveFold has no attribute num_envs"):
        adapted(simulator)


def test_incomplete_simulator_raises() -> None:
    simulator = TorchCartPole(4)
    with pytest.raises(InvalidArgument, match='give "raise" or "repeat"'):
        adapted(simulator, missing_final_observation="previous")
    env = adapted(simulator, time_outs="timeouts")
    env.reset()
    with pytest.raises(ShapeMismatch, match=r"actions have shape \(3,\); give \(4,\)"):
        env.step(np.zeros(3, int))
    with pytest.raises(TrackMismatch, match=r"no 'timeouts' \(it has .*name its key: time_outs="):
        env.step(np.zeros(4, int))
    env.simulator.step = lambda actions: actions
    with pytest.raises(WrongType, match="tuple of four or five: a Tensor"):
        env.step(np.zeros(4, int))


def test_foreign_vector_environment_names_its_adapter() -> None:
    with pytest.raises(WrongType, match=r"TorchCartPole steps 4 environments .* give TorchVectorEnv\(simulator, "):
        SingleAgentEnvRunner(TorchCartPole(4))
    with pytest.raises(WrongType, match="several agents: give it to a MultiAgentEnvRunner"):
        SingleAgentEnvRunner(simple_spread_v3.parallel_env())


def test_simulator_gets_actions_in_dtype_of_space() -> None:
    class Pushed(TorchCartPole):
        def step(self, actions: torch.Tensor) -> Any:
            assert actions.dtype == torch.float32
            assert actions.shape == (4, 1)
            return super().step(actions[:, 0])

    space = gym.spaces.Box(0, 1, (1,), np.float32)
    env = TorchVectorEnv(Pushed(4), OBSERVATION_SPACE, space)
    SingleAgentEnvRunner(env, MLPPolicy(OBSERVATION_SPACE, space), seed=0).sample(num_timesteps=40)
    env.step(np.zeros((4, 1)))
