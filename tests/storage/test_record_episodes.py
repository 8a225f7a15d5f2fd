"""Recording of single and vector environments in each autoreset mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.envs.registration import EnvSpec
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from episode_runners import Hook, RecordSamples, SingleAgentEnvRunner
from episodes.errors import EpisodeStateError, InvalidArgument, WrongType
from episodes.replay import EpisodeReplayBuffer
from episodes.storage import EpisodeDataset, EpisodeWriter, RecordEpisodes


class Counting(gym.Env):
    """Environment whose observation is the step count, in a reused array. It ends after `length` steps."""

    observation_space = spaces.Dict({"n": spaces.Box(-1e6, 1e6, (2,), np.float32), "d": spaces.Discrete(100)})
    action_space = spaces.Discrete(50)

    def __init__(self, length: int = 4) -> None:
        self.length = length
        self.array = np.zeros(2, np.float32)
        self.info: dict[str, Any] = {}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.t = 0
        return self._now()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        observation, info = self._now()
        return observation, float(action), self.t == self.length, False, info

    def _now(self) -> tuple[Any, dict[str, Any]]:
        if self.t == 0:
            self.array = np.zeros(2, np.float32)  # or Gymnasium's own last observations would change
        self.array[:] = self.t
        self.info.update(t=self.t, array=self.array)
        return {"n": self.array, "d": self.t % 100}, self.info


def check_episode(episode: Any) -> None:
    """Check that a chunk is one of `Counting`."""
    text = episode.t_started + np.arange(len(episode) + 1)
    observations = episode.get_observations()
    assert observations["n"][:, 0].tolist() == observations["d"].tolist() == text.tolist()
    assert episode.get_rewards().tolist() == episode.get_actions().tolist()


@pytest.mark.parametrize("chunk_steps", [None, 3])
def test_record_episodes_writes_every_episode(tmp_path: Path, chunk_steps: int | None) -> None:
    env = RecordEpisodes(Counting(), tmp_path, chunk_steps=chunk_steps)
    for seed in range(3):
        env.reset(seed=seed)
        for t in range(4):
            env.step(t + seed)
    env.reset()
    env.step(1)
    env.reset()  # breaks off an episode of one step
    env.close()
    result = EpisodeDataset(tmp_path, verify=True)
    for chunk in result:
        check_episode(chunk)
        assert [info["t"] for info in chunk.infos] == (chunk.t_started + np.arange(len(chunk) + 1)).tolist()
        assert chunk.infos[0]["array"].tolist() == [chunk.t_started] * 2
    lengths = [4, 4, 4, 1] if chunk_steps is None else [3, 1, 3, 1, 3, 1, 1]
    assert result.metadata["length"].tolist() == lengths
    assert result.metadata["terminated"].tolist() == [length != 3 for length in lengths[:-1]] + [False]
    assert result.metadata["seed"].tolist()[:1] == [0]
    assert len(set(result.metadata["id"])) == 4
    assert result.env_spec is None
    assert result.action_space == Counting.action_space


@pytest.mark.parametrize("chunk_steps", [None, 3])
@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_record_vector_episodes_writes_every_step(tmp_path: Path, mode: AutoresetMode, chunk_steps: int | None) -> None:
    vector = SyncVectorEnv([lambda n=n: Counting(n) for n in (2, 3, 5)], autoreset_mode=mode)
    env, num_steps = RecordEpisodes(vector, tmp_path, chunk_steps=chunk_steps), 0
    env.reset(seed=0)
    before = np.zeros(3, bool)
    for t in range(20):
        _, _, terminated, truncated, _ = env.step(np.array([t, t, t]))
        num_steps += 3 - (int(before.sum()) if mode is AutoresetMode.NEXT_STEP else 0)
        before = done = terminated | truncated
        if mode is AutoresetMode.DISABLED and done.any():
            env.reset(options={"reset_mask": done})
            before = np.zeros(3, bool)
    env.close()
    result = EpisodeDataset(tmp_path, verify=True)
    assert result.num_steps == num_steps
    for chunk in result:
        check_episode(chunk)
    if chunk_steps is None:
        ended = result.metadata["length"][result.metadata["terminated"]]
        assert set(ended.tolist()) == {2, 3, 5}


class Clipping(gym.Env):
    """Changes the action that it is given."""

    observation_space = spaces.Box(-9, 9, ())
    action_space = spaces.Box(-9, 9, (2,))

    def __init__(self, limit: Any = 1) -> None:
        pass

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        return np.float32(0), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        np.clip(action, -1, 1, out=action)
        return np.float32(1), 0.0, True, False, {}


@pytest.mark.parametrize("is_vector", [False, True])
def test_recorded_action_is_not_clipped(tmp_path: Path, is_vector: bool) -> None:
    env: Any = RecordEpisodes(SyncVectorEnv([Clipping]) if is_vector else Clipping(), tmp_path)
    env.reset()
    env.step(np.full((1, 2) if is_vector else 2, 5, np.float32))
    env.close()
    assert EpisodeDataset(tmp_path)[0].get_actions().tolist() == [[5, 5]]


SPECS: list[dict[str, Any]] = [
    {"entry_point": Clipping},
    {"entry_point": "test_record_episodes:Clipping", "kwargs": {"limit": len}},
    {"entry_point": "test_record_episodes:Clipping", "kwargs": {"limit": (1, 2)}},
]


@pytest.mark.parametrize("spec", SPECS, ids=["a class", "a function", "a tuple"])
def test_env_without_json_spec_is_recorded_by_id(tmp_path: Path, spec: dict[str, Any]) -> None:
    gym.register("Clipping-v0", **spec)
    try:
        for _ in range(2):
            env = RecordEpisodes(gym.make("Clipping-v0", disable_env_checker=True), tmp_path)
            env.reset()
            env.step(np.ones(2, np.float32))
            env.close()
    finally:
        del gym.registry["Clipping-v0"]
    dataset = EpisodeDataset(tmp_path)
    assert len(dataset) == 2
    assert getattr(dataset.env_spec, "id", dataset.env_spec) == "Clipping-v0"
    if "kwargs" not in spec:
        with pytest.raises(WrongType, match=r"JSON cannot represent.*give its id, 'Clipping-v0'"):
            EpisodeWriter(tmp_path, env_spec=EnvSpec("Clipping-v0", **spec))


def test_step_without_reset_raises(tmp_path: Path) -> None:
    env = RecordEpisodes(Counting(1), tmp_path)
    with pytest.raises(EpisodeStateError, match="call reset"):
        env.step(0)
    env.reset()
    env.step(0)
    with pytest.raises(EpisodeStateError, match="call reset"):
        env.step(0)
    with pytest.raises(InvalidArgument, match="chunk_steps=0"):
        RecordEpisodes(Counting(1), tmp_path, chunk_steps=0)
    env.close()


def test_runner_hook_writes_samples(tmp_path: Path) -> None:
    with RecordSamples(tmp_path) as hook:
        runner = SingleAgentEnvRunner("CartPole-v1", num_envs=2, hooks=[hook], seed=0)
        sampled = [runner.sample(num_timesteps=40, random_actions=True) for _ in range(3)]
        assert EpisodeDataset(tmp_path).num_steps >= 120  # flushed
        runner.close()
    assert [e.id_ for e in EpisodeDataset(tmp_path, verify=True)] == [e.id_ for pack in sampled for e in pack]


def test_runner_hook_rejects_samples_into_a_buffer(tmp_path: Path) -> None:
    with RecordSamples(tmp_path) as hook:
        runner = SingleAgentEnvRunner("CartPole-v1", hooks=[hook], seed=0)
        with pytest.raises(WrongType, match="RecordSamples: sample_into returns no episodes; write the buffer to disk"):
            runner.sample_into(EpisodeReplayBuffer(100), num_timesteps=5, random_actions=True)
        runner.close()


class TellsSeeds(Hook):
    """Notes the seed of each environment's first episode, as Gymnasium's vector environments deal it out."""

    def __init__(self) -> None:
        self.told: set[int] = set()

    def on_episode_start(self, runner: Any, env: int, episode: Any) -> None:
        if env not in self.told:
            self.told.add(env)
            episode.custom_data["seed"] = runner.seed + env


@pytest.mark.parametrize(("hooked", "expected"), [(False, [-1] * 4), (True, [7, -1, 8, -1])])
def test_seed_column_needs_a_hook_that_sets_it(tmp_path: Path, hooked: bool, expected: list[int]) -> None:
    hooks = [TellsSeeds()] if hooked else []
    with (
        SingleAgentEnvRunner("CartPole-v1", num_envs=2, seed=7, hooks=hooks) as runner,
        EpisodeWriter(tmp_path) as writer,
    ):
        writer.add(runner.sample(num_episodes=4, random_actions=True))
    result, env = EpisodeDataset(tmp_path), gym.make("CartPole-v1")
    assert result.metadata["seed"].tolist() == expected
    for first, seed in ((result[0], 7), (result[2], 8)):
        assert np.array_equal(env.reset(seed=seed)[0], first.get_observations(0))
