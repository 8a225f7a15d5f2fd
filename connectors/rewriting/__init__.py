"""Connectors that change the observations that episodes store."""

from __future__ import annotations

from connectors.rewriting.mean_std_filter import MeanStdFilter
from connectors.rewriting.multi_agent_preprocessor import MultiAgentObservationPreprocessor
from connectors.rewriting.observation_preprocessor import ObservationPreprocessor
from connectors.rewriting.rewriter import ObservationRewriter

__all__ = ["MeanStdFilter", "MultiAgentObservationPreprocessor", "ObservationPreprocessor", "ObservationRewriter"]
