"""Public reports about replay buffers: one sentence on what the person did, and the right result here."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from episode_runners import SingleAgentEnvRunner
from episodes import SingleAgentEpisode
from episodes.errors import EpisodeError
from episodes.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer

BUFFERS = [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer]


def episode(number: int, num: int, **ending: bool) -> SingleAgentEpisode:
    """Return an episode with the observations 1000 * number + t, and rewards of 1."""
    times = np.arange(num + 1.0) + 1000 * number
    return SingleAgentEpisode.from_arrays(times, np.arange(num), np.ones(num), id_=f"e{number}", **ending)


class Counting(gym.Env):
    """Environment whose observation is the time, with a time limit of five steps."""

    observation_space = spaces.Box(0, 5, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full(1, self.t, np.float32), 1.0, False, self.t == 5, {}


@pytest.mark.parametrize("maker", BUFFERS)
def test_sb3_saved_memory_and_lost_the_observation_at_the_time_limit(maker: Any) -> None:
    """SB3: `optimize_memory_usage` stored each observation once, and a time limit was followed by the next reset."""
    buffer = maker(100, seed=0)
    buffer.add([episode(k, 5, truncated=True) for k in range(10)])
    drawn = buffer.sample(200)
    assert np.array_equal(drawn.new_obs, drawn.obs + 1)
    assert drawn.truncateds.any()
    assert not drawn.terminateds.any()


@pytest.mark.parametrize("mode", ["NextStep", "SameStep"])
def test_flashbax_took_the_first_observation_after_a_reset_as_the_next_one(mode: str) -> None:
    """flashbax: with automatic resets, the step after a truncated one was the reset, and targets used it."""
    runner = SingleAgentEnvRunner(Counting, num_envs=3, seed=0, autoreset_mode=mode)
    buffer = EpisodeReplayBuffer(100, seed=0)
    runner.sample_into(buffer, num_timesteps=60, random_actions=True)
    drawn = buffer.sample(200)
    assert np.array_equal(drawn.new_obs, drawn.obs + 1)
    assert np.array_equal(drawn.truncateds, drawn.new_obs[:, 0] == 5)


@pytest.mark.parametrize("maker", BUFFERS)
@pytest.mark.parametrize("capacity", [100, 17])
def test_n_step_return_reaches_beyond_the_newest_step(maker: Any, capacity: int) -> None:
    """Tianshou: in a buffer that was not full, n-step returns read positions that were never written; FastTD3: in a
    full one they went on with the oldest steps.
    """
    buffer = maker(capacity, seed=0)
    buffer.add([episode(k, 10 - k) for k in range(4)])
    drawn = buffer.sample(300, n_step=5, gamma=0.5)
    left = np.array([10 - k for k in (drawn.obs // 1000).astype(int)]) - drawn.obs % 1000
    assert np.array_equal(drawn.n_step, np.minimum(left, 5))
    assert np.array_equal(drawn.new_obs, drawn.obs + drawn.n_step)
    np.testing.assert_allclose(drawn.rewards, 2 - 0.5 ** (drawn.n_step - 1.0))


def test_tianshou_ignored_the_reward_of_the_last_step() -> None:
    """Tianshou: a user read in the documentation that the reward of the terminal step is masked in n-step returns."""
    buffer = EpisodeReplayBuffer(10, seed=0)
    buffer.add(SingleAgentEpisode.from_arrays(np.arange(4.0), np.zeros(3), np.array([0.0, 0.0, 8.0]), terminated=True))
    drawn = buffer.at(np.arange(3), n_step=3, gamma=0.5)
    assert (drawn.rewards.tolist(), drawn.terminateds.tolist()) == ([2.0, 4.0, 8.0], [True] * 3)


@pytest.mark.parametrize("maker", BUFFERS)
def test_torchrl_slices_crossed_trajectories(maker: Any) -> None:
    """TorchRL: `PrioritizedSliceSampler` began slices too near to the end of a trajectory, and took the next one."""
    buffer = maker(40, seed=0)
    for k in range(12):
        buffer.add(episode(k, 3 + k % 5, terminated=True))
    drawn = buffer.sample_sequences(200, 4)
    for obs, is_valid in zip(drawn.obs, drawn.loss_mask, strict=True):
        steps = obs[is_valid.astype(bool)]
        assert np.array_equal(steps, steps[0] + np.arange(len(steps)))


@pytest.mark.parametrize("maker", BUFFERS)
def test_torchrl_slices_failed_when_the_storage_was_full(maker: Any) -> None:
    """TorchRL: `SliceSampler` raised at capacity, because the oldest trajectory was cut to less than a slice."""
    buffer = maker(20, seed=0)
    for k in range(30):
        buffer.add(episode(k, 7, terminated=True))
        drawn = buffer.sample_sequences(8, 6)
        assert drawn.obs.shape == (8, 6)
        assert drawn.loss_mask.any(1).all()


def test_torchrl_slices_of_one_trajectory_were_joined() -> None:
    """TorchRL: two slices of one episode lay next to each other in a batch, and `split_trajectories` joined them."""
    buffer = EpisodeReplayBuffer(50, seed=0)
    buffer.add(episode(0, 30, terminated=True))
    chunks = buffer.sample_chunks(20, 5)
    for chunk in chunks.pack:
        assert len(chunk) <= 5
        assert np.array_equal(chunk.get_observations(), chunk.t_started + np.arange(len(chunk) + 1.0))


def test_rllib_new_steps_had_a_low_priority() -> None:
    """RLlib: new steps got the priority 1 and not the largest one, so that they were hardly sampled."""
    buffer = PrioritizedEpisodeReplayBuffer(100, alpha=1.0, seed=0)
    buffer.add(episode(0, 10))
    buffer.update_priorities(np.arange(10), np.full(10, 50.0))
    buffer.add(episode(1, 10))
    assert buffer.priorities(np.arange(10, 20)).tolist() == [50.0] * 10


def test_baselines_never_sampled_the_newest_step() -> None:
    """Stable Baselines: the sum of all priorities left out the newest step, which was never sampled."""
    buffer = PrioritizedEpisodeReplayBuffer(8, seed=0)
    buffer.add(episode(0, 8))
    assert set(buffer.sample(500).indices.tolist()) == set(range(8))


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -1.0])
def test_muzero_priority_became_nan(wrong: float) -> None:
    """muzero-general: the loss was NaN once, and many steps later no game could be sampled."""
    buffer = PrioritizedEpisodeReplayBuffer(8, seed=0)
    buffer.add(episode(0, 8))
    with pytest.raises(EpisodeError, match="priorit"):
        buffer.update_priorities(np.arange(3), np.array([1.0, wrong, 1.0]))
    assert len(set(buffer.priorities(np.arange(8)).tolist())) == 1


def test_julia_sum_tree_returned_a_step_without_priority() -> None:
    """ReinforcementLearning.jl: rounding in the sum tree gave an empty position, and all weights became nearly 0."""
    buffer = PrioritizedEpisodeReplayBuffer(1000, alpha=1.0, beta=1.0, seed=0)
    buffer.add(episode(0, 3))
    buffer.update_priorities(np.arange(3), np.array([1e-6, 1e6, 1e-6]))
    drawn = buffer.sample(5000)
    assert set(drawn.indices.tolist()) <= {0, 1, 2}
    assert drawn.weights.min() > 0


def test_muesli_stored_the_newest_episode_many_times() -> None:
    """Muesli: the lists of the episode were cleared and used again, so all stored episodes were the newest one."""
    buffer, observations = EpisodeReplayBuffer(100, seed=0), np.zeros(4)
    for k in range(3):
        observations[:] = 1000 * k + np.arange(4)
        buffer.add(SingleAgentEpisode.from_arrays(observations, np.zeros(3), np.zeros(3), id_=str(k), terminated=True))
    assert sorted(buffer.at(np.arange(9)).obs.tolist()) == [0, 1, 2, 1000, 1001, 1002, 2000, 2001, 2002]


def test_sb3_step_that_terminates_at_the_time_limit() -> None:
    """SB3: a user asked whether a step that ends the task and reaches the time limit has a value after it."""
    buffer = EpisodeReplayBuffer(10, seed=0)
    buffer.add(episode(0, 4, terminated=True, truncated=True))
    drawn = buffer.at(np.arange(4))
    assert drawn.terminateds.tolist() == drawn.truncateds.tolist() == [False] * 3 + [True]
