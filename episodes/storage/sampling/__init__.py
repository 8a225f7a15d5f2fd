"""Samplers of training batches that read directly from the files of a data set, without loading it into memory."""

from episodes.storage.sampling.batch_kinds import ChunkBatches, EpisodeBatches, StepBatches, WindowBatches
from episodes.storage.sampling.time_windows import TimeWindows

__all__ = ["ChunkBatches", "EpisodeBatches", "TimeWindows", "StepBatches", "WindowBatches"]
