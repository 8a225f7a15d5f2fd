"""From finished episodes and chunks to a train batch."""

from __future__ import annotations

from connectors.batch_items import BatchItems
from connectors.learner.add_columns import AddColumns
from connectors.learner.add_infos import AddInfos
from connectors.learner.add_next_observations import AddNextObservations
from connectors.learner.add_observations import AddObservations
from connectors.learner.generalized_advantage_estimation import GeneralizedAdvantageEstimation
from connectors.learner.pipeline import LearnerPipeline, learner_pipeline
from connectors.numpy_to_tensor import NumpyToTensor

__all__ = [
    "AddColumns",
    "AddInfos",
    "AddNextObservations",
    "AddObservations",
    "BatchItems",
    "GeneralizedAdvantageEstimation",
    "LearnerPipeline",
    "NumpyToTensor",
    "learner_pipeline",
]
