"""Batches drawn straight from the files of a data set."""

from episodes.storage.sampling.kinds import Episodes, Steps, Windows
from episodes.storage.sampling.sampler import Sampler

__all__ = ["Episodes", "Sampler", "Steps", "Windows"]
