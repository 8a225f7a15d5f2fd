"""Episodes kept and drawn again."""

from episodes.replay.buffer import EpisodeReplayBuffer

__all__ = ["EpisodeReplayBuffer"]
