"""Multi-agent replay buffers that need more memory than there is: an error by name, before anything changes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from episodes import MultiAgentEpisode
from episodes.errors import InvalidArgument
from episodes.replay import (
    MultiAgentEpisodeReplayBuffer,
    MultiAgentPrioritizedEpisodeReplayBuffer,
    multi_agent_buffer,
)

BUFFERS = [MultiAgentEpisodeReplayBuffer, MultiAgentPrioritizedEpisodeReplayBuffer]


def episode_of(num_agents: int, module: str = "shared") -> MultiAgentEpisode:
    agents = [f"agent_{i}" for i in range(num_agents)]
    episode = MultiAgentEpisode(agent_to_module_mapping_fn=lambda agent_id, episode: module)
    observations = {agent: np.zeros(4, np.float32) for agent in agents}
    episode.add_env_reset(observations=observations)
    episode.add_env_step(
        observations=observations,
        actions=dict.fromkeys(agents, 0),
        rewards=dict.fromkeys(agents, 1.0),
        terminateds={"__all__": True},
    )
    return episode.to_numpy()


@pytest.mark.parametrize("kind", BUFFERS)
def test_impossible_capacity_is_rejected_and_changes_nothing(kind: Any) -> None:
    buffer = kind(10**11)
    for _ in range(2):
        with pytest.raises(
            InvalidArgument, match="steps of each of 3 pairs of agent and module; give a smaller capacity"
        ):
            buffer.add(episode_of(3))
        assert len(buffer) == buffer.num_added == buffer.nbytes == 0
        assert buffer.modules == {}
        assert buffer.agent_ids == []


@pytest.mark.parametrize("kind", BUFFERS)
def test_memory_is_checked_before_it_is_used(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    like = kind(100)
    like.add(episode_of(3))
    first = like.nbytes
    like.add(episode_of(5, "other"))
    both = like.nbytes
    buffer = kind(100, seed=0)
    monkeypatch.setattr(multi_agent_buffer, "machine_memory", lambda: first - 1)
    with pytest.raises(InvalidArgument, match="GiB are needed"):
        buffer.add(episode_of(3))
    assert len(buffer) == 0
    monkeypatch.setattr(multi_agent_buffer, "machine_memory", lambda: first)
    buffer.add(episode_of(3))
    assert buffer.nbytes == first
    monkeypatch.setattr(multi_agent_buffer, "machine_memory", lambda: both - 1)
    with pytest.raises(InvalidArgument, match="of each of 8 pairs"):
        buffer.add(episode_of(5, "other"))
    assert list(buffer.modules) == ["shared"]
    assert len(buffer) == 1
    assert len(buffer.sample(2)["shared"]["obs"]) == 2
    monkeypatch.setattr(multi_agent_buffer, "machine_memory", lambda: both)
    buffer.add(episode_of(5, "other"))
    assert buffer.nbytes == both
    assert list(buffer.modules) == ["shared", "other"]
