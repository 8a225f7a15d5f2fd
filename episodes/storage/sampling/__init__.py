"""Batches drawn straight from the files of a data set."""

from episodes.storage.sampling.draw_kinds import Episodes, Steps, Windows
from episodes.storage.sampling.sampler import Sampler
from episodes.storage.sampling.time_stamps import Moments

__all__ = ["Episodes", "Moments", "Sampler", "Steps", "Windows"]
