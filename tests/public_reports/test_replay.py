"""Public reports of users of other libraries on replay: each is tried here as its user wrote it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from connectors.views.frame_stacking import FrameStacking
from connectors.views.view import Views
from episode_runners import SingleAgentEnvRunner, make_vector_env
from episodes import SingleAgentEpisode
from episodes.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer
from episodes.storage import EpisodeDataset, EpisodeWriter

BOX, DISCRETE = spaces.Box(-9999, 9999, (1,), np.float32), spaces.Discrete(2)
CLASSES = [EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer]


def numbered(id_: int, length: int, **options: Any) -> SingleAgentEpisode:
    """Return an episode with the observations 100 id, 100 id + 1, ..."""
    observations = (100 * id_ + np.arange(length + 1)).astype(np.float32)[:, None]
    options = {"terminated": True, **options}
    return SingleAgentEpisode.from_arrays(observations, np.zeros(length, int), np.ones(length), id_=f"{id_}", **options)


@pytest.mark.parametrize("cls", CLASSES)
def test_stacks_at_the_head_of_a_full_buffer(cls: Any) -> None:
    """CS285 homework: in a full buffer, stacks at the write position held new frames and those of 1M steps before."""
    buffer, views = cls(20, seed=0), Views([FrameStacking(num_frames=4).see], BOX, DISCRETE)
    for id_ in range(1, 9):
        buffer.add(numbered(id_, 7))
    stacks = buffer.sample(300, views=views).obs
    first = 100 * (stacks[:, -1:] // 100)
    assert (stacks == np.where(stacks[:, -1:] - [3, 2, 1, 0] >= first, stacks[:, -1:] - [3, 2, 1, 0], 0)).all()


@pytest.mark.parametrize("cls", CLASSES)
def test_last_step_of_an_episode_is_sampled_in_sequences(cls: Any) -> None:
    """TorchRL: `SliceSampler` never returned the last step of a trajectory."""
    buffer = cls(100, seed=0)
    buffer.add([numbered(1, 5), numbered(2, 3)])
    batch = buffer.sample_sequences(200, 3)
    assert set(batch.obs[batch.loss_mask][:, 0].tolist()) == {*range(100, 105), *range(200, 203)}
    assert batch.terminateds[batch.obs[..., 0] == 104].all()


def test_prioritized_sequences_do_not_cross_trajectories() -> None:
    """TorchRL: `PrioritizedSliceSampler` returned slices with steps of two trajectories."""
    buffer = PrioritizedEpisodeReplayBuffer(30, seed=0)
    for id_ in range(1, 12):
        buffer.add(numbered(id_, 4))
    sampled = buffer.sample(20)
    buffer.update_priorities(sampled.indices, np.linspace(0.1, 5, 20))
    batch = buffer.sample_sequences(200, 3)
    for row, mask in zip(batch.obs[..., 0], batch.loss_mask, strict=True):
        assert len(set(row[mask] // 100)) == 1
        assert (np.diff(row[mask]) == 1).all()


def test_window_of_selected_episodes(tmp_path: Path) -> None:
    """LeRobot: with `episodes=[1, 2]`, the frames around a step were taken at the indices of other episodes."""
    with EpisodeWriter(tmp_path) as writer:
        writer.add([numbered(id_, 6) for id_ in range(5)])
    selected = EpisodeDataset(tmp_path).select([1, 3])
    assert [selected.steps(i, 2, 4).get_observations()[:, 0].tolist() for i in range(2)] == [
        [102, 103, 104],
        [302, 303, 304],
    ]
    buffer = EpisodeReplayBuffer.from_dataset(selected, seed=0)
    assert {*(buffer.sample(100).obs[:, 0] // 100).tolist()} == {1, 3}
    batch = next(iter(selected.sampler(steps=100, seed=0)))
    assert {*(batch.obs[:, 0] // 100).tolist()} == {1, 3}


def test_restored_prioritized_buffer_has_its_weights() -> None:
    """Tianshou: a prioritized buffer that was loaded from a file had lost its weights."""
    buffer = PrioritizedEpisodeReplayBuffer(100, seed=0)
    buffer.add(numbered(1, 20))
    buffer.update_priorities(np.arange(20), np.arange(1.0, 21.0))
    restored = PrioritizedEpisodeReplayBuffer(100, seed=3)
    restored.set_state(buffer.get_state())
    first, second = buffer.sample(50), restored.sample(50)
    assert (first.weights == second.weights).all()
    assert (first.obs == second.obs).all()


def test_steps_before_the_end_have_fewer_rewards_than_n() -> None:
    """Rainbow is all you need: near the end, an n-step sample was discounted by gamma ** n, whatever was summed."""
    buffer = EpisodeReplayBuffer(100, seed=0)
    buffer.add([numbered(1, 5), numbered(2, 5, terminated=False, truncated=True)])
    batch = buffer.sample(200, n_step=3, gamma=0.5, keys=["obs", "new_obs", "rewards", "t", "terminateds"])
    assert (batch.n_step == np.minimum(3, 5 - batch.t)).all()
    assert (batch.new_obs[:, 0] - batch.obs[:, 0] == batch.n_step).all()
    assert (batch.rewards == np.array([0, 1, 1.5, 1.75])[batch.n_step]).all()
    assert (batch.terminateds == ((batch.t + batch.n_step == 5) & (batch.obs[:, 0] < 200))).all()


class Short(gym.Env):
    """An environment of three steps, whose observation is the number of the step."""

    observation_space, action_space = BOX, DISCRETE

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self.t = 0
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.t += 1
        return np.full(1, self.t, np.float32), float(self.t), self.t == 3, False, {}


@pytest.mark.parametrize("mode", ["NextStep", "SameStep", "Disabled"])
def test_boundaries_between_episodes_are_no_transitions(mode: str) -> None:
    """TF-Agents: the replay buffer was filled with transitions from a last step to the first of the next episode."""
    runner = SingleAgentEnvRunner(make_vector_env(Short, 2, autoreset_mode=mode), seed=0)
    buffer = EpisodeReplayBuffer(200, seed=0)
    runner.sample_into(buffer, num_timesteps=60, random_actions=True)
    batch = buffer.sample(300)
    assert (batch.new_obs[:, 0] == batch.obs[:, 0] + 1).all()
    assert (batch.rewards == batch.new_obs[:, 0]).all()
    assert (batch.terminateds == (batch.new_obs[:, 0] == 3)).all()


@pytest.mark.parametrize("length", [1, 2])
def test_episodes_shorter_than_the_stack_and_n(length: int) -> None:
    """slimDQN (car on hill): episodes with fewer steps than the stack or n steps were never sampled."""
    buffer = EpisodeReplayBuffer(100, seed=0)
    buffer.add([numbered(id_, length) for id_ in range(1, 5)])
    batch = buffer.sample(200, n_step=5, views=Views([FrameStacking(num_frames=4).see], BOX, DISCRETE))
    assert {*(batch.obs[:, -1] // 100).tolist()} == {1, 2, 3, 4}
    assert batch.terminateds.all()
    assert (batch.obs[:, 0] == 0).all()


def test_environment_state_object_in_the_info() -> None:
    """Gymnasium: the info had the simulator's state object, and all stored infos showed its last state."""

    class State:
        position = 0

    class Simulator(Short):
        def __init__(self) -> None:
            self.state = State()

        def step(self, action: Any) -> Any:
            *result, _ = super().step(action)
            self.state.position = self.t
            return *result, {"state": self.state}

    env, episode = Simulator(), SingleAgentEpisode()
    episode.add_env_reset(*env.reset())
    for _ in range(3):
        observation, reward, terminated, truncated, info = env.step(0)
        episode.add_env_step(observation, 0, reward, info, terminated=terminated, truncated=truncated)
    assert [info["state"].position for info in episode.get_infos()[1:]] == [1, 2, 3]
    pack = SingleAgentEnvRunner(Simulator, seed=0).sample(num_episodes=1, random_actions=True)
    assert [info["state"].position for info in pack[0].get_infos()[1:]] == [1, 2, 3]
