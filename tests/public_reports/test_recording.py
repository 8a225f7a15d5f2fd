"""Public reports of users who recorded episodes with other libraries: what each of them did is right here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces

from episode_runners import SingleAgentEnvRunner, make_vector_env
from episodes import MultiAgentEpisode, SingleAgentEpisode, VectorRecorder
from episodes.errors import InvalidArgument, ShapeMismatch, TrackMismatch
from episodes.storage import EpisodeDataset, RecordEpisodes


class Counting(gym.Env):
    """Environment that counts its steps into one array, which it always returns."""

    observation_space = spaces.Box(0, 255, (1,), np.uint8)
    action_space: spaces.Space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, length: int = 3) -> None:
        self.length = length
        self.seen, self.info = np.zeros(1, np.uint8), {"t": 0}

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.seen[:] = self.info["t"] = 0
        return self.seen, self.info

    def step(self, action: Any) -> Any:
        self.seen += 1
        self.info["t"] += 1
        return self.seen, 1.0, bool(self.seen[0] == self.length), False, self.info


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_gymnasium_same_step_last_observation_of_a_reused_buffer(kind: str) -> None:
    """Gymnasium: `final_obs` and `final_info` held the reset's values if the environment reused its objects."""
    env = make_vector_env(Counting, 2, autoreset_mode="SameStep", vectorization=kind)
    runner = SingleAgentEnvRunner(env, seed=0)
    for episode in runner.sample(num_episodes=4, random_actions=True):
        assert episode.get_observations()[:, 0].tolist() == [0, 1, 2, 3]
        assert [info["t"] for info in episode.get_infos()] == [0, 1, 2, 3]
    runner.close()


def test_baselines_vector_environment_reuses_its_observation_buffer() -> None:
    """OpenAI Baselines: `DummyVecEnv` returned one buffer at each step, and stored observations were all the same."""
    recorder, buffer, no = VectorRecorder(2, autoreset_mode="NextStep"), np.zeros((2, 1)), np.zeros(2, bool)
    recorder.reset(buffer)
    for t in range(1, 4):
        buffer[:] = t
        recorder.step(buffer, np.zeros(2), np.ones(2), no, no)
    assert recorder.take()[1].get_observations()[:, 0].tolist() == [0, 1, 2, 3]


def test_rllib_episode_keeps_the_callers_array() -> None:
    """RLlib: `add_env_step` stored a reference, so a loop with one observation array had the last value everywhere."""
    env, episode = Counting(), SingleAgentEpisode()
    episode.add_env_reset(*env.reset())
    for _ in range(3):
        observation, reward, terminated, truncated, info = env.step(None)
        episode.add_env_step(observation, 0, reward, info, terminated=terminated, truncated=truncated)
    assert [int(item[0]) for item in episode.get_observations()] == [0, 1, 2, 3]
    assert [info["t"] for info in episode.get_infos()] == [0, 1, 2, 3]


def test_sb3_image_scaled_by_the_environment_is_black() -> None:
    """SB3: an environment divided its images by 255, though its space was uint8, and the agent learned nothing."""

    class Scaled(Counting):
        def step(self, action: Any) -> Any:
            observation, *others = super().step(action)
            return (observation / np.float32(255), *others)

    runner = SingleAgentEnvRunner(lambda: Scaled(), num_envs=2, seed=0)
    with pytest.raises((ShapeMismatch, TrackMismatch), match="float32; the space has uint8, which cannot hold"):
        runner.sample(num_timesteps=4, random_actions=True)


def test_gymnasium_action_clipped_in_place_by_the_environment(tmp_path: Path) -> None:
    """Gymnasium: an environment clipped `action` in place, and the stored action was not the policy's."""

    class Clipping(Counting):
        def step(self, action: Any) -> Any:
            np.clip(action, 0, 0, out=action)
            return super().step(action)

    env = RecordEpisodes(Clipping(), tmp_path)
    env.reset()
    for _ in range(3):
        env.step(np.array([0.5], np.float32))
    env.close()
    assert EpisodeDataset(tmp_path)[0].get_actions()[:, 0].tolist() == [0.5] * 3
    recorded = SingleAgentEnvRunner(Clipping, num_envs=2, seed=0).sample(num_timesteps=8, random_actions=True)
    assert (recorded.actions != 0).all()


def test_sb3_contrib_multi_discrete_mask_of_different_sizes() -> None:
    """sb3-contrib: masks of a MultiDiscrete space failed if its choices had different sizes."""

    class Masked(Counting):
        action_space = spaces.MultiDiscrete([4, 2, 3])
        observation_space: Any = spaces.Dict(action_mask=spaces.MultiBinary(9), t=Counting.observation_space)
        mask = np.array([0, 1, 0, 0, 0, 1, 1, 0, 1], np.int8)

        def reset(self, **options: Any) -> Any:
            observation, info = super().reset(**options)
            return {"action_mask": self.mask, "t": observation}, info

        def step(self, action: Any) -> Any:
            observation, *others = super().step(action)
            return ({"action_mask": self.mask, "t": observation}, *others)

    pack = SingleAgentEnvRunner(Masked, num_envs=2, seed=0).sample(num_timesteps=60, random_actions=True)
    assert set(map(tuple, pack.actions.tolist())) == {(1, 1, 0), (1, 1, 2)}


def test_gym_time_limit_of_the_first_step_after_a_reset() -> None:
    """Gym: with next-step autoreset, users stored the reset row as a step, and episodes began one step late."""
    pack = SingleAgentEnvRunner(lambda: Counting(1), num_envs=2, seed=0).sample(num_episodes=6, random_actions=True)
    assert [episode.get_observations()[:, 0].tolist() for episode in pack] == [[0, 1]] * 6
    assert pack.returns().tolist() == [1.0] * 6


def test_pettingzoo_agent_that_returns_under_its_id() -> None:
    """PettingZoo: an agent that died and respawned under its old id had rewards of both lives in one episode."""
    episode = MultiAgentEpisode()
    episode.add_env_reset(observations={"a": 0, "b": 0})
    episode.add_env_step({"a": 1, "b": 1}, {"a": 0, "b": 0}, {"a": 1.0, "b": 1.0}, terminateds={"a": True})
    with pytest.raises(InvalidArgument, match="give an agent that comes back a new id"):
        episode.add_env_step({"a": 2, "b": 2}, {"b": 0}, {"b": 1.0})
    episode.add_env_step({"a2": 2, "b": 2}, {"b": 0}, {"b": 1.0})
    assert episode.get_return() == 3.0


def test_sb3_reward_of_shape_one() -> None:
    """SB3: an environment returned `np.array([1.0])` as its reward, and the error was about a sequence."""

    class Paying(Counting):
        def step(self, action: Any) -> Any:
            observation, _, *others = super().step(action)
            return (observation, np.ones(1), *others)

    with pytest.raises(ShapeMismatch, match=r"environment 0, step 1 .* the reward has shape \(1,\); .*\.item\(\)"):
        SingleAgentEnvRunner(Paying, num_envs=2, seed=0).sample(num_timesteps=4, random_actions=True)


def test_envpool_last_observation_wider_than_its_rows() -> None:
    """EnvPool: rows were int8, and a last observation beyond 127 wrapped around."""
    recorder, yes = VectorRecorder(1, autoreset_mode="SameStep"), np.array([True])
    recorder.reset(np.array([5], np.int8))
    last = {"final_obs": np.array([300]), "_final_obs": yes}
    recorder.step(np.array([6], np.int8), np.array([0]), np.array([1.0]), yes, ~yes, last)
    assert recorder.take()[0].get_observations().tolist() == [5, 300]
