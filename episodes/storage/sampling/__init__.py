"""Random sampling of training batches directly from the files of a data set."""

from episodes.storage.sampling.batch_kinds import ChunkBatches, EpisodeBatches, StepBatches, WindowBatches
from episodes.storage.sampling.sampler import Sampler
from episodes.storage.sampling.time_windows import TimeWindows

__all__ = ["ChunkBatches", "EpisodeBatches", "TimeWindows", "Sampler", "StepBatches", "WindowBatches"]
