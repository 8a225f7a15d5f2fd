"""Send episodes between processes and machines over ZeroMQ, and collect rollouts in preallocated arrays."""

from episodes.transport.accumulator import TrajectoryAccumulator
from episodes.transport.keys import make_keys
from episodes.transport.receiver import EpisodeReceiver, ReceiverStats
from episodes.transport.sender import EpisodeSender, SenderStats
from episodes.transport.weights import Weights

__all__ = [
    "TrajectoryAccumulator",
    "EpisodeSender",
    "EpisodeReceiver",
    "SenderStats",
    "ReceiverStats",
    "Weights",
    "make_keys",
]
