"""Interfaces of a runner's two pipelines: env-to-module (policy inputs) and module-to-env (actions).

`EnvToModulePipeline` and `ModuleToEnvPipeline` implement them. A runner uses no other members of its pipelines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from connectors.connector import ColumnDict
from connectors.fingerprint import JOINT, describe_space
from episodes.errors import WrongType
from episodes.pack import EpisodePack

__all__ = ["Acted", "EnvToModule", "ModuleToEnv", "check_pipeline", "fingerprint_of"]

Acted = tuple[Any, Any, dict[str, Any]]  # actions as the policy made them, as the environment takes them, all the rest


class EnvToModule(Protocol):
    """Interface of the pipelines that turn the newest observations of the environments into the policy's input
    batch.
    """

    @property
    def recorded_observation_space(self) -> gym.Space | None:
        """Space of the observations that episodes store, after `rewrite`; None if it is not known."""
        ...

    @property
    def observation_space(self) -> gym.Space:
        """Space of the observations that the policy sees."""
        ...

    @property
    def fingerprint(self) -> list[Any]:
        """Name and settings of each connector, as plain values."""
        ...

    def bind_policy(self, policy: Any) -> None:
        """Add the connectors that a recurrent policy needs, and check that the policy can read this pipeline's
        batches.
        """
        ...

    @property
    def lookback(self) -> int:
        """Number of earlier steps that a learner needs before part of an episode to compute the same policy inputs."""
        ...

    @property
    def rewrites(self) -> bool:
        """Whether `rewrite` changes observations."""
        ...

    def bind(self, observation_space: gym.Space | None, action_space: gym.Space | None) -> None:
        """Set the spaces of one environment. A pipeline that already has spaces keeps them."""
        ...

    def rewrite(self, observations: Any, episodes: Any = None, update: bool = True) -> Any:
        """Return the observations [N, ...] to store in episodes. Runners call it once per observation."""
        ...

    def see(
        self, rl_module: Any, batch: ColumnDict, episodes: Any, explore: bool, shared_data: dict[str, Any]
    ) -> ColumnDict:
        """Return the policy's input batch, given a batch with the newest stored observations, "obs" [N, ...]."""
        ...

    def get_state(self) -> dict[str, Any]:
        """Return the statistics that the connectors have learned from data, such as observation means."""
        ...

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the statistics that `get_state` returned."""
        ...


class ModuleToEnv(Protocol):
    """Interface of the pipelines that turn a policy's outputs into actions, and an action space into the policy's."""

    @property
    def input_action_space(self) -> gym.Space | None:
        """Action space of the environment, or None if it is not known."""
        ...

    @property
    def fingerprint(self) -> list[Any]:
        """Name and settings of each connector, as plain values."""
        ...

    @property
    def records_env_actions(self) -> bool:
        """Whether `act` returns the actions sent to the environment also as the output "actions_for_env"."""
        ...

    def bind(self, observation_space: gym.Space | None, action_space: gym.Space | None) -> None:
        """Set the spaces of one environment. A pipeline that already has spaces keeps them."""
        ...

    def bind_policy(self, policy: Any) -> None:
        """Add the connectors that a recurrent policy needs."""
        ...

    def policy_action_space(self, space: gym.Space) -> gym.Space:
        """Return the space of the actions that episodes record, given an environment's action space."""
        ...

    def act(self, policy: Any, outputs: Any, episodes: Any, explore: bool, shared_data: dict[str, Any]) -> Acted:
        """Return the policy's actions [N, ...], those for the environment [N, ...], and the policy's other outputs."""
        ...

    def log_probs(self, policy: Any, outputs: dict[str, Any], actions: Any) -> np.ndarray | None:
        """Return the log-probabilities [n] of recorded actions [n, ...] under the policy's outputs for the same steps.

        Returns:
            None if `act` has returned them already, or if the outputs do not determine them.
        """
        ...

    def with_log_probs(self, policy: Any, pack: EpisodePack) -> EpisodePack:
        """Return the episodes of `pack` with the output "action_logp" for all steps. A complete pack is returned
        unchanged.
        """
        ...

    def get_state(self) -> dict[str, Any]:
        """Return the states of the connectors, such as random generators."""
        ...

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the states that `get_state` returned."""
        ...


def fingerprint_of(env_to_module: EnvToModule, module_to_env: ModuleToEnv, joint: Sequence[Any] = ()) -> dict[str, Any]:
    """Return the settings and spaces of both pipelines that a trained policy depends on, as plain values.

    Args:
        joint: [name, settings] of the preprocessors of all agents' observations, which run before `env_to_module`.
    """
    return {
        "observations": describe_space(env_to_module.observation_space),
        "actions": describe_space(module_to_env.input_action_space, bounds=True),
        "env_to_module": env_to_module.fingerprint,
        "module_to_env": module_to_env.fingerprint,
        "views": getattr(env_to_module, "view_settings", []),
        JOINT: list(joint),
    }


def check_pipeline(pipeline: Any, protocol: type, argument: str) -> None:
    """Raise `WrongType` if a pipeline, given as `argument`, lacks methods or attributes of the interface `protocol`."""
    members = [name for name in vars(protocol) if not name.startswith("_")]
    missing = [name for name in members if not hasattr(type(pipeline), name) and not hasattr(pipeline, name)]
    if missing:
        raise WrongType(
            f"{argument}={type(pipeline).__name__}: a runner asks {', '.join(members)} of this pipeline, which has no "
            f"{', no '.join(missing)}; build it with {argument}_pipeline"
        )
