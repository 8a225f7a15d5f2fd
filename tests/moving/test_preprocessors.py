"""Preprocessors in RLlib's style in a runner: the preprocessed observation is recorded and given to the module."""

from __future__ import annotations

import copy
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from connectors import env_to_module_pipeline
from connectors.env_to_module import SingleAgentObservationPreprocessor
from episode_runners import SingleAgentEnvRunner
from episodes.errors import EpisodeStateError
from episodes.pack import EpisodePack
from episodes.replay import EpisodeReplayBuffer
from episodes.single_agent import SingleAgentEpisode
from episodes.tracks import nested
from tests.moving.environments import Always, BoxCorridor, Corridor, NestedCorridor, PictureCorridor


class OneHot(SingleAgentObservationPreprocessor):
    """Preprocessor of a Discrete observation to a one-hot vector."""

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return gym.spaces.Box(0.0, 1.0, (int(input_observation_space.n),), np.float32)

    def preprocess(self, observation, episode):
        vector = np.zeros(self.input_observation_space.n, np.float32)
        vector[observation] = 1.0
        return vector


class RowAndColumn(SingleAgentObservationPreprocessor):
    """Preprocessor of a cell number to row and column."""

    def __init__(self, num_columns, **kwargs):
        self.num_columns = num_columns
        super().__init__(**kwargs)

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return gym.spaces.Box(0.0, self.num_columns, (2,), np.float32)

    def preprocess(self, observation, episode):
        return np.array(divmod(int(observation), self.num_columns), np.float32)


class PixelsToFloats(SingleAgentObservationPreprocessor):
    """Preprocessor of images from 0..255 to floats in 0..1, cropped to the upper half."""

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        height, *remaining = input_observation_space.shape
        return gym.spaces.Box(0.0, 1.0, (height // 2, *remaining), np.float32)

    def preprocess(self, observation, episode):
        return observation[: len(observation) // 2].astype(np.float32) / 255.0


class WithLastReward(SingleAgentObservationPreprocessor):
    """Preprocessor that adds the reward that came with the observation."""

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        size = input_observation_space.shape[0] + 1
        return gym.spaces.Box(-np.inf, np.inf, (size,), np.float32)

    def preprocess(self, observation, episode):
        reward = episode.get_rewards(-1) if len(episode) > 0 else 0.0
        return np.append(observation, reward).astype(np.float32)


class WithTime(SingleAgentObservationPreprocessor):
    """Preprocessor that adds the time step and the action before the observation."""

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return gym.spaces.Box(-np.inf, np.inf, (input_observation_space.shape[0] + 2,), np.float32)

    def preprocess(self, observation, episode):
        action = episode.get_actions(-1) if len(episode) > 0 else -1
        return np.concatenate([observation, [episode.t, action]]).astype(np.float32)


class WithSpeed(SingleAgentObservationPreprocessor):
    """Preprocessor that adds the difference from the previous preprocessed observation."""

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)

    def preprocess(self, observation, episode):
        before = episode.get_observations(-2)[0] if len(episode) > 0 else observation[0]
        return np.array([observation[0], observation[0] - before], np.float32)


class PartsOfADict(SingleAgentObservationPreprocessor):
    """Preprocessor of two parts of a nested observation to one vector, without the image."""

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        return gym.spaces.Box(0.0, np.inf, (3,), np.float32)

    def preprocess(self, observation, episode):
        flag, box = observation["flags"]
        return np.array([observation["place"], flag, *box], np.float32)


class MaskInObservation(SingleAgentObservationPreprocessor):
    """Preprocessor to a Dict of the observation and the action mask in the infos."""

    def recompute_output_observation_space(self, input_observation_space, input_action_space):
        mask = gym.spaces.Box(0, 1, (int(input_action_space.n),), np.int8)
        return gym.spaces.Dict({"observations": input_observation_space, "action_mask": mask})

    def preprocess(self, observation, episode):
        mask = episode.get_infos(-1)["action_mask"]
        return {"observations": observation, "action_mask": np.asarray(mask, np.int8)}


class RunningMaximum(SingleAgentObservationPreprocessor):
    """Preprocessor that divides by the largest observation so far, a state that can be saved and restored."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self._max = 1.0

    def preprocess(self, observation, episode):
        self._max = max(self._max, float(observation.max()))
        return observation / np.float32(self._max)

    def get_state(self, components=None, *, not_components=None, **kwargs):
        return {"max": self._max}

    def set_state(self, state):
        self._max = state["max"]


MODES = list(AutoresetMode)


def sampled(env: Any, piece: Any, mode: AutoresetMode = AutoresetMode.NEXT_STEP) -> tuple[EpisodePack, Always]:
    """Return the episodes of three calls of a runner with two environments and the preprocessor."""
    environment, policy = env(), Always(1)
    pipeline = env_to_module_pipeline(environment.observation_space, environment.action_space, pieces=[piece])
    runner = SingleAgentEnvRunner(env, policy, num_envs=2, env_to_module=pipeline, autoreset_mode=mode, seed=0)
    pack = EpisodePack.concat([runner.sample(num_timesteps=n) for n in (7, 6, 20)])
    assert pack.observation_space == pipeline.observation_space
    return pack, policy


def check_seen(pack: EpisodePack, policy: Always) -> None:
    """Check that the policy's inputs are the recorded observations, or rows whose action was not taken."""
    observed_rows = {tuple(row) for batch in policy.seen for row in batch["obs"].flatten(1).tolist()}
    recorded = {tuple(np.ravel(row).tolist()) for episode in pack for row in episode.get_observations()}
    assert observed_rows <= recorded


@pytest.mark.parametrize("mode", MODES)
def test_discrete_observation_becomes_a_vector(mode):
    pack, policy = sampled(Corridor, OneHot(), mode)
    check_seen(pack, policy)
    for episode in pack:
        assert (episode.get_observations().argmax(-1) == np.arange(episode.t_started, episode.t + 1)).all()


def test_cell_becomes_its_row_and_column():
    pack, policy = sampled(Corridor, RowAndColumn(num_columns=2))
    check_seen(pack, policy)
    for episode in pack:
        assert episode.get_observations().tolist() == [[*divmod(t, 2)] for t in range(episode.t_started, episode.t + 1)]


def test_pictures_become_floats_of_another_shape():
    pack, policy = sampled(PictureCorridor, PixelsToFloats())
    assert pack.observations.shape[1:] == (2, 5, 1)
    assert pack.observations.dtype == np.float32
    assert pack.observations.max() == 1
    check_seen(pack, policy)


@pytest.mark.parametrize("mode", MODES)
def test_preprocessor_reads_the_reward_of_the_observation(mode):
    pack, policy = sampled(BoxCorridor, WithLastReward(), mode)
    check_seen(pack, policy)
    for episode in pack:
        assert (episode.get_observations()[1:, 1] == episode.get_rewards()).all()
        assert episode.t_started or episode.get_observations(0)[1] == 0


@pytest.mark.parametrize("mode", MODES)
def test_preprocessor_reads_the_time_and_the_last_action(mode):
    pack, _ = sampled(BoxCorridor, WithTime(), mode)
    for episode in pack:
        times = np.arange(episode.t_started, episode.t + 1)
        assert (episode.get_observations()[:, 1] == times).all()
        assert (episode.get_observations()[:, 2] == np.where(times, 1, -1)).all()


@pytest.mark.parametrize("mode", MODES)
def test_preprocessor_reads_its_previous_output(mode):
    pack, policy = sampled(BoxCorridor, WithSpeed(), mode)
    check_seen(pack, policy)
    for episode in pack:
        times = np.arange(episode.t_started, episode.t + 1)
        assert episode.get_observations().tolist() == np.stack([times, times > 0], 1).tolist()


def test_parts_of_a_nested_observation_become_one_vector():
    pack, policy = sampled(NestedCorridor, PartsOfADict())
    check_seen(pack, policy)
    for episode in pack:
        times = np.arange(episode.t_started, episode.t + 1)
        assert (episode.get_observations() == np.stack([times, times > 0, 0.5 + 0 * times], 1)).all()


@pytest.mark.parametrize("mode", MODES)
def test_preprocessor_reads_the_infos_of_the_observation(mode):
    pack, _ = sampled(BoxCorridor, MaskInObservation(), mode)
    for episode in pack:
        observations = episode.get_observations()
        assert (observations["action_mask"][:, 0] == (observations["observations"][:, 0] > 0)).all()


def test_preprocessor_state_is_part_of_pipeline_state():
    corridor, policy = BoxCorridor(), Always(1)
    pipeline = env_to_module_pipeline(corridor.observation_space, corridor.action_space, pieces=[RunningMaximum()])
    runner = SingleAgentEnvRunner(BoxCorridor, policy, env_to_module=pipeline)
    pack = runner.sample(num_episodes=1)
    assert pack[0].get_observations()[:, 0].tolist() == [0, 1, 1, 1, 1]
    state = runner.get_state()
    assert state["env_to_module"] == {"RunningMaximum": {"max": 4.0}}
    runner.set_state(state)
    assert runner.sample(num_episodes=1)[0].get_observations()[:, 0].tolist() == [0, 0.25, 0.5, 0.75, 1]


class Keeps(SingleAgentObservationPreprocessor):
    """Preprocessor that keeps its input episodes, and reads some of these at once."""

    def __init__(self, *args, looks, **kwargs):
        self.looks, self.kept = looks, []
        super().__init__(*args, **kwargs)

    def preprocess(self, observation, episode):
        self.kept.append(episode)
        if self.looks:
            assert len(episode) == episode.t
        return observation


def test_episode_of_preprocessor_must_be_read_in_time():
    read, unread = Keeps(looks=True), Keeps(looks=False)
    for piece in (read, unread):
        corridor = BoxCorridor()
        pipeline = env_to_module_pipeline(corridor.observation_space, corridor.action_space, pieces=[piece])
        SingleAgentEnvRunner(BoxCorridor, Always(1), env_to_module=pipeline).sample(num_episodes=1)
    assert [episode.get_observations()[-1] for episode in read.kept] == [0, 1, 2, 3, 4]
    assert [episode.get_return() for episode in copy.deepcopy(read.kept[3:])] == pytest.approx([-0.3, 0.7])
    assert isinstance(read.kept[0], SingleAgentEpisode)
    with pytest.raises(EpisodeStateError, match="read it within preprocess"):
        len(unread.kept[-1])
    with pytest.raises(AttributeError, match="an episode has no attribute 'length'"):
        _ = read.kept[0].length


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("piece", [WithLastReward, WithTime, WithSpeed, MaskInObservation])
def test_preprocessors_work_the_same_with_replay_buffers(piece, mode):
    corridor = BoxCorridor()
    episodes = []
    for into_buffer in (False, True):
        pipeline = env_to_module_pipeline(corridor.observation_space, corridor.action_space, pieces=[piece()])
        runner = SingleAgentEnvRunner(
            BoxCorridor, Always(1), num_envs=2, env_to_module=pipeline, autoreset_mode=mode, seed=0
        )
        if into_buffer:
            buffer = EpisodeReplayBuffer(1000)
            for count in (7, 6, 20):
                runner.sample_into(buffer, num_timesteps=count)
            episodes.append([episode.get_observations() for episode in buffer.iter_episodes() if episode.is_done])
        else:
            episodes.append([e.get_observations() for e in runner.sample(num_timesteps=33) if e.is_done])
    assert len(episodes[0]) >= 6
    for packed, stored in zip(*episodes, strict=False):
        assert nested.equal(packed, stored)


class NotesSteps(SingleAgentObservationPreprocessor):
    """Preprocessor that counts in `custom_data` its observations after steps."""

    def preprocess(self, observation, episode):
        if len(episode):
            episode.custom_data["seen"] = episode.custom_data.get("seen", 0) + 1
        return observation


@pytest.mark.parametrize("mode", [AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED])
def test_custom_data_written_by_preprocessor_is_sampled(mode):
    pack, _ = sampled(BoxCorridor, NotesSteps(), mode)
    for episode in pack:
        assert episode.t - 1 <= episode.custom_data.get("seen", 0) <= episode.t
