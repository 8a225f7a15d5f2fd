"""Checks of replay features in RLlib: `PrioritizedEpisodeReplayBuffer` for transitions, `EpisodeReplayBuffer` for
sequences.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.abilities import rows


def fill(buffer: Any, ending: str) -> Any:
    """Add the two test episodes to an RLlib buffer, ending in "terminated" or "truncated", and return the buffer."""
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode

    for start in rows.STARTS:
        buffer.add(
            [
                SingleAgentEpisode(
                    observations=[np.array([k], np.float32) for k in range(start, start + rows.LENGTH + 1)],
                    actions=[0] * rows.LENGTH,
                    rewards=list(np.ones(rows.LENGTH)),
                    terminated=ending == "terminated",
                    truncated=ending == "truncated",
                    len_lookback_buffer=0,
                ).to_numpy()
            ]
        )
    return buffer


def transition_buffer(ending: str) -> Any:
    """Return RLlib's `PrioritizedEpisodeReplayBuffer`, which samples transitions, with the test episodes."""
    from ray.rllib.utils.replay_buffers import PrioritizedEpisodeReplayBuffer

    return fill(PrioritizedEpisodeReplayBuffer(capacity=1000), ending)


def sequence_buffer(ending: str) -> Any:
    """Return RLlib's `EpisodeReplayBuffer`, which samples sequences, with the test episodes."""
    from ray.rllib.utils.replay_buffers import EpisodeReplayBuffer

    return fill(EpisodeReplayBuffer(capacity=1000), ending)


def end_observations(episodes: list[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return the first observation of each sampled part of an episode, and the last observation of each."""
    first, last = ([episode.get_observations(i) for episode in episodes] for i in (0, -1))
    return np.array(first), np.array(last)


def n_step_draws_reach_the_end() -> bool:
    """Return True if n-step samples of RLlib include the last steps of an episode."""
    return rows.has_all_steps(
        end_observations(transition_buffer("terminated").sample(rows.DRAWS, n_step=3, beta=0.4))[0]
    )


def time_limits_keep_their_observation() -> bool:
    """Return True if RLlib's samples contain the last observation of a truncated episode."""
    return rows.has_right_next_observations(
        *end_observations(transition_buffer("truncated").sample(rows.DRAWS, n_step=1, beta=0.4))
    )


def environments_are_drawn_independently() -> bool:
    """Return True if RLlib samples steps of episodes that started together independently of each other."""
    from ray.rllib.env.single_agent_episode import SingleAgentEpisode
    from ray.rllib.utils.replay_buffers import EpisodeReplayBuffer

    buffer: Any = EpisodeReplayBuffer(capacity=rows.NUM_ENVS * rows.NUM_ROWS)
    for _ in range(rows.NUM_ENVS):
        observations = [np.array([t], np.float32) for t in range(rows.NUM_ROWS + 1)]
        arguments: dict[str, Any] = {
            "actions": [0] * rows.NUM_ROWS,
            "rewards": [1.0] * rows.NUM_ROWS,
            "len_lookback_buffer": 0,
        }
        buffer.add([SingleAgentEpisode(observations=observations, **arguments).to_numpy()])
    return rows.are_independent(buffer.sample(batch_size_B=256, batch_length_T=1)["obs"])


def sequences_stay_in_their_episode() -> bool:
    """Return True if no sequence sampled by RLlib contains steps of two episodes."""
    drawn = sequence_buffer("terminated").sample(batch_size_B=200, batch_length_T=4)
    return rows.are_inside_one_episode(drawn["obs"][..., 0])


def a_restored_buffer_draws_the_same() -> bool:
    """Return True if an RLlib buffer restored from `get_state` returns the same samples as the original."""
    from ray.rllib.utils.replay_buffers import EpisodeReplayBuffer

    buffer: Any = sequence_buffer("terminated")
    copy: Any = EpisodeReplayBuffer(capacity=1000)
    copy.set_state(buffer.get_state())
    drawn, drawn_by_copy = (each.sample(batch_size_B=20, batch_length_T=1)["obs"] for each in (buffer, copy))
    return np.array_equal(drawn, drawn_by_copy)


def a_changed_beta_changes_the_weights() -> bool:
    """Return True if a change of beta changes the importance weights of RLlib's samples."""
    buffer = transition_buffer("terminated")
    buffer.sample(5, n_step=1, beta=0.0)
    buffer.update_priorities(np.full(5, 0.1))
    counts = []
    for beta in (0.0, 1.0):
        drawn = buffer.sample(100, n_step=1, beta=beta)
        weights = [np.ravel(episode.get_extra_model_outputs("weights")) for episode in drawn]
        counts.append(len(np.unique(np.concatenate(weights))))
    return counts[0] == 1 < counts[1]


def whole_episodes_come_back() -> bool:
    """Return True if RLlib's buffer stores complete episodes as they were added."""
    (episode, *_) = sequence_buffer("truncated").episodes
    return len(episode) == rows.LENGTH and episode.is_truncated and rows.has_all_steps(episode.get_observations())
