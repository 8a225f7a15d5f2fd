"""The struct that users see: named columns of arrays or tensors."""

from __future__ import annotations

from episodes.batch.batch import Batch
from episodes.batch.origin import EpisodeKey, Origin, StepLocations, StepOrigin, StepSource
from episodes.batch.train_batch import TrainBatch
from episodes.batch.views import (
    ActStateBatch,
    BatchWithAdvantages,
    BatchWithReturns,
    DistBatch,
    ModelOutputBatch,
    ObsBatch,
    PrioBatch,
    RolloutBatch,
)

__all__ = [
    "Batch",
    "Origin",
    "StepLocations",
    "StepOrigin",
    "StepSource",
    "EpisodeKey",
    "TrainBatch",
    "ActStateBatch",
    "BatchWithAdvantages",
    "BatchWithReturns",
    "DistBatch",
    "ModelOutputBatch",
    "ObsBatch",
    "PrioBatch",
    "RolloutBatch",
]
