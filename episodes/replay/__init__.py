"""Replay buffers that store whole episodes, and from which transitions, sequences or episodes are sampled."""

from episodes.replay.buffer import EpisodeReplayBuffer
from episodes.replay.multi_agent_buffer import MultiAgentEpisodeReplayBuffer
from episodes.replay.multi_agent_prioritized import MultiAgentPrioritizedEpisodeReplayBuffer
from episodes.replay.prioritized import PrioritizedEpisodeReplayBuffer
from episodes.replay.samples_per_insert import SamplesPerInsert

__all__ = [
    "EpisodeReplayBuffer",
    "MultiAgentEpisodeReplayBuffer",
    "MultiAgentPrioritizedEpisodeReplayBuffer",
    "PrioritizedEpisodeReplayBuffer",
    "SamplesPerInsert",
]
