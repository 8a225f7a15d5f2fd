"""Interfaces of the two pipelines that a runner calls: env-to-module (computes policy inputs) and module-to-env
(computes actions).

`EnvToModulePipeline` and `ModuleToEnvPipeline` implement them. A runner uses no other members of its pipelines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import gymnasium as gym
import numpy as np

from connectors.connector import ColumnDict
from connectors.fingerprint import JOINT, describe_space
from episodes.data_types import NestedArrays
from episodes.errors import WrongType
from episodes.pack import EpisodePack

if TYPE_CHECKING:
    from connectors.policy import Policy
    from episodes.single_agent import SingleAgentEpisode

__all__ = ["Acted", "EnvToModule", "ModuleToEnv", "check_pipeline", "fingerprint_of"]

Acted = tuple[Any, Any, dict[str, Any]]  # actions as the policy made them, as the environment takes them, all the rest


class EnvToModule(Protocol):
    """Interface of pipelines that turn the newest observation of each environment into the policy's input batch."""

    @property
    def recorded_observation_space(self) -> gym.Space | None:
        """Space of the observations that episodes store (the results of `rewrite`), or None if it is not known."""
        ...

    @property
    def observation_space(self) -> gym.Space:
        """Space of the observations that the policy receives as input."""
        ...

    @property
    def fingerprint(self) -> list[Any]:
        """Name and settings of each connector as plain values, for a comparison with another pipeline."""
        ...

    def bind_policy(self, policy: Policy | None) -> None:
        """Add the connectors that a recurrent policy needs, and check that the policy can read the batches of this
        pipeline.
        """
        ...

    @property
    def lookback(self) -> int:
        """Number of steps before a chunk (part of an episode) that a learner needs to compute the same policy
        inputs.
        """
        ...

    @property
    def rewrites(self) -> bool:
        """Whether the pipeline changes observations before they are stored in episodes."""
        ...

    def bind(self, observation_space: gym.Space | None, action_space: gym.Space | None) -> None:
        """Set the observation and action space of a single environment, unless the pipeline already has spaces."""
        ...

    def rewrite(
        self, observations: NestedArrays, episodes: Sequence[SingleAgentEpisode] | None = None, update: bool = True
    ) -> Any:
        """Return new observations [N, ...] in the form that episodes store, for example normalized.

        Runners call it once per observation. With `update=False`, statistics do not change.
        """
        ...

    def see(
        self,
        rl_module: Policy | None,
        batch: ColumnDict,
        episodes: Sequence[SingleAgentEpisode],
        explore: bool,
        shared_data: dict[str, Any],
    ) -> ColumnDict:
        """Return the policy's input batch for the newest stored observations.

        Args:
            rl_module: the policy.
            batch: the newest stored observations, "obs" [N, ...], of N environments. The dict may be changed.
            episodes: the ongoing episodes [N].
            explore: whether actions are sampled.
            shared_data: a dict that all connectors of an env step share.
        """
        ...

    def get_state(self) -> dict[str, Any]:
        """Return what the connectors have learned from data, such as the running mean of observations."""
        ...

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore a state that `get_state` returned, such as the running mean of observations."""
        ...


class ModuleToEnv(Protocol):
    """Interface of pipelines that turn a policy's outputs into actions for the environments."""

    @property
    def input_action_space(self) -> gym.Space | None:
        """Action space of the environment, or None if it is not known."""
        ...

    @property
    def fingerprint(self) -> list[Any]:
        """Name and settings of each connector as plain values, for a comparison with another pipeline."""
        ...

    @property
    def records_env_actions(self) -> bool:
        """Whether `act` also returns the actions sent to the environment as a policy output, "actions_for_env", to be
        recorded.
        """
        ...

    def bind(self, observation_space: gym.Space | None, action_space: gym.Space | None) -> None:
        """Set the observation and action space of a single environment, unless the pipeline already has spaces."""
        ...

    def bind_policy(self, policy: Policy | None) -> None:
        """Add the connectors that a recurrent policy needs, such as one that removes the time axis of its outputs."""
        ...

    def policy_action_space(self, space: gym.Space) -> gym.Space:
        """Return the space of the policy's actions, which episodes record, for the action space `space` of an
        environment.
        """
        ...

    def act(
        self,
        policy: Policy | None,
        outputs: Mapping[str, Any],
        episodes: Sequence[SingleAgentEpisode],
        explore: bool,
        shared_data: dict[str, Any],
    ) -> Acted:
        """Return a tuple: the policy's actions [N, ...], the actions for the environments [N, ...], and a dict of the
        policy's other outputs.

        Args:
            policy: the policy.
            outputs: the dict that the policy returned.
            episodes: the ongoing episodes [N].
            explore: whether actions are sampled. False takes the most likely actions.
            shared_data: a dict that all connectors of an env step share.
        """
        ...

    def log_probs(self, policy: Policy | None, outputs: dict[str, Any], actions: NestedArrays) -> np.ndarray | None:
        """Return the log-probabilities [n] of recorded actions [n, ...], given the policy's recorded outputs for the
        same steps.

        Returns:
            None if `act` has returned them already, or if the outputs do not determine them.
        """
        ...

    def with_log_probs(self, policy: Policy | None, pack: EpisodePack) -> EpisodePack:
        """Return the episodes of `pack` with "action_logp" (the log-probability of the action) added for each step, if
        it is missing.
        """
        ...

    def get_state(self) -> dict[str, Any]:
        """Return the states of all connectors, for example of random generators that sample actions."""
        ...

    def set_state(self, state: dict[str, Any]) -> None:
        """Restore the connectors' states that `get_state` returned."""
        ...


def fingerprint_of(env_to_module: EnvToModule, module_to_env: ModuleToEnv, joint: Sequence[Any] = ()) -> dict[str, Any]:
    """Return the settings and spaces of both pipelines as plain values, to check that a policy is used with the
    pipelines of its training.

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


def check_pipeline(pipeline: object, protocol: type, argument: str) -> None:
    """Raise `WrongType` if `pipeline` lacks a method or attribute of the interface `protocol`. `argument` names the
    pipeline in the error.
    """
    members = [name for name in vars(protocol) if not name.startswith("_")]
    missing = [name for name in members if not hasattr(type(pipeline), name) and not hasattr(pipeline, name)]
    if missing:
        raise WrongType(
            f"{argument}={type(pipeline).__name__}: a runner needs {', '.join(members)} of this pipeline, which has no "
            f"{', no '.join(missing)}; build it with {argument}_pipeline"
        )
