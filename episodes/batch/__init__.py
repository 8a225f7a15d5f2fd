"""`Batch`: named columns of arrays or tensors, with the episode and step from which each row came."""

from __future__ import annotations

from episodes.batch.batch import Batch as Batch
from episodes.batch.origin import EpisodeKey as EpisodeKey
from episodes.batch.origin import StepLocations as StepLocations
from episodes.batch.origin import StepSource as StepSource

__all__: list[str] = []
