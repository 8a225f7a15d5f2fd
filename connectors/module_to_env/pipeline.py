"""The policy's outputs -> actions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import gymnasium as gym

from connectors.connector import Connector
from connectors.module_to_env.get_actions import GetActions
from connectors.module_to_env.listify_for_vector_env import ListifyForVectorEnv
from connectors.module_to_env.normalize_and_clip_actions import NormalizeAndClipActions
from connectors.module_to_env.remove_time_dimension import RemoveTimeDimension
from connectors.module_to_env.tensor_to_numpy import TensorToNumpy
from connectors.module_to_env.unbatch_items import UnbatchItems
from connectors.pipeline import ConnectorPipeline
from episodes.columns import Columns

__all__ = ["ModuleToEnvPipeline", "module_to_env_pipeline"]


class ModuleToEnvPipeline(ConnectorPipeline):
    """Makes actions out of a policy's outputs; what is left in the batch beside them is recorded."""

    given = (
        Columns.ACTIONS,
        Columns.ACTION_DIST_INPUTS,
        Columns.ACTION_LOGP,
        Columns.VF_PREDS,
        Columns.STATE_OUT,
    )

    def _called_for_rows(self, pieces: Iterable[Connector]) -> Iterable[Connector]:
        """The pieces that do something to rows; where "actions_for_env" is left out, it is "actions"."""
        return (piece for piece in pieces if not piece.leaves_rows)


def module_to_env_pipeline(
    observation_space: gym.Space | None = None,
    action_space: gym.Space | None = None,
    *,
    pieces: Iterable[Connector] = (),
    policy: Any = None,
    normalize_actions: bool = True,
    clip_actions: bool = False,
    seed: int | None = None,
    log_probs: bool = True,
) -> ModuleToEnvPipeline:
    """The default pipeline from the policy's outputs to actions.

    It gives "actions" as the policy made them, "actions_for_env" as the environment takes them, and every other output
    as numpy arrays [N, ...].

    Args:
        action_space: the space of one environment's actions.
        pieces: your own, which see numpy rows and come before actions are brought into the environment's units.
        policy: for a stateful one, the outputs' time axis is taken off.
        normalize_actions: the policy acts in [-1, 1], spread over the bounds of Box spaces.
        clip_actions: the policy acts in the environment's units, clipped to the bounds.
        seed: a seed for sampling actions; torch's global generator by default.
        log_probs: add "action_logp" at each step; see `GetActions`.
    """
    changes = NormalizeAndClipActions(normalize_actions=normalize_actions, clip_actions=clip_actions)
    recurrent = [RemoveTimeDimension()] if getattr(policy, "is_stateful", False) else []
    first = [*recurrent, GetActions(seed=seed, log_probs=log_probs), TensorToNumpy(), UnbatchItems()]
    return ModuleToEnvPipeline(
        observation_space, action_space, connectors=[*first, *pieces, changes, ListifyForVectorEnv()]
    )
