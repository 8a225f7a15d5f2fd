"""Public reports about places where two features meet: n-step returns and time limits, statistics and
evaluation, rewards and turns.

Each test has a sentence on what the person did with the library that is named, and asserts the right value here.
"""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from connectors import env_to_module_pipeline
from connectors.env_to_module import MeanStdFilter
from episode_learners import MLPPolicy
from episode_runners import MultiAgentEnvRunner, SingleAgentEnvRunner, evaluate
from episodes import SingleAgentEpisode
from episodes.replay import EpisodeReplayBuffer
from episodes.returns import gae


class Steps(gym.Env):
    """Environment whose observation is the number of steps, with a time limit of 5."""

    observation_space, action_space = spaces.Box(0, 100, (1,)), spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full(1, self.t, np.float32), float(self.t), False, self.t == 5, {}


def episode(num_steps: int, **ending: bool) -> SingleAgentEpisode:
    arrays = np.arange(num_steps + 1.0)[:, None], np.zeros(num_steps, np.int64), np.arange(1.0, num_steps + 1)
    return SingleAgentEpisode.from_arrays(*arrays, **ending)


@pytest.mark.parametrize("later", [0, 1, 3])
def test_n_step_returns_end_at_a_time_limit(later: int) -> None:
    """TF-Agents: rewards and next observations of n-step transitions came from the episode after a time limit."""
    buffer = EpisodeReplayBuffer(100, seed=0)
    for chunk in [episode(4, truncated=True), *(episode(4, truncated=True) for _ in range(later))]:
        buffer.add(chunk)
    batch = buffer.sample(200, n_step=3, gamma=0.5)
    start = batch.obs[:, 0].astype(int)
    steps = np.minimum(3, 4 - start)
    expected = [sum(0.5**k * (t + k + 1) for k in range(n)) for t, n in zip(start, steps, strict=True)]
    assert batch.rewards.tolist() == expected
    assert batch.n_step.tolist() == steps.tolist()
    assert batch.new_obs[:, 0].tolist() == (start + steps).tolist()
    assert not batch.terminateds.any()


def test_n_step_returns_do_not_pass_the_write_position() -> None:
    """FastTD3: n-step samples of a full buffer joined the newest steps with the oldest ones behind them."""
    buffer = EpisodeReplayBuffer(10, seed=0)
    for _ in range(9):
        buffer.add(episode(7, terminated=True))
    batch = buffer.sample(300, n_step=5, gamma=1.0)
    start = batch.obs[:, 0].astype(int)
    assert batch.new_obs[:, 0].tolist() == (start + batch.n_step).tolist()
    assert batch.rewards.tolist() == [sum(range(t + 1, t + n + 1)) for t, n in zip(start, batch.n_step, strict=True)]


@pytest.mark.parametrize("mode", AutoresetMode)
def test_the_last_observation_of_a_time_limit_is_of_its_episode(mode: AutoresetMode) -> None:
    """ML-Agents and Baselines: a timeout was bootstrapped with the first observation of the next episode."""
    runner = SingleAgentEnvRunner(Steps, num_envs=2, autoreset_mode=mode, seed=0)
    pack = runner.sample(num_episodes=4, random_actions=True)
    assert [chunk.get_observations(-1).tolist() for chunk in pack] == [[5.0]] * 4
    buffer = EpisodeReplayBuffer(100, seed=0)
    runner.sample_into(buffer, num_timesteps=30, random_actions=True)
    batch = buffer.sample(200)
    assert np.array_equal(batch.new_obs, batch.obs + 1)


def test_evaluation_changes_no_statistics() -> None:
    """A user of SB3: evaluation environments with `VecNormalize` changed their running statistics."""
    pipeline = env_to_module_pipeline(Steps.observation_space, Steps.action_space, pieces=[MeanStdFilter()])
    policy = MLPPolicy(Steps.observation_space, Steps.action_space)
    runner = SingleAgentEnvRunner(Steps, policy, env_to_module=pipeline, seed=0)
    runner.sample(num_timesteps=20)
    before = repr(runner.env_to_module.get_state())
    first, second = (evaluate(runner, num_episodes=3, seed=1) for _ in range(2))
    assert repr(runner.env_to_module.get_state()) == before
    assert first.returns.tolist() == second.returns.tolist() == [15.0] * 3  # raw rewards


class Race:
    """Two agents in turn: "a" acts, then "b", and the last action of "b" pays -1 to "a" and 1 to "b"."""

    possible_agents = agents = ["a", "b"]
    observation_spaces: Any = dict.fromkeys(possible_agents, spaces.Box(0, 9, (1,)))
    action_spaces: Any = dict.fromkeys(possible_agents, spaces.Discrete(2))

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return {"a": np.zeros(1, np.float32)}, {}

    def step(self, actions: Any) -> Any:
        assert list(actions) == ["ab"[self.t % 2]]
        self.t += 1
        row = np.full(1, self.t, np.float32)
        if self.t == 4:
            return dict.fromkeys("ab", row), {"a": -1.0, "b": 1.0}, {"__all__": True}, {"__all__": False}, {}
        rewards = {"a": 0.0, "b": 0.0} if self.t > 1 else {"a": 0.0}
        return {"ab"[self.t % 2]: row}, rewards, {"__all__": False}, {"__all__": False}, {}

    def close(self) -> None:
        """Do nothing, since no resource is open."""


def test_the_reward_of_the_other_ones_last_move_is_kept() -> None:
    """PettingZoo: the loser of tic-tac-toe gets its -1 when the winner moves, after its own last action."""
    (game,) = MultiAgentEnvRunner(Race()).sample(num_episodes=1, random_actions=True)
    rewards = {agent: part.get_rewards().tolist() for agent, part in game.agent_episodes.items()}
    assert rewards == {"a": [0.0, -1.0], "b": [0.0, 1.0]}
    assert all(part.is_terminated for part in game.agent_episodes.values())


def test_advantages_of_a_time_limit_stay_in_their_episode() -> None:
    """skrl: with a time limit, advantages either leaked into the episode before, or a timeout counted as an end."""
    rewards, values = np.ones(6), np.array([1.0, 2.0, 3.0, 4.0] * 2)  # of two episodes with 3 steps and a last value
    truncateds = np.ones(2, bool)
    advantages, _ = gae(rewards, values, ~truncateds, truncateds, gamma=0.5, lambda_=1.0, offsets=[0, 3, 6])
    deltas = 1 + 0.5 * values[1:4] - values[:3]
    expected = [deltas[0] + 0.5 * deltas[1] + 0.25 * deltas[2], deltas[1] + 0.5 * deltas[2], deltas[2]]
    assert np.allclose(advantages, expected * 2)


def test_a_stored_transition_has_its_last_observation_and_no_end() -> None:
    """d3rlpy: the last observation of an episode was dropped, and the end of its data counted as a terminal state."""
    buffer = EpisodeReplayBuffer(10, seed=0)
    buffer.add(episode(3))
    batch = buffer.sample(100)
    assert sorted(set(batch.new_obs[:, 0].tolist())) == [1.0, 2.0, 3.0]
    assert not batch.terminateds.any()
