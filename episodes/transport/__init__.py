"""Send episodes between processes and machines over ZeroMQ, and collect rollouts in preallocated arrays."""

from episodes.transport.accumulator import TrajectoryAccumulator
from episodes.transport.keys import make_keys
from episodes.transport.receiver import EpisodeReceiver
from episodes.transport.sender import EpisodeSender
from episodes.transport.weights import Weights

__all__ = [
    "TrajectoryAccumulator",
    "EpisodeSender",
    "EpisodeReceiver",
    "Weights",
    "make_keys",
]
