"""Conversion of episodes to RLlib's classes, for RLlib's own learners."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode as RLlibMultiAgentEpisode
from ray.rllib.env.single_agent_episode import SingleAgentEpisode as RLlibEpisode
from ray.rllib.utils.metrics import WEIGHTS_SEQ_NO

from episodes.converters import to_rllib
from episodes.facts.policy_versions import UNKNOWN
from episodes.multi_agent import MultiAgentEpisode
from episodes.single_agent import SingleAgentEpisode

__all__ = ["rllib_episodes"]


def rllib_episodes(episodes: Iterable[Any], agent_to_module_mapping_fn: Callable[..., str] | None = None) -> list[Any]:
    """Convert finalized episodes to RLlib's episode classes. Arrays of observations are shared, not copied.

    Args:
        episodes: single-agent or multi-agent episodes.
        agent_to_module_mapping_fn: the config's function, for multi-agent episodes.
    """
    return [
        _rllib_multi_agent_episode(episode, agent_to_module_mapping_fn)
        if isinstance(episode, MultiAgentEpisode)
        else _rllib_episode(episode)
        for episode in episodes
    ]


def _rllib_multi_agent_episode(
    episode: MultiAgentEpisode, agent_to_module_mapping_fn: Callable[..., str] | None
) -> RLlibMultiAgentEpisode:
    """Convert a multi-agent episode to RLlib's class. Agents without a step are left out."""
    (converted,), _ = to_rllib([episode], action_mapping="normalize")
    converted.agent_to_module_mapping_fn = agent_to_module_mapping_fn
    # RLlib's runners leave out agents without a step, and its buffers cannot append to an agent without one.
    converted.agent_episodes = {
        agent_id: _rllib_episode(agent_episode)
        for agent_id, agent_episode in episode.agent_episodes.items()
        if len(agent_episode)
    }
    return converted


def _rllib_episode(episode: SingleAgentEpisode) -> RLlibEpisode:
    """Convert a finalized single-agent episode to RLlib's class, with the same arrays and lookback."""
    lookback = episode.observations.lookback
    everything = slice(-lookback, None) if lookback else slice(None)
    read = {"indices": everything, "neg_index_as_lookback": True}
    versions = episode.get_policy_versions()
    known = versions[0] if len(versions) else UNKNOWN
    outputs = {key: episode.get_extra_model_outputs(key, **read) for key in episode.extra_model_outputs}
    converted = RLlibEpisode(
        episode.id_,
        observations=episode.get_observations(**read),
        observation_space=episode.observation_space,
        infos=list(episode.get_infos(**read)),
        actions=episode.get_actions(**read),
        action_space=episode.env_action_space,
        rewards=episode.get_rewards(**read),
        terminated=episode.is_terminated,
        truncated=episode.is_truncated,
        extra_model_outputs=outputs | {WEIGHTS_SEQ_NO: np.concatenate([np.full(lookback, known), versions])},
        t_started=episode.t_started,
        len_lookback_buffer=lookback,
        agent_id=episode.agent_id,
        module_id=episode.module_id,
        multi_agent_episode_id=episode.multi_agent_episode_id,
    )
    converted.custom_data.update(episode.custom_data)
    return converted
