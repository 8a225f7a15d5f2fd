"""Replay recorders against packs of a `VectorRecorder` that are added to a buffer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from hypothesis import given, settings
from hypothesis import strategies as st

from episodes import VectorRecorder
from episodes.errors import EpisodeStateError, InvalidArgument
from episodes.replay import EpisodeReplayBuffer
from episodes.replay.replay_recorder import ReplayRecorder
from episodes.single_agent import SingleAgentEpisode
from tests.reference_replay import LastObservations

MODES = list(AutoresetMode)


class Countdown(gym.Env[np.ndarray, int]):
    """Environment with unique observations, and episodes of random lengths that end in both ways."""

    observation_space = gym.spaces.Box(-1e9, 1e9, (2,), np.float64)
    action_space = gym.spaces.Discrete(5)

    def __init__(self, number: int, longest: int) -> None:
        self.count = 1000 * number
        self.longest = longest
        self.left = 0

    def observe(self) -> np.ndarray:
        self.count += 1
        return np.array([self.count, -self.count], np.float64)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, self.longest + 1))
        return self.observe(), {"left": self.left}

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict]:
        self.left -= 1
        done, mode = self.left == 0, bool(self.np_random.integers(2))
        info = {"left": self.left, "odd": True} if self.left % 2 else {"left": self.left}
        return self.observe(), self.count / 8, done and mode, done and not mode, info


def vector_env(num_envs: int, mode: AutoresetMode, longest: int = 6) -> SyncVectorEnv:
    return SyncVectorEnv([lambda i=i: Countdown(i, longest) for i in range(num_envs)], autoreset_mode=mode)


def play(env: SyncVectorEnv, num_steps: int, recorders: list[Any], seed: int = 0) -> Iterator[int]:
    """Step the environment and feed all recorders. Yield after each step."""
    observations, infos = env.reset(seed=seed)
    for recorder in recorders:
        recorder.reset(observations, infos)
    rng = np.random.default_rng(seed)
    for number in range(num_steps):
        actions = rng.integers(0, 5, env.num_envs)
        extras = {"vf_preds": rng.random(env.num_envs)}
        observations, rewards, terminateds, truncateds, infos = env.step(actions)
        for recorder in recorders:
            recorder.step(observations, actions, rewards, terminateds, truncateds, infos, extras)
        done = terminateds | truncateds
        yield number
        if env.metadata["autoreset_mode"] is AutoresetMode.DISABLED and done.any():
            observations, infos = env.reset(options={"reset_mask": done})
            for recorder in recorders:
                recorder.reset(observations, infos, done)


def contents(episode: SingleAgentEpisode) -> tuple[Any, ...]:
    """Return all contents of an episode but its random id."""
    extras = {key: episode.get_extra_model_outputs(key).tolist() for key in episode.extra_model_outputs}
    tracks = (episode.get_observations(), episode.get_actions(), episode.get_rewards())
    ending = (episode.t_started, episode.is_terminated, episode.is_truncated)
    infos = [{key: int(value) for key, value in info.items()} for info in episode.infos]
    return (*(track.tolist() for track in tracks), extras, infos, *ending)


def stored(buffer: EpisodeReplayBuffer) -> list[tuple[Any, ...]]:
    return [contents(episode) for episode in buffer.iter_episodes()]


@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=40)
@given(num_envs=st.integers(1, 4), capacity=st.integers(8, 60), longest=st.integers(1, 9), seed=st.integers(0, 9))
def test_replay_recorder_equals_adding_packs(
    mode: AutoresetMode, num_envs: int, capacity: int, longest: int, seed: int
) -> None:
    straight, packed = EpisodeReplayBuffer(capacity, seed=1), EpisodeReplayBuffer(capacity, seed=1)
    recorder = VectorRecorder(num_envs, autoreset_mode=mode)
    env = vector_env(num_envs, mode, longest)
    for number in play(env, 40, [straight.recorder(num_envs, autoreset_mode=mode), recorder], seed):
        packed.add(recorder.take())
        assert len(straight) == len(packed)
        if number % 5 == 0:
            assert stored(straight) == stored(packed)
            for stack in (1, 2):
                views = LastObservations(stack) if stack > 1 else None
                first, second = (buffer.sample(8, n_step=3, views=views) for buffer in (straight, packed))
                assert all(np.array_equal(values, second[key]) for key, values in first.items())
    assert stored(straight) == stored(packed)


@pytest.mark.parametrize("mode", MODES)
def test_replay_recorder_continues_next_to_added_episodes(mode: AutoresetMode) -> None:
    buffer, alone = EpisodeReplayBuffer(60, seed=0), EpisodeReplayBuffer(10_000, seed=0)
    recorders: list[Any] = [b.recorder(3, autoreset_mode=mode) for b in (buffer, alone)]
    for number in play(vector_env(3, mode), 60, recorders):
        length = number % 20 + 1
        demonstration = SingleAgentEpisode.from_arrays(
            np.full((length + 1, 2), -1.0),
            np.zeros(length, np.int64),
            np.zeros(length),
            extra_model_outputs={"vf_preds": np.zeros(length)},
        )
        buffer.add([demonstration])
        for episode in buffer.iter_episodes():
            episode.validate()
            played = episode.get_observations()[:, 0]
            if played[0] != -1:
                assert (np.diff(played) == 1).all()
        batch = buffer.sample(20)
        real = batch.obs[:, 0] != -1
        assert (batch.new_obs[real, 0] == batch.obs[real, 0] + 1).all()
    assert {e.get_observations(0)[0] for e in alone.iter_episodes()} > {1.0, 1001.0, 2001.0}


def test_reset_in_mid_episode_cuts_chunk() -> None:
    buffer = EpisodeReplayBuffer(100, seed=0)
    recorder = buffer.recorder(2, autoreset_mode=AutoresetMode.NEXT_STEP)
    no, episode_of_env = np.zeros(2, bool), np.ones(2)
    recorder.reset(np.zeros(2))
    recorder.step(np.ones(2), episode_of_env, episode_of_env, no, no)
    recorder.reset(np.array([7.0, 7.0]))
    recorder.step(np.array([8.0, 8.0]), episode_of_env, episode_of_env, no, no)
    batch = buffer.sample(200, n_step=2)
    assert set(zip(batch.obs.tolist(), batch.new_obs.tolist(), strict=True)) == {(0.0, 1.0), (7.0, 8.0)}
    assert (batch.n_step == 1).all()
    assert not (batch.terminateds | batch.truncateds).any()


def test_recorded_observations_are_stored_once() -> None:
    shape, num_envs, capacity = (1024,), 64, 12_800
    buffer = EpisodeReplayBuffer(capacity, seed=0)
    recorder = buffer.recorder(num_envs, autoreset_mode=AutoresetMode.NEXT_STEP)
    no = np.zeros(num_envs, bool)
    rows = np.zeros((num_envs, *shape), np.uint8)
    recorder.reset(rows)
    for number in range(2 * capacity // num_envs):
        recorder.step(rows, np.zeros(num_envs, np.int64), np.zeros(num_envs, np.float32), no, no | (number % 100 == 99))
    both = capacity * (2 * 1024 + 8 + 4 + 2)
    assert len(buffer) == capacity
    assert buffer.nbytes < 0.55 * both


def recorder_of(buffer: EpisodeReplayBuffer, num_envs: int = 2) -> ReplayRecorder:
    return buffer.recorder(num_envs, autoreset_mode=AutoresetMode.DISABLED)


def row(value: float, num_envs: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    no = np.zeros(num_envs, bool)
    return np.full((num_envs, 3), float(value)), np.zeros(num_envs, np.int64), np.zeros(num_envs), no, no


@pytest.mark.parametrize("restores", [False, True])
def test_recorder_continues_after_clear_or_set_state_and_reset(restores: bool) -> None:
    buffer = EpisodeReplayBuffer(10, seed=0)
    recorder = recorder_of(buffer)
    recorder.reset(row(0)[0])
    recorder.step(*row(1))
    state = buffer.get_state()
    buffer.clear()
    if restores:
        buffer.set_state(state)
    with pytest.raises(EpisodeStateError, match="before the reset"):
        recorder.step(*row(2))
    recorder.reset(row(5)[0])
    recorder.step(*row(6))
    recorder.step(*row(7))
    batch = buffer.sample(100, n_step=2)
    assert set(batch.obs[:, 0].tolist()) == ({0, 5, 6} if restores else {5, 6})
    assert set((batch.new_obs - batch.obs)[:, 0].tolist()) == {1, 2}


def test_step_after_own_episodes_are_evicted_raises() -> None:
    buffer = EpisodeReplayBuffer(4, seed=0)
    recorder = recorder_of(buffer)
    recorder.reset(row(0)[0])
    recorder.step(*row(1))
    buffer.add([SingleAgentEpisode.from_arrays(np.zeros((5, 3)), np.zeros(4, np.int64), np.zeros(4))])
    with pytest.raises(EpisodeStateError, match="evicted the ongoing episodes"):
        recorder.step(*row(2))


@pytest.mark.parametrize("num_envs", [0, 6])
def test_recorder_with_too_many_envs_raises(num_envs: int) -> None:
    with pytest.raises(InvalidArgument, match="num_envs="):
        recorder_of(EpisodeReplayBuffer(10), num_envs)
