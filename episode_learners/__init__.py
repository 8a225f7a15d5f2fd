"""Algorithms, policies and trainers: from batches to better policies."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from episode_learners.algorithms import (
        BC,
        CQL,
        DQN,
        GRPO,
        IMPALA,
        PPO,
        R2D2,
        SAC,
        Algorithm,
        BCConfig,
        ContinuousCQL,
        ContinuousCQLConfig,
        CQLConfig,
        DQNConfig,
        FlatOptimizer,
        GRPOConfig,
        IMPALAConfig,
        PPOConfig,
        R2D2Config,
        SACConfig,
        TargetNetwork,
        linear_decay,
        ppo_pipeline,
    )
    from episode_learners.data_parallel import data_parallel
    from episode_learners.episode_history import EpisodeHistory
    from episode_learners.league import League
    from episode_learners.multi_agent import MultiAgentAlgorithm
    from episode_learners.policies import (
        EncoderPolicy,
        GRUPolicy,
        LSTMPolicy,
        LSTMQPolicy,
        MLPPolicy,
        Policy,
        QPolicy,
        SACPolicy,
        TransformerPolicy,
    )

__all__ = [
    "BC",
    "CQL",
    "DQN",
    "GRPO",
    "IMPALA",
    "PPO",
    "R2D2",
    "SAC",
    "Algorithm",
    "BCConfig",
    "CQLConfig",
    "ContinuousCQL",
    "ContinuousCQLConfig",
    "DQNConfig",
    "EncoderPolicy",
    "EpisodeHistory",
    "FlatOptimizer",
    "GRPOConfig",
    "GRUPolicy",
    "IMPALAConfig",
    "LSTMPolicy",
    "LSTMQPolicy",
    "League",
    "MLPPolicy",
    "MultiAgentAlgorithm",
    "PPOConfig",
    "Policy",
    "QPolicy",
    "R2D2Config",
    "SACConfig",
    "SACPolicy",
    "TargetNetwork",
    "TransformerPolicy",
    "data_parallel",
    "linear_decay",
    "ppo_pipeline",
]

_HOMES = {  # of names that are imported when first used, because torch is slow to import
    "Algorithm": "episode_learners.algorithms",
    "BC": "episode_learners.algorithms",
    "BCConfig": "episode_learners.algorithms",
    "CQL": "episode_learners.algorithms",
    "CQLConfig": "episode_learners.algorithms",
    "ContinuousCQL": "episode_learners.algorithms",
    "ContinuousCQLConfig": "episode_learners.algorithms",
    "DQN": "episode_learners.algorithms",
    "DQNConfig": "episode_learners.algorithms",
    "EncoderPolicy": "episode_learners.policies",
    "EpisodeHistory": "episode_learners.episode_history",
    "FlatOptimizer": "episode_learners.algorithms",
    "GRPO": "episode_learners.algorithms",
    "GRPOConfig": "episode_learners.algorithms",
    "GRUPolicy": "episode_learners.policies",
    "IMPALA": "episode_learners.algorithms",
    "IMPALAConfig": "episode_learners.algorithms",
    "LSTMPolicy": "episode_learners.policies",
    "LSTMQPolicy": "episode_learners.policies",
    "League": "episode_learners.league",
    "MLPPolicy": "episode_learners.policies",
    "MultiAgentAlgorithm": "episode_learners.multi_agent",
    "PPO": "episode_learners.algorithms",
    "PPOConfig": "episode_learners.algorithms",
    "Policy": "episode_learners.policies",
    "QPolicy": "episode_learners.policies",
    "R2D2": "episode_learners.algorithms",
    "R2D2Config": "episode_learners.algorithms",
    "SAC": "episode_learners.algorithms",
    "SACConfig": "episode_learners.algorithms",
    "SACPolicy": "episode_learners.policies",
    "TargetNetwork": "episode_learners.algorithms",
    "TransformerPolicy": "episode_learners.policies",
    "data_parallel": "episode_learners.data_parallel",
    "linear_decay": "episode_learners.algorithms",
    "ppo_pipeline": "episode_learners.algorithms",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value = getattr(import_module(_HOMES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
