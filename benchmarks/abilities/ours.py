"""Checks of replay features in this library: `EpisodeReplayBuffer` and `PrioritizedEpisodeReplayBuffer`."""

from __future__ import annotations

import gymnasium as gym
import numpy as np

from benchmarks.abilities import rows
from episodes import SingleAgentEpisode
from episodes.replay import EpisodeReplayBuffer, PrioritizedEpisodeReplayBuffer

WIDE = 256  # numbers in an observation: one that is stored once, small ones lie beside their step as well


def filled_buffer(ending: str, width: int = 1) -> EpisodeReplayBuffer:
    """Return a replay buffer with the two test episodes, whose observations have `width` equal elements."""
    buffer = EpisodeReplayBuffer(1000, seed=0)
    for start in rows.STARTS:
        observations = np.arange(start, start + rows.LENGTH + 1, dtype=np.float32)[:, None].repeat(width, 1)
        episode = SingleAgentEpisode.from_arrays(
            observations,
            np.zeros(rows.LENGTH, np.int64),
            np.ones(rows.LENGTH, np.float32),
            terminated=ending == "terminated",
            truncated=ending == "truncated",
        )
        buffer.add([episode])
    return buffer


def n_step_draws_reach_the_end() -> bool:
    """Return True if n-step samples include the last steps of an episode."""
    return rows.has_all_steps(filled_buffer("terminated").sample(rows.DRAWS, n_step=3).obs)


def time_limits_keep_their_observation() -> bool:
    """Return True if the buffer stores each observation once, and still returns the last observation of a truncated
    episode.
    """
    buffer = filled_buffer("truncated", WIDE)
    drawn = buffer.sample(rows.DRAWS)
    stored_twice = buffer.capacity * 2 * WIDE * np.dtype(np.float32).itemsize
    return buffer.nbytes < 0.6 * stored_twice and rows.has_right_next_observations(drawn.obs[:, 0], drawn.new_obs[:, 0])


def environments_are_drawn_independently() -> bool:
    """Return True if the buffer samples steps of parallel environments independently of each other."""
    buffer = EpisodeReplayBuffer(rows.NUM_ENVS * rows.NUM_ROWS, seed=0)
    recorder = buffer.recorder(rows.NUM_ENVS, autoreset_mode=gym.vector.AutoresetMode.NEXT_STEP)
    recorder.reset(np.zeros((rows.NUM_ENVS, 1), np.float32))
    never, ones = np.zeros(rows.NUM_ENVS, bool), np.ones(rows.NUM_ENVS)
    for t in range(rows.NUM_ROWS):
        recorder.step(np.full((rows.NUM_ENVS, 1), t + 1, np.float32), np.zeros(rows.NUM_ENVS, int), ones, never, never)
    return rows.are_independent(buffer.sample(256).obs)


def sequences_stay_in_their_episode() -> bool:
    """Return True if no sampled sequence contains steps of two episodes."""
    drawn = filled_buffer("terminated").sample_sequences(rows.DRAWS, 4)
    return rows.are_inside_one_episode(drawn.obs[..., 0], drawn.loss_mask)


def a_restored_buffer_draws_the_same() -> bool:
    """Return True if a buffer restored from `get_state` returns the same samples as the original."""
    buffer, copy = filled_buffer("terminated"), EpisodeReplayBuffer(1000)
    copy.set_state(buffer.get_state())
    return np.array_equal(buffer.sample(20).obs, copy.sample(20).obs)


def one_seed_fixes_all_draws() -> bool:
    """Return True if samples of a seeded prioritized buffer do not depend on numpy's and torch's global random
    state.
    """

    def draw() -> np.ndarray:
        """Return the indices of 50 samples of a new prioritized buffer with seed 3."""
        buffer = PrioritizedEpisodeReplayBuffer(1000, seed=3)
        buffer.add(filled_buffer("terminated").sample_episodes(2))
        return buffer.sample(50).indices

    return rows.ignores_global_seeds(draw)


def a_changed_beta_changes_the_weights() -> bool:
    """Return True if a change of beta changes the importance weights of samples."""
    buffer = PrioritizedEpisodeReplayBuffer(1000, beta=0.0, seed=0)
    buffer.add(list(filled_buffer("terminated").iter_episodes()))
    buffer.update_priorities(np.arange(5), np.full(5, 0.1))
    before = np.unique(buffer.sample(100).weights)
    buffer.set_beta(1.0)
    return len(before) == 1 < len(np.unique(buffer.sample(100).weights))


def an_add_that_fails_changes_nothing() -> bool:
    """Return True if adding an episode of another shape raises an error and leaves the buffer unchanged."""
    buffer = filled_buffer("terminated")
    before = len(buffer)
    try:
        buffer.add([SingleAgentEpisode.from_arrays(np.zeros((3, 2)), np.zeros(2, int), np.zeros(2))])
    except ValueError:
        return len(buffer) == buffer.num_added == before
    return False


def whole_episodes_come_back() -> bool:
    """Return True if the buffer returns complete episodes as they were added."""
    (episode, *_) = filled_buffer("truncated").iter_episodes()
    return len(episode) == rows.LENGTH and episode.is_truncated and rows.has_all_steps(episode.get_observations())
